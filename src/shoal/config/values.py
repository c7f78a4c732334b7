"""Reads and writes YAML: `1e-3` is a number, a key given twice is an error, and errors name line and column."""

from __future__ import annotations

import re
from typing import Any

import yaml

from shoal.errors import ConfigError

_FLOAT = re.compile(r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)$")
"""Numbers that YAML 1.1 takes for text because they have no dot or sign: 1e-3, 5E6."""
_DEEPEST, _MOST_VALUES = 50, 100_000
"""Limits on nesting and on the number of values, far above any real settings."""
_FLOAT_STARTS = list("-+0123456789.")


class _Loader(yaml.SafeLoader):
    """YAML's safe loader, with the numbers of YAML 1.2."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.deep_construct = True  # refuses a value that contains itself

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuses a key that is given twice: YAML would silently keep the last."""
        seen: set[str] = set()
        for key, _ in node.value:
            name = str(key.value)
            if name in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{name!r} is given twice", key.start_mark)
            seen.add(name)
            if key.tag == "tag:yaml.org,2002:bool":  # `on:` is a name here, not true
                key.tag = "tag:yaml.org,2002:str"
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes text that `_Loader` would take for a number."""

    def ignore_aliases(self, data: Any) -> bool:
        """Values are written out each time."""
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Escapes all kinds of line breaks: within other quotes YAML would fold them into spaces."""
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"')


_Dumper.add_representer(str, _represent_text)
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, _FLOAT_STARTS)
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, _FLOAT_STARTS)


def parse_yaml(text: str, where: str) -> Any:
    """Reads YAML.

    Args:
        text: the YAML.
        where: its file or setting, for messages.

    Raises:
        ConfigError: it is not YAML; names line and column.
    """
    try:
        content = yaml.load(text, _Loader)
        _require_bounded(content)
        return content
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{where}{place}, is not valid YAML: {error.problem or error.context}.") from error
    except yaml.YAMLError as error:  # a character that YAML does not allow
        raise ConfigError(f"{where} is not valid YAML: {' '.join(str(error).split())}.") from error
    except (LookupError, ValueError, AttributeError, TypeError) as error:  # PyYAML checks no tags: `!!bool maybe`
        raise ConfigError(f"{where} is not valid YAML: a value does not fit its tag, such as !!int.") from error
    except RecursionError as error:
        raise ConfigError(f"{where} is nested too deeply to be settings.") from error


def _require_bounded(content: Any) -> None:
    """A few lines of references can stand for more values than memory holds."""
    waiting, seen = [(content, 0)], 0
    while waiting:
        value, depth = waiting.pop()
        seen += 1
        if depth > _DEEPEST or seen > _MOST_VALUES:
            raise RecursionError
        if isinstance(value, dict | list):
            waiting += ((one, depth + 1) for one in (value.values() if isinstance(value, dict) else value))


def inline_yaml(value: Any) -> str:
    """A value on one line, such that `parse_yaml` gives it back."""
    text = yaml.dump(value, None, _Dumper, default_flow_style=True, sort_keys=False, width=1e9, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")


def shown(value: Any, limit: int = 60) -> str:
    """A value as a message shows it."""
    try:
        text = inline_yaml(value)
    except yaml.YAMLError:  # an object given from Python
        text = repr(value)
    if isinstance(value, str) and not text.startswith(("'", '"')):
        text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
