"""Draws a world of path finding, as a picture or as text, so that one can follow who goes where."""

from __future__ import annotations

import colorsys
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from shoal.types import Array

TRAIL = 32
"""Newest places of each agent that a picture shows."""
_PICTURE = 640
_PAPER, _LINES, _ROCK = (250, 249, 245), (236, 234, 227), (58, 63, 75)

Point = npt.NDArray[np.float64]


def draw_text(obstacles: Array, places: Array, goals: Array) -> str:
    """`#` an obstacle, `A` the first agent, `a` its goal, `*` an agent on its goal; letters come again after Z.

    Args:
        obstacles: [S, S].
        places, goals: (row, column), [A, 2].
    """
    text = np.where(obstacles, "#", ".")
    for agent, (place, goal) in enumerate(zip(places, goals, strict=True)):
        letter = chr(ord("A") + agent % 26)
        if text[tuple(goal)] == ".":  # an agent that passes is shown, not the goal below it
            text[tuple(goal)] = letter.lower()
        text[tuple(place)] = "*" if (place == goal).all() else letter
    return "\n".join(" ".join(row) for row in text)


def draw_picture(obstacles: Array, trail: Array, goals: Array) -> Array:
    """Discs for agents, squares of the same colour for their goals, and the way each came; about 640 pixels wide.

    Args:
        obstacles: [S, S].
        trail: the newest places of every agent, the present ones last: (row, column), [T, A, 2].
        goals: [A, 2].

    Returns:
        A picture [H, H, 3] of bytes.
    """
    size = len(obstacles)
    pixels = max(8, _PICTURE // size // 2 * 2)  # per cell; even, as video formats want it
    blocks = obstacles.repeat(pixels, axis=0).repeat(pixels, axis=1).astype(bool)
    picture = np.empty((size * pixels, size * pixels, 3), np.float32)
    picture[:] = _PAPER
    picture[::pixels], picture[:, ::pixels] = _LINES, _LINES
    picture[blocks] = _ROCK
    points, ends = trail * pixels + pixels // 2, goals * pixels + pixels // 2
    colours = [_colour(agent) for agent in range(len(goals))]
    for colour, end, way in zip(colours, ends, points.swapaxes(0, 1), strict=True):
        _square(picture, end, 0.36 * pixels, max(1.5, 0.13 * pixels), colour)
        _way(picture, way, max(1, pixels // 8), colour)
    for colour, end, place in zip(colours, ends, points[-1], strict=True):
        _disc(picture, place, 0.36 * pixels, np.full(3, 255.0))
        _disc(picture, place, 0.29 * pixels, colour)
        if (end == place).all():
            _square(picture, end, 0.42 * pixels, max(1.5, 0.13 * pixels), colour)
    return picture.round().astype(np.uint8)


def _colour(agent: int) -> Point:
    """Neighbouring numbers get hues far apart; every third agent is lighter, every third darker."""
    hue, turn = (0.58 + agent * 0.618034) % 1.0, agent % 3
    return np.array(colorsys.hls_to_rgb(hue, (0.48, 0.62, 0.36)[turn], (0.75, 0.85, 0.7)[turn])) * 255.0


def _around(picture: Array, low: Point, high: Point) -> tuple[Array, Array]:
    """The part of a picture between two points, and the middle of each of its pixels [H, W, 2]."""
    first = np.maximum(np.floor(low), 0).astype(int)
    last = np.minimum(np.ceil(high), picture.shape[:2]).astype(int)
    rows, columns = np.mgrid[first[0] : last[0], first[1] : last[1]] + 0.5
    return picture[first[0] : last[0], first[1] : last[1]], np.stack([rows, columns], -1)


def _blend(part: Array, share: Array, colour: Point) -> None:
    part += share[..., None] * (colour - part)


def _disc(picture: Array, centre: Point, radius: float, colour: Point) -> None:
    part, at = _around(picture, centre - radius - 1, centre + radius + 1)
    _blend(part, np.clip(radius + 0.5 - np.linalg.norm(at - centre, axis=-1), 0, 1), colour)


def _square(picture: Array, centre: Point, half: float, line: float, colour: Point) -> None:
    part, at = _around(picture, centre - half - 1, centre + half + 1)
    outwards = np.abs(at - centre).max(axis=-1)
    rim = np.clip(half + 0.5 - outwards, 0, 1) * np.clip(outwards - half + line + 0.5, 0, 1)
    _blend(part, np.maximum(rim, 0.18 * (outwards < half - line)), colour)


def _way(picture: Array, way: Array, half: int, colour: Point) -> None:
    """A line along the places [T, 2], which fades towards the oldest. It has no slopes: every step is a rectangle."""
    first, last = way.min(axis=0) - half, way.max(axis=0) + half
    part = picture[first[0] : last[0], first[1] : last[1]]
    share = np.zeros(part.shape[:2], np.float32)
    for age, step in enumerate(pairwise(way - first), TRAIL - len(way) + 1):
        low, high = np.minimum(*step) - half, np.maximum(*step) + half
        strip = share[low[0] : high[0], low[1] : high[1]]
        np.maximum(strip, 0.75 * age / TRAIL, out=strip)
    _blend(part, share, colour)
