"""Runs where the cluster has what a run needs: in this process, or on another node while this one looks on."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from functools import partial

from shoal.loops.plan import Plan
from shoal.loops.requirements import is_placed_later
from shoal.runtime.copies import Folder, hand_over
from shoal.runtime.execution import execute, failure_written
from shoal.runtime.looking_on import Ask, is_shared, look_on
from shoal.runtime.run_folder import CONFIG_END, RunFolder
from shoal.runtime.signals import StopSignals
from shoal.runtime.sinks import WandbSettings
from shoal.runtime.summary import Summary


def run_where_placed(
    plan: Plan,
    folder: RunFolder,
    *,
    resume: bool = False,
    quiet: bool = False,
    wandb: WandbSettings | None = None,
    ask: Ask | None = None,
) -> Summary | None:
    """As `execute`, on the node of the cluster that suits the run, if it has an address.

    Args:
        plan, folder, resume, quiet, wandb: as for `execute`.
        ask: what a Ctrl-C means for a run on another node; None: to stop it.

    Returns:
        The run's result; None: it goes on elsewhere, and the user looks away.
    """
    run = partial(execute, plan, folder, resume=resume, quiet=quiet, wandb=wandb)
    if not is_placed_later(plan.settings):
        return run()
    from shoal.runtime.ray_home import elsewhere  # here: loads Ray
    from shoal.runtime.ray_hosts import without_settings

    with StopSignals() as signals:
        with ExitStack() as stack:
            with failure_written(folder):
                if not resume:  # so that the folder can be opened whatever happens next
                    folder.write_run_json(seed=plan.settings.seed, command=sys.argv, config_end=CONFIG_END)
                try:
                    placed = stack.enter_context(elsewhere(plan, folder.path))
                except SystemExit:  # Ray's answer to a SIGTERM that arrives while it starts
                    signals.ask()
                    placed = None
                signals.install()  # Ray has installed its own handlers
                if placed is not None:
                    home, node = placed
                    shared = is_shared(home, folder.path)
                    there = home.open(str(folder.path), shared=shared)
                    if not shared:
                        hand_over(Folder(folder.path), home)
                    plain, settings = without_settings(plan)
                    home.start(plain, settings, resume=resume, wandb=wandb, command=sys.argv, place=os.getcwd())
            if placed is not None:
                copied = "" if shared else f"; its folder there is {there}, and is copied here"
                note = f"the learner's node is {node.name}: the run is supervised there, and needs no terminal{copied}"
                return look_on(home, folder, signals, shared=shared, quiet=quiet, ask=ask, first=note)
        return run(signals=signals)
