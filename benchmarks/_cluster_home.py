"""Home's side of benchmarks/cluster.py, run on the first node of a lab: `python _cluster_home.py JSON`.

Makes home's folder and the outpost's, then mirrors: the real role and the real courier, over Ray. Prints the folders
as JSON, then a report every half second. Ends when standard input closes.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

REPORT_SECONDS = 0.5


def make_rows_plan(actors: int, lanes: int, steps: int, extra: list[str]) -> Any:
    """Ape-X's rows of Pong; all actors are on outpost 0."""
    from shoal.config.load import load_target
    from shoal.loops.plan import make_plan

    sizes = [f"actors={actors}", f"env.lanes={lanes}", f"replay.capacity={steps}", "replay.min_size=1_000"]
    settings = load_target("pong_apex_dqn", [*sizes, "replay.samples_per_insert=null", *extra])
    return replace(make_plan(settings), outposts=(tuple(range(actors)),))


def main(given: dict[str, Any]) -> None:
    import ray

    from shoal.loops.preparation import prepare, where_it_stopped
    from shoal.loops.run_paths import RunPaths
    from shoal.runtime import ray_mirrors
    from shoal.runtime.ray_nodes import _open_outpost, without_settings
    from shoal.runtime.ray_tasks import task_on

    ray.init(log_to_driver=False, logging_level=logging.ERROR)
    home = Path(os.environ["SHOAL_SHARED_MEMORY"]) / "home"
    home.mkdir()
    plan = make_rows_plan(given["actors"], given["lanes"], given["steps"], given["extra"]).at(RunPaths(home, home))
    prepare(plan, 1, "bench")
    starts = {actor: where_it_stopped(plan, actor) for actor in plan.outposts[0]}
    there = (*without_settings(replace(plan, outpost=0)), Path("bench"), "mark", 1, starts, 1, None)
    outpost, _ = ray.get(task_on(given["node"], _open_outpost).remote(*there))
    mirrors = ray_mirrors.Mirrors(plan)
    places = {0: ray_mirrors.Place(given["node"], outpost)}
    print(json.dumps({"home": str(home), "outpost": str(outpost), "pid": os.getpid()}), flush=True)
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    while not ended.is_set():
        report = mirrors.run(seconds=REPORT_SECONDS, outposts=places)
        link = report.links[0]
        told = {"seconds": report.seconds, "rows": link.rows, "bytes": link.nbytes, "calls": link.calls}
        told |= {"behind": link.behind, "lost": link.lost, "lag": link.lag, "restarts": link.restarts}
        print(json.dumps(told), flush=True)
    mirrors.end()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
