"""Whose weights win when a learner starts: a test for each row of the table in `shoal.loops.restoring`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.fakes import corridor, reach
from torch import Tensor

from shoal.algorithms.interface import Learner, LearnerContext
from shoal.loops.checkpoint import CheckpointState, save_checkpoint
from shoal.loops.plan import make_plan
from shoal.loops.restoring import restore
from shoal.loops.weights import BoardModule, WeightBoard, count_weights

PLANS = {"published whole": make_plan(corridor()), "policy only": make_plan(reach())}
SAVED_VERSION = 3
either = pytest.mark.parametrize("kind", PLANS)


class Start:
    """A learner about to start, beside the board and the checkpoints that another one left."""

    def __init__(self, folder: Path, kind: str, *, published: int) -> None:
        """`published`: version of the board."""
        self._plan = PLANS[kind]
        earlier, self.learner = self._make(1), self._make(2)
        self.checkpoints, board = folder / "checkpoints", folder / "weights.bin"
        WeightBoard.create(board, count_weights(self.learner.module))
        before = BoardModule(earlier.module, board)
        for _ in range(published):
            before.publish()
        self.weights = BoardModule(self.learner.module, board)
        self.initial, self.published = self.state(), self.on_board()
        assert not torch.equal(self.of_policy(self.learner), self.of_policy(earlier))

    def _make(self, seed: int) -> Learner:
        torch.manual_seed(seed)
        settings, context = self._plan.settings, LearnerContext(torch.device("cpu"))
        return settings.definition.make_learner(settings.algorithm, self._plan.spec, context)

    def save(self, updates: int = 7) -> dict[str, Tensor]:
        """Saves a third learner's state as a checkpoint of version `SAVED_VERSION`; returns it."""
        state = self._make(3).state()
        info = {"weights_version": SAVED_VERSION, "learner": state.scalars}
        save_checkpoint(self.checkpoints, CheckpointState(updates, state.tensors, info))
        return state.tensors

    def restore(self) -> tuple[str, ...]:
        return restore(self.learner, self.weights, self.checkpoints)

    def state(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self.learner.state().tensors.items()}

    def on_board(self) -> Tensor:
        out = np.zeros(count_weights(self.learner.module), np.float32)
        self.weights.board.read(out)
        return torch.from_numpy(out)

    @staticmethod
    def of_policy(learner: Learner) -> Tensor:
        return flat(learner.module.state_dict())

    def assert_same_on_board(self) -> None:
        assert torch.equal(self.of_policy(self.learner), self.on_board())


def flat(tensors: dict[str, Tensor], prefix: str = "") -> Tensor:
    """All floating-point tensors under a prefix as one vector, in their order."""
    chosen = (tensor for name, tensor in tensors.items() if name.startswith(prefix) and tensor.is_floating_point())
    return torch.cat([tensor.flatten() for tensor in chosen])


def different(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    assert one.keys() == other.keys()
    return [name for name in one if not torch.equal(one[name], other[name])]


def test_the_algorithms_here_are_of_both_kinds(tmp_path: Path) -> None:
    for kind, whole in zip(PLANS, (True, False), strict=True):
        (tmp_path / kind).mkdir()
        assert Start(tmp_path / kind, kind, published=1).learner.published_whole is whole


@either
@pytest.mark.parametrize("published", [0, 1, SAVED_VERSION])
def test_a_checkpoint_as_new_as_the_board_wins_and_is_published(tmp_path: Path, kind: str, published: int) -> None:
    start = Start(tmp_path, kind, published=published)
    saved = start.save()
    assert start.restore() == ()
    assert different(start.state(), saved) == []
    start.assert_same_on_board()
    assert start.weights.board.version > published, "actors follow"


def test_newer_published_weights_are_joined_to_an_older_checkpoint(tmp_path: Path) -> None:
    start = Start(tmp_path, "published whole", published=SAVED_VERSION + 1)
    saved = start.save()
    assert start.restore() == ()
    assert torch.equal(start.of_policy(start.learner), start.published)
    changed = different(start.state(), saved)
    assert changed and all(name.startswith("policy.") for name in changed), "target and optimiser are the checkpoint's"
    assert start.weights.board.version == SAVED_VERSION + 1


def test_a_newer_policy_is_not_joined_to_older_critics(tmp_path: Path) -> None:
    start = Start(tmp_path, "policy only", published=SAVED_VERSION + 1)
    saved = start.save()
    assert start.restore() == ("The learner goes back to its checkpoint of update 7.",)
    assert different(start.state(), saved) == []
    start.assert_same_on_board()
    assert start.weights.board.version == SAVED_VERSION + 2, "actors go back with it"


@pytest.mark.parametrize(("kind", "published"), [("published whole", 1), ("published whole", 5), ("policy only", 1)])
@pytest.mark.parametrize("unreadable", [False, True])
def test_without_a_checkpoint_the_board_wins(tmp_path: Path, kind: str, published: int, unreadable: bool) -> None:
    start = Start(tmp_path, kind, published=published)
    if unreadable:
        write_unreadable(start)
    notes = start.restore()
    assert torch.equal(start.of_policy(start.learner), start.published)
    assert start.weights.board.version == published
    state = start.state()
    target = "target." if kind == "published whole" else "target_policy."
    assert torch.equal(flat(state, target), flat(state, "policy.")), "the target network is a copy"
    if unreadable:
        (note,) = notes
        assert "step_000000007" in note and note.endswith("Going on with the newest published weights.")
    else:
        assert notes == ()


@pytest.mark.parametrize("unreadable", [False, True])
def test_without_a_checkpoint_a_later_policy_is_not_kept_without_critics(tmp_path: Path, unreadable: bool) -> None:
    start = Start(tmp_path, "policy only", published=2)
    if unreadable:
        write_unreadable(start)
    (note,) = start.restore()
    assert "The learner begins again: its critics are lost" in note
    assert ("step_000000007" in note) is unreadable and ("No checkpoint had been saved." in note) is not unreadable
    assert different(start.state(), start.initial) == []
    start.assert_same_on_board()
    assert start.weights.board.version == 3, "actors begin again with it"


@either
def test_a_run_killed_before_it_published_anything_begins_with_the_learners_weights(tmp_path: Path, kind: str) -> None:
    start = Start(tmp_path, kind, published=0)
    assert start.restore() == ()
    assert start.weights.board.version == 1
    start.assert_same_on_board()
    assert torch.equal(flat(start.state(), "policy."), flat(start.initial, "policy."))


def test_an_unreadable_checkpoint_is_skipped_for_an_older_one(tmp_path: Path) -> None:
    start = Start(tmp_path, "published whole", published=1)
    saved = start.save(updates=6)
    write_unreadable(start)
    (note,) = start.restore()
    assert "step_000000007" in note and different(start.state(), saved) == []


def write_unreadable(start: Start) -> None:
    start.checkpoints.mkdir(exist_ok=True)
    (start.checkpoints / "step_000000007.safetensors").write_bytes(b"nothing of the kind")
