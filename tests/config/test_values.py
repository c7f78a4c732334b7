"""YAML as people write it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.config.values import inline_yaml, parse_yaml, shown
from shoal.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("-2E6", -2e6),
        ("+1e3", 1000.0),
        ("1.5e-3", 1.5e-3),
        (".5e1", 5.0),
        ("1_000e1", 10_000.0),
        ("10_000", 10_000),
        ("0.5", 0.5),
        ("", None),
        ("null", None),
        ("true", True),
        ("[64, 64]", [64, 64]),
        ("[1e-3]", [1e-3]),
        ("{a: 1}", {"a": 1}),
        ("cuda:1", "cuda:1"),
        ("my_package:MyEnv-v0", "my_package:MyEnv-v0"),
        ("'1e-3'", "1e-3"),
        ("1e", "1e"),
        ("e3", "e3"),
    ],
)
def test_values(text: str, value: Any) -> None:
    parsed = parse_yaml(text, "x")
    assert parsed == value and type(parsed) is type(value)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)


@example({"\x85": "a\nb\u2028c\td: # e"})
@given(
    st.recursive(
        SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    )
)
def test_inline_yaml_is_one_line_that_reads_back(value: Any) -> None:
    text = inline_yaml(value)
    assert len(text.splitlines()) <= 1
    assert parse_yaml(f"key: {text}", "x") == {"key": value}


@pytest.mark.parametrize("value", ["1e-3", "1E5", "5e6", "true", "null", "12", ""])
def test_texts_that_look_like_values_are_quoted(value: str) -> None:
    assert parse_yaml(inline_yaml(value), "x") == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1, 2", r"f\.yaml, line 1, column 9, is not valid YAML"),
        ("a: !!bool maybe", r"f\.yaml is not valid YAML: a value does not fit its tag"),
        ("a: !!map [1]", r"f\.yaml is not valid YAML: a value does not fit its tag"),
        ("a: !!int x", r"f\.yaml is not valid YAML: a value does not fit its tag"),
        ("a: 1\nb:\n\t- 2", r"f\.yaml, line 3, column 1, is not valid YAML"),
        ("a: 1\nb: 2\na: 3", r"f\.yaml, line 3, column 1, is not valid YAML: 'a' is given twice"),
        ("a: !!python/object:os.system x", r"line 1, column 4.*could not determine a constructor"),
        ("a: \x00", r"f\.yaml is not valid YAML"),
    ],
)
def test_what_is_no_yaml_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_yaml(text, "f.yaml")


def test_shown_values_are_short_and_plain() -> None:
    assert shown(0) == "0"
    assert shown(None) == "null"
    assert shown("a") == "'a'"
    assert shown([1, 2]) == "[1, 2]"
    assert shown({"a": True}) == "{a: true}"
    assert len(shown("x" * 1000)) == 60
    assert shown(object).startswith("<class")


def test_on_is_a_name_and_yes_a_truth() -> None:
    assert parse_yaml("{on: all, flag: yes}", "here") == {"on": "all", "flag": True}


@pytest.mark.parametrize("text", ["[" * 100_000, "env: &x {id: *x}", "kwargs: &y [1, *y]"], ids=["deep", "map", "list"])
def test_what_has_no_end_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="here"):
        parse_yaml(text, "here")
    assert parse_yaml("a: &x [1]\nb: *x", "here") == {"a": [1], "b": [1]}, "naming a value twice is fine"


def test_a_few_lines_cannot_stand_for_endless_values() -> None:
    nested = "{a: " * 60 + "1" + "}" * 60
    pairs = zip("abcdefgh", "bcdefghi", strict=True)
    laughs = "\n".join(["a: &a [1, 2, 3]", *(f"{b}: &{b} [{', '.join(['*' + a] * 9)}]" for a, b in pairs)])
    for text in (nested, laughs):
        with pytest.raises(ConfigError, match="nested too deeply to be settings"):
            parse_yaml(text, "here")
