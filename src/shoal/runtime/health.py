"""HealthWatch: reads a run's metrics and says in one line what keeps it from learning, and what may help.

Pure: from lines of metrics to sentences. Something is said when it was so for a while (`health.patience`), once, and
once more if it came back after it was gone. Start-up does not count, and neither does what a policy that has learned
may do, such as acting without doubt or an evaluation that stays at its best. The thresholds are in docs/metrics.md.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from shoal.loops.health import Layer
from shoal.loops.settings import RunSettings
from shoal.types import EnvSpec

REPORTS = 5
"""Lines in a row on which it must be so."""
SAID = 2
"""How often one thing is said at most."""
DEAD_UNITS, DEAD_FILTERS = 0.9, 0.75
"""Shares of a layer. A wide one can do without many of its units, and half of them die in runs that learn well."""
ENTROPY_LOW, ENTROPY_HIGH = 0.01, 0.97
"""Shares of the largest entropy."""
EXPLAINED = 0.02
"""Share of the targets' variance that values explain at least."""
SLOW, SLOW_IMAGES = 5.0, 25.0
"""Times `health.patience`: policies stay undecided, and values ignorant, for long and learn; from images longer."""
EVALUATION, EVALUATION_IMAGES = 2.5, 100.0
"""The same for evaluations: Pong takes a million steps to its first points."""
NO_REWARD_IMAGES = 10.0
"""The same for the first reward."""
CHANCE = 5.0
"""Deviations of a mean that a lucky evaluation may have."""
LOST = 0.25
"""What was learned is lost when an evaluation has only this share of the best one's lead over the first episodes."""
DIVERGED = 10.0
"""Times the largest possible return."""
REJECTED = 0.05
"""LASER uses less than this share of the steps."""
FEW_BATCHES, FEW_SHARE = 2.0, 0.01
"""Draws are concentrated when they are as varied as this many batches would be, and as this share of the replay."""
FIRST_EPISODES = 20
"""A run starts from the mean return of so many episodes; of three per lane, if that is more: short ones end first."""
MARGIN = 0.1
"""A return has improved if it is better than the first by this share of it."""
BAND, BAND_OF_RANGE = 0.1, 0.01
"""Evaluations are the same if they differ by less than this share of them, or of the range that was seen."""


class _Finding(NamedTuple):
    """What one check says of one line."""

    name: str
    ill: bool
    what: str = ""
    """What is wrong; the step since when follows it."""
    remedy: str = ""
    patience: float = 1.0
    """Times `health.patience`."""


@dataclass
class _Course:
    """Of one illness."""

    since: int = 0
    reports: int = 0
    said: int = 0
    complaint: str = ""
    """What is wrong now; empty: nothing, or not for long enough."""


