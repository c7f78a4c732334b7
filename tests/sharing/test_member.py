"""Who a run is in a group, and where its rows are."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.errors import ConfigError
from shoal.replay import Column, Schema
from shoal.sharing import Description, Registry, create_distributed_registry
from shoal.sharing.member import MemberShard, Membership
from shoal.sharing.registry import BUFFER_ID, ENV_ID, REGISTRY, RUN_ID

SCHEMA = Schema((Column("obs", "float32", (2,)), Column("boundary", "uint8")))
DESCRIPTION = Description("Toy-v0", "Box", "Discrete(3)", "env")


def stored(member: Membership, rows: int = 50) -> MemberShard:
    storage = MemberShard(member, SCHEMA, rows, 2, DESCRIPTION)
    storage.writer.append({"obs": np.ones((2, 2), np.float32), "boundary": np.zeros(2, np.uint8)})
    return storage


def test_without_a_registry_a_run_is_alone(held: Callable[[], int]) -> None:
    member = Membership.resolve(None, None)
    assert member.registry is None
    before = held()
    storage = stored(member)
    assert storage.reader.head == 1 and storage.reader.columns["obs"][0].tolist() == [[1, 1], [1, 1]]
    assert held() == before, "its files are unlinked at once"
    storage.remove()
    with pytest.raises(ConfigError, match="without a registry"):
        Membership.resolve(None, "some_id")


@pytest.mark.parametrize("given", ["registry", "path", "string", "variable"])
def test_a_registry_is_given_in_any_way(group: Registry, given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ways: dict[str, Any] = {"registry": group, "path": group.path, "string": str(group.path), "variable": None}
    if given == "variable":
        monkeypatch.setenv(REGISTRY, str(group.path))
    member = Membership.resolve(ways[given], None)
    assert member.registry is not None and member.registry.path == group.path
    assert member.run_id == f"run-{os.getpid()}" and member.buffer_id.startswith(member.run_id)


def test_the_launchers_variables_fill_in_the_rest(group: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer_id = group.register_buffer("sac_1", "SAC", "Toy-v0")
    for name, value in {REGISTRY: str(group.path), BUFFER_ID: buffer_id, RUN_ID: "other", ENV_ID: "Else-v0"}.items():
        monkeypatch.setenv(name, value)
    member = Membership.resolve(None, None)
    assert (member.buffer_id, member.run_id, member.algorithm, member.env_id) == (buffer_id, "sac_1", "SAC", "Toy-v0")
    given = group.register_buffer("given", "TD3")
    member = Membership.resolve(None, given)
    assert (member.buffer_id, member.run_id, member.env_id) == (given, "given", "Else-v0")


def test_an_id_that_nobody_registered_is_a_new_member(group: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN_ID, "late")
    storage = stored(Membership.resolve(group, "chosen_id"))
    assert [(one.buffer_id, one.run_id, one.algorithm) for one in group.entries()] == [("chosen_id", "late", "")]
    storage.remove()
    assert list(group.entries()) == []


def test_rows_are_announced_and_removed(group: Registry, held: Callable[[], int]) -> None:
    before = held()
    storage = stored(Membership.resolve(group, group.register_buffer("one", "SAC")))
    entry = next(iter(group.entries()))
    assert entry.description == DESCRIPTION and entry.shards == (storage.writer.path,) and entry.pid == os.getpid()
    assert group.get_buffer_stats()[entry.buffer_id]["rows"] == 2
    storage.remove()
    assert list(group.entries()) == [] and held() <= before
    assert storage.reader.columns["obs"][0].tolist() == [[1, 1], [1, 1]], "what is mapped stays readable"


def test_an_id_in_use_is_not_written_twice(group: Registry) -> None:
    member = Membership.resolve(group, group.register_buffer("one", "SAC"))
    first, second = stored(member), stored(member)
    assert first.member.buffer_id == member.buffer_id != second.member.buffer_id
    assert {one.run_id for one in group.entries()} == {"one"} and len(list(group.entries())) == 2
    assert first.reader.head == second.reader.head == 1


def test_a_registry_that_is_gone_is_said_once(tmp_path: Path) -> None:
    made = create_distributed_registry(path=tmp_path / "group")
    member = Membership.resolve(made, "one")
    made.stop()
    with pytest.warns(UserWarning, match="is gone; this run shares with nobody"):
        assert Membership.resolve(made, "one").registry is None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert stored(member.rejoined()).member.registry is None


PROBE = """
import os
from pathlib import Path
from shoal.replay import Column, Schema
from shoal.sharing.member import Membership, MemberShard
from shoal.sharing.description import Description
one = MemberShard(Membership.resolve(None, None), Schema((Column("obs", "float32", (2,)), Column("boundary", "uint8"))),
              50, 1, Description("", "", "", ""))
print(one.member.registry.path, one.member.run_id, one.member.env_id, flush=True)
"""


def test_variables_reach_a_process_of_their_own(group: Registry) -> None:
    env = {**os.environ, REGISTRY: str(group.path), RUN_ID: "child", ENV_ID: "Toy-v0"}
    done = subprocess.run([sys.executable, "-c", PROBE], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == [str(group.path), "child", "Toy-v0"], done.stderr
    assert [entry.run_id for entry in group.entries()] == ["child"], "its rows are served after its end"


def test_a_registry_may_go_before_the_first_row(tmp_path: Path) -> None:
    made = create_distributed_registry(path=tmp_path / "group")
    member = Membership.resolve(made, made.register_buffer("one", "SAC"))
    made.stop()
    with pytest.warns(UserWarning, match="is gone"):
        assert stored(member).member.registry is None
