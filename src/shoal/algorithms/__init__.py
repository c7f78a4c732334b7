"""The algorithms, by name. To add one: a file like its neighbours, and a line here."""

from shoal.algorithms import apex_dpg, apex_dqn, apex_qr_dqn, d4pg, impact, impala, sac, td3
from shoal.algorithms.interface import Algorithm
from shoal.errors import UnknownName

_MODULES = (apex_dqn, apex_qr_dqn, apex_dpg, d4pg, td3, sac, impala, impact)
ALGORITHMS: dict[str, Algorithm] = {module.ALGORITHM.name: module.ALGORITHM for module in _MODULES}


def get_algorithm(name: str) -> Algorithm:
    """The algorithm of that name."""
    try:
        return ALGORITHMS[name]
    except KeyError:
        raise UnknownName("algorithm", name, ALGORITHMS, "`shoal algorithms` lists them.") from None


__all__ = ["ALGORITHMS", "Algorithm", "get_algorithm"]
