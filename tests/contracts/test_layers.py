"""Who may import what, and what may never be called: the rules of ARCHITECTURE.md, read from the source itself.

Imports count wherever they stand (inside functions, under TYPE_CHECKING, through `import_module("literal")`), so there
is no lazy way around a layer. Each rule is a function from a parsed file to a list of complaints, and has sources that
it must refuse.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "shoal"

LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors",),
    ("types", "files"),
    ("metrics_file",),
    ("ops", "replay", "networks", "envs"),
    ("algorithms", "sharing"),
    ("loops",),
    ("runtime", "analysis"),
    ("config",),
    ("run",),
    ("api", "parts"),
    ("__init__",),
    ("cli",),
    ("__main__",),
)
"""Bottom first. A module sees its own package and the layers below it; neighbours in a layer do not see each other."""
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}

PICKLERS = {"pickle", "_pickle", "cloudpickle", "dill", "shelve"}
UNSAFE_YAML = {"load", "load_all", "full_load", "full_load_all", "unsafe_load", "unsafe_load_all"}
SAFE_LOADERS = {"yaml.SafeLoader", "yaml.CSafeLoader"}


class Source(NamedTuple):
    """One file: where it is inside the package, and what it says."""

    path: PurePosixPath
    tree: ast.Module

    @property
    def part(self) -> str:
        """The top-level module or package this file belongs to."""
        return self.path.parts[0].removesuffix(".py")


class Import(NamedTuple):
    """`module` is absolute; `name` is what is taken from it, if anything; `bound` is the name it gets here."""

    line: int
    module: str
    name: str
    bound: str


def _absolute(source: Source, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = ("shoal", *source.path.parts[:-1])
    return ".".join([*package[: len(package) - node.level + 1], *([node.module] if node.module else [])])


def _imports(source: Source) -> Iterator[Import]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, alias.name, "", alias.asname or alias.name.split(".")[0])
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield Import(node.lineno, _absolute(source, node), alias.name, alias.asname or alias.name)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if function in {"import_module", "__import__"} and isinstance(node.args[0].value, str):
                yield Import(node.lineno, node.args[0].value, "", "")


def _top_levels(source: Source) -> Iterator[tuple[int, str]]:
    for imported in _imports(source):
        yield imported.line, imported.module.split(".")[0]


def _dotted(node: ast.expr, names: dict[str, str]) -> str:
    """`t.load` -> `torch.load` after `import torch as t`; "" for anything that is not a plain name."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        base = _dotted(node.value, names)
        return f"{base}.{node.attr}" if base else ""
    return ""


def _names(source: Source) -> dict[str, str]:
    """What each imported name of the file stands for."""
    names = {}
    for imported in _imports(source):
        if imported.name:
            names[imported.bound] = f"{imported.module}.{imported.name}"
        elif imported.bound:
            # `import a.b` binds `a`, `import a.b as c` binds `a.b`.
            plain = imported.bound == imported.module.split(".")[0]
            names[imported.bound] = imported.bound if plain else imported.module
    return names


def layers(source: Source) -> list[str]:
    """Imports go down the layers only."""
    if source.part not in LEVEL:
        return [f"{source.part!r} has no layer: give it one in LAYERS, and in ARCHITECTURE.md"]
    complaints = []
    for line, module, name, _ in _imports(source):
        head, *rest = module.split(".")
        if head != "shoal":
            continue
        target = rest[0] if rest else name if name in LEVEL else "__init__"
        if target == source.part:
            continue
        if target not in LEVEL:
            complaints.append(f"line {line}: imports shoal.{target}, which has no layer in LAYERS")
        elif LEVEL[target] >= LEVEL[source.part]:
            complaints.append(f"line {line}: {source.part} imports {target}, which is not below it")
    return complaints


def ray_at_the_edge(source: Source) -> list[str]:
    """Only `runtime/ray_*.py` and `sharing/ray_*.py` know Ray."""
    folder, name = source.path.parent.as_posix(), source.path.name
    if folder in {"runtime", "sharing"} and name.startswith("ray_"):
        return []
    return [f"line {line}: imports ray outside runtime/ray_*.py" for line, top in _top_levels(source) if top == "ray"]


def one_door_to_fsspec(source: Source) -> list[str]:
    """Only `runtime/storage_copy.py` knows fsspec."""
    if source.path.as_posix() == "runtime/storage_copy.py":
        return []
    return [f"line {line}: imports fsspec" for line, top in _top_levels(source) if top == "fsspec"]


def replay_without_torch(source: Source) -> list[str]:
    """`replay/` is numpy and numba, so that any process can read it without loading torch."""
    if source.part != "replay":
        return []
    return [f"line {line}: replay imports torch" for line, top in _top_levels(source) if top == "torch"]


def no_module_called_ray(source: Source) -> list[str]:
    """A `ray.py` or `ray/` would hide the real one from whoever runs a file beside it."""
    return [f"{source.path} shadows ray" for part in source.path.parts if part.removesuffix(".py") == "ray"]


