"""Updates that torch.compile made, on a CPU: the same as those it was given, batch after batch."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest
import torch
from tests.algorithms.test_continuous import sample_of, spec_of

from shoal.algorithms import get_algorithm
from shoal.algorithms.capture import WARM_UP
from shoal.algorithms.compiled import Compiled
from shoal.algorithms.interface import Learner, LearnerContext
from shoal.errors import ConfigError

pytestmark = pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="needs a C++ compiler")

SMALL = {"policy_hidden": (16, 8), "critic_hidden": (16, 8)}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("sac", {"normalize_observations": True, "gradient_clip": 0.5}),
    ("td3", {"activation": "tanh"}),
    ("d4pg", {"critic": "categorical", "value_min": -10.0, "value_max": 10.0}),
    ("apex-dpg", {"reward_scale": 0.5}),
]


def learner_of(name: str, options: dict[str, Any], *, compiled: bool) -> Learner:
    torch.manual_seed(3)
    algorithm = get_algorithm(name)
    context = LearnerContext(torch.device("cpu"), compile=compiled)
    return algorithm.make_learner(algorithm.config(**SMALL | options), spec_of(), context)


@pytest.mark.parametrize(("name", "options"), CASES, ids=[name for name, _ in CASES])
def test_a_compiled_update_is_the_same_update(name: str, options: dict[str, Any]) -> None:
    """With its random numbers, through a smaller batch, which is not compiled, and a restored state."""
    learners = [learner_of(name, options, compiled=compiled) for compiled in (False, True)]
    for seed in range(WARM_UP + 5):
        found = []
        for learner in learners:
            torch.manual_seed(seed)
            found.append(learner.step(sample_of(4 if seed == WARM_UP + 2 else 32, seed=seed)))
        np.testing.assert_allclose(found[0].priorities, found[1].priorities, rtol=1e-4, atol=1e-5)
        assert found[0].metrics.keys() == found[1].metrics.keys()
        for metric, value in found[0].metrics.items():
            torch.testing.assert_close(value, found[1].metrics[metric], rtol=1e-3, atol=1e-4, msg=metric)
        if seed == WARM_UP + 3:
            learners[1].load_state(learners[0].state())
    eager, compiled = (learner.state().tensors for learner in learners)
    assert eager.keys() == compiled.keys()
    for key, tensor in eager.items():
        torch.testing.assert_close(compiled[key], tensor, rtol=1e-3, atol=1e-5, msg=key)


def test_only_the_largest_batches_are_compiled_and_not_at_once() -> None:
    compiled = Compiled[Any, None](lambda inputs: None, lambda: None)
    asked = [compiled.fits((torch.empty(size), None)) for size in [4] * 5 + [8] + [4] * 5 + [8] * 4]
    assert asked == [False] * 3 + [True] * 2 + [False] * 6 + [False] * 2 + [True] * 2


def test_without_a_compiler_the_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor.config  # the attribute exists after this import only

    monkeypatch.setattr(torch._inductor.config.cpp, "cxx", (None, "/no/such/compiler"))
    learner = learner_of("td3", {}, compiled=True)
    with pytest.raises(ConfigError, match=r"learner.compile=true.*No working C\+\+ compiler.*learner.compile=false"):
        for _ in range(WARM_UP + 1):
            learner.step(sample_of())
