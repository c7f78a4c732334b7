"""`ray start` with a loopback address: `python loopback.py start --head ...`.

Ray replaces 127.0.0.1 by the machine's outer address and listens on all interfaces, unless it is told that there are no
clusters on this system; then `ray start` refuses to add a second node. So only its search for the address is replaced.
Processes that Ray starts, and drivers, are told by the environment variable `NO_CLUSTERS` instead.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

NO_CLUSTERS = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Ray's own variable, in spite of its name also read on Linux."""


def main() -> None:
    """Runs Ray's command line."""
    from ray._private import ray_constants, services

    command: Any = importlib.import_module("ray.scripts.scripts")
    ray_constants.ENABLE_RAY_CLUSTER = True
    services.get_node_ip_address = lambda address=None: "127.0.0.1"
    # No server for Ray's client: its port is fixed, and another Ray may use it.
    command.get_ray_client_dependency_error = lambda: ImportError("not wanted")
    command.main()


if __name__ == "__main__":
    # Otherwise this folder's modules would come before installed ones of the same name.
    sys.path.pop(0)
    main()
