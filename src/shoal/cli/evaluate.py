"""`shoal eval`: how good the weights of a run are, in numbers and in a video."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.output import RunPath, relative
from shoal.errors import ConfigError

if TYPE_CHECKING:
    from shoal.api import Evaluation, Run


def evaluate(
    run: RunPath,
    episodes: Annotated[int, typer.Option("--episodes", "-n", min=1, metavar="N", help="Episodes to play.")] = 100,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, metavar="N", help="Seed of the episodes; by default the run's.")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", metavar="best|last", help="Whose weights; by default the best.")
    ] = None,
    video: Annotated[bool, typer.Option("--video", help="Also record one episode into RUN/videos.")] = False,
) -> None:
    """Play greedy episodes with what a run has learned.

    The true task is played: rewards are not clipped and lost lives do not end an episode. A run that is still training
    can be evaluated, too.

    \b
    Examples:
      shoal eval runs/latest
      shoal eval runs/latest --episodes 20 --checkpoint last
      shoal eval runs/latest --episodes 5 --video
    """
    from shoal.api import load

    loaded = load(run, checkpoint=checkpoint)  # type: ignore[arg-type]
    recording = _Recording(loaded, seed) if video else None  # before the episodes: it may turn out to be impossible
    _print(loaded, loaded.evaluate(episodes, seed=seed))
    if recording is not None:
        file, total, length = recording.play()
        typer.echo(f"\nVideo (return {total:.1f}, {length} steps): {relative(file)}")


def _print(run: Run, evaluation: Evaluation) -> None:
    what = f"{len(evaluation.returns)} greedy episodes with {evaluation.checkpoint}"
    typer.echo(f"{run.settings.algo} on {run.settings.env.id}: {what}\n")
    typer.echo(f"{'':<8}{'mean':>10}{'std':>10}{'min':>10}{'max':>10}")
    for name, values in (("return", evaluation.returns), ("length", evaluation.lengths)):
        typer.echo(f"{name:<8}" + "".join(f"{number:>10.2f}" for number in _four(values)))


def _four(values: Any) -> tuple[float, float, float, float]:
    import numpy as np

    return float(np.mean(values)), float(np.std(values)), float(np.min(values)), float(np.max(values))


class _Recording:
    """One episode as a video file."""

    def __init__(self, run: Run, seed: int | None) -> None:
        """Makes the environment; raises ConfigError when it cannot be shown or no video can be written."""
        import importlib.util
        import os
        import sys

        from shoal.envs import make_render_env

        if importlib.util.find_spec("moviepy") is None:
            raise ConfigError("A video needs the package 'moviepy': run `pip install moviepy`, or leave out --video.")
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pictures, not windows
        if sys.platform == "linux" and not os.environ.get("DISPLAY"):
            os.environ.setdefault("MUJOCO_GL", "egl")  # MuJoCo would look for a screen
        self._env = make_render_env(run.settings.env)
        self._run, self._seed = run, run.settings.seed if seed is None else seed

    def play(self) -> tuple[Path, float, int]:
        """Returns the file, and the return and length of the episode in it."""
        import warnings

        import numpy as np
        from gymnasium.wrappers import RecordVideo

        folder = self._run.folder.videos
        folder.mkdir(exist_ok=True)
        name = f"{self._run.checkpoint.stem}_seed{self._seed}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the folder holds other videos
            env = RecordVideo(
                self._env, str(folder), episode_trigger=lambda _: True, name_prefix=name, disable_logger=True
            )
        policy = self._run.make_policy()
        state, total, length, ended = policy.initial_state(1), 0.0, 0, False
        try:
            obs, _ = env.reset(seed=self._seed)
            while not ended:
                decision = policy.act(np.asarray(obs)[None], state, np.array([length == 0]), explore=False)
                obs, reward, terminated, truncated, _ = env.step(decision.action[0])
                state, total, length, ended = decision.state, total + float(reward), length + 1, terminated or truncated
        finally:
            env.close()  # type: ignore[no-untyped-call]  # writes the file
        return folder / f"{name}-episode-0.mp4", total, length
