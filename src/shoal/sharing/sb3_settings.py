"""The settings of a Stable-Baselines3 run: a scenario with `framework: sb3`."""

from __future__ import annotations

from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator

from shoal.sharing.description import environment_id

Sb3Algorithm = Literal["SAC", "TD3", "DDPG", "DQN", "PPO", "A2C", "QRDQN", "TQC"]
SB3_ALGORITHMS: tuple[str, ...] = get_args(Sb3Algorithm)
ON_POLICY = frozenset({"PPO", "A2C"})
"""They learn only from their newest steps: other runs may read these, they read no others."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Sb3EnvSettings(_Section):
    """Which environment, and how many copies of it."""

    id: str = Field(min_length=1, description="Gymnasium id; `package:Id-v0` imports the package first.")
    n_envs: int = Field(1, ge=1, le=4096, description="Environments, one after the other in the run's process.")
    normalize: bool = Field(False, description="Wrap it in VecNormalize; shared rows are not normalized.")
    kwargs: dict[str, Any] = Field(default_factory=dict, description="Arguments for gymnasium.make.")

    @property
    def sharing_id(self) -> str:
        """The environment with its arguments: other arguments make another environment."""
        return environment_id(self.id, self.kwargs)


class Sb3EvaluationSettings(_Section):
    """Evaluations: deterministic episodes in a separate environment."""

    every_steps: int = Field(1_000, ge=1, description="Environment steps between evaluations.")
    episodes: int = Field(10, ge=1, description="Episodes per evaluation.")
    max_episode_steps: int = Field(
        27_000, ge=1, description="Steps after which an episode is cut, if the environment's own limit has not done it."
    )


class Sb3Settings(_Section):
    """A Stable-Baselines3 run."""

    framework: Literal["sb3"] = Field("sb3", description="Whose algorithm it is.")
    algo: Sb3Algorithm = Field(description="Class of Stable-Baselines3 or sb3-contrib.")
    env: Sb3EnvSettings
    policy: str = Field("MlpPolicy", min_length=1, description="MlpPolicy, CnnPolicy or MultiInputPolicy.")
    total_timesteps: int = Field(10_000, ge=1, description="Environment steps.")
    seed: int = Field(0, ge=0, description="Seed of everything random; `shoal share` sets it for each run.")
    threads: int = Field(1, ge=1, le=256, description="Torch threads.")
    evaluation: Sb3EvaluationSettings = Field(default_factory=Sb3EvaluationSettings)
    hyperparameters: dict[str, Any] = Field(default_factory=dict, description="Arguments of the class.")

    @field_validator("hyperparameters", mode="before")
    @classmethod
    def _given(cls, value: Any) -> Any:
        """Those that were given, out of a model of all that can be."""
        return value.model_dump(exclude_unset=True) if isinstance(value, BaseModel) else value

    @property
    def reads(self) -> bool:
        """Whether it can learn from other runs' steps."""
        return self.algo not in ON_POLICY
