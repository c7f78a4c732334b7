"""`shoal share`: what it understands, what it refuses, and a launch of two small runs."""

from __future__ import annotations

import json
import os
import sys
from datetime import datetime
from pathlib import Path

import pytest
from tests.cli.conftest import Shoal

from shoal.cli.share import launch_folder, next_commands, plain_words
from shoal.cli.share_plan import ShareOptions, announce, choose, load_runs, open_registry, plan
from shoal.cli.share_worker import WorkerSpec
from shoal.errors import ConfigError
from shoal.sharing.sb3_settings import Sb3Settings

pytest.importorskip("stable_baselines3")

OPTIONS = ShareOptions(
    ratio=0.2,
    strategy="self_heavy",
    gpus=(),
    base_seed=42,
    steps=None,
    overrides=(),
    wandb=False,
    min_buffer_size=1000,
    stale_seconds=300.0,
)


def options(**changes: object) -> ShareOptions:
    return ShareOptions(**{**OPTIONS.__dict__, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("typed", "plain"),
    [
        ("a.yaml -n 4 --gpus 0 1 0 1 --tag t", "a.yaml -n 4 --gpus 0,1,0,1 --tag t"),
        ("a.yaml --gpus 0,1 1", "a.yaml --gpus 0,1,1"),
        ("a.yaml --gpus=0,1 b.yaml", "a.yaml --gpus=0,1 b.yaml"),
        ("--gpus 0 1 a.yaml", "--gpus 0,1 a.yaml"),
        ("a.yaml --n_parallel 2 --cross_sample_ratio=0.5", "a.yaml --n-parallel 2 --cross-sample-ratio=0.5"),
        ("a.yaml --extra_args x=1 y_z=2", "a.yaml x=1 y_z=2"),
        ("a.yaml --extra_args x=1 --tag t", "a.yaml x=1 --tag t"),
        ("a.yaml --extra-args x=1", "a.yaml x=1"),
        ("a.yaml --gpus", "a.yaml --gpus"),
    ],
)
def test_words_are_understood(typed: str, plain: str) -> None:
    assert plain_words(typed.split()) == plain.split()


def test_options_after_the_two_dashes_are_refused() -> None:
    with pytest.raises(ConfigError, match="'--tag' after `--` is no KEY=VALUE"):
        plain_words(["a.yaml", "--", "x=1", "--tag", "t"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("sb3_sac_pendulum", "--cross-sample-ratio", "1.5"), "1.5"),
        (("sb3_sac_pendulum", "--strategy", "self_hevy"), "Did you mean 'self_heavy'?"),
        (("sb3_sac_pendulum", "--stale-seconds", "0"), "must be above 0"),
        (("sb3_sac_pendulum", "--gpus", "one"), "--gpus 0 1 0 1"),
        (("sb3_sac_pendulum", "sb3_sac_pendulum"), "was given 2 times. For several runs of it write -n 2."),
        (("sb3_sac_pendulum", "sb3_td3_pendulum", "-n", "3"), "must be a multiple"),
        (("sb3_sac_pendulm",), "sb3_sac_pendulm"),
        (("learning_rate=1e-3",), "Share what?"),
        (
            ("sb3_sac_pendulum", "--", "learning_rat=1"),
            "sb3_sac_pendulum: Unknown setting 'learning_rat'. Did you mean",
        ),
        (("cartpole_apex_dqn", "--", "batch_sise=1"), "cartpole_apex_dqn: Unknown setting 'batch_sise'. Did you mean"),
        (("sb3_sac_pendulum", "--tag", "a/b"), "cannot be a folder's name"),
    ],
)
def test_what_cannot_be_used_is_refused_and_nothing_is_made(
    run_shoal: Shoal, arguments: tuple[str, ...], words: str
) -> None:
    result = run_shoal("share", *arguments)
    assert result.code == 2 and words in result.err and "Traceback" not in result.err
    assert not Path("runs").exists()


def test_an_address_without_a_cluster_is_refused_at_once(run_shoal: Shoal) -> None:
    result = run_shoal("share", "sb3_sac_pendulum", "--address", "127.0.0.1:1")
    assert result.code == 1 and "Cannot join the Ray cluster at '127.0.0.1:1'" in result.err
    assert "Leave --address out" in result.err and not Path("runs").exists()


