"""Updates that torch.compile made, on a CPU: the same as those it was given, batch after batch."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tests.algorithms.test_continuous import sample_of, spec_of

import shoal
from shoal.algorithms import get_algorithm
from shoal.algorithms.compiled import FOLDER, WORTH_IT, Compiled, _own_folder, require_compiler
from shoal.algorithms.interface import Learner, LearnerContext, LearnerState
from shoal.errors import ConfigError

try:
    require_compiler()
except ConfigError as refused:
    pytest.skip(str(refused), allow_module_level=True)

pytestmark = pytest.mark.slow
OPTIONS: dict[str, Any] = {"normalize_observations": True, "gradient_clip": 0.5, "policy_hidden": (16, 8)}
OPTIONS |= {"critic_hidden": (16, 8), "target_period": 2, "tau": 0.5}
STEEP = 50.0
"""Critics' weights are larger by this, so that clipping the policy's gradient changes it."""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(FOLDER, "")  # so that it is as before afterwards
    monkeypatch.delenv(FOLDER)
    _own_folder.cache_clear()
    return tmp_path / "shoal"


def learner_of(*, compiled: bool) -> Learner:
    torch.manual_seed(3)
    algorithm = get_algorithm("sac")
    context = LearnerContext(torch.device("cpu"), compile=compiled)
    learner = algorithm.make_learner(algorithm.config(**OPTIONS), spec_of(), context)
    tensors, scalars = learner.state()
    steep = {key: tensor * STEEP if key.startswith("critic.body") else tensor for key, tensor in tensors.items()}
    learner.load_state(LearnerState({key: tensor.clone() for key, tensor in steep.items()}, scalars))
    return learner


def test_a_compiled_update_is_the_same_update(own_cache: Path) -> None:
    """With its random numbers, through a smaller batch, which is not compiled, and a restored state. SAC has all there
    is to compile: an ensemble, a network, a parameter beside it, noise. `test_options` traces all algorithms.
    """
    learners = [learner_of(compiled=compiled) for compiled in (False, True)]
    for seed in range(WORTH_IT + 5):
        found = []
        for learner in learners:
            torch.manual_seed(seed)
            found.append(learner.step(sample_of(4 if seed == WORTH_IT + 2 else 32, seed=seed)))
        np.testing.assert_allclose(found[0].priorities, found[1].priorities, rtol=1e-4, atol=1e-4)
        assert found[0].metrics.keys() == found[1].metrics.keys()
        for metric, value in found[0].metrics.items():
            torch.testing.assert_close(value, found[1].metrics[metric], rtol=1e-3, atol=1e-4, msg=metric)
        if seed == WORTH_IT + 3:
            learners[1].load_state(learners[0].state())
    eager, compiled = (learner.state().tensors for learner in learners)
    assert eager.keys() == compiled.keys()
    for key, tensor in eager.items():
        torch.testing.assert_close(compiled[key], tensor, rtol=1e-3, atol=1e-5, msg=key)
    assert list(own_cache.rglob("*.so")), "compiled code belongs into the folder that is the user's alone"


class Inputs(NamedTuple):
    x: torch.Tensor


def test_the_largest_batches_are_compiled_when_they_have_come_often_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often they grow: torch.compile has a limit for the versions of one function."""
    monkeypatch.setattr("shoal.algorithms.compiled.BACKEND", {"backend": "aot_eager"})
    total, ran = torch.zeros(2), list[int]()

    def update(inputs: Inputs) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            ran.append(len(inputs.x))
        return total.add_(inputs.x.sum())

    compiled = Compiled[Inputs, torch.Tensor](update)
    sizes = [size for first in range(2, 40, 4) for size in (*[first + 2] * 5, first)]
    for size in sizes:
        compiled(Inputs(torch.ones(size)))
    assert ran == [size for first in range(2, 40, 4) for size in (*[first + 2] * WORTH_IT, first)]
    assert total.tolist() == [sum(sizes)] * 2


def test_a_cache_that_others_may_write_to_is_not_used(own_cache: Path) -> None:
    shared = own_cache / f"torch-{torch.__version__}"
    shared.mkdir(parents=True)
    shared.chmod(0o777)
    assert _own_folder() != shared
    _own_folder.cache_clear()
    shared.rmdir()
    shared.symlink_to(own_cache)
    assert _own_folder() != shared
    assert _own_folder().stat().st_mode & 0o077 == 0


def test_what_cannot_be_compiled_is_said() -> None:
    compiled = Compiled[Inputs, None](lambda inputs: torch._dynamo.graph_break())
    with pytest.raises(ConfigError, match=r"learner.compile=true, but .*Set learner.compile=false"):
        for _ in range(WORTH_IT + 1):
            compiled(Inputs(torch.ones(4)))
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_without_a_compiler_nothing_is_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "/no/such/compiler")
    with pytest.raises(ConfigError, match=r"there is no /no/such/compiler.*learner.compile=false"):
        shoal.train("Pendulum-v1", algo="sac", out=tmp_path / "runs", settings={"learner.compile": True})
    assert not (tmp_path / "runs").exists()
