"""Which algorithms fit which actions, agents and selectors."""

from __future__ import annotations

from typing import Literal

from shoal.algorithms.interface import Algorithm
from shoal.errors import ConfigError
from shoal.types import EnvSpec

Kind = Literal["discrete", "several", "continuous"]
"""One choice of an action, several at once, or numbers."""


def require_kind(spec: EnvSpec, algorithm: str, kind: Kind) -> None:
    """Refuses an environment whose actions are of the other kind, naming the algorithms that could learn it."""
    found: Kind = "continuous" if spec.continuous else "several" if spec.action_nvec else "discrete"
    if found == kind:
        return
    what = {
        "discrete": f"{spec.num_actions} discrete ones",
        "several": f"{len(spec.action_nvec)} discrete choices in each",
        "continuous": f"continuous ones of shape {spec.action_shape}",
    }[found]
    raise ConfigError(
        f"{algorithm} needs {kind} actions; {spec.env_id} has {what}. "
        f"Choose another environment, or one of these algorithms: {', '.join(fitting(found))}."
    )


def require_rollouts(config: object, selectors: tuple[str, ...], *, why: str) -> None:
    """Refuses everything except rollouts, for an algorithm that says `why`."""
    if selectors != ("rollout",):
        raise ConfigError(
            f"{why}, not from {', '.join(selectors)}: use replay=[{{type: rollout}}], or impala or impact, which learn "
            "from older experience."
        )


def refuse_priorities(config: object, selectors: tuple[str, ...]) -> None:
    """For a learner that computes none."""
    if "prioritized" in selectors:
        raise ConfigError(
            "prioritized draws would be uniform, because this algorithm computes no priorities: "
            "use uniform, newest, elite or attentive."
        )


def require_agents(spec: EnvSpec, algorithm: Algorithm) -> None:
    """Refuses several agents where the algorithm learns for one, and one where it learns for several."""
    from shoal.algorithms import ALGORITHMS

    if bool(spec.agents) == algorithm.agents:
        return
    able = ", ".join(sorted(name for name, one in ALGORITHMS.items() if one.agents != algorithm.agents))
    if spec.agents:
        remedy = f"choose one of these algorithms: {able}" if able else "no algorithm here learns for several agents"
        what = f"learns for one agent; {spec.env_id} has {spec.agents}, each with observations and actions of its own"
    else:
        remedy = f"choose a PettingZoo parallel environment, or one of these algorithms: {able}"
        what = f"learns for several agents; {spec.env_id} has one"
    raise ConfigError(f"{algorithm.name} {what}: {remedy}.")


def fitting(kind: Kind) -> list[str]:
    """The names of the algorithms that learn such actions."""
    from shoal.algorithms import ALGORITHMS  # here: the registry is made of the files that call this

    return sorted(name for name, one in ALGORITHMS.items() if one.actions in (kind, "any") and not one.agents)
