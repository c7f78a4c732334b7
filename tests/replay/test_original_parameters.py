"""The replay parameters of elite_buffer_vtrace, in Shoal's words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shoal.errors import ConfigError, UnknownName
from shoal.replay.original_parameters import is_original, translate
from shoal.replay.settings import ReplaySettings

ELITE = {
    "type": "custom",
    "capacity": 1000,
    "sample_ratio": 0.5,
    "dist_function": "ln_norm",
    "sample_strategy": "elite_sampling",
    "lambda_batch_multiplier": 6,
    "alfa_annealing_factor": 2.0,
}


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (
            {"type": "queue", "capacity": 1, "sample_ratio": 0.5},
            {"type": "fifo", "capacity": 1, "ratio": 0.5, "on_full": "wait"},
        ),
        ({"type": "standard", "capacity": 1000, "sample_ratio": 0.5}, {"capacity": 1000, "ratio": 0.5}),
        (ELITE, {"type": "elite", "capacity": 1000, "ratio": 0.5, "candidates": 6.0, "anneal": 2.0}),
        (
            ELITE | {"elite_sampling_strategy": "strategy4", "dist_function": "kl_div", "p": 2},
            {
                "type": "elite",
                "capacity": 1000,
                "ratio": 0.5,
                "candidates": 6,
                "anneal": 2,
                "strategy": 4,
                "distance": "kl",
            },
        ),
        (
            ELITE | {"sample_strategy": "attentive_sampling", "dist_function": "cos_dist"},
            {
                "type": "attentive",
                "capacity": 1000,
                "ratio": 0.5,
                "candidates": 6,
                "anneal": 2,
                "distance": "cosine",
            },
        ),
        (
            {"type": "custom", "capacity": 50, "sample_ratio": 1.0, "insert_strategy": "elite_insertion"},
            {"type": "elite", "capacity": 50, "candidates": 1, "anneal": 1, "insertion": True},
        ),
        (
            ELITE | {"insert_strategy": "elite_insertion", "elite_batch_size": 5},
            {
                "type": "elite",
                "capacity": 1000,
                "ratio": 0.5,
                "candidates": 6,
                "anneal": 2,
                "insertion": True,
                "insertion_sample": 5,
            },
        ),
        ({"type": "custom", "capacity": 9, "sample_ratio": 1.0, "dist_function": "ln_norm"}, {"capacity": 9}),
    ],
)
def test_entries_mean_what_they_meant(entry: dict[str, Any], expected: dict[str, Any]) -> None:
    assert is_original(entry)
    one, other = (ReplaySettings.model_validate({"selectors": [given]}) for given in (entry, expected))
    assert one == other


def test_a_whole_list_as_given_on_its_command_line() -> None:
    text = json.dumps([{"type": "queue", "capacity": 1, "sample_ratio": 0.5}, ELITE])
    settings = ReplaySettings.model_validate({"selectors": json.loads(text)})
    assert [one.type for one in settings.selectors] == ["fifo", "elite"] and settings.shares(10) == [5, 5]
    assert not is_original({"type": "fifo", "ratio": 0.5})


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"dist_funktion": "ln_norm"}, UnknownName, "Did you mean 'dist_function'"),
        ({"dist_function": "l2"}, UnknownName, "'l2'"),
        ({"sample_strategy": "elite"}, UnknownName, "Did you mean 'elite_sampling'"),
        ({"elite_sampling_strategy": "strategy5"}, UnknownName, "strategy5"),
        ({"insert_strategy": "best"}, UnknownName, "Known: elite_insertion"),
        ({"type": "queue"}, UnknownName, "replay parameter 'dist_function'"),
        ({"type": "fifo"}, UnknownName, "type 'fifo'"),
        ({"p": 3}, ConfigError, "p = 3 cannot be used"),
        (
            {"sample_strategy": "attentive_sampling", "elite_sampling_strategy": "strategy1"},
            ConfigError,
            "elite_sampling_strategy cannot be used with attentive_sampling",
        ),
    ],
)
def test_what_it_did_not_know_is_refused(change: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        translate(ELITE | change)


def test_names_are_checked_where_nothing_is_scored_too() -> None:
    with pytest.raises(UnknownName, match="'foo'"):
        translate({"type": "custom", "sample_ratio": 1.0, "dist_function": "foo"})
