"""metrics.jsonl survives kills and resumes; TensorBoard and W&B get the same numbers."""

from __future__ import annotations

import importlib
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.errors import ConfigError, UnsafePath
from shoal.loops.preparation import UNUSABLE
from shoal.metrics_file import read_metrics
from shoal.runtime import metrics
from shoal.runtime.metrics import MetricsLog
from shoal.runtime.repair import repair
from shoal.runtime.run_folder import RunFolder
from shoal.runtime.sinks import Wandb, WandbSettings, make_sinks


@pytest.fixture
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user who never logged in to W&B."""
    home = tmp_path / "home"
    home.mkdir()
    for name in [name for name in os.environ if name.startswith("WANDB_")] + ["NETRC"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    return home


class FakeWandb:
    """Stands in for the package; `refuse` makes going online fail."""

    class Error(Exception):
        pass

    def __init__(self, refuse: bool = False) -> None:
        self.refuse = refuse
        self.errors = SimpleNamespace(Error=self.Error)
        self.modes: list[str] = []
        self.options: dict[str, Any] = {}
        self.logged: list[dict[str, float]] = []
        self.finished = 0
        self.broken = False

    def Settings(self, **options: Any) -> dict[str, Any]:
        return options

    def init(self, **options: Any) -> FakeWandb:
        self.modes.append(options["mode"])
        if self.refuse and options["mode"] == "online":
            raise self.Error("no network")
        self.options = options
        return self

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        pass

    def log(self, values: dict[str, float]) -> None:
        if self.broken:
            raise BrokenPipeError("service died")
        self.logged.append(values)

    def finish(self) -> None:
        self.finished += 1


def use(fake: FakeWandb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", fake)


def test_lines_come_back_and_a_resumed_run_appends(tmp_path: Path) -> None:
    with MetricsLog(tmp_path) as log:
        log.write(10, {"rollout/ep_rew_mean": 1.5, "train/loss": math.nan, "time/fps": math.inf}, wall=0.25)
    with MetricsLog(tmp_path) as log:
        log.write(20, {"eval/mean_reward": 2}, wall=1.0)
    assert read_metrics(tmp_path / "metrics.jsonl") == [
        {"step": 10, "wall": 0.25, "rollout/ep_rew_mean": 1.5, "train/loss": None, "time/fps": None},
        {"step": 20, "wall": 1.0, "eval/mean_reward": 2.0},
    ]
    assert "NaN" not in (tmp_path / "metrics.jsonl").read_text()


@pytest.mark.parametrize("rest", [b'{"step": 30, "wa', b'{"step": 30, "wall": 1.0}', b'{"half a letter \xc3'])
def test_a_line_cut_short_is_left_out_and_does_not_spoil_the_next(tmp_path: Path, rest: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 10, "wall": 1.0}\n' + rest)
    assert [row["step"] for row in read_metrics(path)] == [10]
    with MetricsLog(tmp_path) as log:
        log.write(40, {}, wall=2.0)
    assert [row["step"] for row in read_metrics(path)] == [10, 40]


NO_METRICS = [
    b"not json",
    b"[1]",
    b"{}",
    b'{"step": 1}',
    b'{"step": "1", "wall": 2.0}',
    b'{"step": 1, "wall": NaN}',
    b'{"step": 1, "wall": true}',
    b'{"step": null, "wall": 2.0}',
    b"\xff\xfe\x00",
    b"[" * 100_000,
]


@pytest.mark.parametrize("line", NO_METRICS, ids=range(len(NO_METRICS)))
def test_a_damaged_line_is_refused_by_number_and_can_be_left_out(tmp_path: Path, line: bytes) -> None:
    path, whole = tmp_path / "metrics.jsonl", b'{"step": 1, "wall": 2.0, "train/loss": null}\n'
    path.write_bytes(whole + line + b"\n" + whole)
    with pytest.raises(ConfigError, match=r"metrics\.jsonl, line 2, is damaged"):
        read_metrics(path)
    (said,) = repair(RunFolder(tmp_path))
    (aside,) = tmp_path.glob(f"metrics.jsonl.{UNUSABLE}-*")
    assert said == f"metrics.jsonl is damaged: 1 of 3 lines cannot be read; the whole file is kept as {aside.name}"
    assert path.read_bytes() == whole * 2 and line in aside.read_bytes()
    assert repair(RunFolder(tmp_path)) == []


def test_no_metrics_are_none_and_a_folder_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert read_metrics(path) == []
    path.write_text("")
    assert read_metrics(path) == []
    path.unlink()
    path.mkdir()
    with pytest.raises(UnsafePath, match="is not an ordinary file"):
        read_metrics(path)
    (said,) = repair(RunFolder(tmp_path))
    assert "metrics.jsonl is damaged: it is not an ordinary file; it is set aside as metrics.jsonl." in said


@pytest.mark.parametrize("value", ["NaN", "1e999", "true", '"high"', "[1]", "{}", "1" + "0" * 400])
def test_what_is_no_number_is_null_and_the_line_stays(tmp_path: Path, value: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step": 1, "wall": 2.0, "train/loss": {value}, "eval/mean_reward": 3}}\n')
    assert read_metrics(path) == [{"step": 1, "wall": 2.0, "train/loss": None, "eval/mean_reward": 3}]
    assert repair(RunFolder(tmp_path)) == []


def test_blank_lines_are_skipped_but_counted(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'\n{"step": 1, "wall": 2.0, "train/loss": NaN}\n  \n')
    assert read_metrics(path) == [{"step": 1, "wall": 2.0, "train/loss": None}]
    path.write_bytes(path.read_bytes() + b"{}\n")
    with pytest.raises(ConfigError, match=r"line 4, is damaged"):
        read_metrics(path)


def test_step_and_wall_are_taken(tmp_path: Path) -> None:
    with MetricsLog(tmp_path) as log, pytest.raises(ValueError, match="cannot be called step"):
        log.write(1, {"step": 2.0}, wall=0.0)


WRITER = """
import sys
from pathlib import Path
from shoal.runtime.metrics import MetricsLog
log = MetricsLog(Path(sys.argv[1]))
for step in range(10**9):
    log.write(step, {f"train/value{i}": step / 7 for i in range(50)}, wall=step)
    if step == 100:
        sys.stdout.write("writing\\n")
        sys.stdout.flush()
