"""Checks of arguments, shared by the functions of `ops/`.

Broadcasting is the classic silent bug of value learning: `[B] - [B, 1]` is a legal `[B, B]`. So every function states
the axes of its arguments, and an axis letter has one size within one call.
"""

from __future__ import annotations

import torch
from torch import Tensor


def check_axes(**tensors: tuple[Tensor, str]) -> None:
    """Refuses tensors of a wrong rank or size.

    Args:
        **tensors: name=(tensor, axes), one letter per axis, e.g. `q_t=(q_t, "BA")`. Equal letters mean equal sizes.

    Raises:
        ValueError: a rank or a size differs; the message names the argument, its shape and what was expected.
    """
    sizes: dict[str, int] = {}
    for name, (tensor, axes) in tensors.items():
        shape = tensor.shape
        if len(shape) != len(axes):
            raise ValueError(f"{name} must be {_written(axes)} (rank {len(axes)}), got shape {tuple(shape)}.")
        for axis, size in zip(axes, shape, strict=True):
            if sizes.setdefault(axis, size) != size:
                expected = f"{_written(axes)} with {axis} = {sizes[axis]}"
                raise ValueError(f"{name} must be {expected}, got shape {tuple(shape)}.")


def check_floats(**tensors: tuple[Tensor, str]) -> None:
    """`check_axes` and `check_floating` of the same tensors."""
    check_axes(**tensors)
    check_floating(**{name: tensor for name, (tensor, _) in tensors.items()})


def _written(axes: str) -> str:
    return f"[{', '.join(axes)}]"


def check_floating(**tensors: Tensor) -> None:
    """Refuses tensors that are not floating point.

    Raises:
        TypeError: the message names the argument, its dtype and shape.
    """
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise TypeError(f"{name} must be floating point, got {tensor.dtype} of shape {tuple(tensor.shape)}.")


def check_integer(**tensors: Tensor) -> None:
    """Refuses tensors that are not integers (bool is refused too: it would index as a mask).

    Raises:
        TypeError: the message names the argument, its dtype and shape.
    """
    for name, tensor in tensors.items():
        dtype = tensor.dtype
        if dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
            raise TypeError(f"{name} must be of an integer dtype, got {dtype} of shape {tuple(tensor.shape)}.")


def check_bool(**tensors: Tensor) -> None:
    """Refuses tensors that are not bool.

    Raises:
        TypeError: the message names the argument, its dtype and shape.
    """
    for name, tensor in tensors.items():
        if tensor.dtype != torch.bool:
            raise TypeError(f"{name} must be bool, got {tensor.dtype} of shape {tuple(tensor.shape)}.")
