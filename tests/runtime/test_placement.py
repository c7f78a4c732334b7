"""Where roles go: no node gets more of them than it has cores."""

from __future__ import annotations

from collections import Counter

import pytest

from shoal.errors import PlacementError
from shoal.runtime.placement import Node, place_actors

NODES = [Node("home", "10.0.0.1", 4, here=True), Node("b", "10.0.0.2", 2), Node("c", "10.0.0.3", 3)]


def test_an_inference_server_takes_a_core_of_every_node() -> None:
    placed = place_actors(NODES, NODES[0], beside=2, actors=4, servers=1)
    assert Counter(node.id for node in placed) == {"b": 1, "c": 2, "home": 1}
    with pytest.raises(PlacementError, match=r"an inference server on each node.*Use at most 4 actors"):
        place_actors(NODES, NODES[0], beside=2, actors=5, servers=1)
