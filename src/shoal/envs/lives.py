"""Ends the learner's episode at each lost life, while the game goes on; evaluation goes on as training would."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.types import Array


class LifeCut:
    """Ends the learner's episode at each lost life while the game goes on, as Mnih et al. 2015 trained.

    ale-py's own `episodic_life` starts a new game at each lost life, so an agent would only ever see first lives.
    Here the step after a lost life looks to the learner like any reset step: the action is ignored (FIRE or no-op is
    played), the reward is 0, and the frame stack starts from zeros.

    In evaluation (`tell=False`) no episode ends and no reward is changed, but the same action is played: a policy that
    never had to press FIRE does not, and Breakout would stand still after the first lost life.
    """

    def __init__(self, lives: Array, frame_stack: int, restart_action: Array, *, tell: bool = True) -> None:
        """`lives` [N] as the emulator's reset reported them; `restart_action` is played after a lost life."""
        lanes = len(lives)
        self._lives = lives
        self._tell = tell
        self._stack = frame_stack
        self._restart_action = restart_action
        self._pending = np.zeros(lanes, np.bool_)  # the coming step pretends to reset these lanes
        self._late = np.zeros(lanes, np.bool_)  # the game ended in a pretended reset: tell the learner one step later
        self._age = np.full(lanes, frame_stack)  # steps since the last pretended reset

    def actions(self, actions: Array) -> Array:
        """The actions to play: a lane in its pretended reset ignores its own."""
        if np.count_nonzero(self._pending):
            actions = actions.copy()
            actions[self._pending] = self._restart_action
        return actions

    def apply(
        self,
        obs: Array,
        reward: npt.NDArray[np.float32],
        terminated: npt.NDArray[np.bool_],
        truncated: npt.NDArray[np.bool_],
        lives: Array,
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """What the learner is told; edits `obs` and `reward` in place, returns new `terminated, truncated`."""
        resetting = self._pending
        ended = terminated | truncated
        lost = (lives < self._lives) & (lives > 0) & ~ended & ~resetting
        self._blank_old_frames(obs, resetting)
        self._lives = lives
        if not self._tell:
            self._pending = lost
            return terminated, truncated
        told_terminated = (terminated & ~resetting) | lost | self._late
        told_truncated = truncated & ~resetting
        reward[resetting] = 0.0
        self._pending = lost | self._late
        self._late = resetting & ended
        return told_terminated, told_truncated

    def _blank_old_frames(self, obs: Array, resetting: npt.NDArray[np.bool_]) -> None:
        """Frames from before the pretended reset must not be seen: replay does not stack across an episode's end."""
        self._age += 1
        self._age[resetting] = 0
        for lane in np.flatnonzero(self._age < self._stack - 1):
            obs[lane, : self._stack - 1 - self._age[lane]] = 0


def restart_action(vector: Any) -> Array:
    """FIRE, where the game has it, else the no-op, as an action of ale-py's AtariVectorEnv."""
    if vector.continuous:
        return np.array([0.0, 0.0, 1.0], np.float32)  # radius, angle, fire
    names = [action.name for action in vector.ale.get_action_set()]
    return np.array(names.index("FIRE") if "FIRE" in names else 0)
