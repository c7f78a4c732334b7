"""Trains with an algorithm of one's own: Ape-X with a soft target. Nothing in the package is edited.

"Reinforcement Learning with Deep Energy-Based Policies", Haarnoja et al. 2017, https://arxiv.org/abs/1702.08165: the
value of a state is the soft maximum of its action values.

The algorithm is named `module:NAME`, so that every process of a run can import it.

    python examples/own_algorithm.py
    PYTHONPATH=examples shoal train CartPole-v1 --algo own_algorithm:ALGORITHM temperature=0.2
"""

from __future__ import annotations

from functools import partial

import torch
from pydantic import Field

import shoal
from shoal.algorithms import Loss, TransitionBatch, ValueConfig, observe_returns, q_network, value_algorithm
from shoal.networks import QNetwork
from shoal.ops import huber, td_error


class Config(ValueConfig):
    """Hyper-parameters of soft Q-learning."""

    temperature: float = Field(0.1, gt=0, description="Weight of worse actions in the target.")


def soft_loss(network: QNetwork, target: QNetwork, batch: TransitionBatch, *, temperature: float) -> Loss:
    """Huber loss of the soft Q-learning error, per sample."""
    q_tm1 = network(batch.obs)  # [B, A]
    with torch.no_grad():
        q_t = target(batch.next_obs)  # [B, A]
        v_t = temperature * torch.logsumexp(q_t / temperature, dim=1)  # [B]
        goal = batch.reward + batch.discount * v_t
    error = td_error(q_tm1, batch.action, goal)
    observe_returns(network, goal)  # this line and `value_scale` make use of `normalize_values`
    return Loss(huber(error / network.value_scale), error, {"q_mean": q_tm1.mean()})


ALGORITHM = value_algorithm(
    "soft-dqn",
    "Ape-X with a soft target",
    Config,
    make_network=q_network,
    make_loss=lambda config, device: partial(soft_loss, temperature=config.temperature),
)


def main(runtime: str = "ray", steps: int = 20_000, out: str = "runs") -> shoal.Run:
    """Trains on CartPole."""
    return shoal.train(
        "CartPole-v1",
        algo="own_algorithm:ALGORITHM",
        steps=steps,
        runtime=runtime,
        out=out,
        settings={"algorithm.temperature": 0.2},
    )


if __name__ == "__main__":
    print(main())
