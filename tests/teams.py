"""Small parallel environments of several agents. PettingZoo need not be told that they are its own: they inherit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv
from torch import nn

from shoal.algorithms import Decision, PolicyContext, apex_dqn
from shoal.types import Array, EnvSpec


class Shift(ParallelEnv):  # type: ignore[type-arg]
    """Agents a, b, c work in shifts: a and b begin, c joins at the second step, a leaves after the third.

    Everybody observes (its place + 1, the step). An agent gets its choice as reward. After `length` steps those who are
    left are truncated, or terminated if the last choices were all 1. Nobody hears c, if `deaf`.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "shift_v0", "render_modes": ["rgb_array"], "render_fps": 4}

    def __init__(self, length: int = 5, deaf: bool = False, data: str = "float64", render_mode: Any = None) -> None:
        self.possible_agents = ["a", "b", "c"]
        self.agents: list[str] = []
        self.length, self.deaf, self.render_mode = length, deaf, render_mode
        self._observation = spaces.Box(0, 255, (2,), np.dtype(data).type)
        self._action = spaces.Discrete(3)
        self.seeds: list[int | None] = []
        self.levels: list[Any] = []

    def observation_space(self, agent: str) -> Any:
        return self._observation

    def action_space(self, agent: str) -> Any:
        return self._action

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.seeds.append(seed)
        self.agents, self.t = ["a", "b"], 0
        return self._seen(self.agents), self._infos(self.agents)

    def step(self, actions: dict[str, int]) -> Any:
        assert sorted(actions) == sorted(self.agents)
        self.t += 1
        present = [*self.agents, *(["c"] if self.t == 2 else [])]
        over, solved = self.t >= self.length, all(choice == 1 for choice in actions.values())
        terminated = {one: (one == "a" and self.t == 3) or (over and solved) for one in present}
        truncated = dict.fromkeys(present, over and not solved)
        infos = self._infos(present)
        if over:
            for info in infos.values():
                info |= {"is_success": solved, "episode_metrics": {"steps": self.t}}
        rewards = {one: float(actions.get(one, 0)) for one in present}
        self.agents = [one for one in present if not terminated[one] and not truncated[one]]
        return self._seen(present), rewards, terminated, truncated, infos

    def render(self) -> Any:
        return np.full((16, 16, 3), self.t, np.uint8)

    def close(self) -> None:
        pass

    def _seen(self, agents: list[str]) -> dict[str, Any]:
        return {one: np.array(["abc".index(one) + 1, self.t], self._observation.dtype) for one in agents}

    def _infos(self, agents: list[str]) -> dict[str, Any]:
        return {one: {"hears": np.array([1, 1, 0], np.uint8)} if self.deaf else {} for one in agents}


class Mixed(Shift):
    """Agent c differs: in what it observes, or in its actions."""

    def __init__(self, what: str = "observations") -> None:
        super().__init__()
        self.what = what

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(0, 1, (3,)) if agent == "c" and self.what == "observations" else self._observation

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(4) if agent == "c" and self.what == "actions" else self._action


class Reader(Shift):
    """Agents that are told something in words."""

    def observation_space(self, agent: str) -> Any:
        return spaces.Dict(seen=super().observation_space(agent), told=spaces.Text(8))


class Steering(Shift):
    """Actions are numbers."""

    def action_space(self, agent: str) -> Any:
        return spaces.Box(-1, 1, (2,))


class Nameless(Shift):
    """Does not say who may come."""

    def __init__(self) -> None:
        super().__init__()
        del self.possible_agents


class Turns(AECEnv):  # type: ignore[type-arg]
    """Agents act in turn."""


class Untidy(Shift):
    """Keeps agents in its list whose episode has ended."""

    def step(self, actions: dict[str, int]) -> Any:
        answer = super().step(actions)
        self.agents = list(answer[0]) if self.t >= self.length else self.agents
        return answer


class Stranger(Shift):
    """Somebody comes who was not announced; or an agent observes another shape."""

    def __init__(self, shape: bool = False) -> None:
        super().__init__()
        self.shape = shape

    def step(self, actions: dict[str, int]) -> Any:
        obs, *others = super().step(actions)
        if self.shape:
            return {one: value[:1] for one, value in obs.items()}, *others
        self.agents.append("z")
        return obs, *others


class RandomTeam:
    """Plays at random."""

    def __init__(self, config: Any, spec: EnvSpec, context: PolicyContext) -> None:
        self.module = nn.Linear(1, 1)
        self._spec, self._rng = spec, np.random.default_rng(context.seed)

    def initial_state(self, lanes: int) -> Any:
        return ()

    def act(self, obs: Array, state: Any, first: Array, explore: bool) -> Decision:
        return Decision(self._rng.integers(self._spec.action_nvec, size=(len(obs), self._spec.agents)), ())

    def record(self, outcome: Any) -> dict[str, Array]:
        return {}

    def reset(self) -> None:
        pass


RANDOM = replace(
    apex_dqn.ALGORITHM,
    name="random-team",
    agents=True,
    check=lambda spec: None,
    columns=lambda config, spec: (),
    make_policy=RandomTeam,
)


class Whisper(ParallelEnv):  # type: ignore[type-arg]
    """Each of two agents sees one of four signs, another one in every step, and gets 1 for naming the other's."""

    metadata: ClassVar[dict[str, Any]] = {"name": "whisper_v0", "render_modes": []}

    def __init__(self, length: int = 8, render_mode: Any = None) -> None:
        self.possible_agents = ["a", "b"]
        self.agents: list[str] = []
        self.length, self.render_mode, self._rng = length, render_mode, np.random.default_rng()

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(0, 1, (4,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(4)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents, self.t = ["a", "b"], 0
        return self._seen(), {one: {} for one in self.agents}

    def step(self, actions: dict[str, int]) -> Any:
        names = self.agents
        rewards = {one: float(actions[one] == sign) for one, sign in zip(names, self._signs[::-1], strict=True)}
        self.t += 1
        ended = dict.fromkeys(names, self.t >= self.length)
        answer = self._seen(), rewards, ended, dict.fromkeys(names, False), {one: {} for one in names}
        self.agents = [] if self.t >= self.length else names
        return answer

    def _seen(self) -> dict[str, Any]:
        self._signs = self._rng.integers(4, size=2)
        return {one: np.eye(4, dtype=np.float32)[sign] for one, sign in zip("ab", self._signs, strict=True)}
