"""The two commands of the README work where packages come as wheels: nothing that `make setup` installs is compiled."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ARM = default_environment() | {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "aarch64"}
WHEELS_ON_ARM = set(
    """
    ale-py ast-serialize charset-normalizer contourpy fonttools glfw grpcio hypothesis imageio-ffmpeg kiwisolver librt
    llvmlite lz4 markupsafe matplotlib msgpack mujoco mujoco-core mujoco-studio mypy numba numpy opencv-python-headless
    pillow protobuf psutil pydantic-core pygame-ce pyyaml ray rpds-py ruff safetensors scipy tensorboard-data-server
    torch wandb websockets xxhash zstandard
    """.split()
)
"""Packages with compiled parts of which an index has a wheel for Linux on ARM, in the version of constraints.txt.

For a new one ask: pip download --no-deps --only-binary=:all: --platform manylinux_2_28_aarch64 NAME==VERSION
"""


def installed_by_setup() -> list[str]:
    """The extras that the Makefile installs."""
    found = re.search(r"^EXTRAS \?= (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert found
    return found[1].split(",")


def needed_on_arm(requirements: Iterable[str]) -> set[str]:
    """The packages that these bring to Linux on ARM, with all that they need in turn, by what is installed here."""
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(Requirement(text), {""}) for text in requirements]
    while waiting:
        wanted, extras = waiting.pop()
        name = canonicalize_name(wanted.name)
        applies = wanted.marker is None or any(wanted.marker.evaluate({**ARM, "extra": one}) for one in extras)
        if not applies or (name, frozenset(wanted.extras)) in seen:
            continue
        seen.add((name, frozenset(wanted.extras)))
        with suppress(metadata.PackageNotFoundError):  # it is for another platform than this one, or another Python
            waiting += [(Requirement(text), wanted.extras or {""}) for text in metadata.requires(name) or []]
    return {name for name, _ in seen}


def compiled(name: str) -> bool:
    """Whether the installed package was built for one platform."""
    try:
        return "Root-Is-Purelib: false" in (metadata.distribution(name).read_text("WHEEL") or "")
    except metadata.PackageNotFoundError:
        return False


def requirements() -> list[str]:
    optional = PROJECT["optional-dependencies"]
    return [*PROJECT["dependencies"], *(text for extra in installed_by_setup() for text in optional[extra])]


def test_setup_compiles_nothing_on_linux_arm() -> None:
    without = {name for name in needed_on_arm(requirements()) if compiled(name)} - WHEELS_ON_ARM
    assert not without, f"{without}: no wheel known for Linux on ARM; see WHEELS_ON_ARM, or limit it by a marker"


def test_a_package_without_a_wheel_would_be_found() -> None:
    if not compiled("box2d"):
        pytest.skip("Box2D is not installed here: on Linux on ARM it cannot be")
    assert "box2d" in needed_on_arm(["Box2D"])
    assert "box2d" not in needed_on_arm(["Box2D; platform_machine != 'aarch64'"])
    assert "llvmlite" in needed_on_arm(["numba"])  # what others need counts, too
