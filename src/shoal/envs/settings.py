"""The settings of an environment: the `env:` section of a scenario."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

RewardClip = Literal["auto"] | Annotated[float, Field(gt=0, allow_inf_nan=False)] | None


class EnvSettings(BaseModel):
    """Which environment, how many copies per actor, and how its output is prepared for learning.

    The fields marked "Atari" mean the same for every Atari id: they, not the id, set frame skip and sticky actions. So
    `PongNoFrameskip-v4` and `ALE/Pong-v5` are the same environment here; set `sticky_actions: 0.25` for what Gymnasium
    does with `ALE/*-v5`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(min_length=1, description="Gymnasium id; `package:Id-v0` imports the package first")
    kwargs: dict[str, Any] = Field(
        default_factory=dict, description="arguments for gymnasium.make; for Atari, of ale-py's vector environment"
    )
    lanes: int = Field(8, ge=1, le=65536, description="sub-environments per actor")
    reward_clip: RewardClip = Field(
        "auto", description="clip learning rewards to plus or minus this; auto: 1 for Atari, else off; null: off"
    )
    max_episode_steps: int | None = Field(None, ge=1, description="time limit in agent steps; null: the id's own limit")
    frame_stack: int = Field(4, ge=1, le=32, description="newest frames in one observation (Atari)")
    frame_skip: int = Field(4, ge=1, le=64, description="frames each action is repeated for (Atari)")
    noop_max: int = Field(30, ge=0, le=1000, description="most no-op frames at the start of an episode (Atari)")
    sticky_actions: float = Field(
        0.0, ge=0.0, lt=1.0, description="probability that a frame repeats the previous action (Atari)"
    )
    episodic_life: bool = Field(False, description="end the learner's episode at each lost life (Atari)")
    threads: int = Field(1, ge=1, le=256, description="emulator threads per actor (Atari)")
