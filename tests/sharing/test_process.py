"""A process, told apart from others with its number."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace

from shoal.sharing.process import ProcessId, _started


def test_a_process_lives_until_it_ends_also_when_it_is_suspended() -> None:
    me = ProcessId.current()
    assert me.lives
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = _started(child.pid)
    assert started is not None
    other = replace(me, pid=child.pid, started=started)
    assert other.lives and not replace(other, started=me.started - 1).lives, "a number is used again"
    os.kill(child.pid, signal.SIGSTOP)
    assert other.lives
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not other.lives, "nobody has waited for it yet, but it is dead"
    child.communicate()
    assert not other.lives


def test_of_a_process_elsewhere_nothing_is_known() -> None:
    elsewhere = replace(ProcessId.current(), machine="another")
    assert not elsewhere.here and not elsewhere.lives
    assert not replace(ProcessId.current(), pid=-1).lives
