"""`shoal algorithms`, `shoal scenarios` and `shoal config`: list algorithms, scenarios and settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

import typer

from shoal.errors import ConfigError, ShoalError


def algorithms() -> None:
    """List the algorithms: Shoal's, and those that installed packages offer (entry points `shoal.algorithms`).

    \b
    Examples:
      shoal algorithms
      shoal config apex-dqn            its settings
      shoal train CartPole-v1 --algo apex-qr-dqn
    """
    from shoal.algorithms import ALGORITHMS, get_algorithm
    from shoal.algorithms.own_code import installed_algorithms

    found = {name: algorithm.summary for name, algorithm in ALGORITHMS.items()}
    problems = []
    for name in sorted(installed_algorithms()):
        try:
            if name in ALGORITHMS:
                raise ConfigError(f"An installed package offers {name!r} too, but that is Shoal's own: it is not used.")
            found[name] = get_algorithm(name).summary
        except ShoalError as error:  # one broken package must not hide the others
            problems.append(str(error))
    width = max(map(len, found))
    for name in sorted(found):
        typer.echo(f"{name:<{width}}  {found[name]}")
    for problem in problems:
        typer.echo(problem, err=True)


def scenarios() -> None:
    """List the scenarios: tuned settings with a name.

    Those that come with Shoal, and the files in `scenarios/` of the working folder, which win over Shoal's of the same
    name. Each line has the algorithm, the environment, a description, and the extras it needs: `pip install
    "shoal-rl[mujoco]"`. Those of Stable-Baselines3 (sb3_...) are for `shoal share`.

    \b
    Examples:
      shoal scenarios
      shoal train pendulum_sac         train one of them
      shoal config pendulum_sac        its settings
    """
    from shoal.config.load import find_scenario_file, read_scenario, scenario_names

    rows = []
    for name in scenario_names():
        with suppress(ShoalError):  # a file here that cannot be read; `shoal train` would say why
            content = read_scenario(file := find_scenario_file(Path(name)))
            env = content.get("env")
            env_id = str(env.get("id") if isinstance(env, Mapping) else env)
            needs = f"  (needs {', '.join(extras)})" if (extras := _extras(content, env_id)) else ""
            rows.append((name, str(content.get("algo", "")), env_id, _first_sentence(file) + needs))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        fields = [f"{text:<{width}}" for text, width in zip(row, widths, strict=False)]
        typer.echo("  ".join([*fields, row[3]]).rstrip())


def _extras(content: Mapping[str, Any], env_id: str) -> list[str]:
    """Shoal's extras that a scenario needs."""
    import gymnasium

    registered = gymnasium.registry.get(env_id)
    entry = str(registered.entry_point) if registered else ""
    extras = [extra for extra in ("box2d", "mujoco") if entry.startswith(f"gymnasium.envs.{extra}")]
    return [*extras, "sb3"] if content.get("framework") == "sb3" else extras


def _first_sentence(file: Path) -> str:
    """The first sentence of the comment at the top of a scenario."""
    lines = takewhile(lambda line: line.startswith("#"), file.read_text(encoding="utf-8").splitlines())
    return re.split(r"\.(?:\s|$)", " ".join(line.removeprefix("#").strip() for line in lines))[0]


def config(
    name: Annotated[
        str,
        typer.Argument(
            metavar="ALGO_OR_SCENARIO",
            show_default=False,
            help="One of `shoal algorithms`, module:NAME, or a scenario: a .yaml file, or one of `shoal scenarios`.",
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
    from shoal.config.checks import with_default_stop
    from shoal.config.dump import dump_yaml
    from shoal.config.load import load_named
    from shoal.envs.registry import find_registration

    loaded = load_named(name, settings or [])
    if ":" not in loaded.env.id:  # looking at settings imports no module; `shoal train` gives such a run its end
        loaded = with_default_stop(loaded, find_registration(loaded.env.id).reward_threshold)
    if loaded.env.modules and loaded.defaults == "suited":
        typer.echo(f"# {loaded.env.id} is not imported here: `shoal train` chooses what suits it for what is not set.")
    typer.echo(dump_yaml(loaded), nl=False)
