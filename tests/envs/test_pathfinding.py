"""Path finding against a slow reference of its rules, by hand-made worlds, and by PettingZoo's own tests."""

from __future__ import annotations

import subprocess
import sys
from collections import deque
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.envs import EnvSettings, describe_env, make_env, make_render_env
from shoal.envs.parts import PackedBox
from shoal.envs.pathfinding import PathFinding, PathFindingVector, PathWorlds, fixed_cases
from shoal.envs.pathfinding_maps import MODE
from shoal.envs.pathfinding_rules import FAR, FREE, OBSTACLE, OUTSIDE, find_paths
from shoal.errors import ConfigError, EnvError, UnknownName

Cell = tuple[int, int]
MOVES = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))
STAY, UP, DOWN, LEFT, RIGHT = range(5)


class Reference:
    """The rules in plain Python: no border, no flat cells, no order of work that the kernels share."""

    def __init__(self, obstacles: Any, starts: Any, goals: Any, radius: int, hearing: int, neighbours: int) -> None:
        self.blocked = {(int(r), int(c)) for r, c in zip(*np.nonzero(obstacles), strict=True)}
        self.size = len(obstacles)
        self.at: list[Cell] = [(int(r), int(c)) for r, c in starts]
        self.goals: list[Cell] = [(int(r), int(c)) for r, c in goals]
        self.radius, self.hearing, self.neighbours = radius, hearing, neighbours
        self.distances = [self.distances_to(goal) for goal in self.goals]

    def free(self, cell: Cell) -> bool:
        return 0 <= cell[0] < self.size and 0 <= cell[1] < self.size and cell not in self.blocked

    def distances_to(self, goal: Cell) -> dict[Cell, int]:
        found, waiting = {goal: 0}, deque([goal])
        while waiting:
            cell = waiting.popleft()
            for move in MOVES[1:]:
                beside = (cell[0] + move[0], cell[1] + move[1])
                if self.free(beside) and beside not in found:
                    found[beside] = found[cell] + 1
                    waiting.append(beside)
        return found

    def step(self, actions: list[int]) -> tuple[list[float], set[int], bool]:
        """Rewards, who collided, whether all are on their goals."""
        agents = range(len(self.at))
        to = [(at[0] + MOVES[a][0], at[1] + MOVES[a][1]) for at, a in zip(self.at, actions, strict=True)]
        movers = {i for i in agents if actions[i]}
        collided: set[int] = set()

        def send_back(*which: int) -> None:
            for i in which:
                to[i] = self.at[i]
                movers.discard(i)
                collided.add(i)

        send_back(*(i for i in set(movers) if not self.free(to[i])))
        while pair := next(
            ((i, j) for i in movers for j in movers if i < j and to[i] == self.at[j] and to[j] == self.at[i]), None
        ):
            send_back(*pair)
        while True:
            claims = {cell: [i for i in agents if to[i] == cell] for cell in to}
            crowded = next((claimants for claimants in claims.values() if len(claimants) > 1), None)
            if crowded is None:
                break
            losers = [i for i in crowded if i in movers]
            send_back(*(losers[1:] if len(losers) == len(crowded) else losers))
        rewards = [0.0 if not actions[i] and self.at[i] == self.goals[i] else -0.075 for i in agents]
        rewards = [-0.5 if i in collided else reward for i, reward in enumerate(rewards)]
        self.at = to
        assert len(set(to)) == len(to)
        done = self.at == self.goals
        return [3.0] * len(to) if done else rewards, collided, done

    def window(self, agent: int) -> Any:
        side = 2 * self.radius + 1
        seen = np.zeros((6, side, side), np.uint8)
        here = self.at[agent]
        distance = self.distances[agent]
        for row in range(side):
            for column in range(side):
                cell = (here[0] + row - self.radius, here[1] + column - self.radius)
                seen[0, row, column] = cell in self.at and cell != here
                seen[1, row, column] = cell in self.blocked
                for action, move in enumerate(MOVES[1:]):
                    beside = (cell[0] + move[0], cell[1] + move[1])
                    shorter = cell in distance and beside in distance and distance[beside] < distance[cell]
                    seen[2 + action, row, column] = shorter
        return seen

    def mask(self) -> Any:
        agents = range(len(self.at))
        heard = np.eye(len(self.at), dtype=np.uint8)
        for i in agents:
            apart = {j: (self.at[j][0] - self.at[i][0], self.at[j][1] - self.at[i][1]) for j in agents if j != i}
            nearest = sorted(apart, key=lambda j: (float(np.hypot(*apart[j])), j))[: self.neighbours]
            for j in nearest:
                heard[i, j] = max(map(abs, apart[j])) <= self.hearing
        return heard


