"""The command line. Commands import torch and Ray themselves, so that help is quick."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from shoal.cli.attach import attach, stop
from shoal.cli.clean import clean
from shoal.cli.compare import compare
from shoal.cli.evaluate import evaluate
from shoal.cli.listing import algorithms, config, scenarios
from shoal.cli.nodes import nodes
from shoal.cli.share import ShareCommand, share
from shoal.cli.train import resume, train
from shoal.errors import ConfigError, ShoalError, explained

USAGE, FAILURE = 2, 1
_NO_UTF8 = (
    "A path or a word has letters that this locale cannot encode, and a library that Shoal uses needs them. Set "
    "PYTHONUTF8=1, or a locale with UTF-8 such as LC_ALL=C.UTF-8."
)

app = typer.Typer(
    name="shoal",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain text: brackets and line breaks stay as written, and rich need not be loaded
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    help="Distributed reinforcement learning on shared memory.",
    epilog="""\b
First steps:
  shoal train CartPole-v1                    train until solved
  shoal eval runs/latest                     evaluate the result
  shoal scenarios                            tuned settings with a name
  shoal config apex-dqn                      every setting, with its meaning
  shoal train --help                         more examples
""",
)
app.command("train")(train)
app.command("resume")(resume)
app.command("attach")(attach)
app.command("stop")(stop)
app.command("eval")(evaluate)
app.command("share", cls=ShareCommand)(share)
app.command("compare")(compare)
app.command("algorithms")(algorithms)
app.command("scenarios")(scenarios)
app.command("config")(config)
app.command("clean")(clean)
app.command("nodes")(nodes)


def _version(wanted: bool) -> None:
    if wanted:
        from shoal import __version__

        typer.echo(f"shoal {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of `shoal` itself."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command and exits: 0 on success, 2 when it was called with something wrong, 1 when it failed.

    SHOAL_DEBUG=1 shows the traceback of an error.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")  # a path that the terminal cannot show must not end a command
    try:
        app(args=None if arguments is None else list(arguments), prog_name="shoal")
    except (ShoalError, OSError, UnicodeError) as error:
        encoding = isinstance(error, UnicodeError)
        if os.environ.get("SHOAL_DEBUG", "0") not in ("", "0") or (encoding and sys.getfilesystemencoding() == "utf-8"):
            raise
        text = explained(error) if isinstance(error, OSError) else _NO_UTF8 if encoding else str(error)
        typer.echo(f"Error: {text}", err=True)
        sys.exit(USAGE if isinstance(error, ConfigError) else FAILURE)
