"""`shoal share`: several runs at once that learn from each other's steps."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import shlex
import threading
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from shoal.cli.output import nothing_begun, relative, wide_console
from shoal.errors import ConfigError

if TYPE_CHECKING:
    from shoal.cli.share_plan import Candidate, ShareOptions
    from shoal.runtime.ray_cluster import Cluster
    from shoal.sharing.launcher import Ended
    from shoal.sharing.live_table import LiveTable

_LAST_LINES = 40


class ShareCommand(TyperCommand):
    """Accepts a list after `--gpus`, options with underscores, and `--extra-args` for `--`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Rewrites the words before they are parsed."""
        return super().parse_args(ctx, plain_words(args))


def plain_words(words: Sequence[str]) -> list[str]:
    """`--gpus 0 1 --n_parallel 4` as `--gpus 0,1 --n-parallel 4`; settings follow `--` or `--extra-args`."""
    plain: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("--") and word != "--":
            name, equals, value = word.partition("=")
            word = name.replace("_", "-") + equals + value
        if word == "--":
            wrong = next((one for one in rest if "=" not in one or one.startswith("-")), None)
            if wrong is not None:
                raise ConfigError(f"{wrong!r} after `--` is no KEY=VALUE: put options and scenarios before it.")
            return [*plain, "--", *rest]
        if word == "--extra-args":  # settings, as many as follow
            while rest and "=" in rest[0] and not rest[0].startswith("-"):
                plain.append(rest.pop(0))
            continue
        if word == "--gpus":
            listed = []
            while rest and all(part.strip().isdigit() for part in rest[0].split(",")):
                listed.append(rest.pop(0))
            plain += [word, ",".join(listed)] if listed else [word]
        else:
            plain.append(word)
    return plain


def share(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="SCENARIO|KEY=VALUE",
            show_default=False,
            help="Scenarios (files, or names out of `shoal scenarios`), and settings for all of them.",
        ),
    ],
    n_parallel: Annotated[
        int | None,
        typer.Option("--n-parallel", "-n", min=1, metavar="N", help="Runs in all.  [default: one per scenario]"),
    ] = None,
    ratio: Annotated[
        float, typer.Option("--cross-sample-ratio", metavar="R", help="Part of each batch that is drawn from the pool.")
    ] = 0.2,
    strategy: Annotated[
        str,
        typer.Option(
            "--strategy", metavar="NAME", help="The pool: self_heavy, uniform, weighted, newest or local_only."
        ),
    ] = "self_heavy",
    gpus: Annotated[
        str | None, typer.Option("--gpus", metavar="N...", help="GPUs to place the runs on in turn, such as 0 1 0 1.")
    ] = None,
    tag: Annotated[
        str | None, typer.Option("--tag", metavar="NAME", help="Name of the group's folder.  [default: the time]")
    ] = None,
    base_seed: Annotated[int, typer.Option("--base-seed", min=0, metavar="N", help="Seed of the first run.")] = 42,
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, metavar="N", help="Steps of each run, instead of the scenario's.")
    ] = None,
    min_buffer_size: Annotated[
        int, typer.Option("--min-buffer-size", min=1, metavar="N", help="Rows a run must have before others read it.")
    ] = 1000,
    stale_seconds: Annotated[
        float, typer.Option("--stale-seconds", metavar="S", help="Remove the rows of a dead run after so long.")
    ] = 300.0,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the group's folder is made.")] = Path("runs"),
    address: Annotated[
        str | None,
        typer.Option("--address", metavar="HOST:PORT|auto", help="Spread the runs over the machines of a Ray cluster."),
    ] = None,
    wandb: Annotated[
        bool, typer.Option("--wandb", help="Also log to Weights & Biases, as one group; offline without an API key.")
    ] = False,
) -> None:
    """Train several runs that share replay.

    Each run is a process with a seed of its own. It writes its steps to shared memory, and draws a part of every batch
    from the pool: self_heavy is the other runs, in proportion to their size (0.2 means 20 % foreign); uniform all
    runs, each equally often; weighted all in proportion to their size; newest the newest fifth of all; local_only
    nobody, for comparison.

    Scenarios of Stable-Baselines3 say `framework: sb3`: SAC, TD3, DDPG, DQN, QRDQN and TQC share, PPO and A2C give
    their steps and read nobody's. Scenarios of Shoal's own algorithms may take part. Runs with other spaces, or on
    another environment, do not read each other.

    Ctrl-C: every run saves and stops. A run that fails does not stop the others; the exit code is 1 then. With a --tag
    that was used before, the new launch goes beside the old ones, as `shoal compare` wants it.

    \b
    Examples:
      shoal share sb3_sac_pendulum -n 4 --cross-sample-ratio 0.2 --strategy self_heavy
      shoal share sb3_sac_pendulum sb3_td3_pendulum sb3_ppo_pendulum --cross-sample-ratio 0.3 --strategy weighted
      shoal share sb3_sac_pendulum -n 4 --strategy local_only --tag alone
      shoal share sb3_sac_pendulum -n 4 --gpus 0 1 0 1 --tag distributed_20pct -- learning_rate=1e-3
      shoal share sb3_sac_pendulum -n 8 --address auto
    """
    with contextlib.ExitStack() as stack:
        with nothing_begun():
            from shoal.cli.share_plan import ShareOptions, choose, load_runs
            from shoal.sharing.strategies import check_strategy

            check_strategy(strategy, ratio)
            if not stale_seconds > 0:
                raise ConfigError(f"--stale-seconds = {stale_seconds} cannot be used: it must be above 0.")
            if wandb and importlib.util.find_spec("wandb") is None:
                raise ConfigError('--wandb needs the package: run `pip install "shoal-rl[wandb]"`, or leave it out.')
            options = ShareOptions(
                ratio=ratio,
                strategy=strategy,
                gpus=_gpus(gpus),
                base_seed=base_seed,
                steps=steps,
                overrides=tuple(word for word in targets if "=" in word),
                wandb=wandb,
                min_buffer_size=min_buffer_size,
                stale_seconds=stale_seconds,
            )
            runs = load_runs(choose([word for word in targets if "=" not in word], n_parallel), options)
            found = _join(address, stack)
            folder = launch_folder(out, tag, datetime.now())
        failed = _launch(runs, options, folder, found)
    typer.echo(f"\nGroup: {relative(folder.parent)} ({folder.name})\nNext:")
    for command in next_commands(folder.parent):
        typer.echo(f"  {command}")
    raise typer.Exit(1 if failed else 0)


def launch_folder(out: Path, tag: str | None, now: datetime) -> Path:
    """Makes `<out>/share_<tag or time>/launch_00k`, the first k that is free."""
    name = tag if tag is not None else f"{now:%Y%m%d-%H%M%S}"
    if not re.fullmatch(r"[A-Za-z0-9._=+-]+", name):
        raise ConfigError(f"--tag {name!r} cannot be a folder's name: use letters, digits, '.', '-', '_', '=' and '+'.")
    group = (out / f"share_{name}").absolute()
    number = 1
    while True:
        folder = group / f"launch_{number:03d}"
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1
        except OSError as error:
            why = error.strerror
            raise ConfigError(f"Cannot make runs in {group}: {why}. Choose another --tag or --out.") from error


def next_commands(group: Path) -> list[str]:
    """What to try after a launch: a comparison, with a group that shared nothing if one lies beside it."""
    beside = (one for one in sorted(group.parent.glob("share_*")) if one.is_dir() and one != group)
    alone = [one for one in beside if re.search("local|alone", one.name)][:1]
    return [f"shoal compare {' '.join(shlex.quote(relative(one)) for one in (*alone, group))}"]


def _gpus(text: str | None) -> tuple[int, ...]:
    try:
        return () if text is None else tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--gpus {text!r} cannot be used: name GPUs by number, such as --gpus 0 1 0 1.") from None


def _join(address: str | None, stack: contextlib.ExitStack) -> Cluster | None:
    """The cluster at an address; None without one."""
    if address is None:
        return None
    from shoal.runtime.ray_cluster import cluster

    return stack.enter_context(cluster(address, 0, typer.echo))


def _launch(candidates: Sequence[Candidate], options: ShareOptions, folder: Path, found: Cluster | None) -> bool:
    """Runs them all; returns whether any failed."""
    from shoal.cli.share_plan import announce, open_registry, plan, registry_sizes
    from shoal.runtime.run_folder import RunFolder
    from shoal.runtime.signals import StopSignals
    from shoal.sharing.launcher import Wish, launch
    from shoal.sharing.live_table import LiveTable

    stop = threading.Event()
    with StopSignals() as signals, RunFolder(folder).lock(), LiveTable(wide_console()) as table:
        signals.listen(stop.set)

        def wish() -> Wish:
            return Wish.HURRY if signals.hurry else Wish.STOP if stop.is_set() else Wish.GO

        for line in announce(candidates, options, folder):
            table.note(line)
        watch = (table.update, wish, lambda one: _ended(one, table))
        if found is None:
            with open_registry(candidates, options, folder) as registry:
                ended = launch(plan(options, candidates, folder, registry), *watch)
        else:
            from shoal.runtime.ray_share import launch_on_cluster, place_runs

            placed = list(zip(candidates, place_runs(found, len(candidates)), strict=True))
            for name, count in Counter(node.name for _, node in placed).items():
                table.note(f"{count} of them on node {name}")
            sizes = registry_sizes(candidates, options) if options.sharing else None
            ended = launch_on_cluster(found, placed, partial(plan, options, launcher=0), folder, sizes, *watch)
        if stop.is_set():
            table.note("Stopped: every run was told to save.")
    return any(one.failed for one in ended)


def _ended(ended: Ended, table: LiveTable) -> None:
    from shoal.sharing.launcher import LOG, last_lines

    if ended.failed:
        if ended.why:
            table.note(f"{ended.run.name} failed: {ended.why}")
        table.note(f"{ended.run.name} failed (exit code {ended.code}); the end of {relative(ended.run.folder / LOG)}:")
        for line in last_lines(ended.run.folder, _LAST_LINES):
            table.note(f"  {line}")
