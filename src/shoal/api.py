"""Shoal from Python: train, load, look at the results, use the policy.

run = shoal.train("CartPole-v1", algo="apex-dqn", actors=2, stop_return=475)
print(run.summary.status, run.evaluate(episodes=100).mean)

run = shoal.load("runs/latest")
action, state = run.predict(obs)
"""

from __future__ import annotations

import contextlib
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from shoal.config.checks import check_environment, with_default_stop
from shoal.config.load import left_out, load_config, load_target
from shoal.config.merge import Overrides, parse_overrides
from shoal.config.resume import change_for_resume
from shoal.config.signature import sign, write_config
from shoal.config.trust import require_trust
from shoal.errors import ConfigError
from shoal.loops.plan import Plan
from shoal.loops.settings import RunSettings
from shoal.run import Evaluation, Run, Which
from shoal.runtime.placed import run_where_placed
from shoal.runtime.repair import known_counts
from shoal.runtime.run_folder import RunFolder
from shoal.runtime.sinks import WandbSettings
from shoal.runtime.storage_copy import fetch_run
from shoal.runtime.summary import Summary, read_summary
from shoal.sharing import connect_registry

__all__ = ["Evaluation", "Run", "load", "resume", "train"]

_OPTIONS = {
    "steps": "stop.steps",
    "seconds": "stop.seconds",
    "stop_return": "stop.mean_return",
    "device": "learner.device",
}
"""Arguments of `train` and `resume`, and options of the command line, that have another name than their setting."""


