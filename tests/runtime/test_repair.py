"""What a damaged run folder can still say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.damages import DOCUMENT, Damage, name_of, remove

from shoal.loops.checkpoint import CheckpointState, save_checkpoint
from shoal.loops.counts import Counts
from shoal.runtime.repair import known_counts, repair
from shoal.runtime.run_folder import RunFolder, Summary

LINE = '{"step": 900, "wall": 1.5, "rollout/episodes": 45, "train/updates": 70}\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run folder whose documents count differently, as they do after a kill; and its replay."""
    folder, replay = RunFolder(tmp_path / "run"), tmp_path / "memory" / "replay"
    replay.mkdir(parents=True)
    monkeypatch.setattr("shoal.runtime.repair.replay_folders", lambda: iter([tmp_path / "nothing", replay]))
    folder.path.mkdir()
    folder.write_json("summary.json", replace(Summary.not_begun("x"), env_steps=500, episodes=60, updates=40))
    folder.metrics_jsonl.write_text(LINE)
    folder.write_json("resumed.json", {"times": 1})
    folder.write_json("replay.json", {"path": str(replay), "mark": "m"})
    RunFolder(replay).write_json("owner.json", {"run": str(folder.path), "mark": "m"})
    info = {"env_steps": 800, "episodes": 40, "updates": 80}
    save_checkpoint(folder.checkpoints, CheckpointState(80, {"w": torch.ones(1)}, info))
    return folder


def test_the_most_that_any_document_counts(folder: RunFolder) -> None:
    assert known_counts(folder) == Counts(900, 60, 80)
    folder.metrics_jsonl.write_text(LINE + '{"step": 6e18, "wall": 1.0}\n{"step": 950, "wall": "x"}\n')
    assert known_counts(folder) == Counts(900, 60, 80), "what cannot be is not believed"
    for path in (folder.metrics_jsonl, folder.summary_json):
        path.write_text("[[[")
    assert known_counts(folder) == Counts(800, 40, 80)
    next(folder.checkpoints.iterdir()).write_bytes(b"x")
    assert known_counts(folder) == Counts()


def test_what_is_whole_is_left_alone(folder: RunFolder) -> None:
    before = {path: path.read_bytes() for path in folder.path.iterdir() if path.is_file()}
    assert repair(folder) == []
    assert {path: path.read_bytes() for path in folder.path.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("damage", DOCUMENT, ids=name_of)
@pytest.mark.parametrize("name", ["summary.json", "metrics.jsonl", "replay.json", "resumed.json"])
def test_what_is_damaged_is_set_aside_with_a_note(folder: RunFolder, name: str, damage: Damage) -> None:
    damage(folder.path / name)
    whole = name == "metrics.jsonl" and name_of(damage) in ("empty", "cut")  # a line that is not ended
    notes = repair(folder)
    assert [f"{name} is damaged" in note for note in notes[:1]] == ([] if whole else [True])
    assert bool(list(folder.path.glob(f"{name}.unusable-*"))) != whole
    assert repair(folder) == []


@pytest.mark.parametrize("damage", [*DOCUMENT, remove], ids=name_of)
def test_a_replay_is_found_by_its_signature(folder: RunFolder, damage: Damage) -> None:
    pointed = json.loads(folder.replay_json.read_text())
    damage(folder.replay_json)
    assert pointed["path"] in repair(folder)[-1]
    assert json.loads(folder.replay_json.read_text()) == pointed


def test_somebody_elses_replay_is_not_taken(folder: RunFolder) -> None:
    replay = Path(json.loads(folder.replay_json.read_text())["path"])
    RunFolder(replay).write_json("owner.json", {"run": str(folder.path) + "-2", "mark": "m"})
    remove(folder.replay_json)
    assert repair(folder) == [] and not folder.replay_json.exists()
