"""The light form: real raylets on loopback, each with its own folder on shared memory. Needs no rights."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.lab.loopback import NO_CLUSTERS
from tests.lab.nodes import OBJECT_STORE_BYTES, SHARED_MEMORY, Lab, Node

LOOPBACK = Path(__file__).with_name("loopback.py")


class LightLab(Lab):
    """Nodes that differ by their folders and ports."""

    nodes: list[Node]

    def __init__(self, settings: Mapping[str, object], object_store: int) -> None:
        super().__init__(settings, object_store)
        self.env |= NO_CLUSTERS
        memory = SHARED_MEMORY if SHARED_MEMORY.is_dir() else self.folder
        self._memory = Path(tempfile.mkdtemp(prefix="lab-", dir=memory))
        self._folders.append(self._memory)

    @contextlib.contextmanager
    def connected(self) -> Iterator[None]:
        """Connects this process to the cluster, through the head's node."""
        import ray
        from ray._private import ray_constants

        from shoal.runtime.ray_cluster import _read_token_variables

        wanted = {name: value for name, value in self.env.items() if name.startswith("RAY_")}
        before = {name: os.environ.get(name) for name in wanted}
        clusters, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
        os.environ.update(wanted)
        _read_token_variables()
        try:
            ray.init(self.address, log_to_driver=False, logging_level=logging.ERROR)
            yield
        finally:
            ray.shutdown()
            ray_constants.ENABLE_RAY_CLUSTER = clusters
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value
            _read_token_variables()

    def _begin(self, cpus: int, resources: Mapping[str, float]) -> Node:
        name = str(len(self.nodes))
        memory = self._memory / name
        memory.mkdir(mode=0o700)
        node = Node(self.folder / name, "127.0.0.1", memory, self.env)
        start = self._ray_start(node, cpus, resources, port=0)
        self.nodes.append(node)
        node.begin([sys.executable, str(LOOPBACK), *start], self._folders)
        return node


def light_cluster(
    cpus: Sequence[int] = (2, 2, 2),
    settings: Mapping[str, object] | None = None,
    object_store: int = OBJECT_STORE_BYTES,
) -> LightLab:
    """A lab of nodes on loopback.

    Args:
        cpus: of each node, as Ray counts them; the first is the head.
        settings: Ray's internal ones, such as `health_check_period_ms`.
        object_store: bytes per node.
    """
    lab = LightLab(settings or {}, object_store)
    lab._start(cpus)
    return lab
