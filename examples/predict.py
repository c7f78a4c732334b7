"""Uses a trained policy in your own loop.

python examples/predict.py runs/latest
"""

from __future__ import annotations

import sys

import shoal


def main(path: str = "runs/latest") -> float:
    """Plays one episode with the run's best weights and returns the episode's return."""
    run = shoal.load(path)
    env = run.make_env()  # with the run's env.kwargs and time limit
    obs, _ = env.reset(seed=0)
    state, total, ended = None, 0.0, False
    while not ended:
        action, state = run.predict(obs, state)  # the state of an LSTM; None without one
        obs, reward, terminated, truncated, _ = env.step(action)
        total, ended = total + float(reward), terminated or truncated
    env.close()
    print(f"return {total:g}")
    return total


if __name__ == "__main__":
    main(*sys.argv[1:2])
