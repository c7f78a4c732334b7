"""What a machine refuses: a sentence with a remedy and no traceback, or a run that goes on."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import SMALL, Shoal, _interruptible, run_shoal

from shoal.metrics_file import read_metrics
from shoal.runtime.file_handles import handles

ROOT = Path(__file__).parents[2]
TRAIN = (sys.executable, "-m", "shoal", "train", "CartPole-v1", *SMALL)
COLUMNS = 8
"""Of a shard of Ape-X on CartPole."""
STRICT_C = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii:strict"}

pytestmark = pytest.mark.attack
__all__ = ["_interruptible", "run_shoal"]  # fixtures of the command line's tests


class Command:
    """A command in a process of its own."""

    def __init__(self, folder: Path, *words: str, **options: object) -> None:
        self.log = folder / f"log_{time.time_ns()}.txt"
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **options.pop("env", {})}  # type: ignore[dict-item]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(  # type: ignore[call-overload]
                words, stdout=log, stderr=subprocess.STDOUT, cwd=folder, env=environment, **options
            )

    @property
    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, condition: Callable[[], object], what: str, seconds: float = 180) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, f"ended before {what}:\n{self.output}"
            assert time.monotonic() < deadline, f"no {what} within {seconds} s:\n{self.output}"
            time.sleep(0.1)

    def end(self, seconds: float = 240) -> int:
        code = self.process.wait(seconds)
        assert "Traceback" not in self.output, self.output
        return code


Start = Callable[..., Command]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Command] = []

    def begin(*words: str, **options: object) -> Command:
        started.append(Command(tmp_path, *words, **options))
        return started[-1]

    yield begin
    for command in started:
        if command.process.poll() is None:
            command.process.kill()
            command.process.wait()


@pytest.fixture
def mounted(tmp_path: Path) -> Callable[[str, str], list[str]]:
    """Words before a command that give it, and it alone, a small file system in `disk`; then `prepare` is run there."""
    (tmp_path / "disk").mkdir()
    alone = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]

    def words(options: str, prepare: str = "true") -> list[str]:
        script = f'mount -t tmpfs -o {options} none disk && {{ {prepare}; }} && exec "$@"'
        return [*alone, "sh", "-c", script, "sh"]

    trial = [*words("size=64k"), "true"]
    if not shutil.which("unshare") or subprocess.run(trial, cwd=tmp_path, check=False).returncode:
        pytest.skip("mounting a file system of one's own is not allowed here")
    return words


@pytest.mark.parametrize(
    ("options", "prepare", "reason"),
    [
        ("size=64k", "{ head -c 70000 /dev/zero > disk/fill || true; } 2>/dev/null", "No space left on device"),
        ("size=64k,ro", "true", "Read-only file system"),
    ],
    ids=["full", "read-only"],
)
def test_a_place_that_takes_no_run_is_refused_and_left_clean(
    start: Start, mounted: Callable[..., list[str]], options: str, prepare: str, reason: str
) -> None:
    look = '"$@"; code=$?; ls -A disk/runs 2>/dev/null; exit $code'
    words = [*mounted(options, prepare), "sh", "-c", look, "sh"]
    command = start(*words, *TRAIN, "--steps=300", "--out=disk/runs")
    assert command.end() == 2
    said, *left = command.output.splitlines()
    assert said.startswith("Error: Cannot make runs in ") and f"{reason}. Choose another --out." in said
    assert left in ([], ["latest"])  # no folder of a run that never was


def test_a_disk_that_fills_up_in_mid_run_does_not_end_it(start: Start, mounted: Callable[..., list[str]]) -> None:
    """TensorBoard stops, with one note; metrics come back when there is room again, and the end is a clean one."""
    command = start(*mounted("size=512k"), *TRAIN, "every_steps=100_000_000", "--steps=100_000_000", "--out=disk")
    disk = Path(f"/proc/{command.process.pid}/root{command.log.parent}/disk")
    run = disk / "latest"
    command.wait_for(lambda: (run / "metrics.jsonl").is_file() and (run / "metrics.jsonl").stat().st_size, "metrics")
    with (disk / "fill").open("wb", buffering=0) as fill:
        while _room(disk):  # the run takes what is left in a block that it has begun
            fill.write(bytes(_room(disk)))
    command.wait_for(lambda: "TensorBoard stopped" in command.output and "No metrics are" in command.output, "notes")
    lines = len(read_metrics(run / "metrics.jsonl"))
    (disk / "fill").unlink()
    command.wait_for(lambda: len(read_metrics(run / "metrics.jsonl")) > lines, "metrics again")
    kept = os.open(run, os.O_RDONLY)  # the file system goes with the process
    command.process.send_signal(signal.SIGINT)
    assert command.end() == 0, command.output
    try:
        steps = [row["step"] for row in read_metrics(Path(f"/proc/self/fd/{kept}/metrics.jsonl"))]
        summary = json.loads(Path(f"/proc/self/fd/{kept}/summary.json").read_text())
    finally:
        os.close(kept)
    assert steps == sorted(steps) and summary["status"] == "interrupted" and summary["updates"] > 0
    assert command.output.count("TensorBoard stopped") == 1 == command.output.count("No metrics are")


def _room(disk: Path) -> int:
    room = os.statvfs(disk)
    return room.f_bavail * room.f_bsize


def test_a_run_whose_folder_is_deleted_says_so(start: Start, tmp_path: Path) -> None:
    command = start(*TRAIN, "--steps=100_000_000")
    run = tmp_path / "runs"
    command.wait_for(lambda: [*run.glob("*/tensorboard/*")], "TensorBoard's file")
    shutil.rmtree(run)
    assert command.end() == 1
    said = command.output.splitlines()[-1]
    assert said.startswith("Error: The run's folder ") and "was deleted or moved while it ran" in said
    assert not run.exists()


def test_a_run_whose_folder_is_moved_goes_on_elsewhere(
    start: Start, run_shoal: Shoal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_SHARED_MEMORY", str(tmp_path / "memory"))
    (tmp_path / "memory").mkdir()
    command = start(*TRAIN, "--steps=100_000_000", "learner.checkpoint_seconds=0.5")
    command.wait_for(lambda: [*tmp_path.glob("runs/*/checkpoints/step*")], "checkpoint")
    (run,) = tmp_path.glob("runs/CartPole*")
    run.rename(tmp_path / "moved")
    assert command.end() == 1
    said = command.output.splitlines()[-1]
    assert "was deleted or moved while it ran. If it was moved: `shoal resume` its new place." in said
    clean = run_shoal("clean")  # does not know where the run is
    assert clean.code == 0 and "(its run's folder is gone or was moved)" in clean.out, clean
    resume = run_shoal("resume", "moved", "--seconds=0.1")
    assert resume.code == 0 and "collected steps in the replay" in resume.out, resume


def test_a_path_that_is_not_utf8(start: Start, tmp_path: Path) -> None:
    out = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    on_disk = {"SHOAL_SHARED_MEMORY": "/nonexistent"}
    assert start(*TRAIN, "--steps=300", "replay.keep=true", f"--out={out}", env=on_disk).end() == 0
    resume = start(sys.executable, "-m", "shoal", "resume", f"{out}/latest", "--steps=400", env=on_disk)
    assert resume.end() == 0 and "collected steps in the replay" in resume.output, resume.output
    assert "damaged" not in resume.output and "gone" not in resume.output, resume.output
    compare = start(sys.executable, "-m", "shoal", "compare", out)
    assert compare.end() == 0, compare.output


def test_a_folder_or_a_file_in_the_way_has_a_remedy(run_shoal: Shoal, tmp_path: Path) -> None:
    assert run_shoal("train", "CartPole-v1", *SMALL, "--steps=300").code == 0
    (run,) = tmp_path.glob("runs/CartPole*")
    for name in ("checkpoints", "run.lock"):
        if name == "checkpoints":
            shutil.rmtree(run / name)
            (run / name).touch()
        else:
            (run / name).unlink()
            (run / name).mkdir()
        resume = run_shoal("resume", run, "--steps=400")
        assert resume.code == 1
        said = " ".join(resume.err.split())
        assert f"/{name}: " in said and said.endswith("Move it away, then try again."), said


def test_too_few_file_handles_are_refused_with_the_numbers(start: Start) -> None:
    command = start(*TRAIN, "--steps=300", "actors=2", preexec_fn=lambda: _allow(64))
    assert command.end() == 1
    assert "This process may open 64 files" in command.output and "ulimit -n 4096" in command.output
    assert f"needs about {handles(2, COLUMNS)}" in command.output


def test_as_many_file_handles_as_are_said_to_be_needed_are_enough(start: Start, tmp_path: Path) -> None:
    """And a temporary folder with a long name does no harm where no Ray is."""
    temporary = tmp_path / ("x" * 120)
    temporary.mkdir()
    needed = handles(3, COLUMNS)
    options = {"preexec_fn": lambda: _allow(needed), "env": {"TMPDIR": str(temporary)}}
    command = start(*TRAIN, "--steps=300", "actors=3", **options)
    assert command.end() == 0, command.output


def _allow(handles: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (handles, handles))


def test_paths_and_words_that_a_strict_c_locale_cannot_spell(start: Start, tmp_path: Path) -> None:
    out = tmp_path / "größe" / "läufe"
    train = start(*TRAIN, "--steps=300", "replay.keep=true", f"--out={out}", env=STRICT_C)
    assert train.end() == 0, train.output
    assert "Finished" in train.output and "gr??" in train.output
    (run,) = out.glob("CartPole*")
    replay = json.loads((run / "replay.json").read_text(encoding="utf-8"))["path"]
    assert json.loads((Path(replay) / "owner.json").read_text(encoding="utf-8"))["run"] == str(run)  # as others read it
    clean = start(sys.executable, "-m", "shoal", "clean", env=STRICT_C)  # a replay without a known run would be freed
    assert clean.end() == 0 and "unknown run" not in clean.output and run.name in clean.output, clean.output
    resume = start(sys.executable, "-m", "shoal", "resume", str(run), "--steps=400", env=STRICT_C)
    assert resume.end() == 0, resume.output
    assert "resuming with" in resume.output and "collected steps in the replay" in resume.output
    shutil.rmtree(replay)
    ray = start(*TRAIN, "--runtime=ray", "--steps=300", f"--out={out}", env=STRICT_C)
    assert ray.end() == 0 or "Set PYTHONUTF8=1" in ray.output, ray.output
