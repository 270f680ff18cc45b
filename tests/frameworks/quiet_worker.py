"""Makes a tensor, and starts a process whose only tensor finds no memory: quiet_worker.py daemon|process"""

import multiprocessing
import sys

import torch


def work():
    try:
        torch.empty(1 << 40, device="cuda")
    except torch.OutOfMemoryError:
        return
    raise SystemExit("there was memory")


if __name__ == "__main__":
    tensor = torch.ones(10, device="cuda")
    process = multiprocessing.get_context("spawn").Process(target=work, daemon=sys.argv[1] == "daemon")
    process.start()
    process.join()
    assert process.exitcode == 0, process.exitcode
