"""Who goes where: other nodes first, the learner beside its memory, and a refuge for whoever lost a node."""

from __future__ import annotations

import pytest

from shoal.errors import PlacementError
from shoal.runtime.placement import Node, choose_home, choose_refuge, crowd_actors, place_actors, share_of_core


def node(name: str, cpus: float, gpus: float = 0.0, *, here: bool = False) -> Node:
    return Node(name * 8, f"10.0.0.{ord(name)}", cpus, gpus, here=here)


A, B, C = node("a", 4, here=True), node("b", 2), node("c", 3, gpus=1)


def test_home_is_here_if_it_fits_and_where_the_gpu_is_if_one_is_needed() -> None:
    assert choose_home([A, B, C], 2, gpu=False) == A
    assert choose_home([A, B, C], 2, gpu=True) == C
    assert choose_home([B, C], 2, gpu=False) == C
    with pytest.raises(PlacementError, match=r"5 free CPUs on one node.*has 4 CPUs"):
        choose_home([A, B, C], 5, gpu=False)
    with pytest.raises(PlacementError, match=r"4 free CPUs and a GPU.*--num-gpus"):
        choose_home([A, B, C], 4, gpu=True)


def test_actors_fill_the_other_nodes_evenly_and_then_home() -> None:
    places = place_actors([A, B, C], A, beside=2, actors=7)
    assert places[:5] == [C, B, C, B, C] and places[5:] == [A, A]
    assert place_actors([A], A, beside=2, actors=2) == [A, A]
    assert place_actors([A, B], A, beside=2, actors=0) == []


def test_too_many_actors_are_refused_with_the_numbers() -> None:
    with pytest.raises(PlacementError, match=r"8 actors and 2 other roles need 10 CPUs.*at most 7 actors"):
        place_actors([A, B, C], A, beside=2, actors=8)
    crowded = node("d", 1, here=True)
    with pytest.raises(PlacementError, match="at most 0 actors"):
        place_actors([crowded], crowded, beside=2, actors=1)


def test_a_refuge_has_room_and_is_not_home_if_that_can_be() -> None:
    assert choose_refuge([A, B, C], 2) == C
    assert choose_refuge([A, B], 2) == B
    assert choose_refuge([A, B], 3) == A  # it fits there only
    assert choose_refuge([A, B, C], 9) == C  # nowhere: away from home
    assert choose_refuge([node("e", 0, here=True)], 2).here
    with pytest.raises(PlacementError, match="All nodes"):
        choose_refuge([], 1)


def test_where_cores_are_too_few_roles_share_them() -> None:
    assert crowd_actors([A, B, C], A, 3) == [C, B, C]
    assert crowd_actors([A], A, 2) == [A, A]
    assert [share_of_core(free, 3) for free in (0, 1, 2, 3, 7)] == [0.0, 0.33, 0.66, 1.0, 1.0]
    assert share_of_core(0.5, 0) == 0.5


def test_an_inference_server_takes_a_core_of_every_node_with_actors() -> None:
    placed = place_actors([A, B, C], A, beside=2, actors=4, servers=1)
    assert sorted(one.id[0] for one in placed) == ["a", "b", "c", "c"]
    with pytest.raises(PlacementError, match=r"an inference server on each node.*Use at most 4 actors"):
        place_actors([A, B, C], A, beside=2, actors=5, servers=1)
