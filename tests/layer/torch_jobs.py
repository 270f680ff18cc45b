"""Runs several jobs of PyTorch over the stand-in layer, each in a child of its own, and imports torch once for all of them.

usage: torch_jobs.py FOLDER STATE

FOLDER/orders is an array of jobs in JSON: script, arguments, environment (the layer's habits), and seconds, after which the
job is killed. The children begin before any call of CUDA. Their output is in FOLDER/NUMBER.out and FOLDER/NUMBER.err. STATE is
the file of the simulated GPU, which each job begins anew. Prints an exit code for each job; -1 if it was killed.
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

JOBS = Path(__file__).resolve().parents[1] / "frameworks"


def take_habits(environment):
    """The layer has read its habits when it was loaded. One that is loaded later reads them itself."""
    os.environ.update(environment)
    loaded = [ctypes.CDLL(None)]
    try:
        loaded.append(ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY))
    except OSError:
        pass
    for library in loaded:
        if hasattr(library, "layer_read_habits"):
            library.layer_read_habits()
            return


def become(job, output):
    """Runs the job as if Python had been started with it."""
    for number, ending in ((1, "out"), (2, "err")):
        sink = os.open(f"{output}.{ending}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(sink, number)
        os.close(sink)
    take_habits(job["environment"])
    sys.argv, sys.path[0] = [str(JOBS / job["script"]), *job["arguments"]], str(JOBS)
    runpy.run_path(sys.argv[0], run_name="__main__")


def main():
    folder, state = Path(sys.argv[1]), Path(sys.argv[2])
    # Otherwise each child's garbage collector would copy the pages of all that is imported.
    gc.freeze()
    for number, job in enumerate(json.loads((folder / "orders").read_text())):
        state.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            return become(job, folder / str(number))
        descriptor = os.pidfd_open(child)
        ended = select.select([descriptor], [], [], job["seconds"])[0]
        os.close(descriptor)
        if not ended:
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(code if ended else -1, flush=True)


if __name__ == "__main__":
    main()
