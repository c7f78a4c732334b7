"""Steps and updates per second of a running system, SB3's DQN and the bare environments: `make bench-throughput`.

A system is what `shoal train` starts: the Ray runtime with two actors, a learner and a driver. Its counts are read
from outside, from the shards' headers. Between its turns all its processes are stopped (SIGSTOP), so that every
contender of a round has the whole machine, within seconds of the others. "Learner off" is the same system with a
learner that never has enough steps to begin, so that only the actors work: inference, environment, writing.

SB3's DQN learns CartPole with the settings of the RL Zoo (32 samples per step), and Pong, collected by two worker
processes, with a batch of 32 every 8 steps (4 samples per step). Batch sizes differ, so the table also shows trained
samples per second.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

os.environ.setdefault("OMP_NUM_THREADS", "1")

from _harness import Measured, Row, bounded, compared, report, say

PACKAGES = ("ale-py", "gymnasium", "numpy", "ray", "stable-baselines3", "torch")
ROOT = Path(__file__).resolve().parents[1]
PROCESSES = 2
NEVER = 2**60
BY_HAND = [
    "evaluation.every_steps=1_000_000_000_000",
    "stop.mean_return=null",
    "stop.steps=null",
    "stop.seconds=86_400",
]
SCENARIOS = {
    "pong": ("pong_apex_dqn", ["replay.capacity=40_000", "replay.min_size=2_000"]),
    "cartpole": ("cartpole_apex_dqn", []),
}
SETTLE_SECONDS = 1.0
MOVE_SECONDS = 15.0
START_SECONDS = 240.0
SB3_CARTPOLE: dict[str, Any] = {
    "learning_rate": 2.3e-3,
    "batch_size": 64,
    "buffer_size": 100_000,
    "learning_starts": 1000,
    "target_update_interval": 10,
    "train_freq": 256,
    "gradient_steps": 128,
    "exploration_fraction": 0.16,
    "exploration_final_eps": 0.04,
    "policy_kwargs": {"net_arch": [256, 256]},
}
SB3_PONG: dict[str, Any] = {
    "learning_rate": 1e-4,
    "batch_size": 32,
    "buffer_size": 10_000,
    "learning_starts": 200,
    "target_update_interval": 1000,
    "train_freq": 4,
    "gradient_steps": 1,
    "exploration_fraction": 0.1,
    "exploration_final_eps": 0.01,
}


@dataclass(frozen=True)
class Counts:
    """Steps and updates, and the time they took."""

    steps: int
    updates: int
    seconds: float


class Contender(Protocol):
    """Works for a while when asked, and is idle in between."""

    def work(self, seconds: float) -> Counts: ...


# ---- Shoal: the system in separate processes, watched from outside


def settings_of(system: str, learner: bool) -> Any:
    """The scenario without an end; without a learner, with a replay that never has enough steps."""
    from shoal.config.load import load_target

    scenario, overrides = SCENARIOS[system]
    settings = load_target(scenario, [*overrides, *BY_HAND, f"actors={PROCESSES}"])
    if learner:
        return settings
    replay = settings.replay.model_copy(update={"min_size": NEVER})  # the command line refuses this value
    return settings.model_copy(update={"replay": replay})


def run_system(system: str, learner: bool, out: Path) -> None:
    """The driver's process: runs until interrupted."""
    from shoal.api import begin
    from shoal.runtime.execution import execute

    plan, folder = begin(settings_of(system, learner), out)
    execute(plan, folder, quiet=True)


