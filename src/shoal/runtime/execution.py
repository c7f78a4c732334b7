"""One execution of a run, from an empty folder (or an interrupted one) to its summary."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from shoal.errors import (
    CheckpointError,
    ConfigError,
    MachineError,
    NoSpace,
    PlacementError,
    RunInUse,
    ShoalError,
    explained,
)
from shoal.files import read_object
from shoal.loops.assembly import open_ledger
from shoal.loops.checkpoint import BEST, list_checkpoints, load_checkpoint
from shoal.loops.counts import continue_from_checkpoint, count_recovered
from shoal.loops.plan import Plan
from shoal.loops.preparation import needed_bytes, prepare
from shoal.loops.requirements import is_placed_later, require_machine
from shoal.loops.run_paths import RunPaths
from shoal.loops.settings import RunSettings
from shoal.metrics_file import read_metrics, read_whole_lines
from shoal.replay import LedgerWord
from shoal.replay.ledger import RUN
from shoal.replay.storage import folder_bytes, gib, replay_folders
from shoal.runtime.curriculum import CURRICULUM_FILE, CurriculumRecord
from shoal.runtime.file_handles import require_file_handles
from shoal.runtime.growth import grow, grown
from shoal.runtime.inline import run_inline
from shoal.runtime.metrics import MetricsLog
from shoal.runtime.progress import Progress
from shoal.runtime.repair import known_counts, repair
from shoal.runtime.replay_folder import earlier_replay, in_use, new_replay
from shoal.runtime.roster import RosterEntry, count_roles, list_roles, make_roster
from shoal.runtime.run_folder import CONFIG_END, RunFolder, Status, Summary
from shoal.runtime.signals import StopSignals
from shoal.runtime.sinks import WandbSettings, make_sinks
from shoal.runtime.storage_copy import keep_copy, open_copy
from shoal.runtime.supervisor import Supervisor
from shoal.sharing import connect_registry

GROWN_TRIES = 2
"""How often a run that goes on with more actors tries to start with them."""


def execute(
    plan: Plan,
    folder: RunFolder,
    *,
    resume: bool = False,
    console: Any = None,
    quiet: bool = False,
    wandb: WandbSettings | None = None,
    progress: Progress | None = None,
    signals: StopSignals | None = None,
) -> Summary:
    """Runs until it ends, in whatever way, and writes `summary.json`.

    Args:
        plan: the run's plan, still without folders.
        folder: its folder.
        resume: continue where an earlier execution stopped, with its replay.
        console: a rich console for progress; the terminal by default.
        quiet: show no progress.
        wandb: also log there.
        progress: shows it instead of a terminal.
        signals: that ask it to stop; this process's own by default.

    Raises:
        ShoalError: the run failed; the summary says so too.
    """
    shown = progress or Progress(folder.path.name, console=console, quiet=quiet)
    with _in_words(folder), folder.lock(), signals or StopSignals() as signals, shown as progress:
        if not resume:  # first, so that the folder can be opened whatever happens next
            folder.write_run_json(seed=plan.settings.seed, command=sys.argv, config_end=CONFIG_END)
        with failure_written(folder):
            copy = open_copy(plan.settings.checkpoints.path, folder)
        going_on: Plan | None = plan
        tries = 1
        with keep_copy(copy, folder, progress.note, signals):
            while going_on is not None:
                try:
                    summary, going_on = _execute_once(going_on, folder, resume, wandb, progress, signals)
                    tries = GROWN_TRIES
                except PlacementError as error:  # a newcomer can be gone again before the run has begun there
                    tries -= 1
                    if not tries:
                        raise
                    progress.note(f"{error} The run starts once more without what is gone.")
                resume = True
    return summary


def _execute_once(
    begun: Plan, folder: RunFolder, resume: bool, wandb: WandbSettings | None, progress: Progress, signals: StopSignals
) -> tuple[Summary, Plan | None]:
    """Until the run ends, or has to go on with more actors: then, with which plan."""
    with contextlib.ExitStack() as held:
        found_damaged = repair(folder) if resume else []
        begun, lost = _without_lost_registry(grown(begun, folder)) if resume else (begun, [])
        plan, settings = begun, begun.settings
        with failure_written(folder):
            mark = read_object(folder.replay_json).get("mark") if resume else None
            nodes = None
            if is_placed_later(settings):
                require_machine(plan)  # this is the learner's: only now can it be asked
                from shoal.runtime.ray_nodes import join_nodes  # here: loads Ray

                nodes = held.enter_context(join_nodes(plan, folder.path, mark, progress.note))
                held.callback(nodes.release)  # this process may be connected for longer
                plan = nodes.plan
            replay, why = earlier_replay(folder)
            if replay is not None:
                held.enter_context(replay)
            elif resume:
                _require_progress(folder, why)
            require_file_handles(settings.actors, len(plan.schema.columns))
            roster = make_roster(plan)
            roles = count_roles(roster)
            needed = needed_bytes(plan, roles)
            found = replay is not None
            known = mark if nodes and nodes.starts else None  # the outposts that were found have it, too
            replay = replay or held.enter_context(new_replay(folder, needed, settings.replay.path, known))
            replay.sign()
            folder.checkpoints.mkdir(exist_ok=True)
            plan = plan.at(RunPaths(replay.path, folder.checkpoints))
            notes = found_damaged + lost
            try:
                starts = nodes.starts if nodes else {}
                notes += prepare(plan, roles, folder.path.name, partial(known_counts, folder), starts)
            except NoSpace:
                if not found:  # nobody can use what was made so far
                    replay.free()
                raise
            ledger = open_ledger(plan)
            ledger[LedgerWord.STOP] = RUN
            ledger[LedgerWord.RESUMED] = folder.count_resumption() if resume else 0
            if resume:
                with_replay = f"resuming with {ledger.inserts:,} collected steps in the replay"
                notes.append(with_replay if found else continue_from_checkpoint(ledger, folder.checkpoints, why))
                if nodes and nodes.recovered.steps and not found:
                    notes[-1] = count_recovered(settings, ledger, nodes.recovered)
            if nodes:
                nodes.mark = replay.mark
            ledger.beat()
        recovered = nodes.recovered.steps if nodes and not found else 0
        before = max(ledger.env_steps, ledger[LedgerWord.BASE_STEPS] + recovered)
        for text in (*_announce(plan, roster, needed), *notes):
            progress.note(text)
        sinks = make_sinks(folder.path, wandb, progress.note)
        with MetricsLog(folder.path, sinks) as log:
            earlier = read_metrics(folder.metrics_jsonl)
            wall = float(earlier[-1]["wall"]) if earlier else 0.0
            file = folder.path / CURRICULUM_FILE
            curriculum = CurriculumRecord(plan, file, progress.note) if settings.curriculum.start else None
            supervisor = Supervisor(plan, ledger, log, progress, needed, wall, curriculum, before)
            supervisor.health.recall(earlier)
            signals.listen(supervisor.interrupt)
            summary = _run(supervisor, roster, folder, signals, nodes)
        if _is_complete(settings, summary, before):
            replay.free()
            if nodes:
                nodes.free()
        goes_on = supervisor.actors_next is not None and not signals.asked
        return summary, grow(begun, supervisor, folder, nodes.avoided) if nodes and goes_on else None


@contextlib.contextmanager
def _in_words(folder: RunFolder) -> Iterator[None]:
    """Turns errors of the operating system into a sentence with a remedy."""
    try:
        yield
    except (OSError, ShoalError) as failure:
        if not folder.path.is_dir():
            raise MachineError(
                f"The run's folder {folder.path} was deleted or moved while it ran. If it was moved: `shoal resume` "
                "its new place. If it was deleted: train again; `shoal clean --all` frees its replay."
            ) from failure
        if isinstance(failure, OSError):
            raise MachineError(explained(failure, folder.path)) from failure
        raise


def _told(failure: BaseException) -> str:
    return explained(failure) if isinstance(failure, OSError) else str(failure) or repr(failure)


@contextlib.contextmanager
def failure_written(folder: RunFolder) -> Iterator[None]:
    """Writes a summary for a run that cannot start. A resumed run keeps its earlier one."""
    try:
        yield
    except Exception as failure:
        in_use = isinstance(failure, RunInUse)  # then its owner writes one
        if not in_use and not folder.summary_json.exists():
            folder.write_json("summary.json", Summary.not_begun(_told(failure)))
        raise


def _run(
    supervisor: Supervisor, roster: Sequence[RosterEntry], folder: RunFolder, signals: StopSignals, nodes: Any
) -> Summary:
    status: Status = "failed"
    error: str | None = None
    try:
        if supervisor.interrupted:
            status = "interrupted"
        elif supervisor.settings.runtime == "inline":
            status = run_inline(supervisor, roster)
        else:
            from shoal.runtime.ray_runtime import run_on_ray  # here, so that inline runs need no Ray

            status = run_on_ray(supervisor, roster, folder, signals, nodes)
    except BaseException as failure:
        error = _told(failure)
        raise
    finally:
        best = folder.checkpoints / BEST
        summary = replace(supervisor.summary(status, error), best_checkpoint=str(best) if best.exists() else None)
        summary = _with_earlier_evaluation(summary, folder)
        with contextlib.suppress(*[OSError] * (error is not None)):  # the first error is the one to report
            folder.write_json("summary.json", summary)
    return summary


def _require_progress(folder: RunFolder, why: str) -> None:
    """Refuses to start over where something was learned: the user decides that."""
    if list_checkpoints(folder.checkpoints):
        try:
            load_checkpoint(folder.checkpoints)
        except CheckpointError as error:
            raise CheckpointError(
                f"There is no replay ({why}), and: {error} To start over, train {folder.path / 'config.yaml'}; "
                f"the best weights, if they are intact, can still be used: shoal eval {folder.path}."
            ) from error


def _without_lost_registry(plan: Plan) -> tuple[Plan, list[str]]:
    """A registry is removed with its launcher. The group's runs can still continue, each alone."""
    share = plan.settings.share
    try:
        if share.registry is not None:
            connect_registry(share.registry)
        return plan, []
    except ConfigError:
        alone = plan.settings.model_copy(update={"share": share.model_copy(update={"registry": None})})
        note = f"the registry {share.registry} is gone: this run shares with nobody"
        return replace(plan, settings=alone), [note]


