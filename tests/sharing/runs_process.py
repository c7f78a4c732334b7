"""Runs whose rows say which row they are, and a program that lives them in processes of their own.

Everything in a row follows from (run, step, lane), so that whoever reads a row of another run can check all of it. Run
as a program it is a nursery: it imports Stable-Baselines3 once and then forks a process for every line it is given, so
that tests can start and kill real runs in milliseconds.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from shoal.sharing import DistributedReplayBuffer, Registry, connect_registry, create_distributed_registry

WORDS = 64
OBSERVATION = spaces.Box(-np.inf, np.inf, (WORDS,), np.float64)
ACTION = spaces.Box(-1.0, 1.0, (2,), np.float32)
LIFE_SECONDS = 60.0
_OFFSETS = np.arange(WORDS) / (4 * WORDS)


def make(registry: Registry | None, run: str = "run", rows: int = 1000, lanes: int = 1, **options: Any) -> Any:
    """A buffer of marked rows; in a registry under a new id."""
    if registry is not None:
        options = {"registry": registry, "buffer_id": registry.register_buffer(run, "SAC"), **options}
    return DistributedReplayBuffer(rows * lanes, OBSERVATION, ACTION, "cpu", lanes, **options)


def write(buffer: Any, run: int, steps: int, start: int = 0) -> None:
    """Adds marked steps of all lanes: an episode ends every 7th step, every other time by a time-out."""
    lanes = np.arange(buffer.n_envs)
    for step in range(start, start + steps):
        obs = (run * 2.0**32 + step * 16 + lanes)[:, None] + _OFFSETS
        action = np.stack([np.full(len(lanes), run / 64), np.full(len(lanes), step % 1024 / 1024)], axis=1)
        done = np.full(len(lanes), step % 7 == 6)
        infos = [{"TimeLimit.truncated": step % 14 == 13} for _ in lanes]
        buffer.add(obs, obs + 0.5, action.astype(np.float32), (step * 4 + lanes) % 2.0**24, done, infos)


def read(samples: Any) -> tuple[Any, Any, Any]:
    """Run, step and lane of every sample. Fails when anything in a row is not of that row."""
    obs, following = samples.observations.numpy(), samples.next_observations.numpy()
    run, rest = np.divmod(obs[:, 0], 2.0**32)
    step, lane = np.divmod(rest, 16)
    torn = ~np.isclose(obs, obs[:, :1] + _OFFSETS, rtol=0, atol=1e-9).all(axis=1)
    torn |= (following != obs + 0.5).any(axis=1)
    torn |= (samples.actions.numpy() != np.stack([run / 64, step % 1024 / 1024], axis=1)).any(axis=1)
    torn |= samples.rewards.numpy()[:, 0] != (step * 4 + lane) % 2.0**24
    torn |= samples.dones.numpy()[:, 0] != (step % 14 == 6)
    assert not torn.any(), f"rows that nobody wrote: {np.flatnonzero(torn)} of runs {run[torn]}, steps {step[torn]}"
    return run.astype(int), step.astype(int), lane.astype(int)


# What processes do. Each takes the registry's path and a place to report to.


def run_writer(
    registry: str, report: Path, *, run: int, rows: int, lanes: int = 1, steps: int, endless: bool = False
) -> None:
    """Writes some steps, says so, and goes on at full speed or waits to be killed."""
    buffer = make(connect_registry(registry), f"run-{run}", rows, lanes)
    write(buffer, run, steps)
    _say(report, {"buffer_id": buffer._member.buffer_id})
    until = time.monotonic() + LIFE_SECONDS
    while time.monotonic() < until:
        if endless:
            write(buffer, run, 50, steps)
            steps += 50
        else:
            time.sleep(0.05)


def run_private(report: Path, *, rows: int) -> None:
    """Holds a buffer that nobody shares."""
    buffer = make(None, rows=rows)
    write(buffer, 1, 10)
    _say(report, {"read": len(read(buffer.sample(32))[0])})
    time.sleep(LIFE_SECONDS)


def run_sweeper(registry: str, report: Path, *, at: float, buffer_id: str, deregister: bool) -> None:
    """Removes a buffer at an agreed moment, together with others who do the same."""
    joined = connect_registry(registry)
    while time.time() < at:
        pass
    for _ in range(200):
        if deregister:
            joined.deregister_buffer(buffer_id)
        list(joined.entries())
    _say(report, {"left": [entry.buffer_id for entry in joined.entries()]})


def run_loader(report: Path, *, pickled: str, seed: int) -> None:
    """Loads a saved buffer and samples it."""
    from stable_baselines3.common.save_util import load_from_pkl

    buffer = load_from_pkl(pickled)
    np.random.seed(seed)
    run, step, lane = read(buffer.sample(64))
    shared = buffer._member.registry is not None
    told = {"run": run.tolist(), "step": step.tolist(), "lane": lane.tolist(), "shared": shared}
    _say(report, {**told, "buffer_id": buffer._member.buffer_id, "stats": buffer.get_stats()})


def run_reader(registry: str, report: Path, *, rows: int) -> None:
    """Reads everything of the others, and says what that cost in memory of its own."""
    import psutil

    buffer = make(connect_registry(registry), "reader", 1000, cross_sample_ratio=1.0)
    write(buffer, 9, 100)
    buffer.sample(256)
    before = psutil.Process().memory_full_info().uss
    seen: set[tuple[int, int]] = set()
    for _ in range(rows // 256 * 3):
        run, step, _ = read(buffer.sample(256))
        seen.update(zip(run.tolist(), step.tolist(), strict=True))
    grown = psutil.Process().memory_full_info().uss - before
    _say(report, {"grown": grown, "seen": len(seen), "stats": buffer.get_stats()})


def run_from_variables(report: Path, *, variables: dict[str, str]) -> None:
    """A run that is told nothing but what its environment variables say."""
    os.environ.update(variables)
    buffer = make(None)
    write(buffer, 8, 50)
    for _ in range(50):
        read(buffer.sample(32))
    _say(report, buffer.get_stats())


def run_sampler(registry: str, report: Path, *, seconds: float) -> None:
    """Samples at full speed for a while, half of it from others, and checks every row."""
    buffer = make(connect_registry(registry), "sampler", 200, cross_sample_ratio=0.5)
    write(buffer, 9, 100)
    until, counts = time.monotonic() + seconds, np.zeros(64, int)
    while time.monotonic() < until:
        counts += np.bincount(read(buffer.sample(64))[0], minlength=64)
    _say(report, {"runs": np.flatnonzero(counts).tolist(), "samples": int(counts.sum()), "stats": buffer.get_stats()})


def run_member(registry: str, report: Path, *, run: int, rows: int = 400) -> None:
    """Writes and samples, half of it from others; says after every round whom it reads and what it was warned of."""
    buffer = make(connect_registry(registry), f"run-{run}", rows, cross_sample_ratio=0.5)
    until, step, rounds = time.monotonic() + LIFE_SECONDS, 0, 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        while time.monotonic() < until:
            write(buffer, run, 20, step)
            step, rounds = step + 20, rounds + 1
            seen = sorted(set(read(buffer.sample(64))[0].tolist()))
            said = sorted({str(one.message) for one in caught})
            stats = buffer.get_stats()
            _say(report, {"round": rounds, "seen": seen, "warned": said, "buffer_id": buffer._member.buffer_id} | stats)
            time.sleep(0.02)


def run_ended(registry: str, report: Path, *, run: int, rows: int) -> None:
    """A run that ends by itself and leaves its rows to the registry's maker."""
    joined = connect_registry(registry)
    buffer = make(joined, f"run-{run}", rows)
    write(buffer, run, 50)
    joined.hand_over(buffer._member.buffer_id)
    _say(report, {"buffer_id": buffer._member.buffer_id})


def run_maker(report: Path, *, stale_seconds: float) -> None:
    """Makes a registry and waits to be killed."""
    made = create_distributed_registry(min_buffer_size=10, stale_seconds=stale_seconds)
    _say(report, {"path": str(made.path)})
    time.sleep(LIFE_SECONDS)


def _say(report: Path, value: dict[str, Any]) -> None:
    building = report.with_suffix(".new")
    building.write_text(json.dumps(value))
    building.rename(report)


def main() -> None:
    """Reads commands: start a process, or wait for one."""
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "wait":
            _, status = os.waitpid(command["pid"], 0)
            print(os.waitstatus_to_exitcode(status), flush=True)
            continue
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            report = Path(command["report"])
            try:
                globals()[command["what"]](report=report, **command["options"])
                os._exit(0)
            except BaseException:
                report.with_suffix(".error").write_text(traceback.format_exc())
                os._exit(1)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
