"""The picture."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.analysis.fakes import write_group, write_run

from shoal.analysis.comparison import compare
from shoal.analysis.figure import _label, _short, draw
from shoal.analysis.runs import read_group, read_groups

PNG = b"\x89PNG\r\n\x1a\n"


def test_the_same_numbers_give_the_same_picture(tmp_path: Path) -> None:
    paths = [write_group(tmp_path / name, [[[0, 1, 2], [1, 2, 3]]] * 2) for name in ("a", "$b_{2}")]
    comparison = compare(read_groups(paths), threshold=2, resamples=100)
    picture = draw(comparison)
    assert picture.startswith(PNG) and draw(comparison) == picture


def test_many_groups_and_groups_without_a_curve(tmp_path: Path) -> None:
    for number in range(8):
        write_run(tmp_path / f"group_with_quite_a_long_name_{number}" / "run", [number, number])
    apart = tmp_path / "group_with_quite_a_long_name_0" / "late"
    write_run(apart, [None] * 5 + [1.0])
    assert draw(compare(read_groups(sorted(tmp_path.iterdir())), resamples=100)).startswith(PNG)


def test_labels_say_how_many(tmp_path: Path) -> None:
    assert _label(read_group(write_group(tmp_path / "a", [[[1.0]] * 4] * 5))) == "a (n = 20 in 5 launches)"
    assert _label(read_group(write_group(tmp_path / "b", [[[1.0]] * 4]))) == "b (n = 4)"


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (950, "950"), (2500, "2.5k"), (1e6, "1M"), (-3e9, "-3G")])
def test_short(value: float, text: str) -> None:
    assert _short(value) == text


def test_matplotlib_is_loaded_for_drawing_only() -> None:
    code = "import sys, shoal.analysis; assert not {'matplotlib', 'torch', 'ray'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
