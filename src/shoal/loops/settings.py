"""The settings of a run: one section per part, each value declared once with type, default, range and a line of doc."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, model_validator

from shoal.algorithms import get_algorithm
from shoal.algorithms.interface import Algorithm, AlgorithmConfig
from shoal.envs import EnvSettings, episode_limit
from shoal.replay.settings import ReplaySettings
from shoal.sharing.strategies import Strategy

MOST_LANES = 32
"""Of an evaluation, unless more are asked for."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ActorSettings(_Section):
    """How experience is collected."""

    weights_period: int = Field(16, ge=1, description="Vector steps between two looks at the weight board.")
    precision: Literal["float32", "bfloat16"] = Field("float32", description="Arithmetic of the actors' networks.")
    threads: int = Field(1, ge=1, le=64, description="Torch threads of each actor, and of the inference server.")
    inference: Literal["local", "served"] = Field("local", description="A network per actor, or one server for all.")
    inference_device: Literal["auto", "cpu", "cuda"] = Field("auto", description="The server's; auto: the learner's.")
    inference_wait_us: int = Field(0, ge=0, le=100_000, description="Microseconds the server waits for a larger batch.")
    on_env_error: Literal["restart", "stop"] = Field(
        "restart", description="When an environment raises or returns NaN: recreate it and continue, or stop the run."
    )
    env_error_limit: int = Field(10, ge=1, description="Errors of one actor's environment per hour that stop the run.")


class BatchSettings(_Section):
    """Smaller batches instead of waiting, for learners that are faster than their actors."""

    min: int | None = Field(None, ge=1, description="Fewest draws of an update; null: always the whole batch.")
    max: int | None = Field(None, ge=1, description="Most draws of an update; null: learner.batch_size.")


class LearnerSettings(_Section):
    """How weights are updated."""

    batch_size: Annotated[int, Field(ge=1, le=65_536)] | Literal["lanes"] = Field(
        256, description="Draws per update; lanes: as many as there are lanes, for a rollout of each."
    )
    batch: BatchSettings = BatchSettings()
    autocast: bool = Field(False, description="Compute in bfloat16 where it is safe; faster on GPUs.")
    device: str | tuple[str, ...] = Field(
        "auto",
        description="auto (a GPU, if there is one, for images), cpu, cuda, cuda:1, …; or a list, one per learner.",
    )
    threads: int = Field(1, ge=1, le=64, description="Torch threads of the learner.")
    prefetch: int = Field(0, ge=0, le=64, description="Batches drawn ahead in a thread; 0 (none) suits small rows.")
    compile: bool = Field(
        False,
        description="Make one call of the whole update, where the algorithm can: on a GPU it is captured once "
        "and replayed, on a CPU compiled, which takes a C++ compiler and up to a minute.",
    )
    publish_every: int = Field(8, ge=1, description="Updates between two publications of the weights.")
    checkpoint_seconds: float = Field(30.0, gt=0, description="Seconds between checkpoints.")
    keep_checkpoints: int = Field(3, ge=1, description="Checkpoints kept, beside the best.")


class CheckpointSettings(_Section):
    """Where checkpoints are besides the run's folder; when they are written: learner.checkpoint_seconds."""

    SHORTHAND: ClassVar[str] = "path"

    path: str | None = Field(
        None,
        description="URL where a copy of the run's folder is kept (s3://…, gs://…, sftp://…, file:///…), to resume it "
        "from any machine; null: none.",
    )


class EvaluationSettings(_Section):
    """How progress is measured: episodes without exploration, with the newest weights, in a separate process."""

    episodes: int = Field(20, ge=1, description="Episodes per evaluation.")
    every_steps: int = Field(10_000, ge=1, description="Environment steps between evaluations; fewer at first.")
    lanes: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto", description="Episodes played side by side; auto: all of them, 32 at most."
    )
    threads: Annotated[int, Field(ge=1, le=64)] | Literal["auto"] = Field(
        "auto", description="Emulator (Atari) and torch threads of the evaluator; auto: by the machine's cores."
    )
    policy_device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="The evaluator's; auto: for images, a GPU if the run uses one."
    )
    max_episode_steps: int = Field(27_000, ge=1, description="Episodes are cut here, if the environment does not.")

    def lanes_for(self, episodes: int) -> int:
        """How many of these episodes are played side by side."""
        return min(MOST_LANES if self.lanes == "auto" else self.lanes, episodes)


class StopSettings(_Section):
    """When a run ends by itself: at the first of these."""

    steps: int | None = Field(None, ge=1, description="Environment steps.")
    seconds: float | None = Field(None, gt=0, description="Seconds of this execution, from its first step on.")
    mean_return: float | None = Field(None, description="Mean evaluation return at which the task counts as solved.")
    curriculum: bool = Field(False, description="When the curriculum is finished.")


