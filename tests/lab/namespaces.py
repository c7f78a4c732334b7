"""The namespace form: every node has its own network, process ids and shared memory, joined by a switch.

Nothing of it is visible on the machine itself, not even the switch: it is a bridge in one more network namespace. All
of it exists only as long as its processes do, so a lab that is killed leaves no interface and no mount behind.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from tests.lab.nodes import OBJECT_STORE_BYTES, SHARED_MEMORY, Lab, Node

TOOLS = ("ip", "tc", "unshare", "nsenter", "setpriv", "mount")
NETWORK = "10.77.0"
PORT = 6379
MEMORY = "4g"
"""Size of a node's shared memory; it takes only what is written."""
SWITCH = "ip link add switch type bridge && ip link set switch up && echo up && read -r _"
BIRTH = 'mount -t tmpfs -o "size=$1" shm /dev/shm && ip link set lo up && shift && exec "$@"'
UNSHARE = ("unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")


def unavailable() -> str | None:
    """Why namespaces cannot be used here, or None if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"not installed: {', '.join(missing)} (Debian, Ubuntu: apt install iproute2 util-linux)"
    probe = "ip link add br0 type bridge && ip link add v0 type veth peer name v1 && mount -t tmpfs shm /dev/shm"
    tried = subprocess.run([*UNSHARE, "sh", "-c", probe], capture_output=True, text=True)
    return f"the system refuses namespaces: {tried.stderr.strip()}" if tried.returncode else None


class NamespaceNode(Node):
    """A node that is its own machine, as far as its processes can see."""

    def __init__(self, number: int, folder: Path, env: Mapping[str, str], switch: int, memory: str) -> None:
        """Args:
        number: in the lab.
        folder: for Ray's sockets and logs; made here.
        env: of all its processes.
        switch: a process in the switch's namespace.
        memory: size of its shared memory, such as `4g`.
        """
        super().__init__(folder, f"{NETWORK}.{number + 1}", SHARED_MEMORY, env)
        self._port, self._switch, self._memory = f"port{number}", switch, memory
        self._first = 0
        """The node's process 1, by its number outside."""
        self._network: int | None = None

    @property
    def files(self) -> Path:
        return Path(f"/proc/{self._first}/root{self.shared_memory}")

    def begin(self, start: Sequence[str], folders: Sequence[Path]) -> None:
        super().begin(start, folders)
        assert self._keeper is not None
        self._first = psutil.Process(self._keeper.pid).children()[0].pid
        # Held open, the network outlives the node's processes: a killed node refuses connections, as a machine does
        # whose Ray was killed. Only `cut` makes it silent.
        self._network = os.open(f"/proc/{self._first}/ns/net", os.O_RDONLY)
        self._plug(f"link add {self._port} type veth peer name eth0 netns {self._first}")
        self._plug(f"link set {self._port} master switch up")
        self._wire("ip", f"addr add {self.ip}/24 dev eth0")
        self._wire("ip", "link set eth0 up")

    def signal(self, command: subprocess.Popen[Any], number: int) -> None:
        for process in psutil.Process(command.pid).children():
            process.send_signal(number)

    def processes(self) -> list[psutil.Process]:
        return [process for process in super().processes() if process.pid != self._first]

    def kill(self) -> None:
        """Kills every process of the node with -9, and with them its shared memory. Connections to it are refused."""
        with contextlib.suppress(ProcessLookupError):
            if self._first and self._keeper is not None and self._keeper.poll() is None:
                os.kill(self._first, 9)  # the kernel kills the rest of its process ids
                self._keeper.wait()
        super().kill()

    def cut(self) -> None:
        """Unplugs the cable: nothing gets in or out, and nobody is told."""
        self._plug(f"link set {self._port} nomaster")

    def mend(self) -> None:
        """Plugs the cable in again."""
        self._plug(f"link set {self._port} master switch")

    def limit(self, rate: str | None) -> None:
        """Limits the network in both directions, to a rate such as `1gbit`; None lifts the limit."""
        # The burst must hold a few of the 64 KB pieces in which such links carry data.
        shape = f"qdisc replace dev {{}} root tbf rate {rate} burst 512kb latency 50ms"
        shape = shape if rate else "qdisc del dev {} root"
        self._wire("tc", shape.format("eth0"))
        self._plug(shape.format(self._port), tool="tc")

    def close(self) -> None:
        super().close()
        if self._network is not None:
            os.close(self._network)
            self._network = None

    def _born(self, argv: Sequence[str]) -> list[str]:
        return [*UNSHARE, "sh", "-c", BIRTH, "sh", self._memory, *argv]

    def _inside(self, argv: Sequence[str], cwd: str) -> list[str]:
        # nsenter stays as the parent of the command; when it is killed, so is the command.
        enter = ["nsenter", f"--target={self._first}", "--net", "--mount", "--pid", f"--wd={cwd}"]
        return [*enter, "setpriv", "--pdeathsig=KILL", "--", *argv]

    def _plug(self, words: str, tool: str = "ip") -> None:
        _call(["nsenter", f"--target={self._switch}", "--net", tool, *words.split()])

    def _wire(self, tool: str, words: str) -> None:
        _call(["nsenter", f"--net=/proc/{os.getpid()}/fd/{self._network}", tool, *words.split()])


class NamespaceLab(Lab):
    """Nodes 10.77.0.1, 10.77.0.2 and so on; only they can reach each other, this process cannot."""

    nodes: list[NamespaceNode]

    def __init__(self, settings: Mapping[str, object], object_store: int, memory: str) -> None:
        super().__init__(settings, object_store)
        self._memory = memory
        self._switch = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", SWITCH],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._switch.stdout is not None
        if self._switch.stdout.readline() != "up\n":
            self.close()
            raise RuntimeError(f"The lab's switch did not start: {unavailable()}.")

    def close(self) -> None:
        super().close()
        self._switch.communicate()  # closes its standard input, at which it ends

    def _begin(self, cpus: int, resources: Mapping[str, float]) -> NamespaceNode:
        number = len(self.nodes)
        node = NamespaceNode(number, self.folder / str(number), self.env, self._switch.pid, self._memory)
        start = self._ray_start(node, cpus, resources, PORT)
        self.nodes.append(node)
        node.begin([sys.executable, "-m", "ray.scripts.scripts", *start], self._folders)
        return node


def namespaces(
    cpus: Sequence[int] = (2, 2, 2),
    settings: Mapping[str, object] | None = None,
    object_store: int = OBJECT_STORE_BYTES,
    memory: str = MEMORY,
) -> NamespaceLab:
    """A lab of nodes in namespaces; see `unavailable`.

    Args:
        cpus: of each node, as Ray counts them; the first is the head.
        settings: Ray's internal ones, such as `health_check_period_ms`.
        object_store: bytes per node.
        memory: size of each node's shared memory.
    """
    lab = NamespaceLab(settings or {}, object_store, memory)
    lab._start(cpus)
    return lab


def _call(argv: Sequence[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")
