"""Uses what a run has learned, in a loop of one's own.

python examples/predict.py runs/latest
"""

from __future__ import annotations

import sys

import gymnasium

import shoal


def main(path: str = "runs/latest") -> float:
    """Plays one episode with the run's best weights; returns its return."""
    run = shoal.load(path)
    env = gymnasium.make(run.settings.env.id)
    obs, _ = env.reset(seed=0)
    total, ended = 0.0, False
    while not ended:
        obs, reward, terminated, truncated, _ = env.step(run.predict(obs))
        total, ended = total + float(reward), terminated or truncated
    env.close()
    print(f"return {total:g}")
    return total


if __name__ == "__main__":
    main(*sys.argv[1:2])
