"""What may change when a run goes on."""

from __future__ import annotations

import pytest

from shoal.config.load import settings_for
from shoal.config.resume import change_for_resume
from shoal.errors import ConfigError, UnknownName
from shoal.loops.settings import CurriculumSettings

SETTINGS = settings_for("CartPole-v1", "apex-dqn", ["env.kwargs.sutton_barto_reward=true"])


@pytest.mark.parametrize(
    "override",
    [
        "stop.steps=7",
        "stop.seconds=7",
        "mean_return=7",
        "evaluation.episodes=7",
        "runtime=inline",
        "address=auto",
        "device=cpu",
        "learner.threads=2",
        "prefetch=7",
        "checkpoint_seconds=7",
        "report_seconds=7",
        "restart_limit=7",
        "replay.keep=true",
        "weights_period=7",
    ],
)
def test_how_where_and_how_long_may_change(override: str) -> None:
    changed = change_for_resume(SETTINGS, [override])
    assert changed != SETTINGS
    assert changed.env == SETTINGS.env and changed.algorithm == SETTINGS.algorithm


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("env=Acrobot-v1", "env.id cannot change from 'CartPole-v1' to 'Acrobot-v1'"),
        ("env.lanes=3", "env.lanes cannot change from 8 to 3 in a run that goes on: the replay is laid out for it"),
        ("env.kwargs={}", "env.kwargs"),
        ("env.kwargs.sutton_barto_reward=false", "env.kwargs.sutton_barto_reward cannot change from true to false"),
        ("gamma=0.5", "algorithm.gamma cannot change from 0.99 to 0.5"),
        ("hidden=[3]", "algorithm.hidden"),
        ("actors=3", "the replay is laid out for it"),
        ("capacity=20000", "the replay is laid out for it"),
        ("replay.path=x", "the replay is laid out for it"),
        ("replay.selectors=[{type: uniform}]", "half-way"),
        ("batch_size=8", "half-way"),
        ("precision=bfloat16", "half-way"),
        ("min_size=2000", "the rate limiter counts"),
        ("samples_per_insert=2", "the rate limiter counts"),
        ("seed=9", "random numbers"),
    ],
)
def test_what_the_run_was_made_for_may_not(override: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        change_for_resume(SETTINGS, [override])
    assert reason in str(caught.value)
    assert "Start a new run with `shoal train`." in str(caught.value)


def test_another_algorithm_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"(algo cannot change|Unknown setting)"):
        change_for_resume(SETTINGS, ["algo=apex-qr-dqn"])


def test_the_same_values_are_no_change() -> None:
    assert change_for_resume(SETTINGS, ["actors=2", "env=CartPole-v1", "gamma=0.99"]) == SETTINGS


def test_all_refusals_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        change_for_resume(SETTINGS, ["actors=3", "gamma=0.5"])
    assert str(caught.value).startswith("2 problems:")


def test_wrong_names_and_values_are_told_first() -> None:
    with pytest.raises(UnknownName, match=r"stop\.steps"):
        change_for_resume(SETTINGS, ["stop.stepps=3"])
    with pytest.raises(ConfigError, match=r"stop\.steps = 0 cannot be used"):
        change_for_resume(SETTINGS, ["stop.steps=0"])


def test_a_curriculum_may_go_further_but_not_begin_elsewhere() -> None:
    section = {"start": {"size": 1}, "grow": {"size": 1}, "limit": {"size": 3}}
    learning = SETTINGS.model_copy(update={"curriculum": CurriculumSettings.model_validate(section)})
    further = change_for_resume(learning, ["curriculum.limit.size=5", "curriculum.success=0.8", "curriculum.window=9"])
    assert further.curriculum.limit == {"size": 5} and further.curriculum.start == {"size": 1}
    for change in ("curriculum.start.size=2", "curriculum.grow.size=2", "curriculum.start={}"):
        with pytest.raises(ConfigError, match="curriculum"):
            change_for_resume(learning, [change])
