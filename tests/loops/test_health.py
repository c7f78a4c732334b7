"""The probe: it counts dead units of every kind of network, and changes nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.fakes import corridor, prepared, reach
from torch import nn

from shoal.loops.assembly import build_actor, build_learner
from shoal.loops.health import Health, Layer, Probe, count_dead
from shoal.loops.learner import LOOK_STEPS
from shoal.loops.settings import RunSettings
from shoal.networks import ActorCritic, EnsembleMLP, QNetwork
from shoal.replay import LedgerWord
from shoal.types import Keys, Sample, Transition


def test_filters_and_units_that_no_row_switches_on_are_dead() -> None:
    network = ActorCritic((4, 84, 84), "uint8", 6, torso="small", image_hidden=32)
    first, dense = network.torso.convolutions.conv1, network.torso.dense
    with torch.no_grad():
        first.bias[:15] = -1e6
        dense.bias[4:] = -1e6
    obs = torch.randint(0, 256, (8, 4, 84, 84), dtype=torch.uint8)
    one, two, three = count_dead({"network": lambda obs, _: network.embed(obs)}, obs, obs)
    assert one == Layer("network", 1, True, 15, 16) and one.share == 15 / 16
    assert (two.number, two.filters, two.size) == (2, True, 32) and two.dead < 32
    assert three.number == 3 and not three.filters and 28 <= three.dead <= 32 == three.size


def test_networks_of_any_form() -> None:
    """Modules, functions, methods, in place or not; both streams of a dueling head; all members of an ensemble."""
    q = QNetwork((4,), "float32", 2, (16, 8))
    twins = EnsembleMLP(2, 5, (8, 8), 1, "relu")
    with torch.no_grad():
        twins.weights[1][1, -1, :3] = -1e6  # three units of the second member's second layer
    obs, action = torch.randn(64, 4), torch.randn(64, 1)
    ways: list[nn.Module] = [nn.ReLU(), nn.ReLU(inplace=True), nn.Tanh()]
    found = count_dead(
        {
            "q": lambda obs, _: q(obs),
            "twins": lambda obs, action: twins.plain(obs, action),
            "ways": lambda obs, _: [*(way(obs.clone()) for way in ways), obs.relu(), torch.relu(-obs.abs())],
        },
        obs,
        action,
    )
    sizes = [(one.network, one.number, one.size) for one in found]
    assert sizes[:4] == [("q", 1, 16), ("q", 2, 8), ("twins", 1, 16), ("twins", 2, 16)]
    assert found[3].dead >= 3
    assert [one.dead for one in found[4:]] == [0, 0, 0, 4], "no tanh"
    torch.testing.assert_close(twins.plain(obs, action), twins(obs, action))


class Nothing:
    """A learner of nothing."""

    module, watched, published_whole = nn.Linear(1, 1), {}, True


def draw(probabilities: list[float], reward: float) -> Sample:
    n = len(probabilities)
    zeros = np.zeros((n, 1), np.float32)
    data = Transition(zeros, zeros[:, 0], np.full(n, reward, np.float32), zeros[:, 0], zeros)
    return Sample(data, Keys.empty(n), np.array(probabilities), 1000, 0.0)


def test_effective_rows_and_the_largest_reward() -> None:
    probe = Probe(Nothing(), prioritized=True)  # type: ignore[arg-type]
    assert probe.look(draw([0.001] * 8, -3.0)) == Health((), 3.0, pytest.approx(1000.0))
    assert probe.look(draw([0.1] * 8, 2.0)) == Health((), 3.0, pytest.approx(10.0))
    assert probe.look(draw([0.1] * 8, 2.0)).logged == {
        "health/effective_rows": pytest.approx(10.0),
        "health/largest_reward": 3.0,
    }
    assert "health/effective_rows" not in Probe(Nothing(), False).look(draw([0.1], 0.0)).logged  # type: ignore[arg-type]


FREE = {"samples_per_insert": None}


@pytest.mark.parametrize(
    "settings", [corridor(replay=FREE), reach(replay=FREE), reach(replay=FREE, algo="sac")], ids=lambda one: one.algo
)
def test_looking_changes_nothing_and_comes_every_so_many_steps(tmp_path: Path, settings: RunSettings) -> None:
    """Weights after some updates are the same with and without a probe, to the last bit."""
    weights, looks = [], list[Health | None]()
    for enabled in (True, False):
        health = settings.health.model_copy(update={"enabled": enabled})
        plan, ledger = prepared(tmp_path / str(enabled), settings.model_copy(update={"health": health}))
        learner, actor = build_learner(plan), build_actor(plan, 0)
        actor.run(steps=300)
        reports = [learner.run(updates=2) for _ in range(3)]
        ledger_steps = ledger.env_steps
        weights.append([one.clone() for one in learner._learner.module.parameters()])  # type: ignore[attr-defined]
        if enabled:
            looks = [report.health for report in reports]
            assert reports[0].logged["health/dead_units"] < 1.0
            actor.run(steps=LOOK_STEPS // 2)
            assert ledger.env_steps >= ledger_steps + LOOK_STEPS
            assert learner.run(updates=1).health is not looks[0]
        else:
            assert all(report.health is None for report in reports)
        ledger[LedgerWord.STOP] = 1
        learner.close()
        actor.end()
    assert looks[0] is looks[1] is looks[2] is not None, "the last look stays"
    for with_probe, without in zip(*weights, strict=True):
        assert torch.equal(with_probe, without)


def test_few_images_are_enough() -> None:
    seen = []

    class Watched(Nothing):
        watched = {"network": lambda obs, action: seen.append(len(obs))}  # noqa: RUF012

    for shape, rows in (((4,), 256), ((4, 84, 84), 64)):
        obs = np.zeros((1000, *shape), np.uint8)
        zeros = np.zeros(1000, np.float32)
        sample = Sample(Transition(obs, zeros, zeros, zeros, obs), Keys.empty(1000), zeros, 1, 0.0)
        Probe(Watched(), prioritized=False).look(sample)  # type: ignore[arg-type]
        assert rows * 0.9 < seen.pop() <= rows


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("compile", [False, True])
def test_on_a_gpu_looking_changes_nothing_either(tmp_path: Path, compile: bool) -> None:
    weights = []
    for enabled in (True, False):
        settings = reach(replay=FREE, learner={"device": "cuda", "compile": compile}, health={"enabled": enabled})
        plan, _ = prepared(tmp_path / str(enabled), settings)
        learner, actor = build_learner(plan), build_actor(plan, 0)
        actor.run(steps=300)
        report = learner.run(updates=12)
        assert ("health/dead_units" in report.logged) == enabled
        weights.append([one.clone() for one in learner._learner.module.parameters()])  # type: ignore[attr-defined]
        learner.close()
        actor.end()
    for with_probe, without in zip(*weights, strict=True):
        torch.testing.assert_close(with_probe, without)
