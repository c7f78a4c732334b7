"""What `shoal.ops` exports."""

from __future__ import annotations

import inspect
import pkgutil
from importlib import import_module

import pytest

from shoal import ops


def _public(module: object) -> set[str]:
    """The public functions and classes of Shoal in a module."""
    found = {name: value for name, value in vars(module).items() if inspect.isfunction(value) or inspect.isclass(value)}
    return {name for name, value in found.items() if value.__module__.startswith("shoal.") and name[0] != "_"}


EXPORTS = sorted(_public(ops))


def test_everything_is_exported_and_nothing_else() -> None:
    modules = [import_module(f"shoal.ops.{one.name}") for one in pkgutil.iter_modules(ops.__path__)]
    public = [module for module in modules if not module.__name__.startswith("shoal.ops._")]
    checks = _public(import_module("shoal.ops._checks"))
    assert set(EXPORTS) == set().union(*map(_public, public)) - checks


@pytest.mark.parametrize("name", EXPORTS)
def test_every_export_is_documented(name: str) -> None:
    doc = inspect.getdoc(getattr(ops, name)) or ""
    assert doc.strip()
    if inspect.isfunction(getattr(ops, name)):
        assert "Args:" in doc and "Returns:" in doc