class System:
    """A run of Shoal that can be stopped and resumed."""

    def __init__(self, system: str, learner: bool, out: Path) -> None:
        self._learner, self._out = learner, out
        self.settings = settings_of(system, learner)
        command = [sys.executable, __file__, "--system", system, "--out", str(out)]
        self._log = out / "output.txt"
        with self._log.open("w") as log:
            self._driver = subprocess.Popen(
                command + ["--learner"] * learner, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
            )

    def start(self) -> None:
        """Waits for the first steps (with a learner, updates), then stops the run until its turn."""
        deadline = time.monotonic() + START_SECONDS
        while not self._under_way():
            if self._driver.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"The system did not start:\n{self._log.read_text()[-4000:]}")
            time.sleep(0.2)
        self._signal(signal.SIGSTOP)

    def work(self, seconds: float) -> Counts:
        self._signal(signal.SIGCONT)
        try:
            self._wait_until_it_moves()
            time.sleep(SETTLE_SECONDS)
            steps, updates, began = self.env_steps, self.updates, time.perf_counter()
            time.sleep(seconds)
            return Counts(self.env_steps - steps, self.updates - updates, time.perf_counter() - began)
        finally:
            self._signal(signal.SIGSTOP)

    def _wait_until_it_moves(self) -> None:
        """Waits for the first step. The roles' calls timed out during the stop, so every role reports first."""
        before, deadline = self.env_steps, time.monotonic() + MOVE_SECONDS
        while self.env_steps == before and time.monotonic() < deadline:
            time.sleep(0.05)

    def end(self) -> dict[str, Any]:
        """Interrupts the run, frees its replay and returns its summary."""
        self._signal(signal.SIGCONT)
        if self._driver.poll() is None:
            self._driver.send_signal(signal.SIGINT)
            try:
                self._driver.wait(60)
            except subprocess.TimeoutExpired:
                self._driver.kill()
        run = self._out / "latest"
        with contextlib.suppress(OSError):
            shutil.rmtree(json.loads((run / "replay.json").read_text())["path"], ignore_errors=True)
        with contextlib.suppress(OSError):
            return dict(json.loads((run / "summary.json").read_text()))
        return {}

    def _under_way(self) -> bool:
        run = self._out / "latest"
        try:
            replay = Path(json.loads((run / "replay.json").read_text())["path"])
            self._roles = list(json.loads((run / "processes.json").read_text()).values())
        except (OSError, ValueError):
            return False
        if len(self._roles) < PROCESSES + 1:
            return False
        from shoal.replay.counters import Counters

        shards = [replay / f"shard_{index:03d}" for index in range(PROCESSES)]
        self._headers = [Counters(shard / "header.bin", writable=False) for shard in shards]
        self._ledger = Counters(replay / "ledger.bin", writable=False)
        return self.env_steps > 0 and (self.updates > 0 or not self._learner)

    @property
    def env_steps(self) -> int:
        from shoal.replay.shard_files import Header

        return sum(header[Header.STEPS] for header in self._headers)

    @property
    def updates(self) -> int:
        from shoal.replay import LedgerWord

        return self._ledger[LedgerWord.UPDATES]

    def _signal(self, number: signal.Signals) -> None:
        """Sends a signal to the driver and the roles. Ray's own daemons are idle and keep running."""
        for pid in (*getattr(self, "_roles", ()), self._driver.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


@contextlib.contextmanager
def running(system: str, learner: bool) -> Iterator[tuple[System, dict[str, Any]]]:
    """A started system; the dict holds its summary afterwards."""
    say(f"  starting {system}, learner {'on' if learner else 'off'}")
    summary: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        one = System(system, learner, Path(folder))
        try:
            one.start()
            yield one, summary
        finally:
            summary |= one.end()


# ---- peers: processes that wait to be asked


def raw_pong(lanes: int) -> Callable[[float], tuple[int, int]]:
    """ale-py's vector environment as an actor uses it, with precomputed random actions."""
    from shoal.envs.atari import make_atari

    return _random_steps(make_atari(settings_of("pong", False).env, lanes), lanes)


def raw_cartpole(lanes: int) -> Callable[[float], tuple[int, int]]:
    """Gymnasium's numpy-vectorised CartPole."""
    import gymnasium

    return _random_steps(gymnasium.make_vec("CartPole-v1", lanes, "vector_entry_point"), lanes)


def _random_steps(env: Any, lanes: int) -> Callable[[float], tuple[int, int]]:
    import numpy as np

    env.reset(seed=1)
    actions = np.random.default_rng(1).integers(0, env.single_action_space.n, (4096, lanes))

    def work(seconds: float) -> tuple[int, int]:
        steps, deadline = 0, time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            env.step(actions[steps % 4096])
            steps += 1
        return steps * lanes, 0

    return work


def sb3_pong(_: int) -> Callable[[float], tuple[int, int]]:
    """With SB3's own Atari wrappers, in worker processes."""
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import SubprocVecEnv, VecFrameStack

    spawned = {"start_method": "spawn"}
    env = make_atari_env(_pong_screen, n_envs=PROCESSES, seed=1, vec_env_cls=SubprocVecEnv, vec_env_kwargs=spawned)
    return _sb3("CnnPolicy", VecFrameStack(env, 4), SB3_PONG)


def _pong_screen(**arguments: Any) -> Any:
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)  # once in every process
    return gymnasium.make("PongNoFrameskip-v4", **arguments)


