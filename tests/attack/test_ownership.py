"""Whose files they are: copied and renamed runs, planted folders and links, a second user of the machine."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.errors import UnsafePath
from shoal.replay import ShardReader
from shoal.types import CUT, FINAL

pytestmark = pytest.mark.attack
SETTINGS = ("CartPole-v1", "--algo", "apex-dqn", "--runtime", "inline", "--actors", "2", "--seed", "1")
SMALL = ("replay.capacity=20000", "learner.batch_size=32", "evaluation.every_steps=1000000", "evaluation.episodes=1")
SECRET = '{"step": 1, "wall": 0.0}\n'
"""What must stay in the victim's file; it could be one of metrics, so that it is not refused for its content."""


@pytest.fixture
def memory() -> Iterator[Path]:
    """A shared memory that everybody can write to, as /dev/shm is."""
    folder = Path(tempfile.mkdtemp(prefix="shoal-attack-"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


def _replay(run: Path) -> Path:
    return Path(json.loads((run / "replay.json").read_text())["path"])


def _steps(replay: Path) -> int:
    return sum(ShardReader(path).steps for path in replay.glob("shard_???"))


def _wrong_transitions(replay: Path) -> tuple[int, int]:
    """Pairs of neighbouring rows that CartPole's equations do not lead from one to the other; and all pairs."""
    wrong = total = 0
    for path in sorted(replay.glob("shard_???")):
        reader = ShardReader(path)
        for lane in range(reader.lanes):
            rows = np.arange(reader.oldest, reader.head) % reader.rows
            column = {name: values[rows, lane] for name, values in reader.columns.items()}
            plain = (column["boundary"][:-1] == 0) & (column["boundary"][1:] != CUT)
            plain &= ~(column["boundary"][:-1] == FINAL)
            wrong += int(np.sum(plain & ~_leads_to(column["obs"][:-1], column["action"][:-1], column["obs"][1:])))
            total += int(np.sum(plain))
    return wrong, total


def _leads_to(obs: Any, action: Any, following: Any) -> Any:
    """Whether each observation follows from the one before, as Gymnasium computes it."""
    x, speed, angle, turn = np.asarray(obs, np.float64).T
    force = np.where(np.asarray(action).ravel() == 1, 10.0, -10.0)
    cos, sin = np.cos(angle), np.sin(angle)
    push = (force + 0.05 * turn**2 * sin) / 1.1
    turning = (9.8 * sin - cos * push) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
    moving = push - 0.05 * turning * cos / 1.1
    expected = np.stack([x + 0.02 * speed, speed + 0.02 * moving, angle + 0.02 * turn, turn + 0.02 * turning], -1)
    return np.all(np.isclose(following, expected, atol=1e-4), axis=-1)


def _trained(out: Path, steps: int, *more: str) -> Path:
    settings = dict(pair.split("=") for pair in (*SMALL, *more))
    return shoal.train(
        "CartPole-v1", algo="apex-dqn", runtime="inline", steps=steps, out=out, quiet=True, settings=settings
    ).path


def test_a_copied_run_and_its_original_go_on_apart(train: Callable[..., Any], tmp_path: Path) -> None:
    original = _trained(tmp_path / "runs", 1000, "replay.keep=true")
    copy = Path(shutil.copytree(original, tmp_path / "copy"))
    replay = _replay(original)
    assert _wrong_transitions(replay)[0] == 0

    one, other = (
        train("resume", str(run), "--steps", steps, "replay.keep=false")
        for run, steps in ((original, "1000000"), (copy, "3000"))
    )
    one.wait_for(lambda: _steps(replay) > 1500, "steps of the original")
    assert other.end() == 0, other.output
    assert _steps(replay) > 1500, "the copy's end took the original's replay"
    at_its_end = _steps(replay)
    one.wait_for(lambda: _steps(replay) > at_its_end + 500, "more steps of the original")
    one.process.send_signal(signal.SIGINT)
    one.end()
    assert json.loads((original / "summary.json").read_text())["status"] == "interrupted", one.output
    wrong, total = _wrong_transitions(replay)
    assert wrong == 0 and total > 1000, f"{wrong} of {total} transitions are wrong"
    assert f"it belongs to {original}, and this run is a copy of it: resuming with weights only" in other.text
    assert 3000 <= json.loads((copy / "summary.json").read_text())["env_steps"] < 4000


def test_a_renamed_run_is_live_and_goes_on_with_its_replay(train: Callable[..., Any]) -> None:
    first = train("train", *SETTINGS, "--steps", "1000000", *SMALL)
    first.wait_for(lambda: (first.run / "replay.json").exists() and _steps(_replay(first.run)) > 500, "steps")
    run = first.run.resolve()
    replay, moved = _replay(run), first.out / "renamed"
    first.process.send_signal(signal.SIGSTOP)  # as Ctrl-Z does: it is silent, and alive
    run.rename(moved)
    cleaning = train("clean", "--all", "--yes")
    assert cleaning.end() == 0
    assert replay.is_dir(), cleaning.output
    assert f"live       runs/{run.name}  {replay}" in cleaning.output

    first.process.kill()
    first.process.wait()
    again = train("resume", str(moved), "--steps", str(_steps(replay) + 500))
    assert again.end() == 0, again.output
    assert "collected steps in the replay" in again.text
    assert not replay.exists(), "a run that ended well frees its replay, also after a move"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as a second user")
def test_what_another_user_planted_is_neither_used_nor_followed(
    train: Callable[..., Any], memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder in the victim's name, open to its maker; in it a replay whose run's lock is a link to a file."""
    monkeypatch.setenv("SHOAL_SHARED_MEMORY", str(memory))
    precious, base = memory / "precious", memory / f"shoal-{getpass.getuser()}"
    precious.write_text(SECRET)
    owner = json.dumps({"run": f"{base}/bait/run", "pid": 1})
    plant = f"""mkdir -m 777 {memory}/his {memory}/his/bait {memory}/his/bait/run && ln -s {memory}/his {base}
        ln -s {precious} {base}/bait/run/run.lock && echo '{owner}' > {base}/bait/owner.json"""
    subprocess.run(["sh", "-c", plant], user="nobody", check=True)

    run = train("train", *SETTINGS, "--steps", "300", "replay.keep=true", *SMALL)
    assert run.end() == 0, run.output
    replay = _replay(run.run)
    cleaning = train("clean", "--all", "--yes")
    assert cleaning.end() == 0, cleaning.output
    assert precious.read_text() == SECRET and (base / "bait").is_dir()
    assert replay.parent.parent == memory and not replay.parent.samefile(base), "the planted folder was used"
    assert replay.parent.stat().st_mode & 0o777 == 0o700 and replay.parent.stat().st_uid == os.geteuid()
    assert str(replay) in cleaning.output and "bait" not in cleaning.output and not replay.exists()


LINKED = ("run.lock", "metrics.jsonl", "checkpoints", "tensorboard", "replay_on_disk")
LEFTOVERS = (".config.yaml.tmp", ".summary.json.tmp", ".replay.json.tmp", ".run.json.tmp")


def test_nothing_of_a_run_folder_is_written_through_a_link(tmp_path: Path) -> None:
    """The folder may come from somebody else: what it links to stays as it is."""
    run = _trained(tmp_path, 300)
    precious, elsewhere = tmp_path / "precious", tmp_path / "elsewhere"
    precious.write_text(SECRET)
    elsewhere.mkdir()
    for name in LEFTOVERS:
        (run / name).symlink_to(precious)
    for name in LINKED:
        place, aside = run / name, tmp_path / "aside"
        if place.exists():
            place.rename(aside)
        place.symlink_to(elsewhere if aside.is_dir() or name == "replay_on_disk" else precious)
        with pytest.raises(UnsafePath, match=f"{name} is a link to .*Remove it"):
            shoal.resume(run, steps=400, quiet=True)
        place.unlink()
        if aside.exists():
            aside.rename(place)
    shoal.resume(run, steps=500, quiet=True)
    assert precious.read_text() == SECRET and not list(elsewhere.iterdir())
    assert not any((run / name).is_symlink() for name in LEFTOVERS[:3])