def train(
    env_or_scenario: str | Path,
    *,
    algo: str | None = None,
    actors: int | Literal["auto"] | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    stop_return: float | None = None,
    seed: int | None = None,
    runtime: Literal["inline", "ray"] | None = None,
    device: str | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
    wandb: bool = False,
    trust: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> Run:
    """Trains to the end and returns the run. None keeps the scenario's value, or the default.

    Args:
        env_or_scenario: a Gymnasium id (`"CartPole-v1"`, `"my_package:MyEnv-v0"`), or a scenario's path or name.
        algo: the algorithm, your own as `"module:NAME"`; one that suits the environment unless the scenario names one.
        actors: actor processes; auto: one for every free core.
        steps, seconds, stop_return: when to end: whichever comes first. With none of them, and none in a scenario, at
            the return where the environment counts as solved, and after a million steps at the latest.
        seed: of everything random.
        runtime: ray (a process per role) or inline (this process, reproducible).
        device: of the learner: auto, cpu, cuda, cuda:1, …
        out: where run folders are made; `runs` by default.
        quiet: show no progress.
        wandb: also log to Weights & Biases.
        trust: obey what a run folder from somebody else names: modules to import, a Ray address, folders.
        settings: anything else, by dotted name: `{"learner.batch_size": 256}`.

    Raises:
        ConfigError: a value cannot be used; nothing was started.
        ShoalError: the run failed; its folder says more.
    """
    given = named_settings(algo=algo, actors=actors, seed=seed, runtime=runtime, device=device)
    given |= named_settings(steps=steps, seconds=seconds, stop_return=stop_return)
    loaded = load_target(str(env_or_scenario), {**(settings or {}), **given}, trust=trust)
    for note in left_out(str(env_or_scenario), loaded):
        warnings.warn(note, stacklevel=2)
    plan, folder = begin(loaded, out)
    run_where_placed(plan, folder, quiet=quiet, wandb=wandb_settings(plan.settings, folder) if wandb else None)
    return Run(folder.path, trust=True)


def resume(
    run: str | Path | Run,
    *,
    steps: int | None = None,
    seconds: float | None = None,
    stop_return: float | None = None,
    quiet: bool = False,
    wandb: bool = False,
    trust: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> Run:
    """Continues a run that was interrupted or failed, or that gets a later end. Arguments as in `train`.

    Args:
        run: its folder, or the URL of its copy (`checkpoints.path`), which is fetched into `runs`.
    """
    given = named_settings(steps=steps, seconds=seconds, stop_return=stop_return)
    place = run.path if isinstance(run, Run) else run
    trust = trust or (isinstance(run, Run) and run.trusted)
    told = (lambda text: None) if quiet else print
    plan, folder = begin_again(place, {**(settings or {}), **given}, trust=trust, note=told)
    board = wandb_settings(plan.settings, folder) if wandb else None
    run_where_placed(plan, folder, resume=True, quiet=quiet, wandb=board)
    return Run(folder.path, trust=True)


def load(run: str | Path, *, checkpoint: Which | None = None, trust: bool = False, overrides: Overrides = ()) -> Run:
    """Opens a run. The modules it names are imported when its environment or its policy is first used; that of an
    algorithm which is not Shoal's at once.

    Args:
        run: its folder, such as `runs/latest`.
        checkpoint: whose weights to use: `"best"` in evaluation, or `"last"`; None: the best if there is one.
        trust: import what the folder names even if somebody else made it. Your own runs need no trust.
        overrides: what to evaluate instead, such as `["env.kwargs.size=40"]`: of `env.kwargs`, `env.max_episode_steps`
            and `evaluation`.
    """
    if checkpoint not in (None, "best", "last"):
        raise ConfigError(f"checkpoint = {checkpoint!r} cannot be used: it must be best or last.")
    return Run(Path(run), checkpoint, trust=trust, overrides=overrides)


def named_settings(**options: Any) -> dict[str, Any]:
    """The options that were given (not None), under the names of the settings they stand for."""
    return {_OPTIONS.get(name, name): value for name, value in options.items() if value is not None}


def begin(settings: RunSettings, out: str | Path | None = None) -> tuple[Plan, RunFolder]:
    """Checks that a run can start, and creates its folder with `config.yaml`. A refused run leaves no folder."""
    plan = check_environment(settings)
    if settings.share.registry is not None:
        connect_registry(settings.share.registry)  # raises if it is no registry
    plan = replace(plan, settings=with_default_stop(settings, plan.spec.reward_threshold))
    folder = RunFolder.create(None if out is None else Path(out), settings.env.id, settings.algo, datetime.now())
    try:
        write_config(folder.path, plan.settings)
    except OSError as error:
        shutil.rmtree(folder.path, ignore_errors=True)
        parent = folder.path.parent
        raise ConfigError(f"Cannot make runs in {parent}: {error.strerror}. Choose another --out.") from error
    return plan, folder


def begin_again(
    run: str | Path, overrides: Overrides = (), *, trust: bool = False, note: Callable[[str], None] = print
) -> tuple[Plan, RunFolder]:
    """Checks that a run can continue with these changes, and writes them to its `config.yaml`, signed by the user:
    a run that was trusted once needs no trust again. A run at a URL is fetched, and copied there again.
    """
    if "://" in str(run):
        # Given by the user, and first: a setting wins.
        overrides = {"checkpoints.path": str(run).rstrip("/").rpartition("/")[0], **dict(parse_overrides(overrides))}
        run = fetch_run(str(run), note)
    folder = RunFolder.open(Path(run))
    before = load_config(folder.path, trust=trust)
    settings = change_for_resume(before, overrides)
    if not trust:
        require_trust(folder.path, before, settings, overrides)
    with folder.lock():  # raises if the run is alive
        summary = None  # none when its driver was killed; a damaged one is set aside later
        with contextlib.suppress(ConfigError):
            summary = read_summary(folder.summary_json)
        made = known_counts(folder).steps if summary is None else summary.env_steps
        _require_later_end(before, settings, summary, made)
        plan = check_environment(settings)
        if settings != before:
            write_config(folder.path, settings)
        else:
            sign(folder.path, settings)
    return plan, folder


def wandb_settings(settings: RunSettings, folder: RunFolder) -> WandbSettings:
    """How a run shows up in Weights & Biases: under its folder's name, also when it is resumed."""
    return WandbSettings(name=folder.path.name, run_id=folder.path.name, config=settings.model_dump(mode="json"))


def _require_later_end(before: RunSettings, settings: RunSettings, summary: Summary | None, made: int) -> None:
    """Refuses to resume a run that would end at once."""
    stop = settings.stop
    if stop.steps is not None and made >= stop.steps:
        raise ConfigError(
            f"The run has made {made} steps and ends at stop.steps = {stop.steps}: "
            f"raise it, for instance --steps {2 * (stop.steps if 2 * stop.steps > made else made)}."
        )
    if summary is not None and summary.status == "solved" and stop == before.stop:
        raise ConfigError(
            f"The run is solved: it reached stop.mean_return = {stop.mean_return:g}. "
            "To go on, raise it with --stop-return, or set stop.mean_return=null and --steps."
        )
