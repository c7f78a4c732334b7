"""The registry of algorithms."""

from __future__ import annotations

import pytest

from shoal.algorithms import ALGORITHMS, get_algorithm
from shoal.errors import UnknownName


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(UnknownName, match="apex-dqn"):
        get_algorithm("apex-dqm")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_hyper_parameter_has_a_line_of_doc(name: str) -> None:
    undocumented = [field for field, info in ALGORITHMS[name].config.model_fields.items() if not info.description]
    assert not undocumented
