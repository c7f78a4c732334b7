"""Every kind of observation and action is trained on; several inputs and several choices are learned."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.many_spaces import FORMS, Switches

from shoal.config.load import settings_for
from shoal.config.signature import write_config
from shoal.loops.plan import make_plan
from shoal.run import Run
from shoal.runtime.execution import execute
from shoal.runtime.run_folder import RunFolder, Summary

SHORT = {"defaults": "paper", "stop.steps": 200, "replay.min_size": 100, "learner.batch_size": 16}
SHORT |= {"hidden": [16], "evaluation.episodes": 2}


def train(tmp_path: Path, env: str, algo: str, form: str, **more: Any) -> tuple[Summary, Run]:
    settings = {"env.kwargs": {"form": form}, "runtime": "inline", "actors": 1, "env.lanes": 4, **more}
    loaded = settings_for(f"tests.many_spaces:{env}", algo, settings)
    folder = RunFolder.create(tmp_path, loaded.env.id, loaded.algo, datetime.now())
    write_config(folder.path, loaded)
    return execute(make_plan(loaded), folder, quiet=True), Run(folder.path, trust=True)


@pytest.mark.parametrize("algo", ["a3c", "apex-dqn", "impala"])
@pytest.mark.parametrize("form", FORMS)
def test_every_observation(tmp_path: Path, form: str, algo: str) -> None:
    short = {**SHORT, "replay.min_size": 1, "learner.batch_size": 2} if algo != "apex-dqn" else SHORT
    short |= {"unroll": 8, "learner.batch_size": "lanes"} if algo == "a3c" else {}
    summary, run = train(tmp_path, "Lookout", algo, form, **short)
    assert summary.status == "finished" and summary.updates > 0
    env = run.make_env()
    action, _ = run.predict(env.reset(seed=0)[0])
    assert env.action_space.contains(action)
    assert run.evaluate(2).returns


@pytest.mark.parametrize("algo", ["a3c", "impact", "impala", "ppo"])
@pytest.mark.parametrize("form", Switches.FORMS)
def test_every_action(tmp_path: Path, form: str, algo: str) -> None:
    short = {**SHORT, "replay.min_size": 1, "learner.batch_size": 2}
    short |= {"unroll": 8, "learner.batch_size": "lanes"} if algo in ("ppo", "a3c") else {}
    summary, run = train(tmp_path, "Switches", algo, form, **short)
    assert summary.status == "finished" and summary.updates > 0
    env = run.make_env()
    obs, _ = env.reset(seed=0)
    one, several = run.predict(obs)[0], run.predict(np.stack([obs] * 3), deterministic=False)[0]
    assert env.action_space.contains(one) and all(map(env.action_space.contains, several))
    assert run.evaluate(2).returns


@pytest.mark.learning
@pytest.mark.parametrize("algo", ["impala", "ppo"])
def test_several_choices_are_learned(tmp_path: Path, algo: str) -> None:
    more = {"hidden": [64], "stop.steps": 60_000}
    more |= {"minibatches": 2} if algo == "ppo" else {"learning_rate": 3e-3, "learner.batch_size": 8}
    summary, _ = train(tmp_path, "Switches", algo, "multi", **more, **{"stop.mean_return": 7.5})
    assert summary.status == "solved", summary


@pytest.mark.learning
@pytest.mark.parametrize("form", ["dict", "bytes"])
def test_several_inputs_are_learned(tmp_path: Path, form: str) -> None:
    more = {"learning_rate": 1e-3, "replay.min_size": 500, "learner.batch_size": 32, "target_period": 50}
    more |= {"n_step": 1, "gamma": 0.5, "stop.steps": 20_000, "stop.mean_return": 7.5, "evaluation.every_steps": 1000}
    summary, _ = train(tmp_path, "Lookout", "apex-dqn", form, **more)
    assert summary.status == "solved", summary