def reference_of(worlds: PathWorlds, world: int) -> Reference:
    rules = worlds.rules
    return Reference(worlds.obstacles(world), *worlds.cells(world), rules.radius, rules.hearing, rules.neighbours)


def parts_of(vector: PathFindingVector, row: Any) -> dict[str, Any]:
    """A packed row, unpacked by what its space says."""
    space = vector.single_observation_space
    assert isinstance(space, PackedBox)
    found = {}
    for part in space.parts:
        stored = row[part.start : part.start + part.stored]
        found[part.name] = (stored.view(np.float32) if part.width == 4 else stored).reshape(part.shape)
    return found


def assert_same(reference: Reference, seen: dict[str, Any]) -> None:
    agents, padded = len(reference.at), len(seen["mask"])
    windows = [reference.window(agent) for agent in range(agents)]
    np.testing.assert_array_equal(seen["agents"][:agents], windows)
    assert not seen["agents"][agents:].any()
    np.testing.assert_array_equal(seen["mask"], np.pad(reference.mask(), (0, padded - agents)))


def likely(rng: np.random.Generator, windows: Any, radius: int) -> Any:
    """Actions [A] that mostly follow the hints, so that agents meet and arrive."""
    hints = windows[:, 2:, radius, radius]
    good = np.where(hints.any(axis=1), 1 + hints.argmax(axis=1), 0)
    return np.where(rng.random(len(good)) < 0.7, good, rng.integers(0, 5, len(good)))


