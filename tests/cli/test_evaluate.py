"""`shoal eval`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.cli.conftest import Shoal

import shoal
from shoal.cli.evaluate import require_display
from shoal.errors import ConfigError, EnvError


def test_table(run_shoal: Shoal, finished: Path) -> None:
    result = run_shoal("eval", finished, "--episodes", 4, "--seed", 5)
    assert result.code == 0 and result.err == ""
    evaluation = shoal.load(finished).evaluate(4, seed=5)
    lines = {line.split()[0]: [float(word) for word in line.split()[1:]] for line in result.out.splitlines()[3:]}
    assert lines["return"] == pytest.approx(
        [evaluation.mean, evaluation.std, min(evaluation.returns), max(evaluation.returns)], abs=0.01
    )
    assert lines["length"][2:] == [min(evaluation.lengths), max(evaluation.lengths)]
    assert "4 episodes without exploration, with best.safetensors" in result.out


def test_checkpoints(run_shoal: Shoal, finished: Path, tmp_path: Path) -> None:
    assert "with step_" in run_shoal("eval", finished, "-n", 1, "--checkpoint", "last").out
    assert "with best" in run_shoal("eval", finished, "-n", 1, "--checkpoint", "best").out
    result = run_shoal("eval", finished, "--checkpoint", "first")
    assert result.code == 2 and "it must be best or last" in result.err
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    (copy / "checkpoints" / "best.safetensors").unlink()
    assert "with step_" in run_shoal("eval", copy, "-n", 1).out
    result = run_shoal("eval", copy, "--checkpoint", "best")
    assert result.code == 1 and "No best checkpoint" in result.err


def test_a_damaged_best_checkpoint_is_named(run_shoal: Shoal, finished: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(finished, tmp_path / "copy")
    (copy / "checkpoints" / "best.safetensors").write_bytes(b"")
    result = run_shoal("eval", copy, "--episodes", 1)
    assert result.code == 0 and "best.safetensors is corrupt" in result.err and "is used instead" in result.err


def test_what_is_no_run(run_shoal: Shoal) -> None:
    result = run_shoal("eval", "nowhere")
    assert result.code == 2 and "is not a run folder" in result.err


def test_video(run_shoal: Shoal, finished: Path, tmp_path: Path) -> None:
    pytest.importorskip("pygame")
    pytest.importorskip("moviepy")
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    result = run_shoal("eval", copy, "-n", 1, "--video", "--seed", 2)
    assert result.code == 0
    file = Path(result.out.rsplit(": ", 1)[1].strip())
    assert file.parent == Path("copy/videos") and file.stat().st_size > 1000
    assert run_shoal("eval", copy, "-n", 1, "--video", "--seed", 3).code == 0  # beside the first
    assert len(list((copy / "videos").glob("*.mp4"))) == 2
    precious = tmp_path / "precious"
    precious.write_text("mine")
    file.unlink()
    file.symlink_to(precious)
    assert run_shoal("eval", copy, "-n", 1, "--video", "--seed", 2).code == 0
    assert precious.read_text() == "mine" and not file.is_symlink() and file.stat().st_size > 1000


def test_video_that_cannot_be_written(run_shoal: Shoal, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = run_shoal("eval", finished, "-n", 1, "--video")
    assert result.code == 2 and "pip install moviepy" in result.err and result.out == ""


def test_window(run_shoal: Shoal, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn where nobody sees it, and as fast as it goes."""
    pygame = pytest.importorskip("pygame")
    shown: list[object] = []
    flip = pygame.display.flip
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setattr("pygame.display.flip", lambda: shown.append(flip()))
    monkeypatch.setattr("gymnasium.envs.classic_control.cartpole.CartPoleEnv.metadata", _UNHURRIED)
    result = run_shoal("eval", finished, "-n", 2, "--render", "--seed", 3)
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert lines[0].startswith("episode 1: return") and lines[1].startswith("episode 2: return")
    returns = [float(line.split()[3].rstrip(",")) for line in lines[:2]]
    assert "2 episodes without exploration, with best.safetensors" in result.out
    assert float(lines[-2].split()[1]) == pytest.approx(sum(returns) / 2, abs=0.01)
    assert len(shown) >= sum(returns) + 2  # every step, and the beginning of every episode
    assert run_shoal("eval", finished, "-n", 2, "--render", "--seed", 3).out == result.out


_UNHURRIED = {"render_modes": ["human", "rgb_array"], "render_fps": 10_000}


