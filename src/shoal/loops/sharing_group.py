"""SharingGroup: a run's membership in a group that shares replay. Announces its shards and draws from the others'."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np

from shoal.envs import EnvSettings, describe_spaces, reward_bound
from shoal.loops.settings import RunSettings
from shoal.replay import Ledger, LedgerWord, ShardReader, View
from shoal.replay.shard_table import ShardTable
from shoal.sharing import Description, SharedBuffer, connect_registry
from shoal.sharing.description import describe_space, environment_id
from shoal.sharing.pool import Pool
from shoal.sharing.soundness import Soundness
from shoal.sharing.stats import sampling_metrics, sampling_stats
from shoal.types import EnvSpec


class SharingGroup:
    """The membership of one run. Its learner keeps it, because the learner reads."""

    def __init__(self, settings: RunSettings, spec: EnvSpec, shards: Sequence[Path], run: str, ledger: Ledger) -> None:
        """Joins: from now on the others can read the shards.

        Args:
            settings: the run's; `share.registry` is set.
            spec: its environment.
            shards: where its rows are.
            run: its folder's name.
            ledger: its counts.
        """
        assert settings.share.registry is not None
        self._settings = settings.share
        self._registry = connect_registry(settings.share.registry)
        self._run_id = settings.share.run_id or run
        self._buffer_id = f"{self._run_id}_learner"  # the same after a restart
        self._description = _described(settings, spec)
        limits = None if spec.continuous else (0, np.array(spec.action_nvec or spec.num_actions) - 1)
        packed = {part.name: None for part in spec.obs_parts if part.width > 1}
        self._soundness = Soundness(limits, packed, spec.floats if packed else None)
        known = self._registry.entry(self._buffer_id)
        if known is not None and known.shards != tuple(shards) and self._registry.is_held(self._buffer_id):
            self._buffer_id = self._registry.register_buffer(self._run_id, settings.algo)  # another run has this name
        who = (self._buffer_id, self._run_id, settings.algo, os.getpid())
        entry = SharedBuffer(*who, self._description, tuple(shards), env_id=self._description.env_id)
        self._presence = self._registry.announce(entry)
        self._pool: Pool | None = None
        self._ledger, self._samples_before = ledger, ledger[LedgerWord.SAMPLES]

    def guests(self, readers: Sequence[ShardReader], view: View, seed: int, table: ShardTable) -> Pool:
        """Draws from the others, for `Replay`."""
        span = view.span
        make = partial(Pool, readers, self._buffer_id, self._registry, self._description)
        self._pool = make(
            self._settings.strategy,
            self._settings.ratio,
            n_steps=span.after,
            before=span.before,
            seed=seed,
            table=table,
            soundness=self._soundness,
        )
        return self._pool

    def metrics(self) -> dict[str, float]:
        """What was read from whom, in fractions of all samples so far."""
        samples = self._ledger[LedgerWord.SAMPLES] - self._samples_before
        return sampling_metrics(sampling_stats(self._pool, samples)) if self._pool is not None and samples else {}

    def notes(self) -> tuple[str, ...]:
        """Peers that are refused, and why; and whether others took this run for dead."""
        refused = {} if self._pool is None else self._pool.refused
        notes = [f"not sharing with {run}: {why}" for run, why in refused.items()]
        if times := self._presence.returns:
            again = "announced again" if times == 1 else f"announced again, {times} times so far"
            notes.append(f"another run took this one for dead and removed its entry in the registry: {again}")
        return tuple(notes)

    def leave(self) -> None:
        """Removes the entry; the shards belong to the run and stay."""
        self._registry.deregister_buffer(self._buffer_id)


def _described(settings: RunSettings, spec: EnvSpec) -> Description:
    observation, action = describe_spaces(settings.env)
    if isinstance(observation, gymnasium.spaces.Box) and observation.dtype != np.dtype(spec.obs_dtype):
        dtype = np.dtype(spec.obs_dtype)  # what is stored
        observation = gymnasium.spaces.Box(
            observation.low.astype(dtype), observation.high.astype(dtype), dtype=dtype.type
        )
    bound = reward_bound(settings.env)
    reward = "raw" if bound is None else f"clipped to {bound:g}"
    env_id = sharing_id(settings.env)
    return Description(env_id, describe_space(observation), describe_space(action), "env", reward)


def sharing_id(env: EnvSettings) -> str:
    """The environment with all settings that change the meaning of a step."""
    unusual = dict(env.kwargs)
    for name in _MEANINGFUL:
        if getattr(env, name) != EnvSettings.model_fields[name].default:
            unusual[name] = getattr(env, name)
    return environment_id(env.id, unusual)


_MEANINGFUL = ("wrappers", "max_episode_steps", "frame_skip", "sticky_actions", "episodic_life")
