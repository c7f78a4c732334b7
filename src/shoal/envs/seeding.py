"""Seeds for lanes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def lane_seeds(seed: int, lanes: int) -> npt.NDArray[np.int64]:
    """One positive 31-bit seed per lane: far apart for neighbouring `seed`, so actors 0 and 1 share no lane."""
    words = np.random.SeedSequence(seed).generate_state(lanes, np.uint32)
    return (words & 0x7FFFFFFE).astype(np.int64) + 1
