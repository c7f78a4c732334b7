"""Continuous control compared with Stable-Baselines3: `make bench-continuous`, or a part of it with `--only PART`.

updates      updates per second of the learners alone, SAC and TD3, HalfCheetah's sizes, SB3's networks and batch,
             including sampling on both sides, `learner.compile=true`, one CPU thread; `--device cuda` for a GPU
ratio        draws per step with 1, 2 and 4 actors compared with the setting
pendulum     the four algorithms to -200 on Pendulum, per seed, `shoal train pendulum_ALGO`
wall         seconds to -200 on Pendulum compared with SB3's SAC: with the RL Zoo's settings, and with our sizes
halfcheetah  SAC and TD3 with SB3's networks, batch and update ratio compared with SB3's, per seed

Each part writes its own file, `results/continuous_PART.json`, with the runs' curves; `--plot` draws them.
HalfCheetah's runs are long: each has its own file in `results/halfcheetah`, and existing results are not repeated. So
the two sides may run on two machines: returns do not depend on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from _continuous_runs import Outcome, Sb3Plan, sb3, shoal
from _harness import RESULTS, Row, compared, console, described, interleave, report, say

PACKAGES = ("gymnasium", "mujoco", "numpy", "ray", "stable-baselines3", "torch")
ALGORITHMS = ("apex_dpg", "d4pg", "td3", "sac")
HALFCHEETAH = RESULTS / "halfcheetah"
GOAL = -200.0
STEPS = 30_000
IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
SIZES: dict[str, tuple[int, int]] = {"sac": (256, 256), "td3": (400, 300)}
"""SB3's default networks."""
BATCH = 256
OBS, ACTIONS = 17, 6
"""HalfCheetah-v5."""

Found = tuple[list[Row], list[Outcome]]


# ---- updates per second


def updates(options: argparse.Namespace) -> Found:
    """The learners alone."""
    import torch

    torch.set_num_threads(1)
    device = options.device
    at_least = 1.5 if device == "cpu" else 4.0
    rows = []
    for name in ("sac", "td3"):
        learners = {"shoal": _our_update(name, device), f"sb3 {name}": _their_update(name, device)}
        plain = "shoal, not compiled" if device == "cpu" else "shoal, not captured"
        learners[plain] = _our_update(name, device, faster=False)
        contenders = {who: partial(_twice, update) for who, update in learners.items()}
        for call in contenders.values():  # compile, capture, allocate
            for _ in range(15):
                call()
        timing = {"seconds": options.seconds, "rounds": options.rounds, "per_call": 2}
        measured = interleave(f"{name} on {device}", contenders, **timing)
        what = f"{name} updates/s, {SIZES[name]}, batch {BATCH}, {device}"
        rows.append(compared(what, measured, peers=(f"sb3 {name}",), at_least=at_least))
    return rows, []


def _twice(update: Callable[[], Any]) -> None:
    """Two updates per call: every second update of TD3 includes the policy, and a median would mix both kinds."""
    update()
    update()


def _our_update(name: str, device: str, faster: bool = True) -> Callable[[], Any]:
    """Samples and updates, on a shard filled with noise; with `learner.compile` if `faster`."""
    import numpy as np
    import torch

    from shoal.algorithms import get_algorithm
    from shoal.algorithms.interface import LearnerContext
    from shoal.loops.assembly import pinned_on
    from shoal.replay import Replay, ShardInfo, ShardReader, ShardWriter, create_shard, step_schema
    from shoal.replay.selectors import Uniform
    from shoal.types import EnvSpec

    spec = EnvSpec("HalfCheetah-v5", (OBS,), "float32", 1, 0, (ACTIONS,), (-1.0,) * ACTIONS, (1.0,) * ACTIONS)
    algorithm = get_algorithm(name)
    config = algorithm.config(policy_hidden=SIZES[name], critic_hidden=SIZES[name])
    schema = step_schema(spec, algorithm.columns(config, spec))
    path = Path(tempfile.mkdtemp()) / "shard_000"
    create_shard(path, ShardInfo(schema, 20_000, 1))
    writer, rng = ShardWriter(path), np.random.default_rng(0)
    for step in range(10_000):
        row = {"obs": rng.standard_normal((1, OBS)).astype(np.float32), "reward": rng.random(1).astype(np.float32)}
        row |= {"action": rng.uniform(-1, 1, (1, ACTIONS)).astype(np.float32)}
        row |= {"terminated": np.zeros(1, np.bool_), "truncated": np.array([step % 1000 == 999])}
        row |= {"boundary": np.array([step > 0 and step % 1000 == 0], np.uint8)}
        writer.append({**row, "weights_version": 0}, steps=1, episodes=0)
    pinned = pinned_on(torch.device(device))
    view = algorithm.make_view(config, schema)
    replay = Replay([ShardReader(path)], Uniform(), view, BATCH, ring=4, **pinned)  # type: ignore[arg-type]
    context = LearnerContext(torch.device(device), compile=faster, prioritized=False)
    learner = algorithm.make_learner(config, spec, context)

    def update() -> None:
        sample = replay.sample()
        assert sample is not None
        learner.step(sample)

    return update