def test_window_without_a_display(run_shoal: Shoal, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    result = run_shoal("eval", finished, "-n", 1, "--render")
    assert result.code == 2 and result.out == ""
    assert "needs a display" in result.err and "--video" in result.err


def test_who_has_a_display() -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        require_display({name: ":0"}, "linux")
        with pytest.raises(ConfigError):
            require_display({name: ""}, "linux")
    require_display({}, "darwin")


def test_window_that_cannot_be_opened(run_shoal: Shoal, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise EnvError("Environment 'CartPole-v1' could not be made: error: x11 not available.")

    monkeypatch.setenv("DISPLAY", ":99")
    monkeypatch.setattr("shoal.envs.make_render_env", fail)
    result = run_shoal("eval", finished, "-n", 1, "--render")
    assert result.code == 2 and "x11 not available" in result.err and "--video" in result.err


def test_display_that_does_not_answer(run_shoal: Shoal, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SDL then draws into memory, without a word."""
    pytest.importorskip("pygame")
    monkeypatch.setenv("DISPLAY", ":98765")
    for name in ("WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pygame.display.get_driver", lambda: "offscreen")
    result = run_shoal("eval", finished, "-n", 1, "--render")
    assert result.code == 2 and "--video" in result.err and result.out == ""


def test_window_and_video(run_shoal: Shoal, finished: Path) -> None:
    result = run_shoal("eval", finished, "-n", 1, "--render", "--video")
    assert result.code == 2 and "cannot be used together" in result.err


def test_another_level_than_in_training_and_what_the_environment_says(run_shoal: Shoal, tmp_path: Path) -> None:
    small = {
        "algo": "apex-dqn",
        "replay.min_size": 100,
        "replay.capacity": 2_000,
        "learner.batch_size": 16,
        "env.lanes": 2,
    }
    asked = {"algorithm.hidden": [16], "evaluation.episodes": 2, "env.kwargs.too_high": 3}
    run = shoal.train(
        "tests.fakes:TestStairs-v0", steps=120, runtime="inline", quiet=True, out=tmp_path, settings=asked | small
    )
    assert "success rate    1.00" in run_shoal("eval", run.path, "-n", 2).out
    higher = run_shoal("eval", run.path, "-n", 2, "env.kwargs.height=4").out
    assert "success rate    0.00" in higher and "steps up        4.00" in higher
    assert shoal.load(run.path, overrides={"env.kwargs.height": 4}).evaluate(2).metrics["success_rate"] == 0.0
    refused = run_shoal("eval", run.path, "algorithm.gamma=0.5")
    assert refused.code == 2 and "algorithm.gamma cannot be changed to evaluate" in refused.err
    unknown = run_shoal("eval", run.path, "env.kwarg.height=4")
    assert unknown.code == 2 and "Unknown setting" in unknown.err


def test_where_no_episode_ends(run_shoal: Shoal, tmp_path: Path) -> None:
    asked = {"evaluation.max_episode_steps": 20, "evaluation.episodes": 2, "algorithm.hidden": [16]}
    small = {
        "algo": "apex-dqn",
        "replay.min_size": 100,
        "replay.capacity": 2_000,
        "learner.batch_size": 16,
        "env.lanes": 2,
    }
    run = shoal.train(
        "tests.fakes:TestEndless-v0", steps=120, runtime="inline", quiet=True, out=tmp_path, settings=asked | small
    )
    result = run_shoal("eval", run.path, "--episodes", 3)
    assert result.code == 0 and result.err == ""  # though its close raises
    assert "3 episodes were cut at evaluation.max_episode_steps = 20" in result.out


def test_more_agents_than_trained_with(run_shoal: Shoal, tmp_path: Path) -> None:
    pytest.importorskip("moviepy")
    small = {"env.kwargs.agents": 1, "env.kwargs.size": 6, "algorithm.channels": 4, "algorithm.cell_size": 8}
    few = {
        "algo": "apex-dqn",
        "evaluation.episodes": 2,
        "replay.min_size": 100,
        "replay.capacity": 2_000,
        "env.max_episode_steps": 20,
    }
    run = shoal.train(
        "shoal/PathFinding-v0",
        algo="comm-dqn",
        steps=200,
        runtime="inline",
        quiet=True,
        out=tmp_path,
        settings=small | few,
    )
    played = [shoal.load(run.path, overrides={"algorithm.temperature": one}).evaluate(8) for one in (0.0, 0.0, 5.0)]
    assert played[0].returns == played[1].returns != played[2].returns, "drawn by chance"
    more = ("env.kwargs.agents=5", "env.kwargs.size=12", "env.kwargs.density=0.3")
    result = run_shoal("eval", run.path, "--episodes", 4, *more, "--video")
    words = " ".join(result.out.split())
    assert result.code == 0 and "level.agents 5.00" in words and "level.size 12.00" in words
    assert Path(result.out.rsplit(": ", 1)[1].strip()).stat().st_size > 1000
