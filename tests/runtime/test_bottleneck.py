"""The verdict, with cases worked by hand."""

from __future__ import annotations

import math

import pytest
from tests.fakes import corridor

from shoal.loops.reports import LinkReport, MirrorReport
from shoal.runtime import bottleneck
from shoal.runtime.bottleneck import Machine, Share, Waits, verdict


@pytest.mark.parametrize(
    ("learner_wait", "actor_wait", "expected"),
    [
        (0.63, 0.0, "actors (the learner waits 63 % of its time for data)"),
        (1.0, 0.0, "actors (the learner waits 100 % of its time for data)"),
        (0.02, 0.4, "learner (the actors wait 40 % of their time for it)"),
        # PPO: the sides take turns, 70 + 30 = 100 %. Collecting takes longer than training.
        (0.7, 0.3, "actors (the learner waits 70 % of its time for data)"),
        (0.3, 0.7, "learner (the actors wait 70 % of their time for it)"),
        (0.5, 0.5, "balanced (the learner waits 50 % of its time, the actors 50 %)"),
        (0.45, 0.4, "balanced (the learner waits 45 % of its time, the actors 40 %)"),
        (0.0, 0.0, "balanced (nobody waits: both are busy)"),
        (0.09, 0.0, "balanced (nobody waits: both are busy)"),
        (0.12, 0.05, "balanced (the learner waits 12 % of its time, the actors 5 %)"),
        # Timers overlap a little; a wait cannot be longer than the time it was measured in.
        (1.02, -0.01, "actors (the learner waits 100 % of its time for data)"),
    ],
)
def test_verdict(learner_wait: float, actor_wait: float, expected: str) -> None:
    assert verdict(learner_wait, actor_wait) == expected


def test_a_full_link_is_named_before_those_who_wait_because_of_it() -> None:
    """Actors far away wait for a learner that waits for their rows: that is no fault of the hand-over."""
    assert verdict(0.9, 0.8, links_full=0.9).startswith("links (the learner waits 90 % of its time for data, and rows")
    assert verdict(0.5, 0.0, links_full=0.9).startswith("links")
    assert verdict(0.05, 0.6, links_full=0.9).startswith("learner")  # rows queue because the learner is slow
    assert verdict(0.5, 0.0, links_full=0.3).startswith("actors")
    assert verdict(0.5, 0.0).startswith("actors")
    waits = Waits(Share(4, 10), Share(0, 10))
    for behind, nbytes in ((0, 100), (7, 300)):
        link = LinkReport(10, nbytes, 2, behind, lost=0, restarts=0, lag=0.1, silent=0.0)
        waits.take(MirrorReport(1.0, {0: link}))
    assert waits.verdict(corridor()).startswith("links")


def test_both_idle_is_neither_sides_fault() -> None:
    """90 % and 80 % add up to 170 %: for at least 70 % of the time both waited at once."""
    text = verdict(0.9, 0.8)
    assert text.startswith("hand-over (both wait at once for at least 70 % of the time")
    assert verdict(0.6, 0.55).startswith("balanced")


@pytest.mark.parametrize("waits", [(math.nan, 0.2), (0.2, math.nan), (math.inf, 0.0)])
def test_not_measured(waits: tuple[float, float]) -> None:
    assert verdict(*waits) == "unknown (not measured yet)"


@pytest.mark.parametrize(
    ("cores", "busy", "advice"),
    [
        (16, 4, "; 12 cores free: raise actors)"),
        (4, 3, "; 1 core free: raise actors)"),
        (2, 3, "; all 2 cores are taken: more actors would not help)"),
        (1, 2, "; the only core is taken: more actors would not help)"),
    ],
)
def test_more_actors_are_advised_only_where_there_are_cores(cores: int, busy: int, advice: str) -> None:
    text = verdict(0.63, 0.0, machine=Machine(cores, busy))
    assert text == f"actors (the learner waits 63 % of its time for data{advice}"
    assert verdict(0.02, 0.4, machine=Machine(cores, busy)) == verdict(0.02, 0.4)


@pytest.mark.parametrize(
    ("learner", "served", "server", "begins"),
    [
        (0.6, 0.8, 0.02, "inference (its server is always busy, the actors wait 80 % of their time for it"),
        (0.6, 0.8, 0.5, "actors"),  # the server has time: the way there and back is long
        (0.6, 0.3, 0.02, "actors"),  # their environments take most of it
        (0.0, 0.8, 0.02, "balanced"),  # nobody waits for what it acts on
        (0.6, math.nan, math.nan, "actors"),  # no server
    ],
)
def test_the_inference_server(learner: float, served: float, server: float, begins: str) -> None:
    assert verdict(learner, 0.0, served_wait=served, server_wait=server).startswith(begins)


def test_actors_that_wait_for_the_server_leave_their_cores_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bottleneck, "usable_cores", lambda: 16)
    waits, settings = Waits(), corridor(runtime="ray", actors=14)
    waits.learner.add(8.0, 10.0)
    for seconds in (4.0, 6.0):
        waits.actors.add(0.0, seconds)
        waits.served.add(seconds / 2, seconds)
    waits.server.add(5.0, 10.0)
    assert waits.served.value == 0.5
    assert waits.verdict(settings) == "actors (the learner waits 80 % of its time for data; 7 cores free: raise actors)"
    waits.served.part = math.nan  # without a server: 14 actors and a learner
    assert "; 1 core free" in waits.verdict(settings)
    assert "free" not in waits.verdict(corridor()), "inline, one process does everything in turn"


def test_a_share_of_nothing_is_unknown() -> None:
    assert math.isnan(Share().value) and Waits().verdict(corridor()).startswith("unknown")
