"""Home and an outpost in one process: what a lost home, a moved outpost and a second timeline do to rows and counts."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
from tests.fakes import corridor

from shoal.loops import assembly
from shoal.loops.counts import Counts
from shoal.loops.courier import HomeFolder, NodeFolder
from shoal.loops.plan import Plan, make_plan
from shoal.loops.preparation import prepare, prepare_outpost, where_it_stopped
from shoal.loops.run_paths import RunPaths
from shoal.loops.weights import WeightBoard
from shoal.replay import Header, LedgerWord, ShardReader
from shoal.replay.counters import Counters
from shoal.runtime.outposts import find_outposts
from shoal.runtime.run_folder import RunFolder
from shoal.types import CUT

ROLES = 5
PLAN = replace(make_plan(corridor(replay={"samples_per_insert": None})), outposts=((1,),))


def _home(path: Path, **arguments: object) -> Plan:
    path.mkdir(exist_ok=True)
    plan = PLAN.at(RunPaths(path, path.parent / "checkpoints"))
    prepare(plan, ROLES, "run", **arguments)  # type: ignore[arg-type]
    return plan


def _outpost(path: Path, home: Plan) -> Plan:
    path.mkdir(exist_ok=True)
    plan = replace(home, outpost=0).at(RunPaths(path, home.paths.checkpoints))
    prepare_outpost(plan, ROLES, "run", {1: where_it_stopped(home, 1)}, WeightBoard.open(home.paths.board).version)
    return plan


def _act(plan: Plan, steps: int) -> None:
    actor = assembly.build_actor(plan, 1)
    actor.run(steps=steps)
    actor.end()


def _exchange(home: HomeFolder, node: NodeFolder) -> None:
    node.deliver(home.order([1]), home.weights()[1])
    home.take(node.fetch(0.0))


def test_a_new_home_brings_its_weights_to_an_outpost_that_had_later_ones(tmp_path: Path) -> None:
    """Home is lost with version 51; the new one begins at version 1 with the checkpoint's weights."""
    plan = _home(tmp_path / "home")
    outpost = _outpost(tmp_path / "outpost", plan)
    board = WeightBoard.open(plan.paths.board)
    for _ in range(50):
        board.publish(np.ones(board.size, np.float32))
    home = HomeFolder(plan)
    _exchange(home, NodeFolder(outpost.paths, home.start([1])))
    assert WeightBoard.open(outpost.paths.board).version == 51

    shutil.rmtree(tmp_path / "home")
    plan = _home(tmp_path / "home")
    outpost = _outpost(tmp_path / "outpost", plan)
    board = WeightBoard.open(plan.paths.board)
    board.publish(np.full(board.size, 7.0, np.float32))  # what a restored learner does
    home = HomeFolder(plan)
    node = NodeFolder(outpost.paths, home.start([1]))
    _exchange(home, node)
    found = np.empty(board.size, np.float32)
    WeightBoard.open(outpost.paths.board).read(found)
    assert found[0] == 7.0


def test_an_older_timeline_is_not_joined_to_a_newer_one(tmp_path: Path) -> None:
    """Outpost A is cut off and goes on alone; B continues at home's row. Then B is gone, and a resume finds A."""
    plan = _home(tmp_path / "home")
    a = _outpost(tmp_path / "a", plan)
    _act(a, 20)
    home = HomeFolder(plan)
    _exchange(home, NodeFolder(a.paths, home.start([1])))
    _act(a, 60)  # nobody fetches these
    b = _outpost(tmp_path / "b", plan)
    _act(b, 10)
    home = HomeFolder(plan)
    _exchange(home, NodeFolder(b.paths, home.start([1])))
    stopped = ShardReader(plan.shards[1]).head

    RunFolder(a.paths.replay).write_json("owner.json", {"run": "x", "mark": "m", "outpost": True})
    assert find_outposts("m", Path("x"), tmp_path)  # as at a resume: it raises epochs, too
    a = _outpost(tmp_path / "a", plan)
    home = HomeFolder(plan)
    _exchange(home, NodeFolder(a.paths, home.start([1])))
    _act(a, 5)
    home = HomeFolder(plan)
    _exchange(home, NodeFolder(a.paths, home.start([1])))
    mirror = ShardReader(plan.shards[1])
    assert mirror.head > stopped
    assert (mirror.columns["boundary"][stopped % mirror.rows] == CUT).all()
    assert len(list(a.paths.replay.glob("shard_001*"))) == 1  # no second one takes memory


