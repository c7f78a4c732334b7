"""From the arguments of `shoal share` to runs that can be started."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shoal.cli.output import relative
from shoal.cli.share_worker import WorkerSpec
from shoal.config.load import load_target
from shoal.config.sb3_scenario import is_sb3_scenario, load_sb3_scenario, scenario_stem
from shoal.errors import ConfigError
from shoal.sharing import Registry, create_distributed_registry
from shoal.sharing.launcher import PlannedRun
from shoal.sharing.registry import BUFFER_ID, ENV_ID, REGISTRY, RUN_ID
from shoal.sharing.sb3_settings import Sb3Settings
from shoal.sharing.strategies import RATIO, STRATEGY

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_LARGEST_BUFFER = 1_000_000
"""Stable-Baselines3's default."""


@dataclass(frozen=True)
class ShareOptions:
    """What was asked of all runs; see `shoal share --help`."""

    ratio: float
    strategy: str
    gpus: tuple[int, ...]
    base_seed: int
    steps: int | None
    overrides: tuple[str, ...]
    wandb: bool
    min_buffer_size: int
    stale_seconds: float

    @property
    def sharing(self) -> bool:
        """Whether the runs share."""
        return self.strategy != "local_only"


@dataclass(frozen=True)
class Candidate:
    """A run whose settings are checked. `sb3` is None for Shoal's own algorithms."""

    name: str
    algorithm: str
    env_id: str
    steps: int | None
    scenario: Path
    overrides: tuple[str, ...]
    sb3: Sb3Settings | None = None

    @property
    def reads(self) -> bool:
        """Whether it can learn from the others."""
        return self.sb3 is None or self.sb3.reads


