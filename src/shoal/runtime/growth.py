"""A run that gets more actors on its way, because nodes have joined its cluster.

It stops as after Ctrl-C, gets a shard for each new actor, and goes on as `shoal resume` would. `actors.json` in its
folder says how many it has since then, so that a resumed run has them, too.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from shoal.errors import NoSpace
from shoal.files import read_object
from shoal.loops.plan import Plan, learner_draws
from shoal.loops.preparation import prepare_more
from shoal.replay.shares import divides
from shoal.runtime.run_folder import RunFolder
from shoal.runtime.supervisor import Supervisor

ACTORS_FILE = "actors.json"
MOST_ACTORS = 4096


def grown(plan: Plan, folder: RunFolder) -> Plan:
    """The plan with as many actors as its run has by now."""
    actors = read_object(folder.path / ACTORS_FILE).get("actors")
    if isinstance(actors, int) and plan.settings.actors < actors <= MOST_ACTORS:
        return plan.with_actors(actors)
    return plan


def most_actors(plan: Plan, room: int) -> int:
    """How many actors a run can have with room for so many more: several learners must be able to divide a batch."""
    ratios = [part.ratio for part in plan.settings.replay.selectors]
    for actors in range(min(plan.settings.actors + room, MOST_ACTORS), plan.settings.actors, -1):
        settings = plan.with_actors(actors).settings
        draws = learner_draws(settings, settings.most_draws)
        if len(draws) == 1 or all(divides(ratios, part) for part in draws):
            return actors
    return plan.settings.actors


def grow(plan: Plan, supervisor: Supervisor, folder: RunFolder, avoided: Collection[str]) -> Plan:
    """The plan for a run that has stopped to go on with more actors, whose shards are made here.

    Args:
        plan: of the execution that has ended.
        supervisor: that ended it.
        folder: the run's.
        avoided: nodes that cannot take actors.
    """
    assert supervisor.actors_next is not None
    more = plan.with_actors(supervisor.actors_next)
    try:
        prepare_more(more.at(supervisor.plan.paths), folder.path.name, plan.settings.actors)
        folder.write_json(ACTORS_FILE, {"actors": more.settings.actors})
    except NoSpace as error:
        supervisor.note(f"there is no room for more actors: {error}")
        more = replace(plan, settings=plan.settings.model_copy(update={"actors_join": False}))
    left = supervisor.seconds_left  # of all, not of each execution
    stop = more.settings.stop.model_copy(update={"seconds": None if left is None else max(1.0, left)})
    return replace(more, settings=more.settings.model_copy(update={"stop": stop}), avoided=frozenset(avoided))
