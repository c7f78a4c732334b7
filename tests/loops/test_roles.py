"""Actor, learner loop and evaluator, each on its own, on real parts."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from tests.fakes import Corridor, corridor, prepared, reach, stairs

from shoal.config.resume import change_for_resume
from shoal.errors import ConfigError, EnvError, ShoalError
from shoal.loops import assembly
from shoal.loops.checkpoint import list_checkpoints, load_best, load_checkpoint
from shoal.replay import LedgerWord, ShardReader
from shoal.replay.ledger import HALT, RUN, WIND_DOWN
from shoal.types import CUT, FINAL


def test_actor_writes_the_stream_as_it_happened(tmp_path: Path) -> None:
    settings = corridor(actors=1, replay={"samples_per_insert": None})
    plan, ledger = prepared(tmp_path, settings)
    actor = assembly.build_actor(plan, 0)
    report = actor.run(steps=100)
    shard = ShardReader(plan.paths.shard(0))
    rows = {name: column[:100] for name, column in shard.columns.items()}
    ended = rows["terminated"] | rows["truncated"]
    final = rows["boundary"] == FINAL
    assert shard.head == 100 and ended.any()
    np.testing.assert_array_equal(final[1:], ended[:-1])  # the row after an end, and no other
    assert (rows["reward"][final] == 0).all() and not ended[final].any()
    assert report.steps == int((~final).sum()) == ledger.env_steps
    assert len(report.episodes) == int(ended.sum()) == ledger.episodes
    # A step to the right moves the 1 to the right: actions and observations belong together.
    moved = rows["obs"][1:].argmax(-1) - rows["obs"][:-1].argmax(-1)
    inside = ~ended[:-1] & ~final[:-1]
    np.testing.assert_array_equal(moved[inside], np.where(rows["action"][:-1][inside] == 1, 1, -1))


def test_actor_waits_for_the_rate_limiter(tmp_path: Path) -> None:
    settings = corridor(actors=1)
    plan, ledger = prepared(tmp_path, settings)
    actor = assembly.build_actor(plan, 0)
    report = actor.run(seconds=0.5)  # nobody samples
    limit = settings.replay.min_size + settings.tolerance / 8
    assert limit <= ledger.inserts <= limit + 8
    assert report.waited > 0.1


@pytest.mark.parametrize(("kwargs", "said"), [({"fail_at": 30}, "crashed"), ({"nan_at": 30}, "reward")])
def test_a_bad_environment_is_made_anew(tmp_path: Path, kwargs: dict[str, int], said: str) -> None:
    free = {"samples_per_insert": None}
    settings = corridor(actors=1, env={"kwargs": kwargs}, replay=free, actor={"env_error_limit": 100})
    plan, _ = prepared(tmp_path, settings)
    report = assembly.build_actor(plan, 0).run(steps=100)
    shard = ShardReader(plan.paths.shard(0))
    cuts = (shard.columns["boundary"][: shard.head, 0] == CUT).sum()
    assert len(report.notes) == cuts >= 2
    assert said in report.notes[0] and "Corridor-v0" in report.notes[0] and "step" in report.notes[0]
    assert np.isfinite(shard.columns["reward"]).all()


def test_a_bad_environment_stops_the_run_when_told(tmp_path: Path) -> None:
    settings = corridor(actors=1, env={"kwargs": {"fail_at": 30}}, actor={"on_env_error": "stop"})
    plan, _ = prepared(tmp_path, settings)
    with pytest.raises(EnvError, match=r"crashed.*on_env_error"):
        assembly.build_actor(plan, 0).run(steps=100)


def test_too_many_errors_stop_the_run_anyway(tmp_path: Path) -> None:
    settings = corridor(actors=1, env={"kwargs": {"fail_at": 2}}, actor={"env_error_limit": 3})
    plan, _ = prepared(tmp_path, settings)
    with pytest.raises(EnvError, match="error 3 of 3"):
        assembly.build_actor(plan, 0).run(steps=100)


def test_errors_of_more_than_an_hour_ago_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.loops.actor.ERROR_SECONDS", 0.0)  # every error is such a one
    settings = corridor(actors=1, env={"kwargs": {"fail_at": 2}}, actor={"env_error_limit": 3})
    plan, _ = prepared(tmp_path, settings)
    report = assembly.build_actor(plan, 0).run(steps=20)
    assert len(report.notes) >= 5 and all("error 1 of 3 within an hour" in note for note in report.notes)


def test_a_restarted_actor_goes_on_in_its_shard(tmp_path: Path) -> None:
    settings = corridor(actors=1, replay={"samples_per_insert": None})
    plan, ledger = prepared(tmp_path, settings)
    assembly.build_actor(plan, 0).run(steps=10)  # never closed, as if killed
    before = ledger.env_steps
    assembly.build_actor(plan, 0).run(steps=10)
    shard = ShardReader(plan.paths.shard(0))
    assert shard.head == 21 and (shard.columns["boundary"][10] == CUT).all()
    assert ledger.env_steps > before


def test_an_actor_plays_the_levels_it_is_given_also_after_an_error(tmp_path: Path) -> None:
    settings = stairs(actors=1, env={"kwargs": {"fail_at": 40}}, replay={"samples_per_insert": None})
    plan, _ = prepared(tmp_path, settings)
    actor = assembly.build_actor(plan, 0)
    heights = [{one.metrics["level.height"] for one in actor.run(steps=8).episodes}]
    heights += [
        {one.metrics["level.height"] for one in actor.run(steps=steps, levels=levels).episodes}
        for steps, levels in ((8, ({"height": 3, "width": 1},)), (8, None), (40, None))
    ]
    assert heights == [{1.0}, {1.0, 3.0}, {3.0}, {3.0}]  # an episode under way ends at its level


def test_an_actor_of_several_agents_writes_their_rows(tmp_path: Path) -> None:
    pytest.importorskip("pettingzoo")
    changes = {"env": {"id": "tests.teams:Shift"}, "algo": "tests.teams:RANDOM"}
    plan, ledger = prepared(tmp_path, corridor(actors=1, replay={"samples_per_insert": None}, **changes))
    report = assembly.build_actor(plan, 0).run(steps=60)
    rows = {name: column[:60] for name, column in ShardReader(plan.paths.shard(0)).columns.items()}
    assert rows["action"].shape == (60, 4, 3) and rows["obs"].shape == (60, 4, 18) and ledger.env_steps == report.steps
    step = rows["boundary"][:-1] != FINAL
    chosen, rewards, there = (
        rows["action"][:-1],
        rows["obs"][1:, :, 15:],
        rows["obs"][:-1, :, 6:15].reshape(-1, 4, 3, 3),
    )
    acted = np.diagonal(there, axis1=-2, axis2=-1)
    np.testing.assert_array_equal(rewards[step], (chosen * acted)[step])  # of a step, in the row after it
    mean = (chosen * acted).sum(-1) / acted.sum(-1).clip(1)
    np.testing.assert_allclose(rows["reward"][:-1][step], mean[step], rtol=1e-6)
    assert {one.length for one in report.episodes} == {5}


def test_learner_learns_publishes_and_saves(tmp_path: Path) -> None:
    settings = corridor(actors=1, learner={"keep_checkpoints": 2}, replay={"tolerance": 4000})
    plan, ledger = prepared(tmp_path, settings)
    actor, learner = assembly.build_actor(plan, 0), assembly.build_learner(plan)
    assert learner.run(updates=1).updates == 0  # nothing collected yet
    actor.run(steps=100)
    report = learner.run(updates=20)
    assert report.updates == ledger.updates == 20
    assert ledger[LedgerWord.SAMPLES] == 20 * 32
    assert report.weights_version == 1 + 20 // settings.learner.publish_every
    assert report.metrics["loss"] > 0
    for _ in range(3):
        learner.run(updates=1)
        learner.save()
    assert len(list_checkpoints(plan.paths.checkpoints)) == 2
    assert load_checkpoint(plan.paths.checkpoints).info["updates"] == ledger.updates


def test_a_restarted_learner_has_the_newest_weights(tmp_path: Path) -> None:
    settings = corridor(actors=1, replay={"tolerance": 4000})
    plan, _ = prepared(tmp_path, settings)
    actor, learner = assembly.build_actor(plan, 0), assembly.build_learner(plan)
    actor.run(steps=100)
    learner.run(updates=10)
    learner.save()
    learner.run(updates=4)  # newer than the checkpoint, on the board only
    again = assembly.build_learner(plan)
    for name, tensor in learner._learner.module.state_dict().items():
        assert (again._learner.module.state_dict()[name] == tensor).all()


def test_a_restarted_learner_does_not_join_a_newer_policy_to_older_critics(tmp_path: Path) -> None:
    settings = reach(actors=1, replay={"tolerance": 40_000})
    plan, _ = prepared(tmp_path, settings)
    actor, learner = assembly.build_actor(plan, 0), assembly.build_learner(plan)
    actor.run(steps=100)
    learner.run(updates=10)
    learner.save()
    learner.run(updates=4)  # its policy is newer, on the board only
    published = learner._weights.board.version
    again = assembly.build_learner(plan)
    saved, restored = load_checkpoint(plan.paths.checkpoints).tensors, again._learner.state().tensors
    assert saved.keys() == restored.keys()
    assert [name for name in saved if not torch.equal(saved[name], restored[name])] == []
    assert any(not torch.equal(saved[name], tensor) for name, tensor in learner._learner.state().tensors.items())
    policy = assembly.build_actor(plan, 0)
    policy.run(steps=1)
    assert again._weights.board.version == policy._version == published + 1, "actors go back with it"
    for name, tensor in policy._policy.module.state_dict().items():
        assert torch.equal(tensor, saved[f"policy.{name}"])
    assert again.run(updates=1).notes == ("The learner goes back to its checkpoint of update 10.",)


def test_before_the_first_checkpoint_a_restarted_learner_begins_again(tmp_path: Path) -> None:
    settings = reach(actors=1, replay={"tolerance": 40_000})
    plan, _ = prepared(tmp_path, settings)
    actor, learner = assembly.build_actor(plan, 0), assembly.build_learner(plan)
    actor.run(steps=100)
    learner.run(updates=10)
    learned, published = learner._learner.state().tensors, learner._weights.board.version
    again = assembly.build_learner(plan)
    begun = again._learner.state().tensors
    policy = [name for name in learned if name.startswith("policy.")]
    assert policy and any(not torch.equal(learned[name], begun[name]) for name in policy), "no policy without critics"
    actor = assembly.build_actor(plan, 0)
    actor.run(steps=1)
    assert actor._version == published + 1, "the actor follows"
    for name, tensor in actor._policy.module.state_dict().items():
        assert torch.equal(tensor, begun[f"policy.{name}"])
    assert "The learner begins again" in again.run(updates=1).notes[0]


def test_a_restarted_learner_has_other_noise(tmp_path: Path) -> None:
    settings = corridor(actors=1)
    plan, _ = prepared(tmp_path, settings)
    seeds = []
    for _ in range(3):
        assembly.build_learner(plan).close()
        seeds.append(torch.initial_seed())
    assert seeds[0] == plan.seed("learner") and len(set(seeds)) == 3


def test_a_loss_that_is_not_a_number_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = corridor(actors=1, algorithm={"learning_rate": 1.0, "gradient_clip": 1e30})
    plan, _ = prepared(tmp_path, settings)
    actor, learner = assembly.build_actor(plan, 0), assembly.build_learner(plan)
    actor.run(steps=100)
    for parameter in learner._learner.module.parameters():
        parameter.data.fill_(1e30)
    with pytest.raises(ShoalError, match=r"loss became .* new run with a lower algorithm.learning_rate") as failed:
        learner.run(updates=3)
    with pytest.raises(ConfigError, match="Start a new run"):  # what the message may not send anybody to
        change_for_resume(settings, ["algorithm.learning_rate=1e-5"])
    assert "resume this one" in str(failed.value)


def test_evaluator_keeps_the_best(tmp_path: Path) -> None:
    settings = corridor(actors=1)
    plan, ledger = prepared(tmp_path, settings)
    evaluator = assembly.build_evaluator(plan)
    report = evaluator.run(7)
    assert report is not None and len(report.returns) == 7 and report.best
    steps = ledger[LedgerWord.EVALUATED]
    assert steps >= max(report.lengths)
    assert load_best(plan.paths.checkpoints).info["eval_return"] == pytest.approx(np.mean(report.returns))
    again = assembly.build_evaluator(plan).run(7)
    assert again is not None and not again.best  # the same weights are no better
    assert ledger[LedgerWord.EVALUATED] > steps  # also from an evaluator that was started again
    ledger[LedgerWord.STOP] = HALT
    assert evaluator.run(7) is None
    ledger[LedgerWord.STOP] = RUN


def test_evaluation_ends_where_the_environment_has_no_limit(tmp_path: Path) -> None:
    settings = corridor(
        actors=1, env={"id": "tests.fakes:TestEndless-v0"}, evaluation={"max_episode_steps": 30, "lanes": 2}
    )
    plan, _ = prepared(tmp_path, settings)
    evaluator = assembly.build_evaluator(plan)
    report = evaluator.run(4)
    assert report is not None and report.returns == (30.0,) * 4 and report.lengths == (30,) * 4
    (note,) = report.notes
    assert "4 episodes were cut at evaluation.max_episode_steps = 30" in note
    again = evaluator.run(4)
    assert again is not None and again.returns and not again.notes  # said once
    evaluator.end()  # its close raises


def test_the_environments_own_limit_is_not_the_evaluations(tmp_path: Path) -> None:
    settings = corridor(actors=1, evaluation={"max_episode_steps": 20})
    assert settings.evaluation_bound is None and settings.evaluation_env is settings.env
    assert corridor(evaluation={"max_episode_steps": 19}).evaluation_env.max_episode_steps == 19


def test_an_evaluation_that_takes_too_long_is_left_out(tmp_path: Path) -> None:
    settings = corridor(actors=1, env={"id": "tests.fakes:TestEndless-v0"})
    plan, ledger = prepared(tmp_path, settings)
    evaluator = assembly.build_evaluator(plan)
    report = evaluator.run(4, seconds=0.2)
    assert (
        report is not None and not report.returns and "0 of 4 episodes had ended when training did" in report.notes[0]
    )
    ledger[LedgerWord.STOP] = WIND_DOWN
    late = evaluator.run(4)  # asked for before training ended, begun after it
    assert late is not None and not late.returns
    final = evaluator.run(4, seconds=0.2, final=True)
    assert final is not None and final.seconds >= 0.2 and "--checkpoint last" in final.notes[0]
    assert not (plan.paths.checkpoints / "best.safetensors").exists()
    ledger[LedgerWord.STOP] = RUN


def test_the_last_evaluation_may_use_the_whole_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "usable_cores", lambda: 6)
    plan, _ = prepared(tmp_path, corridor(actors=2, runtime="ray"))
    evaluator = assembly.build_evaluator(plan)
    try:
        used = [torch.get_num_threads()]
        for final in (False, True):
            assert evaluator.run(4, final=final) is not None
            used.append(torch.get_num_threads())
        assert used == [3, 3, 6]  # a learner and two actors of six cores
    finally:
        torch.set_num_threads(1)
        evaluator.end()


@pytest.mark.parametrize("then", [WIND_DOWN, HALT])
def test_an_evaluation_under_way_ends_with_training(tmp_path: Path, then: int) -> None:
    settings = corridor(actors=1, env={"id": "tests.fakes:TestEndless-v0"})
    plan, ledger = prepared(tmp_path, settings)
    evaluator = assembly.build_evaluator(plan)

    def end_training() -> None:
        ledger[LedgerWord.STOP] = then

    timer = threading.Timer(0.3, end_training)
    timer.start()
    report = evaluator.run(4, seconds=120)
    timer.join()
    if then == HALT:
        assert report is None
    else:
        assert report is not None and report.seconds < 60 and not report.returns and len(report.notes) == 1
    ledger[LedgerWord.STOP] = RUN


def test_an_evaluation_whose_environment_fails_is_left_out(tmp_path: Path) -> None:
    until = tmp_path / "repaired"
    settings = corridor(actors=1, env={"id": "tests.loops.test_roles:TestFragile-v0", "kwargs": {"until": str(until)}})
    until.touch()
    plan, _ = prepared(tmp_path, settings)
    evaluator = assembly.build_evaluator(plan)
    until.unlink()
    for call in ("reset", "made"):  # what it has fails; then it cannot be recreated either
        report = evaluator.run(4)
        assert report is not None and not report.returns
        assert call in report.notes[0] and f"({__file__}:" in report.notes[0]
    until.touch()
    report = evaluator.run(4)
    assert report is not None and len(report.returns) == 4


class Fragile(Corridor):
    """Can neither be made nor reset while the file `until` is not there."""

    def __init__(self, until: str) -> None:
        super().__init__()
        self._until = Path(until)
        assert self._until.exists()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        assert self._until.exists()
        return super().reset(seed=seed, options=options)


if "TestFragile-v0" not in gymnasium.registry:
    gymnasium.register("TestFragile-v0", Fragile, max_episode_steps=20)