def test_without_stable_baselines3_it_says_how_to_get_it(run_shoal: Shoal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    result = run_shoal("share", "sb3_sac_pendulum")
    assert result.code == 2 and 'pip install "shoal-rl[sb3]"' in result.err


def test_scenarios_take_turns() -> None:
    assert choose(["a"], 3) == [Path("a")] * 3
    assert choose(["a", "b"], None) == [Path("a"), Path("b")]
    assert choose(["a", "b"], 4) == [Path(name) for name in "abab"]


def test_seeds_names_gpus_and_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_REGISTRY", "/of/somebody/else")
    asked = options(gpus=(0, 1), base_seed=7, steps=500, overrides=("threads=2",), strategy="local_only")
    candidates = load_runs([Path("sb3_sac_pendulum")] * 3, asked)
    runs = plan(asked, candidates, tmp_path, None)
    assert [run.name for run in runs] == ["sac_pendulum_0", "sac_pendulum_1", "sac_pendulum_2"]
    assert [run.environment["CUDA_VISIBLE_DEVICES"] for run in runs] == ["0", "1", "0"]
    assert all(run.environment["OMP_NUM_THREADS"] == "2" and run.target_steps == 500 for run in runs)
    assert all("SHOAL_REGISTRY" not in run.environment for run in runs)
    specs = [WorkerSpec(**json.loads((run.folder / "spec.json").read_text())) for run in runs]
    assert [Sb3Settings.model_validate(spec.sb3).seed for spec in specs] == [7, 8, 9]
    assert all(spec.registry is None and spec.launcher == os.getpid() for spec in specs)


def test_runs_of_shoal_take_part(tmp_path: Path) -> None:
    asked = options(ratio=0.5, steps=900)
    candidates = load_runs([Path("cartpole_apex_dqn"), Path("sb3_dqn_cartpole")], asked)
    with open_registry(candidates, asked, tmp_path) as registry:
        assert registry is not None and registry.path.is_dir()
        specs = [run.folder / "spec.json" for run in plan(asked, candidates, tmp_path, registry)]
        own, sb3 = (WorkerSpec(**json.loads(spec.read_text())) for spec in specs)
        assert "seed=42" in own.overrides and "stop.steps=900" in own.overrides
        assert {f"share.registry={registry.path}", "share.ratio=0.5", "share.strategy=self_heavy"} <= set(own.overrides)
        assert own.sb3 is None and sb3.sb3 is not None and sb3.registry == str(registry.path)
        assert (sb3.sb3["seed"], sb3.sb3["total_timesteps"]) == (43, 900)
    assert not registry.path.exists()


def test_it_says_who_gives_and_who_reads(tmp_path: Path) -> None:
    mixed = load_runs([Path("sb3_sac_pendulum"), Path("sb3_ppo_pendulum"), Path("sb3_dqn_cartpole")], OPTIONS)
    text = "\n".join(announce(mixed, OPTIONS, tmp_path))
    assert "3 runs (1 SAC, 1 PPO, 1 DQN), self_heavy, ratio 0.2" in text
    assert "contribute their steps and never read others': ppo_pendulum_1." in text
    assert "there are 2: CartPole-v1, Pendulum-v1." in text
    alone = load_runs([Path("sb3_ppo_pendulum")], OPTIONS)
    assert "Nobody reads" in "\n".join(announce(alone, OPTIONS, tmp_path))
    assert "nothing is shared" in "\n".join(announce(mixed, options(strategy="local_only"), tmp_path))


def test_launches_of_one_tag_lie_side_by_side(tmp_path: Path) -> None:
    now = datetime(2026, 1, 31, 15, 45)
    assert [launch_folder(tmp_path, "a", now).name for _ in range(2)] == ["launch_001", "launch_002"]
    assert launch_folder(tmp_path, None, now).parent.name == "share_20260131-154500"
    (tmp_path / "share_b").touch()
    with pytest.raises(ConfigError, match="Not a directory"):
        launch_folder(tmp_path, "b", now)
    assert next_commands(tmp_path / "share_a") == [f"shoal compare {tmp_path}/share_a"]
    (tmp_path / "share_alone").mkdir()
    assert next_commands(tmp_path / "share_a") == [f"shoal compare {tmp_path}/share_alone {tmp_path}/share_a"]


@pytest.mark.slow
def test_two_runs_share(run_shoal: Shoal) -> None:
    small = ("learning_starts=100", "train_freq=50", "gradient_steps=5", "every_steps=300", "episodes=1")
    result = run_shoal(
        *("share", "sb3_dqn_cartpole", "-n", 2, "--steps", 1500, "--min-buffer-size", 100, "--tag", "t"), "--", *small
    )
    assert result.code == 0, result.out + result.err
    assert "shoal compare runs/share_t" in result.out and "finished" in result.out
    for number in (0, 1):
        run = Path("runs/share_t/launch_001") / f"dqn_cartpole_{number}"
        summary = json.loads((run / "summary.json").read_text())
        assert summary["status"] == "finished" and summary["env_steps"] >= 1500, (run / "log.txt").read_text()
        assert json.loads((run / "run.json").read_text())["seed"] == 42 + number
        assert (run / "model.zip").exists() and (run / "config.yaml").exists()
    assert run_shoal("compare", "runs/share_t").code == 0