def sb3_cartpole(_: int) -> Callable[[float], tuple[int, int]]:
    import gymnasium

    return _sb3("MlpPolicy", gymnasium.make("CartPole-v1"), SB3_CARTPOLE)


def _sb3(policy: str, env: Any, arguments: dict[str, Any]) -> Callable[[float], tuple[int, int]]:
    import torch
    from stable_baselines3 import DQN
    from stable_baselines3.common.logger import Logger

    torch.set_num_threads(1)
    model = DQN(policy, env, seed=1, device="cpu", **arguments)
    model.set_logger(Logger(None, []))  # otherwise every call of learn leaves a folder in /tmp
    model.learn(2 * arguments["learning_starts"])  # until it learns

    def work(seconds: float) -> tuple[int, int]:
        steps, updates, deadline = model.num_timesteps, model._n_updates, time.perf_counter() + seconds
        model.learn(NEVER, reset_num_timesteps=False, callback=lambda *_: time.perf_counter() < deadline)
        return model.num_timesteps - steps, model._n_updates - updates

    return work


PEERS = {"raw pong": raw_pong, "raw cartpole": raw_cartpole, "sb3 pong": sb3_pong, "sb3 cartpole": sb3_cartpole}


def _serve(name: str, lanes: int, pipe: Any) -> None:
    work = PEERS[name](lanes)
    pipe.send(None)
    while (seconds := pipe.recv()) is not None:
        began = time.perf_counter()
        pipe.send(Counts(*work(seconds), time.perf_counter() - began))


class Peer:
    """One or several identical processes."""

    def __init__(self, name: str, processes: int, lanes: int = 1) -> None:
        say(f"  starting {name}")
        context = multiprocessing.get_context("spawn")
        self._pipes, self._processes = [], []
        for _ in range(processes):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(name, lanes, theirs))  # not a daemon: SB3 starts workers
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        for pipe in self._pipes:
            pipe.recv()

    def work(self, seconds: float) -> Counts:
        for pipe in self._pipes:
            pipe.send(seconds)
        done = [pipe.recv() for pipe in self._pipes]
        longest = max(one.seconds for one in done)
        return Counts(sum(one.steps for one in done), sum(one.updates for one in done), longest)

    def end(self) -> None:
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.send(None)
        for process in self._processes:
            process.join(20)
            if process.is_alive():
                process.kill()


# ---- rounds


def in_turn(what: str, contenders: dict[str, Contender], seconds: float, rounds: int) -> dict[str, list[Counts]]:
    """Runs every contender for a while in every round."""
    say(f"  {what}: {', '.join(contenders)}")
    found: dict[str, list[Counts]] = {name: [] for name in contenders}
    for contender in contenders.values():  # warm up caches and idle connections
        contender.work(min(1.0, seconds))
    for number in range(rounds):
        for name, contender in contenders.items():
            one = contender.work(seconds)
            found[name].append(one)
            steps, updates = one.steps / one.seconds, one.updates / one.seconds
            say(f"    round {number + 1}: {name}: {steps:,.0f} steps/s, {updates:,.1f} updates/s")
    return found


