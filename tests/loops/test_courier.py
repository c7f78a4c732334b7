"""Both sides of a link in one process: whatever the order of messages, and whoever begins again, counts are exact."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tests.fakes import corridor

from shoal.config.load import settings_for
from shoal.errors import ReplayError
from shoal.loops.assembly import build_actor, open_ledger
from shoal.loops.courier import HomeFolder, LinkStart, NodeFolder
from shoal.loops.gradient_board import GradientBoard
from shoal.loops.plan import Plan, make_plan
from shoal.loops.preparation import prepare, prepare_outpost, where_it_stopped
from shoal.loops.run_paths import RunPaths
from shoal.loops.settings import RunSettings
from shoal.loops.weights import WeightBoard
from shoal.replay import Header, LedgerWord, ShardReader
from shoal.replay.counters import Counters
from shoal.replay.ledger import HALT

AWAY = (1,)
"""The actors of the outpost; actor 0 is at home."""


class Pair:
    """Home's folder and an outpost's, and both ends of the link between them."""

    def __init__(self, folder: Path, settings: RunSettings) -> None:
        for name in ("home", "node"):
            (folder / name).mkdir()
        plan = replace(make_plan(settings), outposts=(AWAY,))
        self.plan = plan.at(RunPaths(folder / "home", folder / "checkpoints"))
        assert prepare(self.plan, 3, "run") == []
        self.there: Plan = replace(plan.at(RunPaths(folder / "node", folder / "checkpoints")), outpost=0)
        assert prepare_outpost(self.there, 3, "run", {1: where_it_stopped(self.plan, 1)}, 1) == []
        self.ledger = open_ledger(self.plan)
        self.begin_home()
        self.begin_node()

    def begin_home(self) -> LinkStart:
        self.home = HomeFolder(self.plan)
        return self.home.start(AWAY)

    def begin_node(self) -> None:
        self.node = NodeFolder(self.there.paths, self.home.start(AWAY))

    def exchange(self) -> None:
        order = self.home.order(AWAY)
        weights = self.home.weights()[1].copy() if self.home.version > self.node.version else None
        self.node.deliver(order, weights)
        self.home.take(self.node.fetch(0.01))

    @property
    def own(self) -> ShardReader:
        return ShardReader(self.there.shards[1])

    @property
    def mirror(self) -> ShardReader:
        return ShardReader(self.plan.shards[1])

    @property
    def words(self) -> SimpleNamespace:
        """What the outpost's folder says."""
        header = Counters(self.there.shards[1] / "header.bin", writable=False)
        other = Counters(self.there.shards[0] / "header.bin", writable=False)
        ledger = open_ledger(self.there)
        return SimpleNamespace(
            grant=header[Header.GRANT], cursor=header[Header.CURSOR], others=other[Header.STEPS], ledger=ledger
        )

    def require_equal(self) -> None:
        own, mirror = self.own, self.mirror
        assert (mirror.head, mirror.steps) == (own.head, own.steps)
        for name, column in own.columns.items():
            for row in range(own.oldest, own.head):
                assert np.array_equal(column[row % own.rows], mirror.columns[name][row % own.rows]), (name, row)


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path, corridor(replay={"samples_per_insert": None}))


def grant(pair: Pair, row: int) -> None:
    Counters(pair.plan.shards[1] / "header.bin", writable=True)[Header.GRANT] = row


def publish(pair: Pair, value: float) -> int:
    board = WeightBoard.open(pair.plan.paths.board)
    return board.publish(np.full(board.size, value, np.float32))


def test_rows_counts_and_the_end_arrive(pair: Pair) -> None:
    near, far = build_actor(pair.plan, 0), build_actor(pair.there, 1)
    near.run(steps=7)
    for _ in range(3):
        far.run(steps=11)
        pair.exchange()
        pair.require_equal()
    pair.exchange()
    assert (
        pair.words.ledger.env_steps == pair.ledger.env_steps == pair.own.steps + ShardReader(pair.plan.shards[0]).steps
    )
    pair.ledger[LedgerWord.STOP] = HALT
    pair.exchange()
    assert pair.words.ledger.halt
    far.end()
    parcel = pair.node.fetch(5.0)  # at once: the run has stopped
    assert parcel.closed
    pair.home.take(parcel)
    assert pair.mirror.header[Header.CLOSED] == 1


def test_an_order_that_was_overtaken_is_ignored(pair: Pair) -> None:
    grant(pair, 5)
    old = pair.home.order(AWAY)
    grant(pair, 9)
    pair.ledger[LedgerWord.UPDATES] = 3
    new = pair.home.order(AWAY)
    pair.node.deliver(new, None)
    pair.node.deliver(old, None)
    assert (pair.words.grant, pair.words.ledger.updates) == (9, 3)


