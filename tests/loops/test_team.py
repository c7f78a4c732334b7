"""Several learners as one group. Members are threads here, connected by gloo; `tests/faults` kills processes."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import nn

from shoal.algorithms.interface import LearnerState
from shoal.errors import ConfigError
from shoal.loops import team as module
from shoal.loops.team import Learners, MemberLost, RankLedger, Word
from shoal.replay import LedgerWord


def make(folder: Path, ranks: int, patience: float = 1.0) -> list[Learners]:
    Learners.create(folder / "learners.bin", ranks)
    return [Learners(folder / "learners.bin", rank, ranks, patience) for rank in range(ranks)]


def each(members: list[Learners], work: Callable[[Learners], Any]) -> list[Any]:
    """The work of all members at the same time."""
    with ThreadPoolExecutor(len(members)) as pool:
        return [one.result(60) for one in [pool.submit(work, member) for member in members]]


def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.001)


def join(members: list[Learners]) -> None:
    each(members, lambda one: until(one.join))


def test_the_mean_over_all_rows_also_without_any(tmp_path: Path) -> None:
    members = make(tmp_path, 3)
    join(members)
    rows = (4, 0, 2)

    def work(member: Learners) -> Any:
        network = nn.Linear(3, 1)
        with torch.no_grad():
            network.weight.fill_(0.5)
            network.bias.fill_(0.1)
        if rows[member.rank]:
            inputs = torch.arange(18.0).view(6, 3)[:4] if member.rank == 0 else torch.arange(18.0).view(6, 3)[4:]
            network(inputs).square().mean().backward()
        member.mean_gradients(network, rows[member.rank])
        return network

    networks = each(members, work)
    whole = nn.Linear(3, 1)
    whole.load_state_dict(networks[0].state_dict())
    whole(torch.arange(18.0).view(6, 3)).square().mean().backward()
    for network in networks:
        torch.testing.assert_close(network.weight.grad, whole.weight.grad)
        torch.testing.assert_close(network.bias.grad, whole.bias.grad)


@pytest.mark.parametrize("failing", [{0, 1}, {1}], ids=["all", "one"])
def test_where_nccl_does_not_work_learners_exchange_by_gloo(
    failing: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine with a GPU for each, whose NCCL cannot connect them; then without a message, too. One failure may
    be due to a member that has died and is not back yet.
    """
    tries = [0, 0]

    class NoConnection:
        def __init__(self, store: Any, rank: int, ranks: int, device: Any, lost: Callable[[], bool], _: float) -> None:
            tries[rank] += 1
            if rank in failing:
                raise RuntimeError("no way\nlong story" if rank else "")
            until(lost)  # as NCCL: waits for the others
            raise RuntimeError("lost")

    monkeypatch.setattr(module, "gpu_number", lambda device: 0 if device is None else 7 + device.index)
    monkeypatch.setattr(module, "GpuExchange", NoConnection)
    members = make(tmp_path, 2)
    for member in members:
        member._device = torch.device("cuda", member.rank)
    join(members)
    sums = each(members, lambda one: one.total(torch.tensor([one.rank + 1.0])))
    assert [float(one) for one in sums] == [3.0, 3.0]
    assert all(member._gpus is None for member in members) and max(tries) > 1
    notes = {member.rank: member.notes[0] for member in members if member.notes}  # the other may call it a loss
    assert notes and notes.keys() <= failing
    assert not any("long story" in note for note in notes.values())


def test_gloo_listens_on_loopback_only(tmp_path: Path) -> None:
    before = set(psutil.Process().net_connections())
    members = make(tmp_path, 2)
    join(members)
    opened = [one for one in set(psutil.Process().net_connections()) - before if one.family == socket.AF_INET]
    assert opened and {one.laddr.ip for one in opened} == {"127.0.0.1"}


def test_a_newcomer_gets_the_state_of_who_has_made_most_updates(tmp_path: Path) -> None:
    members = make(tmp_path, 2)
    join(members)
    assert members[0].all_new and members[0].leader == 0
    for member in members:
        member.holds(7)
    members[0] = Learners(tmp_path / "learners.bin", 0, 2)  # killed, and started again
    with pytest.raises(MemberLost):
        members[1].may_update(True)
    assert not members[1].joined
    join(members)
    assert [member.leader for member in members] == [1, 1] and not members[0].all_new
    states = [LearnerState({"w": torch.full((2, 3), float(rank))}, {"learner_updates": rank}) for rank in range(2)]
    for copied in each(members, lambda one: one.copy_state(states[one.rank])):
        assert torch.equal(copied.tensors["w"], states[1].tensors["w"]) and copied.scalars == {"learner_updates": 1}


def test_an_update_is_made_when_all_have_come(tmp_path: Path) -> None:
    one, other = members = make(tmp_path, 2, patience=0.2)
    join(members)
    assert not one.may_update(True) and not one.may_leave(), "it has said that it will come"
    assert not other.may_update(False), "there may be a batch soon"
    time.sleep(0.3)
    assert other.may_update(False) and one.may_update(True), "without a batch, after a while"
    assert not other.may_update(False)
    assert one.may_leave(), "nobody has announced the next one"
    assert not other.may_update(True)
    assert other.may_leave(), "the other one has left"


def test_without_patience_nobody_makes_an_update_alone(tmp_path: Path) -> None:
    one, other = members = make(tmp_path, 2, patience=math.inf)
    join(members)
    assert not one.may_update(True) and not other.may_update(False)
    time.sleep(1.2)
    assert not other.may_update(False), "its rollout is under way"
    assert other.may_update(True) and one.may_update(True)


def test_a_member_that_vanishes_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members = make(tmp_path, 2)
    join(members)
    members[1]._group = None  # closes its connections, as the end of its process does
    began = time.monotonic()
    with pytest.raises(MemberLost):
        members[0].total(torch.ones(3))
    assert time.monotonic() - began < 10
    monkeypatch.setattr(module, "CONNECT_SECONDS", 0.5)
    members[1].set(Word.JOINED, members[0].of(0, Word.EPOCH) + members[0].of(1, Word.EPOCH))  # it said so, and died
    assert not members[0].join() and not members[0].joined


def test_every_word_of_the_ledger_has_one_writer(tmp_path: Path) -> None:
    members = make(tmp_path, 2)
    first, second = (RankLedger(tmp_path, [], member) for member in members)
    second.add(LedgerWord.SAMPLES, 10)
    second[LedgerWord.GRANT] = 500
    assert first[LedgerWord.SAMPLES] == 0 and first[LedgerWord.GRANT] == 0
    first.add(LedgerWord.SAMPLES, 5)
    assert second[LedgerWord.SAMPLES] == 15 and second[LedgerWord.GRANT] == 500
    again = RankLedger(tmp_path, [], Learners(tmp_path / "learners.bin", 0, 2))
    again.add(LedgerWord.SAMPLES, 1)
    assert again[LedgerWord.SAMPLES] == 16


def test_a_rank_that_cannot_be(tmp_path: Path) -> None:
    Learners.create(tmp_path / "learners.bin", 2)
    with pytest.raises(ConfigError, match="rank = 2 must lie between 0 and 1"):
        Learners(tmp_path / "learners.bin", 2, 2)