def no_pickle_import(source: Source) -> list[str]:
    """Nothing that Shoal reads back can run code."""
    return [f"line {line}: imports {top}" for line, top in _top_levels(source) if top in PICKLERS]


def _allows_pickle(call: ast.Call) -> bool:
    given = [keyword.value for keyword in call.keywords if keyword.arg == "allow_pickle"] + call.args[2:3]
    return any(not (isinstance(value, ast.Constant) and value.value is False) for value in given)


def _safe_yaml(call: ast.Call, names: dict[str, str], safe: set[str]) -> bool:
    given = [keyword.value for keyword in call.keywords if keyword.arg == "Loader"] + call.args[1:2]
    return bool(given) and all(_dotted(value, names) in safe for value in given)


def no_unsafe_load(source: Source) -> list[str]:
    """No torch.load, no np.load that may unpickle, no YAML loader but a safe one (or a subclass of it)."""
    names = _names(source)
    safe = SAFE_LOADERS | {
        node.name
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef) and any(_dotted(base, names) in SAFE_LOADERS for base in node.bases)
    }
    called = {id(node.func): node for node in ast.walk(source.tree) if isinstance(node, ast.Call)}
    complaints = []
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Name | ast.Attribute):
            continue
        what, call = _dotted(node, names), called.get(id(node))
        head, _, last = what.rpartition(".")
        if what == "torch.load":
            complaints.append(f"line {node.lineno}: torch.load unpickles; weights are safetensors")
        elif what == "numpy.load" and call is not None and _allows_pickle(call):
            complaints.append(f"line {node.lineno}: numpy.load with allow_pickle")
        elif head == "yaml" and last in UNSAFE_YAML and not (call is not None and _safe_yaml(call, names, safe)):
            complaints.append(f"line {node.lineno}: {what} without a safe loader; use yaml.safe_load")
    return complaints


RULES: tuple[Callable[[Source], list[str]], ...] = (
    layers,
    ray_at_the_edge,
    one_door_to_fsspec,
    replay_without_torch,
    no_module_called_ray,
    no_pickle_import,
    no_unsafe_load,
)
FILES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


@cache
def _source(path: str) -> Source:
    return Source(PurePosixPath(path), ast.parse((PACKAGE / path).read_text(encoding="utf-8")))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_holds(rule: Callable[[Source], list[str]]) -> None:
    found = ((path, rule(_source(path))) for path in FILES)
    complaints = "\n".join(f"src/shoal/{path}: {'; '.join(said)}" for path, said in found if said)
    assert not complaints, complaints


def test_there_is_something_to_check() -> None:
    assert {"types.py", "errors.py"} <= set(FILES)


REFUSED = [
    (layers, "replay/shard.py", "import shoal.networks.torso"),
    (layers, "replay/shard.py", "from shoal.envs import make"),
    (layers, "replay/shard.py", "from ..ops import vtrace"),
    (layers, "replay/selectors/elite.py", "from ... import loops"),
    (layers, "replay/shard.py", "def late():\n    from shoal.algorithms import dqn"),
    (layers, "replay/shard.py", "import importlib\nimportlib.import_module('shoal.loops.actor')"),
    (layers, "types.py", "from shoal.ops import vtrace"),
    (layers, "errors.py", "from shoal.types import Array"),
    (layers, "algorithms/dqn.py", "if TYPE_CHECKING:\n    from shoal.loops import weights"),
    (layers, "loops/actor.py", "from shoal import runtime"),
    (layers, "algorithms/apex_dqn.py", "from shoal.sharing.registry import Registry"),
    (layers, "sharing/registry.py", "from shoal.loops import RunSettings"),
    (layers, "analysis/runs.py", "from shoal.runtime.metrics import read_metrics"),
    (layers, "config/settings.py", "from shoal import train"),
    (layers, "config/settings.py", "import shoal"),
    (layers, "api.py", "from shoal.cli import main"),
    (layers, "replay/shard.py", "from shoal.helpers import f"),
    (layers, "helpers.py", "x = 1"),
    (ray_at_the_edge, "loops/actor.py", "import ray"),
    (ray_at_the_edge, "runtime/inline.py", "def f():\n    from ray.util import placement_group"),
    (ray_at_the_edge, "runtime/deep/ray_x.py", "import ray"),
    (ray_at_the_edge, "cli/ray_train.py", "import ray"),
    (ray_at_the_edge, "api.py", "from importlib import import_module\nimport_module('ray')"),
    (one_door_to_fsspec, "runtime/copies.py", "def f():\n    from fsspec.core import url_to_fs"),
    (replay_without_torch, "replay/shard.py", "import torch"),
    (replay_without_torch, "replay/selectors/elite.py", "from torch.nn import functional"),
    (no_module_called_ray, "runtime/ray.py", ""),
    (no_module_called_ray, "sharing/ray/__init__.py", ""),
    (no_pickle_import, "loops/checkpoint.py", "import pickle"),
    (no_pickle_import, "loops/checkpoint.py", "from cloudpickle import dumps"),
    (no_pickle_import, "loops/checkpoint.py", "import dill as d"),
    (no_pickle_import, "loops/checkpoint.py", "def f():\n    import shelve"),
    (no_unsafe_load, "loops/checkpoint.py", "import torch\ntorch.load('x', weights_only=True)"),
    (no_unsafe_load, "loops/checkpoint.py", "import torch as t\nread = t.load"),
    (no_unsafe_load, "loops/checkpoint.py", "from torch import load\nload('x')"),
    (no_unsafe_load, "loops/checkpoint.py", "import torch.nn\ntorch.load('x')"),
    (no_unsafe_load, "replay/shard.py", "import numpy as np\nnp.load('x', allow_pickle=True)"),
    (no_unsafe_load, "replay/shard.py", "import numpy as np\nnp.load('x', None, 1)"),
    (no_unsafe_load, "replay/shard.py", "from numpy import load\nload('x', allow_pickle=flag)"),
    (no_unsafe_load, "config/files.py", "import yaml\nyaml.load(text)"),
    (no_unsafe_load, "config/files.py", "import yaml\nyaml.load(text, Loader=yaml.FullLoader)"),
    (no_unsafe_load, "config/files.py", "import yaml as y\ny.unsafe_load(text)"),
    (no_unsafe_load, "config/files.py", "import yaml\nclass Mine(yaml.Loader): ...\nyaml.load(text, Mine)"),
]

