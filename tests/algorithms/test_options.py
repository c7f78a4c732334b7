"""Every algorithm with every option of a learner: it works, or is refused by name.

                                autocast    learner.compile   schedule   uniform replay   served inference
                                cpu, gpu    cpu, gpu
apex-dqn, apex-qr-dqn           works       works             works      works            refused
r2d2, comm-dqn                  works       works             works      works            refused
apex-dpg, d4pg, td3, sac        works       works             works      works            refused
impala, impact, ppo             works       works             works      works            works
a3c                             works, cpu  works on a cpu    works      works            refused

ppo and a3c learn from rollouts only: `test_uniform_replay` shows that their updates ask for no weights. a3c's gradients
are computed by actors, on the cpu: `test_a3c` shows that a gpu is refused.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from tests.algorithms.test_actor_critic import DISCRETE, play
from tests.algorithms.test_comm_dqn import SMALL as TALKING
from tests.algorithms.test_comm_dqn import TEAM, team_sample
from tests.algorithms.test_continuous import sample_of, spec_of
from tests.algorithms.test_recurrent_q import SMALL as RECURRENT
from tests.algorithms.test_recurrent_q import play as play_recurrent
from tests.algorithms.test_value_based import SPEC, make_sample

from shoal.algorithms import ALGORITHMS
from shoal.algorithms.compiled import WORTH_IT
from shoal.algorithms.impala import Config as ImpalaConfig
from shoal.algorithms.interface import Learner, LearnerContext
from shoal.algorithms.r2d2 import Config as R2D2Config
from shoal.config.load import settings_for
from shoal.errors import ConfigError
from shoal.loops.precision import require_bfloat16
from shoal.types import EnvSpec, Sample

CPU = torch.device("cpu")
GPU = torch.device("cuda")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SMALL: dict[str, Any] = {"policy_hidden": (16, 8), "critic_hidden": (16, 8), "hidden": (16, 8)}
SERVED = {"impala", "impact", "ppo"}


def kind_of(name: str) -> tuple[EnvSpec, dict[str, Any]]:
    """An environment for it, and settings that make it small."""
    if name in ("r2d2", "comm-dqn"):
        return (SPEC, RECURRENT) if name == "r2d2" else (TEAM, TALKING)
    fields = ALGORITHMS[name].config.model_fields
    spec = {"discrete": SPEC, "continuous": spec_of(), "any": DISCRETE}[ALGORITHMS[name].actions]
    return spec, {key: value for key, value in SMALL.items() if key in fields}


def batch_of(name: str, seed: int) -> Sample:
    if ALGORITHMS[name].actions == "any":
        return play(ImpalaConfig(), DISCRETE, 6, 4, seed)
    if name == "r2d2":
        return play_recurrent(R2D2Config(**RECURRENT), 8, 16, seed)[0]
    if name == "comm-dqn":
        return team_sample(16, seed)
    return make_sample(seed=seed) if ALGORITHMS[name].actions == "discrete" else sample_of(16, seed)


def learner_of(name: str, device: torch.device = CPU, settings: dict[str, Any] | None = None, **how: bool) -> Learner:
    torch.manual_seed(3)
    spec, small = kind_of(name)
    algorithm = ALGORITHMS[name]
    return algorithm.make_learner(algorithm.config(**small, **settings or {}), spec, LearnerContext(device, **how))


def train(learner: Learner, name: str, updates: int) -> list[float]:
    """The losses."""
    losses = []
    for seed in range(updates):
        torch.manual_seed(seed)
        losses.append(float(learner.step(batch_of(name, seed)).metrics["loss"]))
    return losses


def on(name: str, device: torch.device) -> None:
    if name == "a3c" and device == GPU:
        pytest.skip("its gradients are computed by actors, on the cpu")


def weights(learner: Learner) -> torch.Tensor:
    return torch.cat([one.detach().flatten().cpu() for one in learner.module.parameters()])


@functools.cache
def why_no_bfloat16() -> str:
    try:
        require_bfloat16("learner.autocast = true", "false")
    except ConfigError as refused:
        return str(refused)
    return ""


@pytest.mark.parametrize("device", [CPU, pytest.param(GPU, marks=needs_gpu)], ids=str)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_autocast(name: str, device: torch.device) -> None:
    """The same update, in other arithmetic."""
    if device == CPU and (refused := why_no_bfloat16()):
        pytest.skip(refused)
    on(name, device)
    exact, cast = (learner_of(name, device, autocast=autocast) for autocast in (False, True))
    one, other = train(exact, name, 3), train(cast, name, 3)
    assert one != other, "autocast is ignored"
    np.testing.assert_allclose(one, other, rtol=0.1, atol=0.1)
    assert torch.isfinite(weights(cast)).all()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_compile_on_a_cpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced in one piece, and differentiated as traced. `test_compiled` also makes C++ of it, for one algorithm."""
    monkeypatch.setattr("shoal.algorithms.compiled.BACKEND", {"backend": "aot_eager"})
    learners = [learner_of(name, compile=compiled) for compiled in (False, True)]
    traced: Any = getattr(learners[1], "learner", learners[1])
    found = [train(one, name, 2 * WORTH_IT + 2) for one in learners]
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(*map(weights, learners), rtol=1e-3, atol=1e-5)
    assert all(part.gradient._made is not None for part in traced._parts), "not compiled"


@needs_gpu
@pytest.mark.parametrize("name", ALGORITHMS)
def test_compile_on_a_gpu(name: str) -> None:
    """Captured as CUDA graphs."""
    on(name, GPU)
    learners = [learner_of(name, GPU, compile=compiled) for compiled in (False, True)]
    found = [train(one, name, 10) for one in learners]
    np.testing.assert_allclose(*found, rtol=1e-3, atol=1e-4)
    assert learners[1]._run._graphs, "not captured"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("device", "compiled"),
    [(CPU, False), pytest.param(GPU, False, marks=needs_gpu), pytest.param(GPU, True, marks=needs_gpu)],
    ids=["cpu", "gpu", "captured"],
)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_step_size_falls(name: str, device: torch.device, compiled: bool) -> None:
    """To nothing within six updates: the weights stand still from then on, and only then."""
    on(name, device)
    learner = learner_of(name, device, {"schedule_updates": 6, "learning_rate_end": 0.0}, compile=compiled)
    train(learner, name, 4)
    moving = weights(learner)
    train(learner, name, 2)
    standing = weights(learner)
    assert not torch.equal(moving, standing)
    train(learner, name, 4)
    assert torch.equal(weights(learner), standing)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_uniform_replay(name: str) -> None:
    """No importance weights, and no priorities."""
    found = []
    for scale in (1.0, np.linspace(0.1, 1.0, 16)):
        learner = learner_of(name, prioritized=False)
        sample = batch_of(name, 0)
        torch.manual_seed(1)
        result = learner.step(sample._replace(probabilities=sample.probabilities[:1].repeat(16) * scale))
        assert result.priorities is None
        found.append(float(result.metrics["loss"]))
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_served_inference(name: str) -> None:
    env = "Pendulum-v1" if ALGORITHMS[name].actions == "continuous" else "CartPole-v1"
    served = ("actor.inference=served",)
    if name in SERVED:
        assert settings_for(env, name, served).actor.inference == "served"
    else:
        with pytest.raises(ConfigError, match=rf"served does not work with {name}.*impala, impact, ppo"):
            settings_for(env, name, served)
