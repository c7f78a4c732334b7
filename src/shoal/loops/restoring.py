"""Whose weights win when a learner starts: those of its newest checkpoint or those on the board.

A checkpoint holds all that is learned, but is older. The board holds what was published last: for some algorithms that
is all that is learned (`Learner.published_whole`), for others only the policy, without its critics.

| newest readable checkpoint | board | published weights are all | published weights are the policy only |
|---|---|---|---|
| is as new as the board | | checkpoint | checkpoint |
| is older | newer | checkpoint, then the board's weights | checkpoint: a newer policy is not joined to older critics |
| there is none | first version | board | board |
| there is none | later version | board | the learner begins again: a policy is not kept without critics |

Where the board loses, the learner publishes its weights again, and the actors follow.
"""

from __future__ import annotations

from pathlib import Path

from shoal.algorithms.interface import Learner, LearnerState
from shoal.errors import CheckpointError
from shoal.loops.checkpoint import list_checkpoints, load_checkpoint
from shoal.loops.weights import BoardModule


def restore(learner: Learner, weights: BoardModule, checkpoints: Path) -> tuple[str, ...]:
    """Brings a new learner to where its run is; returns notes for the user.

    Args:
        learner: with its initial weights.
        weights: of the learner's module, and the board with those published last.
        checkpoints: the folder of checkpoints.
    """
    if weights.board.version == 0:  # the run was killed before it published any
        weights.publish()
    try:
        state = load_checkpoint(checkpoints)
    except CheckpointError as error:
        return _without_checkpoint(learner, weights, str(error) if list_checkpoints(checkpoints) else None)
    learner.load_state(LearnerState(dict(state.tensors), dict(state.info["learner"])))
    newer = weights.board.version > int(state.info["weights_version"])
    if newer and learner.published_whole:
        weights.refresh()
        return state.skipped
    weights.publish()
    back = (f"The learner goes back to its checkpoint of update {state.updates}.",) if newer else ()
    return state.skipped + back


def _without_checkpoint(learner: Learner, weights: BoardModule, problem: str | None) -> tuple[str, ...]:
    if weights.board.version > 1 and not learner.published_whole:
        weights.publish()
        why = problem or "No checkpoint had been saved."
        return (f"{why} The learner begins again: its critics are lost, and the policy is not kept alone.",)
    weights.refresh()
    learner.weights_replaced()
    return (f"{problem} Going on with the newest published weights.",) if problem else ()