ACCEPTED = [
    (layers, "replay/shard.py", "from shoal.errors import NoSpace\nfrom . import schema\nfrom .views import View"),
    (layers, "replay/selectors/elite.py", "from ..schema import Schema\nfrom ...types import Keys"),
    (layers, "types.py", "from shoal import errors"),
    (layers, "__init__.py", "from shoal.api import train\nfrom .types import Array"),
    (layers, "cli/__init__.py", "from shoal import train\nfrom shoal.config import load_scenario"),
    (ray_at_the_edge, "runtime/ray_runtime.py", "import ray"),
    (ray_at_the_edge, "sharing/ray_registry.py", "from ray import remote"),
    (ray_at_the_edge, "loops/actor.py", "from shoal.loops.weights import array\nimport rayon"),
    (one_door_to_fsspec, "runtime/storage_copy.py", "import fsspec"),
    (replay_without_torch, "ops/vtrace.py", "import torch"),
    (no_module_called_ray, "runtime/ray_runtime.py", ""),
    (no_pickle_import, "loops/checkpoint.py", "import json\nfrom safetensors.torch import load_file"),
    (no_unsafe_load, "loops/checkpoint.py", "import json, torch\njson.load(f)\ntorch.load_state = 1"),
    (no_unsafe_load, "replay/shard.py", "import numpy as np\nnp.load('x', 'r')\nnp.load('x', allow_pickle=False)"),
    (no_unsafe_load, "config/files.py", "import yaml\nyaml.safe_load(text)\nyaml.load(text, Loader=yaml.CSafeLoader)"),
    (no_unsafe_load, "config/files.py", "import yaml\nclass Mine(yaml.SafeLoader): ...\nyaml.load(text, Mine)"),
]


@pytest.mark.parametrize(("rule", "path", "text"), REFUSED)
def test_rule_can_fail(rule: Callable[[Source], list[str]], path: str, text: str) -> None:
    assert rule(Source(PurePosixPath(path), ast.parse(text)))


@pytest.mark.parametrize(("rule", "path", "text"), ACCEPTED)
def test_rule_lets_good_source_pass(rule: Callable[[Source], list[str]], path: str, text: str) -> None:
    assert rule(Source(PurePosixPath(path), ast.parse(text))) == []


def test_what_benchmarks_and_examples_import_exists() -> None:
    """They are run by hand, some of them rarely: a name that moved would be noticed late."""
    missing = []
    for path in sorted([*ROOT.glob("benchmarks/*.py"), *ROOT.glob("examples/**/*.py")]):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "shoal":
                module = importlib.import_module(str(node.module))
                names = [alias.name for alias in node.names if not hasattr(module, alias.name)]
                missing += [f"{path.name}: {node.module}.{name}" for name in names if not _is_module(module, name)]
    assert not missing


def _is_module(package: ModuleType, name: str) -> bool:
    return importlib.util.find_spec(f"{package.__name__}.{name}") is not None


def test_the_code_map_names_every_file_and_no_other() -> None:
    named = {Path(name).name for name in re.findall(r"`([\w/]+\.py)`", (ROOT / "ARCHITECTURE.md").read_text("utf-8"))}
    files = {path.name for path in PACKAGE.rglob("*.py")} - {"__init__.py", "__main__.py"}
    assert files - named == set(), "missing in ARCHITECTURE.md"
    elsewhere = {path.name for folder in ("benchmarks", "examples", "tests") for path in (ROOT / folder).rglob("*.py")}
    assert named - files - elsewhere == {"__init__.py"} & named, "named in ARCHITECTURE.md and gone"
