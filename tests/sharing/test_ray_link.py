"""Groups on a cluster: two real Ray nodes on this machine, each with its own shared memory."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from tests.lab import LightLab, light_cluster, namespaces, unavailable

from shoal.errors import ConfigError, PlacementError
from shoal.sharing import Registry, create_distributed_registry, pool

pytest.importorskip("stable_baselines3")
from tests.sharing.runs_process import make, read, write

ROOT = Path(__file__).parents[2]
REASON = unavailable()
VISIT = """
import sys, signal, ray
from shoal.sharing import create_distributed_registry
registry = create_distributed_registry(address="auto", name="visit", node=sys.argv[1], stale_seconds=1.0)
assert not ray.is_initialized() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
print(registry.path)
"""


def wait_until(condition: Callable[[], Any], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(scope="module")
def lab() -> Iterator[LightLab]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        with light_cluster(cpus=[1, 1]) as made:
            yield made


def join(lab: LightLab, node: int, stale_seconds: float = 60.0) -> Registry:
    there = lab.nodes[node].node_id
    return create_distributed_registry(
        address="auto", name="team", node=there, min_buffer_size=10, stale_seconds=stale_seconds
    )


def agent_of(registry: Registry) -> int:
    return int(json.loads((registry.path / "registry.json").read_text())["maker"]["pid"])


def rows_from(buffer: Any, run: int) -> Any:
    """The steps of another run that a few batches hold; every row is checked to be whole."""
    runs, steps, _ = (np.concatenate(parts) for parts in zip(*(read(buffer.sample(64)) for _ in range(5)), strict=True))
    return steps[runs == run]


@pytest.mark.slow
def test_runs_of_two_nodes_share_until_one_node_dies(lab: LightLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "REFRESH_SECONDS", 0.0)
    with lab.connected():
        with pytest.raises(ConfigError, match="is the id or name of 0 living nodes"):
            create_distributed_registry(address="auto", name="team", node="elsewhere")
        registries = [join(lab, node, stale_seconds=3.0) for node in range(2)]
        assert [one.path.is_relative_to(node.files) for one, node in zip(registries, lab.nodes, strict=True)] == [
            True
        ] * 2
        one, two = (
            make(registry, f"run-{run}", sample_strategy="self_heavy", cross_sample_ratio=0.5)
            for run, registry in enumerate(registries, 1)
        )
        for run, buffer in enumerate((one, two), 1):
            write(buffer, run, 300)
        # Rows of each node are drawn on the other.
        wait_until(lambda: len(rows_from(one, 2)) and len(rows_from(two, 1)))
        assert 0.3 < len(rows_from(one, 2)) / 320 < 0.7
        # An agent is killed: Ray restarts it, and the mirror goes on where it was.
        killed = agent_of(registries[1])
        os.kill(killed, signal.SIGKILL)
        write(one, 1, 2000, 300)  # over the end of the ring
        wait_until(lambda: max(rows_from(two, 1), default=0) > 2200)
        assert agent_of(registries[1]) != killed
        (mirror,) = (entry for entry in registries[1].entries() if entry.origin)
        assert mirror.run_id == "run-1" and two.get_stats()["refused"] == {}
        # A run that ends is gone on the other node.
        third = make(registries[1], "run-3")
        write(third, 3, 20)
        wait_until(lambda: {entry.run_id for entry in registries[0].entries()} == {"run-1", "run-2", "run-3"})
        third.reset()
        wait_until(lambda: {entry.run_id for entry in registries[0].entries()} == {"run-1", "run-2"})
        # A node dies: its rows are read for a while, then they are dropped; the other node goes on.
        lab.nodes[1].kill()
        died = time.monotonic()
        assert len(rows_from(one, 2))
        wait_until(lambda: {entry.run_id for entry in registries[0].entries()} == {"run-1"})
        assert time.monotonic() - died > 1.5
        write(one, 1, 10, 2300)
        assert not len(rows_from(one, 2))


@pytest.mark.slow
def test_a_group_that_nobody_uses_ends_with_its_agent(lab: LightLab) -> None:
    node = lab.nodes[0]
    code = [sys.executable, "-c", VISIT, node.node_id]
    said = node.run(code, stdout=subprocess.PIPE, text=True).communicate(timeout=60)[0]
    with lab.connected():
        wait_until(lambda: not Path(said.strip()).exists())
        wait_until(lambda: not any("link:visit" in one["name"] for one in ray.util.list_named_actors(True)))


def test_what_cannot_be_joined_is_refused_with_the_remedy() -> None:
    for wrong, words in [
        ({"address": "auto"}, "needs the group's name=..."),
        ({"address": "auto", "name": "a", "path": "/x"}, "no path"),
        ({"name": "a"}, "give its address=..."),
        ({"address": "auto", "name": "a/b"}, "cannot be a folder's name"),
        ({"address": "ray://here:1", "name": "a"}, "run this on one of its machines"),
    ]:
        with pytest.raises(ConfigError, match=re.escape(words)):
            create_distributed_registry(**wrong)  # type: ignore[arg-type]
    with pytest.raises(PlacementError, match=r"Cannot join the Ray cluster at '127.0.0.1:1'.*Is it running"):
        create_distributed_registry(address="127.0.0.1:1", name="a")


@pytest.mark.cluster
@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_the_program_in_the_docs_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "sharing.md").read_text(encoding="utf-8")
    printed = next(block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "# team.py" in block)
    (tmp_path / "team.py").write_text(printed)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    with namespaces(cpus=[1, 1]) as lab:
        started = [
            node.run([sys.executable, str(tmp_path / "team.py"), name], stdout=subprocess.PIPE, text=True)
            for node, name in zip(lab.nodes, ("alice", "bob"), strict=True)
        ]
        said = [one.communicate(timeout=240)[0] for one in started]
        assert [one.returncode for one in started] == [0, 0]
        assert "'bob': {'fraction': 0." in said[0] and "'alice': {'fraction': 0." in said[1], said
