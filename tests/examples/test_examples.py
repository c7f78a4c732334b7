"""Every example runs, on few steps."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(autouse=True)
def examples_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when an example is started as a script; processes of Ray's find it, too."""
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]))


def _example(name: str) -> Any:
    return importlib.import_module(name)


def test_train_and_predict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = _example("train_cartpole").main("inline", steps=1_200, out=str(tmp_path))
    assert run.summary.status == "finished" and run.summary.updates > 0
    assert "over 20 episodes" in capsys.readouterr().out
    total = _example("predict").main(str(tmp_path / "latest"))
    assert total >= 8
    assert capsys.readouterr().out == f"return {total:g}\n"


def test_custom_env(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = _example("custom_env").main("inline", steps=600, out=str(tmp_path))
    assert run.summary.env_steps >= 600 or run.summary.status == "solved"
    assert run.settings.env.kwargs == {"length": 10}
    assert run.spec.obs_shape == (10,)
    capsys.readouterr()
    total = _example("predict").main(str(tmp_path / "latest"))  # in the environment of this length, not the default one
    assert capsys.readouterr().out == f"return {total:g}\n"


def test_own_algorithm(tmp_path: Path) -> None:
    run = _example("own_algorithm").main("inline", steps=1_500, out=str(tmp_path))
    assert run.summary.updates > 0 and run.settings.algo == "own_algorithm:ALGORITHM"
    assert run.settings.algorithm.temperature == 0.2


def test_own_network(tmp_path: Path) -> None:
    run = _example("own_network").main("inline", steps=1_500, out=str(tmp_path))
    assert run.summary.updates > 0
    assert any("inner" in name for name, _ in run.make_policy().module.named_parameters())


def test_selectors_picture(tmp_path: Path) -> None:
    """What the picture in the docs claims to show."""
    found = _example("selectors_picture").main(tmp_path / "selectors.png")
    assert (tmp_path / "selectors.png").stat().st_size > 10_000
    drawn = {title.partition(",")[0] + title[-2:].strip(): set(starts) for title, starts in found.items()}
    assert len(found) == 9 and all(sum(starts.values()) in (24, 96) for starts in found.values())
    assert found["fifo, three batches"] == {start: 1 for start in range(0, 24 * 6, 6)}
    assert min(drawn["newest.2"]) > 200
    assert len(drawn["elite1"]) < len(drawn["elite3"])  # the same ones again and again; others first


@pytest.mark.learning
def test_own_loop_apex_on_ray() -> None:
    assert 0 < _example("own_loop_apex").main("ray", goal=60) < 500


@pytest.mark.learning
def test_own_loop_impala() -> None:
    assert 0 < _example("own_loop_impala").main(goal=120) < 500


@pytest.mark.learning
def test_own_loop_a3c() -> None:
    assert 0 < _example("own_loop_a3c").main(goal=120) < 500


def test_every_example_has_a_test() -> None:
    tested = Path(__file__).read_text(encoding="utf-8")
    for path in FOLDER.glob("*.py"):
        assert f'_example("{path.stem}")' in tested, path.name
