"""BoardFeatures: what the newest published network makes of observations."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from shoal.algorithms import get_algorithm
from shoal.algorithms.capture import WARM_UP, Captured
from shoal.algorithms.impala import Config
from shoal.algorithms.interface import PolicyContext
from shoal.loops.features import BoardFeatures
from shoal.loops.weights import BoardModule, WeightBoard, count_weights
from shoal.types import Array, EnvSpec

SPEC = EnvSpec("PongNoFrameskip-v4", (4, 84, 84), "uint8", 4, 6, ())
OBS = np.random.default_rng(0).integers(0, 256, (12, *SPEC.obs_shape), np.uint8)


class Inputs(NamedTuple):
    x: torch.Tensor


def made(folder: Path, device: str) -> tuple[BoardFeatures, torch.nn.Module, BoardModule]:
    algorithm = get_algorithm("impala")
    config = Config(torso="small", image_hidden=32)
    torch.manual_seed(1)
    learned = algorithm.make_policy(config, SPEC, PolicyContext())
    board = folder / "weights.bin"
    WeightBoard.create(board, count_weights(learned.module))
    policy = algorithm.make_policy(config, SPEC, PolicyContext())
    features = BoardFeatures(policy, board, torch.device(device))
    return features, learned.module, BoardModule(learned.module, board)


@torch.inference_mode()
def expected(module: torch.nn.Module) -> Array:
    return module.embed(torch.from_numpy(OBS)).numpy()  # type: ignore[operator, no-any-return]


def test_follow_the_board(tmp_path: Path) -> None:
    features, module, published = made(tmp_path, "cpu")
    published.publish()
    np.testing.assert_allclose(features(OBS), expected(module), atol=1e-5)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1.5)
    assert np.abs(features(OBS) - expected(module)).max() > 1e-3  # not published yet
    published.publish()
    np.testing.assert_allclose(features(OBS), expected(module), atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_while_another_thread_captures(tmp_path: Path) -> None:
    features, module, published = made(tmp_path, "cuda")
    published.publish()
    wrong: list[float] = []
    done = threading.Event()

    def score() -> None:
        wanted = expected(module)
        while not done.is_set():
            published.publish()
            wrong.append(float(np.abs(features(OBS) - wanted).max()))

    thread = threading.Thread(target=score)
    thread.start()
    weight = torch.randn(512, 512, device="cuda")
    try:
        for _ in range(20):
            captured = Captured[Inputs, torch.Tensor](lambda given: (given.x @ weight).sum(), torch.device("cuda"))
            values = [float(captured(Inputs(torch.ones(64, 512, device="cuda")))) for _ in range(WARM_UP + 3)]
            assert np.allclose(values, values[0], rtol=1e-3)
    finally:
        done.set()
        thread.join()
    assert wrong and max(wrong) < 1e-2
