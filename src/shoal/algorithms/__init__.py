"""The algorithms, by name. To add one: a file like its neighbours, and a line here."""

from shoal.algorithms import apex_dqn, apex_qr_dqn
from shoal.algorithms.interface import Algorithm
from shoal.errors import UnknownName

ALGORITHMS: dict[str, Algorithm] = {module.ALGORITHM.name: module.ALGORITHM for module in (apex_dqn, apex_qr_dqn)}


def get_algorithm(name: str) -> Algorithm:
    """The algorithm of that name."""
    try:
        return ALGORITHMS[name]
    except KeyError:
        raise UnknownName("algorithm", name, ALGORITHMS, "`shoal algorithms` lists them.") from None


__all__ = ["ALGORITHMS", "Algorithm", "get_algorithm"]
