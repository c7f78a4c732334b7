"""Trains on CartPole until it is solved, then evaluates the result.

python examples/train_cartpole.py             two actors, one process each
python examples/train_cartpole.py inline      one process, the same result every time
"""

from __future__ import annotations

import sys

import shoal


def main(runtime: str = "ray", steps: int = 200_000, out: str = "runs") -> shoal.Run:
    """Trains, evaluates and prints the result."""
    run = shoal.train(
        "CartPole-v1",
        algo="apex-dqn",
        actors=2,
        steps=steps,
        stop_return=475,
        runtime=runtime,
        out=out,
        settings={
            "algorithm.learning_rate": 1e-3,
            "algorithm.target_period": 150,
            "learner.batch_size": 128,
            "replay.capacity": 50_000,
            "replay.min_size": 1_000,
            "replay.samples_per_insert": 16,
            "evaluation.every_steps": 1_000,
        },
    )
    evaluation = run.evaluate(episodes=20)
    print(f"{run.summary.status}: {evaluation.mean:.1f} ± {evaluation.std:.1f} over 20 episodes, in {run.path}")
    return run


if __name__ == "__main__":
    main(*sys.argv[1:2])
