"""What a run folder asks for, and who may grant it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import fakes  # noqa: F401  a module that is imported

import shoal
from shoal.config.load import load_config, load_named, load_target, settings_for
from shoal.config.signature import write_config
from shoal.config.trust import require_trust
from shoal.errors import ConfigError, UnknownName


def _settings(env: str = "CartPole-v1", **changes: Any) -> Any:
    return settings_for(env, "apex-dqn", {name.replace("__", "."): value for name, value in changes.items()})


REQUESTS = {
    "import the module 'not_there', which runs its code": _settings("not_there:Env-v0"),
    "import the module 'email.not_there'": _settings("email.not_there:Env-v0"),
    "call 'system' of the module 'os'": _settings("os:system"),
    "import the module 'not_there', which runs": _settings(env__wrappers=["TimeLimit", "not_there:Wrapper"]),
    "call 'system' of the module 'os', and": _settings("os:system", env__kwargs={"command": "true"}),
    "import the module 'theirs', which runs its code": _settings(algorithm__network="theirs:make_torso"),
    "use the wrapper RecordVideo with {video_folder: /}, where": _settings(
        env__wrappers=[{"name": "RecordVideo", "args": {"video_folder": "/"}}]
    ),
    "a text can name a file or a module": _settings(env__kwargs={"size": [1, {"file": "x.xml"}]}),
    "join the Ray cluster at '192.0.2.1:6379', whose owner can run code here": _settings(address="192.0.2.1:6379"),
    "write its replay into '/elsewhere'": _settings(replay__path="/elsewhere"),
    "exchange experience through '/elsewhere'": _settings(share__registry="/elsewhere"),
}


@pytest.mark.parametrize("request_", REQUESTS)
def test_a_stranger_is_refused_with_a_sentence(request_: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        require_trust(tmp_path, REQUESTS[request_], REQUESTS[request_])
    assert f"{tmp_path} does not carry your signature" in str(refused.value) and request_ in str(refused.value)
    assert str(refused.value).endswith("If you trust it, add --trust (from Python: trust=True).")
    write_config(tmp_path, REQUESTS[request_])  # now it is
    require_trust(tmp_path, REQUESTS[request_], REQUESTS[request_])


def test_playing_reaches_nothing_but_the_environment(tmp_path: Path) -> None:
    settings = _settings(
        address="192.0.2.1:6379", replay__path="/elsewhere", env__kwargs={"sizes": [1, None, 2.5, True]}
    )
    require_trust(tmp_path, settings)
    with pytest.raises(ConfigError, match=r"Ray cluster .* and to write its replay into"):
        require_trust(tmp_path, settings, settings)


def test_where_a_module_would_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "planted_here.py").write_text("raise SystemError('was run')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("planted_here", "planted_here.inner"):
        with pytest.raises(ConfigError, match=f"module '{name}' \\({tmp_path}/planted_here.py\\), which"):
            require_trust(tmp_path, _settings(f"{name}:Env-v0"))
    assert "planted_here" not in sys.modules


def test_what_is_imported_already_runs_no_more_code(tmp_path: Path) -> None:
    require_trust(tmp_path, _settings("tests.fakes:TestCorridor-v0"))
    with pytest.raises(ConfigError, match=r"'tests\.fakes\.inner'"):
        require_trust(tmp_path, _settings("tests.fakes.inner:TestCorridor-v0"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("env.id", "not_there:Env-v0"),
        ("env", "not_there:Env-v0"),
        ("address", "192.0.2.1:6379"),
        ("replay.path", "/elsewhere"),
        ("registry", "/elsewhere"),
        ("env.kwargs", {"file": "x.xml"}),
        ("env.wrappers", ["not_there:Wrapper"]),
        ("network", "not_there:make_torso"),
    ],
)
def test_what_the_user_names_needs_no_consent(tmp_path: Path, name: str, value: Any) -> None:
    settings = settings_for("CartPole-v1", "apex-dqn", {name: value})
    require_trust(tmp_path, settings, settings, {name: value})
    require_trust(tmp_path, settings, settings, [f"{name}={value}"])
    other = {"seed": 3} if name in ("env.kwargs", "env.wrappers") else {name: "another"}
    with pytest.raises(ConfigError, match="If you trust it"):
        require_trust(tmp_path, settings, settings, other)


def test_naming_one_argument_does_not_grant_the_others(tmp_path: Path) -> None:
    settings = _settings(env__kwargs={"size": 8, "file": "x.xml"})
    with pytest.raises(ConfigError, match="If you trust it"):
        require_trust(tmp_path, settings, settings, ["env.kwargs.size=8"])


def test_the_settings_of_a_run_as_a_scenario(tmp_path: Path) -> None:
    """`shoal train RUN/config.yaml` takes a run folder's word too. Elsewhere the same file is the user's scenario."""
    write_config(tmp_path, _settings("not_there:Env-v0"))
    scenario = str(tmp_path / "config.yaml")
    (tmp_path / "run.json").write_text("{}")
    assert load_target(scenario).env.id == "not_there:Env-v0"  # one's own run
    (tmp_path / "config.signature").unlink()
    with pytest.raises(ConfigError, match=r"your signature.* add --trust .* Or read the file and copy it elsewhere"):
        load_target(scenario)
    with pytest.raises(ConfigError, match=r"code\. Read the file and copy it elsewhere under another name"):
        load_target(scenario, consent="")
    assert load_target(scenario, trust=True).env.id == "not_there:Env-v0"
    assert load_target(scenario, ["env.id=CartPole-v1"]).env.id == "CartPole-v1"


@pytest.mark.parametrize("left", ["checkpoints", "metrics.jsonl", "summary.json", "config.signature", "run.json", ""])
def test_what_a_folder_lacks_does_not_make_it_a_scenario(tmp_path: Path, left: str) -> None:
    """Whoever made the folder decides what is in it. Only a file of another name, with nothing of a run, is none."""
    file = tmp_path / ("renamed.yaml" if left else "config.yaml")
    file.write_text("env: not_there:Env-v0\n")
    if left:
        assert load_target(str(file)).env.id == "not_there:Env-v0"
        (tmp_path / left).symlink_to("nowhere")
    with pytest.raises(ConfigError, match="does not carry your signature"):
        load_target(str(file))


ALGORITHM_THAT_LEAVES_A_MARK = """
import pathlib
pathlib.Path(__file__).with_name("was_run").touch()
from tests.own_code import ALGORITHM
"""


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run's folder that names an algorithm, whose module is not imported yet."""
    (tmp_path / "their_algorithm.py").write_text(ALGORITHM_THAT_LEAVES_A_MARK)
    monkeypatch.syspath_prepend(tmp_path)
    run = tmp_path / "run"
    run.mkdir()
    write_config(run, settings_for("CartPole-v1", "their_algorithm:ALGORITHM", {"algorithm.bonus": 2}))
    (run / "run.json").write_text("{}")
    _forget(tmp_path)
    yield run
    _forget(tmp_path)


