"""YAML as people write it: `1e-3` is a number, a key given twice a mistake, and a mistake has a line and a column."""

from __future__ import annotations

import re
from typing import Any

import yaml

from shoal.errors import ConfigError

_FLOAT = re.compile(r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)$")
"""What YAML 1.1 leaves a text for want of a dot or a sign: 1e-3, 5E6."""
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
            if key.tag == "tag:yaml.org,2002:bool":  # `on:` is a name here, not a truth
                key.tag = "tag:yaml.org,2002:str"
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes what `_Loader` would take for a number."""

    def ignore_aliases(self, data: Any) -> bool:
        """Values are written out, not referred to."""
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Line breaks of any alphabet are escaped: in other quotes YAML would fold them into spaces."""
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
        ConfigError: it is no YAML; says line and column.
    """
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{where}{place}, is not valid YAML: {error.problem or error.context}.") from error
    except yaml.YAMLError as error:  # a character that no YAML may hold
        raise ConfigError(f"{where} is not valid YAML: {' '.join(str(error).split())}.") from error
    except RecursionError as error:
        raise ConfigError(f"{where} is nested too deeply to be settings.") from error


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
