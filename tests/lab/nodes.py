"""What both forms of the lab share: nodes whose processes can be killed and frozen, and the lab that owns them."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import psutil

QUICK_DEATH: Mapping[str, int] = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 5000,
    "health_check_failure_threshold": 4,
    "grpc_keepalive_time_ms": 2000,
    "grpc_keepalive_timeout_ms": 5000,
    "grpc_client_keepalive_time_ms": 2000,
    "grpc_client_keepalive_timeout_ms": 5000,
}
"""Ray's internal settings with which it finds a dead node soon, but does not take a busy machine for a dead one."""
OBJECT_STORE_BYTES = 100 * 2**20
START_SECONDS = 90.0
KILL_SECONDS = 10.0
RESTART_PORT = 6380
LONGEST_BASE = 10
"""Longest path, in bytes, of the folder in which a lab makes its own: a socket's path has at most 103."""
KEEPER = Path(__file__).with_name("keeper.py")
SHARED_MEMORY = Path("/dev/shm")


class Node:
    """One node: a keeper, below it everything that Ray starts, and commands that were run on it."""

    def __init__(self, folder: Path, ip: str, shared_memory: Path, env: Mapping[str, str]) -> None:
        """Args:
        folder: for Ray's sockets and logs; made here.
        ip: what Ray knows the node by.
        shared_memory: where its replays go, as seen on the node.
        env: of all its processes.
        """
        folder.mkdir()
        self.folder, self.ip, self.shared_memory = folder, ip, shared_memory
        self.node_id = secrets.token_hex(28)
        """Ray's; we choose it, so nobody has to ask."""
        self.env = {**env, "SHOAL_SHARED_MEMORY": str(shared_memory)}
        self._log = folder / "start.log"
        self._commands: list[subprocess.Popen[Any]] = []
        self._keeper: subprocess.Popen[str] | None = None

    @property
    def files(self) -> Path:
        """The node's shared memory, as seen from this process."""
        return self.shared_memory

    def begin(self, start: Sequence[str], folders: Sequence[Path]) -> None:
        """Starts the keeper, which holds `start` back until `go`.

        Args:
            start: the command that starts Ray.
            folders: that the keeper removes at the end of the lab.
        """
        keeper = [sys.executable, str(KEEPER), ":".join(map(str, folders)), *start]
        with self._log.open("w") as log:
            self._keeper = subprocess.Popen(
                self._born(keeper),
                env={**self.env, "RAY_OVERRIDE_NODE_ID_FOR_TESTING": self.node_id},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # Ctrl-C is for the lab, which then ends its nodes
            )
        self._expect("up")

    def go(self) -> None:
        """Starts Ray, without waiting for it."""
        assert self._keeper is not None and self._keeper.stdin is not None
        self._keeper.stdin.write("go\n")
        self._keeper.stdin.flush()

    def wait(self) -> None:
        """Waits until Ray runs."""
        self._expect("0")

    def run(self, argv: Sequence[str], env: Mapping[str, str] | None = None, **popen: Any) -> subprocess.Popen[Any]:
        """Starts a command on the node. It ends with the node at the latest.

        In the light form `ray.init` connects through the head's node, as Ray does when one machine has several.
        """
        options: dict[str, Any] = {"start_new_session": True, **popen}
        inside = self._inside(argv, str(options.get("cwd") or os.getcwd()))
        process = subprocess.Popen(inside, env={**self.env, **(env or {})}, **options)
        self._commands.append(process)
        return process

    def signal(self, command: subprocess.Popen[Any], number: int) -> None:
        """Sends a signal to what `run` started; `command.send_signal` would reach only its wrapper, if it has one."""
        command.send_signal(number)

    def processes(self) -> list[psutil.Process]:
        """All processes of the node, except its keeper."""
        found: list[psutil.Process] = []
        for root, is_ours in [(self._keeper, False), *((command, True) for command in self._commands)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                if root is not None and root.poll() is None:
                    process = psutil.Process(root.pid)
                    found += [process] * is_ours + process.children(recursive=True)
        return found

    def kill(self) -> None:
        """Kills every process of the node with -9. What they listened on refuses connections from then on."""
        if self._keeper is not None:
            _until_none(self.processes, signal.SIGKILL)
            for command in self._commands:
                command.wait()
            # The keeper collects the dead; otherwise they stay in the process table until the system's first process
            # does so, which in a container may be never.
            deadline = time.monotonic() + KILL_SECONDS
            while self.processes() and time.monotonic() < deadline:
                time.sleep(0.005)
            self._keeper.kill()
            self._keeper.wait()

    def freeze(self) -> None:
        """Stops every process of the node: connections stay open, nobody answers."""
        _until_none(lambda: [one for one in self.processes() if one.status() != psutil.STATUS_STOPPED], signal.SIGSTOP)

    def thaw(self) -> None:
        """Continues after `freeze`."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Ends what is left of the node."""
        self.kill()
        if self._keeper is not None:
            assert self._keeper.stdin is not None and self._keeper.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                self._keeper.stdin.close()
            self._keeper.stdout.close()

    def _born(self, argv: Sequence[str]) -> list[str]:
        """The command line that makes the node's surroundings and runs the keeper in them."""
        return list(argv)

    def _inside(self, argv: Sequence[str], cwd: str) -> list[str]:
        """The command line that runs a command in the node's surroundings, from this folder."""
        return list(argv)

    def _expect(self, word: str) -> None:
        assert self._keeper is not None and self._keeper.stdout is not None
        ready, _, _ = select.select([self._keeper.stdout], [], [], START_SECONDS)
        said = self._keeper.stdout.readline().strip() if ready else f"nothing in {START_SECONDS:.0f} s"
        if said != word:
            text = self._log.read_text(errors="replace")
            raise RuntimeError(f"A node of the lab did not start: {said or 'its keeper ended'}.\n{text[-3000:]}")


class Lab:
    """Several Ray nodes on this machine; the first is the head. Leaving the `with` block ends everything."""

    address: str
    """Of the cluster, as `ray.init` and `--address` take it."""

    def __init__(self, settings: Mapping[str, object], object_store: int) -> None:
        """Args:
        settings: Ray's internal ones, instead of or beside `QUICK_DEATH`.
        object_store: bytes per node.
        """
        self.nodes: list[Any] = []
        base = tempfile.gettempdir()
        base = base if len(os.fsencode(base)) <= LONGEST_BASE else "/tmp"
        self.folder = Path(tempfile.mkdtemp(prefix="lab-", dir=base))
        self._folders = [self.folder]
        self._object_store = object_store
        token = self.folder / "token"
        token.touch(0o600)
        token.write_text(secrets.token_hex(32))
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH_")},
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
            **{f"RAY_{name}": str(value) for name, value in {**QUICK_DEATH, **settings}.items()},
        }
        self.env.pop("RAY_ADDRESS", None)

    def add_node(self, cpus: int = 2, resources: Mapping[str, float] | None = None) -> Any:
        """Adds a node to the running cluster and returns it when Ray runs there."""
        node = self._begin(cpus, resources or {})
        node.go()
        node.wait()
        return node

    def kill_head_services(self) -> None:
        """Kills the head's gcs_server with -9; its raylet and the other nodes go on without it."""
        for process in self.nodes[0].processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.name().startswith("gcs_server"):
                    process.kill()

    def restart_ray(self, nodes: Sequence[Any]) -> str:
        """Ends Ray on these nodes and starts another cluster on them, of which the first is the head; what is on their
        shared memory stays. Returns the address.
        """
        for node in nodes:
            _until_none(node.processes, signal.SIGKILL)
        address = ""
        for node in nodes:
            options = [f"--node-ip-address={node.ip}", f"--temp-dir={node.folder / 'again'}", "--num-cpus=3"]
            options += ["--num-gpus=0", f"--object-store-memory={self._object_store}"]
            head = ["--head", f"--port={RESTART_PORT}", "--include-dashboard=false"]
            options += [f"--address={address}"] if address else head
            started = node.run(
                [sys.executable, "-m", "ray.scripts.scripts", "start", *options], stdout=subprocess.DEVNULL
            )
            if started.wait(START_SECONDS):
                raise RuntimeError(f"Ray could not be started again on {node.ip}.")
            address = address or f"{node.ip}:{RESTART_PORT}"
        self.address = address
        return address

    def close(self) -> None:
        """Ends every node and removes every folder."""
        for node in self.nodes:
            node.close()
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, cpus: Sequence[int]) -> None:
        """Starts the head, then all others at once."""
        try:
            self.add_node(cpus[0])
            self.address = (self.nodes[0].folder / "ray_current_cluster").read_text().strip()
            self.env["RAY_ADDRESS"] = self.nodes[0].env["RAY_ADDRESS"] = self.address
            others = [self._begin(count, {}) for count in cpus[1:]]
            for node in others:
                node.go()
            for node in others:
                node.wait()
        except BaseException:
            self.close()
            raise

    def _begin(self, cpus: int, resources: Mapping[str, float]) -> Any:
        """Makes the node number `len(self.nodes)`, up to the start of Ray."""
        raise NotImplementedError

    def _ray_start(self, node: Node, cpus: int, resources: Mapping[str, float], port: int) -> list[str]:
        """Options of `ray start`. Ports are free ones: several labs and other Rays may be on this machine."""
        head = ["--head", f"--port={port}", "--include-dashboard=false"]
        return [
            "start",
            *([f"--address={self.address}"] if self.nodes else head),
            f"--node-ip-address={node.ip}",
            f"--temp-dir={node.folder}",
            f"--num-cpus={cpus}",
            "--num-gpus=0",
            f"--resources={json.dumps(dict(resources))}",
            f"--object-store-memory={self._object_store}",
            "--min-worker-port=0",
            "--max-worker-port=0",
            "--dashboard-agent-listen-port=0",
            "--include-log-monitor=false",
        ]


def _until_none(find: Callable[[], list[psutil.Process]], number: int) -> None:
    """Sends the signal until nobody is found any more: a process may start another meanwhile."""
    deadline = time.monotonic() + KILL_SECONDS
    while (found := _alive(find)) and time.monotonic() < deadline:
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        time.sleep(0.01)


def _alive(find: Callable[[], list[psutil.Process]]) -> list[psutil.Process]:
    while True:
        try:
            return [process for process in find() if process.status() != psutil.STATUS_ZOMBIE]
        except psutil.NoSuchProcess:  # ended between the two looks
            continue
