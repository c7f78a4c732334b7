"""Ledger: counters of a run that belong to no shard: how much was sampled, how often was updated, whether to stop."""

from __future__ import annotations

import time
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path

from shoal.errors import CorruptShard
from shoal.replay.counters import LARGEST_COUNT, Counters
from shoal.replay.shard_files import Header


class LedgerWord(IntEnum):
    """The words of `ledger.bin`, and who writes them."""

    SAMPLES = 0
    """Rows drawn by the learner (learner)."""
    UPDATES = 1
    """Learner updates (learner)."""
    STOP = 2
    """RUN, or one of the two ways to stop (driver)."""
    HEARTBEAT = 3
    """Time of the driver's last heartbeat, in ns (driver)."""
    BASE_STEPS = 4
    """Environment steps of earlier shards that are gone (driver)."""
    BASE_EPISODES = 5
    BASE_UPDATES = 6
    SEEN_STEPS = 7
    """Environment steps of the run at the driver's last heartbeat: they stay counted if a shard is lost (driver)."""
    SEEN_EPISODES = 8
    GRANT = 9
    """Inserts up to which no actor waits, because the learner has too little to draw a batch from (learner)."""
    RESUMED = 10
    """How often the run was resumed: part of every seed (driver)."""
    LEARNERS = 11
    """Learners started before (learner)."""
    EVALUATED = 12
    """Vector steps of evaluation, ever: a heartbeat (evaluator)."""


RUN, HALT, WIND_DOWN = 0, 1, 2
"""Values of STOP: go on; every role returns at once; training ends but a last evaluation may finish."""
ORPHAN_SECONDS = 60.0
"""A driver silent for so long is dead: its roles stop rather than fill a replay that nobody reads."""
_STEPS, _EPISODES = int(Header.STEPS), int(Header.EPISODES)
"""As plain numbers: actors read them before every step."""


class Ledger:
    """Counts shared by the processes of one run on one machine."""

    def __init__(self, folder: Path, shards: Sequence[Path]) -> None:
        """Args:
        folder: the run's replay folder.
        shards: the shards whose headers count the inserts.
        """
        path = folder / "ledger.bin"
        self._words = Counters(path, writable=True) if path.exists() else Counters.create(path)
        self._headers = [Counters(shard / "header.bin", writable=False).words for shard in shards]

    def check(self) -> None:
        """Raises CorruptShard for words that no run can have left. Call it while no role runs."""
        unused = any(self._words.words[len(LedgerWord) :])
        counts = {entry.name: self[entry] for entry in LedgerWord if entry is not LedgerWord.HEARTBEAT}
        wrong = [name for name, count in counts.items() if count > LARGEST_COUNT]
        if self[LedgerWord.STOP] not in (RUN, HALT, WIND_DOWN):
            wrong.append("STOP")
        # The seen counts include the base, and are written after it.
        wrong += [f"BASE_{what}" for what in ("STEPS", "EPISODES") if counts[f"BASE_{what}"] > counts[f"SEEN_{what}"]]
        if unused or wrong:
            said = f": {', '.join(f'{name} = {counts[name]}' for name in wrong)} cannot be" if wrong else ""
            raise CorruptShard(f"{self._words.path} is damaged{said}.")

    def __getitem__(self, entry: LedgerWord) -> int:
        return self._words[entry]

    def __setitem__(self, entry: LedgerWord, value: int) -> None:
        self._words[entry] = value

    @property
    def words(self) -> list[int]:
        """All entries, in order."""
        return self._words.words[: len(LedgerWord)].tolist()

    def add(self, entry: LedgerWord, amount: int) -> None:
        """Adds to an entry; only its one writer may."""
        self._words.add(entry, amount)

    @property
    def inserts(self) -> int:
        """Environment steps in the shards, ever."""
        return sum([words[_STEPS] for words in self._headers])

    @property
    def env_steps(self) -> int:
        """Environment steps of the run, shards that are gone included."""
        return self.inserts + self[LedgerWord.BASE_STEPS]

    @property
    def episodes(self) -> int:
        """Episodes ended in the run."""
        return sum([words[_EPISODES] for words in self._headers]) + self[LedgerWord.BASE_EPISODES]

    @property
    def updates(self) -> int:
        """Learner updates of the run."""
        return self[LedgerWord.UPDATES] + self[LedgerWord.BASE_UPDATES]

    @property
    def stop(self) -> bool:
        """Whether training must stop: actors and learner return as soon as they can."""
        return self[LedgerWord.STOP] != RUN

    @property
    def halt(self) -> bool:
        """Whether everything must stop, evaluations included."""
        return self[LedgerWord.STOP] == HALT

    def beat(self) -> None:
        """Writes the driver's heartbeat and the counts it sees."""
        self[LedgerWord.HEARTBEAT] = time.time_ns()
        self[LedgerWord.SEEN_STEPS], self[LedgerWord.SEEN_EPISODES] = self.env_steps, self.episodes

    @property
    def orphaned(self) -> bool:
        """Whether the driver is dead."""
        return (time.time_ns() - self[LedgerWord.HEARTBEAT]) / 1e9 > ORPHAN_SECONDS
