"""Ape-X DQN with a loop, a network and an optimizer of your own: two actors and a learner, on CartPole of 200 steps.

    python examples/own_loop_apex.py               processes of this machine
    python examples/own_loop_apex.py ray

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
import numpy as np
import torch
from torch import nn
from torch.nn.functional import smooth_l1_loss

from shoal.parts import (
    BoardModule,
    Ledger,
    NStepView,
    PacedReplay,
    Prioritized,
    RateLimiter,
    RatePace,
    Replay,
    ShardInfo,
    ShardReader,
    Stream,
    create_shard,
    describe,
    launch,
    step_schema,
)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))


def shards(place: Path) -> list[Path]:
    return sorted(place.glob("shard_*"))


def pace(place: Path) -> RatePace:
    """Actors and learner wait for each other: every step is drawn 32 times, from 500 steps on."""
    return RatePace(Ledger(place, shards(place)), RateLimiter(500, samples_per_insert=32, tolerance=1_000))


def act(place: Path, goal: float, index: int) -> int:
    env, net, rng = gymnasium.make("CartPole-v1", max_episode_steps=200), network(), np.random.default_rng(index)
    weights, stream, may = BoardModule(net, place / "weights"), Stream(shards(place)[index]), pace(place)
    epsilon, smoothed, good = 0.1 if index == 0 else 0.01, 0.0, 0
    for episode in itertools.count(1):
        version = weights.refresh()  # when you want it: nothing is taken over behind your back
        obs, _ = env.reset(seed=index if episode == 1 else None)
        total, over = 0.0, False
        while not over:
            while not may.may_act():
                time.sleep(0.001)
            with torch.inference_mode():
                best = int(net(torch.from_numpy(obs)).argmax())
            action = int(rng.integers(2)) if rng.random() < epsilon else best
            after, reward, terminated, truncated, _ = env.step(action)
            stream.append(obs, action, float(reward), after, terminated, truncated, version=version)
            obs, total, over = after, total + float(reward), terminated or truncated
        smoothed = 0.9 * smoothed + 0.1 * total
        good = good + 1 if smoothed > goal else 0
        if good == 5:
            break
    return episode


def learn(place: Path) -> None:
    net, target = network(), network()
    weights, optimizer = BoardModule(net, place / "weights"), torch.optim.Adam(net.parameters(), 2e-3)
    readers = [ShardReader(path) for path in shards(place)]
    view = NStepView(readers[0].info.schema, n=3, gamma=0.99)
    drawn = Replay(readers, Prioritized(), view, batch_size=256)
    replay = PacedReplay(drawn, pace(place), Ledger(place, shards(place)))
    for update in itertools.count():
        if update % 50 == 0:
            target.load_state_dict(net.state_dict())
        if update % 4 == 0:
            weights.publish()
        while (sample := replay.sample()) is None:
            time.sleep(0.001)
        obs, action, reward, discount, next_obs = (torch.from_numpy(array) for array in sample.data)
        q = net(obs).gather(1, action.unsqueeze(1)).squeeze(1)
        with torch.no_grad():  # double Q-learning; the discount is 0 where an episode terminated
            best = net(next_obs).argmax(1, keepdim=True)
            goal = reward + discount * target(next_obs).gather(1, best).squeeze(1)
        importance = torch.from_numpy((sample.size * sample.probabilities) ** -0.4)
        loss = (importance / importance.max() * smooth_l1_loss(q, goal, reduction="none")).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        replay.update_priorities(sample.keys, (goal - q).abs().detach().numpy())


def main(engine: Any = "processes", goal: float = 190, actors: int = 2) -> int:
    """Returns the episodes of the actor that solved it."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        place = Path(folder)
        for index in range(actors):
            info = ShardInfo(step_schema(describe("CartPole-v1")), rows=20_000, lanes=1)
            create_shard(place / f"shard_{index}", info)
        BoardModule.create(network(), place / "weights")
        loops = [*(partial(act, place, goal, index) for index in range(actors)), partial(learn, place)]
        return next(episodes for episodes in launch(loops, engine=engine) if episodes)


if __name__ == "__main__":
    print(f"solved after {main(*sys.argv[1:2])} episodes")
