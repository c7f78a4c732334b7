"""The replay section: each type of selector with its own settings, and the selectors it makes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from shoal.errors import ConfigError
from shoal.replay import Attentive, Circular, Elite, Fifo, Prioritized, Uniform
from shoal.replay.settings import BELONGS, ReplaySettings, SelectorSettings


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
    settings = SelectorSettings(type=kind)
    assert type(settings.make(_features)) is expected
    assert settings.compares_features == (kind in ("elite", "attentive"))


@pytest.mark.parametrize("kind", ["elite", "attentive"])
def test_features_are_asked_for(kind: Any) -> None:
    with pytest.raises(ConfigError, match=f"{kind} needs an algorithm that has features: impala or impact"):
        ReplaySettings(selectors=(SelectorSettings(type=kind),)).make_selector()


def test_settings_reach_the_selectors() -> None:
    fifo: Any = SelectorSettings(type="fifo", on_full="drop").make(queue_capacity=7)
    assert (fifo._capacity, fifo._on_full) == (7, "drop")
    fifo = SelectorSettings(type="fifo", capacity=3).make(queue_capacity=7)
    assert (fifo._capacity, fifo._on_full) == (3, "wait")
    circular: Any = SelectorSettings(type="circular", slots=3, passes=5, capacity=9).make()
    assert (len(circular._slots), circular._passes, circular._fifo._capacity) == (3, 5, 9)
    elite: Any = SelectorSettings(type="elite", candidates=3, anneal=0.5, anneal_draws=100, capacity=5).make(_features)
    assert (elite.lambda_now, elite._strategy, elite._inner._capacity) == (3.0, 3, 5)
    later: Any = SelectorSettings(type="attentive", candidates=3, anneal_draws=100).make(_features, drawn=100)
    assert later.lambda_now == 2.0


def test_lambda_is_another_word_for_candidates() -> None:
    given: dict[str, Any] = {"type": "elite", "lambda": 4}
    assert SelectorSettings(**given).candidates == 4.0
    with pytest.raises(ConfigError, match="the same setting"):
        SelectorSettings(**given, candidates=4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"type": "fifo", "strategy": 1}, "strategy = 1 has no effect on fifo; it belongs to elite"),
        ({"type": "uniform", "on_full": "drop"}, "on_full = drop .* belongs to fifo and circular"),
        ({"type": "prioritized", "capacity": 5}, "capacity = 5 has no effect on prioritized"),
        ({"type": "attentive", "insertion": True, "capacity": 5}, "insertion = True has no effect on attentive"),
        ({"type": "elite", "alpha": 0.5}, "alpha = 0.5 has no effect on elite; it belongs to prioritized"),
        ({"type": "elite", "insertion": True}, "set capacity"),
    ],
)
def test_what_would_have_no_effect_is_refused_by_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SelectorSettings(**given)


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
        SelectorSettings(**given)


@pytest.mark.parametrize("kind", list(BELONGS))
def test_what_is_written_down_is_what_counts_and_reads_back(kind: Any) -> None:
    settings = SelectorSettings(type=kind, ratio=0.5)
    written = settings.model_dump(mode="json")
    assert set(written) == {"type", "ratio", *BELONGS[kind]}
    assert SelectorSettings(**written) == settings
    complete = {name: getattr(settings, name) for name in SelectorSettings.model_fields}
    assert SelectorSettings(**complete) == settings, "defaults of other types do no harm"
    assert settings.model_copy(update={"ratio": 1.0}).ratio == 1.0


def test_every_setting_has_a_line_of_doc_and_an_owner() -> None:
    owned = {name for names in BELONGS.values() for name in names}
    for name, info in SelectorSettings.model_fields.items():
        assert info.description
        assert name in owned or name in ("type", "ratio")


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