class HealthWatch:
    """Judges the lines of one run."""

    def __init__(self, settings: RunSettings, spec: EnvSpec) -> None:
        self._settings, self._spec, self._config = settings, spec, settings.algorithm
        self._largest_entropy = sum(math.log(choices) for choices in spec.action_nvec or (max(1, spec.num_actions),))
        self._images = spec.sees_images
        self._courses: dict[str, _Course] = {}
        self._first: list[float] = []
        self._first_return: float | None = None
        self._spread = math.inf
        """Of the first episodes' returns: a shift of all returns must not hide what was learned."""
        self._evaluations: list[float] = []
        self._learned = -math.inf
        """The best evaluation that was no accident."""
        self._training = -math.inf
        """Mean return of the newest episodes of training."""
        self._still: float | None = None
        """The evaluation that those after it do not differ from."""
        self._longest = 0.0
        """Mean episode, the longest so far."""
        self._rewarded = False
        """Whether any step of training had a reward."""

    @property
    def complaints(self) -> tuple[str, ...]:
        """All that is wrong now."""
        return tuple(course.complaint for course in self._courses.values() if course.complaint)

    def recall(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Takes in what earlier executions wrote; says nothing."""
        for line in lines:
            if (known := line.get("rollout/ep_rew_mean")) is not None and self._first_return is None:
                self._first_return = known
            self.judge(int(line["step"]), {name: value for name, value in line.items() if value is not None})

    def begin(self, returns: Iterable[float]) -> None:
        """Takes in the returns of the actors' episodes, of which it needs the first few."""
        if self._first_return is None:
            self._first.extend(returns)
            if len(self._first) >= max(FIRST_EPISODES, 3 * self._settings.actors * self._settings.env.lanes):
                self._first_return, self._spread = statistics.fmean(self._first), statistics.pstdev(self._first)

    def judge(self, step: int, values: Mapping[str, float], layers: Sequence[Layer] = ()) -> list[str]:
        """Takes in one line of metrics; returns what is to be said now."""
        if not self._settings.health.enabled:
            return []
        said = []
        for finding in self._examine(values, layers):
            course = self._courses.setdefault(finding.name, _Course())
            if not finding.ill:
                course.reports, course.complaint = 0, ""
                continue
            course.since = course.since if course.reports else step
            course.reports += 1
            if course.reports < REPORTS or step - course.since < finding.patience * self._settings.health.patience:
                continue
            new = not course.complaint and course.said < SAID
            course.complaint = f"health: {finding.what} since step {course.since:,}: {finding.remedy}."
            if new:
                course.said += 1
                said.append(course.complaint)
        return said

    def _examine(self, values: Mapping[str, float], layers: Sequence[Layer]) -> Iterator[_Finding]:
        rewards = (self._first_return, values.get("rollout/ep_rew_mean"), values.get("health/largest_reward"))
        self._rewarded = self._rewarded or any(rewards)
        if "eval/mean_reward" in values:
            yield from self._evaluation(values["eval/mean_reward"], values.get("eval/std_reward", 0.0))
        if "rollout/ep_rew_mean" in values:
            yield self._no_reward()
        self._training = values.get("rollout/ep_rew_mean", self._training)
        self._longest = max(self._longest, values.get("rollout/ep_len_mean", 0.0))
        if "health/dead_units" in values:
            yield self._dead(values["health/dead_units"], layers)
        if "train/entropy" in values and self._largest_entropy > 0:
            yield from self._entropy(values)
        if "train/explained_variance" in values:
            found = values["train/explained_variance"]
            what = f"the value network predicts returns no better than a constant (explained variance {found:.2f})"
            remedy = f"raise {self._names('value_cost')} or lower {self._names('learning_rate')}"
            yield _Finding("value", found < EXPLAINED and self._stuck(values), what, remedy, self._slow)
        for name in ("train/q_mean", "train/value_mean"):
            if name in values and "health/largest_reward" in values:
                yield self._divergence(name, values)
        if "health/effective_rows" in values:
            yield self._priorities(values["health/effective_rows"], values.get("replay/rows", 0.0))
        if "train/laser_used" in values:
            used = values["train/laser_used"]
            what = f"LASER has used only {used:.1%} of the steps"
            remedy = f"raise {self._names('laser.threshold')}, lower {self._names('learning_rate')}, or replay "
            remedy += "younger sequences (`capacity` of the selector in replay.selectors)"
            yield _Finding("laser", used < REJECTED, what, remedy)

    # ---- checks

    def _dead(self, share: float, layers: Sequence[Layer]) -> _Finding:
        what, rate, ill = f"{share:.0%} of the units of a layer have been dead", "learning_rate", share >= DEAD_UNITS
        if layers:
            worst = max(layers, key=lambda one: one.share / (DEAD_FILTERS if one.filters else DEAD_UNITS))
            ill = worst.share >= (DEAD_FILTERS if worst.filters else DEAD_UNITS)
            units = "filters" if worst.filters else "units"
            what = f"{worst.dead} of {worst.size} {units} in layer {worst.number} of the {worst.network} have been dead"
            if worst.network == "policy" and hasattr(self._config, "policy_learning_rate"):
                rate = "policy_learning_rate"
        remedies = [f"lower {self._names(rate)}"]
        if getattr(self._config, "center_images", True) is False and self._images:
            remedies.append("set algorithm.center_images=true")
        if getattr(self._config, "optimizer", "") == "adam":
            remedies.append("set algorithm.optimizer=rmsprop with algorithm.optimizer_epsilon=0.01")
        return _Finding("dead", ill, what, f"they learn no more; in a new run, {' or '.join(remedies)}")

    def _entropy(self, values: Mapping[str, float]) -> Iterator[_Finding]:
        """The metric counts 0 where LASER has rejected a step."""
        used = values.get("train/laser_used", 1.0)
        share = values["train/entropy"] / self._largest_entropy / used if used > 0 else math.nan
        stuck = self._stuck(values)
        result = f"while returns are no better than at the start ({self._first_return or 0.0:.1f})"
        what = f"the policy has been certain of its actions (entropy {share:.1%} of the largest) {result}"
        remedy = f"raise {self._names('entropy_cost')} or lower {self._names('learning_rate')}"
        yield _Finding("collapse", share < ENTROPY_LOW and stuck, what, remedy)
        what = f"the policy has chosen nearly at random (entropy {share:.1%} of the largest) {result}"
        remedy = f"lower {self._names('entropy_cost')} or change {self._names('learning_rate')}"
        yield _Finding("uniform", share > ENTROPY_HIGH and stuck, what, remedy, self._slow)

    def _divergence(self, name: str, values: Mapping[str, float]) -> _Finding:
        config = self._config
        n = getattr(config, "n_step", 1)
        horizon = self._longest / n + 1.0 if self._longest else math.inf
        if config.gamma < 1:
            horizon = min(horizon, 1.0 / (1.0 - config.gamma**n))
        reward = values["health/largest_reward"] * getattr(config, "reward_scale", 1.0)
        reward += n * abs(values.get("train/temperature", 0.0) * values.get("train/entropy", 0.0))  # SAC's soft values
        bound = max(1.0, reward * horizon)
        mean = values[name]
        what = f"values have been beyond what rewards allow ({name} is {mean:.3g}, {bound:.3g} is possible)"
        slower = [f"raise {self._names('target_period')}"] if hasattr(config, "target_period") else []
        if hasattr(config, "tau"):
            slower = [f"lower {self._names('tau')}"]
        remedy = ", ".join([f"lower {self._names('learning_rate')}", *slower, f"or lower {self._names('gamma')}"])
        return _Finding("divergence", abs(mean) > DIVERGED * bound, what, f"in a new run, {remedy}")

    def _priorities(self, effective: float, rows: float) -> _Finding:
        selectors = self._settings.replay.selectors
        index = next((number for number, one in enumerate(selectors) if one.type == "prioritized"), 0)
        batch = self._settings.most_draws
        few = effective < min(FEW_BATCHES * batch, FEW_SHARE * rows)
        what = f"draws by priority have been as varied as {effective:,.0f} of {rows:,.0f} rows would be"
        alpha = getattr(selectors[index], "alpha", 0.0)
        remedy = f"lower replay.selectors.{index}.alpha ({alpha:g}), or use `uniform`; a few rewards may be very large"
        return _Finding("priorities", few, what, remedy)

    def _evaluation(self, mean: float, deviation: float) -> Iterator[_Finding]:
        seen = self._evaluations
        seen.append(mean)
        yield (lost := self._lost(mean, deviation))
        band = max(1e-6, BAND_OF_RANGE * (max(seen) - min(seen)), min(BAND * abs(mean), self._spread))
        if self._still is None or abs(mean - self._still) > band:
            self._still = mean
            yield _Finding("evaluation", False)
        goals = (self._settings.stop.mean_return, self._spec.reward_threshold)
        done = any(goal is not None and mean >= goal for goal in goals)
        better = [
            self._better(mean, seen[0]),
            *(self._better(one, self._first_return) for one in (mean, self._training)),
        ]
        done = done or any(better) or (not self._rewarded and self._training == 0.0)  # that is said already
        remedy = f"check that rewards depend on the actions, explore more ({self._exploration}), or change "
        remedy += self._names("learning_rate")
        patience = EVALUATION_IMAGES if self._images else EVALUATION
        what = f"evaluations have stayed at about {mean:.4g}"
        yield _Finding("evaluation", not (done or lost.ill), what, remedy, patience)

    def _no_reward(self) -> _Finding:
        remedy = f"nothing is learned before the first one: explore more ({self._exploration}), or reward the way there"
        patience = NO_REWARD_IMAGES if self._images else EVALUATION
        return _Finding("reward", not self._rewarded, "no episode of training has had a reward", remedy, patience)

    def _lost(self, mean: float, deviation: float) -> _Finding:
        """A policy that had learned its task, and has forgotten it. One lucky evaluation is not learning."""
        first, judged = self._first_return, self._settings.evaluation.episodes
        begun = self._spread / math.sqrt(len(self._first)) if self._first else 0.0
        if self._better(mean - CHANCE * math.hypot(deviation / math.sqrt(judged), begun), first):
            self._learned = max(self._learned, mean)
        best = self._learned
        ill = first is not None and best > -math.inf and mean < first + LOST * (best - first)
        remedy = "what was learned is lost; `shoal eval` uses the best weights, and in a new run lower "
        remedy += self._names("learning_rate")
        if getattr(self._config, "target_kl", 1.0) is None:
            remedy += " or set algorithm.target_kl=0.02"
        patience = SLOW_IMAGES if self._images else EVALUATION
        return _Finding("lost", ill, f"evaluations have been near {mean:.4g}, after {best:.4g},", remedy, patience)

    # ---- helpers

    @property
    def _exploration(self) -> str:
        return next(hint for name, hint in _EXPLORATION.items() if hasattr(self._config, name))

    @property
    def _slow(self) -> float:
        return SLOW_IMAGES if self._images else SLOW

    def _stuck(self, values: Mapping[str, float]) -> bool:
        """Whether neither training nor evaluation is better than at the run's start."""
        now = [values.get("rollout/ep_rew_mean", -math.inf), *self._evaluations[-1:]]
        return self._first_return is not None and not any(self._better(one, self._first_return) for one in now)

    def _better(self, now: float, first: float | None) -> bool:
        return first is not None and now > first + max(1e-6, min(MARGIN * abs(first), self._spread))

    def _names(self, name: str) -> str:
        """A setting of the algorithm, and its value."""
        value: Any = self._config
        for part in name.split("."):
            value = getattr(value, part)
        return f"algorithm.{name} ({value:g})"


_EXPLORATION = {
    "epsilon_base": "raise algorithm.epsilon_base, lower algorithm.epsilon_exponent",
    "entropy_cost": "raise algorithm.entropy_cost",
    "noise": "raise algorithm.noise or algorithm.noise_correlation",
    "noise_max": "raise algorithm.noise_max or algorithm.noise_correlation",
    "target_entropy": "raise algorithm.target_entropy",
    "gamma": "see its settings",
}
"""By a setting that tells how an algorithm explores."""