def _their_update(name: str, device: str) -> Callable[[], Any]:
    """`train(gradient_steps=1)`, which samples from SB3's own buffer."""
    import gymnasium
    import numpy as np
    import stable_baselines3
    from stable_baselines3.common.logger import Logger

    model = getattr(stable_baselines3, name.upper())(
        "MlpPolicy",
        gymnasium.make("HalfCheetah-v5"),
        batch_size=BATCH,
        buffer_size=20_000,
        device=device,
        policy_kwargs={"net_arch": list(SIZES[name])},
    )
    model._setup_learn(1000)
    model.set_logger(Logger(None, []))
    rng = np.random.default_rng(0)
    for _ in range(10_000):
        obs, then = rng.standard_normal((2, 1, OBS))
        model.replay_buffer.add(obs, then, rng.uniform(-1, 1, (1, ACTIONS)), rng.random(1), np.zeros(1), [{}])
    return lambda: model.train(gradient_steps=1, batch_size=BATCH)


# ---- draws per step


def ratio(options: argparse.Namespace) -> Found:
    """Checks that the configured ratio holds for any number of actors."""
    rows, runs = [], []
    for actors in (1, 2, 4):
        overrides = (f"actors={actors}", "stop.steps=4000", "stop.mean_return=null", *options.settings)
        run = shoal("pendulum_sac", 1, overrides)
        runs.append(run)
        say(f"  {actors} actors: {run.samples_per_insert} draws per step, {run.updates:,} updates")
        apart = abs((run.samples_per_insert or 0.0) / 128 - 1.0)
        what = f"draws per step, {actors} actors (configured: 128)"
        rows.append(Row(what, run.samples_per_insert or 0.0, bar="within 5 %", holds=apart <= 0.05))
    return rows, runs


# ---- Pendulum


def pendulum(options: argparse.Namespace) -> Found:
    """Every algorithm, every seed."""
    runs = []
    for seed in range(1, options.seeds + 1):
        for name in options.algorithms:
            runs.append(one := shoal(f"pendulum_{name}", seed, tuple(options.settings), who=name))
            say(
                f"  seed {seed}: {name} {one.status} after {one.env_steps:,} steps, {one.seconds:.0f} s: {one.last:.0f}"
            )
    rows = []
    for name in options.algorithms:
        mine = [one for one in runs if one.who == name]
        reached = [found[0] for one in mine if (found := one.first_at(GOAL)) is not None and found[0] <= STEPS]
        others = {"median steps": statistics.median(reached), "most steps": max(reached)} if reached else {}
        what = f"{name}: seeds above {GOAL:g} within {STEPS:,} steps"
        held = len(reached) == len(mine)
        rows.append(Row(what, len(reached), bar=f"= {len(mine)}", holds=held, others=others))
    return rows, runs


ZOO = {"learning_rate": 1e-3}
OUR_SIZES = {"learning_rate": 1e-3, "batch_size": 128, "learning_starts": 500, "policy_kwargs": {"net_arch": [64, 64]}}


