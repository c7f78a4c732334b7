"""Scenarios and settings: layers, names, and what is refused with which words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from shoal.algorithms import ALGORITHMS
from shoal.config.load import (
    left_out,
    load_config,
    load_named,
    load_scenario,
    load_target,
    scenario_names,
    scenarios_for,
    settings_for,
)
from shoal.config.signature import write_config
from shoal.envs import describe_env
from shoal.errors import ConfigError, UnknownName
from shoal.loops.settings import RunSettings
from shoal.runtime.run_folder import CONFIG_END, RunFolder

ENV, ALGO = "CartPole-v1", "apex-dqn"


def refused(*overrides: str) -> str:
    """The message for overrides that must be refused: plain words, nothing of pydantic's."""
    with pytest.raises(ConfigError) as caught:
        settings_for(ENV, ALGO, list(overrides))
    message = str(caught.value)
    assert not re.search(r"pydantic|https?:|validation error|Input should|input_type", message)
    return message


def write(folder: Path, text: str) -> Path:
    path = folder / "scenario.yaml"
    path.write_text(text, encoding="utf-8")
    return path


# Layers.


def test_layers_from_the_bottom_up(tmp_path: Path) -> None:
    path = write(tmp_path, "env: CartPole-v1\nalgo: apex-dqn\nlearner: {batch_size: 64}\nreplay: {min_size: 500}\n")
    plain = RunSettings.model_validate({"env": {"id": ENV}})
    of_paper, suited = ALGORITHMS[ALGO].defaults, ALGORITHMS[ALGO].suited(describe_env(plain.env))
    settings = load_scenario(path, ["replay.min_size=600"])
    assert settings.learner.checkpoint_seconds == plain.learner.checkpoint_seconds  # a default
    papers = load_scenario(path, ["defaults=paper"])
    assert papers.replay.capacity == of_paper["replay"]["capacity"] != plain.replay.capacity  # the algorithm's default
    assert settings.replay.capacity == suited["replay"]["capacity"] != papers.replay.capacity  # what suits
    assert settings.learner.batch_size == 64 != suited["learner"]["batch_size"]  # the scenario
    assert settings.replay.min_size == 600  # the command line


def test_merging_is_the_same_every_time_and_leaves_the_defaults_alone() -> None:
    before = repr({name: algorithm.defaults for name, algorithm in ALGORITHMS.items()})
    overrides = ["replay.selectors.0.alpha=0.1", "env.kwargs.x=1", "learner={batch_size: 8}", "hidden=[3]"]
    first = settings_for(ENV, ALGO, overrides)
    assert first == settings_for(ENV, ALGO, overrides)
    assert repr({name: algorithm.defaults for name, algorithm in ALGORITHMS.items()}) == before
    assert settings_for(ENV, ALGO, []).replay.selectors[0].alpha == 0.6


def test_later_overrides_win() -> None:
    assert settings_for(ENV, ALGO, ["seed=1", "seed=2"]).seed == 2


def test_overrides_may_come_from_python() -> None:
    typed = settings_for(ENV, ALGO, ["learner.batch_size=32", "hidden=[8, 8]", "env.kwargs={x: 1}"])
    assert typed == settings_for(
        ENV, ALGO, {"learner.batch_size": 32, "algorithm.hidden": (8, 8), "env.kwargs": {"x": 1}}
    )


def test_algo_comes_from_the_command_line_or_the_scenario(tmp_path: Path) -> None:
    path = write(tmp_path, "env: CartPole-v1\nalgo: apex-qr-dqn\n")
    assert load_scenario(path).algo == "apex-qr-dqn"
    assert load_scenario(path, ["algo=apex-dqn"]).algo == "apex-dqn"
    assert "quantiles" in type(load_scenario(path).algorithm).model_fields


@pytest.mark.parametrize("text", ["env: Acrobot-v1", "env: {id: Acrobot-v1}", "env:\n  id: Acrobot-v1\nlearner:\n"])
def test_short_form_of_env_and_empty_headings(tmp_path: Path, text: str) -> None:
    settings = load_scenario(write(tmp_path, text))
    assert settings.env.id == "Acrobot-v1"
    assert settings.learner == load_scenario(write(tmp_path, "env: Acrobot-v1")).learner  # empty headings set nothing


