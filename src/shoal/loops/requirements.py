"""What a run needs of the machine where its learner computes, checked there and before anything starts."""

from __future__ import annotations

from shoal.algorithms.compiled import require_compiler
from shoal.loops.plan import Plan
from shoal.loops.precision import require_bfloat16
from shoal.loops.settings import RunSettings


def require_machine(plan: Plan) -> None:
    """Refuses devices, a compiler or a precision that this machine does not have.

    Raises:
        ConfigError: names the setting and the remedy.
    """
    settings, device = plan.settings, plan.require_devices()
    if settings.learner.compile and device.type == "cpu":
        require_compiler()
    if settings.actor.inference == "served":
        _ = plan.inference_device
    _ = plan.evaluation_device
    if settings.actor.precision == "bfloat16":
        require_bfloat16("actor.precision = bfloat16", "float32")
    if settings.learner.autocast and device.type == "cpu":
        require_bfloat16("learner.autocast = true", "false")


def is_placed_later(settings: RunSettings) -> bool:
    """Whether a cluster is asked first: the learner's machine may be another one than this."""
    return settings.runtime == "ray" and settings.address is not None
