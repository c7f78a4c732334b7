"""HealthWatch: what it says of made-up lines of metrics, and of runs that have an illness on purpose."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from rich.console import Console
from tests.fakes import corridor

from shoal.algorithms import ALGORITHMS
from shoal.config.load import load_target
from shoal.files import read_json
from shoal.loops.health import Layer
from shoal.loops.plan import make_plan
from shoal.loops.settings import RunSettings
from shoal.runtime.execution import execute
from shoal.runtime.health import HealthWatch
from shoal.runtime.run_folder import RunFolder, Summary
from shoal.types import EnvSpec, ObsPart

VECTOR = EnvSpec("Test-v0", (4,), "float32", 1, 4, (), reward_threshold=100.0)
IMAGES = EnvSpec("Test-v0", (4, 84, 84), "uint8", 4, 4, ())
Line = dict[str, float]


def watch(algo: str = "apex-dqn", spec: EnvSpec = VECTOR, **sections: Any) -> HealthWatch:
    settings = {"env": {"id": "Test-v0"}, "algo": algo, "health": {"patience": 1000}, **sections}
    found = HealthWatch(RunSettings.model_validate(settings), spec)
    found.begin([8.0, 12.0] * 25)
    return found


def judged(found: HealthWatch, values: Line, lines: int = 100, start: int = 0, **more: Any) -> list[str]:
    """What it says to so many lines, one for every 1,000 steps."""
    return [text for line in range(lines) for text in found.judge(1000 * (start + line), values, **more)]


MAXIMUM = math.log(4)
STUCK: Line = {"rollout/ep_rew_mean": 9.0, "rollout/ep_len_mean": 20.0}
DIVERGED: Line = {"health/largest_reward": 1.0, "rollout/ep_len_mean": 500.0}
LASER = {"algorithm": {"laser": {"enabled": True}}}
ILL: dict[str, tuple[str, dict[str, Any], Line, Line]] = {
    # what is said: algorithm, settings, a line that is ill, a line that is healthy
    "of the units of a layer": ("apex-dqn", {}, {"health/dead_units": 0.95}, {"health/dead_units": 0.6}),
    "been certain": ("impala", {}, STUCK | {"train/entropy": 1e-3}, STUCK | {"train/entropy": 0.5}),
    "at random": ("impala", {}, STUCK | {"train/entropy": 0.99 * MAXIMUM}, STUCK | {"train/entropy": 0.9 * MAXIMUM}),
    "no better than a constant": (
        "impact",
        {},
        STUCK | {"train/explained_variance": -0.3},
        STUCK | {"train/explained_variance": 0.1},
    ),
    "train/q_mean is 1.01e+03, 33.7": ("apex-dqn", {}, {**DIVERGED, "train/q_mean": 1010.0}, {"train/q_mean": 300.0}),
    "train/value_mean": (
        "impala",
        {},
        {**DIVERGED, "train/value_mean": -5000.0},
        {**DIVERGED, "train/value_mean": -900.0},
    ),
    "as varied as 300 of 100,000 rows": (
        "apex-dqn",
        {"replay": {"selectors": [{"type": "prioritized"}]}},
        {"health/effective_rows": 300.0, "replay/rows": 1e5},
        {"health/effective_rows": 3000.0, "replay/rows": 1e5},
    ),
    "LASER has used only 1.0%": ("impala", LASER, {"train/laser_used": 0.01}, {"train/laser_used": 0.3}),
    "evaluations have stayed at about 10.6": ("td3", {}, {"eval/mean_reward": 10.6}, {"eval/mean_reward": 12.0}),
}


@pytest.mark.parametrize("what", ILL)
def test_each_illness_is_said_once_and_once_more_when_it_is_back(what: str) -> None:
    algo, sections, ill, healthy = ILL[what]
    if "train/q_mean" in healthy:
        healthy = {**DIVERGED, **healthy}
    found = watch(algo, **sections)
    assert judged(found, healthy) == []
    (text,) = judged(found, ill, start=100)
    assert what in text and "since step 100,000: " in text and text.endswith(".")
    assert len(found.complaints) == 1 and what in found.complaints[0]
    assert judged(found, healthy, start=200) == [] and found.complaints == (), "cured"
    (again,) = judged(found, ill, start=300)
    assert "since step 300,000: " in again
    judged(found, healthy, start=400)
    assert judged(found, ill, start=500) == [], "twice is enough"
    assert len(found.complaints) == 1, "but the summary says so"


@pytest.mark.parametrize("what", ILL)
def test_nothing_is_said_before_it_lasted(what: str) -> None:
    algo, sections, ill, _ = ILL[what]
    assert judged(watch(algo, **sections), ill, lines=4) == [], "too few reports"
    patient = watch(algo, **sections, health={"patience": 100_000})
    assert judged(patient, ill, lines=90) == [], "too few steps"
    assert judged(watch(algo, **sections, health={"enabled": False}), ill) == []


def test_the_layer_is_named_and_few_filters_are_sooner_missed_than_units() -> None:
    layers = [Layer("network", 1, True, 13, 16), Layer("network", 3, False, 220, 256)]
    (text,) = judged(watch("impala", IMAGES), {"health/dead_units": 0.86}, layers=layers)
    assert "13 of 16 filters in layer 1 of the network have been dead since step 0: " in text
    assert "algorithm.learning_rate (0.001)" in text and "algorithm.center_images=true" in text
    assert judged(watch("impala", IMAGES), {"health/dead_units": 0.86}, layers=layers[1:]) == []
    critic = [Layer("critic", 1, False, 1, 64), Layer("policy", 2, False, 63, 64)]
    (text,) = judged(watch("td3"), {"health/dead_units": 0.98}, layers=critic)
    assert "63 of 64 units in layer 2 of the policy" in text and "algorithm.policy_learning_rate" in text


@pytest.mark.parametrize(
    ("algo", "line"),
    [
        ("impala", {"rollout/ep_rew_mean": 80.0, "train/entropy": 1e-4}),
        ("impala", {"rollout/ep_rew_mean": 80.0, "train/entropy": MAXIMUM, "train/explained_variance": -0.5}),
        ("impala", {**STUCK, "train/entropy": 0.5 * 0.2, "train/laser_used": 0.2}),  # rejected steps count 0
        ("impala", {**STUCK, "train/entropy": 0.0, "train/laser_used": 0.0}),  # nothing is known then
        ("sac", {"train/entropy": -3.0, "train/q_mean": 400.0, **DIVERGED, "train/temperature": 0.2}),
        ("td3", {"eval/mean_reward": 100.0}),  # the goal
        ("td3", {"eval/mean_reward": 50.0}),  # better than the first episodes
        ("apex-dqn", {"health/effective_rows": 800.0, "replay/rows": 1e3}),  # a small replay
    ],
)
def test_what_a_healthy_run_may_do(algo: str, line: Line) -> None:
    found = watch(algo) if algo != "sac" else watch(algo, spec=EnvSpec("T", (3,), "float32", 1, 0, (1,), (-1,), (1,)))
    said = judged(found, line)
    assert [text for text in said if "LASER" not in text] == []


def test_an_offset_of_all_returns_does_not_hide_what_was_learned() -> None:
    """From 20,010 to 20,020 is a thousandth, and all there is to learn."""
    settings = {"env": {"id": "Test-v0"}, "algo": "impala", "health": {"patience": 1000}}
    found = HealthWatch(RunSettings.model_validate(settings), VECTOR)
    found.begin([20_007.0, 20_013.0] * 25)
    solved = {"rollout/ep_rew_mean": 20_019.0, "eval/mean_reward": 20_020.0, "train/entropy": 1e-3}
    assert judged(found, {"eval/mean_reward": 20_010.0, "rollout/ep_rew_mean": 20_010.0}, lines=2) == []
    assert judged(found, solved, start=2) == []


def test_images_beside_vectors_are_images() -> None:
    part = ObsPart.of((8, 8, 3), "uint8")
    both = EnvSpec("Test-v0", (200,), "uint8", 1, 4, (), obs_parts=(part,))
    assert judged(watch("impala", both), STUCK | {"train/entropy": 0.99 * MAXIMUM}, lines=20) == []


def test_an_evaluation_that_moves_is_none_that_stays() -> None:
    found = watch("impala")
    assert [found.judge(1000 * n, {"eval/mean_reward": 5.0 + (n % 4)}) for n in range(100)] == [[]] * 100
    for n in range(100, 104):  # it collapsed, and stays there, except for noise
        assert found.judge(1000 * n, {"eval/mean_reward": 5.0 + 0.4 * (n % 2)}) == []
    (text,) = found.judge(105_000, {"eval/mean_reward": 5.01})
    assert "since step 100,000" in text


def test_a_task_that_was_learned_and_is_lost() -> None:
    """The first episodes had 10. A quarter of the lead is the limit: 31."""
    found = watch("ppo")
    assert judged(found, {"eval/mean_reward": 94.0}, lines=5) == []
    assert judged(found, {"eval/mean_reward": 40.0}, start=5) == [], "worse, but better than at the start"
    (text,) = judged(found, {"eval/mean_reward": 11.0}, start=200)
    assert text.startswith("health: evaluations have been near 11, after 94, since step 200,000: ")
    assert "algorithm.learning_rate (0.0003) or set algorithm.target_kl=0.02." in text
    swings = [found.judge(1000 * n, {"eval/mean_reward": 11.0 if n % 4 else 90.0}) for n in range(300, 400)]
    assert not any(swings), "it comes back in between"
    images = watch("impala", IMAGES)
    assert judged(images, {"eval/mean_reward": 94.0}, lines=5) == []
    assert judged(images, {"eval/mean_reward": 11.0}, start=5, lines=20) == [], "images take longer"


@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 1.0), (100.0, 60.0)])
def test_luck_is_not_learning(mean: float, deviation: float) -> None:
    """Of returns that are noise, the best of many evaluations is far above the rest. Nothing was lost."""
    rng, said = np.random.default_rng(0), 0
    for _ in range(100):
        found = HealthWatch(watch("ppo")._settings, VECTOR)
        found.begin(rng.normal(mean, deviation, 100).tolist())
        for step in range(0, 50_000, 1000):
            returns = rng.normal(mean, deviation, 20)
            line = {"eval/mean_reward": float(returns.mean()), "eval/std_reward": float(returns.std())}
            said += any("what was learned is lost" in text for text in found.judge(step, line))
    assert said <= 1


def test_evaluations_may_stay_while_training_gets_better() -> None:
    found = watch("ppo")
    assert judged(found, {"eval/mean_reward": 9.0, "rollout/ep_rew_mean": 20.0}) == []


def test_a_policy_of_images_may_be_undecided_for_longer() -> None:
    line = STUCK | {"train/entropy": MAXIMUM}
    assert judged(watch("impala", IMAGES), line, lines=20) == []
    assert len(judged(watch("impala"), line, lines=20)) == len(judged(watch("impala", IMAGES), line, lines=30)) == 1


def test_nothing_can_be_learned_before_the_first_reward() -> None:
    settings = RunSettings.model_validate({"env": {"id": "T"}, "algo": "ppo", "health": {"patience": 1000}})
    for spec, lines in ((VECTOR, 10), (IMAGES, 20)):
        found = HealthWatch(settings, spec)
        found.begin([0.0] * 50)
        (text,) = judged(found, {"rollout/ep_rew_mean": 0.0}, lines=lines)
        assert "no episode of training has had a reward since step 0" in text and "raise algorithm.entropy_cost" in text
        assert judged(found, {"rollout/ep_rew_mean": 0.01}, start=lines) == [] and found.complaints == ()
        assert judged(found, {"rollout/ep_rew_mean": 0.0}, start=lines + 100) == [], "it was found once"
    balanced = HealthWatch(settings, VECTOR)
    balanced.begin([0.0] * 50)
    assert judged(balanced, {"rollout/ep_rew_mean": 0.0, "health/largest_reward": 1.0}) == []
    silent = HealthWatch(settings, VECTOR)
    silent.begin([0.0] * 50)
    (text,) = judged(silent, {"rollout/ep_rew_mean": 0.0, "eval/mean_reward": 0.0})
    assert "no episode of training has had a reward" in text, "and not that evaluations stay"


def test_a_resumed_run_knows_its_past() -> None:
    """Else a policy that has learned before would count as one that did not improve."""
    certain: Line = {"rollout/ep_rew_mean": 80.0, "train/entropy": 1e-4, "eval/mean_reward": 80.0}
    past: list[dict[str, Any]] = [{"step": 1000, "rollout/ep_rew_mean": 9.0, "train/entropy": None}]
    settings = RunSettings.model_validate({"env": {"id": "T"}, "algo": "impala", "health": {"patience": 1000}})
    found, fresh = HealthWatch(settings, VECTOR), HealthWatch(settings, VECTOR)
    found.recall(past)
    for one in (found, fresh):
        one.begin([80.0] * 100)
    assert judged(found, certain, start=2) == []
    assert len(judged(fresh, certain, start=2)) == 2


@pytest.mark.parametrize("algo", sorted(ALGORITHMS))
def test_remedies_name_settings_that_the_algorithm_has(algo: str) -> None:
    """And each illness that an algorithm's metrics can show has one."""
    config, found, said = ALGORITHMS[algo].config.model_fields, watch(algo), list[str]()
    trusts = algo == "impala"
    for _, _, line, _ in ILL.values():
        mean = "train/value_mean" if "entropy_cost" in config else "train/q_mean"
        fits = all(name in (mean, "train/entropy", "train/explained_variance") or "train/" not in name for name in line)
        if fits and ("entropy_cost" in config or not {"train/entropy", "train/explained_variance"} & set(line)):
            said += judged(found, line)
        elif "train/laser_used" in line and trusts:
            said += judged(found, line)
    assert len(said) >= 4
    for text in said:
        for name in re.findall(r"algorithm\.(\w+)", text):
            assert name in config, text