def choose(scenarios: Sequence[str], count: int | None) -> list[Path]:
    """The scenario of every run: all in turn, until there are `count`."""
    if not scenarios:
        raise ConfigError("Share what? Name one or more scenarios: `shoal share sb3_sac_pendulum -n 4`.")
    for name, times in Counter(scenarios).items():
        if times > 1:
            raise ConfigError(f"{name} was given {times} times. For several runs of it write -n {times}.")
    count = len(scenarios) if count is None else count
    if count % len(scenarios):
        raise ConfigError(
            f"--n-parallel {count} cannot be used with {len(scenarios)} scenarios: it must be a multiple of that."
        )
    return [Path(name) for name in scenarios] * (count // len(scenarios))


def load_runs(scenarios: Sequence[Path], options: ShareOptions) -> list[Candidate]:
    """Reads and checks every scenario, so that nothing is started if one of them cannot be used."""
    return [_load(path, number, options) for number, path in enumerate(scenarios)]


def _load(path: Path, number: int, options: ShareOptions) -> Candidate:
    sb3 = is_sb3_scenario(path)
    own = [*options.overrides, f"seed={options.base_seed + number}"]
    if options.steps is not None:
        own.append(f"{'total_timesteps' if sb3 else 'stop.steps'}={options.steps}")
    name = f"{scenario_stem(path)}_{number}"
    try:
        if sb3:
            settings = load_sb3_scenario(path, own)
            env_id, steps = settings.env.sharing_id, settings.total_timesteps
            return Candidate(name, settings.algo, env_id, steps, path, tuple(own), settings)
        from shoal.loops.sharing_group import sharing_id  # loads torch and numba

        run = load_target(str(path), own, consent="")
        return Candidate(name, run.algo, sharing_id(run.env), run.stop.steps, path, tuple(own))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def registry_sizes(candidates: Sequence[Candidate], options: ShareOptions) -> dict[str, Any]:
    """Arguments of `create_distributed_registry`."""
    asked = [one.sb3.hyperparameters.get("buffer_size", 0) for one in candidates if one.sb3 is not None]
    largest = max(_LARGEST_BUFFER, *(size for size in asked if isinstance(size, int)), 0)
    limits = {"min_buffer_size": options.min_buffer_size, "stale_seconds": options.stale_seconds}
    return {"max_buffer_size": largest, **limits}


@contextlib.contextmanager
def open_registry(candidates: Sequence[Candidate], options: ShareOptions, folder: Path) -> Iterator[Registry | None]:
    """The group's registry, removed with all its content afterwards; None when nothing is shared."""
    if not options.sharing:
        yield None
        return
    registry = create_distributed_registry(**registry_sizes(candidates, options))
    try:
        # `shoal clean` asks the owner before it frees anything on shared memory.
        (registry.path / "owner.json").write_text(json.dumps({"run": str(folder), "pid": os.getpid()}))
        yield registry
    finally:
        registry.stop()


def plan(
    options: ShareOptions,
    candidates: Sequence[Candidate],
    folder: Path,
    registry: Registry | None,
    launcher: int | None = None,
) -> list[PlannedRun]:
    """Folders, specifications, commands and environment variables. On a cluster it is called on the runs' node.

    Args:
        options: what was asked of all runs.
        candidates: the runs.
        folder: of the launch.
        registry: None when nothing is shared.
        launcher: see `WorkerSpec`; by default this process.
    """
    group = folder.parent.name if options.wandb else None
    runs = []
    for number, one in enumerate(candidates):
        own = folder / one.name
        own.mkdir()
        spec = WorkerSpec(
            run_id=one.name,
            folder=str(own),
            launcher=os.getpid() if launcher is None else launcher,
            registry=None if registry is None else str(registry.path),
            group=group,
            sb3=None if one.sb3 is None else one.sb3.model_dump(mode="json"),
            scenario=str(one.scenario),
            overrides=(*one.overrides, *_shoal_sharing(one, options, registry)),
        )
        (own / "spec.json").write_text(json.dumps(asdict(spec), indent=2) + "\n", encoding="utf-8")
        command = (sys.executable, "-m", "shoal.cli.share_worker", str(own / "spec.json"))
        environment = _environment(one, options, number, registry)
        runs.append(PlannedRun(one.name, one.algorithm, own, command, environment, one.steps, one.reads))
    return runs


def announce(candidates: Sequence[Candidate], options: ShareOptions, folder: Path) -> Iterator[str]:
    """Lines for the user: the runs, how they share, and what about it may surprise."""
    algorithms = ", ".join(f"{count} {name}" for name, count in Counter(one.algorithm for one in candidates).items())
    how = f"{options.strategy}, ratio {options.ratio:g}" if options.sharing else "local_only: nothing is shared"
    yield f"{len(candidates)} runs ({algorithms}), {how}; logs and results in {relative(folder)}"
    if not options.sharing:
        return
    if givers := [one.name for one in candidates if not one.reads]:
        yield f"On-policy, so they contribute their steps and never read others': {', '.join(givers)}."
    if not any(one.reads for one in candidates):
        yield "Nobody reads: every run is on-policy. Add one of SAC, TD3, DDPG, DQN, QRDQN or TQC."
    elif len(candidates) == 1:
        yield "One run has nobody to share with: add scenarios, or copies with -n."
    environments = sorted({one.env_id for one in candidates})
    if len(environments) > 1:
        yield f"Runs share within an environment only; there are {len(environments)}: {', '.join(environments)}."


def _environment(one: Candidate, options: ShareOptions, number: int, registry: Registry | None) -> dict[str, str]:
    variables = {name: value for name, value in os.environ.items() if name not in (REGISTRY, BUFFER_ID)}
    variables |= {RUN_ID: one.name, ENV_ID: one.env_id, STRATEGY: options.strategy, RATIO: repr(options.ratio)}
    if registry is not None:
        variables[REGISTRY] = str(registry.path)
    if options.gpus:
        variables["CUDA_VISIBLE_DEVICES"] = str(options.gpus[number % len(options.gpus)])
    if one.sb3 is not None:
        variables |= dict.fromkeys(_THREAD_VARIABLES, str(one.sb3.threads))
    return variables


def _shoal_sharing(one: Candidate, options: ShareOptions, registry: Registry | None) -> list[str]:
    """How a run of Shoal's own algorithms is told to share."""
    if one.sb3 is not None or registry is None:
        return []
    return [f"share.registry={registry.path}", f"share.ratio={options.ratio}", f"share.strategy={options.strategy}"]
