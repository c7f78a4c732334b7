"""R2D2: what is its own."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from tests.algorithms.test_recurrent_q import SMALL, SPEC

from shoal.algorithms import get_algorithm, r2d2
from shoal.config.load import settings_for
from shoal.networks.torso import FirstConvolution
from shoal.replay import step_schema
from shoal.types import EnvSpec


def test_the_defaults_are_the_papers() -> None:
    config = r2d2.Config()
    assert (config.unroll, config.burn_in, config.period, config.n_step) == (80, 40, 40, 5)
    assert (config.gamma, config.eta, config.beta, config.cell_size, config.target_period) == (
        0.997,
        0.9,
        0.6,
        512,
        2500,
    )
    settings = settings_for("CartPole-v1", "r2d2", ["defaults=paper"])
    (selector,) = settings.replay.selectors
    assert selector.type == "prioritized" and selector.alpha == 0.9 and settings.learner.batch_size == 64


def test_values_have_one_scale() -> None:
    with pytest.raises(ValidationError, match="normalize_values = true and value_rescaling = true exclude each other"):
        r2d2.Config(normalize_values=True)
    assert r2d2.Config(normalize_values=True, value_rescaling=False).normalize_values


def test_the_network_is_what_the_settings_say() -> None:
    lstm, gru = (r2d2.make_network(r2d2.Config(**SMALL, cell=cell), SPEC) for cell in ("lstm", "gru"))
    assert (lstm.state_size, gru.state_size) == (8, 4)
    image = EnvSpec("Pixels-v0", (4, 84, 84), "uint8", 4, 3, ())
    network = r2d2.make_network(r2d2.Config(cell_size=8, image_hidden=8, center_images=True), image)
    assert any(isinstance(one, FirstConvolution) and one.centered for one in network.modules())


def test_a_view_starts_sequences_every_period() -> None:
    algorithm, config = get_algorithm("r2d2"), r2d2.Config(**SMALL, n_step=3, eta=0.7)
    span = algorithm.make_view(config, step_schema(SPEC, algorithm.columns(config, SPEC))).span
    assert (span.after, span.overlap, span.period, span.priorities) == (8, 2, 2, (3, 0.7))