# ---- runs that are ill on purpose


class Pointless(gymnasium.Env[np.ndarray, int]):
    """Whatever is done, an episode of 5 steps returns 5; one step in `rare` brings a prize."""

    observation_space = spaces.Box(0.0, 1.0, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, prize: float = 0.0, rare: int = 1500) -> None:
        self._prize, self._rare, self._at = prize, rare, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._at = 0
        return self.np_random.random(4, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._at += 1
        reward = self._prize if self._prize and self.np_random.integers(self._rare) == 0 else 1.0
        return self.np_random.random(4, np.float32), reward, self._at == 5, False, {}


class Spoiled(Pointless):
    """The last action earns 1, until all its environments together have made so many steps: then nothing does."""

    action_space = spaces.Discrete(6)
    steps = 0

    def __init__(self, until: int = 4_000) -> None:
        super().__init__()
        self._until = until

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        Spoiled.steps += 1
        obs, _, over, cut, info = super().step(action)
        return obs, float(action == 5 and Spoiled.steps < self._until), over, cut, info


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    gymnasium.register("TestPointless-v0", entry_point=Pointless)
    gymnasium.register("TestSpoiled-v0", entry_point=Spoiled)
    Spoiled.steps = 0
    yield
    del gymnasium.registry["TestPointless-v0"], gymnasium.registry["TestSpoiled-v0"]


POINTLESS = {"env": {"id": "TestPointless-v0"}}
IMPATIENT = {"health": {"patience": 500}, "stop": {"steps": 7000}}


def dqn(**sections: Any) -> RunSettings:
    replay = {"samples_per_insert": 2, **sections.pop("replay", {})}
    return corridor(replay=replay, **{**IMPATIENT, **sections})


def impala(**sections: Any) -> RunSettings:
    base: dict[str, Any] = {
        "algo": "impala",
        "env": {"id": "TestPointless-v0", "lanes": 4},
        "runtime": "inline",
        "learner": {"batch_size": 8, "publish_every": 1},
        "replay": {"capacity": 4000, "selectors": [{"type": "fifo"}], "samples_per_insert": None, "min_size": 1},
        "evaluation": {"episodes": 4, "every_steps": 2000, "lanes": 4},
        "actor": {"weights_period": 1},
        **IMPATIENT,
    }
    for name, value in sections.items():
        base[name] = {**base.get(name, {}), **value}
    base["algorithm"] = {"unroll": 8, "hidden": [32, 32], **base["algorithm"]}
    return RunSettings.model_validate(base)


def run(tmp_path: Path, settings: RunSettings) -> tuple[Summary, str]:
    """Its result, and what a user sees."""
    folder, seen = RunFolder.create(tmp_path, "ill", settings.algo, datetime.now()), io.StringIO()
    summary = execute(make_plan(settings), folder, console=Console(file=seen, width=1000))
    assert read_json(folder.summary_json)["health"] == [*summary.health]
    return summary, seen.getvalue()


OLD = [{"type": "fifo", "ratio": 0.125}, {"type": "uniform", "ratio": 0.875}]
WILD = {
    "learning_rate": 0.05,
    "gamma": 1.0,
    "dueling": False,
    "target_period": 1,
    "gradient_clip": 1e9,
    "n_step": 1,
    "double": False,
}
WILD |= {"huber_delta": 1e9}
PRIZE = {"env": {"id": "TestPointless-v0", "kwargs": {"prize": 1e6}}}
RUNS: dict[str, tuple[RunSettings, str]] = {
    "dead units": (dqn(algorithm={"learning_rate": 1.0}), r"\d+ of 32 units in layer \d of the network .* dead since"),
    "certain": (impala(algorithm={"learning_rate": 0.3, "entropy_cost": 0.0}), "the policy has been certain"),
    "at random": (impala(algorithm={"entropy_cost": 10.0}), "the policy has chosen nearly at random"),
    "value": (impala(algorithm={"learning_rate": 0.1}), "the value network predicts returns no better"),
    "divergence": (dqn(algorithm=WILD), "values have been beyond what rewards allow"),
    "priorities": (
        dqn(**PRIZE, algorithm={"n_step": 1}, replay={"selectors": [{"type": "prioritized", "alpha": 1.0}]}),
        "draws by priority have been as varied as",
    ),
    "laser": (
        impala(
            algorithm={"learning_rate": 3e-3, "entropy_cost": 0.1, "laser": {"enabled": True, "threshold": 1e-6}},
            actor={"weights_period": 64},
            replay={"selectors": OLD},
        ),
        "LASER has used only",
    ),
    "reward": (dqn(env={"id": "TestSpoiled-v0", "kwargs": {"until": 0}}), "no episode of training has had a reward"),
    "evaluation": (dqn(**POINTLESS), "evaluations have stayed at about 5 since"),
    "lost": (
        dqn(env={"id": "TestSpoiled-v0"}, evaluation={"every_steps": 500, "episodes": 4}, stop={"steps": 10_000}),
        "evaluations have been near 0, after 5, since",
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_is_ill_says_so(tmp_path: Path, name: str) -> None:
    settings, what = RUNS[name]
    summary, seen = run(tmp_path, settings)
    assert any(re.search(what, text) for text in summary.health), summary.health
    lines = [line for line in seen.splitlines() if re.search(what, line)]
    assert len(lines) == 1 and lines[0].startswith("health: "), seen


HEALTHY = {
    "cartpole_apex_dqn": ["stop.steps=10000"],
    "cartpole_impala": ["stop.steps=20000", "evaluation.every_steps=1000"],
    "cartpole_impala_replay": ["stop.steps=4000", "evaluation.every_steps=500"],
    "pendulum_sac": ["stop.steps=2500", "evaluation.every_steps=1000"],
    "pendulum_td3": ["stop.steps=2500", "evaluation.every_steps=1000"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_scenario_says_nothing(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even with a fiftieth of the usual patience, and four times as many lines."""
    monkeypatch.setattr("shoal.runtime.supervisor.RECORD_STEPS", 250)
    monkeypatch.setattr("shoal.loops.learner.LOOK_STEPS", 250)
    short = ["runtime=inline", "stop.mean_return=null", "health.patience=400", *HEALTHY[name]]
    summary, seen = run(tmp_path, load_target(name, short))
    assert summary.health == () and "health:" not in seen