def rates(
    found: dict[str, list[Counts]], names: dict[str, str], value: str, factors: dict[str, float] | None = None
) -> dict[str, Measured]:
    """Rates per second of each round; `names` maps contenders to their names in the row."""
    return {
        new: Measured([getattr(one, value) / one.seconds * (factors or {}).get(old, 1.0) for one in found[old]])
        for old, new in names.items()
    }


def measure(system: str, options: argparse.Namespace) -> list[Row]:
    """All contenders of one environment."""
    with contextlib.ExitStack() as stack:
        off, _ = stack.enter_context(running(system, False))
        on, summary = stack.enter_context(running(system, True))
        lanes = on.settings.env.lanes
        raw = Peer(f"raw {system}", PROCESSES, lanes)
        stack.callback(raw.end)
        sb3 = Peer(f"sb3 {system}", 1)
        stack.callback(sb3.end)
        contenders: dict[str, Contender] = {"off": off, "raw": raw, "on": on, "sb3": sb3}
        found = in_turn(system, contenders, options.seconds, options.rounds)
        batches = {
            "on": on.settings.learner.batch_size,
            "sb3": (SB3_PONG if system == "pong" else SB3_CARTPOLE)["batch_size"],
        }
        bytes_per_step = _bytes_per_step(on.settings)
    title, ale = ("Pong", "ale-py alone") if system == "pong" else ("CartPole", "gymnasium alone")
    raw_names, sb3_names = {"off": "shoal", "raw": ale}, {"on": "shoal", "sb3": "sb3 dqn"}
    rows = [
        compared(
            f"{title}, learner off, {PROCESSES} actors x {lanes}: env steps/s",
            rates(found, raw_names, "steps"),
            at_least=0.6 if system == "pong" else None,
        ),
        compared(f"{title}, learner on: env steps/s", rates(found, sb3_names, "steps")),
        compared(f"{title}, learner on: updates/s", rates(found, sb3_names, "updates")),
        compared(f"{title}, learner on: trained samples/s", rates(found, sb3_names, "updates", batches)),
    ]
    calls = 1000 * summary["ray_calls"] / summary["env_steps"]
    # There are a few per second at any speed, so the number per step depends on the machine. bench-cartpole has a bar.
    rows.append(Row(f"{title}, learner on: Ray calls per 1,000 env steps", calls))
    rows.append(bounded(f"{title}: roles that had to be started again", summary["restarts"], at_most=0))
    if system == "pong":
        rows.append(bounded("Pong: bytes per stored step", bytes_per_step, at_most=7200))
    return rows


def _bytes_per_step(settings: Any) -> int:
    from shoal.loops.plan import make_plan

    return int(make_plan(settings).schema.bytes_per_step)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two short rounds: a smoke test")
    parser.add_argument("--seconds", type=float, help="per contender and round (8; quick: 2)")
    parser.add_argument("--rounds", type=int, help="rounds (5; quick: 2)")
    parser.add_argument("--only", choices=tuple(SCENARIOS), help="one environment instead of both")
    parser.add_argument("--strict", action="store_true", help="exit code 1 when a bar does not hold")
    parser.add_argument("--system", choices=tuple(SCENARIOS), help=argparse.SUPPRESS)
    parser.add_argument("--learner", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.seconds = options.seconds or (2.0 if options.quick else 8.0)
    options.rounds = options.rounds or (2 if options.quick else 5)
    return options


def main() -> int:
    options = parse()
    if options.system:
        run_system(options.system, options.learner, options.out)
        return 0
    rows: list[Row] = []
    for system in SCENARIOS:
        if options.only in (None, system):
            say(system)
            rows += measure(system, options)
    settings = {"seconds": options.seconds, "rounds": options.rounds, "quick": options.quick, "processes": PROCESSES}
    settings |= {"sb3_pong": SB3_PONG, "sb3_cartpole": SB3_CARTPOLE}
    name = "throughput" if not options.quick and options.only is None else "throughput-partial"
    holds = report(name, rows, PACKAGES, settings)
    return 1 if options.strict and not holds else 0


if __name__ == "__main__":
    sys.exit(main())
