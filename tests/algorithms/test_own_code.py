"""Algorithms and networks of the user's own: found, learned with, or refused by name before anything starts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.algorithms.test_actor_critic import play
from tests.algorithms.test_options import batch_of, kind_of, learner_of, train, weights
from tests.fakes import corridor, reach
from tests.many_spaces import Lookout

import shoal.algorithms as public
from shoal.algorithms import ALGORITHMS, get_algorithm
from shoal.algorithms.compiled import WORTH_IT
from shoal.algorithms.impala import Config as ImpalaConfig
from shoal.algorithms.interface import LearnerContext, PolicyContext
from shoal.cli.listing import algorithms
from shoal.config.checks import check_environment
from shoal.config.load import load_named, settings_for
from shoal.errors import ConfigError, UnknownName
from shoal.loops.health import count_dead
from shoal.loops.plan import make_plan
from shoal.networks import ActorCritic, OwnTorso
from shoal.types import EnvSpec

OWN = {"network": "tests.own_code:make_torso"}


def test_what_an_algorithm_file_needs_is_public() -> None:
    """Names that others build on: one that goes away breaks their files. Add to this list, and take nothing from it."""
    assert set(public.__all__) == {
        *("ALGORITHMS", "get_algorithm", "Algorithm", "AlgorithmConfig"),
        *("Policy", "PolicyContext", "Decision", "Outcome", "ActionBounds"),
        *("Learner", "LearnerContext", "LearnerState", "StepResult", "GradientLearner", "Objective", "Loss"),
        *("TargetNetwork", "Preparation", "Statistics", "TransitionBatch", "SequenceBatch", "own_torso"),
        *("value_algorithm", "ValueConfig", "q_network", "observe_returns"),
        *("sequence_algorithm", "sequence_learner", "ActorCriticConfig", "ActorCriticPolicy"),
        *("continuous_algorithm", "continuous_learner", "ContinuousConfig", "NoiseConfig", "Networks"),
        *("policy_network", "critic_network", "noisy_policy"),
    }
    assert all(hasattr(public, name) for name in public.__all__)


# Algorithms.


def test_an_algorithm_by_its_path() -> None:
    settings = settings_for("CartPole-v1", "tests.own_code:ALGORITHM", ["bonus=0.5", "hidden=[8]"])
    assert settings.definition.name == "plain" and settings.algorithm.model_dump()["bonus"] == 0.5
    assert settings.learner.batch_size == 128  # what suits vectors
    with pytest.raises(UnknownName, match=r"Did you mean 'algorithm\.bonus'\?.*shoal config tests\.own_code:ALGORITHM"):
        settings_for("CartPole-v1", "tests.own_code:ALGORITHM", ["bonsu=1"])
    with pytest.raises(UnknownName, match=r"It belongs to impala, impact, ppo or a3c, not to tests\.own_code"):
        settings_for("CartPole-v1", "tests.own_code:ALGORITHM", ["entropy_cost=1"])
    with pytest.raises(ConfigError, match=r"algorithm\.bonus = 'x' cannot be used: it must be a number"):
        settings_for("CartPole-v1", "tests.own_code:ALGORITHM", ["bonus=x"])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("not_there:ALGORITHM", "cannot import 'not_there'.* add its folder to PYTHONPATH"),
        ("tests.own_code.deeper:ALGORITHM", "cannot import 'tests.own_code.deeper'"),
        ("tests.own_code:ALGORITM", "in the module 'tests.own_code' 'ALGORITM'. Did you mean 'ALGORITHM'"),
        ("tests.own_code:NOT_ONE", "it is no shoal.algorithms.Algorithm, but of the type str"),
        ("tests.own_code:WRONG_CONFIG", "its config must be a class made from AlgorithmConfig"),
        ("tests.own_code:", "write module:NAME"),
        (":ALGORITHM", "write module:NAME"),
        ("__main__:ALGORITHM", "Other processes cannot import '__main__': use the name of its file"),
        ("apex-dqm", "Did you mean 'apex-dqn'.*one of your own module is written 'module:NAME'"),
    ],
)
def test_names_that_are_refused(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        settings_for("CartPole-v1", name)


def test_a_module_that_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "raising_module.py").write_text("x = 1\nraise RuntimeError('no licence')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"raised RuntimeError: no licence \(.*raising_module\.py:2\)"):
        get_algorithm("raising_module:ALGORITHM")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("FORGETFUL", r"record returned the columns \['priority'\], but its `columns` are \[\]"),
        ("UNEQUAL", r"learner\.module and policy\.module must have one state dict, but differ: \['head"),
        ("BROKEN", r"its make_policy raised KeyError: 'no such layer' \(.*own_code\.py:\d+\)"),
    ],
)
def test_algorithms_that_cannot_work(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_environment(corridor(algo=f"tests.own_code:{name}"))


def test_a_network_that_an_algorithm_ignores() -> None:
    settings = corridor(algo="tests.own_code:DEAF", algorithm=OWN)
    with pytest.raises(ConfigError, match=r"would not be used: tests\.own_code:DEAF makes its networks without it"):
        check_environment(settings)


# What installed packages offer.


def _install(folder: Path, package: str, entries: str, source: str = "") -> None:
    (folder / f"{package}.py").write_text(source or "from tests.own_code import ALGORITHM\n")
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[shoal.algorithms]\n{entries}\n")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Distributions as pip leaves them: a module, and a folder that describes it."""
    monkeypatch.syspath_prepend(tmp_path)
    _install(tmp_path, "offers_good", "good = offers_good:ALGORITHM\napex-dqn = offers_good:ALGORITHM")
    _install(tmp_path, "offers_bad", "bad = offers_bad:ALGORITHM\ngone = not_there_at_all:X", "import not_there_either")
    _install(tmp_path, "offers_twin", "twin = offers_twin:ALGORITHM")
    _install(tmp_path, "offers_other", "twin = offers_other:ALGORITHM")
    yield
    for name in ("good", "bad", "twin", "other"):
        sys.modules.pop(f"offers_{name}", None)
    public._installed.cache_clear()


