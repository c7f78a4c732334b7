"""`shoal eval`: plays episodes with the weights of a run, and shows numbers, a window or a video."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.output import RunPath, Trust, relative
from shoal.errors import ConfigError, EnvError

if TYPE_CHECKING:
    from shoal.algorithms.interface import Policy
    from shoal.api import Evaluation, Run


def evaluate(
    run: RunPath,
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            show_default=False,
            help="Settings of the environment and of evaluation, as env.kwargs.size=40.",
        ),
    ] = None,
    episodes: Annotated[int, typer.Option("--episodes", "-n", min=1, metavar="N", help="Episodes to play.")] = 100,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, metavar="N", help="Seed of the episodes; by default the run's.")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", metavar="best|last", help="Whose weights; by default the best.")
    ] = None,
    video: Annotated[bool, typer.Option("--video", help="Also record one episode into RUN/videos.")] = False,
    render: Annotated[
        bool, typer.Option("--render", help="Show the episodes in a window while they are played, one by one.")
    ] = False,
    trust: Trust = False,
) -> None:
    """Play episodes with what a run has learned, without exploration.

    The true task is played: rewards are not clipped and lost lives do not end an episode; with env.episodic_life, FIRE
    is played after one, as in training. A run that is still training can be evaluated, too.

    \b
    Examples:
      shoal eval runs/latest
      shoal eval runs/latest --episodes 20 --checkpoint last
      shoal eval runs/latest --episodes 5 --video
      shoal eval runs/latest --episodes 3 --render
      shoal eval runs/latest env.kwargs.size=40
    """
    if render and video:
        raise ConfigError("--render and --video cannot be used together: a window and a file need two runs of eval.")
    if render:
        require_display(os.environ, sys.platform)
    from shoal.api import load

    loaded = load(run, checkpoint=checkpoint, trust=trust, overrides=settings or ())  # type: ignore[arg-type]
    for damaged in loaded.skipped:
        typer.echo(f"{damaged}: {loaded.checkpoint.name} is used instead", err=True)
    first_seed = loaded.settings.seed if seed is None else seed
    if render:
        _print(loaded, _show(loaded, episodes, first_seed))
        return
    env = _make_video_env(loaded) if video else None  # before the episodes: it may turn out to be impossible
    _print(loaded, loaded.evaluate(episodes, seed=seed))
    if env is not None:
        _record(loaded, env, first_seed)


def _print(run: Run, evaluation: Evaluation) -> None:
    import numpy as np

    from shoal.loops.evaluator import bound_note
    from shoal.runtime.progress import number

    count = len(evaluation.returns)
    what = f"{count} episode{'s' * (count != 1)} without exploration, with {evaluation.checkpoint}"
    typer.echo(f"{run.settings.algo} on {run.settings.env.id}: {what}\n")
    typer.echo(f"{'':<8}{'mean':>12}{'std':>12}{'min':>12}{'max':>12}")
    for name, values in (("return", evaluation.returns), ("length", evaluation.lengths)):
        found = np.mean(values), np.std(values), np.min(values), np.max(values)
        typer.echo(f"{name:<8}" + "".join(f"{number(float(value)):>12}" for value in found))
    for name, mean in evaluation.metrics.items():
        typer.echo(f"{name.replace('_', ' '):<16}{mean:>4.2f}")
    if note := bound_note(evaluation.lengths, run.settings.evaluation_bound):
        typer.echo(f"\n{note}")


def require_display(environment: Mapping[str, str], platform: str) -> None:
    """Raises ConfigError where there is no display for a window.

    Args:
        environment: the environment variables. With SDL_VIDEODRIVER the user has said where windows go.
        platform: as `sys.platform`; only X11 and Wayland name their display in a variable.
    """
    named = any(environment.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"))
    if not named and platform.startswith("linux"):
        raise ConfigError(
            "--render needs a display, and this machine has none (neither DISPLAY nor WAYLAND_DISPLAY is set): "
            "use --video, which records an episode into a file."
        )


def _show(run: Run, episodes: int, seed: int) -> Evaluation:
    """Plays episodes in a window, one after the other, and prints a line for each."""
    from shoal.api import Evaluation
    from shoal.envs import make_render_env

    try:
        env = make_render_env(run.env_settings, "human")
    except EnvError as error:
        raise ConfigError(f"No window could be opened. {error} Use --video to record an episode instead.") from error
    if _nobody_sees():
        env.close()
        raise ConfigError("No window could be opened: the display does not answer. Use --video to record an episode.")
    policy = run.make_policy()
    returns, lengths = [], []
    try:
        for number in range(1, episodes + 1):
            total, length = _play(env, policy, seed if number == 1 else None)
            typer.echo(f"episode {number}: return {total:.1f}, {length} steps")
            returns.append(total)
            lengths.append(length)
    finally:
        env.close()
    typer.echo()
    return Evaluation(tuple(returns), tuple(lengths), run.checkpoint.name)


def _nobody_sees() -> bool:
    """Whether SDL found no display and draws into memory instead, although nobody asked for that."""
    pygame = sys.modules.get("pygame")
    if pygame is None or os.environ.get("SDL_VIDEODRIVER") or not pygame.display.get_init():
        return False
    return pygame.display.get_driver() in ("dummy", "offscreen")


def _play(env: Any, policy: Policy, seed: int | None) -> tuple[float, int]:
    """One episode; its return and length."""
    import numpy as np

    obs, _ = env.reset(seed=seed)
    state, total, length, ended = policy.initial_state(1), 0.0, 0, False
    while not ended:
        decision = policy.act(np.asarray(obs)[None], state, np.array([length == 0]), explore=False)
        obs, reward, terminated, truncated, _ = env.step(decision.action[0])
        state, total, length, ended = decision.state, total + float(reward), length + 1, terminated or truncated
    return total, length


def _make_video_env(run: Run) -> Any:
    """Raises ConfigError when the environment cannot be rendered or no video can be written."""
    import importlib.util

    from shoal.envs import make_render_env

    if importlib.util.find_spec("moviepy") is None:
        raise ConfigError("A video needs the package 'moviepy': run `pip install moviepy`, or leave out --video.")
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pictures, not windows
    if sys.platform == "linux" and not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")  # MuJoCo would look for a screen
    return make_render_env(run.env_settings)


def _record(run: Run, env: Any, seed: int) -> None:
    """Plays one episode, writes it into a video file, and prints where."""
    import warnings

    from gymnasium.wrappers import RecordVideo

    from shoal.files import refuse_link

    folder = run.folder.videos
    refuse_link(folder)
    folder.mkdir(exist_ok=True)
    name = f"{run.checkpoint.stem}_seed{seed}"
    file = folder / f"{name}-episode-0.mp4"
    file.unlink(missing_ok=True)  # it may be a link, and the recorder would write through it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the folder holds other videos
        env = RecordVideo(env, str(folder), episode_trigger=lambda _: True, name_prefix=name, disable_logger=True)
    try:
        total, length = _play(env, run.make_policy(), seed)
    finally:
        env.close()  # writes the file
    typer.echo(f"\nVideo (return {total:.1f}, {length} steps): {relative(file)}")
