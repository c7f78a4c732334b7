"""The replay section: each type of selector with its own settings, and the selectors it makes."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
from pydantic import ValidationError

from shoal.errors import ConfigError
from shoal.replay import Attentive, Circular, Elite, Fifo, Prioritized, Uniform
from shoal.replay.selector_settings import AnySelector
from shoal.replay.settings import ReplaySettings

MODELS = {model.model_fields["type"].default: model for model in get_args(AnySelector)}


def selector(**given: Any) -> Any:
    return ReplaySettings.model_validate({"selectors": [given]}).selectors[0]


def made(features: Any = None, queue_capacity: int | None = None, drawn: int = 0, **given: Any) -> Any:
    settings = ReplaySettings.model_validate({"selectors": [given]})
    return settings.make_selector(features, queue_capacity, drawn).parts[0].selector


def _features(obs: Any) -> Any:
    return np.zeros((len(obs), 1), np.float32)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("uniform", Uniform),
        ("newest", Uniform),
        ("fifo", Fifo),
        ("prioritized", Prioritized),
        ("elite", Elite),
        ("attentive", Attentive),
        ("circular", Circular),
    ],
)
def test_each_type_makes_its_selector(kind: Any, expected: type) -> None:
    assert type(made(_features, type=kind)) is expected
    assert selector(type=kind).compares_features == (kind in ("elite", "attentive"))


@pytest.mark.parametrize("kind", ["elite", "attentive"])
def test_features_are_asked_for(kind: Any) -> None:
    with pytest.raises(ConfigError, match=f"{kind} needs an algorithm that has features: impala or impact"):
        made(type=kind)


def test_settings_reach_the_selectors() -> None:
    fifo = made(queue_capacity=7, type="fifo", on_full="drop")
    assert (fifo._capacity, fifo._on_full) == (7, "drop")
    fifo = made(queue_capacity=7, type="fifo", capacity=3)
    assert (fifo._capacity, fifo._on_full) == (3, "wait")
    circular = made(type="circular", slots=3, passes=5, capacity=9)
    assert (len(circular._slots), circular._passes, circular._fifo._capacity) == (3, 5, 9)
    elite = made(_features, type="elite", candidates=3, anneal=0.5, anneal_draws=100, capacity=5)
    assert (elite.metrics()["lambda"], elite._strategy, elite._inner._capacity) == (3.0, 3, 5)
    later = made(_features, drawn=100, type="attentive", candidates=3, anneal_draws=100)
    assert later.metrics()["lambda"] == 2.0


def test_lambda_is_another_word_for_candidates() -> None:
    given: dict[str, Any] = {"type": "elite", "lambda": 4}
    assert selector(**given).candidates == 4.0
    with pytest.raises(ConfigError, match="the same setting"):
        selector(**given, candidates=4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"type": "fifo", "alpha": None}, r"^replay\.selectors\.0\.alpha = null has no effect on fifo; it belongs"),
        ({"type": "fifo", "strategy": 1}, "strategy = 1 has no effect on fifo; it belongs to elite"),
        ({"type": "uniform", "on_full": "drop"}, "on_full = drop .* belongs to fifo and circular"),
        ({"type": "prioritized", "capacity": 5}, "capacity = 5 has no effect on prioritized"),
        ({"type": "attentive", "insertion": True, "capacity": 5}, "insertion = true has no effect on attentive"),
        ({"type": "elite", "alpha": 0.5}, "alpha = 0.5 has no effect on elite; it belongs to prioritized"),
        ({"type": "elite", "insertion": True}, "set capacity"),
    ],
)
def test_what_would_have_no_effect_is_refused_by_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        selector(**given)


@pytest.mark.parametrize(
    "given",
    [
        {"type": "best"},
        {"type": "elite", "candidates": 0.5},
        {"type": "elite", "strategy": 5},
        {"type": "elite", "distance": "l1"},
        {"type": "elite", "compared_steps": 0},
        {"type": "elite", "anneal": 0},
        {"type": "fifo", "capacity": 0},
        {"type": "fifo", "on_full": "block"},
        {"type": "circular", "slots": 0},
        {"type": "circular", "passes": 0},
        {"type": "elite", "nonsense": 1},
    ],
)
def test_values_out_of_range_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        selector(**given)


@pytest.mark.parametrize("kind", MODELS)
def test_what_is_written_down_is_what_counts_and_reads_back(kind: Any) -> None:
    settings = selector(type=kind, ratio=0.5)
    written = settings.model_dump(mode="json")
    assert list(written) == list(MODELS[kind].model_fields) and list(written)[:2] == ["type", "ratio"]
    assert selector(**written) == settings
    complete = {name: info.default for model in MODELS.values() for name, info in model.model_fields.items()}
    assert selector(**complete | written) == settings, "earlier versions wrote the defaults of other types, too"
    assert settings.model_copy(update={"ratio": 1.0}).ratio == 1.0


def test_every_setting_has_a_line_of_doc() -> None:
    for model in MODELS.values():
        assert model.__doc__
        assert all(info.description for name, info in model.model_fields.items() if name != "type")


def test_the_queue_that_actors_wait_for() -> None:
    def settings(*selectors: dict[str, Any]) -> ReplaySettings:
        return ReplaySettings.model_validate({"selectors": selectors})

    assert ReplaySettings().queue is None
    mixed = settings({"type": "uniform", "ratio": 0.5}, {"type": "circular", "ratio": 0.5})
    assert mixed.queue == mixed.selectors[1]
    assert settings({"type": "fifo", "on_full": "drop"}).queue is None
    assert settings({"type": "fifo"}).queue is not None
    assert settings({"type": "elite", "ratio": 0.5}, {"ratio": 0.5}).compares_features and not mixed.compares_features
    with pytest.raises(ConfigError, match="one queue"):
        settings({"type": "fifo", "ratio": 0.5}, {"type": "circular", "ratio": 0.5}).shares(8)
    with pytest.raises(ConfigError, match="does not divide"):
        settings({"type": "elite", "ratio": 0.5}, {"type": "fifo", "ratio": 0.5}).shares(7)
    assert settings({"type": "elite", "ratio": 0.25}, {"type": "fifo", "ratio": 0.75}).shares(8) == [2, 6]
