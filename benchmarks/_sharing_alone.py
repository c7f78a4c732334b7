"""SB3's SAC on Pendulum with Shoal's buffer and no peers, compared with SAC with SB3's own buffer.

Both models are in one process and learn in turn, a short slice each. SB3 uses numpy's and torch's global random
generators, so each model's generator state is restored before its slice. Each model sees the same random numbers as if
it were alone, and the weights can be compared bit for bit.

The speed of two identical models may differ by 3 % during the whole life of the process, depending on where their
memory is; the first one tends to be slower. So there are two models of each kind, created in the order A B B A after
one warm-up model, and a row shows the difference between the two SB3 models.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from _harness import Measured, Row, bounded, compared, say

from shoal.sharing import DistributedReplayBuffer, Registry, create_distributed_registry

ENV = "Pendulum-v1"
SAC_SETTINGS: dict[str, Any] = {
    "batch_size": 256,
    "buffer_size": 100_000,
    "learning_starts": 100,
    "policy_kwargs": {"net_arch": [64, 64]},
}
RATIO = 0.2
SLICE_STEPS, INSIDE_STEPS = 75, 20


@contextlib.contextmanager
def made_registry(rows: int) -> Iterator[Registry]:
    """A registry that is removed at the end with its contents."""
    registry = create_distributed_registry(rows)
    try:
        yield registry
    finally:
        registry.stop()


def make_model(seed: int, shared: dict[str, Any] | None) -> Any:
    """SAC; with `shared`, the arguments of Shoal's buffer."""
    import gymnasium
    from stable_baselines3 import SAC
    from stable_baselines3.common.logger import Logger

    torch.set_num_threads(1)
    buffer = {} if shared is None else {"replay_buffer_class": DistributedReplayBuffer, "replay_buffer_kwargs": shared}
    model = SAC("MlpPolicy", gymnasium.make(ENV), seed=seed, device="cpu", **SAC_SETTINGS, **buffer)
    model.set_logger(Logger(None, []))  # otherwise every call of learn leaves a folder in /tmp
    return model


def judged(what: str, ours: Measured, theirs: Measured, peer: str, at_least: float | None = None) -> Row:
    """Like `compared`, with the quartiles of the ratios, which show the uncertainty of the median."""
    row = compared(what, {"shoal": ours, peer: theirs}, at_least=at_least)
    ratios = [a / b for a, b in zip(ours.rates, theirs.rates, strict=True)]
    row.others = dict(zip(("ratio: lower quartile", "upper"), np.quantile(ratios, (0.25, 0.75)).tolist(), strict=True))
    return row


class InTurn:
    """A model that shares its process with others, but not its random numbers."""

    def __init__(self, shared: dict[str, Any] | None) -> None:
        self.model = make_model(1, shared)
        self._random = np.random.get_state(), torch.get_rng_state()
        self.wall, self.cpu = Measured(), Measured()

    def learn(self, steps: int, *, count: bool = True) -> None:
        """Runs a slice; keeps its rates if it counts."""
        np.random.set_state(self._random[0])
        torch.set_rng_state(self._random[1])
        wall, cpu = time.perf_counter(), time.process_time()
        self.model.learn(steps, reset_num_timesteps=False)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        self._random = np.random.get_state(), torch.get_rng_state()
        if count:
            self.wall.rates.append(steps / wall)
            self.cpu.rates.append(steps / cpu)


def alone(rounds: int) -> list[Row]:
    """With a registry but no peers: same learning, same speed."""
    size = SAC_SETTINGS["buffer_size"]
    with contextlib.ExitStack() as stack:
        registries = [stack.enter_context(made_registry(size)) for _ in range(2)]
        first = InTurn(None)
        models = [InTurn(_without_peers(registries[0])), InTurn(None), InTurn(None)]
        models.append(InTurn(_without_peers(registries[1])))
        say(f"  {rounds} rounds of {SLICE_STEPS} steps of {len(models)} models")
        for one in (first, *models):
            one.learn(2 * SAC_SETTINGS["learning_starts"], count=False)
        for number in range(rounds):
            for one in models if number % 2 else models[::-1]:
                one.learn(SLICE_STEPS)
        shoal, sb3 = (models[0], models[3]), (models[1], models[2])
        differ, weights = differing(shoal[0].model, sb3[0].model)
        steps, updates = sb3[0].model.num_timesteps, sb3[0].model._n_updates
        parts = inside([shoal[0], sb3[0]], rounds)
    same = bounded(f"SAC alone, same seed: weights that differ after {steps:,} steps", differ, at_most=0)
    same.others = {"weights": weights, "updates": updates}
    wall, cpu = ([together([getattr(one, name) for one in kind]) for kind in (shoal, sb3)] for name in ("wall", "cpu"))
    return [
        same,
        judged("SAC alone: env steps/s", *wall, "sb3", 0.98),
        judged("(the same by CPU time: env steps per CPU second)", *cpu, "sb3"),
        judged("(two models of SB3 that are the same, by CPU time)", sb3[0].cpu, sb3[1].cpu, "sb3, again"),
        *parts,
    ]


def _without_peers(registry: Registry) -> dict[str, Any]:
    buffer_id = registry.register_buffer("alone", "SAC", ENV)
    return {"registry": registry, "buffer_id": buffer_id, "sample_strategy": "self_heavy", "cross_sample_ratio": RATIO}


def together(models: list[Measured]) -> Measured:
    """The combined rates of several models, per round: all steps divided by all time."""
    rounds = zip(*(one.rates for one in models), strict=True)
    return Measured([statistics.harmonic_mean(rates) for rates in rounds])


def inside(both: list[InTurn], rounds: int) -> list[Row]:
    """Times `add` and `sample` as in a run: one call, then an update that evicts their data from the caches."""
    took: dict[str, list[list[float]]] = {"add": [[], []], "sample": [[], []]}
    for name, lists in took.items():
        for one, calls in zip(both, lists, strict=True):
            buffer = one.model.replay_buffer
            setattr(buffer, name, timed(getattr(buffer, name), calls))
    found = {name: [Measured(), Measured()] for name in took}
    for number in range(rounds):
        for one in both if number % 2 else both[::-1]:
            one.learn(INSIDE_STEPS, count=False)
        for name, lists in took.items():
            for calls, measured in zip(lists, found[name], strict=True):
                measured.rates.append(1 / statistics.median(calls))
                calls.clear()
    return [judged(f"SAC alone: {name}, within learning (calls/s)", *rates, "sb3") for name, rates in found.items()]


def timed(call: Callable[..., Any], took: list[float]) -> Callable[..., Any]:
    """The same function, which also records the duration of each call."""

    def noted(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        result = call(*args, **kwargs)
        took.append(time.perf_counter() - began)
        return result

    return noted


def differing(one: Any, other: Any) -> tuple[int, int]:
    """How many weights of two models are not bit-identical, and the total."""
    ours, theirs = one.policy.state_dict(), other.policy.state_dict()
    if ours.keys() != theirs.keys() or one.num_timesteps != other.num_timesteps:
        raise SystemExit("These two models cannot be compared.")
    pairs = [(ours[name].view(torch.int32), theirs[name].view(torch.int32)) for name in ours]
    return sum(int((a != b).sum()) for a, b in pairs), sum(a.numel() for a, _ in pairs)
