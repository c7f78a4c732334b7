"""One network for all actors: batches, answers to whoever asked, state and weights in the server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.fakes import corridor, prepared

from shoal.config.load import settings_for
from shoal.errors import ConfigError
from shoal.loops import assembly
from shoal.loops.inference import InferenceServer
from shoal.loops.plan import Plan
from shoal.loops.remote_policy import Unanswered
from shoal.loops.settings import RunSettings
from shoal.replay import Ledger, LedgerWord, ShardReader
from shoal.replay.ledger import HALT
from shoal.types import FINAL

LANES = 4


def served(algo: str = "impala", **sections: Any) -> RunSettings:
    base: dict[str, Any] = {
        "algo": algo,
        "runtime": "ray",
        "algorithm": {"hidden": [16], "unroll": 5, **sections.pop("algorithm", {})},
        "actor": {"inference": "served", "weights_period": 1, **sections.pop("actor", {})},
        "replay": {"min_size": 1, "samples_per_insert": None, **sections.pop("replay", {})},
    }
    settings = corridor(algorithm={}, **sections).model_dump()
    return RunSettings.model_validate({**settings, **base, "replay": {**settings["replay"], **base["replay"]}})


def observations(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random((LANES, 5)).astype(np.float32)


def remote(plan: Plan, index: int, patience: float = 0.0) -> assembly.RemotePolicy:
    return assembly.RemotePolicy(assembly.Mailbox(plan.paths.mailbox(index), plan.mailbox), patience)


def ask(policy: assembly.RemotePolicy, obs: np.ndarray, first: Any = False) -> None:
    with pytest.raises(Unanswered):
        policy.act(obs, (), np.full(LANES, first) if isinstance(first, bool) else first, explore=True)


def take(policy: assembly.RemotePolicy) -> dict[str, np.ndarray]:
    """The answer to what was asked."""
    nothing: Any = None
    decision = policy.act(nothing, (), nothing, explore=True)
    return {"action": decision.action, **{name: np.copy(column) for name, column in policy.record(nothing).items()}}


@contextmanager
def running(server: InferenceServer, ledger: Ledger) -> Iterator[None]:
    """The server at work in a thread, until the run is told to stop."""
    thread = threading.Thread(target=server.run, kwargs={"seconds": 60})
    thread.start()
    try:
        yield
    finally:
        ledger[LedgerWord.STOP] = HALT
        thread.join(10)
        assert not thread.is_alive()


def test_requests_of_two_actors_are_one_batch_and_each_gets_its_own_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = served()
    plan, _ = prepared(tmp_path, settings)
    server = assembly.build_inference(plan)
    sizes: list[int] = []
    act = server._policy.act
    monkeypatch.setattr(
        server._policy, "act", lambda obs, *rest, **more: sizes.append(len(obs)) or act(obs, *rest, **more)
    )
    policies = [remote(plan, index) for index in range(2)]
    for index, policy in enumerate(policies):
        ask(policy, observations(index))
    report = server.run(batches=10)
    assert sizes == [2 * LANES] and (report.batches, report.observations) == (1, 2 * LANES)
    with torch.inference_mode():
        for index, policy in enumerate(policies):
            network = server._policy.module
            expected = network.policy(network.embed(torch.from_numpy(observations(index))))
            answer = take(policy)
            np.testing.assert_allclose(answer["behaviour"], expected.numpy(), rtol=1e-5)
            assert answer["action"].shape == (LANES,) and set(answer["action"]) <= {0, 1}
    assert server.run(batches=10).batches == 0  # nothing is answered twice
    ask(policies[1], observations(5))
    assert server.run(batches=10).observations == LANES  # it does not wait for the other
    take(policies[1])


def test_the_server_may_wait_for_a_fuller_batch(tmp_path: Path) -> None:
    settings = served(actor={"inference_wait_us": 100_000})
    plan, _ = prepared(tmp_path, settings)
    server = assembly.build_inference(plan)
    first, second = (remote(plan, index) for index in range(2))
    ask(first, observations(0))
    later = threading.Timer(0.01, ask, args=(second, observations(1)))
    later.start()
    report = server.run(batches=1)
    later.join()
    assert (report.batches, report.observations) == (1, 2 * LANES)


def test_the_version_is_that_of_the_weights_which_acted(tmp_path: Path) -> None:
    settings = served()
    plan, _ = prepared(tmp_path, settings)
    server, learner = assembly.build_inference(plan), assembly.build_learner(plan)
    policy = remote(plan, 0)
    seen = []
    for _ in range(2):
        ask(policy, observations(0))
        server.run(batches=1)
        answer = take(policy)
        seen.append((answer["weights_version"].tolist(), answer["behaviour"]))
        with torch.no_grad():
            for parameter in learner._learner.module.parameters():
                parameter += 0.1
        learner._weights.publish()
    assert seen[0][0] == [1] * LANES and seen[1][0] == [2] * LANES
    assert not np.allclose(seen[0][1], seen[1][1])


def test_each_actor_has_its_own_recurrent_state(tmp_path: Path) -> None:
    settings = served(algorithm={"lstm": 6})
    plan, _ = prepared(tmp_path, settings)
    server = assembly.build_inference(plan)
    policies = [remote(plan, index) for index in range(2)]

    def step(*indices: int, first: Any = False) -> dict[int, np.ndarray]:
        for index in indices:
            ask(policies[index], observations(index), first)
        assert server.run(batches=5).batches == 1
        return {index: take(policies[index])["state"] for index in indices}

    begun = step(0, 1, first=True)
    assert not begun[0].any() and not begun[1].any()  # the state before the step
    alone = step(1)[1]
    together = step(0, 1)
    np.testing.assert_allclose(alone, reference_state(server, 1, 1), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(together[0], reference_state(server, 0, 1), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(together[1], reference_state(server, 1, 2), rtol=1e-5, atol=1e-7)
    ended = np.array([False, True, False, False])
    third = step(0, first=ended)[0]
    assert not third[1].any()
    np.testing.assert_allclose(third[~ended], reference_state(server, 0, 2)[~ended], rtol=1e-5, atol=1e-7)


def test_each_lane_keeps_its_noise_whoever_asks_with_it(tmp_path: Path) -> None:
    plan, _ = prepared(tmp_path, served(algorithm={"repeat_exploration": True}))
    server = assembly.build_inference(plan)
    policies = [remote(plan, index) for index in range(2)]
    held: Any = server._policy._held  # type: ignore[attr-defined]

    def step(*indices: int, first: bool = False) -> np.ndarray:
        for index in indices:
            ask(policies[index], observations(index), first)
        assert server.run(batches=5).batches == 1
        for index in indices:
            take(policies[index])
        return held._noise.copy()

    begun = step(0, 1, first=True)
    held._left[:] = 5  # as if all lasted
    np.testing.assert_array_equal(step(1), begun)
    assert held._left.tolist() == [5] * LANES + [4] * LANES
    renewed = step(1, first=True)
    np.testing.assert_array_equal(renewed[:LANES], begun[:LANES])
    assert (renewed[LANES:] != begun[LANES:]).all()


def reference_state(server: InferenceServer, seed: int, steps: int) -> np.ndarray:
    """The LSTM's state after so many steps of one actor's observations, which are the same in each."""
    network = server._policy.module
    with torch.inference_mode():
        state = (torch.zeros(LANES, 6), torch.zeros(LANES, 6))
        for _ in range(steps):
            state = network.recur(network.embed(torch.from_numpy(observations(seed))), state)
        return torch.cat(state, dim=1).numpy()


@pytest.mark.parametrize("algo", ["impala", "impact"])
def test_actors_without_a_network_write_what_the_server_chose(tmp_path: Path, algo: str) -> None:
    replay = {"selectors": [{"type": "uniform", "ratio": 1.0}]}
    settings = served(algo, replay=replay, algorithm={"lstm": 6})
    plan, ledger = prepared(tmp_path, settings)
    actors = [assembly.build_actor(plan, index) for index in range(2)]
    assert sum(parameter.numel() for parameter in actors[0]._policy.module.parameters()) == 0
    with running(assembly.build_inference(plan), ledger):
        for actor in actors:
            assert actor.run(steps=50).steps > 0
    for index, actor in enumerate(actors):
        shard = ShardReader(plan.paths.shard(index))
        rows = {name: column[: shard.head] for name, column in shard.columns.items()}
        assert shard.head == 50 and (rows["weights_version"] == 1).all() and np.isfinite(rows["behaviour"]).all()
        moved = rows["obs"][1:].argmax(-1) - rows["obs"][:-1].argmax(-1)
        inside = ~(rows["terminated"] | rows["truncated"])[:-1] & (rows["boundary"][:-1] != FINAL)
        np.testing.assert_array_equal(moved[inside], np.where(rows["action"][:-1][inside] == 1, 1, -1))
        assert rows["state"].any() and not rows["state"][1:][rows["boundary"][:-1] == FINAL].any()
        actor.end()


def test_actors_measure_how_long_they_wait_for_the_server(tmp_path: Path) -> None:
    plan, ledger = prepared(tmp_path, served(algorithm={"lstm": 6}))
    actor = assembly.build_actor(plan, 0)
    report = actor.run(seconds=0.5)  # nobody answers
    assert report.steps == 0 and 0.4 < report.served <= report.seconds
    assert report.logged["time/actor_inference_fraction"] == pytest.approx(report.served / report.seconds)
    with running(assembly.build_inference(plan), ledger):
        report = actor.run(steps=50)
    assert report.steps and 0 < report.served < report.seconds
    actor.end()
    local, _ = prepared(tmp_path / "local", corridor(actors=1))
    actor = assembly.build_actor(local, 0)
    report = actor.run(steps=5)
    assert np.isnan(report.served) and not report.logged
    actor.end()


def test_a_new_server_answers_what_the_old_one_left(tmp_path: Path) -> None:
    settings = served(algorithm={"lstm": 6})
    plan, _ = prepared(tmp_path, settings)
    policy = remote(plan, 0)
    old = assembly.build_inference(plan)
    for _ in range(2):
        ask(policy, observations(0))
        old.run(batches=1)
        take(policy)
    ask(policy, observations(0))  # and now it dies
    new = assembly.build_inference(plan)
    assert new.run(batches=1).observations == LANES
    assert not take(policy)["state"].any()  # what the lanes remembered is lost, and the row says so
    seeds = [server._policy._generator.initial_seed() for server in (old, new)]
    assert seeds[0] != seeds[1]


def test_an_actor_without_a_server_waits_for_one(tmp_path: Path) -> None:
    settings = served(actors=1)
    plan, ledger = prepared(tmp_path, settings)
    actor = assembly.build_actor(plan, 0)
    assert actor.run(seconds=0.5).steps == 0  # it reports in time all the same
    with running(assembly.build_inference(plan), ledger):
        assert actor.run(seconds=0.5).steps > 0
    actor.end()


def test_stop_reaches_an_actor_that_waits_for_an_answer(tmp_path: Path) -> None:
    settings = served(actors=1)
    plan, ledger = prepared(tmp_path, settings)
    actor = assembly.build_actor(plan, 0)
    threading.Timer(0.3, lambda: ledger.__setitem__(LedgerWord.STOP, HALT)).start()
    began = time.perf_counter()
    assert actor.run(seconds=60).steps == 0 and time.perf_counter() - began < 5


def test_roles_of_a_dead_driver_end(tmp_path: Path) -> None:
    settings = served(actors=1)
    plan, ledger = prepared(tmp_path, settings)
    actor, server = assembly.build_actor(plan, 0), assembly.build_inference(plan)
    ledger[LedgerWord.HEARTBEAT] = time.time_ns() - 120 * 10**9
    began = time.perf_counter()
    assert actor.run(seconds=60).steps == 0
    server.run(batches=1)  # what was asked
    assert server.run(seconds=60).batches == 0
    assert time.perf_counter() - began < 5


@pytest.mark.parametrize(
    ("algo", "changes", "said"),
    [("apex-dqn", [], "apex-dqn.*one of impala, impact"), ("impala", ["runtime=inline"], "inline.*use local, or ray")],
)
def test_what_cannot_be_served_is_refused(algo: str, changes: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=rf"actor\.inference: served.*{said}"):
        settings_for("CartPole-v1", algo, ["actor.inference=served", *changes])


def test_a_policy_that_cannot_leave_the_cpu_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = served()
    plan, _ = prepared(tmp_path, settings)
    monkeypatch.setattr(Plan, "inference_device", torch.device("cuda"))
    monkeypatch.delattr("shoal.algorithms.actor_critic.ActorCriticPolicy.to", raising=False)
    with pytest.raises(ConfigError, match=r"impala computes on the CPU only.*actor\.inference_device = cpu"):
        assembly.build_inference(plan)
