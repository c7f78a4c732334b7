"""R2D2: recurrent double DQN on sequences, with stored states.

"Recurrent Experience Replay in Distributed Reinforcement Learning", Kapturowski et al. 2019,
https://openreview.net/forum?id=r1lyTjAqYX: a dueling network with an LSTM learns from sequences of a prioritized
replay. Actors store the state of the LSTM. A sequence starts from the stored state, which is of older weights; its
first steps (the burn-in) only bring the state up to date.

Deviations from the paper:
1. The cell sees the previous action, not the previous reward: who acts with a trained policy (`predict`) may not know
   it, and evaluation has rewards that are not clipped.
2. A GRU may take the place of the LSTM.
3. Sequences start every `period` rows of a lane and cross the ends of episodes, where the state is zeroed; the paper's
   begin with the episode and end with it. Rewards are not mixed over the ends.
4. The last rows of a sequence have shorter returns, of at least one step.
5. Huber loss; the paper has the squared error. A truncated episode bootstraps from its final observation.
6. A samples-per-insert limit ties learner and actors together; the ladder of epsilons runs over lanes.
7. Sizes for one machine: a replay of 200,000 steps, learning from 10,000 on, a few actors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from shoal.algorithms.own_code import own_torso
from shoal.algorithms.recurrent_policy import RecurrentConfig
from shoal.algorithms.recurrent_q import recurrent_algorithm
from shoal.networks import RecurrentQ, center_images
from shoal.types import EnvSpec


class Config(RecurrentConfig):
    """Hyper-parameters of R2D2."""

    cell: Literal["lstm", "gru"] = Field("lstm", description="What remembers.")
    cell_size: int = Field(512, ge=1, le=4096, description="Width of the cell.")
    head_hidden: int = Field(512, ge=0, le=65_536, description="Width of each of the head's streams; 0: linear.")
    image_hidden: int = Field(512, ge=1, description="For images: width of the layer after the convolutions.")
    dueling: bool = Field(True, description="Value and advantage streams.")
    last_action: bool = Field(True, description="The cell also sees the action before.")


def make_network(config: Config, spec: EnvSpec) -> RecurrentQ:
    """Action values of an observation and what came before it."""
    network = RecurrentQ(
        spec.obs_shape,
        spec.obs_dtype,
        spec.num_actions,
        hidden=config.hidden,
        image_hidden=config.image_hidden,
        cell=config.cell,
        cell_size=config.cell_size,
        head_hidden=config.head_hidden,
        dueling=config.dueling,
        last_action=config.last_action,
        normalize_observations=config.normalize_observations,
        normalize_values=config.normalize_values,
        parts=spec.inputs,
        own=own_torso(config, spec),
    )
    return center_images(network) if config.center_images else network


def _suited(spec: EnvSpec) -> Mapping[str, Any]:
    """What learns on most environments. With vectors the paper's settings need far more steps."""
    if spec.sees_images:
        return {
            "algorithm": {"center_images": True, "adam_epsilon": 1e-5, "target_period": 1_000},
            "learner": {"batch_size": 32},
        }
    algorithm = {
        "unroll": 20,
        "burn_in": 10,
        "period": 10,
        "gamma": 0.99,
        "learning_rate": 1e-3,
        "adam_epsilon": 1e-5,
        "gradient_clip": 10.0,
        "target_period": 100,
        "hidden": [128],
        "cell_size": 64,
        "head_hidden": 64,
        "normalize_observations": not spec.unit_observations,
        "repeat_exploration": True,
    }
    return {
        "algorithm": algorithm,
        "learner": {"batch_size": 32, "publish_every": 4, "prefetch": 0},
        "replay": {"capacity": 100_000, "min_size": 1_000, "samples_per_insert": 64},  # an update for every ten steps
    }


ALGORITHM = recurrent_algorithm(
    "r2d2",
    "recurrent double DQN on sequences: stored state, burn-in, n-step, prioritized replay",
    Config,
    make_network,
    suited=_suited,
)
