"""Ways to damage a file, and what of a replay can be damaged."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np

from shoal.replay import Header, LedgerWord
from shoal.replay.counters import WORDS

Damage = Callable[[Path], None]


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def scramble(path: Path) -> None:
    path.write_bytes(np.random.default_rng(7).bytes(path.stat().st_size))


def as_folder(path: Path) -> None:
    path.unlink()
    (path / "inside").mkdir(parents=True)


def as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def not_utf8(path: Path) -> None:
    path.write_bytes(b'{"path": "\xff\xfe\x00"}\n' * 3)


def nested(path: Path) -> None:
    path.write_text("[" * 100_000 + "\n")


def another_kind(path: Path) -> None:
    path.write_text("[1, 2]\n")


def words(**values: int) -> Damage:
    """Writes some words of a file of counters: a `Header`'s or `LedgerWord`'s by name, any by `w` and its number."""

    def damage(path: Path) -> None:
        names = Header if path.name == "header.bin" else LedgerWord
        with open(path, "r+b") as file:
            for name, value in values.items():
                file.seek(8 * (int(name[1:]) if name[1:].isdigit() else names[name]))
                file.write(struct.pack("=Q", value))

    damage.__name__ = ",".join(f"{name}={value:.1e}" for name, value in values.items())
    return damage


def name_of(value: object) -> str:
    """For pytest's ids."""
    return getattr(value, "__name__", str(value))


SHARD: list[tuple[str, Damage]] = [
    ("shard_000", remove),
    ("shard_000/header.bin", remove),
    ("shard_000/header.bin", empty),
    ("shard_000/header.bin", cut),
    ("shard_000/header.bin", scramble),
    ("shard_000/header.bin", as_folder),
    ("shard_000/header.bin", as_pipe),
    ("shard_000/header.bin", words(HEAD=2**63 + 5, CLAIM=2**63 + 5)),
    ("shard_000/header.bin", words(HEAD=2**64 - 1, CLAIM=2**64 - 1)),
    ("shard_000/header.bin", words(HEAD=0)),
    ("shard_000/header.bin", words(STEPS=6 * 10**18)),
    ("shard_000/header.bin", words(STEPS=10**9)),
    ("shard_000/header.bin", words(EPISODES=6 * 10**18)),
    ("shard_000/header.bin", words(EPOCH=2**64 - 1)),
    ("shard_000/header.bin", words(CURSOR=10**9)),
    ("shard_000/schema.json", remove),
    ("shard_000/schema.json", empty),
    ("shard_000/schema.json", cut),
    ("shard_000/schema.json", scramble),
    ("shard_000/schema.json", nested),
    ("shard_000/schema.json", another_kind),
    ("shard_000/schema.json", as_folder),
    ("shard_000/obs.bin", remove),
    ("shard_000/obs.bin", cut),
    ("shard_000/obs.bin", as_folder),
    ("shard_000/obs.bin", as_pipe),
    ("shard_000/obs.bin", scramble),
    ("shard_000/reward.bin", scramble),
    ("shard_000/action.bin", scramble),
    ("shard_000/boundary.bin", scramble),
]
LEDGER: list[tuple[str, Damage]] = [
    ("ledger.bin", remove),
    ("ledger.bin", empty),
    ("ledger.bin", cut),
    ("ledger.bin", scramble),
    ("ledger.bin", as_folder),
    ("ledger.bin", words(BASE_STEPS=6 * 10**18)),
    ("ledger.bin", words(BASE_STEPS=10**9)),
    ("ledger.bin", words(BASE_EPISODES=10**9)),
    ("ledger.bin", words(SEEN_STEPS=10**9)),
    ("ledger.bin", words(SAMPLES=2**63)),
    ("ledger.bin", words(UPDATES=2**64 - 1)),
    ("ledger.bin", words(STOP=9)),
    ("ledger.bin", words(**{f"w{WORDS - 1}": 1})),
]
BOARD: list[tuple[str, Damage]] = [
    ("weights.bin", remove),
    ("weights.bin", empty),
    ("weights.bin", cut),
    ("weights.bin", as_folder),
    ("weights.bin", scramble),
    ("weights.words", remove),
    ("weights.words", cut),
    ("weights.words", scramble),
    ("weights.words", as_folder),
    ("weights.words", words(w0=2**64 - 1, w1=2**64 - 1)),
    ("weights.words", words(w0=2**40, w1=7)),
    ("weights.words", words(w0=3, w1=7)),
]
DOCUMENT: list[Damage] = [empty, cut, scramble, as_folder, as_pipe, not_utf8, nested, another_kind]