def test_env_on_the_command_line_keeps_the_rest_of_the_section(tmp_path: Path) -> None:
    path = write(tmp_path, "env: {id: CartPole-v1, lanes: 3}")
    for override in ("env=Acrobot-v1", "env.id=Acrobot-v1", "id=Acrobot-v1"):
        env = load_scenario(path, [override]).env
        assert (env.id, env.lanes) == ("Acrobot-v1", 3)


def test_a_goal_stays_with_the_environment_it_was_made_for(tmp_path: Path) -> None:
    path = write(tmp_path, "env: {id: CartPole-v1, lanes: 3}\nstop: {mean_return: 475, steps: 9000}")
    for override in ("env=Acrobot-v1", "env.id=Acrobot-v1", "env={id: Acrobot-v1}"):
        chosen = load_scenario(path, [override])
        assert (chosen.stop.mean_return, chosen.stop.steps) == (None, 9000)
        assert "stop.mean_return = 475" in left_out(str(path), chosen)[0]
        given = load_scenario(path, ["mean_return=-100", override])
        assert given.stop.mean_return == -100 and not left_out(str(path), given)
    for kept in (["env=CartPole-v1"], ["env.lanes=2"], []):
        chosen = load_scenario(path, kept)
        assert chosen.stop.mean_return == 475 and not left_out(str(path), chosen)
    assert not left_out("Acrobot-v1", load_scenario(path, ["env=Acrobot-v1"]))
    short = write(tmp_path, "env: CartPole-v1\nstop: {mean_return: 475}")
    assert load_scenario(short, ["env=Acrobot-v1"]).stop.mean_return is None


# Names.


@pytest.mark.parametrize(
    ("override", "read"),
    [
        ("batch_size=32", lambda s: s.learner.batch_size == 32),
        ("learning_rate=1e-3", lambda s: s.algorithm.learning_rate == 1e-3),
        ("algorithm.learning_rate=1e-3", lambda s: s.algorithm.learning_rate == 1e-3),
        ("actors=5", lambda s: s.actors == 5),
        ("steps=1e6", lambda s: s.stop.steps == 1_000_000),
        ("samples_per_insert=null", lambda s: s.replay.samples_per_insert is None),
        ("hidden=[64, 32]", lambda s: s.algorithm.hidden == (64, 32)),
        ("env.kwargs.size=3", lambda s: s.env.kwargs == {"size": 3}),
        ("kwargs={size: 3}", lambda s: s.env.kwargs == {"size": 3}),
        (
            "replay.selectors.0.alpha=0.3",
            lambda s: (s.replay.selectors[0].alpha, s.replay.selectors[0].type) == (0.3, "prioritized"),
        ),
        ("wrappers=[FlattenObservation]", lambda s: s.env.wrappers[0].name == "FlattenObservation"),
        ("replay.selectors=[{type: uniform}]", lambda s: s.replay.selectors[0].type == "uniform"),
        ("learner={batch_size: 32, threads: 2}", lambda s: (s.learner.batch_size, s.learner.threads) == (32, 2)),
        (" seed = 3", lambda s: s.seed == 3),
        ("replay.path=~/x", lambda s: s.replay.path == Path("~/x").expanduser()),
        ("replay.path=x", lambda s: s.replay.path == Path("x").absolute()),
    ],
)
def test_names(override: str, read: Any) -> None:
    assert read(settings_for(ENV, ALGO, [override]))


def test_selectors_can_be_changed_where_no_layer_gave_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS[ALGO].defaults, "replay", {})  # type: ignore[arg-type]
    assert settings_for(ENV, ALGO, ["replay.selectors.0.alpha=0.3"]).replay.selectors[0].alpha == 0.3


