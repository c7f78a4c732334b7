"""A run folder from somebody else: nothing it names is imported, joined or written to without consent."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import gymnasium
import pytest

import shoal
from shoal.cli import main
from shoal.errors import ConfigError, ShoalError

pytestmark = pytest.mark.attack
ROOT = Path(__file__).parents[2]
PLANTED = """
import pathlib, gymnasium
(pathlib.Path(__file__).parent / "was_run").touch()
gymnasium.register("Planted-v0", "gymnasium.envs.classic_control.cartpole:CartPoleEnv", max_episode_steps=20)
"""
SMALL = {
    "algo": "apex-dqn",
    "algorithm.hidden": [8],
    "learner.batch_size": 8,
    "replay.capacity": 2_000,
    "replay.min_size": 50,
    "evaluation.episodes": 1,
}
NOBODY = 65534
SIGN = f"""
import os, pathlib, sys
# before: the interpreter may lie where only its owner reads
from shoal.config.load import load_config
from shoal.config.signature import write_config
os.setgroups([]), os.setgid({NOBODY}), os.setuid({NOBODY})
run = pathlib.Path(sys.argv[1])
write_config(run, load_config(run))
"""


class Planted:
    """A module that leaves a mark when it is imported, and a run that names it."""

    def __init__(self, folder: Path, run: Path) -> None:
        self.mark, self.run = folder / "was_run", run

    def forget(self) -> None:
        """As in a new process: not imported, not registered, no mark."""
        sys.modules.pop("planted", None)
        gymnasium.registry.pop("Planted-v0", None)
        self.mark.unlink(missing_ok=True)


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Planted]:
    """One's own run, and a folder that other users can reach."""
    with tempfile.TemporaryDirectory(prefix="shoal-trust-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "planted.py").write_text(PLANTED)
        monkeypatch.syspath_prepend(folder)
        settings = {**SMALL, "env.kwargs": {"sutton_barto_reward": False}}
        made = shoal.train("planted:Planted-v0", steps=100, runtime="inline", quiet=True, out=folder, settings=settings)
        found = Planted(folder, made.path)
        found.forget()
        yield found
        found.forget()


Command = Callable[..., tuple[int, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs `shoal`; returns the exit code and what it said."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(map(str, arguments)))
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out + err

    return run


def _resign(run: Path) -> None:
    """A second user, a real one, makes the run folder theirs, in a process of theirs with a key of theirs."""
    if os.geteuid() != 0:
        pytest.skip("only root can become a second user")
    with tempfile.TemporaryDirectory(prefix="shoal-nobody-") as home:
        for path in (Path(home), run, *run.rglob("*")):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        environment = {"HOME": home, "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src")}
        before = (run / "config.signature").read_bytes()
        subprocess.run([sys.executable, "-c", SIGN, str(run)], check=True, cwd=home, env=environment)
        assert (Path(home) / ".config" / "shoal" / "key").stat().st_uid == NOBODY
    assert (run / "config.signature").read_bytes() != before


def test_another_users_run_imports_nothing(planted: Planted, command: Command) -> None:
    run = planted.run
    _resign(run)
    config = (run / "config.yaml").read_text()
    for arguments in (
        ("eval", run),
        ("eval", run, "--video"),
        ("resume", run, "--steps", 200),
        ("train", run / "config.yaml", "--steps", 200),
        ("share", run / "config.yaml", "-n", 1),
    ):
        code, said = command(*arguments)
        assert code == 2 and not planted.mark.exists(), arguments
        said = " ".join(said.split())
        assert f"{run} does not carry your signature: somebody else made it" in said
        assert f"import the module 'planted' ({planted.mark.parent}/planted.py), which runs its code" in said
        assert ("If you trust it, add --trust (from Python: trust=True)." in said) is (arguments[0] != "share")
    for arguments in (("compare", run), ("clean", "--dry-run", "--runs", run.parent), ("config", run / "config.yaml")):
        code, said = command(*arguments)
        assert code == 0 and not planted.mark.exists(), said
    loaded = shoal.load(run)
    assert loaded.summary is not None and loaded.metrics() and "planted" in repr(loaded)  # looking is free
    for use in (loaded.evaluate, loaded.make_env, loaded.make_policy, lambda: loaded.predict([0.0] * 4)):
        with pytest.raises(ConfigError, match="does not carry your signature"):
            use()
    with pytest.raises(ConfigError, match="does not carry your signature"):
        shoal.resume(run, steps=200)
    assert not planted.mark.exists() and (run / "config.yaml").read_text() == config

    assert command("eval", run, "--trust", "-n", 1)[0] == 0 and planted.mark.exists()
    planted.forget()
    assert shoal.load(run, trust=True).evaluate(1).returns and planted.mark.exists()
    planted.forget()
    code, said = command("resume", run, "--steps", 200, "--quiet", "env.id=planted:Planted-v0")  # named by the user
    assert code == 0 and planted.mark.exists(), said
    planted.forget()
    assert command("eval", run, "-n", 1)[0] == 0  # whoever goes on with a run has made it theirs


def test_ones_own_run_does_not_ask(planted: Planted, command: Command, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    planted.run.rename(moved)
    shutil.copytree(moved, tmp_path / "copy")
    for run in (moved, tmp_path / "copy"):
        planted.forget()
        code, said = command("eval", run, "-n", 1)
        assert code == 0 and planted.mark.exists(), said
    planted.forget()
    assert command("resume", moved, "--steps", 200, "--quiet")[0] == 0 and planted.mark.exists()
    planted.forget()
    text = (moved / "config.yaml").read_text()
    (moved / "config.yaml").write_text(text.replace("planted:Planted-v0", "planted:CartPole-v1"))
    code, said = command("eval", moved)  # not what was signed any more, though the id is one that everybody has
    assert code == 2 and "does not carry your signature" in said and not planted.mark.exists()


def test_pipes_in_a_folder_are_not_waited_for(planted: Planted, command: Command) -> None:
    run = planted.run
    for name in ("summary.json", "config.signature", "resumed.json", "processes.json", "metrics.jsonl"):
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)
    for checkpoint in (run / "checkpoints").iterdir():
        checkpoint.unlink()
        os.mkfifo(checkpoint)
    loaded = shoal.load(run)
    for look in (lambda: loaded.summary, loaded.metrics):
        with pytest.raises(ShoalError, match="not an ordinary file"):
            look()
    for arguments in (("compare", run), ("eval", run, "--trust"), ("clean", "--dry-run", "--runs", run.parent)):
        command(*arguments)
    code, said = command("resume", run, "--trust", "--steps", 200)
    assert code in (0, 1) and "Traceback" not in said
    (run / "config.yaml").unlink()
    os.mkfifo(run / "config.yaml")
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        shoal.load(run)


def test_an_address_is_not_joined(planted: Planted, command: Command) -> None:
    """Who owns a Ray cluster can run code in all that join it."""
    text = (planted.run / "config.yaml").read_text()
    changes = {"address: null": "address: '192.0.2.1:6379'", "id: planted:Planted-v0": "id: CartPole-v1"}
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (planted.run / "config.yaml").write_text(text)
    code, said = command("resume", planted.run, "--steps", 200, "--runtime", "ray")
    assert code == 2 and "join the Ray cluster at '192.0.2.1:6379', whose owner can run code" in " ".join(said.split())
    code, said = command("resume", planted.run, "--steps", 200, "--quiet", "address=null")  # on the user's own word
    assert code == 0, said
