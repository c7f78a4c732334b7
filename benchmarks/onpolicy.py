"""PPO beside Stable-Baselines3's, and on MuJoCo beside CleanRL's published returns: `make bench-onpolicy`.

    --only cartpole      seconds of training until 20 greedy episodes reach 475; five seeds, one process after the other
    --only throughput    environment steps per second with the same rollouts, minibatches and epochs, in turn
    --only mujoco        a million steps of HalfCheetah, Hopper and Walker2d, five seeds, two runs at a time

The first two parts need a machine with nothing else to do. Runs of the third take minutes each; finished ones are kept
in results/onpolicy-partial.jsonl, and the next call goes on with what is missing (`--seeds 2`: only the first two).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from _harness import RESULTS, Row, described, report, say
from impala import PACKAGES, ROOT, train

GOAL, EVERY, EPISODES, SEEDS = 475.0, 2_000, 20, 5
ZOO = {"n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20}
"""RL Baselines3 Zoo's PPO for CartPole, with eight environments; `cartpole_ppo` has the same."""
CLEANRL = {"halfcheetah": 1_443.0, "hopper": 2_383.0, "walker2d": 2_288.0}
"""CleanRL's mean returns of training after a million steps."""
STORE = RESULTS / "onpolicy-partial.jsonl"
ENDLESS = ("--stop-return", "1e9", "--steps", "1000000000", "evaluation.every_steps=1000000000")


# ---- CartPole: seconds to 475


def shoal_cartpole(name: str, seed: int) -> dict[str, float]:
    """`cartpole_ppo`, or the defaults with nothing set."""
    import shoal

    goal = {"evaluation.every_steps": EVERY, "evaluation.episodes": EPISODES}
    algo = None if name == "cartpole_ppo" else "ppo"
    with tempfile.TemporaryDirectory() as folder:
        run = shoal.train(
            name, algo=algo, runtime="inline", seed=seed, stop_return=GOAL, steps=200_000, out=folder, quiet=True,
            settings=goal,
        )  # fmt: skip
        summary, lines = run.summary, list(run.metrics())
    assert summary is not None
    judged = [line for line in lines if line.get("eval/mean_reward") is not None]
    evaluating = sum(line["time/eval_seconds"] for line in judged)
    seconds = judged[-1]["wall"] - (summary.startup_seconds or 0.0) - evaluating
    return {"seconds": seconds, "steps": judged[-1]["step"], "solved": float(summary.status == "solved")}


def sb3_cartpole(seed: int) -> dict[str, float]:
    """The Zoo's settings; judged as often, with as many episodes."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.utils import LinearSchedule

    torch.set_num_threads(1)
    judged = make_vec_env("CartPole-v1", EPISODES, seed=seed + 20_000)

    class Judge(BaseCallback):
        began = spent = reached = 0.0
        due = EVERY

        def _on_training_start(self) -> None:
            self.began = time.perf_counter()

        def _on_step(self) -> bool:
            if self.num_timesteps < self.due:
                return True
            self.due += EVERY
            now, trained = time.perf_counter(), time.perf_counter() - self.began - self.spent
            mean, _ = evaluate_policy(self.model, judged, EPISODES)
            self.spent += time.perf_counter() - now
            self.reached = trained if mean >= GOAL else 0.0
            return mean < GOAL  # type: ignore[operator]

    watch = Judge()
    falling = {name: LinearSchedule(start, 0.0, 1.0) for name, start in (("learning_rate", 1e-3), ("clip_range", 0.2))}
    model = PPO("MlpPolicy", make_vec_env("CartPole-v1", 8, seed=seed), seed=seed, device="cpu", **ZOO, **falling)
    model.learn(100_000, callback=watch)
    total = time.perf_counter() - watch.began - watch.spent
    return {"seconds": watch.reached or total, "steps": model.num_timesteps, "solved": float(watch.reached > 0)}


def sb3_rate(vector: str, lanes: int, steps: int, batch: int, epochs: int, seconds: float) -> dict[str, float]:
    """Environment steps per second of SB3's PPO."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common import vec_env
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)

    class Clock(BaseCallback):
        began = 0.0

        def _on_training_start(self) -> None:
            self.began = time.perf_counter()

        def _on_step(self) -> bool:
            return time.perf_counter() - self.began < seconds

    env = make_vec_env("CartPole-v1", lanes, seed=1, vec_env_cls=getattr(vec_env, vector))
    model = PPO("MlpPolicy", env, seed=1, device="cpu", n_steps=steps, batch_size=batch, n_epochs=epochs)
    watch = Clock()
    model.learn(10**9, callback=watch)
    found = {"rate": model.num_timesteps / (time.perf_counter() - watch.began)}
    env.close()
    return found


