"""Shoal as others get it: a wheel in a fresh environment, used in an empty folder, far from any checkout."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.contracts.test_house import commands

ROOT = Path(__file__).parents[2]
SHORT = {
    "train": ["--runtime=inline", "--steps=600", "evaluation.episodes=1", "capacity=20_000"],
    "resume": ["--steps=800"],
    "share": ["total_timesteps=120", "evaluation.episodes=1", "evaluation.every_steps=60", "--n-parallel=2"],
    "eval": ["--episodes=1"],
}
"""What makes a README's command a short one. A later option wins over the README's."""
RUN_ALL = """
import json, sys, traceback
import shoal
from shoal.cli import main

report = {"package": shoal.__file__, "codes": []}
for arguments in json.loads(sys.argv[1]):
    print("$ shoal", *arguments, flush=True)
    try:
        main(arguments)
    except SystemExit as ended:
        report["codes"].append(ended.code or 0)
    except BaseException:
        traceback.print_exc()
        report["codes"].append(-1)
open("report.json", "w").write(json.dumps(report))
"""
"""All commands in one process: loading torch for each would take minutes in all."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    _pip("wheel", ".", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", out, cwd=source)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment with the wheel, and the packages that the tests run with."""
    folder = tmp_path_factory.mktemp("fresh") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    _pip("--python", folder / "bin" / "python", "install", "--no-deps", "--no-index", wheel)
    (site,) = folder.glob("lib/python*/site-packages")
    # The .pth files in there, an editable Shoal's among them, are not followed: that is done for site folders only.
    site.joinpath("packages.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin"


def _pip(*arguments: Any, cwd: Path | None = None) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "-q", *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def readme_commands() -> list[list[str]]:
    """The README's `shoal` commands, in its order, each shortened; those that need its examples/ are left out."""
    found = commands((ROOT / "README.md").read_text(encoding="utf-8"))
    examples = re.compile("(^|=)(" + "|".join(path.stem for path in (ROOT / "examples").glob("*.py")) + "):")
    return [[*one, *SHORT.get(one[0], [])] for one in found if not any(examples.search(word) for word in one)]


@pytest.mark.attack
def test_the_wheel_brings_the_scenarios_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    shipped = {Path(name).name for name in names if name.startswith("shoal/scenarios/")}
    assert shipped == {path.name for path in (ROOT / "src" / "shoal" / "scenarios").iterdir()}
    assert {name.split("/")[0] for name in names} == {"shoal", Path(wheel).name.split("-py3")[0] + ".dist-info"}


@pytest.mark.attack
@pytest.mark.slow
def test_every_command_of_the_readme_works_far_from_a_checkout(installed: Path, tmp_path: Path) -> None:
    listed = subprocess.run(
        [installed / "shoal", "scenarios"], cwd=tmp_path, env=_environment(), capture_output=True, text=True, check=True
    )
    assert "cartpole_apex_dqn" in listed.stdout
    asked = readme_commands()
    assert {"train", "eval", "resume", "share", "compare"} <= {one[0] for one in asked}
    command = [installed / "python", "-c", RUN_ALL, json.dumps(asked)]
    done = subprocess.run(command, cwd=tmp_path, env=_environment(), capture_output=True, text=True, check=False)
    report = json.loads((tmp_path / "report.json").read_text())
    assert Path(report["package"]).is_relative_to(installed.parent)  # not a checkout's
    failed = [one for one, code in zip(asked, report["codes"], strict=True) if code]
    assert not failed, f"{failed}\n{done.stdout}{done.stderr}"
