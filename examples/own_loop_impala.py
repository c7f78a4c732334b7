"""IMPALA with a loop, networks and an optimizer of your own: two actors and a learner, on CartPole of 200 steps.

    python examples/own_loop_impala.py             processes of this machine
    python examples/own_loop_impala.py ray

Ends when the smoothed return (0.9 old + 0.1 new) of an actor was above 190 in five episodes in a row, and prints how
many episodes that actor played.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import torch
from torch import nn
from torch.distributions import Categorical

from shoal.ops import vtrace
from shoal.parts import (
    STEP,
    BoardModule,
    Column,
    Ledger,
    PacedReplay,
    RateLimiter,
    RatePace,
    Replay,
    SequenceView,
    ShardInfo,
    ShardReader,
    Stream,
    Uniform,
    create_shard,
    describe,
    launch,
    step_schema,
)


def network(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


def shards(place: Path) -> list[Path]:
    return sorted(place.glob("shard_*"))


def pace(place: Path) -> RatePace:
    """Actors and learner wait for each other: every step is drawn 8 times, from 500 steps on."""
    return RatePace(Ledger(place, shards(place)), RateLimiter(500, samples_per_insert=8, tolerance=2_000))


def act(place: Path, goal: float, index: int) -> int:
    env, policy = gymnasium.make("CartPole-v1", max_episode_steps=200), network(2)
    weights, stream, may = BoardModule(policy, place / "weights"), Stream(shards(place)[index]), pace(place)
    smoothed, good = 0.0, 0
    for episode in itertools.count(1):
        version = weights.refresh()  # when you want it: nothing is taken over behind your back
        obs, _ = env.reset(seed=index if episode == 1 else None)
        total, over = 0.0, False
        while not over:
            while not may.may_act():
                time.sleep(0.001)
            with torch.inference_mode():
                drawn = Categorical(logits=policy(torch.from_numpy(obs)))
                action = drawn.sample()
                recorded = {"log_prob": float(drawn.log_prob(action))}
            after, reward, terminated, truncated, _ = env.step(int(action))
            stream.append(obs, int(action), float(reward), after, terminated, truncated, version=version, **recorded)
            obs, total, over = after, total + float(reward), terminated or truncated
        smoothed = 0.9 * smoothed + 0.1 * total
        good = good + 1 if smoothed > goal else 0
        if good == 5:
            break
    return episode


def learn(place: Path) -> None:
    policy, critic = network(2), network(1)
    weights = BoardModule(policy, place / "weights")
    optimizer = torch.optim.Adam([*policy.parameters(), *critic.parameters()], 1e-3)
    readers = [ShardReader(path) for path in shards(place)]
    view = SequenceView(readers[0].info.schema, length=20, extras=("log_prob",))
    drawn = Replay(readers, Uniform(capacity=500), view, batch_size=16)
    replay = PacedReplay(drawn, pace(place), Ledger(place, shards(place)))
    while True:
        weights.publish()
        while (sample := replay.sample()) is None:
            time.sleep(0.001)
        *stream, extras = sample.data
        obs, action, reward, terminated, _, boundary = (torch.from_numpy(array) for array in stream)
        mask = (boundary[:-1] == STEP).float()  # [T, B] the row after an episode's end holds no step
        values, chosen = critic(obs).squeeze(2), Categorical(logits=policy(obs[:-1]))  # [T + 1, B], [T, B]
        log_prob = chosen.log_prob(action)
        log_ratio = (log_prob - torch.from_numpy(extras["log_prob"])[:-1]).detach()
        trace = vtrace(log_ratio, values.detach(), reward / 10, 0.99 * (~terminated).float(), mask)
        gain = log_prob * trace.advantages + 0.01 * chosen.entropy() - 0.5 * (trace.targets - values[:-1]).square()
        optimizer.zero_grad()
        (-(gain * mask).sum() / mask.sum()).backward()
        nn.utils.clip_grad_norm_([*policy.parameters(), *critic.parameters()], 1.0)
        optimizer.step()


def main(engine: Any = "processes", goal: float = 190, actors: int = 2) -> int:
    """Returns the episodes of the actor that solved it."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        place = Path(folder)
        schema = step_schema(describe("CartPole-v1"), (Column("log_prob", "float32"),))
        for index in range(actors):
            create_shard(place / f"shard_{index}", ShardInfo(schema, rows=10_000, lanes=1))
        BoardModule.create(network(2), place / "weights")
        loops = [*(partial(act, place, goal, index) for index in range(actors)), partial(learn, place)]
        return next(episodes for episodes in launch(loops, engine=engine) if episodes)


if __name__ == "__main__":
    print(f"solved after {main(*sys.argv[1:2])} episodes")
