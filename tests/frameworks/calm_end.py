"""Lets PyTorch's autograd threads finish before the interpreter ends. A job that calls `backward` imports this file.

A thread of autograd frees the graph after `backward` has returned, and needs the interpreter for that. If the
interpreter is ending by then, CPython before 3.14 ends the thread with `pthread_exit`, inside of C++ functions that
cannot be unwound. The process aborts with "terminate called without an active exception", with and without the library.

Source: https://github.com/pytorch/pytorch/issues/190489 (the comment on GraphTask), and a core of the job without the
library: `PyThread_exit_thread` below `ConcretePyInterpreterVTable::decref`, `~ThreadLocalState` and `GraphTask`.
"""

import atexit
import os
import threading
import time

MOST_SECONDS = 30


def _others_sleep():
    """Whether every other thread of the process waits for something."""
    own = str(threading.get_native_id())
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/stat", encoding="ascii", errors="replace") as file:
                state = file.read().rpartition(")")[2].split()[0]
        except OSError:  # the thread has ended
            continue
        if task != own and state != "S":
            return False
    return True


def _wait():
    end = time.monotonic() + MOST_SECONDS
    in_a_row = 0
    # At the first look, a thread may wait for the interpreter, which this thread has. It gets the interpreter during
    # the pause, so at the second look it runs, or has done its work.
    while in_a_row < 2 and time.monotonic() < end:
        in_a_row = in_a_row + 1 if _others_sleep() else 0
        time.sleep(0.005)


atexit.register(_wait)
