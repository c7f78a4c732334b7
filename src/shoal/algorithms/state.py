"""Networks and optimisers as flat tensors and plain scalars, and back: what a learner's state is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from shoal.errors import CheckpointError

# Optimiser state that must have its parameter's shape; torch itself only notices at the next update, if at all.
_PARAMETER_SHAPED = frozenset(
    {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "square_avg", "grad_avg", "momentum_buffer", "exp_inf", "sum"}
)


def module_tensors(module: nn.Module, prefix: str = "") -> dict[str, Tensor]:
    """Parameters and buffers of a module under `prefix` + their names. No copy: save before the next update."""
    return {prefix + name: tensor.detach() for name, tensor in module.state_dict().items()}


def load_module(module: nn.Module, tensors: Mapping[str, Tensor], prefix: str = "") -> None:
    """Copies the tensors under `prefix` into a module; CheckpointError names each parameter that does not fit."""
    own = module.state_dict()
    given = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    problems = [f"{prefix}{name} is missing" for name in own if name not in given]
    problems += [f"{prefix}{name} is not in this network" for name in given if name not in own]
    problems += [
        f"{prefix}{name} has shape {list(given[name].shape)}, this network's has {list(own[name].shape)}"
        for name in own
        if name in given and given[name].shape != own[name].shape
    ]
    if problems:
        raise CheckpointError(
            f"The checkpoint does not fit this network: {_few(problems)}. "
            "Was it made with another environment, algorithm or network setting?"
        )
    module.load_state_dict(given)


def flatten_optimizer(optimizer: torch.optim.Optimizer, prefix: str = "") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Splits a torch optimiser into tensors by flat names and JSON-able scalars.

    Returns:
        tensors named `<prefix><parameter number>.<name>` or `<prefix>group<number>.<name>`, and
        {"groups": [{...}], "state": {parameter number: {name: value}}}.
    """
    tensors: dict[str, Tensor] = {}
    content = optimizer.state_dict()
    scalars: dict[str, Any] = {
        "groups": [
            _split(group, f"{prefix}group{number}.", tensors) for number, group in enumerate(content["param_groups"])
        ],
        "state": {
            str(number): _split(state, f"{prefix}{number}.", tensors) for number, state in content["state"].items()
        },
    }
    return tensors, scalars


def restore_optimizer(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], scalars: Mapping[str, Any], prefix: str = ""
) -> None:
    """Puts back what `flatten_optimizer` took, so that the next update is the one that would have followed.

    The optimiser must hold the same parameters in the same order; its settings (learning rate, ...) become the saved.
    """
    groups = [{key: _as_tuple(key, value) for key, value in group.items()} for group in scalars["groups"]]
    states: dict[int, dict[str, Any]] = {int(number): dict(state) for number, state in scalars["state"].items()}
    for name, tensor in tensors.items():
        if not name.startswith(prefix):
            continue
        owner, _, key = name.removeprefix(prefix).partition(".")
        try:
            target = groups[int(owner.removeprefix("group"))] if owner.startswith("group") else states[int(owner)]
        except (KeyError, IndexError, ValueError):
            raise CheckpointError(f"{name} in the checkpoint belongs to no parameter of its optimiser.") from None
        target[key] = tensor.clone()
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbers = [number for group in groups for number in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=False):
        for key, value in states.get(number, {}).items():
            if key in _PARAMETER_SHAPED and isinstance(value, Tensor) and value.shape != parameter.shape:
                raise CheckpointError(
                    f"The checkpoint's optimiser state {prefix}{number}.{key} has shape {list(value.shape)}, "
                    f"its parameter here has {list(parameter.shape)}."
                )
    try:
        optimizer.load_state_dict({"state": states, "param_groups": groups})
    except ValueError as error:
        raise CheckpointError(f"The checkpoint does not fit this optimiser: {error}.") from error


def _split(values: Mapping[str, Any], prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Moves the tensors among `values` into `tensors`, returns the rest."""
    tensors.update({prefix + key: value.detach() for key, value in values.items() if isinstance(value, Tensor)})
    return {key: value for key, value in values.items() if not isinstance(value, Tensor)}


def _as_tuple(key: str, value: Any) -> Any:
    return tuple(value) if isinstance(value, list) and key not in ("params", "param_names") else value


def _few(problems: list[str], limit: int = 4) -> str:
    more = f"; and {len(problems) - limit} more" if len(problems) > limit else ""
    return "; ".join(problems[:limit]) + more
