"""Settings as YAML: complete, each with its line of doc, and readable as a scenario."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shoal.config.fields import Fields, Settings, description
from shoal.config.values import inline_yaml
from shoal.loops.settings import RunSettings

_COMMENT_COLUMN = 40


def dump_yaml(settings: RunSettings) -> str:
    """All settings of a run; `load_scenario` gives back the same ones."""
    return dump_fields(settings, Fields.of(settings.algo))


def dump_fields(settings: Settings, fields: Fields[Settings]) -> str:
    """The values of these fields, sections last."""
    return "\n".join(_lines(settings.model_dump(mode="json"), "", fields)) + "\n"


def _lines(values: Mapping[str, Any], section: str, fields: Fields[Any]) -> Iterator[str]:
    groups = {key: value for key, value in values.items() if f"{section}{key}" in fields.sections}
    for key, value in values.items():
        if key not in groups:
            text = f"{'  ' * section.count('.')}{key}: {inline_yaml(value)}"
            doc = fields.leaves[section + key].description
            yield f"{text:<{_COMMENT_COLUMN}}  # {doc}" if doc else text
    for key, value in groups.items():
        yield f"\n{'  ' * section.count('.')}{key}:  # {description(fields.sections[section + key])}"
        yield from _lines(value, f"{section}{key}.", fields)
