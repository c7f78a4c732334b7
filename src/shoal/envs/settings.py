"""The settings of an environment: the `env:` section of a scenario."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

RewardClip = Literal["auto"] | Annotated[float, Field(gt=0, allow_inf_nan=False)] | None


class WrapperSettings(BaseModel):
    """A wrapper around every environment; its name alone stands for one without arguments."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, description="a class of gymnasium.wrappers, or `module:Class`")
    args: dict[str, Any] = Field(default_factory=dict, description="its arguments; a list is given as a tuple")


def full_wrappers(given: Any) -> Any:
    """A list with a name or {name, args} for each wrapper, written out; anything else as it is."""
    if not isinstance(given, list | tuple):
        return given
    each = [{"name": one} if isinstance(one, str) else one for one in given]
    return [{"args": {}, **one} if isinstance(one, Mapping) else one for one in each]


class EnvSettings(BaseModel):
    """Which environment, how many copies per actor, and how its output is prepared for learning.

    The fields marked "Atari" mean the same for every Atari id: they, not the id, set frame skip and sticky actions. So
    `PongNoFrameskip-v4` and `ALE/Pong-v5` are the same environment here; set `sticky_actions: 0.25` for what Gymnasium
    does with `ALE/*-v5`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(min_length=1, description="Gymnasium id, `package:Id-v0` (imports the package) or `module:Class`")
    kwargs: dict[str, Any] = Field(
        default_factory=dict, description="arguments for gymnasium.make; for Atari, of ale-py's vector environment"
    )
    wrappers: tuple[WrapperSettings, ...] = Field(
        (), description="around each environment, the first one innermost: names, or {name, args}; not for Atari"
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
    episodic_life: bool = Field(False, description="end the learner's episode at each lost life, and play FIRE (Atari)")
    threads: int = Field(1, ge=1, le=256, description="emulator threads per actor (Atari)")

    _names_alone = field_validator("wrappers", mode="before")(lambda given: full_wrappers(given))

    @property
    def modules(self) -> tuple[str, ...]:
        """Modules that are imported to make it."""
        named = (self.id.rpartition(":"), *(one.name.rpartition(":") for one in self.wrappers))
        return tuple(module for module, separator, _ in named if separator)