def wall(options: argparse.Namespace) -> Found:
    """Seconds from the first step to the first evaluation above the goal."""
    plans = [
        Sb3Plan("SAC", "Pendulum-v1", STEPS, settings, 500, 20, GOAL, who)
        for who, settings in (("sb3 sac, zoo", ZOO), ("sb3 sac, our sizes", OUR_SIZES))
    ]
    runs: list[Outcome] = []
    for seed in range(1, options.seeds + 1):
        runs.append(shoal("pendulum_sac", seed, tuple(options.settings)))
        runs.extend(sb3(plan, seed) for plan in plans)
        for one in runs[-3:]:
            say(f"  seed {seed}: {one.who} {one.status} after {one.env_steps:,} steps, {one.seconds:.1f} s")
    taken = {
        who: [found[1] if (found := one.first_at(GOAL)) else one.seconds for one in runs if one.who == who]
        for who in ("shoal", *(plan.who for plan in plans))
    }
    median = {who: statistics.median(seconds) for who, seconds in taken.items()}
    rows = []
    for plan, bar in zip(plans, (0.6, None), strict=True):
        value = statistics.median(a / b for a, b in zip(taken["shoal"], taken[plan.who], strict=True))
        holds = None if bar is None else value <= bar
        text = "" if bar is None else f"<= {bar:g}x"
        rows.append(Row("seconds to -200, Pendulum", median["shoal"], median[plan.who], plan.who, value, text, holds))
    return rows, runs


# ---- HalfCheetah


def halfcheetah(options: argparse.Namespace) -> Found:
    """The same networks, batch, learning rate, random steps and updates per step."""
    every = max(1000, options.steps // 20)
    calls: list[Callable[[], Outcome]] = []
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for name in options.algorithms:
            width = list(SIZES[name])
            rate = 3e-4 if name == "sac" else 1e-3
            settings = {"learning_rate": rate, "learning_starts": 5000, "policy_kwargs": {"net_arch": width}}
            settings |= {"batch_size": BATCH, "device": options.peer_device or options.device}
            if name == "td3":
                settings |= {"train_freq": 1, "gradient_steps": 1}
            overrides = [f"stop.steps={options.steps}", "stop.mean_return=null", f"evaluation.every_steps={every}"]
            overrides += [f"policy_hidden={width}", f"critic_hidden={width}", f"learning_rate={rate}"]
            overrides += [f"policy_learning_rate={rate}", "evaluation.episodes=5", "evaluation.lanes=5"]
            overrides += ["replay.min_size=5000", f"learner.device={options.device}", *options.settings]
            ours = (f"halfcheetah_{name}", seed, tuple(overrides), f"shoal {name}")
            plan = Sb3Plan(name.upper(), "HalfCheetah-v5", options.steps, settings, every, 5, None, f"sb3 {name}")
            plan.threads = options.peer_threads
            both = {"sb3": partial(sb3, plan, seed), "shoal": partial(shoal, *ours)}
            calls += [
                partial(
                    _kept, both[who], f"{who}_{name}_{seed}", options.steps, overrides if who == "shoal" else settings
                )
                for who in options.contenders
            ]
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda call: call(), calls))
    runs = [run for run in _kept_runs(options.steps) if run.who.split()[1] in options.algorithms]
    return _beside_sb3(runs, options), runs


def _kept(call: Callable[[], Outcome], name: str, steps: int, settings: Any) -> None:
    """Runs one seed and saves the result, unless it already exists."""
    file = HALFCHEETAH / f"{name}.json"
    if file.exists() and json.loads(file.read_text())["steps"] == steps:
        say(f"  {file.name} exists")
        return
    one = call()
    say(f"  seed {one.seed}: {one.who} {one.last:.0f} after {one.env_steps:,} steps, {one.seconds:.0f} s")
    HALFCHEETAH.mkdir(exist_ok=True)
    content = {**described(PACKAGES), "steps": steps, "settings": settings, "run": asdict(one)}
    file.write_text(json.dumps(content, indent=1) + "\n")


def _kept_runs(steps: int) -> list[Outcome]:
    found = [json.loads(file.read_text()) for file in sorted(HALFCHEETAH.glob("*.json"))]
    return [Outcome(**one["run"]) for one in found if one["steps"] == steps]


def _beside_sb3(runs: list[Outcome], options: argparse.Namespace) -> list[Row]:
    """Final returns, over the seeds that each side has."""
    rows = []
    for name in options.algorithms:
        ours, theirs = ([one.last for one in runs if one.who == f"{who} {name}"] for who in ("shoal", "sb3"))
        what = f"{name}: mean return after {options.steps:,} steps, {len(ours)} and {len(theirs)} seed(s)"
        if len(ours) < 2 or len(theirs) < 2:
            rows += [Row(f"{who}: {what}", statistics.mean(x)) for who, x in (("shoal", ours), ("sb3", theirs)) if x]
            continue
        mine, peer, spread = statistics.mean(ours), statistics.mean(theirs), statistics.stdev(theirs)
        others = {"deviation, shoal": statistics.stdev(ours), "deviation, sb3": spread}
        bar = ">= SB3's less its spread"
        rows.append(Row(what, mine, peer, f"sb3 {name}", mine / peer, bar, mine >= peer - spread, others=others))
    return rows


