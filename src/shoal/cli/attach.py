"""`shoal attach` and `shoal stop`: runs that are supervised on another node of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.cli.output import Address, Quiet, RunPath, Trust, conclude, nothing_begun, question, relative
from shoal.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.runtime.run_folder import RunFolder


def attach(run: RunPath, address: Address = None, quiet: Quiet = False, trust: Trust = False) -> None:
    """Look on again at a run on another node of a Ray cluster.

    It shows what `shoal train --address ...` showed. Ctrl-C asks whether to stop the run, to detach again, or to go on
    watching. Several terminals may look on. If the run has ended since, its files are fetched.

    \b
    Examples:
      shoal attach runs/latest
      shoal attach runs/CartPole-v1_apex-dqn_20260131-154500 --address 10.0.0.1:6379
    """
    _look_on(run, address, quiet, trust, stop=False)


def stop(run: RunPath, address: Address = None, quiet: Quiet = False, trust: Trust = False) -> None:
    """Stop a run on another node of a Ray cluster cleanly, and wait for it.

    `shoal resume` continues it. A run in the process of another terminal is stopped there, with Ctrl-C.

    \b
    Examples:
      shoal stop runs/latest
    """
    _look_on(run, address, quiet, trust, stop=True)


def _look_on(run: Path, address: str | None, quiet: bool, trust: bool, *, stop: bool) -> None:
    with nothing_begun():
        from shoal.config.load import load_config
        from shoal.config.trust import require_trust
        from shoal.runtime.looking_on import is_shared, look_on
        from shoal.runtime.ray_home import running
        from shoal.runtime.run_folder import RunFolder
        from shoal.runtime.signals import StopSignals

        folder = RunFolder.open(run)
        settings = load_config(folder.path, trust=trust)
        if address is None and not trust:
            require_trust(folder.path, settings, settings)
        address = address or settings.address
        if address is None:
            raise ConfigError(f"{_absent(folder)} It names no cluster: if it is on one, add --address.")
    with StopSignals() as signals, running(address, folder.path) as home:
        signals.install()  # Ray has installed its own handlers
        if home is None:
            raise ConfigError(f"{_absent(folder)} The Ray at {address!r} does not know it.")
        shared = is_shared(home, folder.path)
        summary = look_on(home, folder, signals, shared=shared, quiet=quiet, ask=question(), stop=stop)
    conclude(settings, folder, summary, quiet=quiet)


def _absent(folder: RunFolder) -> str:
    from shoal.runtime.summary import read_summary

    name = relative(folder.path)
    if owner := folder.owner():
        return f"{name} is not on another node: process {owner} runs it, and stops it cleanly at Ctrl-C or SIGTERM."
    summary = read_summary(folder.summary_json)
    state = "it did not end cleanly" if summary is None else f"it has ended ({summary.status})"
    return f"{name} is not running: {state}."
