"""launch: plain functions as processes, for people with a loop of their own.

    launch([partial(act, place, 0), partial(act, place, 1), partial(learn, place)])

What the functions share are paths: shards, boards of weights and gradients, a ledger. They need no messages.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, Literal

from shoal.errors import ConfigError, ShoalError

LOOK_SECONDS = 1.0
END_SECONDS = 5.0
Function = Callable[[], Any]


def launch(
    functions: Sequence[Function],
    *,
    engine: Literal["processes", "ray"] = "processes",
    until: Literal["first", "all"] = "first",
    threads: int = 1,
    address: str | None = None,
) -> list[Any]:
    """Runs each function in a process of its own.

    Args:
        functions: without arguments: `functools.partial` of functions of a module. A script needs
            `if __name__ == "__main__":` around this call.
        engine: this machine's processes, or Ray's.
        until: when the first function returns, the others are killed; or all are waited for.
        threads: of torch and the like in each process. Processes that share the cores are many times slower with more.
        address: of a running Ray cluster, whose nodes must see the same files.

    Returns:
        What each function returned; None for those that were killed.

    Raises:
        ShoalError: one of them failed; the others were killed.
    """
    if not functions or engine not in ("processes", "ray") or until not in ("first", "all") or threads < 1:
        asked = f"{len(functions)} functions, engine = {engine!r}, until = {until!r}, threads = {threads}"
        raise ConfigError(f"launch needs functions, 'processes' or 'ray', 'first' or 'all', and threads; got {asked}.")
    if engine == "processes":
        if local := [name_of(one) for one in functions if "<" in name_of(one)]:
            remedy = "functions of a module, or functools.partial of them"
            raise ConfigError(f"launch cannot send {', '.join(local)} to a process: give it {remedy}.")
        return _in_processes(functions, until == "all", threads)
    from shoal.runtime.ray_launch import in_ray  # here: loads Ray

    return in_ray([partial(call, function, threads) for function in functions], until == "all", address)


def call(function: Function, threads: int) -> Any:
    """In its process: the function, with so many threads."""
    os.environ["OMP_NUM_THREADS"] = str(threads)  # for what is not imported yet
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(threads)
    return function()


def name_of(function: Function) -> str:
    """For messages."""
    while isinstance(function, partial):
        function = function.args[0] if function.func is call else function.func
    return str(getattr(function, "__qualname__", type(function).__name__))


def _in_processes(functions: Sequence[Function], wait_for_all: bool, threads: int) -> list[Any]:
    spawn = multiprocessing.get_context("spawn")  # a fork would copy locks that other threads hold
    results: list[Any] = [None] * len(functions)
    running: dict[Any, tuple[int, Any]] = {}  # by the connection that its result comes from
    try:
        for index, function in enumerate(functions):
            receiver, sender = spawn.Pipe(duplex=False)
            process = spawn.Process(target=_work, args=(function, threads, os.getpid(), sender))
            process.start()
            sender.close()
            running[receiver] = (index, process)
        while running:
            for ready in wait(list(running)):
                index, process = running.pop(ready)
                results[index] = _received(ready, process, name_of(functions[index]))
                process.join(END_SECONDS)
                process.kill()  # a thread of the function's may go on
                if not wait_for_all:
                    return results
        return results
    finally:
        for _, process in running.values():
            process.kill()  # shards and boards are made for it
            process.join(END_SECONDS)


def _received(receiver: Any, process: Any, name: str) -> Any:
    try:
        failed, value = receiver.recv()
    except EOFError:
        process.join(END_SECONDS)
        raise ShoalError(f"The process of {name} died, exit code {process.exitcode}; the others were ended.") from None
    if failed:
        raise ShoalError(f"{name} failed, and the others were ended:\n{value}")
    return value


def _work(function: Function, threads: int, parent: int, sender: Connection) -> None:
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    try:
        sender.send((False, call(function, threads)))
    except KeyboardInterrupt:
        os._exit(130)  # the parent has it too, and says so
    except BaseException:
        sender.send((True, traceback.format_exc()))


def _end_with(parent: int) -> None:
    """Nothing is left running when the parent was killed."""
    while os.getppid() == parent:
        time.sleep(LOOK_SECONDS)
    os._exit(1)