PARTS: dict[str, Callable[[argparse.Namespace], Found]] = {
    "updates": updates,
    "ratio": ratio,
    "pendulum": pendulum,
    "wall": wall,
    "halfcheetah": halfcheetah,
}


# ---- results


def plot(part: str) -> None:
    """Draws the curves of a part's last results: one colour per contender, one thin line per seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    runs = json.loads((RESULTS / f"continuous_{part}.json").read_text())["runs"]
    names = list(dict.fromkeys(run["who"] for run in runs))
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for colour, name in enumerate(names):
        for number, run in enumerate(one for one in runs if one["who"] == name):
            steps, _, means = zip(*run["curve"], strict=True)
            axes.plot(steps, means, color=f"C{colour}", alpha=0.7, lw=1.2, label=name if number == 0 else None)
    if part != "halfcheetah":
        axes.axhline(GOAL, color="gray", lw=0.8, ls=":")
    axes.set(xlabel="environment steps", ylabel="mean return of greedy episodes")
    axes.legend(frameon=False)
    IMAGES.mkdir(parents=True, exist_ok=True)
    figure.savefig(IMAGES / f"continuous_{part}.png", dpi=120)
    console.print(f"{IMAGES / f'continuous_{part}.png'} written.")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, action="append", help="only this part; can be repeated")
    parser.add_argument("--seeds", type=int, help="number of seeds (5; halfcheetah: 3)")
    parser.add_argument("--first-seed", type=int, default=1, help="first seed of halfcheetah (1)")
    parser.add_argument("--steps", type=int, default=100_000, help="environment steps of halfcheetah (100,000)")
    parser.add_argument("--algorithms", nargs="+", help="algorithms of pendulum and halfcheetah; default: all")
    parser.add_argument("--device", default="cpu", help="learner device in updates and halfcheetah: cpu or cuda")
    parser.add_argument("--peer-device", help="device of SB3 in halfcheetah, if different")
    parser.add_argument("--contenders", nargs="+", choices=("sb3", "shoal"), help="sides of halfcheetah; default: both")
    parser.add_argument("--peer-threads", type=int, default=1, help="threads of each SB3 run of halfcheetah (1)")
    parser.add_argument("--jobs", type=int, default=1, help="parallel runs of halfcheetah (1)")
    parser.add_argument("--seconds", type=float, default=3.0, help="per contender and round of updates")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of updates")
    parser.add_argument("--settings", nargs="*", default=[], metavar="KEY=VALUE", help="settings for every Shoal run")
    parser.add_argument("--plot", action="store_true", help="also draw the curves into docs/images")
    parser.add_argument("--strict", action="store_true", help="exit code 1 when a bar does not hold")
    return parser.parse_args()


def main() -> int:
    options = parse()
    given = options.seeds, options.algorithms
    options.contenders = options.contenders or ["sb3", "shoal"]
    holds = True
    for part in options.only or PARTS:
        options.seeds = given[0] or (3 if part == "halfcheetah" else 5)
        options.algorithms = given[1] or (("sac", "td3") if part == "halfcheetah" else ALGORITHMS)
        say(f"{part}:")
        rows, runs = PARTS[part](options)
        apart = options.device != "cpu" and part != "halfcheetah"
        name = f"continuous_{part}" + (f"_{options.device}" if apart else "")
        settings = {key: value for key, value in vars(options).items() if key not in ("only", "plot", "strict")}
        holds &= report(name, rows, PACKAGES, settings)
        written = RESULTS / f"{name}.json"
        content = json.loads(written.read_text()) | {"runs": [asdict(one) for one in runs]}
        written.write_text(json.dumps(content, indent=1) + "\n")
        if options.plot and runs:
            plot(part)
    return 1 if options.strict and not holds else 0


if __name__ == "__main__":
    sys.exit(main())