def _announce(plan: Plan, roster: Sequence[RosterEntry], needed: int) -> Iterator[str]:
    settings = plan.settings
    environments = f"{plan.lanes} environment{'s' * (plan.lanes > 1)}"
    yield f"{settings.algo} on {plan.spec.env_id}, {environments}: {list_roles(roster)} ({settings.runtime})"
    steps = f"{settings.replay.capacity:,} steps of {plan.schema.bytes_per_step:,} bytes"
    yield f"replay: {steps}; {gib(needed)} with weights and counts, in {plan.paths.replay}"
    if settings.address and settings.runtime == "inline":
        yield f"address = {settings.address!r} is not used: inline has one process; --runtime ray joins the cluster"
    if settings.learner.compile and plan.device_of_learner().type == "cpu":
        yield "learner.compile: the first update of each kind is compiled; learning pauses for 10 to 40 s"
    others = [other for other in replay_folders() if other != plan.paths.replay and not in_use(other)]
    if others:
        held = sum(folder_bytes(other) for other in others)
        yield f"replays of runs that have ended hold {gib(held)} of shared memory: `shoal clean` lists and frees them"


def _with_earlier_evaluation(summary: Summary, folder: RunFolder) -> Summary:
    """An execution without evaluations keeps the result of the one before it."""
    evaluated = [row for row in read_whole_lines(folder.metrics_jsonl) if row.get("eval/mean_reward") is not None]
    if not evaluated or not math.isnan(summary.eval_return_mean):
        return summary
    mean, std = evaluated[-1]["eval/mean_reward"], evaluated[-1].get("eval/std_reward")
    return replace(summary, eval_return_mean=float(mean), eval_return_std=math.nan if std is None else float(std))


def _is_complete(settings: RunSettings, summary: Summary, before: int) -> bool:
    """Whether the replay can be freed. A run that can be resumed still needs it. So does one whose execution made no
    step: it was resumed with a limit that it had passed already.
    """
    return summary.status in ("solved", "finished") and summary.env_steps > before and not settings.replay.keep
