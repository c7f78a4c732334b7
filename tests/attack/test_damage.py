"""A run whose files were damaged goes on with what is left and says so, or is refused with a sentence that names the
file. No traceback, and no step is lost from the count or invented. (Every kind of damage to a replay is in
tests/loops/test_preparation.py; here are those that ended whole runs.)
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.damages import DOCUMENT, Damage, cut, name_of, nested, not_utf8, remove, scramble, words

import shoal
from shoal.errors import ShoalError
from shoal.replay import Header
from shoal.replay.counters import Counters

pytestmark = pytest.mark.attack
SETTINGS = {
    "algo": "apex-dqn",
    "env.lanes": 4,
    "replay.capacity": 4000,
    "replay.min_size": 200,
    "replay.keep": True,
    "replay.samples_per_insert": 2,
    "evaluation.episodes": 1,
    "learner.batch_size": 16,
    "hidden": [16],
}
MADE, MORE = 600, 80


@dataclass(frozen=True)
class Victim:
    """A run that can be resumed, and a copy of it as it was."""

    run: Path
    replay: Path
    kept: Path
    summary: shoal.Summary

    def restore(self) -> None:
        """In its own place: a copy elsewhere would not be this run."""
        for path, name in ((self.run, "run"), (self.replay, "replay")):
            shutil.rmtree(path, ignore_errors=True)
            shutil.copytree(self.kept / name, path, symlinks=True)

    def resume(self) -> shoal.Run:
        return shoal.resume(self.run, steps=self.summary.env_steps + MORE)

    def steps_made_since(self) -> int:
        """As the shards say."""
        made = 0
        for index in range(2):
            name = f"shard_{index:03d}/header.bin"
            before, now = (
                Counters(self.kept / "replay" / name, writable=False),
                Counters(self.replay / name, writable=False),
            )
            went_on = now[Header.EPOCH] > before[Header.EPOCH]
            made += now[Header.STEPS] - (before[Header.STEPS] if went_on else 0)
        return made


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    out, kept = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("kept")
    run = shoal.train("CartPole-v1", actors=2, steps=MADE, runtime="inline", out=out, quiet=True, settings=SETTINGS)
    assert run.summary is not None
    replay = Path(json.loads((run.path / "replay.json").read_text())["path"])
    shutil.copytree(run.path, kept / "run", symlinks=True)
    shutil.copytree(replay, kept / "replay")
    yield Victim(run.path, replay, kept, run.summary)
    shutil.rmtree(replay, ignore_errors=True)


@pytest.fixture
def victim(trained: Victim) -> Victim:
    trained.restore()
    return trained


def require_counts(victim: Victim, run: shoal.Run) -> None:
    """Nothing that was made is forgotten, and nothing was counted that was not made."""
    before, summary = victim.summary, run.summary
    assert summary is not None and summary.status == "finished"
    assert MORE <= victim.steps_made_since() < MORE + 20
    assert summary.env_steps == before.env_steps + victim.steps_made_since()
    assert before.episodes <= summary.episodes < before.episodes + MORE
    assert before.updates <= summary.updates < before.updates + MORE


REPLAY: list[tuple[str, Damage]] = [
    ("shard_000", remove),
    ("shard_000/header.bin", cut),
    ("shard_000/header.bin", words(HEAD=2**63 + 5, CLAIM=2**63 + 5)),
    ("shard_000/header.bin", words(STEPS=6 * 10**18)),
    ("ledger.bin", scramble),
    ("ledger.bin", remove),
    ("weights.bin", remove),
    ("weights.words", scramble),
]


@pytest.mark.parametrize(("name", "damage"), REPLAY, ids=name_of)
def test_a_run_goes_on_with_a_damaged_replay(
    victim: Victim, name: str, damage: Damage, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(victim.replay / name)
    run = victim.resume()
    require_counts(victim, run)
    assert name.split("/")[0].split(".")[0] in capsys.readouterr().out


@pytest.mark.parametrize("damage", [scramble, nested], ids=name_of)
def test_a_run_goes_on_without_its_documents(
    victim: Victim, damage: Damage, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("summary.json", "replay.json", "metrics.jsonl"):
        damage(victim.run / name)
    run = victim.resume()
    said = capsys.readouterr().out
    for name in ("summary.json", "replay.json", "metrics.jsonl"):
        assert f"{name} is damaged" in said and list(victim.run.glob(f"{name}.unusable-*"))
    require_counts(victim, run)
    assert run.metrics()[-1]["step"] == run.summary.env_steps  # type: ignore[union-attr]


def test_everything_but_a_checkpoint_and_the_settings(victim: Victim) -> None:
    """All that is left of a run is enough to go on with."""
    for name in ("summary.json", "replay.json", "metrics.jsonl"):
        not_utf8(victim.run / name)
    shutil.rmtree(victim.replay)
    summary = victim.resume().summary
    assert (
        summary is not None
        and victim.summary.env_steps + MORE <= summary.env_steps < victim.summary.env_steps + 2 * MORE
    )


@pytest.mark.parametrize("damage", DOCUMENT, ids=name_of)
def test_damaged_settings_are_refused_by_name(victim: Victim, damage: Damage) -> None:
    damage(victim.run / "config.yaml")
    for act in (victim.resume, lambda: shoal.load(victim.run)):
        with pytest.raises(ShoalError, match=r"config\.yaml"):
            act()
    victim.restore()
    assert shoal.load(victim.run).settings.seed >= 0, "nothing else was touched"


@pytest.mark.parametrize("name", ["summary.json", "metrics.jsonl"])
@pytest.mark.parametrize("damage", DOCUMENT, ids=name_of)
def test_reading_a_damaged_run_is_refused_by_name(victim: Victim, name: str, damage: Damage) -> None:
    damage(victim.run / name)
    run = shoal.load(victim.run)
    try:
        _ = run.summary, run.metrics(), repr(run)
        assert name == "metrics.jsonl" and len(run.metrics()) < 3, "only a file of lines can be cut and read"
    except ShoalError as error:
        assert name in str(error)