UNITS = {"shoal": shoal_cartpole, "sb3": sb3_cartpole, "sb3_rate": sb3_rate}


def alone(unit: str, *arguments: Any) -> dict[str, float]:
    """One measurement in a process of its own."""
    command = [sys.executable, "-W", "ignore", __file__, "--unit", json.dumps([unit, *arguments])]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)
    if done.returncode:
        raise SystemExit(f"{unit} {arguments} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def cartpole(seeds: int) -> list[Row]:
    """Seconds to 475, in turn."""
    contenders = {
        "nothing set": ("shoal", "CartPole-v1"), "cartpole_ppo": ("shoal", "cartpole_ppo"), "sb3": ("sb3",)
    }  # fmt: skip
    found: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
    for seed in range(1, seeds + 1):
        for name, (unit, *arguments) in contenders.items():
            found[name].append(alone(unit, *arguments, seed))
            one = found[name][-1]
            say(f"  seed {seed}, {name}: {one['seconds']:.2f} s, {one['steps']:,.0f} steps, solved: {one['solved']:g}")
    seconds = {name: [one["seconds"] for one in runs] for name, runs in found.items()}
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    others = {name: value for name, value in medians.items() if name != "sb3"} | {
        f"worst, {name}": max(each) for name, each in seconds.items()
    }
    ours, solved = medians["nothing set"], sum(one["solved"] for one in found["nothing set"])
    solved_all = [Row("CartPole: seeds that reach 475", solved, bar=f"= {seeds}", holds=solved == seeds)]
    what, peer = "CartPole, inline: median seconds of training to 475", medians["sb3"]
    return [*solved_all, Row(what, ours, peer, "SB3 PPO, Zoo", ours / peer, "<= 1x", ours <= peer, others)]


COMPILING = 60.0
"""Seconds that a compiled learner has before it is measured."""
SAME = ("algorithm.epochs=10", "algorithm.schedule_updates=0", "algorithm.surrogate_clip_end=null")


def shoal_rate(minibatches: int, seconds: float, *options: str, compiled: bool = False) -> float:
    """Environment steps per second in the last `seconds` of a run on Ray with two actors of eight lanes."""
    warm = COMPILING if compiled else 5.0
    size = ("env.lanes=8", "algorithm.unroll=128", f"algorithm.minibatches={minibatches}", "report_seconds=1")
    limit = ("--actors", "2", "--seconds", f"{warm + seconds}", f"learner.compile={str(compiled).lower()}")
    _, lines, _ = train("cartpole_ppo", *limit, *size, *SAME, *ENDLESS, *options)
    last = next(line for line in reversed(lines) if "time/fps" in line)
    first = next(line for line in lines if line["wall"] >= last["wall"] - seconds)
    return float((last["step"] - first["step"]) / (last["wall"] - first["wall"]))


def throughput(seconds: float, rounds: int) -> list[Row]:
    """The same work per step on both sides: rollouts of 2,048 steps and ten epochs, in minibatches of 64 (SB3's
    defaults) and of 256.
    """
    rows = []
    lag = "replay=[{type: rollout, lag: 1}]"
    for batch in (64, 256):
        contenders: dict[str, Any] = {
            "as it is": lambda parts=2_048 // batch: shoal_rate(parts, seconds),
            "compiled": lambda parts=2_048 // batch: shoal_rate(parts, seconds, compiled=True),
            "compiled, lag 1": lambda parts=2_048 // batch: shoal_rate(parts, seconds, lag, compiled=True),
        }
        for vector, lanes in (("DummyVecEnv", 16), ("SubprocVecEnv", 2)):
            arguments = (vector, lanes, 2_048 // lanes, batch, 10, seconds)
            contenders[f"SB3, {vector}"] = lambda arguments=arguments: alone("sb3_rate", *arguments)["rate"]
        rates: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(rounds):
            for name, measure in contenders.items():
                rates[name].append(measure())
            say(f"  minibatches of {batch}: " + ", ".join(f"{name} {each[-1]:,.0f}" for name, each in rates.items()))
        peers = [name for name in rates if name.startswith("SB3")]
        best = max(peers, key=lambda name: statistics.median(rates[name]))
        for name in contenders:
            if name in peers:
                continue
            ratio = statistics.median(ours / peer for ours, peer in zip(rates[name], rates[best], strict=True))
            ours, peer = statistics.median(rates[name]), statistics.median(rates[best])
            what = f"CartPole, ray, {name}: env steps/s, ten epochs of minibatches of {batch}"
            others = {one: statistics.median(rates[one]) for one in peers}
            rows.append(Row(what, ours, peer, best, ratio, ">= 3x", ratio >= 3.0, others))
    return rows


# ---- MuJoCo


def mujoco_run(env: str, seed: int) -> dict[str, Any]:
    """A million steps. `train`: return of the last 100 episodes of training; `score`: that of the final weights."""
    arguments = ("--runtime", "inline", "--seed", str(seed), "evaluation.episodes=10", "learner.compile=true")
    summary, lines, _ = train(f"{env}_ppo", *arguments, "evaluation.every_steps=250000", limit=3_600)
    training = [line["rollout/ep_rew_mean"] for line in lines if "rollout/ep_rew_mean" in line]
    machine = {name: value for name, value in described(PACKAGES).items() if name in ("commit", "time")}
    score, rate = summary["eval_return_mean"], summary["steps_per_second"]
    return {"env": env, "seed": seed, "train": training[-1], "score": score, "rate": rate, **machine}


def mujoco(seeds: int, envs: list[str]) -> list[Row]:
    """Goes on with what is missing."""
    lines = STORE.read_text().splitlines() if STORE.exists() else []
    found = {(one["env"], one["seed"]): one for one in map(json.loads, lines)}
    wanted = [(env, seed) for seed in range(1, seeds + 1) for env in envs if (env, seed) not in found]

    def run(place: tuple[str, int]) -> None:
        one = found[place] = mujoco_run(*place)
        with STORE.open("a") as file:
            file.write(json.dumps(one) + "\n")
        say(f"  {place[0]} seed {place[1]}: training {one['train']:,.0f}, final {one['score']:,.0f}")

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(run, wanted))
    rows = []
    for env in envs:
        runs = [found[env, seed] for seed in range(1, seeds + 1)]
        mean, judged = (statistics.fmean(one[name] for one in runs) for name in ("train", "score"))
        each = {f"seed {one['seed']}": one["train"] for one in runs} | {"final weights, greedy": judged}
        bar, what = CLEANRL[env], f"{env}: return of training after 1M steps, {seeds} seeds"
        holds = mean >= bar if seeds >= SEEDS else None  # not known from fewer
        rows.append(Row(what, mean, bar, "CleanRL, published", mean / bar, f">= {bar:,.0f}", holds, each))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("cartpole", "throughput", "mujoco"), help="only this part")
    parser.add_argument("--env", choices=CLEANRL, action="append", help="mujoco: only this one; can be repeated")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"mujoco: number of seeds ({SEEDS})")
    parser.add_argument("--quick", action="store_true", help="a smoke test of the first two parts")
    parser.add_argument("--strict", action="store_true", help="exit code 1 when a bar does not hold")
    parser.add_argument("--unit", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.unit:
        name, *arguments = json.loads(options.unit)
        print(json.dumps(UNITS[name](*arguments)))
        return 0
    quick, holds = options.quick, True
    parts = {
        "cartpole": lambda: cartpole(1 if quick else SEEDS),
        "throughput": lambda: throughput(5.0 if quick else 15.0, 1 if quick else 3),
        "mujoco": lambda: mujoco(options.seeds, options.env or list(CLEANRL)),
    }
    names = [options.only] if options.only else ["cartpole", "throughput"] if quick else list(parts)
    for name in names:
        say(f"{name} ({time.strftime('%H:%M:%S')}, load {os.getloadavg()[0]:.1f})")
        part = "onpolicy-partial" if quick else f"onpolicy_{name}"
        rows = parts[name]()
        runs = [json.loads(line) for line in STORE.read_text().splitlines()] if name == "mujoco" else []
        holds &= report(part, rows, (*PACKAGES, "stable-baselines3"), {"quick": quick, "runs": runs})
    return 1 if options.strict and not holds else 0


if __name__ == "__main__":
    sys.exit(main())
