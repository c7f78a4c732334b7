"""What does not fit an environment or a machine, and where a run ends that was told no end."""

from __future__ import annotations

import pytest
import torch

from shoal.config.checks import DEFAULT_STEPS, check_environment, with_default_stop
from shoal.config.load import settings_for
from shoal.errors import ConfigError, UnknownName


def test_what_fits_is_described() -> None:
    spec = check_environment(settings_for("CartPole-v1", "apex-dqn", [])).spec
    assert spec.obs_shape == (4,) and spec.reward_threshold == 475.0


def test_unknown_environment() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'CartPole-v1'"):
        check_environment(settings_for("CartPol-v1", "apex-dqn", []))


def test_continuous_actions() -> None:
    with pytest.raises(ConfigError, match="needs discrete actions"):
        check_environment(settings_for("Pendulum-v1", "apex-dqn", []))


def test_capacity_for_all_lanes() -> None:
    small = ["capacity=1000", "min_size=10", "batch_size=8", "actors=8", "env.lanes=8"]
    with pytest.raises(ConfigError, match=r"replay\.capacity = 1000 is too small for actors = 8 times env\.lanes = 8"):
        check_environment(settings_for("CartPole-v1", "apex-dqn", small))
    check_environment(settings_for("CartPole-v1", "apex-dqn", [*small, "actors=2"]))
    with pytest.raises(ConfigError, match="too small"):
        check_environment(settings_for("CartPole-v1", "apex-dqn", [*small, "actors=2", "n_step=64"]))


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_missing_gpu() -> None:
    with pytest.raises(ConfigError, match="no usable GPU"):
        check_environment(settings_for("CartPole-v1", "apex-dqn", ["device=cuda"]))
    with pytest.raises(ConfigError, match=r"evaluation\.policy_device = 'cuda', but this machine has no usable GPU"):
        check_environment(settings_for("CartPole-v1", "apex-dqn", ["policy_device=cuda"]))


def test_a_run_without_an_end_gets_one() -> None:
    # The algorithm's own defaults may one day set a stop; this is about runs where nobody did.
    endless = settings_for("CartPole-v1", "apex-dqn", ["stop={steps: null, seconds: null, mean_return: null}"])
    ends = with_default_stop(endless, 475.0).stop
    assert (ends.steps, ends.seconds, ends.mean_return) == (DEFAULT_STEPS, None, 475.0)
    ends = with_default_stop(endless, None).stop
    assert (ends.steps, ends.seconds, ends.mean_return) == (DEFAULT_STEPS, None, None)


@pytest.mark.parametrize("stop", ["steps=5", "stop.seconds=5", "mean_return=5"])
def test_an_end_that_was_given_is_kept(stop: str) -> None:
    settings = settings_for("CartPole-v1", "apex-dqn", [stop])
    assert with_default_stop(settings, 475.0) == settings


@pytest.mark.parametrize(
    ("algo", "overrides", "message"),
    [
        ("impala", ["clear=true", "defaults=paper"], "nothing is replayed"),
        ("impala", ["replay=[{type: fifo, ratio: 0.5}, {type: prioritized, ratio: 0.5}]"], "computes no priorities"),
        ("impact", ["replay=[{type: fifo, ratio: 0.5}, {type: prioritized, ratio: 0.5}]"], "computes no priorities"),
        ("impala", ["burn_in=4"], "warms up an LSTM, and there is none"),
    ],
)
def test_options_that_would_do_nothing_are_refused(algo: str, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings_for("CartPole-v1", algo, overrides)


def test_cloning_has_something_to_clone() -> None:
    settings_for("CartPole-v1", "impala", ["clear=true", "clear.on=all"])
    settings_for(
        "CartPole-v1", "impala", ["clear=true", "replay=[{type: fifo, ratio: 0.5}, {type: uniform, ratio: 0.5}]"]
    )


@pytest.mark.parametrize(
    ("selectors", "reachable", "too_much", "said"),
    [
        ("[{type: fifo, on_full: drop}]", 1, 1.5, "fifo at ratio = 1, which draws a step 1 times"),
        (
            "[{type: fifo, on_full: drop, ratio: 0.25}, {type: uniform, ratio: 0.75}]",
            4,
            8,
            "fifo at ratio = 0.25, which draws a step 4 times",
        ),
        ("[{type: circular, on_full: drop, passes: 3}]", 3, 4, "circular at ratio = 1, which draws a step 3 times"),
    ],
)
def test_a_queue_cannot_be_asked_for_more_than_it_hands_out(
    selectors: str, reachable: float, too_much: float, said: str
) -> None:
    chosen = [f"replay.selectors={selectors}"]
    settings_for("CartPole-v1", "impala", [*chosen, f"samples_per_insert={reachable}"])
    with pytest.raises(ConfigError, match=rf"samples_per_insert = {too_much} cannot be reached with {said}.*null"):
        settings_for("CartPole-v1", "impala", [*chosen, f"samples_per_insert={too_much}"])
    with pytest.raises(ConfigError, match="decides by itself"):
        settings_for("CartPole-v1", "impala", ["samples_per_insert=1"])
