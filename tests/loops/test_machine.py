"""How many threads an evaluation gets, and where its network computes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.fakes import corridor

from shoal.algorithms.interface import PolicyContext
from shoal.loops.machine import emulator_threads, torch_threads, usable_cores
from shoal.loops.plan import Plan, make_plan
from shoal.runtime.roster import make_roster


@pytest.mark.parametrize(
    ("cores", "changes", "torch_beside", "torch_alone", "emulator"),
    [
        (16, {"actors": 14}, 1, 8, 8),
        (16, {"actors": 10}, 5, 8, 8),
        (64, {"actors": 14}, 8, 8, 8),
        (16, {"actors": 10, "learner": {"threads": 3}, "actor": {"inference": "served"}}, 2, 8, 8),
        (2, {}, 1, 2, 2),
        (1, {}, 1, 1, 1),
        (2, {"env": {"threads": 4}}, 1, 2, 4),
        (16, {"evaluation": {"threads": 3}}, 3, 3, 3),
        (16, {"runtime": "inline", "actor": {"threads": 2}}, 2, 2, 8),  # one process: its learner must not change
    ],
)
def test_threads(cores: int, changes: dict[str, Any], torch_beside: int, torch_alone: int, emulator: int) -> None:
    settings = corridor(**{"runtime": "ray", **changes})
    assert torch_threads(settings, cores) == torch_beside
    assert torch_threads(settings, cores, alone=True) == torch_alone
    assert emulator_threads(settings, cores) == emulator
    assert usable_cores() >= 1


def test_lanes() -> None:
    evaluation = corridor(evaluation={"lanes": "auto"}).evaluation
    assert [evaluation.lanes_for(episodes) for episodes in (1, 20, 100)] == [1, 20, 32]
    assert corridor(evaluation={"lanes": 50}).evaluation.lanes_for(100) == 50


def images(**sections: Any) -> Plan:
    plan = make_plan(corridor(**sections))
    return replace(plan, spec=replace(plan.spec, obs_shape=(4, 84, 84)))


def test_the_evaluator_takes_a_gpu_for_images_if_the_run_uses_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert images().evaluation_device.type == "cpu" or torch.cuda.is_available()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert images().evaluation_device.type == "cuda"
    assert make_plan(corridor(learner={"device": "cuda"})).evaluation_device.type == "cpu", "no images"
    assert images(learner={"device": "cpu"}).evaluation_device.type == "cpu", "the run uses none"
    served = {"inference": "served", "inference_device": "cuda"}
    assert images(learner={"device": "cpu"}, actor=served).evaluation_device.type == "cuda"
    assert images(evaluation={"policy_device": "cpu"}).evaluation_device.type == "cpu"
    assert make_plan(corridor(evaluation={"policy_device": "cuda"})).evaluation_device.type == "cuda"
    assert [entry.gpu for entry in make_roster(images(learner={"device": "cuda"}))] == [True, False, True]


def test_a_greedy_policy_can_move() -> None:
    plan = make_plan(corridor())
    policy: Any = plan.settings.definition.make_policy(plan.settings.algorithm, plan.spec, PolicyContext(lanes=3))
    obs, first = np.eye(5, dtype=np.float32)[:3], np.ones(3, np.bool_)
    before = policy.act(obs, (), first, explore=False).action
    policy.to(torch.device("cpu"))
    np.testing.assert_array_equal(policy.act(obs, (), first, explore=False).action, before)