def test_weights_are_there_before_the_grant_that_needs_them(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    version = publish(pair, 2.5)
    grant(pair, 9)
    order, weights = pair.home.order(AWAY), pair.home.weights()[1].copy()
    seen: list[int] = []
    obey = NodeFolder._obey
    monkeypatch.setattr(NodeFolder, "_obey", lambda node, given: (seen.append(node.version), obey(node, given)))
    assert order.version == version
    assert pair.node.deliver(order, weights) == version and seen == [version]
    board = WeightBoard.open(pair.there.paths.board)
    vector = np.empty(board.size, np.float32)
    assert board.read(vector) == version and (vector == 2.5).all()
    # The same weights again, and older ones, change nothing.
    assert pair.node.deliver(order, weights) == version
    assert pair.node.deliver(order._replace(version=version - 1), np.zeros_like(weights)) == version
    board.read(vector)
    assert (vector == 2.5).all()


def test_home_reads_grants_before_the_version(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A grant that is told was given for weights that are told, too, though the learner works meanwhile."""
    words = HomeFolder._words

    def learns_meanwhile(home: HomeFolder, *given: object) -> object:
        found = words(home, *given)  # type: ignore[arg-type]
        grant(pair, 100 + publish(pair, 1.0))
        return found

    monkeypatch.setattr(HomeFolder, "_words", learns_meanwhile)
    pair.home.order(AWAY)
    order = pair.home.order(AWAY)
    assert order.granted[0, 1] - 100 <= order.version


def test_both_sides_begin_again_and_again(pair: Pair) -> None:
    """Killed with a parcel packed and not taken, or taken and not answered: no row twice, none lost."""
    far = build_actor(pair.there, 1)
    for again in range(2):
        far.run(steps=9)
        pair.exchange()
        far.run(steps=5)
        pair.node.fetch(0.01)  # packed, and lost with its courier
        pair.begin_node()
        pair.exchange()
        pair.require_equal()
        far.run(steps=5)
        parcel, before = pair.node.fetch(0.01), pair.home
        start = pair.begin_home()
        assert start.positions == {1: pair.mirror.head}
        with pytest.raises(ReplayError, match="another writer"):
            before.take(parcel)  # it lives on, and hears of its courier's parcel too late
        pair.begin_node()
        pair.exchange()
        pair.require_equal()
        grant(pair, 50 + again)
        pair.exchange()
        assert pair.words.grant == 50 + again  # orders of a later home are later


def test_a_node_that_was_given_up_cannot_write_into_its_mirror_again(pair: Pair, tmp_path: Path) -> None:
    far = build_actor(pair.there, 1)
    far.run(steps=9)
    pair.exchange()
    lost = pair.node
    (tmp_path / "refuge").mkdir()
    pair.there = pair.there.at(RunPaths(tmp_path / "refuge", tmp_path / "checkpoints"))
    assert prepare_outpost(pair.there, 3, "run", {1: where_it_stopped(pair.plan, 1)}, pair.home.version) == []
    pair.begin_node()
    build_actor(pair.there, 1).run(steps=6)
    pair.exchange()
    assert pair.mirror.head == pair.own.head > 9
    far.run(steps=1)  # it was only out of reach
    late = lost.fetch(0.01)
    with pytest.raises(ReplayError, match="is at row"):
        pair.home.take(late)
    pair.exchange()
    assert (pair.mirror.head, pair.mirror.steps) == (pair.own.head, pair.own.steps)


def test_an_outpost_with_fewer_rows_than_its_mirror_is_refused(pair: Pair) -> None:
    with pytest.raises(ReplayError, match="home has 3"):
        NodeFolder(pair.there.paths, LinkStart(2, {1: 3}, {}, hurries=False, for_all=False, codecs=("none",)))


def test_while_mirrors_fill_again_actors_do_not_run_ahead(tmp_path: Path) -> None:
    """After a resume without home's replay, draws are counted for steps that are not back yet."""
    pair = Pair(tmp_path, corridor(replay={"samples_per_insert": 4.0}))
    told = [pair.home.order(AWAY).ledger[LedgerWord.SAMPLES]]
    pair.ledger[LedgerWord.SAMPLES] = 1_000_000
    told.append(pair.home.order(AWAY).ledger[LedgerWord.SAMPLES])
    assert told[0] <= told[1] < 10_000  # what the limiter allows, and what is on the way


def test_gradients_are_repeated_with_their_numbers_and_fates(tmp_path: Path) -> None:
    settings = settings_for("CartPole-v1", "a3c", ["actors=2"])
    pair = Pair(tmp_path, settings)
    far, near = (GradientBoard(plan.paths.gradients(1)) for plan in (pair.there, pair.plan))
    gradient = np.arange(far.size, dtype=np.float32)
    far.push(gradient, 5, 1)
    far.push(2 * gradient, 5, 1)  # in place of the first
    pair.exchange()
    assert near.pushed == 2
    taken = near.take()
    assert taken is not None and np.array_equal(taken.vector, 2 * gradient)
    assert not far.settled
    near.settle(1)
    pair.exchange()
    assert far.settled and far.counts == near.counts == (2, 1, 1, 0)
    # A courier and the home's side begin again: nothing is sent twice.
    pair.begin_home()
    pair.begin_node()
    assert pair.node.fetch(0.01).pushes == ()
    far.push(gradient, 5, 2)
    assert [push.number for push in pair.node.fetch(0.01).pushes] == [3]
    pair.begin_node()  # lost on the way: sent again
    pair.exchange()
    assert near.pushed == 3 and near.counts.waiting == 1