def test_entry_points(installed: None) -> None:
    assert get_algorithm("good").name == "plain" and "offers_bad" not in sys.modules
    assert get_algorithm("apex-dqn") is ALGORITHMS["apex-dqn"]
    assert settings_for("CartPole-v1", "good", ["bonus=2"]).algo == "good"
    with pytest.raises(UnknownName, match="Did you mean 'good'"):
        get_algorithm("goood")
    with pytest.raises(ConfigError, match=r"algo = 'bad' \(offers_bad:ALGORITHM, .*no module named 'not_there_either'"):
        get_algorithm("bad")
    with pytest.raises(ConfigError, match=r"'twin' is what 2 installed packages offer: write offers_\w+:ALGORITHM or"):
        get_algorithm("twin")


def test_the_list_of_algorithms(installed: None, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be used is one line each, and hides nothing else."""
    algorithms()
    out, err = capsys.readouterr()
    assert "\ngood         plain Q-learning\n" in out and out.count("\n") == len(ALGORITHMS) + 1
    lines = err.splitlines()
    assert len(lines) == 4 and lines[0].startswith("An installed package offers 'apex-dqn' too, but that is Shoal's")
    assert all(name in line for name, line in zip(("bad", "gone", "twin"), lines[1:], strict=True))
    assert load_named("good").env.id == "CartPole-v1"


# Networks.


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_learns_with_a_torso_of_ones_own(name: str) -> None:
    """Its weights move, wherever the algorithm has a torso, and a checkpoint and the policies have them."""
    learner = learner_of(name, settings=OWN)
    before = {key: tensor.clone() for key, tensor in learner.state().tensors.items()}
    train(learner, name, 4)
    after = learner.state()
    torsos = {key for key in before if ".module.1.weight" in key and "optimizer" not in key}
    assert torsos and all(not torch.equal(before[key], after.tensors[key]) for key in torsos if "target" not in key)
    continuous = ALGORITHMS[name].actions == "continuous"
    assert len({key.partition(".")[0] for key in torsos if not key.startswith("target")}) == 1 + continuous

    again = learner_of(name, settings=OWN)
    again.load_state(after)
    assert torch.equal(weights(learner), weights(again))
    spec, small = kind_of(name)
    policy = ALGORITHMS[name].make_policy(ALGORITHMS[name].config(**small, **OWN), spec, PolicyContext(lanes=2))
    policy.module.load_state_dict(learner.module.state_dict())
    assert train(learner, name, 1) == train(again, name, 1)


@pytest.mark.parametrize("name", ["apex-dqn", "sac", "impala"])
def test_compiled_with_a_torso_of_ones_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.algorithms.compiled.BACKEND", {"backend": "aot_eager"})
    learners = [learner_of(name, settings=OWN, compile=compiled) for compiled in (False, True)]
    found = [train(one, name, 2 * WORTH_IT + 2) for one in learners]
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-5)


def test_a_critic_judges_without_learning() -> None:
    """A policy's loss goes through the critics' torso, and must not move it."""
    learner: Any = learner_of("td3", settings=OWN)
    train(learner, "td3", 1)
    critic = learner._networks["critic"]
    obs, action = torch.randn(5, critic.torso._parts[0].size), torch.randn(5, critic.body.in_features - 24)
    action.requires_grad_()
    judged = critic.judge(obs, action)
    assert torch.allclose(judged, critic(obs, action))
    (of_torso,) = torch.autograd.grad(judged.sum(), critic.torso.module[1].weight, allow_unused=True, retain_graph=True)
    assert of_torso is None and torch.autograd.grad(judged.sum(), action)[0].abs().sum() > 0


def test_an_lstm_behind_a_torso_of_ones_own() -> None:
    spec, small = kind_of("impala")
    config = ImpalaConfig(**small, **OWN, lstm=6, normalize_observations=True, normalize_values=True)
    learner = ALGORITHMS["impala"].make_learner(config, spec, LearnerContext(torch.device("cpu")))
    assert isinstance(learner.module, ActorCritic) and learner.module.embedding == 24
    before = weights(learner)
    learner.step(play(config, spec, 6, 4, 0))
    learner.step(play(config, spec, 6, 4, 1))
    assert not torch.equal(before, weights(learner))


def test_the_users_layers_stay_as_they_were_made() -> None:
    """An actor-critic initialises its own layers orthogonally."""
    spec, small = kind_of("impala")
    torch.manual_seed(4)
    policy = ALGORITHMS["impala"].make_policy(ImpalaConfig(**small, **OWN), spec, PolicyContext())
    torch.manual_seed(4)
    expected = get_torso(spec)[1].weight
    assert torch.equal(policy.module.get_submodule("torso.module.1").weight, expected)  # type: ignore[arg-type]


def get_torso(spec: EnvSpec) -> Any:
    from tests.own_code import make_torso

    return make_torso(spec)


@pytest.mark.parametrize("form", ["dict", "tuple"])
@pytest.mark.parametrize("algo", ["apex-dqn", "impala"])
def test_several_inputs(form: str, algo: str) -> None:
    assert Lookout(form)
    changes = {"env.kwargs": {"form": form}, "network": "tests.own_code:Parts"}
    plan = check_environment(settings_for("tests.many_spaces:Lookout", algo, changes))
    assert len(plan.spec.inputs) > 1


def test_images_come_as_numbers_up_to_one() -> None:
    plan = make_plan(settings_for("tests.many_spaces:Lookout", "apex-dqn", {"env.kwargs": {"form": "hwc"}}))
    seen: list[torch.Tensor] = []

    class Keep(torch.nn.Module):
        def forward(self, obs: torch.Tensor) -> torch.Tensor:
            seen.append(obs)
            return obs.flatten(1)

    OwnTorso(Keep(), plan.spec, 1)(torch.full((2, *plan.spec.obs_shape), 255, dtype=torch.uint8))
    assert seen[0].shape == (2, 12, 12, 3) and seen[0].dtype == torch.float32 and (seen[0] == 1).all()
    OwnTorso(Keep(), plan.spec, 1).to(torch.bfloat16)(torch.zeros(2, *plan.spec.obs_shape, dtype=torch.uint8))
    assert seen[1].dtype == torch.bfloat16


@pytest.mark.parametrize("settings", [corridor, reach])
def test_layers_that_find_their_sizes_and_other_arithmetic(settings: Any) -> None:
    check_environment(settings(algorithm={"network": "tests.own_code:lazy"}, actor={"precision": "bfloat16"}))


def test_features_of_a_torso_of_ones_own() -> None:
    selectors = {"replay.selectors": [{"type": "elite", "ratio": 1.0}], "network": "tests.own_code:make_torso"}
    plan = check_environment(settings_for("CartPole-v1", "impala", {**selectors, "replay.samples_per_insert": 1}))
    assert plan.schema["feature"].shape == (24,)


def test_axes_of_which_nothing_is_known_are_not_watched() -> None:
    from tests.own_code import Attention

    network, obs = Attention(None), torch.randn(16, 4)  # type: ignore[arg-type]
    assert count_dead({"network": lambda obs, _: network(obs)}, obs, obs) == ()
    assert count_dead({"network": lambda obs, _: torch.relu(obs.reshape(2, 2, 2, 2, 4))}, obs, obs) == ()


@pytest.mark.parametrize("algo", ["apex-dqn", "td3", "impala"])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("not_there:make", "cannot import 'not_there', no module named 'not_there'.* PYTHONPATH"),
        ("tests.own_code:mak_torso", "Did you mean 'make_torso'"),
        ("tests.own_code", "write module:NAME"),
        ("tests.own_code:NOT_ONE", "must be a function from an EnvSpec to a torch.nn.Module"),
        ("tests.own_code:wrong_rank", r"returned \(1, 1, \d\) for 1 observations: it must return \[1, F\].*Flatten"),
        ("tests.own_code:wrong_batch", r"returned \(1, \d+\) for 3 observations: it must return \[3, F\]"),
        ("tests.own_code:squeezed", r"returned \(\d?,?\) for 1 observations"),
        ("tests.own_code:not_a_number", "NaN or infinity for the environment's first observation"),
        ("tests.own_code:not_a_tensor", "returned tuple for 1 observations"),
        ("tests.own_code:whole_numbers", r"returned torch\.int64: features must be floating point"),
        ("tests.own_code:detached", "returned features without a gradient"),
        ("tests.own_code:raises_later", r"given observations of shape \(1, \d\), raised RuntimeError: mat1 and mat2"),
        ("tests.own_code:raises", r"raised ZeroDivisionError: no layers \(.*own_code\.py:\d+\)"),
        ("tests.own_code:no_module", r"returned list: it must return a torch\.nn\.Module"),
    ],
)
def test_networks_that_are_refused(algo: str, name: str, said: str) -> None:
    make = reach if algo == "td3" else corridor
    settings = (
        make(algo=algo, algorithm={"network": name})
        if algo != "impala"
        else settings_for("tests.fakes:TestCorridor-v0", "impala", {"network": name})
    )
    with pytest.raises(ConfigError, match=said) as refused:
        check_environment(settings)
    assert name.rpartition(":")[0] in str(refused.value)


def test_images_and_continuous_actions_are_refused_as_without_it() -> None:
    """The learner of the continuous algorithms takes vectors, whatever the network."""
    assert batch_of("sac", 0) is not None
    settings = settings_for("CarRacing-v3", "sac", {"network": "tests.own_code:make_torso"})
    with pytest.raises(ConfigError, match="sac learns from vectors"):
        check_environment(settings)
