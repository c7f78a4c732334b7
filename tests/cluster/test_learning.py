"""Every way in which actors wait for the learner also works with all actors on other nodes: each reaches a goal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.lab import LabTraining, LightLab, light_cluster

pytestmark = pytest.mark.cluster
WAYS = {
    "rate limiter": ("cartpole_apex_dqn",),
    "queue": ("cartpole_impala",),
    "barrier": ("cartpole_ppo",),
    "gradients": ("cartpole_a3c",),
    "served": ("cartpole_impala", "actor.inference=served"),
}


@pytest.fixture(scope="module")
def lab() -> Iterator[LightLab]:
    with light_cluster(cpus=[2, 4, 4]) as made:
        yield made


@pytest.mark.parametrize("way", WAYS)
def test_it_learns(way: str, lab: LightLab, tmp_path: Path) -> None:
    goal = ("--actors", "4", "--stop-return", "195", "--steps", "1000000", "evaluation.episodes=10", "seed=3")
    training = LabTraining(lab, lab.nodes[0], tmp_path, "train", *WAYS[way], "--address", "auto", *goal)
    assert training.end(300) == 0, training.output
    summary = training.read("summary.json")
    assert summary["status"] == "solved", training.output
    sites = training.read("nodes.json")["sites"]
    assert sum(name.startswith("actor") for site in sites[1:] for name in site["roles"]) == 4 and len(sites) == 3
    assert training.left_running() == []
    assert not any(path.exists() for _, path in training.outposts().values())
