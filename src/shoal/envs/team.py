"""Several agents in one lane: a PettingZoo parallel environment as a Gymnasium environment.

One step of a lane is one step of all its agents. With A `possible_agents`, a lane observes a Dict:

    agents  [A, *obs_shape]  each agent's observation; zeros for one that is not there
    mask    [A, A] of 0, 1   mask[i, j]: agent i may hear agent j; mask[i, i]: agent i is there
    reward  [A] float32      what each agent got in the step that led here; 0 at an episode's start

Its action is one choice per agent; those of agents that are not there are ignored. Its reward is the mean over the
agents that acted. Agents may die and join while an episode goes on. It ends when none is left: truncated if an agent
was truncated in that last step, whose last observation then stays, because a value is bootstrapped from it.

An environment may say more in `infos[agent]`:

    hears            [A] of 0, 1: whom this agent may hear; without it, all that are there
    is_success, episode_metrics {name: number}: of a finished episode, in its last step; the mean over agents counts
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.spaces.utils import flatten, flatten_space

from shoal.envs.episode_metrics import METRICS, mean_metrics, told_by_one
from shoal.envs.parts import named, unreadable
from shoal.errors import ConfigError
from shoal.types import Array

Space = spaces.Space[Any]
Infos = Mapping[Any, Mapping[str, Any]]


class TeamEnv(gymnasium.Env[Any, Array]):
    """All agents of a PettingZoo parallel environment as one; see above."""

    def __init__(self, env: Any, env_id: str) -> None:
        """Args:
        env: a PettingZoo `ParallelEnv`.
        env_id: for messages.

        Raises:
            ConfigError: its agents differ, or no algorithm can use their spaces.
        """
        self._env = env
        names = getattr(env, "possible_agents", None)
        if not names:
            raise ConfigError(
                f"Environment {env_id!r} does not say which agents there may be: give it a list `possible_agents`."
            )
        self._names: list[Any] = list(names)
        self._places = {name: place for place, name in enumerate(self._names)}
        self._seen: Space = _alike(env_id, "observations", {name: env.observation_space(name) for name in self._names})
        action = _alike(env_id, "actions", {name: env.action_space(name) for name in self._names})
        if not isinstance(action, spaces.Discrete):
            raise ConfigError(
                f"Environment {env_id!r}: an agent's actions are {action}, and agents must choose one of several "
                "(Discrete). Many environments have an argument for that, such as env.kwargs.continuous_actions=false."
            )
        self._one = self._seen if isinstance(self._seen, spaces.Box) else _flattened(env_id, self._seen)
        agents = len(self._names)
        space = team_space(self._one, agents)
        self.observation_space, self._dtype = space, space["agents"].dtype
        self.action_space = spaces.MultiDiscrete([action.n] * agents, start=[action.start] * agents)
        self.metadata = dict(getattr(env, "metadata", {}))  # PettingZoo only declares it
        self.render_mode = getattr(env.unwrapped, "render_mode", None)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        """Begins an episode; `seed` and `options` are the environment's."""
        obs, infos = self._env.reset(seed=seed, options=options)
        if not self._env.agents:
            raise ValueError("an episode begins without any agent")
        return self._observe(obs, self._env.agents, {}, infos), {}

    def step(self, action: Array) -> tuple[dict[str, Array], float, bool, bool, dict[str, Any]]:
        """One step of all agents that are there; `action` is [A]."""
        acting = list(self._env.agents)
        choices = {name: int(action[self._places[name]]) for name in acting}
        obs, rewards, terminated, truncated, infos = self._env.step(choices)
        # Not all environments remove agents whose episode has ended from their list.
        there = [name for name in self._env.agents if not terminated.get(name) and not truncated.get(name)]
        ended, cut = not there, False
        if ended:
            there = [name for name in acting if truncated[name] and not terminated[name]]
            cut = bool(there)
        reward = float(np.mean([rewards[name] for name in acting]))
        seen = self._observe(obs, there, {name: rewards[name] for name in acting}, infos)
        return seen, reward, ended and not cut, cut, _told(infos)

    def render(self) -> Any:
        """What the environment renders."""
        return self._env.render()

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()

    def _observe(
        self, obs: Mapping[Any, Any], there: Sequence[Any], rewards: Mapping[Any, float], infos: Infos
    ) -> dict[str, Array]:
        if unknown := [name for name in there if name not in self._places]:
            raise ValueError(f"agents {unknown} are not in possible_agents")
        agents = len(self._names)
        seen: Array = np.zeros((agents, *self._one.shape), self._dtype)
        alive = np.zeros(agents, np.uint8)
        hears = np.ones((agents, agents), np.uint8)
        for name in there:
            place = self._places[name]
            value = np.asarray(obs[name] if self._seen is self._one else flatten(self._seen, obs[name]))
            if value.shape != self._one.shape:  # one that broadcasts must not pass
                raise ValueError(f"{name} observes the shape {value.shape}, its space says {self._one.shape}")
            seen[place], alive[place] = value, 1
            if (heard := infos.get(name, {}).get("hears")) is not None:
                hears[place] = np.asarray(heard, np.bool_)
        mask = hears * alive[:, None] * alive
        np.fill_diagonal(mask, alive)
        got = np.zeros(agents, np.float32)
        got[[self._places[name] for name in rewards]] = list(rewards.values())
        return {"agents": seen, "mask": mask, "reward": got}


