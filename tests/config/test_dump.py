"""Settings as YAML, and back."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from shoal.algorithms import ALGORITHMS
from shoal.config.dump import dump_yaml
from shoal.config.fields import Fields
from shoal.config.load import load_named, load_scenario, scenario_names, settings_for
from shoal.loops.settings import RunSettings

CHANGES = [
    "env.kwargs={a: [1, 2], b: {c: 'x: y # z'}, d: '1e-3', e: null}",
    "reward_clip=0.5",
    "learning_rate=1e-7",
    "replay.path=somewhere/else",
    "replay.selectors=[{type: newest, ratio: 0.5}, {type: uniform, ratio: 0.5, capacity: 9}]",
    "address='ray://host:1'",
    "steps=123456789",
    "seconds=1e9",
]


@pytest.mark.parametrize("changes", [[], CHANGES], ids=["defaults", "changes"])
@pytest.mark.parametrize("name", [*ALGORITHMS, *(name for name in scenario_names() if not name.startswith("sb3_"))])
def test_round_trip(name: str, changes: list[str], tmp_path: Path) -> None:
    if name.endswith("ppo") and changes:  # it refuses these selectors
        changes = [*changes, "replay.selectors=[{type: rollout, lag: 1, share: 0.5}]"]
    if name.endswith("a3c") and changes:
        changes = [*changes, "replay.selectors=[{type: rollout}]"]
    settings = load_named(name, changes)
    path = tmp_path / "config.yaml"
    path.write_text(dump_yaml(settings), encoding="utf-8")
    settings = settings.model_copy(update={"reasons": ()})  # a number of actors that is set needs none
    loaded = load_scenario(path).model_copy(update={"reasons": ()})
    assert loaded == settings
    assert dump_yaml(loaded) == dump_yaml(settings)


def test_every_setting_is_there_with_its_doc() -> None:
    settings = settings_for("CartPole-v1", "apex-dqn", [])
    text = dump_yaml(settings)
    for name, info in Fields.of("apex-dqn").leaves.items():
        lines = [line for line in text.splitlines() if line.strip().startswith(f"{name.rpartition('.')[2]}: ")]
        assert lines, name
        assert info.description and any(line.endswith(f"# {info.description}") for line in lines), name
    content = yaml.safe_load(text)
    assert set(content) == set(RunSettings.model_fields)


def test_plain_yaml_reads_it_too() -> None:
    settings = settings_for("CartPole-v1", "apex-dqn", ["learning_rate=1e-7", "adam_epsilon=1e-8"])
    content = yaml.safe_load(dump_yaml(settings))
    assert content["algorithm"]["learning_rate"] == 1e-7
    assert content["algorithm"]["adam_epsilon"] == 1e-8