@pytest.mark.parametrize(
    ("override", "nearest"),
    [
        ("batchsize=1", "learner.batch_size"),
        ("replay.batch_size=1", "learner.batch_size"),
        ("lerner.batch_size=1", "learner.batch_size"),
        ("learning_rat=1", "algorithm.learning_rate"),
        ("alpha=1", "replay.selectors.0.alpha"),
        ("replay.selectors=[{alhpa: 1}]", "replay.selectors.0.alpha"),
        ("learner={batchsize: 1}", "learner.batch_size"),
        ("actor=3", None),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(override: str, nearest: str | None) -> None:
    if nearest is None:
        assert "group of settings" in refused(override)
        return
    with pytest.raises(UnknownName, match=re.escape(f"Did you mean '{nearest}'?")):
        settings_for(ENV, ALGO, [override])


def test_what_belongs_to_another_algorithm_is_said_to() -> None:
    with pytest.raises(UnknownName, match=r"'laser'\. It belongs to impala, not to impact\."):
        settings_for(ENV, "impact", ["laser=true"])
    with pytest.raises(UnknownName, match=r"It belongs to apex-dqn, apex-qr-dqn.* r2d2.*, not to impala\."):
        settings_for(ENV, "impala", ["algorithm.epsilon_base=0.3"])


def test_other_names_of_a_setting_are_understood_but_not_proposed() -> None:
    found = settings_for(ENV, "impala", ["replay.selectors=[{type: elite}]", "replay.selectors.0.lambda=3"])
    assert found.replay.selectors[0].candidates == 3
    with pytest.raises(UnknownName, match=r"Did you mean 'algorithm\.trace_lambda'\?"):
        settings_for(ENV, "impala", ["lambda=0.9"])
    assert "lambda" not in refused("replay.selectors=3")


def test_a_name_like_none_is_told_where_to_look() -> None:
    assert refused("zzz=1") == "Unknown setting 'zzz'. `shoal config apex-dqn` shows all settings."


def test_a_setting_of_another_algorithm_is_unknown() -> None:
    settings_for(ENV, "apex-qr-dqn", ["quantiles=5"])
    assert "Unknown setting 'quantiles'" in refused("quantiles=5")


def test_a_name_of_several_settings_lists_them() -> None:
    assert (
        refused("threads=2") == "'threads' could mean env.threads, actor.threads, learner.threads, replay.threads or "
        "evaluation.threads: write which."
    )


# Values.


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("batch_size=0", "learner.batch_size = 0 cannot be used: it must be a whole number from 1 to 65536 or lanes."),
        (
            "batch_size=a",
            "learner.batch_size = 'a' cannot be used: it must be a whole number from 1 to 65536 or lanes.",
        ),
        (
            "batch_size=1.5",
            "learner.batch_size = 1.5 cannot be used: it must be a whole number from 1 to 65536 or lanes.",
        ),
        (
            "batch_size=",
            "learner.batch_size = null cannot be used: it must be a whole number from 1 to 65536 or lanes.",
        ),
        ("seed=true", "seed = true cannot be used: it must be a whole number of at least 0."),
        ("gamma=2", "algorithm.gamma = 2 cannot be used: it must be a number from 0 to 1."),
        ("learning_rate=0", "algorithm.learning_rate = 0 cannot be used: it must be a number above 0 and at most 1."),
        (
            "sticky_actions=1",
            "env.sticky_actions = 1 cannot be used: it must be a number of at least 0.0 and below 1.0.",
        ),
        ("reward_clip=-1", "env.reward_clip = -1 cannot be used: it must be auto or a number above 0 or null."),
        ("runtime=threads", "runtime = 'threads' cannot be used: it must be one of ray, inline."),
        ("dueling=3", "algorithm.dueling = 3 cannot be used: it must be true or false."),
        ("steps=-1", "stop.steps = -1 cannot be used: it must be a whole number of at least 1 or null."),
        (
            "hidden=[64, x]",
            "algorithm.hidden = 'x' (entry 1) cannot be used: it must be a list, each entry a whole number",
        ),
        ("hidden=64", "algorithm.hidden = 64 cannot be used: it must be a list, each entry a whole number"),
        ("kwargs=3", "env.kwargs = 3 cannot be used: it must be names with values, such as {name: value}."),
        ("env=", "env.id = null cannot be used: it must be text that is not empty."),
        ("learner=3", "learner = 3 cannot be used: it must be a group of settings, such as learner: {name: value}."),
        ("algorithm=apex-qr-dqn", "algorithm = 'apex-qr-dqn' cannot be used: the name is set by algo"),
        ("algo=3", "algo = 3 cannot be used: it must be a name that `shoal algorithms` lists."),
        ("mean_return=.inf", "stop.mean_return = .inf cannot be used: it must be finite."),
        ("device=gpu", "learner.device = 'gpu' cannot be used: it must be auto, cpu, cuda or cuda:N."),
        ("replay.selectors=[]", "replay.selectors = [] cannot be used: it must be a list that is not empty"),
        (
            "learning_rate_end=1e-5",
            "learning_rate_end = 1e-05 is never reached, because schedule_updates = 0: set schedule_updates.",
        ),
        (
            "replay.selectors=[{type: best}]",
            "replay.selectors.0.type = 'best' cannot be used: it must be one of uniform,",
        ),
        ("env.wrappers=[{args: {}}]", "env.wrappers.0.name is missing."),
        ("env.wrappers=[{name: TimeLimit, arg: {}}]", "Did you mean 'env.wrappers.0.args'?"),
        (
            "wrappers=TimeLimit",
            "env.wrappers = 'TimeLimit' cannot be used: it must be a list, each entry {name, args}.",
        ),
        ("replay.selectors.4.alpha=1", "replay.selectors has no entry 4: it has 1, counted from 0."),
        ("replay.selectors.0.alpha=9", "replay.selectors.0.alpha = 9 cannot be used: it must be a number from 0 to 1."),
        ("batch_size", "'batch_size' is no setting: write KEY=VALUE, for instance learner.batch_size=256."),
        ("=3", "'=3' is no setting"),
        ("seed=[1", "The value of seed, line 1, column 3, is not valid YAML"),
    ],
)
def test_values_that_cannot_be_used(override: str, message: str) -> None:
    assert message in refused(override)


