"""The algorithms, by name, and what a file with an algorithm of your own needs: see docs/how-to/add-an-algorithm.md.

Everything in `__all__` is public. Networks, maths and views come from `shoal.networks`, `shoal.ops`, `shoal.replay`.
"""

from functools import cache

from shoal.algorithms import a3c, apex_dpg, apex_dqn, apex_qr_dqn, comm_dqn, d4pg, impact, impala, ppo, r2d2, sac, td3
from shoal.algorithms.action_bounds import ActionBounds
from shoal.algorithms.actor_critic import ActorCriticConfig, ActorCriticPolicy, sequence_algorithm, sequence_learner
from shoal.algorithms.apex_dqn import ValueConfig, observe_returns, q_network, value_algorithm
from shoal.algorithms.batches import SequenceBatch, TransitionBatch
from shoal.algorithms.continuous import (
    ContinuousConfig,
    Networks,
    NoiseConfig,
    continuous_algorithm,
    continuous_learner,
    critic_network,
    noisy_policy,
    policy_network,
)
from shoal.algorithms.interface import (
    Algorithm,
    AlgorithmConfig,
    Decision,
    Learner,
    LearnerContext,
    LearnerState,
    Outcome,
    Policy,
    PolicyContext,
    StepResult,
)
from shoal.algorithms.learner import GradientLearner, Loss, Objective, Preparation
from shoal.algorithms.moments import Statistics
from shoal.algorithms.optimizer import TargetNetwork
from shoal.algorithms.own_code import installed_algorithms, own_algorithm, own_torso
from shoal.errors import ConfigError, UnknownName

_MODULES = (apex_dqn, apex_qr_dqn, r2d2, comm_dqn, apex_dpg, d4pg, td3, sac, impala, impact, ppo, a3c)
ALGORITHMS: dict[str, Algorithm] = {module.ALGORITHM.name: module.ALGORITHM for module in _MODULES}
"""Those of the package."""


def get_algorithm(name: str) -> Algorithm:
    """The algorithm of that name: the package's own, `module:NAME`, or one that an installed package offers.

    Raises:
        UnknownName: there is none; names the nearest.
        ConfigError: its module cannot be imported, or what it names is no algorithm.
    """
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    return own_algorithm(name) if ":" in name else _installed(name)


@cache  # looking through everything that is installed takes milliseconds
def _installed(name: str) -> Algorithm:
    offered = installed_algorithms()
    if name not in offered:
        remedy = "`shoal algorithms` lists them; one of your own module is written 'module:NAME'."
        raise UnknownName("algorithm", name, {*ALGORITHMS, *offered}, remedy)
    point, *others = offered[name]
    if others:
        choice = " or ".join(one.value for one in (point, *others))
        raise ConfigError(f"algo = {name!r} is what {1 + len(others)} installed packages offer: write {choice}.")
    return own_algorithm(f"{point.module}:{point.attr}", f"algo = {name!r} ({point.value}, an entry point)")


# fmt: off
__all__ = [
    "ALGORITHMS", "ActionBounds", "ActorCriticConfig", "ActorCriticPolicy", "Algorithm", "AlgorithmConfig",
    "ContinuousConfig", "Decision", "GradientLearner", "Learner", "LearnerContext", "LearnerState", "Loss",
    "Networks", "NoiseConfig", "Objective", "Outcome", "Policy", "PolicyContext", "Preparation", "SequenceBatch",
    "Statistics", "StepResult", "TargetNetwork", "TransitionBatch", "ValueConfig", "continuous_algorithm",
    "continuous_learner", "critic_network", "get_algorithm", "noisy_policy", "observe_returns", "own_torso",
    "policy_network", "q_network", "sequence_algorithm", "sequence_learner", "value_algorithm",
]
