"""Fields: every setting of a run by its dotted name, the values it takes, and the nearest name for a misspelt one."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable, Iterator, Mapping
from inspect import cleandoc, isclass
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from shoal.algorithms import ALGORITHMS, get_algorithm
from shoal.errors import ConfigError, UnknownName
from shoal.loops.settings import RunSettings

Settings = TypeVar("Settings", bound=BaseModel)
Key = tuple[str | int, ...]
"""A dotted name, split. A whole number is an index into a list."""


def dotted(key: Iterable[str | int]) -> str:
    """A key as the user writes it."""
    return ".".join(map(str, key))


class Fields(Generic[Settings]):
    """The settings of a run of one algorithm.

    Attributes:
        model: the settings' class.
        algo: the algorithm.
        own: the sections whose model depends on the algorithm, by name.
        refused: why some names cannot be set, by dotted name.
        leaves: every setting that has a value, by dotted name.
        sections: every group of settings, by dotted name.
    """

    def __init__(
        self,
        model: type[Settings],
        algo: str,
        own: Mapping[str, type[BaseModel]],
        refused: Mapping[str, str] = types.MappingProxyType({}),
    ) -> None:
        self.model, self.algo, self.own, self.refused = model, algo, own, refused
        self.leaves: dict[str, FieldInfo] = {}
        self.sections: dict[str, type[BaseModel]] = {}
        self._add("", model)

    @staticmethod
    def of(algo: str) -> Fields[RunSettings]:
        """The fields of one of Shoal's algorithms; raises UnknownName when there is no such algorithm."""
        return Fields(RunSettings, algo, {"algorithm": get_algorithm(algo).config})

    def _add(self, prefix: str, model: type[BaseModel]) -> None:
        for name, info in model.model_fields.items():
            kind = self.own.get(prefix + name, info.annotation)
            if isclass(kind) and issubclass(kind, BaseModel):
                self.sections[prefix + name] = kind
                self._add(f"{prefix}{name}.", kind)
            else:
                self.leaves[prefix + name] = info

    def find(self, key: Key) -> FieldInfo | None:
        """The field at a key, also within a list of settings (`replay.selectors.0.alpha`); None when there is none."""
        name = dotted(key)
        if name in self.leaves:
            return self.leaves[name]
        for size in range(len(key) - 1, 0, -1):
            info = self.leaves.get(dotted(key[:size]))
            if info is not None:
                return _inside(info, key[size:])
        return None

    def resolve(self, name: str) -> Key:
        """The key of a name: a dotted name, or the end of one if only one setting ends so.

        Raises:
            UnknownName: no setting has this name; proposes the nearest.
            ConfigError: several settings end so.
        """
        parts: Key = tuple(int(part) if part.isdigit() else part for part in name.split("."))
        if name in self.sections or self.find(parts) is not None:
            return parts
        named = [*self.leaves, *(section for section in self.sections if self.shorthand(section))]
        for size in range(len(parts), 0, -1):  # the rest is inside of it: `kwargs.gravity`
            ends = [one for one in named if one.endswith(f".{dotted(parts[:size])}")]
            found: list[Key] = [(*one.split("."), *parts[size:]) for one in ends]
            found = [key for key in found if size == len(parts) or self.find(key) is not None]
            if len(found) == 1:
                return found[0]
            if found:
                raise ConfigError(f"{name!r} could mean {_listed([dotted(key) for key in found])}: write which.")
        raise self.unknown(name)

    def shorthand(self, section: str) -> str | None:
        """The setting that a plain value for a whole section stands for: `clear=true` is `clear.enabled=true`."""
        return getattr(self.sections.get(section), "SHORTHAND", None)

    def unknown(self, name: str) -> ConfigError:
        """The error for a name that no setting has."""
        for one, reason in self.refused.items():
            if f".{one}".endswith(f".{name}"):
                return ConfigError(f"{one} cannot be set: {reason}.")
        first = name.removeprefix("algorithm.").partition(".")[0]
        owners = [algo for algo, one in ALGORITHMS.items() if first in one.config.model_fields]
        near = self._nearest(name)
        hint = f"Did you mean {near!r}?" if near else ""
        if self.model is not RunSettings:
            section = name.rpartition(".")[0]
            if not near and section in self.sections:
                hint = f"Known: {', '.join(sorted(self.sections[section].model_fields))}."
            return UnknownName("setting", name, () if hint else self.leaves, hint)
        if owners and self.algo not in owners:
            hint = f"It belongs to {_listed(owners)}, not to {self.algo}."
        return UnknownName("setting", name, (), f"{hint} `shoal config {self.algo}` shows all settings.".lstrip())

    def _nearest(self, name: str) -> str | None:
        head, _, leaf = name.rpartition(".")
        names = [*self.leaves, *self.sections, *self._listed_elements()]

        def likeness(known: str) -> float:
            known_head, _, known_leaf = known.rpartition(".")
            # The last part counts most: people forget or confuse the section.
            return 0.8 * _ratio(leaf, known_leaf) + 0.2 * (_ratio(head, known_head) if head else 0.5)

        best = max(names, key=likeness)
        return best if likeness(best) >= 0.6 else None

    def _listed_elements(self) -> Iterator[str]:
        for name, info in self.leaves.items():
            yield from (f"{name}.0.{inner}" for inner in _entry_fields(info.annotation))


