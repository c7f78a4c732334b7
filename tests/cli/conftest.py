"""The command line, in this process."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import shoal
from shoal.cli import main

SMALL = (
    "algo=apex-dqn",
    "hidden=[16]",
    "batch_size=16",
    "capacity=2000",
    "min_size=100",
    "samples_per_insert=1",
    "evaluation.episodes=2",
    "every_steps=200",
    "--runtime=inline",
)
"""A run of a second or two."""


class Result(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str


Shoal = Callable[..., Result]


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """A command that has ended takes no more Ctrl-C; the tests go on."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def run_shoal(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shoal:
    """Runs `shoal` in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Result:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        return Result(int(ended.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run; not to be changed."""
    settings = {
        "algo": "apex-dqn",
        "algorithm.hidden": [16],
        "learner.batch_size": 16,
        "replay.capacity": 2_000,
        "replay.min_size": 100,
        "replay.samples_per_insert": 1,
        "evaluation.episodes": 2,
        "evaluation.every_steps": 200,
    }
    out = tmp_path_factory.mktemp("runs")
    return shoal.train("CartPole-v1", steps=300, runtime="inline", quiet=True, out=out, settings=settings).path