def team_space(one: spaces.Box, agents: int) -> spaces.Dict:
    """What a lane of several agents observes, if each of them observes `one`; see above."""
    dtype: Any = np.uint8 if one.dtype in (np.uint8, np.bool_) else np.float32
    low, high = (np.stack([bound.astype(dtype)] * agents) for bound in (one.low, one.high))
    return spaces.Dict(
        {
            "agents": spaces.Box(low, high, dtype=dtype),
            "mask": spaces.Box(0, 1, (agents, agents), np.uint8),
            "reward": spaces.Box(-np.inf, np.inf, (agents,), np.float32),
        }
    )


def one_or_team(make: Callable[..., Any], env_id: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """What `make` makes, as a Gymnasium environment.

    Raises:
        ConfigError: it is an AEC environment of PettingZoo; and what `TeamEnv` raises.
    """
    env: Any = make(**kwargs)
    if not hasattr(type(env), "max_num_agents"):  # not PettingZoo's, which need not be installed
        return env  # type: ignore[no-any-return]
    if hasattr(type(env), "agent_iter"):
        raise ConfigError(
            f"Environment {env_id!r} is an AEC environment of PettingZoo, whose agents act in turn: name its "
            "`parallel_env` instead, in which all act at once, for instance mpe2.simple_spread_v3:parallel_env."
        )
    return TeamEnv(env, env_id)


def _alike(env_id: str, what: str, found: Mapping[Any, Space]) -> Space:
    """The space of all agents; refuses agents that differ."""
    (first, space), *others = found.items()
    different = next((f"{name} has {other}" for name, other in others if other != space), None)
    if different is not None:
        raise ConfigError(
            f"Environment {env_id!r}: its agents have different {what}: {first} has {space}, {different}. One network "
            "plays all agents, so they must be alike: pad the smaller ones (SuperSuit's pad_observations_v0 and "
            "pad_action_space_v0 do that), or choose another environment."
        )
    return space


def _flattened(env_id: str, space: Space) -> spaces.Box:
    if found := unreadable(space):
        why = f"because of {named(*found[0])}: leave that out in a parallel_env of your own around it"
        raise ConfigError(f"Environment {env_id!r}: an agent's observations cannot become an array, {why}.")
    flat = flatten_space(space)
    assert isinstance(flat, spaces.Box)
    return flat


def _told(infos: Infos) -> dict[str, Any]:
    """What agents say of the episode, averaged over those that say it."""
    means = mean_metrics(told_by_one(info, {}) for info in infos.values())
    return {METRICS: means} if means else {}
