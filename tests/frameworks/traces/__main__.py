"""Runs small PyTorch jobs and writes the requests of each to OUTDIR/real_NAME.csv.gz. Sizes are those that the job
requested from the caching allocator. The columns are those of RMM's log (Thread,Time,Action,Pointer,Size,Stream).

Meant for `vramshim run --sim 140GiB -- python tests/frameworks/traces OUTDIR`. Kernels of the simulated GPU do nothing,
so no size here depends on a value computed on the device: lengths, image sizes and routings are drawn on the host.
Each job has a process of its own, so that each begins with an empty caching allocator, and prints its peaks.
"""

import argparse
import gzip
import importlib
import json
import os
import random
import subprocess
import sys

import torch
from jobs import JOBS

# Each module adds its jobs to JOBS.
for family in ("small", "large"):
    importlib.import_module(family)


def run(name, seed, folder):
    """Runs a job, whichever allocator serves it, and prints that allocator's peaks. Records the job unless the folder is -."""
    random.seed(name + seed)
    torch.manual_seed(0)
    # The simulated GPU has no cuDNN.
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.cuda.init()
    if folder != "-":
        torch.cuda.memory._record_memory_history(enabled="all", context=None, stacks="python", max_entries=4_000_000)
    JOBS[name]()
    torch.cuda.synchronize()
    if folder != "-":
        write(torch.cuda.memory._snapshot()["device_traces"][0], f"{folder}/real_{name}.csv.gz")
    stats = torch.cuda.memory_stats()
    told = {"live": stats["requested_bytes.all.peak"], "reserved": stats["reserved_bytes.all.peak"]}
    print(json.dumps({"name": name, "backend": torch.cuda.get_allocator_backend(), **told}), flush=True)


def write(events, path):
    """The trace has the order and the times of the history. Blocks that are live at the end stay live in the trace."""
    live = set()
    # With mtime=0 the file has no time of writing, so the same history makes the same bytes.
    with open(f"{path}.part", "wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as file:
        file.write(b"Thread,Time,Action,Pointer,Size,Stream\n")
        for event in events:
            address = event["addr"]
            if event["action"] == "alloc":
                live.add(address)
                word = "allocate"
            elif event["action"] == "free_completed" and address in live:
                live.remove(address)
                word = "free"
            else:
                continue
            seconds, micros = divmod(event["time_us"] - events[0]["time_us"], 1_000_000)
            time = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{micros:06}"
            file.write(f"0,{time},{word},{address:#x},{event['size']},{event['stream']}\n".encode())
    os.replace(f"{path}.part", path)


def main():
    parser = argparse.ArgumentParser(prog="traces", description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", metavar="OUTDIR", help="- records nothing; the peaks are printed alone")
    parser.add_argument("names", metavar="NAME", nargs="*", choices=[[], *JOBS], help=f"these jobs alone, of {', '.join(JOBS)}")
    parser.add_argument("--seed", default="", help="draw other lengths, sizes and batches")
    options = parser.parse_args()
    names = options.names or list(JOBS)
    if options.folder != "-":
        os.makedirs(options.folder, exist_ok=True)
    if len(names) == 1:
        run(names[0], options.seed, options.folder)
        # PyTorch's autograd thread may still be at work, so the interpreter must not shut down in the usual way.
        os._exit(0)
    alone = [sys.executable, os.path.dirname(__file__), f"--seed={options.seed}", options.folder]
    if failed := [name for name in names if subprocess.run([*alone, name]).returncode]:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
