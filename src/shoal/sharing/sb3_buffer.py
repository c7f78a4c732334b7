"""DistributedReplayBuffer: Stable-Baselines3's replay buffer on a shard, so that other runs can read it in place.

Pass it as `replay_buffer_class`; it takes vector, image and dict observations, several environments, VecNormalize,
time-outs, `n_steps` and `optimize_memory_usage` as SB3's own buffers do. Without a group it draws the same rows as
SB3's buffer from the same seed: training is the same to the last bit.

Differences from SB3's buffer: returns of `n_steps` are summed in double precision, so their last bit may differ; and
with VecNormalize such a return is scaled as a whole, not clipped step by step.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples

from shoal.errors import ConfigError, NoSpace
from shoal.replay import Keys
from shoal.replay.gather import n_step_rows
from shoal.replay.redraw import MAX_REDRAWS, copy_until_usable
from shoal.replay.shard_table import ShardTable
from shoal.sharing.member import MemberShard, Membership
from shoal.sharing.pool import Drawn, Pool
from shoal.sharing.registry import Registry
from shoal.sharing.rows import Packing, describe_sb3, require_finite, transition_schema
from shoal.sharing.soundness import Soundness
from shoal.sharing.stats import sampling_stats
from shoal.sharing.strategies import RATIO, STRATEGY, check_strategy, ratio_of
from shoal.types import Array, Transition

_COLUMNS = ("reward", "terminated", "truncated", "boundary", "action", "obs", "next_obs")


class DistributedReplayBuffer(ReplayBuffer):
    """A replay buffer that other runs read, and that reads theirs."""

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        registry: Registry | Path | str | None = None,
        buffer_id: str | None = None,
        sample_strategy: str | None = None,
        cross_sample_ratio: float | None = None,
        n_steps: int = 1,
        gamma: float = 0.99,
    ) -> None:
        """Args:
        buffer_size: rows over all environments, at most the registry's `max_buffer_size`.
        observation_space: of the environment.
        action_space: of the environment.
        device: where batches go.
        n_envs: environments that step together.
        optimize_memory_usage: store each observation once; then time-outs are not told from ends.
        handle_timeout_termination: bootstrap from the last observation of a timed-out episode.
        registry: the group to share with; by default that of SHOAL_REGISTRY, else nobody.
        buffer_id: this run's, from `registry.register_buffer`; by default SHOAL_BUFFER_ID or a new one.
        sample_strategy: see `sharing/strategies.py`; by default SHOAL_SHARE_STRATEGY or self_heavy.
        cross_sample_ratio: the pool's part of a batch; by default SHOAL_CROSS_SAMPLE_RATIO or 0.2.
        n_steps: steps of reward before the bootstrap.
        gamma: their discount.
        """
        super(ReplayBuffer, self).__init__(buffer_size, observation_space, action_space, device, n_envs=n_envs)
        if optimize_memory_usage and (handle_timeout_termination or n_steps > 1 or isinstance(self.obs_shape, dict)):
            raise ValueError(
                "optimize_memory_usage does not go with handle_timeout_termination, n_steps or dict observations."
            )
        if n_steps < 1 or not 0.0 <= gamma <= 1.0:
            raise ConfigError(f"n_steps must be at least 1 and gamma within [0, 1]; got {n_steps} and {gamma}.")
        self._strategy: Any = sample_strategy or os.environ.get(STRATEGY, "self_heavy")
        self._ratio = ratio_of(RATIO) if cross_sample_ratio is None else cross_sample_ratio
        check_strategy(self._strategy, self._ratio)
        self._member = Membership.resolve(registry, buffer_id)
        self.buffer_size = max(self._member.bounded(buffer_size) // n_envs, 2)
        self.optimize_memory_usage = optimize_memory_usage
        self.handle_timeout_termination = handle_timeout_termination
        self.n_steps, self.gamma = n_steps, gamma
        self._packing = None
        if isinstance(observation_space, spaces.Dict):
            self._packing = Packing(observation_space, self.obs_shape)  # type: ignore[arg-type]
        self._action_dtype = np.dtype(self._maybe_cast_dtype(action_space.dtype))
        self._local_samples = self._pool_samples = 0
        self._counted: dict[str, Drawn] = {}  # what was read from each buffer of the group
        self._warned: set[str] = set()
        self._storage: MemberShard | None = None
        self._saved: dict[str, Array] | None = None  # rows of a loaded buffer, until its shard is made

    # -- writing

    def add(
        self, obs: Any, next_obs: Any, action: Array, reward: Array, done: Array, infos: list[dict[str, Any]]
    ) -> None:
        """As `ReplayBuffer.add`. The first row makes the shard and announces it."""
        if self._storage is None:
            self._open()
        elif self._storage.lost:
            self._reopen()
        require_finite(self._member.run_id, self.pos, obs, next_obs, action, reward)
        if self._packing:
            obs, next_obs = self._packing.pack(obs, self._packed), self._packing.pack(next_obs, self._packed_next)
        elif self._reshapes:
            obs, next_obs = obs.reshape(self._obs_rows), next_obs.reshape(self._obs_rows)
        columns, position = self._writer.columns, self._writer.claim_row()
        columns["obs"][position] = obs
        columns["action"][position] = action.reshape(self._action_rows)
        columns["reward"][position] = reward
        columns["terminated"][position] = done
        if self.handle_timeout_termination and np.count_nonzero(done):
            timeouts = np.array([bool(info.get("TimeLimit.truncated", False)) for info in infos])
            ended = np.asarray(done, bool)
            columns["terminated"][position], columns["truncated"][position] = ended & ~timeouts, ended & timeouts
        elif self.full:  # until then the column is all zeros
            columns["truncated"][position] = False
        if not self.optimize_memory_usage:
            columns["next_obs"][position] = next_obs
            self._writer.publish_row()
        else:
            self._writer.publish_row()
            self._writer.preview(obs=next_obs)
        self.pos += 1
        if self.pos == self.buffer_size:
            self.full, self.pos = True, 0

    def _open(self) -> None:
        """Makes the shard. Not done when the model is made: a model that is only loaded takes no memory."""
        obs: Any = (self.observation_space.dtype, self.obs_shape)
        if self._packing is not None:
            obs = (np.uint8, (self._packing.nbytes,))
        # One number is stored as one number, as Shoal's own runs do it.
        action = (self._action_dtype, () if isinstance(self.action_space, spaces.Discrete) else (self.action_dim,))
        schema = transition_schema(obs, action, with_next=not self.optimize_memory_usage)
        spaces_of = (self._member.env_id, self.observation_space, self.action_space)
        description = describe_sb3(*spaces_of, time_outs=self.handle_timeout_termination)
        self._storage = shard = MemberShard(self._member, schema, self.buffer_size, self.n_envs, description)
        self._member, self._writer, self._schema = shard.member, shard.writer, schema
        # Seeded without drawing from SB3's generator, whose draws must be the same as without sharing.
        seed = int(np.random.get_state()[1][0])  # type: ignore[index]
        self._pool: Pool | None = None
        if self._member.registry is not None:
            arguments = ([shard.reader], self._member.buffer_id, self._member.registry, description)
            options: dict[str, Any] = {"n_steps": self.n_steps, "seed": seed, "counted": self._counted}
            options["soundness"] = Soundness.of(*spaces_of[1:], None if self._packing is None else self._packing.unpack)
            self._pool = Pool(*arguments, self._strategy, self._ratio, **options)
        self._table = ShardTable([shard.reader]) if self._pool is None else self._pool.table
        self._obs_rows = (self.n_envs, *schema["obs"].shape)
        self._action_rows = (self.n_envs, *schema["action"].shape)
        self._reshapes = isinstance(self.observation_space, spaces.Discrete)
        if self._packing is not None:
            self._packed = np.zeros((self.n_envs, self._packing.nbytes), np.uint8)
            self._packed_next = np.zeros_like(self._packed)
        if self._saved is not None:
            self._restore(self._saved)

    def _reopen(self) -> None:
        """Makes a new shard after others took this run for dead and removed its rows; they are still mapped here."""
        assert self._storage is not None
        lost, self._saved, said = self._storage, self._rows(), "its rows are shared again"
        try:
            self._open()
        except NoSpace as error:
            self._saved, said = None, f"its rows stay its own ({error})"
            lost.keep_private()
        warnings.warn(f"Another run took {self._member.run_id} for dead and removed its rows: {said}.", stacklevel=3)

    def _rows(self) -> dict[str, Array]:
        """A copy of all rows, in the order of the ring."""
        # One more than there are: with optimize_memory_usage it holds the newest observation.
        return {name: column[: self.size() + 1].copy() for name, column in self._writer.columns.items()}

    def _restore(self, rows: dict[str, Array]) -> None:
        """Puts loaded rows back where they were in the ring, so that the same draws find them."""
        self._saved = None
        self._writer.append_chunk({name: column[: self.size()] for name, column in rows.items()})
        if self.full and self.pos:
            self._writer.append_chunk({name: column[: self.pos] for name, column in rows.items()})
        if self.optimize_memory_usage:
            self._writer.preview(obs=rows["obs"][self.pos])

    # -- reading

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """As `ReplayBuffer.sample`: the configured part comes from the pool, the rest from the run's own rows."""
        if self._storage is None:
            if self._saved is None:
                raise ConfigError("Nothing was added to this buffer yet: there is nothing to sample.")
            self._open()
        keys = Keys.empty(batch_size)
        own = batch_size
        if self._pool is not None:
            wanted = self._pool.draws(batch_size)
            if wanted and self._pool.draw(wanted, keys, batch_size - wanted):
                own -= wanted
            self._warn_refused(self._pool.refused)
        self._draw_own(own, keys)
        self._local_samples += own
        self._pool_samples += batch_size - own
        return self._samples(keys, own, env)

    def _draw_own(self, count: int, keys: Keys) -> None:
        """Fills keys[:count] exactly as SB3's buffer would draw them."""
        if self.optimize_memory_usage and self.full:
            places = (np.random.randint(1, self.buffer_size, size=count) + self.pos) % self.buffer_size
        else:
            places = np.random.randint(0, self.buffer_size if self.full else self.pos, size=count)
        if self.n_steps > 1:  # row numbers are asked for, not only places in the ring
            newest = self._writer.head - 1
            places = newest - (newest - places) % self.buffer_size
        keys.shard[:count], keys.logical[:count] = 0, places
        keys.lane[:count] = np.random.randint(0, high=self.n_envs, size=count)

    def _samples(self, keys: Keys, own: int, env: Any) -> ReplayBufferSamples:
        schema, table, count = self._schema, self._table, len(keys.logical)
        obs = np.empty((count, *schema["obs"].shape), schema["obs"].dtype)
        next_obs, actions = np.empty_like(obs), np.empty((count, self.action_dim), self._action_dtype)
        rewards, discounts = np.empty(count, np.float32), np.empty(count, np.float32)
        gamma, heads = 1.0, table.endless
        if self.n_steps > 1:
            gamma, heads = self.gamma, table.endless.copy()
            heads[0] = self._writer.head
        arguments: list[Any] = [table.rows, heads, *(table[name] for name in _COLUMNS), self.n_steps, gamma, 1]
        arguments += [schema["action"].nbytes, schema["obs"].nbytes, rewards, discounts]
        arguments += [actions.ctypes.data, obs.ctypes.data, next_obs.ctypes.data]
        batch, pool, everywhere = Transition(obs, actions, rewards, discounts, next_obs), self._pool, np.arange(count)

        def copy(places: Array) -> Array:
            n_step_rows(*(keys if places is everywhere else keys.at(places)), places, *arguments)
            if pool is None:
                return places[:0]
            foreign = places[places >= own]
            return pool.unusable(keys, table.torn(keys.at(foreign), foreign), foreign, batch)

        for attempt, foreign in enumerate(copy_until_usable(copy, everywhere), 1):
            if attempt == MAX_REDRAWS or pool is None or not pool.redraw(keys, foreign):
                # All have left, or write faster than they can be read: one's own rows cannot tear.
                again = Keys.empty(len(foreign))
                self._draw_own(len(foreign), again)
                keys.put(foreign, again)
                n_step_rows(*again, foreign, *arguments)
                break
        dones = (discounts == 0.0).astype(np.float32)
        extra = {}
        if self.n_steps > 1:
            extra["discounts"] = self._to_device(np.where(dones > 0, np.float32(gamma), discounts)[:, None])
        rewards = self._normalize_reward(rewards[:, None], env)
        tensors = (self._tensor(obs, env), self._to_device(actions), self._tensor(next_obs, env))
        kind: Any = ReplayBufferSamples if self._packing is None else DictReplayBufferSamples
        samples: ReplayBufferSamples = kind(
            *tensors, self._to_device(dones[:, None]), self._to_device(rewards), **extra
        )
        return samples

    def _tensor(self, obs: Array, env: Any) -> Any:
        if self._packing is None:
            return self._to_device(self._normalize_obs(obs, env))
        parts = self._normalize_obs(self._packing.unpack(obs), env)
        return {key: self._to_device(np.ascontiguousarray(part)) for key, part in parts.items()}  # type: ignore[union-attr]

    def _to_device(self, array: Any) -> torch.Tensor:
        """As `to_torch`, without a copy: nothing else uses these arrays."""
        tensor = torch.from_numpy(array)
        return tensor if self.device.type == "cpu" else tensor.to(self.device)

    def _warn_refused(self, refused: dict[str, str]) -> None:
        for run, why in refused.items():
            if run not in self._warned:
                self._warned.add(run)
                warnings.warn(f"Not sharing with {run}: {why}.", stacklevel=3)

    # -- other methods of SB3's buffers

    def reset(self) -> None:
        """Removes all rows, also for the others."""
        super().reset()
        self._saved = None
        if self._storage is not None:
            self._storage.remove()
            self._storage = None

    def get_stats(self) -> dict[str, Any]:
        """What was sampled from whom: counts of samples since the start, fractions of all samples, and ages in rows."""
        samples = self._local_samples + self._pool_samples
        return {
            "local_size": self.size() * self.n_envs,
            "local_samples": self._local_samples,
            "distributed_samples": self._pool_samples,
            "distributed_ratio": self._pool_samples / max(1, samples),
            **sampling_stats(self._pool if self._storage is not None else None, samples),
        }

    def _column(self, name: str) -> Any:
        if self._storage is None:
            self._open()
        column = self._writer.columns[name]
        return self._packing.unpack(column) if self._packing and name.endswith("obs") else column

    # [T, N, ...], in place; observations are dicts of them for dict observations.
    observations: Any = property(lambda self: self._column("obs"))
    next_observations: Any = property(lambda self: self._column("next_obs"))
    rewards: Any = property(lambda self: self._column("reward"))
    timeouts: Any = property(lambda self: self._column("truncated"))

    @property
    def actions(self) -> Any:  # type: ignore[override]
        """[T, N, action_dim], in place."""
        return self._column("action").reshape(self.buffer_size, self.n_envs, self.action_dim)

    @property
    def dones(self) -> Any:  # type: ignore[override]
        """[T, N] which steps ended an episode: in place where time-outs are not told from ends, else a copy."""
        ended = self._column("terminated")
        return ended | self.timeouts if self.handle_timeout_termination else ended

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: value for name, value in self.__dict__.items() if name not in _VOLATILE}
        rows = self._saved
        if self._storage is not None:
            rows = self._rows()
        return kept | {"_saved": rows, "_storage": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._member, self._counted = self._member.rejoined(), {}


_VOLATILE = {"_storage", "_writer", "_pool", "_table", "_packed", "_packed_next", "_counted"}
"""What belongs to this process and is recreated where a buffer is loaded."""
