"""The environment that an actor steps: N lanes, validated, with unclipped episode returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from shoal.envs.episode_metrics import told_by_lanes
from shoal.envs.faults import close_quietly, explain
from shoal.envs.lives import LifeCut, restart_action
from shoal.envs.spaces import ActionMap
from shoal.errors import EnvError
from shoal.types import Array, EnvSpec, EnvStep, Episode


class Env:
    """N lanes of one environment in NEXT_STEP autoreset.

        env = make_env(settings, lanes=8, seed=0)
        obs = env.reset()
        while True:
            step = env.step(policy(obs))
            obs = step.obs

    Every array it returns is new: the caller may keep or change it.
    """

    def __init__(
        self,
        vector: Any,
        spec: EnvSpec,
        seed: Any,
        *,
        reward_bound: float | None = None,
        copy: bool = True,
        lost_life: Literal["nothing", "restarts", "ends"] = "nothing",
    ) -> None:
        """Use `make_env`.

        Args:
            vector: a Gymnasium VectorEnv in NEXT_STEP autoreset.
            spec: what it looks like.
            seed: what its first `reset` takes as seed.
            reward_bound: clip `EnvStep.reward` to plus or minus this.
            copy: whether `vector` reuses the arrays it returns, or observes in another dtype than the spec's.
            lost_life: after one (ale-py only), "restarts": FIRE is played as after a reset; "ends": the learner's
                episode ends, too.
        """
        self.spec = spec
        self.lanes: int = vector.num_envs
        self._vector = vector
        self._seed = seed
        self._bound = reward_bound
        self._copy = copy
        self._lost_life = lost_life
        self._to_env = ActionMap(vector.single_action_space)
        self._obs_shape = (self.lanes, *spec.obs_shape)
        self._obs_dtype = np.dtype(spec.obs_dtype)
        self._actions_shape = (self.lanes, *spec.action_shape)
        self._steps = 0
        self._started = np.zeros(self.lanes, np.int64)  # step number at which each lane was last reset
        self._returns = np.zeros(self.lanes)
        self._resetting: npt.NDArray[np.intp] | None = None  # lanes the coming step resets
        self._lives: LifeCut | None = None
        self._closed = False

    def reset(self) -> Array:
        """Starts an episode in every lane; the first call seeds them. Returns obs [N, *obs_shape]."""
        try:
            obs, info = self._vector.reset(seed=self._seed)
        except (Exception, SystemExit) as error:
            raise self._raised("reset", error) from error
        self._seed = None
        self._started[:] = self._steps
        self._returns[:] = 0.0
        self._resetting = None
        if self._lost_life != "nothing":
            tell = self._lost_life == "ends"
            self._lives = LifeCut(info["lives"], self.spec.frame_stack, restart_action(self._vector), tell=tell)
        return self._checked_obs(obs)

    def step(self, actions: Array) -> EnvStep:
        """Plays one action per lane: [N] integers, or [N, *action_shape] floats (clipped to the bounds).

        Raises:
            EnvError: an action is out of range, or a lane raised, or returned a reward or observation that is not
                finite or has the wrong shape.
        """
        if actions.shape != self._actions_shape:
            raise EnvError(f"{self._where()} got actions of shape {actions.shape}: {self._actions_shape} expected.")
        self._steps += 1
        if self._lives is not None:
            actions = self._lives.actions(actions)
        played = self._to_env(actions)
        try:
            obs, raw_reward, terminated, truncated, info = self._vector.step(played)
        except (Exception, SystemExit) as error:  # an environment must not end the run
            raise self._raised("step", error) from error
        obs = self._checked_obs(obs)
        if self._copy:
            terminated, truncated = terminated.copy(), truncated.copy()
        reward: npt.NDArray[np.float32] = raw_reward.astype(np.float32)
        if raw_reward.dtype.kind == "f" and not _all_finite(reward):
            raise self._not_finite("reward", reward)

        self._returns += raw_reward
        if self._resetting is not None:
            self._returns[self._resetting] = 0.0
            reward[self._resetting] = 0.0
            self._resetting = None
        if self._bound is not None:
            np.minimum(reward, self._bound, out=reward)
            np.maximum(reward, -self._bound, out=reward)
        ended = terminated | truncated
        finished = self._finish(ended, info) if np.count_nonzero(ended) else ()
        if self._lives is not None:
            terminated, truncated = self._lives.apply(obs, reward, terminated, truncated, info["lives"])
        return EnvStep(obs, reward, terminated, truncated, finished)

    def set_levels(self, levels: Sequence[Mapping[str, float]]) -> None:
        """From its next reset on, each lane plays one of these levels, such as {"size": 20}, drawn anew at each reset.
        Only for environments with levels (`EnvSpec.levels`).
        """
        self._vector.set_levels(levels)

    def close(self) -> None:
        """Closes the lanes and ignores errors of their own `close`; a second call does nothing."""
        if not self._closed:
            self._closed = True
            close_quietly(self._vector)

    def _finish(self, ended: npt.NDArray[np.bool_], info: dict[str, Any]) -> tuple[Episode, ...]:
        (lanes,) = ended.nonzero()
        lengths = self._steps - self._started[lanes]
        places = lanes.tolist()
        told = told_by_lanes(info, places)
        finished = tuple(map(Episode, places, self._returns[lanes].tolist(), lengths.tolist(), told))
        self._started[lanes] = self._steps + 1
        self._resetting = lanes
        return finished

    def _checked_obs(self, obs: Any) -> Array:
        if not isinstance(obs, np.ndarray) or obs.shape != self._obs_shape:
            shape = getattr(obs, "shape", type(obs).__name__)
            raise EnvError(f"{self._where()} returned observations of shape {shape}: {self._obs_shape} expected.")
        if self._copy:
            if obs.dtype != self._obs_dtype and not np.can_cast(obs.dtype, self._obs_dtype, "same_kind"):
                raise EnvError(f"{self._where()} returned {obs.dtype} observations: {self._obs_dtype} expected.")
            obs = np.array(obs, self._obs_dtype, order="C")
        checked: Array = obs
        if self._obs_dtype.kind == "f" and not _all_finite(checked):
            raise self._not_finite("observation", checked)
        return checked

    def _where(self, lane: int | None = None) -> str:
        in_lane = "" if lane is None else f", lane {lane}"
        return f"Environment {self.spec.env_id!r} (step {self._steps}{in_lane})"

    def _raised(self, call: str, error: BaseException) -> EnvError:
        lane = getattr(self._vector, "lane", None)
        return EnvError(f"{self._where(lane)} raised {type(error).__name__} in {call}: {explain(error)}")

    def _not_finite(self, what: str, values: Array) -> EnvError:
        wrong = ~np.isfinite(values.reshape(self.lanes, -1))
        lane = int(np.flatnonzero(wrong.any(axis=1))[0])
        value = values.reshape(self.lanes, -1)[lane][wrong[lane]][0]
        return EnvError(f"{self._where(lane)} returned {value} in its {what}.")


def _all_finite(values: Array) -> bool:
    # count_nonzero, because ndarray.all() takes three times as long on arrays this small.
    return bool(np.count_nonzero(np.isfinite(values)) == values.size)