class CurriculumSettings(_Section):
    """Levels of difficulty that unlock one another, for environments with levels; docs/how-to/curriculum.md."""

    start: dict[str, int | float] = Field(
        {}, description="The first level, such as {agents: 1, size: 10}; {}: no curriculum, env.kwargs are played."
    )
    grow: dict[str, int | float] = Field(
        {}, description="A level that passes unlocks one more for each of these: with this added to one number."
    )
    limit: dict[str, int | float] = Field({}, description="Where each number ends.")
    success: float = Field(0.9, gt=0, le=1, description="A level passes when this part of its episodes succeeded.")
    window: int = Field(200, ge=1, le=100_000, description="Newest episodes of a level that are counted, and needed.")
    lanes: float = Field(0.4, gt=0, le=1, description="The part of all lanes that counts: those that explore least.")


class ShareSettings(_Section):
    """Sharing replay with other runs on this machine; `shoal share` fills this in."""

    registry: str | None = Field(None, description="Folder of the registry to share through; null: with nobody.")
    ratio: float = Field(0.2, ge=0, le=1, description="The part of a batch that comes from the pool.")
    strategy: Strategy = Field("self_heavy", description="Which buffers make the pool; see docs/sharing.md.")
    run_id: str = Field("", description="The name others see; empty: the run folder's.")


class HealthSettings(_Section):
    """Watching whether learning goes well; docs/metrics.md lists what is watched."""

    SHORTHAND: ClassVar[str] = "enabled"

    enabled: bool = Field(True, description="Whether to watch, and to say what is wrong and what may help.")
    patience: int = Field(20_000, ge=1, description="Environment steps that something is wrong before it is said.")


class RunSettings(_Section):
    """A complete run, as saved in `config.yaml`."""

    env: EnvSettings
    algo: str = Field("apex-dqn", description="Algorithm: of `shoal algorithms`, or your own as `module:NAME`.")
    algorithm: SerializeAsAny[AlgorithmConfig] = Field(description="The algorithm's own hyper-parameters.")
    actors: int = Field(
        2, ge=1, le=4096, description="Actor processes; auto: one for every free core, of the cluster if there is one."
    )
    actors_join: bool = Field(
        False, description="Nodes that join the cluster later get actors, too; actors: auto turns it on."
    )
    actor: ActorSettings = ActorSettings()
    learners: int = Field(
        1, ge=1, le=64, description="Learner processes. They divide each batch; what is learned does not depend on it."
    )
    learner: LearnerSettings = LearnerSettings()
    checkpoints: CheckpointSettings = CheckpointSettings()
    replay: ReplaySettings = ReplaySettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    stop: StopSettings = StopSettings()
    curriculum: CurriculumSettings = CurriculumSettings()
    share: ShareSettings = ShareSettings()
    health: HealthSettings = HealthSettings()
    seed: int = Field(1, ge=0, description="Seed of everything random.")
    runtime: Literal["ray", "inline"] = Field("ray", description="ray: a process per role; inline: one, reproducible.")
    address: str | None = Field(None, description="Address of a running Ray cluster; null starts one on this machine.")
    report_seconds: float = Field(10.0, gt=0, description="Seconds between reports of roles; fewer in a new run.")
    restart_limit: int = Field(20, ge=0, description="Role restarts after which the run gives up.")
    defaults: Literal["suited", "paper"] = Field(
        "suited", description="Of what is not set: what suits the environment and this machine, or the papers' numbers."
    )
    reasons: tuple[str, ...] = Field((), description="Why Shoal chose what was not set; nothing depends on it.")

    @model_validator(mode="before")
    @classmethod
    def _build_algorithm_section(cls, data: Any) -> Any:
        """The `algorithm` section is a model of its own, one per algorithm."""
        if isinstance(data, dict) and isinstance(data.get("algo", "apex-dqn"), str):
            given = data.get("algorithm", {})
            if not isinstance(given, AlgorithmConfig):
                data = {**data, "algorithm": get_algorithm(data.get("algo", "apex-dqn")).config.model_validate(given)}
        return data

    @property
    def definition(self) -> Algorithm:
        """The algorithm behind the name."""
        return get_algorithm(self.algo)

    @property
    def evaluation_bound(self) -> int | None:
        """Steps after which evaluation cuts an episode; None where the environment's own limit comes first.

        The default is the longest limit of a usual environment, Atari's half hour at a frame skip of 4.
        """
        own, most = episode_limit(self.env), self.evaluation.max_episode_steps
        return None if own is not None and own <= most else most

    @property
    def evaluation_env(self) -> EnvSettings:
        """The environment as evaluation plays it: one in which every episode ends."""
        bound = self.evaluation_bound
        return self.env if bound is None else self.env.model_copy(update={"max_episode_steps": bound})

    @property
    def most_draws(self) -> int:
        """Draws of the largest batch."""
        size = self.learner.batch_size
        return self.learner.batch.max or (self.actors * self.env.lanes if size == "lanes" else size)

    @property
    def tolerance(self) -> float:
        """The rate limiter's tolerance: by default a few batches, at least what all actors insert in a few steps."""
        if self.replay.tolerance is not None:
            return self.replay.tolerance
        round_of_steps = (self.replay.samples_per_insert or 1.0) * self.env.lanes * self.actors
        return max(4.0 * self.rows_per_batch, 4.0 * round_of_steps)

    @property
    def rows_per_batch(self) -> int:
        """Steps that one update reads. The rate limiter counts steps, not draws."""
        return self.most_draws * self.definition.steps_per_draw(self.algorithm)
