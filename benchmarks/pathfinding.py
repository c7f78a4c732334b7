"""Path finding: the environment's speed beside a plain numpy/Python step with the same rules: `make bench-pathfinding`.

Both play the same maps with the same random actions, and what they return is compared before anything is measured.
Shoal's step also makes the communication mask and sums up episodes; the plain one does not.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from _harness import Row, compared, interleave, report, say
from _pathfinding_plain import PlainWorld

from shoal.envs.pathfinding import PathFindingVector

PACKAGES = ("shoal-rl", "numpy", "numba", "gymnasium", "pettingzoo")
SIZE, AGENTS, DENSITY, WORLDS, LIMIT = 40, 16, 0.3, 16, 256


def plain_worlds(vector: PathFindingVector) -> list[PlainWorld]:
    """The same worlds, as they are now."""
    worlds = vector.worlds
    return [PlainWorld(worlds.obstacles(world), *worlds.cells(world)) for world in range(vector.num_envs)]


def compare(steps: int) -> None:
    """Raises if a step of one is not a step of the other."""
    vector = PathFindingVector(WORLDS, agents=AGENTS, size=20, density=DENSITY, max_episode_steps=10**6)
    vector.reset(seed=1)
    plain, rng = plain_worlds(vector), np.random.default_rng(1)
    for _ in range(steps):
        actions = rng.integers(0, 5, (WORLDS, AGENTS))
        rows = vector.step(actions)[0]
        for world, one in enumerate(plain):
            seen, rewards, _ = one.step(actions[world])
            np.testing.assert_array_equal(rows[world, : seen.size].reshape(seen.shape), seen)
            np.testing.assert_allclose(vector.worlds.state.reward[world], rewards, rtol=1e-6)


def environment(quick: bool) -> list[Row]:
    """World steps per second: 16 worlds in step, and whole episodes of one world, with the search for paths."""
    compare(20 if quick else 200)
    times: dict[str, Any] = {"seconds": 0.2, "rounds": 2} if quick else {"seconds": 2.0, "rounds": 7}
    actions = np.random.default_rng(0).integers(0, 5, (LIMIT, WORLDS, AGENTS))
    turn = {"shoal": 0, "plain numpy": 0}

    def now(name: str) -> Any:
        turn[name] = (turn[name] + 1) % LIMIT
        return actions[turn[name]]

    many = PathFindingVector(WORLDS, agents=AGENTS, size=SIZE, density=DENSITY, max_episode_steps=10**9)
    many.reset(seed=0)
    plain = plain_worlds(many)

    def plain_step() -> None:
        for world, chosen in zip(plain, now("plain numpy"), strict=True):
            world.step(chosen)

    where = f"{SIZE}x{SIZE}, {AGENTS} agents, density {DENSITY}"
    steps = {"shoal": lambda: many.step(now("shoal")), "plain numpy": plain_step}
    rows = [
        compared(
            f"world steps/s, {where}, {WORLDS} worlds",
            interleave(where, steps, per_call=WORLDS, **times),
            at_least=10.0,
        )
    ]

    single = PathFindingVector(1, agents=AGENTS, size=SIZE, density=DENSITY, max_episode_steps=10**9)
    single.reset(seed=0)
    lonely = plain_worlds(single)[0]

    def episode() -> None:
        single.reset(seed=0)
        for chosen in actions[:, :1]:
            single.step(chosen)

    def plain_episode() -> None:
        lonely.reset()
        for chosen in actions[:, 0]:
            lonely.step(chosen)

    episodes = interleave(
        f"{where}, episodes", {"shoal": episode, "plain numpy": plain_episode}, per_call=LIMIT, **times
    )
    return [*rows, compared(f"world steps/s, {where}, whole episodes of one world", episodes)]


PARTS: dict[str, Callable[[bool], list[Row]]] = {"env": environment}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, action="append", help="only this part; can be repeated")
    parser.add_argument("--quick", action="store_true", help="a smoke test")
    parser.add_argument("--strict", action="store_true", help="exit code 1 when a bar does not hold")
    options = parser.parse_args()
    rows: list[Row] = []
    for name in options.only or PARTS:
        say(f"{name} ({time.strftime('%H:%M:%S')})")
        rows += PARTS[name](options.quick)
    name = "pathfinding" if not options.quick and not options.only else "pathfinding-partial"
    holds = report(name, rows, PACKAGES, {"quick": options.quick, "only": options.only})
    return 1 if options.strict and not holds else 0


if __name__ == "__main__":
    sys.exit(main())
