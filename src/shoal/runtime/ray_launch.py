"""Functions as Ray tasks: see `launch`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from shoal.errors import PlacementError, ShoalError
from shoal.runtime.launch import name_of
from shoal.runtime.ray_cluster import cluster


def in_ray(functions: Sequence[Callable[[], Any]], wait_for_all: bool, address: str | None) -> list[Any]:
    """Runs each function as a task; the arguments are those of `launch`."""
    results: list[Any] = [None] * len(functions)
    with cluster(address, len(functions), lambda text: None):
        if (cores := int(ray.cluster_resources().get("CPU", 0))) < len(functions):  # some would never start
            raise PlacementError(
                f"launch has {len(functions)} functions, and this Ray has {cores} CPUs: start it with more "
                f"(`ray start --num-cpus {len(functions)}`), or use engine='processes'."
            )
        task: Any = ray.remote(num_cpus=1, max_retries=0)(_run)
        running = {task.remote(function): index for index, function in enumerate(functions)}
        try:
            while running:
                done = ray.wait(list(running), num_returns=1)[0][0]
                index = running.pop(done)
                name = name_of(functions[index])
                try:
                    results[index] = ray.get(done)
                except RayTaskError as error:
                    raise ShoalError(f"{name} failed, and the others were ended:\n{error}") from None
                except RayError as error:
                    raise ShoalError(f"The process of {name} died, and the others were ended: {error}") from None
                if not wait_for_all:
                    break
        finally:
            for one in running:
                ray.cancel(one, force=True)
    return results


def _run(function: Callable[[], Any]) -> Any:
    return function()
