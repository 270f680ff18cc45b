"""Lets PyTorch's autograd threads finish before the interpreter ends. A job that calls `backward` imports this file.

A thread of autograd frees the graph after `backward` has returned, and needs the interpreter for that. If the
interpreter is ending by then, CPython before 3.14 ends the thread with `pthread_exit` inside of C++ functions that
cannot be unwound, and the process aborts, with and without the library (https://github.com/pytorch/pytorch/issues/190489).
"""

import atexit
import os
import threading
import time
from pathlib import Path

MOST_SECONDS = 30


def _state(task):
    try:
        return Path(f"/proc/self/task/{task}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except OSError:  # the thread has ended
        return "S"


def _wait():
    end, in_a_row = time.monotonic() + MOST_SECONDS, 0
    # At the first look, a thread may wait for the interpreter, which this thread has. It gets the interpreter during
    # the pause, so at the second look it runs, or has done its work.
    while in_a_row < 2 and time.monotonic() < end:
        others = set(os.listdir("/proc/self/task")) - {str(threading.get_native_id())}
        in_a_row = in_a_row + 1 if all(_state(task) == "S" for task in others) else 0
        time.sleep(0.005)


atexit.register(_wait)
