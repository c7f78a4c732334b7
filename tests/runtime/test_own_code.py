"""An algorithm and a network of the user's own, from the first step to `resume`: in one process, and on Ray."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import shoal
from shoal.errors import ConfigError
from shoal.loops.checkpoint import load_checkpoint

ROOT = Path(__file__).parents[2]
SMALL = {
    "algorithm.network": "tests.own_code:make_torso",
    "algorithm.bonus": 1.5,
    "learner.batch_size": 16,
    "replay.capacity": 4_000,
    "replay.min_size": 100,
    "env.lanes": 4,
    "evaluation.episodes": 2,
}


def _weights(run: shoal.Run) -> dict[str, torch.Tensor]:
    return load_checkpoint(run.folder.checkpoints).tensors


def _trained_and_resumed(out: Path, runtime: str) -> None:
    how = {"steps": 600, "runtime": runtime, "actors": 1, "quiet": True, "out": out, "settings": SMALL}
    run = shoal.train("CartPole-v1", algo="tests.own_code:ALGORITHM", **how)  # type: ignore[arg-type]
    assert run.summary is not None and run.summary.updates > 0 and run.summary.status == "finished"
    text = (run.path / "config.yaml").read_text()
    assert "\nalgo: tests.own_code:ALGORITHM " in f"\n{text}" and "bonus: 1.5" in text
    learned, updates = _weights(run), run.summary.updates
    torso = next(name for name in learned if name.startswith("policy.torso.module"))
    assert not torch.equal(learned[torso], learned[torso.replace("policy.", "target.", 1)])

    again = shoal.resume(run.path, steps=1_200, quiet=True)
    assert again.summary is not None and again.summary.env_steps >= 1_200
    assert again.summary.updates > updates and not torch.equal(learned[torso], _weights(again)[torso])
    loaded = shoal.load(run.path)
    assert len(loaded.evaluate(2).returns) == 2 and loaded.predict([0.0] * 4)[0] in (0, 1)
    with pytest.raises(ConfigError, match=r"algorithm\.network cannot change"):
        shoal.resume(run.path, steps=2_000, settings={"algorithm.network": None})


def test_in_one_process(tmp_path: Path) -> None:
    _trained_and_resumed(tmp_path, "inline")


@pytest.mark.slow
def test_on_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT / "src"), str(ROOT))))  # for Ray's workers
    _trained_and_resumed(tmp_path, "ray")


@pytest.mark.slow
def test_a_role_that_cannot_import_it_says_so(tmp_path: Path) -> None:
    """The driver's own `sys.path` is not that of the other processes."""
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "only_here.py").write_text("from shoal.algorithms.apex_dqn import ALGORITHM, Config\n")
    code = (
        "import sys; sys.path.insert(0, 'hidden'); import shoal; "
        "shoal.train('CartPole-v1', algo='only_here:ALGORITHM', actors=1, steps=500, quiet=True)"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ended.returncode == 1
    said = ended.stderr.splitlines()[-1]
    assert "algo = 'only_here:ALGORITHM': cannot import 'only_here'" in said and "PYTHONPATH" in said


def test_nothing_is_begun_with_a_network_that_cannot_work(tmp_path: Path) -> None:
    settings = {**SMALL, "algorithm.network": "tests.own_code:wrong_rank"}
    with pytest.raises(ConfigError, match=r"algorithm\.network = 'tests\.own_code:wrong_rank' returned"):
        shoal.train("CartPole-v1", algo="tests.own_code:ALGORITHM", out=tmp_path, settings=settings)
    assert list(tmp_path.iterdir()) == []