@pytest.mark.parametrize("override", ["env.id=not_there:Env", "env.wrappers=[not_there:Wrapper]"])
def test_a_look_at_settings_imports_nothing(override: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "not_there.py").write_text("raise SystemExit('was imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert load_named(ALGO, [override]).env.modules == ("not_there",)


def test_all_problems_are_told_at_once() -> None:
    message = refused("batch_size=0", "seeed=1", "gamma=2", "runtime=x", "replay.selectors=[{type: a}, {ratio: 2}]")
    assert message.startswith("6 problems:\n")
    for part in (
        "learner.batch_size = 0",
        "'seed'",
        "algorithm.gamma = 2",
        "runtime = 'x'",
        "selectors.0.type",
        "selectors.1.ratio",
    ):
        assert part in message
    assert len(message.splitlines()) == 7


def test_values_from_python_that_yaml_cannot_hold() -> None:
    with pytest.raises(ConfigError, match=r"env\.kwargs may hold only what YAML can"):
        settings_for(ENV, ALGO, {"env.kwargs": {"f": object()}})
    with pytest.raises(ConfigError, match="Settings are a list"):
        settings_for(ENV, ALGO, "seed=3")


# Values that do not fit together.


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["min_size=2000", "capacity=1000"], "replay.min_size = 2000 is more than replay.capacity = 1000"),
        (["batch_size=2000", "capacity=1000", "min_size=10"], "learner.batch_size = 2000 is more than replay.capacity"),
        (
            ["replay.selectors=[{ratio: 0.5}]"],
            "replay.selectors: The ratios of a mixture must be positive and sum to 1",
        ),
        (["replay.selectors=[{ratio: 0.5}, {type: fifo, ratio: 0.5}]", "batch_size=3"], "A batch of 3 does not divide"),
        (["tolerance=0.5"], "Raise replay.tolerance"),
    ],
)
def test_values_that_do_not_fit_together(overrides: list[str], message: str) -> None:
    assert message in refused(*overrides)


# Files.


def test_unknown_algorithm_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="Did you mean 'apex-dqn'"):
        settings_for(ENV, "apexdqn", [])
    with pytest.raises(UnknownName, match="Did you mean 'apex-dqn'"):
        load_scenario(write(tmp_path, "env: CartPole-v1\nalgo: apex_dqn\n"))


