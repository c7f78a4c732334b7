"""What `shoal.ops` exports."""

from __future__ import annotations

import inspect

import pytest

from shoal import ops


def test_all_is_sorted_complete_and_without_leftovers() -> None:
    public = {name for name, value in vars(ops).items() if inspect.isfunction(value) or inspect.isclass(value)}
    assert set(ops.__all__) == public
    assert len(ops.__all__) == len(set(ops.__all__))


@pytest.mark.parametrize("name", ops.__all__)
def test_every_export_is_documented(name: str) -> None:
    doc = inspect.getdoc(getattr(ops, name)) or ""
    assert doc.strip()
    if inspect.isfunction(getattr(ops, name)):
        assert "Args:" in doc and "Returns:" in doc