def test_steps_are_not_counted_twice_when_a_mirror_is_damaged(tmp_path: Path) -> None:
    plan = _home(tmp_path / "home")
    outpost = _outpost(tmp_path / "outpost", plan)
    RunFolder(outpost.paths.replay).write_json("owner.json", {"run": "x", "mark": "m", "outpost": True})
    _act(outpost, 3 * plan.rows_per_shard)
    home = HomeFolder(plan)
    node = NodeFolder(outpost.paths, home.start([1]))
    _exchange(home, node)
    _exchange(home, node)
    ledger = assembly.open_ledger(plan)
    ledger.beat()
    before = ledger.env_steps
    assert before == ShardReader(outpost.shards[1]).steps

    (plan.shards[1] / "obs.bin").unlink()
    (found,) = find_outposts("m", Path("x"), tmp_path)
    plan = _home(tmp_path / "home", known=Counts, starts=found.starts)
    outpost = _outpost(tmp_path / "outpost", plan)
    home = HomeFolder(plan)
    node = NodeFolder(outpost.paths, home.start([1]))
    for _ in range(3):
        _exchange(home, node)
    assert assembly.open_ledger(plan).env_steps == before


def test_a_writer_that_laps_the_ring_while_rows_are_taken_does_not_stop_the_taker(tmp_path: Path) -> None:
    from shoal.replay.mirror import RowTaker
    from shoal.replay.shard import ShardWriter

    plan = _home(tmp_path / "home")
    writer = ShardWriter(plan.shards[1])
    writer.cut(5)
    looks = 0

    class Lapped(ShardReader):
        @property
        def oldest(self) -> int:
            nonlocal looks
            looks += 1
            if looks == 1:
                for _ in range(3):
                    writer.cut(self.rows - 1)
            assert looks < 100, "it never ends"
            return super().oldest

    taker = RowTaker(Lapped(plan.shards[1]), 0)
    taker.take(np.zeros(taker.row_bytes * 4, np.uint8))


def test_a_batch_between_two_orders_does_not_let_actors_run_far_ahead(tmp_path: Path) -> None:
    plan = replace(make_plan(corridor(replay={"samples_per_insert": 8.0})), outposts=((0,), (1,)))
    (tmp_path / "home").mkdir()
    plan = plan.at(RunPaths(tmp_path / "home", tmp_path / "checkpoints"))
    prepare(plan, ROLES, "run")
    home, ledger = HomeFolder(plan), assembly.open_ledger(plan)
    told = home.order([0], horizon=1.0).ledger[LedgerWord.SAMPLES]
    ledger.add(LedgerWord.SAMPLES, 128)
    assert home.order([1], horizon=1.0).ledger[LedgerWord.SAMPLES] == told + 128


def test_an_outpost_that_others_can_write_into_is_not_used(tmp_path: Path) -> None:
    outpost = _outpost(tmp_path / "outpost", _home(tmp_path / "home"))
    RunFolder(outpost.paths.replay).write_json("owner.json", {"run": "x", "mark": "m", "outpost": True})
    assert find_outposts("m", Path("x"), tmp_path)
    outpost.paths.replay.chmod(0o777)
    assert not find_outposts("m", Path("x"), tmp_path)
    outpost.paths.replay.chmod(0o700)
    (outpost.shards[1] / "obs.bin").rename(tmp_path / "obs.bin")
    (outpost.shards[1] / "obs.bin").symlink_to(tmp_path / "obs.bin")
    assert not find_outposts("m", Path("x"), tmp_path)


def test_a_queue_of_a_new_home_begins_where_the_old_one_was(tmp_path: Path) -> None:
    outpost = _outpost(tmp_path / "outpost", _home(tmp_path / "home"))
    RunFolder(outpost.paths.replay).write_json("owner.json", {"run": "x", "mark": "m", "outpost": True})
    _act(outpost, 30)
    Counters(outpost.shards[1] / "header.bin", writable=True)[Header.CURSOR] = 20
    shutil.rmtree(tmp_path / "home")
    (found,) = find_outposts("m", Path("x"), tmp_path)
    plan = _home(tmp_path / "home", starts=found.starts)
    assert ShardReader(plan.shards[1]).header[Header.CURSOR] == 20
