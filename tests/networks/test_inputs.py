"""Which torso an observation gets, and that several inputs reach the right one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from shoal.errors import ConfigError
from shoal.networks import MLP, ActorCritic, NatureCNN, QNetwork, ResidualCNN, SeveralInputs, TinyCNN, make_torso
from shoal.networks.inputs import ImageTorso
from shoal.types import ObsPart


@pytest.mark.parametrize(
    ("shape", "dtype", "kind", "features"),
    [
        ((4, 84, 84), "uint8", NatureCNN, 3136),
        ((1, 36, 36), "uint8", NatureCNN, 64),
        ((96, 96, 3), "uint8", NatureCNN, 64 * 9 * 9),
        ((4, 84, 84), "float32", NatureCNN, 3136),
        ((10, 10, 4), "float32", TinyCNN, 64 * 4 * 4),
        ((3, 8, 8), "uint8", TinyCNN, 64 * 3 * 3),
        ((48, 40), "uint8", ImageTorso, 64 * 3 * 2),
        ((4, 84, 84, 3), "uint8", ImageTorso, 3136),
        ((4,), "float32", MLP, 16),
        ((), "int64", MLP, 16),
        ((128,), "uint8", MLP, 16),
        ((7, 7, 3), "uint8", MLP, 16),
        ((20, 10), "float32", MLP, 16),  # without bounds it is a table
    ],
)
def test_the_observation_decides(shape: tuple[int, ...], dtype: str, kind: type[nn.Module], features: int) -> None:
    torso = make_torso((ObsPart.of(shape, dtype),), (16,))
    assert isinstance(torso, kind) and torso.out_features == features
    assert torso(torch.zeros(2, *shape, dtype=getattr(torch, dtype))).shape == (2, features)


def test_an_empty_observation_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"shape \(3, 0\) is empty"):
        make_torso((ObsPart.of((3, 0), "float32"),), (8,))


def test_the_shorter_end_is_the_channels() -> None:
    axes = {
        shape: ObsPart.of(shape, "uint8").axes for shape in ((3, 9, 9), (9, 9, 3), (9, 9, 9), (84, 84, 40), (9, 3, 9))
    }
    assert list(axes.values()) == ["CHW", "HWC", "CHW", "HWC", ""]


@pytest.mark.parametrize("shape", [(2, 9, 12, 3), (2, 3, 9, 12), (9, 12), (3, 9, 12), (9, 12, 3)])
def test_all_orders_of_axes_are_one_network(shape: tuple[int, ...]) -> None:
    """The same pixels in another order, [S, C, H, W], give the same features."""
    part = ObsPart.of(shape, "uint8")
    order = [part.axes.index(axis) for axis in "SCHW" if axis in part.axes]
    obs = torch.randint(0, 256, (2, *shape), dtype=torch.uint8)
    plain = obs.permute(0, *(at + 1 for at in order)).reshape(2, -1, 9, 12)
    first, second = make_torso((part,), ()), TinyCNN(plain.shape[1], 9, 12)
    second.load_state_dict({key.removeprefix("convolutions."): one for key, one in first.state_dict().items()})
    torch.testing.assert_close(first(obs), second(plain))


def test_every_image_is_seen_between_0_and_1() -> None:
    obs = torch.randint(0, 2, (2, 9, 9, 1)).float()
    torch.manual_seed(0)
    unit = make_torso((ObsPart.of((9, 9, 1), "float32", (0.0, 1.0)),), ())
    for high, dtype in ((255.0, "float32"), (255.0, "uint8"), (7.0, "int64"), (1.0, "bool")):
        torch.manual_seed(0)
        other = make_torso((ObsPart.of((9, 9, 1), dtype, (0.0, high)),), ())
        torch.testing.assert_close(other((high * obs).to(getattr(torch, dtype))), unit(obs))


PARTS = (
    ObsPart("speed", (2,)),
    ObsPart.of((9, 9, 3), "uint8", name="camera", start=2),
    ObsPart("goal", (4,), 245),
    ObsPart.of((40, 40), "float32", (0.0, 1.0), "map", 249),
)


def test_several_inputs_go_where_they_belong() -> None:
    torso = make_torso(PARTS, (5,))
    assert isinstance(torso, SeveralInputs)
    row = torch.rand(3, 249 + 1600)
    camera, plan = torso.images
    assert torso.vectors is not None
    expected = torch.cat(
        [
            camera(row[:, 2:245].reshape(3, 9, 9, 3)),
            plan(row[:, 249:].reshape(3, 40, 40)),
            torso.vectors(torch.cat((row[:, :2], row[:, 245:249]), 1)),
        ],
        1,
    )
    torch.testing.assert_close(torso(row), expected)
    assert torso.out_features == expected.shape[1] == 576 + 256 + 5
    assert torso.to(torch.bfloat16)(row).dtype == torch.bfloat16


def test_floats_in_a_row_of_bytes() -> None:
    """The same numbers give the same features, however they are stored and wherever they begin."""
    numbers, picture = torch.randn(3, 2), torch.randint(0, 256, (3, 243), dtype=torch.uint8)
    image = ObsPart.of((9, 9, 3), "uint8", name="eye")
    torch.manual_seed(0)
    first = make_torso((image, ObsPart("speed", (2,), 243)), (5,))
    torch.manual_seed(0)
    second = make_torso((image, ObsPart("speed", (2,), 243, width=4)), (5,))
    rows = torch.cat((picture, numbers.view(torch.uint8)), 1)
    expected = first(torch.cat((picture.float(), numbers), 1))
    torch.testing.assert_close(second(rows), expected)
    torch.testing.assert_close(second(rows[1:2]), expected[1:2])


def test_one_image_of_a_row_needs_no_vector() -> None:
    torso = make_torso((PARTS[1],), (5,), "deep")
    assert isinstance(torso, SeveralInputs) and isinstance(torso.images[0], ResidualCNN) and torso.vectors is None
    assert torso(torch.rand(2, 245)).shape == (2, torso.out_features)


@pytest.mark.parametrize("hidden", [(), (16,), (16, 16)])
def test_networks_of_several_inputs(hidden: tuple[int, ...]) -> None:
    row = torch.rand(4, 249 + 1600)
    values = QNetwork((1849,), "float32", 3, hidden, parts=PARTS)(row)
    params, value = ActorCritic((1849,), "float32", 5, hidden=hidden, lstm=0, parts=PARTS).unroll(row[None])
    assert (values.shape, params.shape, value.shape) == ((4, 3), (1, 4, 5), (1, 4))
    values.sum().backward()
