"""`shoal algorithms` and `shoal config`: what there is to choose from."""

from __future__ import annotations

from typing import Annotated

import typer


def algorithms() -> None:
    """List the algorithms.

    \b
    Examples:
      shoal algorithms
      shoal config apex-dqn            its settings
      shoal train CartPole-v1 --algo apex-qr-dqn
    """
    from shoal.algorithms import ALGORITHMS

    width = max(map(len, ALGORITHMS))
    for name, algorithm in sorted(ALGORITHMS.items()):
        typer.echo(f"{name:<{width}}  {algorithm.summary}")


def config(
    name: Annotated[
        str,
        typer.Argument(
            metavar="ALGO_OR_SCENARIO",
            show_default=False,
            help="An algorithm's name, or a scenario: a file, or its name in scenarios/.",
        ),
    ],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", show_default=False, help="Settings to change.")
    ] = None,
) -> None:
    """Print every setting with its meaning.

    The output is complete YAML that `shoal train` takes.

    \b
    Examples:
      shoal config apex-dqn
      shoal config apex-dqn env=LunarLander-v3 > lander.yaml
      shoal config cartpole_apex_dqn batch_size=256
    """
    from shoal.config import dump_yaml, load_named, with_default_stop
    from shoal.envs.registry import find_registration

    loaded = load_named(name, settings or [])
    typer.echo(dump_yaml(with_default_stop(loaded, find_registration(loaded.env.id).reward_threshold)), nl=False)
