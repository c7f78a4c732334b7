"""`shoal train` and `shoal resume`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.output import Address, Quiet, Trust, conclude, nothing_begun, question, relative
from shoal.errors import ConfigError, ShoalError

if TYPE_CHECKING:
    from shoal.loops.plan import Plan
    from shoal.runtime.run_folder import RunFolder

Settings = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", show_default=False, help="Settings, such as learner.batch_size=256."),
]
Steps = Annotated[str | None, typer.Option("--steps", metavar="N", help="Stop after so many environment steps.")]
Seconds = Annotated[str | None, typer.Option("--seconds", metavar="S", help="Stop S seconds after the first step.")]
StopReturn = Annotated[
    str | None, typer.Option("--stop-return", metavar="R", help="Stop when the mean evaluation return reaches this.")
]
Device = Annotated[
    str | None, typer.Option("--device", metavar="NAME", help="Of the learner: auto, cpu, cuda, cuda:1.")
]
Runtime = Annotated[
    str | None,
    typer.Option("--runtime", metavar="inline|ray", help="ray: a process per role; inline: one, reproducible."),
]
Wandb = Annotated[bool, typer.Option("--wandb", help="Also log to Weights & Biases; offline when there is no API key.")]


def train(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="ENV_OR_SCENARIO",
            show_default=False,
            help="A Gymnasium id, or a scenario: a .yaml file, or one of `shoal scenarios`.",
        ),
    ] = None,
    settings: Settings = None,
    algo: Annotated[
        str | None, typer.Option("--algo", metavar="NAME", help="One of `shoal algorithms`, or module:NAME.")
    ] = None,
    actors: Annotated[
        str | None, typer.Option("--actors", metavar="N", help="Actor processes, or auto: all cores.")
    ] = None,
    steps: Steps = None,
    seconds: Seconds = None,
    stop_return: StopReturn = None,
    seed: Annotated[str | None, typer.Option("--seed", metavar="N", help="Seed of everything random.")] = None,
    runtime: Runtime = None,
    address: Address = None,
    device: Device = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Where its folder is made.  [default: runs]")
    ] = None,
    wandb: Wandb = False,
    quiet: Quiet = False,
    trust: Trust = False,
) -> None:
    """Train an agent.

    Values come in layers, later ones win: defaults, the algorithm's defaults, what suits the environment, the scenario,
    the command line. Every setting can be given as KEY=VALUE; the last part of its name is enough when it is unique.

    Without --algo one is chosen that suits the environment's observations and actions.

    A run ends at --steps, --seconds or --stop-return, whichever comes first. With none of them, here or in the
    scenario, it ends at the return where the environment counts as solved, and after 1,000,000 steps at the latest.
    Ctrl-C stops it cleanly, and `shoal resume` continues it.

    With --address, the learner goes to the node of the cluster that suits it, one with a GPU if it uses one. If that is
    another node, this command only looks on: Ctrl-C asks, and `shoal attach` and `shoal stop` find the run again.

    \b
    Examples:
      shoal train CartPole-v1
      shoal train cartpole_apex_dqn --seed 7 batch_size=256 learning_rate=3e-4
      shoal train PongNoFrameskip-v4 --algo apex-qr-dqn --actors 4 --steps 10_000_000
      shoal train my_package:MyEnv-v0 env.kwargs.size=8 "hidden=[64, 64]"
      shoal train CartPole-v1 --algo my_module:ALGORITHM          an algorithm of your own
      shoal train CartPole-v1 network=my_module:make_torso        a network of your own
      shoal train CartPole-v1 --runtime inline --steps 20_000     reproducible, in one process
      shoal train pong_apex_dqn --address auto --actors 8         on a Ray cluster, beside its GPU
    """
    words = [*(settings or [])]
    if target is not None and "=" in target:
        words.insert(0, target)
        target = None
    target = target or _named_in(words)
    if target is None:
        raise ConfigError("Train on what? Name an environment or a scenario: `shoal train CartPole-v1`.")
    with nothing_begun():
        from shoal.api import begin, named_settings
        from shoal.config.load import left_out, load_target, scenarios_for

        words += _words(named_settings(algo=algo, actors=actors, seed=seed, runtime=runtime, device=device))
        words += _words(named_settings(steps=steps, seconds=seconds, stop_return=stop_return, address=address))
        chosen = load_target(target, words, trust=trust)
        plan, folder = begin(chosen, out)
        for reason in () if quiet else chosen.reasons:
            typer.echo(reason)
        if not quiet and target == chosen.env.id and (names := scenarios_for(target, chosen.algo)):
            typer.echo(f"Settings made for {chosen.algo} on {target}: `shoal train {names[0]}`.")
        for note in left_out(target, chosen):
            typer.echo(note, err=quiet)
    _run(plan, folder, resume=False, quiet=quiet, wandb=wandb)


def resume(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", show_default=False, help="A run's folder, or the URL of its copy."),
    ],
    settings: Settings = None,
    steps: Steps = None,
    seconds: Seconds = None,
    stop_return: StopReturn = None,
    runtime: Runtime = None,
    address: Address = None,
    device: Device = None,
    wandb: Wandb = False,
    quiet: Quiet = False,
    trust: Trust = False,
) -> None:
    """Continue a run.

    It starts from its last checkpoint, and with its replay if that still exists. When it ends, and how and where it
    works, may change (stop, evaluation, runtime, device, threads, ...); what its weights and its replay were made for
    may not (env, algorithm, actors, replay sizes).

    \b
    Examples:
      shoal resume runs/latest
      shoal resume runs/latest --steps 2_000_000
      shoal resume runs/CartPole-v1_apex-dqn_20260131-154500 --runtime inline evaluation.episodes=50
      shoal resume s3://bucket/shoal/RUN_NAME --address auto      fetches what checkpoints.path kept there
    """
    with nothing_begun():
        from shoal.api import begin_again, named_settings

        given = named_settings(steps=steps, seconds=seconds, stop_return=stop_return)
        given |= named_settings(runtime=runtime, address=address, device=device)
        tell = partial(typer.echo, err=quiet)
        plan, folder = begin_again(run, [*(settings or []), *_words(given)], trust=trust, note=tell)
    _run(plan, folder, resume=True, quiet=quiet, wandb=wandb)


def _words(settings: dict[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in settings.items()]


def _named_in(words: list[str]) -> str | None:
    """The environment, if it was given as `env=...` or `env.id=...`."""
    for text in words:
        name, _, value = text.partition("=")
        if name.strip() in ("env", "env.id") and value.strip():
            return value.strip()
    return None


def _run(plan: Plan, folder: RunFolder, *, resume: bool, quiet: bool, wandb: bool) -> None:
    from shoal.api import wandb_settings
    from shoal.runtime.placed import run_where_placed

    board = wandb_settings(plan.settings, folder) if wandb else None
    try:
        summary = run_where_placed(plan, folder, resume=resume, quiet=quiet, wandb=board, ask=question())
    except ShoalError:
        if folder.path.is_dir():
            typer.echo(f"The run failed; its folder is {relative(folder.path)}.", err=True)
        raise
    conclude(plan.settings, folder, summary, quiet=quiet)
