"""The table of a group: newest numbers, plain lines, time to go."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.console import Console

from shoal.sharing.live_table import LiveTable, RunRow, group_eta, plain_line, read_row


def newest(folder: Path) -> Mapping[str, float | None]:
    return read_row("a", "SAC", folder, "running", None, True).values


def test_the_newest_value_of_every_name_is_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert newest(tmp_path) == {}
    lines = ['{"step": 1, "wall": 1.0, "eval/mean_reward": 5.0}', '{"step": 2, "wall": 2.0, "time/fps": 9.0}']
    path.write_text("\n".join([*lines, '{"step": 3, "wall": 3.0, "time/f']))
    assert newest(tmp_path) == {"step": 2, "wall": 2.0, "eval/mean_reward": 5.0, "time/fps": 9.0}


def test_a_long_file_is_read_from_its_end(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"step": {step}, "wall": 1.0}}\n' for step in range(20_000)))
    assert newest(tmp_path)["step"] == 19_999


def test_a_row(tmp_path: Path) -> None:
    assert read_row("a", "SAC", tmp_path, "running", 100, True).state == "starting"
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 30, "wall": 6.0}\n')
    assert read_row("a", "SAC", tmp_path, "running", 100, True).eta is None
    with path.open("a") as file:
        file.write('{"step": 50, "wall": 8.0, "time/fps": 10.0, "rollout/ep_rew_mean": null}\n')
    row = read_row("a", "SAC", tmp_path, "running", 100, True)
    assert (row.state, row.values["step"], row.values["rollout/ep_rew_mean"], row.eta) == ("running", 50, None, 5.0)
    assert plain_line(row) == "a (SAC) | running | 50 of 100 steps | 10 steps/s | ETA 0:00:05"


def test_a_line_has_what_is_known() -> None:
    values = {"step": 8000, "share/peers": 3.0, "share/foreign_fraction": 0.2, "rollout/ep_rew_mean": -150.0}
    row = RunRow("a", "SAC", "finished", values=values)
    assert plain_line(row) == "a (SAC) | finished | 8,000 steps | return -150.0 | 3 peers | 20.0% foreign"
    assert "foreign" not in plain_line(
        RunRow("b", "PPO", "running", reads=False, values={"share/foreign_fraction": 0.0})
    )


def test_the_group_ends_with_its_last_run() -> None:
    rows = [RunRow("a", "SAC", "running", target=100, values={"step": 50}, pace=rate) for rate in (10.0, 5.0)]
    assert group_eta(rows) == 10.0
    assert group_eta([*rows, RunRow("c", "SAC", "failed")]) == 10.0
    assert group_eta([*rows, RunRow("c", "SAC", "starting")]) is None


@pytest.mark.parametrize("terminal", [True, False])
def test_what_is_not_a_terminal_gets_lines_and_a_table_at_the_end(terminal: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=160)
    with LiveTable(console, interval=1000) as table:
        table.update([RunRow("a", "SAC", "starting")])
        table.update([RunRow("a", "SAC", "running", values={"step": 5})])
        table.update([RunRow("a", "SAC", "running", values={"step": 6})])  # too soon for another line
        table.note("[a note]")
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert text.count("5 steps") == 1 and "6 steps" not in text and "[a note]" in text
    assert "algorithm" in text and "foreign" in text