@pytest.mark.parametrize(
    ("size", "agents", "more"),
    [
        (2, 1, {"density": 0.0}),
        (3, 4, {"density": 0.0, "max_agents": 6, "neighbours": 5}),
        (5, 5, {"density": 0.1, "neighbours": 0}),
        (6, 8, {"density": 0.05, "observation_radius": 2, "communication_radius": 1}),
        (10, 4, {}),
        (10, 16, {"density": 0.3, "observation_radius": 1}),
        (20, 8, {"max_agents": 9, "communication_radius": 7, "neighbours": 3}),
        (40, 16, {"density": 0.3}),
    ],
)
def test_every_step_is_that_of_the_reference(size: int, agents: int, more: dict[str, Any]) -> None:
    worlds, steps = 24, 40
    vector = PathFindingVector(worlds, agents=agents, size=size, max_episode_steps=30, **more)
    rows, _ = vector.reset(seed=size)
    rng = np.random.default_rng(size)
    references = [reference_of(vector.worlds, world) for world in range(worlds)]
    tally = np.zeros((worlds, 3), int)  # steps, collisions, messages
    ended = np.zeros(worlds, bool)
    finished = {True: 0, False: 0}
    for _ in range(steps):
        seen = [parts_of(vector, row) for row in rows]
        for reference, one in zip(references, seen, strict=True):
            assert_same(reference, one)
        actions = np.stack([likely(rng, one["agents"], vector.worlds.rules.radius) for one in seen])
        rows, reward, terminated, truncated, info = vector.step(actions)
        for world, reference in enumerate(references):
            each = parts_of(vector, rows[world])["reward"]
            if ended[world]:
                references[world] = reference_of(vector.worlds, world)
                tally[world] = ended[world] = 0
                assert not each.any() and reward[world] == 0 and not terminated[world] and not truncated[world]
                continue
            tally[world, 2] += reference.mask().sum() - agents
            rewards, collided, done = reference.step(actions[world, :agents].tolist())
            tally[world] += (1, len(collided), 0)
            np.testing.assert_array_equal(each, np.pad(np.float32(rewards), (0, len(each) - agents)))
            assert reward[world] == pytest.approx(np.mean(rewards), abs=1e-6)
            assert terminated[world] == done
            assert truncated[world] == (not done and tally[world, 0] == 30)
            if done or truncated[world]:
                ended[world] = True
                finished[done] += 1
                metrics = {name: found[world] for name, found in info["episode_metrics"].items() if name[0] != "_"}
                shortest = metrics.pop("shortest")
                assert shortest <= tally[world, 0] or not done
                assert metrics == pytest.approx(
                    {
                        "is_success": float(done),
                        "collisions": tally[world, 1] / (agents * tally[world, 0]),
                        "messages": tally[world, 2] / (agents * tally[world, 0]),
                        "level.agents": agents,
                        "level.size": size,
                    }
                )
                assert info["_episode_metrics"][world]
        assert ("episode_metrics" in info) == bool((terminated | truncated).any())
    assert sum(finished.values()) >= worlds  # episodes ended, and others began


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 12), st.floats(0, 0.5), st.integers(0, 2**31))
def test_distances_and_hints_are_those_of_the_reference(size: int, density: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    ground = np.full((size + 2, size + 2), OUTSIDE, np.uint8)
    ground[1:-1, 1:-1] = np.where(rng.random((size, size)) < density, OBSTACLE, FREE)
    ground[1, 1] = FREE
    queue, distance, hints = np.empty(ground.size, np.int64), np.empty(ground.size, np.int64), ground.ravel().copy()
    find_paths(ground.ravel(), size + 3, queue, distance, hints)
    reference = Reference(ground[1:-1, 1:-1] == OBSTACLE, [(0, 0)], [(0, 0)], size, 1, 1)
    found = distance.reshape(ground.shape)[1:-1, 1:-1]
    wanted = [[reference.distances[0].get((r, c), FAR) for c in range(size)] for r in range(size)]
    np.testing.assert_array_equal(found, wanted)
    planes = np.unpackbits(hints.reshape(ground.shape)[1:-1, 1:-1, None], axis=2, bitorder="little")[..., :4]
    np.testing.assert_array_equal(planes.transpose(2, 0, 1), reference.window(0)[2:, size:-1, size:-1])


# Worlds made by hand.


def play(text: str, actions: list[int], goals: list[Cell] | None = None) -> tuple[str, list[float]]:
    """One step on a drawn map: agents are 0, 1, ... Returns the map after it, and the rewards."""
    rows = text.split()
    where = {char: (r, c) for r, row in enumerate(rows) for c, char in enumerate(row)}
    starts = [where[char] for char in sorted(where) if char.isdigit()]
    free = [(r, c) for r, row in enumerate(rows) for c, char in enumerate(row) if char == "."]
    env = PathFinding(agents=1, size=len(rows), density=0.0, max_agents=len(starts))
    obstacles = [[char == "#" for char in row] for row in rows]
    env.reset(options={"map": {"obstacles": obstacles, "starts": starts, "goals": goals or free[: len(starts)]}})
    observation, *_ = env.step(np.array(actions))
    after = [["." if char.isdigit() else char for char in row] for row in rows]
    for agent, (row, column) in enumerate(env.worlds.cells(0)[0]):
        after[row][column] = str(agent)
    return " ".join("".join(row) for row in after), [round(float(one), 3) for one in observation["reward"]]


M, C = -0.075, -0.5


@pytest.mark.parametrize(
    ("before", "actions", "after", "rewards"),
    [
        ("01. ... ...", [RIGHT, LEFT], "01. ... ...", [C, C]),  # a swap
        ("01. ... ...", [RIGHT, RIGHT], ".01 ... ...", [M, M]),  # one follows the other
        ("012 ... ...", [RIGHT, RIGHT, RIGHT], "012 ... ...", [C, C, C]),  # the first hits the wall, so all stay
        ("01# ... ...", [RIGHT, RIGHT], "01# ... ...", [C, C]),  # an obstacle
        ("... 01. 32.", [RIGHT, DOWN, LEFT, UP], "... 30. 21.", [M, M, M, M]),  # a ring turns
        (".0. 1.2 .3.", [DOWN, RIGHT, LEFT, UP], "... 102 .3.", [M, C, C, C]),  # four want one cell
        (".2. 1.0 ...", [LEFT, RIGHT, DOWN], ".2. 10. ...", [M, C, C]),  # three do; the lowest number gets it
        (".0. 12. ...", [DOWN, RIGHT, STAY], ".0. 12. ...", [C, C, M]),  # who stays owns its cell
        (".0. 12# ...", [DOWN, RIGHT, RIGHT], ".0. 12# ...", [C, C, C]),  # so does who was sent back
        ("10. .2. ...", [LEFT, RIGHT, UP], "10. .2. ...", [C, C, C]),  # a swap fails, then one runs into it
        ("201 ... ...", [RIGHT, LEFT, RIGHT], "201 ... ...", [C, C, C]),
        ("0.1 2.. ...", [RIGHT, LEFT, UP], "201 ... ...", [M, C, M]),  # two want one cell, a third follows
        ("1.0 2.. ...", [LEFT, RIGHT, UP], "10. 2.. ...", [M, C, C]),  # a chain behind one that was sent back
    ],
)
def test_collisions_by_hand(before: str, actions: list[int], after: str, rewards: list[float]) -> None:
    goals = [(2, 0), (2, 1), (2, 2), (1, 1)][: len(actions)] if before != "... 01. 32." else None
    assert play(before, actions, goals) == (after, rewards)


def test_rewards_on_goals() -> None:
    goals = [(0, 0), (2, 2)]
    assert play("0.1 ... ...", [STAY, DOWN], goals) == ("0.. ..1 ...", [0.0, M])
    assert play("0.. ... .1.", [STAY, STAY], goals)[1] == [0.0, M]
    assert play("0.. ... .1.", [UP, STAY], goals)[1] == [C, M]  # a collision counts on a goal too
    assert play("0.. ... .1.", [STAY, RIGHT], goals) == ("0.. ... ..1", [3.0, 3.0])


def test_success_terminates_and_the_limit_truncates() -> None:
    env = PathFinding(agents=1, size=3, density=0.0, max_episode_steps=2)
    own = {"obstacles": np.zeros((3, 3)), "starts": [(0, 0)], "goals": [(0, 2)]}
    env.reset(options={"map": own})
    assert env.step(np.array([RIGHT]))[1:4] == (pytest.approx(M), False, False)
    _, reward, terminated, truncated, info = env.step(np.array([RIGHT]))  # in the very last step
    assert (reward, terminated, truncated) == (3.0, True, False)
    assert info["episode_metrics"]["is_success"] == 1 and info["episode_metrics"]["shortest"] == 2
    with pytest.raises(EnvError, match="call reset"):
        env.step(np.array([STAY]))
    env.reset(options={"map": own})
    env.step(np.array([UP]))
    _, _, terminated, truncated, info = env.step(np.array([STAY]))
    assert (terminated, truncated) == (False, True)
    assert info["episode_metrics"]["is_success"] == 0 and info["episode_metrics"]["collisions"] == 0.5


def test_the_nearest_are_heard_even_if_they_are_too_far() -> None:
    """Nearest of all, then within the square: a neighbour straight ahead can hide one in the corner."""
    env = PathFinding(agents=4, size=12, density=0.0, neighbours=1)
    goals = [(11, 0), (11, 1), (11, 2), (11, 3)]
    starts = [(0, 0), (0, 5), (4, 4), (8, 4)]
    obs, _ = env.reset(options={"map": {"obstacles": np.zeros((12, 12)), "starts": starts, "goals": goals}})
    np.testing.assert_array_equal(obs["mask"], [[1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1], [0, 0, 1, 1]])


# Maps, seeds, levels, cases.


def test_maps_are_drawn_as_the_rules_say() -> None:
    worlds = PathWorlds(3000, agents=3, size=16)
    worlds.seed(1)
    worlds.reset()
    share = []
    for world in range(3000):
        obstacles, (starts, goals) = worlds.obstacles(world), worlds.cells(world)
        share.append(obstacles.mean())
        ends = np.concatenate([starts, goals])
        assert len(np.unique(ends, axis=0)) == 6 and not obstacles[ends[:, 0], ends[:, 1]].any()
        if world < 200:
            reference = Reference(obstacles, starts, goals, 4, 4, 2)
            ways = [found[at] for found, at in zip(reference.distances, reference.at, strict=True)]
            assert worlds.state.shortest[world] == max(ways)
    assert np.mean(share) == pytest.approx((MODE + 0.5) / 3, abs=0.01)
    assert np.std(share) == pytest.approx(np.sqrt((0.25 + MODE**2 - 0.5 * MODE) / 18 + 0.2 / 256), abs=0.01)


def test_components_are_chosen_by_their_size() -> None:
    """Of maps that fall apart, an agent is in a component as often as its share of the usable cells says."""
    worlds = PathWorlds(2000, agents=1, size=5, density=0.5)
    worlds.seed(0)
    worlds.reset()
    over = []
    for world in range(2000):
        obstacles, (starts, _) = worlds.obstacles(world), worlds.cells(world)
        reference = Reference(obstacles, starts, starts, 1, 1, 1)
        free = [(int(row), int(column)) for row, column in np.argwhere(obstacles == 0)]
        usable = [cell for cell in free if len(reference.distances_to(cell)) >= 2]
        largest = max((reference.distances_to(cell) for cell in usable), key=len)
        over.append((reference.at[0] in largest) - len(largest) / len(usable))
    assert np.mean(over) == pytest.approx(0.0, abs=0.03) and np.std(over) > 0.2


def test_a_world_follows_from_its_seed() -> None:
    vector, single = PathFindingVector(3, agents=3, size=8), PathFinding(agents=3, size=8)
    rows, _ = vector.reset(seed=5)
    obs, _ = single.reset(seed=7)
    rng = np.random.default_rng(0)
    over = False
    for _ in range(600):  # over the limit: what follows the first episode is the same too
        np.testing.assert_array_equal(parts_of(vector, rows[2])["agents"], obs["agents"])
        actions = rng.integers(0, 5, (3, 3))
        rows, reward, terminated, truncated, _ = vector.step(actions)
        if over:
            obs, over = single.reset()[0], False
            continue
        obs, alone, *ended, _ = single.step(actions[2])
        assert (alone, ended) == (reward[2], [terminated[2], truncated[2]])
        over = any(ended)
    assert (vector.reset(seed=5)[0] == vector.reset(seed=np.array([5, 6, 7]))[0]).all()
    assert (vector.reset(seed=5)[0] != vector.reset(seed=6)[0]).any()
    assert (vector.reset()[0] != vector.reset()[0]).any()
    assert (PathFindingVector(1).reset()[0] != PathFindingVector(1).reset()[0]).any()


def test_levels_are_drawn_at_each_reset_and_reported() -> None:
    vector = PathFindingVector(6, agents=1, size=6, max_agents=4, max_episode_steps=5, density=0.1)
    vector.reset(seed=0)
    vector.step(np.zeros((6, 4), int))
    before = [reference_of(vector.worlds, world) for world in range(6)]
    vector.set_levels([{"agents": 2, "size": 12}, {"agents": 4}])
    rows = vector.step(np.full((6, 4), RIGHT))[0]  # the grids grew, the episodes go on
    for reference, row in zip(before, rows, strict=True):
        reference.step([RIGHT])
        assert_same(reference, parts_of(vector, row))
    seen = set()
    for _ in range(60):
        info = vector.step(np.zeros((6, 4), int))[-1]
        if "episode_metrics" in info:
            found = info["episode_metrics"]
            seen |= set(zip(found["level.agents"].tolist(), found["level.size"].tolist(), strict=True))
    assert seen == {(1, 6), (2, 12), (4, 6)}
    vector.reset(options={"level": {"size": 20}})
    assert vector.worlds.state.size.tolist() == [20] * 6 and vector.worlds.state.agents.tolist() == [1] * 6


def test_fixed_cases_stay_the_same() -> None:
    cases = fixed_cases(10, 4, 0.3, count=200)
    assert cases.obstacles.shape == (200, 10, 10) and cases.starts.shape == cases.goals.shape == (200, 4, 2)
    assert len(np.unique(cases.obstacles.reshape(200, -1), axis=0)) == 200
    # Changes only if the generator does; results before and after cannot be compared then.
    weights = np.arange(1, 101)
    assert int(cases.obstacles.reshape(200, 100).astype(int) @ weights @ np.arange(200)) == FIXED[0]
    assert (cases.starts[7].tolist(), cases.goals[7].tolist()) == FIXED[1:]
    other = fixed_cases(10, 4, 0.3, count=200, seed=1)
    assert not (other.obstacles == cases.obstacles).all(axis=(1, 2)).any()
    assert (fixed_cases(10, 4, 0.3, count=3).obstacles == cases.obstacles[:3]).all()


FIXED = (29909484, [[5, 1], [0, 9], [6, 4], [5, 3]], [[3, 2], [1, 4], [6, 2], [8, 2]])


def test_lanes_share_the_fixed_cases() -> None:
    """An evaluation gives lane w of W the episodes w, w + W, ...: together every case once."""
    cases = fixed_cases(8, 2, 0.2, count=10)
    vector = PathFindingVector(4, agents=2, size=8, density=0.2, cases=10, max_episode_steps=1, max_agents=3)
    for _ in range(2):  # a second evaluation starts over
        vector.reset()
        for turn in range(3):
            for world in range(4):
                number = (world + 4 * turn) % 10
                np.testing.assert_array_equal(vector.worlds.obstacles(world), cases.obstacles[number])
                np.testing.assert_array_equal(vector.worlds.cells(world)[0], cases.starts[number])
                np.testing.assert_array_equal(vector.worlds.cells(world)[1], cases.goals[number])
            vector.step(np.zeros((4, 3), int))
            vector.step(np.zeros((4, 3), int))
    single = PathFinding(agents=2, size=8, density=0.2, cases=10)
    single.reset(seed=99)
    for number in (0, 1, 2):
        np.testing.assert_array_equal(single.worlds.obstacles(0), cases.obstacles[number])
        single.reset()


# As Shoal sees it.


def test_shoal_finds_it_and_steps_its_vector_version() -> None:
    settings = EnvSettings(id="shoal/PathFinding-v0", kwargs={"agents": 3, "size": 8, "max_agents": 4})
    spec = describe_env(settings)
    env = make_env(settings, lanes=5, seed=0)
    assert spec.action_nvec == env.spec.action_nvec == (5, 5, 5, 5)
    assert spec.obs_parts == env.spec.obs_parts and [part.name for part in spec.obs_parts] == [
        "agents",
        "mask",
        "reward",
    ]
    assert env.reset().shape == (5, *spec.obs_shape) == (5, 4 * 6 * 81 + 16 + 16)
    finished = [one for _ in range(300) for one in env.step(np.zeros((5, 4), np.int64)).finished]
    assert [one.length for one in finished] == [256] * 5
    env.close()


def test_the_time_limit_of_the_settings_counts_in_both_forms() -> None:
    for limit in (7, 300):
        settings = EnvSettings(id="shoal/PathFinding-v0", max_episode_steps=limit)
        env = make_env(settings, lanes=2, seed=0)
        env.reset()
        lengths = [one.length for _ in range(limit + 1) for one in env.step(np.zeros((2, 4), np.int64)).finished]
        assert lengths == [limit] * 2
        shown = make_render_env(settings)
        shown.reset(seed=0)
        steps = [shown.step(np.zeros(4, np.int64))[3] for _ in range(limit)]
        assert steps == [False] * (limit - 1) + [True]


def test_gymnasium_accepts_it() -> None:
    find_it = EnvSettings(id="shoal/PathFinding-v0")
    describe_env(find_it)
    env = gymnasium.make("shoal/PathFinding-v0", render_mode="rgb_array")
    check_env(env.unwrapped, skip_render_check=False)
    vector = gymnasium.make_vec("shoal/PathFinding-v0", 2)
    assert isinstance(vector, PathFindingVector)
    assert vector.observation_space.contains(vector.reset(seed=0)[0])


# Pictures.


def test_pictures_show_every_agent_and_goal() -> None:
    env = PathFinding("rgb_array", agents=3, size=8, density=0.2)
    env.reset(seed=0)
    first = env.render()
    assert first.shape[0] == first.shape[1] and first.shape[2] == 3 and first.dtype == np.uint8
    cell = len(first) // 8
    middles = first[cell // 2 :: cell, cell // 2 :: cell]
    places, goals = env.worlds.cells(0)
    colours = [tuple(middles[tuple(place)]) for place in places]
    assert len(set(colours)) == 3
    for goal, colour in zip(goals, colours, strict=True):
        patch = first[goal[0] * cell : (goal[0] + 1) * cell, goal[1] * cell : (goal[1] + 1) * cell].reshape(-1, 3)
        assert (np.abs(patch.astype(int) - colour).sum(axis=1) < 6).any()
    for _ in range(40):
        env.step(env.action_space.sample())
    assert (env.render() != first).any()


def test_text_shows_every_agent_and_goal() -> None:
    env = PathFinding("ansi", agents=1, size=3, density=0.0, max_agents=3)
    obstacles = [[0, 0, 1], [0, 0, 0], [0, 0, 0]]
    env.reset(
        options={"map": {"obstacles": obstacles, "starts": [(0, 0), (1, 1), (2, 2)], "goals": [(1, 1), (2, 0), (2, 2)]}}
    )
    assert env.render() == "A . #\n. B .\nb . *"
    assert PathFinding(agents=1).render() is None


# PettingZoo.


def parallel(render_mode: str | None = None, **arguments: Any) -> Any:
    return pytest.importorskip("shoal.envs.pathfinding_parallel").parallel_env(render_mode, **arguments)


@pytest.mark.parametrize("agents", [1, 4])
def test_pettingzoo_accepts_it(agents: int, capsys: pytest.CaptureFixture[str]) -> None:
    test = pytest.importorskip("pettingzoo.test")
    test.parallel_api_test(parallel(agents=agents, size=6, density=0.1), num_cycles=600)
    test.parallel_seed_test(lambda: parallel(agents=agents, size=8))


def test_pettingzoo_can_render_it(capsys: pytest.CaptureFixture[str]) -> None:
    test, convert = pytest.importorskip("pettingzoo.test"), pytest.importorskip("pettingzoo.utils.conversions")
    test.render_test(lambda render_mode: convert.parallel_to_aec(parallel(render_mode)))
    assert capsys.readouterr().out.count("A") > 1


def test_pettingzoo_agents_get_what_the_single_environment_gets() -> None:
    env, single = parallel(agents=3, size=8, max_agents=5), PathFinding(agents=3, size=8, max_agents=5)
    obs, infos = env.reset(seed=3)
    wanted, _ = single.reset(seed=3)
    rng = np.random.default_rng(0)
    while env.agents:
        assert list(obs) == ["agent_0", "agent_1", "agent_2"]
        for number, agent in enumerate(env.agents):
            np.testing.assert_array_equal(obs[agent], wanted["agents"][number])
            np.testing.assert_array_equal(infos[agent]["hears"], wanted["mask"][number])
        np.testing.assert_array_equal(env.state(), wanted["agents"])
        actions = rng.integers(0, 5, 5)
        obs, rewards, terminated, truncated, infos = env.step(dict(zip(env.agents, actions, strict=False)))
        wanted, _, done, cut, info = single.step(actions)
        assert list(rewards.values()) == wanted["reward"][:3].tolist()
        assert set(terminated.values()) == {done} and set(truncated.values()) == {cut}
    assert infos["agent_0"]["episode_metrics"] == info["episode_metrics"]
    assert env.step({}) == ({}, {}, {}, {}, {})


def test_without_pettingzoo_it_is_refused_by_name() -> None:
    code = (
        "import sys; sys.modules['pettingzoo'] = None\n"
        "import shoal.envs.pathfinding\n"
        "from shoal.errors import ConfigError\n"
        "try:\n    import shoal.envs.pathfinding_parallel\n"
        "except ConfigError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "'pettingzoo'" in done.stdout and "pip install" in done.stdout


# Refusals.


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"communication_radius": 0}, "communication_radius is 0. Use at least 1, or neighbours=0"),
        ({"communication_radius": -1}, "communication_radius is -1"),
        ({"agents": 13, "size": 5}, "13 agents need 26 free cells.*5x5.*fewer agents, a larger size"),
        ({"agents": 5, "size": 3, "density": 0.0}, "5 agents need 10 free cells"),
        ({"agents": 0}, "agents is 0"),
        ({"agents": 2.5}, "agents is 2.5"),
        ({"agents": "4"}, "agents is '4'"),
        ({"agents": 5, "max_agents": 4}, "agents is 5, of 4 at most. Set max_agents=5"),
        ({"size": 1}, "size is 1"),
        ({"density": 0.6}, "density is 0.6. Use 0 to 0.5"),
        ({"density": -0.1}, "density is -0.1"),
        ({"density": -1.0}, "density is -1.0"),
        ({"density": float("nan")}, "density is nan"),
        ({"density": "thick"}, "density is 'thick'"),
        ({"observation_radius": 0}, "observation_radius is 0"),
        ({"neighbours": -1}, "neighbours is -1"),
        ({"cases": -1}, "cases is -1"),
        ({"case_seed": -1}, "case_seed is -1"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        PathFindingVector(2, **arguments)
    with pytest.raises(ConfigError, match=words):
        make_env(EnvSettings(id="shoal/PathFinding-v0", kwargs=arguments), 2, 0)


def test_an_unknown_argument_or_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"does not take these env\.kwargs.*'agent'"):
        make_env(EnvSettings(id="shoal/PathFinding-v0", kwargs={"agent": 3}), 2, 0)
    for make in (PathFinding, parallel):
        with pytest.raises(ConfigError, match="no render mode 'film'"):
            make("film")
        with pytest.raises(ConfigError, match="max_episode_steps is 0"):
            make(max_episode_steps=0)


def test_bad_levels_maps_and_actions_are_refused() -> None:
    vector = PathFindingVector(2, agents=2, size=6)
    vector.reset()
    with pytest.raises(UnknownName, match=r"'sizes'. Did you mean 'size'"):
        vector.set_levels([{"sizes": 4}])
    with pytest.raises(ConfigError, match="agents is 3"):
        vector.set_levels([{"agents": 3}])
    with pytest.raises(ConfigError, match="no level"):
        vector.set_levels([])
    for actions in (np.full((2, 2), 5), np.full((2, 2), -1), np.zeros((2, 3), int)):
        with pytest.raises(EnvError, match="actions 0 to 4"):
            vector.step(actions)
    env = PathFinding(agents=2, size=6)
    flat = np.zeros((3, 3))
    for own, words in (
        ((flat, [(0, 0), (0, 0)], [(1, 1), (2, 2)]), "free cells"),
        ((flat, [(0, 0), (0, 3)], [(1, 1), (2, 2)]), "free cells"),
        ((flat + 1, [(0, 0)], [(1, 1)]), "free cells"),
        ((flat[:2], [(0, 0)], [(1, 1)]), "obstacles \\[S, S\\]"),
        ((flat, [(0, 0), (0, 1), (0, 2)], [(1, 1), (2, 2), (1, 2)]), "agents is 3"),
    ):
        with pytest.raises(ConfigError, match=words):
            env.reset(options={"map": dict(zip(("obstacles", "starts", "goals"), own, strict=True))})


def test_no_room_in_any_map_is_an_error() -> None:
    env = PathFinding(agents=1024, size=64, density=0.5)
    with pytest.raises(EnvError, match=r"no map of 64x64 with room for 1024 agents.*lower density"):
        env.reset(seed=0)
