"""Several Ray nodes on this one machine, for tests, benchmarks and whoever wants to break a cluster.

    with light_cluster(cpus=[2, 2]) as lab:      # raylets on loopback; needs no rights
        lab.nodes[1].run(["shoal", "train", ...])
        lab.nodes[1].kill()

    with namespaces(cpus=[2, 2]) as lab:         # own network, process ids, shared memory; needs root
        lab.nodes[1].limit("1gbit")
        lab.nodes[1].cut()
        run = LabTraining(lab, lab.nodes[1], folder, "train", "cartpole_apex_dqn", "--address", "auto")

`unavailable()` says why there are no namespaces on this machine. Benchmarks need the repository's root on `sys.path`.
"""

from tests.lab.light import LightLab, light_cluster
from tests.lab.namespaces import NamespaceLab, NamespaceNode, namespaces, unavailable
from tests.lab.nodes import Lab, Node
from tests.lab.training import LabTraining

__all__ = [
    "Lab",
    "LabTraining",
    "LightLab",
    "NamespaceLab",
    "NamespaceNode",
    "Node",
    "light_cluster",
    "namespaces",
    "unavailable",
]
