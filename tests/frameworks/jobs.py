"""Runs jobs of PyTorch, each in a fork of this process, which imports torch once for all of them.

Prints `ready`, and reads orders from stdin until it ends, a line of JSON each: the job's arguments (a script first), its
environment, its folder, and seconds, after which it is killed. The folder gets the files out, err, and, at the end, status: what
waitpid says. The forks begin before any call of CUDA, and run beside each other.
"""
import ctypes
import gc
import json
import os
import runpy
import select
import signal
import sys
from pathlib import Path

import torch  # noqa: F401
import torch._dynamo  # noqa: F401  (every optimiser of torch imports it)


def take_habits():
    """The stand-in layer has read its habits when it was loaded. One that is loaded later reads them itself."""
    loaded = [ctypes.CDLL(None)]
    try:
        loaded.append(ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY))
    except OSError:
        pass
    for library in loaded:
        if hasattr(library, "layer_read_habits"):
            library.layer_read_habits()
            return


def become(order):
    """Runs the job as if Python had been started with it."""
    os.chdir(order["folder"])
    for number, name, flags in ((0, os.devnull, os.O_RDONLY), (1, "out", os.O_WRONLY | os.O_CREAT), (2, "err", os.O_WRONLY | os.O_CREAT)):
        opened = os.open(name, flags, 0o666)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.update(order["environment"])
    take_habits()
    sys.argv, sys.path[0] = order["arguments"], os.path.dirname(order["arguments"][0])
    runpy.run_path(sys.argv[0], run_name="__main__")


def watch(order):
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        return become(order)
    if not select.select([os.pidfd_open(child)], [], [], order["seconds"])[0]:
        os.kill(child, signal.SIGKILL)
    status = Path(order["folder"], "status")
    status.with_suffix(".part").write_text(str(os.waitpid(child, 0)[1]))
    status.with_suffix(".part").rename(status)
    os._exit(0)


def main():
    # Otherwise each child's garbage collector would copy the pages of all that is imported.
    gc.freeze()
    # The kernel forgets the forks that watch.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    for line in sys.stdin:
        if os.fork() == 0:
            return watch(json.loads(line))


if __name__ == "__main__":
    main()
