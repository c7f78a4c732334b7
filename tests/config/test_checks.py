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


def test_a_gpu_that_a_cluster_may_have_is_not_looked_for_here() -> None:
    plan = check_environment(settings_for("CartPole-v1", "apex-dqn", ["device=cuda", "address=auto"]))
    assert plan.needs_gpu and not plan.likes_gpu
    plan = check_environment(settings_for("CartPole-v1", "apex-dqn", ["address=auto"]))
    assert not plan.needs_gpu and not plan.likes_gpu  # a vector: a CPU is faster


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


LEVELS = ["curriculum.start={size: 1}", "curriculum.grow={size: 1}", "curriculum.limit={size: 3}"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["stop.curriculum=true"], "curriculum.start is missing"),
        (["curriculum.limit.size=3"], "curriculum.start is missing"),
        ([*LEVELS, "curriculum.limit.agents=3"], "grow has size; limit has size, agents"),
        ([*LEVELS, "curriculum.grow.size=-1"], "grow.size = -1 never leads from start = 1 to limit = 3"),
        ([*LEVELS, "curriculum.grow.size=0"], "never leads"),
        ([*LEVELS, "curriculum.grow.size=1e-6"], "2,000,001 levels are more than"),
        ([*LEVELS, "curriculum.success=0"], "curriculum.success"),
        ([*LEVELS, "curriculum.start.size=big"], "curriculum.start"),
    ],
)
def test_levels_that_lead_nowhere(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings_for("CartPole-v1", "apex-dqn", overrides)


def test_an_environment_without_levels() -> None:
    with pytest.raises(ConfigError, match="CartPole-v1 has no levels"):
        check_environment(settings_for("CartPole-v1", "apex-dqn", LEVELS))


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


@pytest.mark.parametrize(
    ("algo", "given", "said"),
    [
        ("ppo", "replay=[{type: fifo}]", r"ppo learns from what its newest policy did, not from fifo: use replay="),
        ("ppo", "replay=[{type: prioritized}]", "not from prioritized"),
        ("ppo", "replay=[{type: rollout, ratio: 0.5}, {type: uniform, ratio: 0.5}]", "remove the other selectors"),
        ("ppo", "learner.batch_size=32", "batch_size = 32 cannot be used with rollouts.*set it to lanes"),
        ("ppo", "learner.batch.min=2", "the rollout's own `share`"),
        ("ppo", "learner.batch.max=2", "set it to null"),
        ("ppo", "prefetch=2", "prefetch = 2 .* set it to 0"),
        ("ppo", "publish_every=2", "every rollout needs new weights"),
        ("ppo", "weights_period=2", "every rollout needs new weights"),
        ("ppo", "samples_per_insert=1", "learned from in one update"),
        ("ppo", "min_size=100", "set it to 1"),
        ("impala", "replay=[{type: rollout}]", "batch_size = 8 cannot be used with rollouts"),
        ("apex-dqn", "replay=[{type: rollout}]", "apex-dqn learns from transitions: .* one of impala, impact, ppo"),
    ],
)
def test_what_a_barrier_excludes(algo: str, given: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        settings_for("CartPole-v1", algo, [given])


def test_a_rollout_takes_all_lanes() -> None:
    settings = settings_for("CartPole-v1", "ppo", ["actors=3", "env.lanes=5", "replay=[{type: rollout, share: 0.4}]"])
    assert settings.most_draws == 15 and settings.rows_per_batch == 15 * 64
    assert check_environment(settings).fewest_draws(0) == 10
    rollouts = ["replay=[{type: rollout}]", "batch_size=lanes", "prefetch=0"]
    assert settings_for("CartPole-v1", "impala", rollouts).most_draws == 16, "A2C, with V-trace"


@pytest.mark.parametrize(
    ("algo", "given", "said"),
    [
        (
            "apex-dqn",
            ["learners=3"],
            r"learners = 3 is more than actors = 2.*use actors=3 or more, or learners=2 or fewer",
        ),
        ("apex-dqn", ["learners=2", "runtime=inline"], r"runtime = inline has only one: use ray, or learners=1"),
        ("apex-dqn", ["learners=2", "share.registry=somewhere"], r"share\.registry cannot be used with learners = 2"),
        ("apex-dqn", ["learners=2", "learner.device=[cpu]"], r"one device of one kind for each of learners = 2"),
        ("apex-dqn", ["learners=2", "learner.device=[cpu, cuda:0]"], r"for instance \[cuda:0, cuda:1\]"),
        ("apex-dqn", ["learner.device=[cpu, vga]", "learners=2"], r"learner\.device = 'vga' cannot be used"),
        ("impact", ["learners=2", "learner.compile=true"], r"set one of them to false, or learners=1"),
        ("impala", ["learners=2", "batch_size=8"], r"batch_size = 8 does not divide among learners = 2.*use 16"),
    ],
)
def test_what_several_learners_exclude(algo: str, given: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        settings_for("CartPole-v1", algo, [*given, "actors=2"])


@pytest.mark.parametrize(
    ("actors", "learners", "shares"), [(2, 1, [16]), (2, 2, [8, 8]), (3, 2, [10, 6]), (5, 3, [6, 6, 4])]
)
def test_learners_divide_a_batch_as_their_shards(actors: int, learners: int, shares: list[int]) -> None:
    given = [f"actors={actors}", f"learners={learners}", "batch_size=16"]
    plan = check_environment(settings_for("CartPole-v1", "apex-dqn", given))
    assert [plan.learner_share(one, 16) for one in range(learners)] == shares
    read = [actor for one in range(learners) for actor in plan.learner_actors(one)]
    assert sorted(read) == [*range(actors)]
