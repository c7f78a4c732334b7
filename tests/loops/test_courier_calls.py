"""When home and a node tell each other something: as seldom as nobody loses time by it."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.config.load import load_target
from shoal.loops.courier import PARCEL_STEPS, HomeFolder, NodeFolder
from shoal.loops.plan import QUEUED_STEPS, Plan, make_plan
from shoal.loops.preparation import prepare, prepare_outpost, where_it_stopped
from shoal.loops.run_paths import RunPaths
from shoal.replay import Header, ShardWriter
from shoal.replay.counters import Counters

ACTORS = (0, 1)


def make_folders(scenario: str, folder: Path, *extra: str) -> tuple[Plan, HomeFolder, NodeFolder]:
    """A run with two actors, both on an outpost."""
    settings = load_target(scenario, ["actors=2", "replay.capacity=20_000", *extra])
    plan = replace(make_plan(settings), outposts=(ACTORS,)).at(RunPaths(folder / "home", folder))
    plan.paths.replay.mkdir()
    prepare(plan, 1, "test")
    there = replace(plan.at(RunPaths(folder / "node", folder)), outpost=0)
    there.paths.replay.mkdir()
    prepare_outpost(there, 1, "test", {actor: where_it_stopped(plan, actor) for actor in ACTORS}, 1)
    home = HomeFolder(plan)
    return there, home, NodeFolder(there.paths, home.start(ACTORS))


def set_word(home: HomeFolder, word: Header, value: int, actor: int = 0) -> None:
    Counters(home._plan.shards[actor] / "header.bin", writable=True)[word] = value


def test_a_barrier_is_told_when_its_grants_rise(tmp_path: Path) -> None:
    _, home, _ = make_folders("cartpole_ppo", tmp_path)
    set_word(home, Header.GRANT, 33)
    told = home.urgent(ACTORS)
    set_word(home, Header.CURSOR, 32)
    set_word(home, Header.GRANT, 0)  # the learner has taken the rollout, and learns from it
    assert not home.is_urgent(told, home.urgent(ACTORS))
    set_word(home, Header.GRANT, 65)
    assert home.is_urgent(told, home.urgent(ACTORS))


def test_a_queue_is_told_when_half_of_it_was_taken(tmp_path: Path) -> None:
    there, home, _ = make_folders("cartpole_impala", tmp_path)
    lanes = there.settings.env.lanes
    assert there.queue_rows is not None and 2 * there.queue_rows * lanes >= QUEUED_STEPS
    assert there.queue_rows * lanes < 2 * PARCEL_STEPS
    told = home.urgent(ACTORS)
    set_word(home, Header.CURSOR, there.queue_rows - 1)
    assert not home.is_urgent(told, home.urgent(ACTORS))
    set_word(home, Header.CURSOR, 1, actor=1)
    assert home.is_urgent(told, home.urgent(ACTORS))


@pytest.mark.parametrize("scenario", ["cartpole_ppo", "cartpole_impala"])
def test_a_parcel_says_whether_all_wait_for_the_next_order(scenario: str, tmp_path: Path) -> None:
    there, home, node = make_folders(scenario, tmp_path)
    writers = [ShardWriter(there.paths.shard(actor)) for actor in ACTORS]
    order = home.order(ACTORS)
    node.deliver(order, None)
    for writer in writers:
        writer.cut(3)
    writers[0].waits(True)
    some = node.fetch(0.05)
    assert some.waits and not some.idle and sum(chunk.rows for chunk in some.chunks.values()) == 6
    writers[1].waits(True)
    assert node.fetch(0.0).idle == order.number
    writers[1].cut(1)
    assert node.fetch(10.0).idle == order.number  # at once: all wait, and there is something to send


def test_a_barrier_is_one_parcel(tmp_path: Path) -> None:
    """However many steps it has: the learner waits for the last of them."""
    there, _, node = make_folders("cartpole_ppo", tmp_path)
    writers = [ShardWriter(there.paths.shard(actor)) for actor in ACTORS]
    writers[0].cut(2 * PARCEL_STEPS)
    writers[0].waits(True)
    began = time.monotonic()
    threading.Timer(0.05, lambda: writers[1].waits(True)).start()
    parcel = node.fetch(10.0)
    assert 0.04 < time.monotonic() - began < 5.0 and parcel.idle == parcel.behind == 0