def allowed(info: FieldInfo) -> str:
    """What a field takes, in words: `a whole number from 1 to 64, or null`."""
    return _words(info.annotation, info.metadata)


def takes_flag(info: FieldInfo) -> bool:
    """Whether a field takes true and false."""
    return bool in _members(info.annotation) or info.annotation is Any


def description(model: type[BaseModel]) -> str:
    """The first line of a section's own docstring."""
    return cleandoc(model.__doc__ or "").partition("\n")[0]


def _inside(info: FieldInfo, rest: Key) -> FieldInfo | None:
    if get_origin(info.annotation) is dict or info.annotation is Any:
        return info if all(isinstance(part, str) for part in rest) else None
    if len(rest) != 2 or not isinstance(rest[0], int):
        return None
    return _entry_fields(info.annotation, aliases=True).get(str(rest[1]))


def _entry_fields(annotation: Any, *, aliases: bool = False) -> dict[str, FieldInfo]:
    """The settings that the entries of a list can have, of all their types; empty for other fields.

    Args:
        annotation: the list's type.
        aliases: include other names for settings.
    """
    if get_origin(annotation) not in (tuple, list):
        return {}
    entries = [one for one in _members(get_args(annotation)[0]) if isclass(one) and issubclass(one, BaseModel)]
    found: dict[str, FieldInfo] = {}
    for entry in entries:
        others = getattr(entry, "ALIASES", {}) if aliases else {}
        fields = {**entry.model_fields, **{alias: entry.model_fields[name] for alias, name in others.items()}}
        found = {**found, **fields, **found}  # the first entry that has a field describes it
    if len(entries) > 1:  # a union: the type tells them apart
        tags = tuple(entry.model_fields["type"].default for entry in entries)
        found["type"] = FieldInfo.from_annotation(Literal[tags])  # type: ignore[arg-type]
    return found


def _members(kind: Any) -> tuple[Any, ...]:
    """The alternatives of a union; anything else is its only one."""
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


_PLAIN = {bool: "true or false", str: "text", Path: "a path", type(None): "null"}


def _words(kind: Any, limits: Iterable[Any]) -> str:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(_words(one, limits) for one in get_args(kind))
    if origin is Annotated:
        inner, *extra = get_args(kind)
        parts = [one.metadata if isinstance(one, FieldInfo) else [one] for one in extra]
        return _words(inner, [limit for part in parts for limit in part])
    if origin is Literal:
        choices = [str(choice) for choice in get_args(kind)]
        return choices[0] if len(choices) == 1 else f"one of {', '.join(choices)}"
    if origin in (tuple, list):
        names = _entry_fields(kind)
        each = f"{{{', '.join(names)}}}" if names else _words(get_args(kind)[0], ())
        some = " that is not empty" * any(isinstance(limit, annotated_types.MinLen) for limit in limits)
        return f"a list{some}, each entry {each}"
    if origin is dict:
        return "names with values, such as {name: value}"
    if kind in (int, float):
        return f"a {'whole ' * (kind is int)}number{_range(limits)}"
    if kind is str and any(isinstance(limit, annotated_types.MinLen) for limit in limits):
        return "text that is not empty"
    return _PLAIN.get(kind, str(kind))


def _range(limits: Iterable[Any]) -> str:
    bounds = {name: getattr(one, name) for one in limits for name in ("ge", "gt", "le", "lt") if hasattr(one, name)}
    if {"ge", "le"} <= bounds.keys():
        return f" from {bounds['ge']} to {bounds['le']}"
    words = {"ge": " of at least", "gt": " above", "le": " at most", "lt": " below"}
    return " and".join(f"{words[name]} {bounds[name]}" for name in words if name in bounds)


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


def _listed(names: list[str]) -> str:
    return " or ".join((", ".join(names[:-1]), names[-1]) if len(names) > 1 else names)
