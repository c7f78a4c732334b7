"""What can be set: every setting of a run by its dotted name, what it takes, and which one a misspelt name meant."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from inspect import cleandoc, isclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from shoal.algorithms import ALGORITHMS, get_algorithm
from shoal.errors import ConfigError, UnknownName
from shoal.loops.settings import RunSettings

Key = tuple[str | int, ...]
"""Where a setting is: its dotted name, taken apart. A whole number counts the entries of a list."""


def dotted(key: Iterable[str | int]) -> str:
    """A key as the user writes it."""
    return ".".join(map(str, key))


@dataclass(frozen=True)
class Fields:
    """The settings of a run of one algorithm.

    Attributes:
        algo: the algorithm.
        leaves: every setting that has a value, by dotted name.
        sections: every group of settings, by dotted name.
    """

    algo: str
    leaves: dict[str, FieldInfo]
    sections: dict[str, type[BaseModel]]

    @classmethod
    def of(cls, algo: str) -> Fields:
        """Raises UnknownName when there is no such algorithm."""
        fields = cls(algo, {}, {})
        fields._add("", RunSettings)
        return fields

    def _add(self, prefix: str, model: type[BaseModel]) -> None:
        for name, info in model.model_fields.items():
            kind = get_algorithm(self.algo).config if prefix + name == "algorithm" else info.annotation
            if isclass(kind) and issubclass(kind, BaseModel):
                self.sections[prefix + name] = kind
                self._add(f"{prefix}{name}.", kind)
            else:
                self.leaves[prefix + name] = info

    def find(self, key: Key) -> FieldInfo | None:
        """The field at a key, also inside a list of settings (`replay.selectors.0.alpha`); None when there is none."""
        name = dotted(key)
        if name in self.leaves:
            return self.leaves[name]
        for size in range(len(key) - 1, 0, -1):
            info = self.leaves.get(dotted(key[:size]))
            if info is not None:
                return _inside(info, key[size:])
        return None

    def resolve(self, name: str) -> Key:
        """The key a name means: its dotted name, or the end of it when only one setting is called so.

        Raises:
            UnknownName: nothing is called so; proposes the nearest.
            ConfigError: several are.
        """
        parts: Key = tuple(int(part) if part.isdigit() else part for part in name.split("."))
        if name in self.sections or self.find(parts) is not None:
            return parts
        named = [*self.leaves, *(section for section in self.sections if self.shorthand(section))]
        found = [one for one in named if one.endswith(f".{name}")]
        if len(found) == 1:
            return tuple(found[0].split("."))
        if found:
            raise ConfigError(f"{name!r} could mean {_listed(found)}: write which.")
        raise self.unknown(name)

    def shorthand(self, section: str) -> str | None:
        """The setting that a plain value given for a whole section means: `clear=true` is `clear.enabled=true`."""
        return getattr(self.sections.get(section), "SHORTHAND", None)

    def unknown(self, name: str) -> UnknownName:
        """The error for a name that nothing has."""
        first = name.removeprefix("algorithm.").partition(".")[0]
        owners = [algo for algo, one in ALGORITHMS.items() if first in one.config.model_fields]
        near = self._nearest(name)
        hint = f"Did you mean {near!r}? " if near else ""
        if owners and self.algo not in owners:
            hint = f"It belongs to {_listed(owners)}, not to {self.algo}. "
        return UnknownName("setting", name, (), f"{hint}`shoal config {self.algo}` shows all settings.")

    def _nearest(self, name: str) -> str | None:
        head, _, leaf = name.rpartition(".")
        names = [*self.leaves, *self.sections, *self._listed_elements()]

        def likeness(known: str) -> float:
            known_head, _, known_leaf = known.rpartition(".")
            # The last part says what is meant; people forget or mistake the section.
            return 0.8 * _ratio(leaf, known_leaf) + 0.2 * (_ratio(head, known_head) if head else 0.5)

        best = max(names, key=likeness)
        return best if likeness(best) >= 0.6 else None

    def _listed_elements(self) -> Iterator[str]:
        for name, info in self.leaves.items():
            element = _element(info.annotation)
            if element is not None:
                yield from (f"{name}.0.{inner}" for inner in element.model_fields)


def allowed(info: FieldInfo) -> str:
    """What a field takes, in words: `a whole number from 1 to 64, or null`."""
    return _words(info.annotation, info.metadata)


def takes_flag(info: FieldInfo) -> bool:
    """Whether true and false are values of a field."""
    kinds = get_args(info.annotation) if get_origin(info.annotation) in (Union, types.UnionType) else (info.annotation,)
    return bool in kinds


def description(model: type[BaseModel]) -> str:
    """The first line of a section's own docstring."""
    return cleandoc(model.__doc__ or "").partition("\n")[0]


def _inside(info: FieldInfo, rest: Key) -> FieldInfo | None:
    if get_origin(info.annotation) is dict:
        return info if all(isinstance(part, str) for part in rest) else None
    element = _element(info.annotation)
    if element is None or len(rest) != 2 or not isinstance(rest[0], int):
        return None
    name = str(rest[1])
    return element.model_fields.get(getattr(element, "ALIASES", {}).get(name, name))


def _element(annotation: Any) -> type[BaseModel] | None:
    """The model that a list of settings consists of."""
    if get_origin(annotation) in (tuple, list):
        first = get_args(annotation)[0]
        if isclass(first) and issubclass(first, BaseModel):
            return first
    return None


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
        model = _element(kind)
        each = f"{{{', '.join(model.model_fields)}}}" if model else _words(get_args(kind)[0], ())
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
    low = high = ""
    closed = False
    for limit in limits:
        if isinstance(limit, annotated_types.Ge):
            low, closed = str(limit.ge), True
        elif isinstance(limit, annotated_types.Gt):
            low = f" above {limit.gt}"
        elif isinstance(limit, annotated_types.Le):
            high = str(limit.le)
        elif isinstance(limit, annotated_types.Lt):
            high = f" below {limit.lt}"
    if closed and high and not high.startswith(" "):
        return f" from {low} to {high}"
    low = f" of at least {low}" if closed else low
    high = high if high.startswith(" ") or not high else f" at most {high}"
    return f"{low} and{high}" if low and high else low or high


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


def _listed(names: list[str]) -> str:
    return " or ".join((", ".join(names[:-1]), names[-1]) if len(names) > 1 else names)
