"""A3C with a loop, networks and an optimizer of your own: three workers push gradients, one server applies them.

    python examples/own_loop_a3c.py                processes of this machine
    python examples/own_loop_a3c.py ray

CartPole of 200 steps. Ends when the smoothed return (0.9 old + 0.1 new) of a worker was above 190 in five episodes in a
row, and prints how many episodes that worker played.
"""

from __future__ import annotations

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
from torch.distributions import Categorical

from shoal.parts import BoardModule, GradientBoard, launch


def networks() -> nn.ModuleList:
    """Policy and value."""
    sizes = ((4, 64), (64, 64))
    hidden = [[layer for size in sizes for layer in (nn.Linear(*size), nn.Tanh())] for _ in range(2)]
    return nn.ModuleList(nn.Sequential(*hidden[index], nn.Linear(64, outputs)) for index, outputs in enumerate((2, 1)))


def gradient(nets: nn.ModuleList, rows: list[tuple[Any, ...]]) -> Any:
    """Of a worker's last steps, as one vector: policy gradient with GAE, value error, entropy."""
    columns = (torch.as_tensor(np.array(column)) for column in zip(*rows, strict=True))
    obs, action, reward, after, terminated, over = columns
    value, chosen = nets[1](obs).squeeze(1), Categorical(logits=nets[0](obs))
    with torch.no_grad():
        ahead = nets[1](after).squeeze(1) * ~terminated  # a truncated episode bootstraps, a terminated one does not
        advantage = reward + 0.99 * ahead - value
        for step in range(len(rows) - 2, -1, -1):
            advantage[step] += 0.99 * 0.95 * advantage[step + 1] * ~over[step]
        goal = advantage + value
    error = 0.5 * (goal - value).square() - chosen.log_prob(action) * advantage - 0.01 * chosen.entropy()
    found = torch.autograd.grad(error.mean(), list(nets.parameters()))
    return torch.cat([one.flatten() for one in found]).numpy()


def work(place: Path, goal: float, index: int) -> int:
    env, nets = gymnasium.make("CartPole-v1", max_episode_steps=200), networks()
    weights, board = BoardModule(nets, place / "weights"), GradientBoard(place / f"gradients_{index}")
    (obs, _), smoothed, total, good, episodes = env.reset(seed=index), 0.0, 0.0, 0, 0
    while good < 5:
        while not (version := weights.refresh()) or not board.settled:  # the server has not applied the last one yet
            time.sleep(0.0005)
        rows = []
        for _ in range(32):
            with torch.inference_mode():
                action = int(Categorical(logits=nets[0](torch.from_numpy(obs))).sample())
            after, reward, terminated, truncated, _ = env.step(action)
            rows.append((obs, action, np.float32(reward) / 10, after, terminated, terminated or truncated))
            obs, total = after, total + float(reward)
            if terminated or truncated:
                smoothed, episodes, total, (obs, _) = 0.9 * smoothed + 0.1 * total, episodes + 1, 0.0, env.reset()
                good = good + 1 if smoothed > goal else 0
        board.push(gradient(nets, rows), len(rows), version)
    return episodes


def serve(place: Path, workers: int) -> None:
    nets = networks()
    weights, optimizer = BoardModule(nets, place / "weights"), torch.optim.Adam(nets.parameters(), 2e-3)
    boards = [GradientBoard(place / f"gradients_{index}") for index in range(workers)]
    sizes = [one.numel() for one in nets.parameters()]
    weights.publish()
    while True:
        for board in boards:
            if push := board.take():
                for parameter, part in zip(nets.parameters(), torch.from_numpy(push.vector).split(sizes), strict=True):
                    parameter.grad = part.view_as(parameter)
                optimizer.step()
                weights.publish()
                board.settle(applied=1)
        time.sleep(0.0002)


def main(engine: Any = "processes", goal: float = 190, workers: int = 3) -> int:
    """Returns the episodes of the worker that solved it."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        place, size = Path(folder), sum(one.numel() for one in networks().parameters())
        for index in range(workers):
            GradientBoard.create(place / f"gradients_{index}", size)
        BoardModule.create(networks(), place / "weights")
        loops = [*(partial(work, place, goal, index) for index in range(workers)), partial(serve, place, workers)]
        return next(episodes for episodes in launch(loops, engine=engine) if episodes)


if __name__ == "__main__":
    print(f"solved after {main(*sys.argv[1:2])} episodes")