"""


def test_a_killed_run_leaves_every_line_it_finished(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(metrics.__file__).parents[2])}
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    for _ in range(3):
        (tmp_path / "metrics.jsonl").unlink(missing_ok=True)
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=env) as process:
            assert process.stdout is not None and process.stdout.readline() == b"writing\n"
            process.send_signal(signal.SIGKILL)
        rows = read_metrics(tmp_path / "metrics.jsonl")
        assert len(rows) > 100 and [row["step"] for row in rows] == list(range(len(rows)))


def test_a_full_disk_costs_lines_and_tensorboard_but_not_the_run(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk: writes are cut short, then refused."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with MetricsLog(tmp_path, make_sinks(tmp_path, None, print)) as log:
        log.write(1, {"train/loss": 0.5}, wall=1.0)
        resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "metrics.jsonl").stat().st_size + 10, limits[1]))
        try:
            log.write(2, {"train/loss": 0.5}, wall=2.0)
            log.write(3, {"train/loss": 0.5}, wall=3.0)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        lost, stopped = log.take_notes()
        assert "from step 2 on (File too large)" in lost and "TensorBoard stopped at step 2 (File too large)" in stopped
        assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1]
        log.write(4, {"train/loss": 0.5}, wall=4.0)
        assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1, 4]  # there is room again
        assert log.take_notes() == []


def test_a_metrics_file_that_was_deleted_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with MetricsLog(tmp_path / "run") as log:
        (tmp_path / "run" / "metrics.jsonl").unlink()
        log.write(1, {"train/loss": 0.5}, wall=1.0)
        assert [row["step"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [1]
        shutil.rmtree(tmp_path / "run")
        with pytest.raises(FileNotFoundError):
            log.write(2, {"train/loss": 0.5}, wall=2.0)


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    precious, path = tmp_path / "precious", tmp_path / "metrics.jsonl"
    precious.write_bytes(b"mine")
    path.symlink_to(precious)
    with pytest.raises(UnsafePath, match=r"metrics\.jsonl is a link to"):
        MetricsLog(tmp_path)
    path.unlink()
    with MetricsLog(tmp_path) as log:
        path.unlink()
        path.symlink_to(precious)  # while the run is under way
        with pytest.raises(UnsafePath, match=r"metrics\.jsonl is a link to"):
            log.write(1, {"a": 1.0}, wall=0.0)
    assert precious.read_bytes() == b"mine"


def test_tensorboard_shows_scalars_before_the_run_ends_and_after_a_resume(tmp_path: Path) -> None:
    accumulator = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    log = MetricsLog(tmp_path, make_sinks(tmp_path, None, print))
    log.write(10, {"rollout/ep_rew_mean": 1.5, "train/loss": 0.5}, wall=1.0)
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert events.Tags()["scalars"] == ["rollout/ep_rew_mean", "train/loss"]
    log.close()
    log.close()
    with MetricsLog(tmp_path, make_sinks(tmp_path, None, print)) as log:
        log.write(20, {"train/loss": 0.25}, wall=2.0)
    loss = [
        (event.step, event.value)
        for file in (tmp_path / "tensorboard").iterdir()
        for event in accumulator.EventAccumulator(str(file)).Reload().Scalars("train/loss")
    ]
    assert sorted(loss) == [(10, 0.5), (20, 0.25)]


def test_wandb_without_a_key_is_offline_and_says_so(
    tmp_path: Path, nobody: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeWandb()
    use(fake, monkeypatch)
    settings = WandbSettings(run_id="abc", config={"seed": 1})
    notes: list[str] = []
    with MetricsLog(tmp_path, [Wandb(tmp_path, settings, notes.append)]) as log:
        log.write(5, {"train/loss": 0.5}, wall=1.0)
        (note,) = notes
        assert fake.modes == ["offline"] and "wandb login" in note and "wandb sync" in note
    assert fake.logged == [{"env_steps": 5, "train/loss": 0.5}] and fake.finished == 1
    assert fake.options["id"] == "abc" and fake.options["resume"] == "allow" and fake.options["config"] == {"seed": 1}
    assert fake.options["name"] == tmp_path.name


def test_wandb_goes_online_with_a_key_or_a_login(tmp_path: Path, nobody: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWandb()
    use(fake, monkeypatch)
    (nobody / ".netrc").write_text("machine api.wandb.ai\n  login user\n  password " + "0" * 40 + "\n")
    (nobody / ".netrc").chmod(0o600)
    MetricsLog(tmp_path, [Wandb(tmp_path, WandbSettings(), print)]).close()
    (nobody / ".netrc").write_text("machine elsewhere.example\n  login user\n  password x\n")
    MetricsLog(tmp_path, [Wandb(tmp_path, WandbSettings(), print)]).close()
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    MetricsLog(tmp_path, [Wandb(tmp_path, WandbSettings(), print)]).close()
    monkeypatch.setenv("WANDB_MODE", "offline")
    MetricsLog(tmp_path, [Wandb(tmp_path, WandbSettings(), print)]).close()
    assert fake.modes == ["online", "offline", "online", "offline"]


def test_wandb_that_fails_does_not_stop_training(tmp_path: Path, nobody: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWandb(refuse=True)
    use(fake, monkeypatch)
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    notes: list[str] = []
    with MetricsLog(tmp_path, [Wandb(tmp_path, WandbSettings(), notes.append)]) as log:
        assert fake.modes == ["online", "offline"] and "no network" in notes[0]
        fake.broken = True
        log.write(1, {}, wall=0.0)
        log.write(2, {}, wall=0.0)
        (note,) = log.take_notes()
        assert "service died" in note and log.take_notes() == []
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 2


def test_a_sink_that_fails_is_closed_and_the_others_go_on(tmp_path: Path) -> None:
    class Page:
        name = "The page"

        def __init__(self) -> None:
            self.wrote: list[tuple[int, dict[str, float], float]] = []
            self.closed = 0

        def write(self, step: int, values: Mapping[str, float], wall: float) -> None:
            if math.isnan(values["train/loss"]):
                raise ZeroDivisionError("of its own")
            self.wrote.append((step, dict(values), wall))

        def close(self) -> None:
            self.closed += 1

    one, two = Page(), Page()
    with MetricsLog(tmp_path, [one, two]) as log:
        log.write(1, {"train/loss": 0.5}, wall=1.0)
        one.wrote.clear()
        two.write = lambda *_: None  # type: ignore[method-assign,assignment]
        log.write(2, {"train/loss": math.nan}, wall=2.0)
        log.write(3, {"train/loss": 0.5}, wall=3.0)
        assert log.take_notes() == ["The page stopped at step 2 (ZeroDivisionError('of its own')); training goes on."]
        assert (one.wrote, one.closed, two.closed) == ([], 1, 0)
    assert two.wrote == [(1, {"train/loss": 0.5}, 1.0)] and (one.closed, two.closed) == (1, 1)
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2, 3]


@pytest.mark.parametrize(
    ("package", "remedy"), [("wandb", r"shoal-rl\[wandb\]"), ("tensorboard", "install tensorboard")]
)
def test_a_missing_package_names_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, remedy: str
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=remedy):
        make_sinks(tmp_path, WandbSettings(), print)


REAL = """
from pathlib import Path
from shoal.runtime.metrics import MetricsLog
from shoal.runtime.sinks import Wandb, WandbSettings
with MetricsLog(Path("."), [Wandb(Path("."), WandbSettings(), [].append)]) as log:
    log.write(5, {"train/loss": 0.5}, wall=1.0)
"""


def test_the_real_wandb_works_offline_and_never_asks(tmp_path: Path, nobody: Path) -> None:
    pytest.importorskip("wandb")
    env = {**os.environ, "PYTHONPATH": str(Path(metrics.__file__).parents[2])}
    run = subprocess.run(
        [sys.executable, "-c", REAL], cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    assert run.stdout == b""