def test_unknown_file_names_the_nearest(tmp_path: Path) -> None:
    write(tmp_path, "env: CartPole-v1")
    with pytest.raises(UnknownName, match=re.escape(f"Did you mean '{tmp_path}/scenario.yaml'?")):
        load_scenario(tmp_path / "scenarios.yaml")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("env: [1", "line 1, column 8, is not valid YAML"),
        ("", "is empty"),
        ("- env\n- algo\n", "holds a list"),
        ("learner: {batch_size: 3}", "env.id is missing: name an environment"),
        ("env: {lanes: 3}", "env.id is missing: name an environment"),
        ("env: CartPole-v1\nlearner: 3\nseed: a\n", "2 problems in"),
        ("env: CartPole-v1\nlerner: {batch_size: 3}\n", "Unknown setting 'lerner'. Did you mean 'learner'?"),
        ("env: CartPole-v1\n1: 3\n", "Unknown setting '1'"),
    ],
)
def test_files_that_are_no_scenario(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_scenario(write(tmp_path, content))


def test_a_wrong_section_is_told_even_when_it_is_overridden(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="learner = 3 cannot be used"):
        load_scenario(write(tmp_path, "env: CartPole-v1\nlearner: 3\n"), ["learner.batch_size=4"])


def test_folders_and_binary_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder"):
        load_scenario(tmp_path)
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not a text file"):
        load_scenario(tmp_path / "b.yaml")


def test_scenarios_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"cartpole_apex_dqn", "cartpole_apex_qr_dqn", "pong_apex_dqn"} <= set(scenario_names())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "mine.yml").write_text("env: Acrobot-v1\nseed: 7\n")
    assert load_target("mine").seed == 7  # here
    assert load_target("cartpole_apex_dqn", ["seed=3"]).seed == 3  # and in the package
    assert load_scenario(Path("mine")).env.id == "Acrobot-v1"
    assert load_target("Acrobot-v1").env.id == "Acrobot-v1"
    (tmp_path / "scenarios" / "pendulum_sac.yaml").write_text("env: Pendulum-v1\nalgo: sac\nseed: 8\n")
    assert load_target("pendulum_sac").seed == 8  # one's own comes first
    with pytest.raises(UnknownName, match="Did you mean 'cartpole_apex_dqn'"):
        load_target("cartpole_apex_dqm")
    with pytest.raises(UnknownName, match=r"Did you mean 'cartpole_apex_dqn'.*`shoal scenarios`"):
        load_target("scenarios/cartpole_apex_dqn.yaml")  # a file that is not here


def test_named_algorithm_or_scenario() -> None:
    assert load_named("apex-qr-dqn").algo == "apex-qr-dqn"
    assert load_named("pong_apex_dqn").env.id == "PongNoFrameskip-v4"
    with pytest.raises(UnknownName, match="Did you mean 'apex-dqn'"):
        load_named("apexdqn")


def test_load_config_reads_a_run_folder(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("env: CartPole-v1\nseed: 9\n")
    assert load_config(tmp_path).seed == 9
    (tmp_path / "run.json").write_text("{}")  # of an earlier version
    (tmp_path / "config.yaml").write_text("env: CartPole-v1\nseed: 9\nactors: 2  # Actor proc")
    with pytest.raises(ConfigError, match=r"config\.yaml was cut short. Restore it.* add at its end a line break"):
        load_config(tmp_path)
    (tmp_path / "config.yaml").write_text("env: CartPole-v1\nseed: 9\n")
    assert load_config(tmp_path).seed == 9


def test_settings_cut_at_a_line_break_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    write_config(tmp_path, settings_for("CartPole-v1", "apex-dqn", {"replay.capacity": 50_000}))
    RunFolder(tmp_path).write_run_json(seed=1, command=[], config_end=CONFIG_END)
    lines = file.read_text().splitlines(keepends=True)
    assert load_config(tmp_path).replay.capacity == 50_000 == load_target(str(file)).replay.capacity
    for length in (12, len(lines) - 1):
        file.write_text("".join(lines[:length]))
        for read in (lambda: load_config(tmp_path), lambda: load_target(str(file))):
            with pytest.raises(ConfigError, match=r"was cut short. Restore it .* at its end this line: # end of conf"):
                read()
    file.write_text(f"env: CartPole-v1\n{CONFIG_END}")  # the user says that it is complete
    assert load_config(tmp_path).env.id == "CartPole-v1"
    (tmp_path / "mine.yaml").write_text("env: CartPole-v1")  # nobody asks that of a scenario
    assert load_scenario(tmp_path / "mine.yaml").env.id == "CartPole-v1"


def test_a_scenario_of_stable_baselines3_is_sent_to_share() -> None:
    with pytest.raises(ConfigError, match="Stable-Baselines3: run it with `shoal share"):
        load_target("sb3_sac_pendulum")


def test_scenarios_made_for_an_environment_and_an_algorithm() -> None:
    assert scenarios_for("Pendulum-v1", "d4pg") == ["pendulum_d4pg"]
    assert scenarios_for("Pendulum-v1", "apex-dqn") == [] == scenarios_for("Nothing-v0", "d4pg")


def test_a_scenario_that_cannot_be_read_is_no_reason_not_to_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An editor's lock, a folder, something that is no YAML."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scenarios" / "folder.yaml").mkdir(parents=True)
    (tmp_path / "scenarios" / ".#lock.yaml").symlink_to("nowhere")
    (tmp_path / "scenarios" / "odd.yaml").write_text("env: [Pendulum-v1", encoding="utf-8")
    assert scenarios_for("Pendulum-v1", "d4pg") == ["pendulum_d4pg"]
