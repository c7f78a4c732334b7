"""One actor's observations to the server, and its answers back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shoal.errors import CorruptShard
from shoal.loops.mailbox import Layout, Mailbox
from shoal.replay import Column

LAYOUT = Layout(3, Column("obs", "uint8", (2, 5)), (Column("action", "int64"), Column("behaviour", "float32", (4,))))


def both_sides(tmp_path: Path) -> tuple[Mailbox, Mailbox]:
    Mailbox.create(tmp_path / "mailbox_000.bin", LAYOUT)
    return Mailbox(tmp_path / "mailbox_000.bin", LAYOUT), Mailbox(tmp_path / "mailbox_000.bin", LAYOUT)


def answer(value: int) -> dict[str, np.ndarray]:
    return {"action": np.full(3, value), "behaviour": np.full((3, 4), value / 2, np.float32)}


def test_a_request_and_its_answer_arrive(tmp_path: Path) -> None:
    actor, server = both_sides(tmp_path)
    assert server.request() is None
    obs, first = np.arange(30, dtype=np.uint8).reshape(3, 2, 5), np.array([True, False, True])
    number = actor.ask(obs, first)
    assert server.request() == number and not actor.has_answer(number)
    np.testing.assert_array_equal(server.obs, obs)
    np.testing.assert_array_equal(server.first, first)
    server.reply(number, answer(7), version=12)
    assert actor.has_answer(number) and server.request() is None and server.answered == 1
    assert actor.version == 12
    assert actor.answer["action"].tolist() == [7, 7, 7] and (actor.answer["behaviour"] == 3.5).all()


def test_an_actor_that_was_started_again_does_not_get_the_answer_of_the_one_before(tmp_path: Path) -> None:
    before, server = both_sides(tmp_path)
    old = before.ask(np.ones((3, 2, 5), np.uint8), np.zeros(3, np.bool_))
    assert server.request() == old  # it is acting on this …
    actor = Mailbox(tmp_path / "mailbox_000.bin", LAYOUT)
    number = actor.ask(np.full((3, 2, 5), 2, np.uint8), np.ones(3, np.bool_))
    server.reply(old, answer(1), version=1)
    assert not actor.has_answer(number) and server.request() == number
    server.reply(number, answer(2), version=1)
    assert actor.has_answer(number) and actor.answer["action"].tolist() == [2, 2, 2]


def test_create_takes_the_place_of_an_old_one(tmp_path: Path) -> None:
    actor, _ = both_sides(tmp_path)
    actor.ask(np.zeros((3, 2, 5), np.uint8), np.zeros(3, np.bool_))
    _, server = both_sides(tmp_path)
    assert server.request() is None and server.answered == 0


def test_columns_do_not_overlap(tmp_path: Path) -> None:
    actor, server = both_sides(tmp_path)
    number = actor.ask(np.full((3, 2, 5), 255, np.uint8), np.ones(3, np.bool_))
    server.reply(number, answer(-1), 1)
    assert (actor.obs == 255).all() and actor.first.all() and (actor.answer["action"] == -1).all()
    assert (actor.answer["behaviour"] == -0.5).all()


def test_a_file_of_another_layout_is_refused(tmp_path: Path) -> None:
    both_sides(tmp_path)
    with pytest.raises(CorruptShard, match="bytes instead of"):
        Mailbox(tmp_path / "mailbox_000.bin", Layout(200, LAYOUT.obs, LAYOUT.answer))