def _forget(folder: Path) -> None:
    sys.modules.pop("their_algorithm", None)
    (folder / "was_run").unlink(missing_ok=True)


def test_an_algorithm_is_not_imported_to_read_its_settings(theirs: Path) -> None:
    """Which settings there are is known to the algorithm only, so here even reading needs trust."""
    assert load_config(theirs).algorithm.model_dump()["bonus"] == 2  # one's own
    _forget(theirs.parent)
    (theirs / "config.signature").unlink()
    config, mark = str(theirs / "config.yaml"), theirs.parent / "was_run"
    attempts: dict[str, Callable[[], object]] = {
        "add --trust": lambda: load_config(theirs),
        "add --trust (from Python: trust=True). Or read the file": lambda: load_target(config, ["seed=3"]),
        "code. Read the file and copy it elsewhere": lambda: load_named(config),
        "trust=True": lambda: shoal.load(theirs),
        "add --trust (": lambda: shoal.resume(theirs, steps=10),
        "add --trust (from": lambda: shoal.train(config),
    }
    for remedy, attempt in attempts.items():
        with pytest.raises(ConfigError) as refused:
            attempt()
        where = f"import the module 'their_algorithm' ({theirs.parent}/their_algorithm.py), which runs its code"
        assert where in str(refused.value) and remedy in str(refused.value)
    assert not mark.exists() and "their_algorithm" not in sys.modules
    with pytest.raises(UnknownName, match="bonus"):  # of another algorithm: the file is read, and nothing imported
        load_target(config, ["algo=apex-dqn"])
    assert not mark.exists()
    assert load_config(theirs, trust=True).algo == "their_algorithm:ALGORITHM" and mark.exists()


def test_a_changed_name_is_not_ones_own(theirs: Path) -> None:
    text = (theirs / "config.yaml").read_text()
    (theirs / "config.yaml").write_text(text.replace("their_algorithm:ALGORITHM", "their_algorithm:OTHER"))
    with pytest.raises(ConfigError, match="does not carry your signature"):
        load_config(theirs)
    assert not (theirs.parent / "was_run").exists()
