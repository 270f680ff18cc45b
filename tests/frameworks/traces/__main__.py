"""Runs small PyTorch jobs and writes the requests of each to OUTDIR/real_NAME.csv.gz. Sizes are those that the job
requested from the caching allocator. The columns are those of RMM's log (Thread,Time,Action,Pointer,Size,Stream).

Meant for `vramshim run --sim 80GiB -- python tests/frameworks/traces OUTDIR`. Kernels of the simulated GPU do nothing,
so no size here depends on a value computed on the device: lengths, image sizes and routings are drawn on the host.
Each job has a process of its own, so that each begins with an empty caching allocator. For each job a line gives the
number of events, the peak of live bytes, and PyTorch's own counts, with which a model of its allocator can be checked.
"""

import argparse
import gzip
import importlib
import os
import random
import subprocess
import sys

import torch
from jobs import JOBS

# Each module adds its jobs to JOBS.
for family in ("training", "inference", "images", "others", "large"):
    importlib.import_module(family)


def record(name, seed, path):
    random.seed(name + seed)
    torch.manual_seed(0)
    # The simulated GPU has no cuDNN.
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.cuda.init()
    torch.cuda.memory._record_memory_history(enabled="all", context=None, stacks="python", max_entries=4_000_000)
    JOBS[name]()
    torch.cuda.synchronize()
    snapshot = torch.cuda.memory._snapshot()
    stats = torch.cuda.memory_stats()
    events = snapshot["device_traces"][0]
    # The trace has the order and the times of the history. Blocks that are live at the end stay live in the trace.
    first = events[0]["time_us"]
    live, bytes_live, peak, count = {}, 0, 0, 0
    # With mtime=0 the file has no time of writing, so the same history makes the same bytes.
    with open(f"{path}.part", "wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as file:
        file.write(b"Thread,Time,Action,Pointer,Size,Stream\n")
        for event in events:
            address, size = event["addr"], event["size"]
            if event["action"] == "alloc":
                live[address] = size
                bytes_live += size
                peak = max(peak, bytes_live)
                word = "allocate"
            elif event["action"] == "free_completed" and address in live:
                bytes_live -= live.pop(address)
                word = "free"
            else:
                continue
            count += 1
            seconds, micros = divmod(event["time_us"] - first, 1_000_000)
            minutes, seconds = divmod(seconds, 60)
            hours, minutes = divmod(minutes, 60)
            time = f"{hours:02}:{minutes:02}:{seconds:02}.{micros:06}"
            file.write(f"0,{time},{word},{address:#x},{size},{event['stream']}\n".encode())
    os.replace(f"{path}.part", path)
    reserved = stats["reserved_bytes.all.peak"]
    print(
        f"{name}: {count} events, peak live {peak} (PyTorch: {stats['requested_bytes.all.peak']}), "
        f"PyTorch's peak reserved {reserved}, utilisation {peak / reserved:.3f}, "
        f"segments {stats['segment.all.allocated']}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(prog="traces", description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", metavar="OUTDIR")
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"these jobs alone, of {', '.join(JOBS)}")
    parser.add_argument("--seed", default="", help="draw other lengths, sizes and batches")
    options = parser.parse_args()
    unknown = set(options.names) - set(JOBS)
    if unknown:
        parser.error(f"no such job: {', '.join(sorted(unknown))} (there are {', '.join(JOBS)})")
    os.makedirs(options.folder, exist_ok=True)
    names = options.names or list(JOBS)
    if len(names) == 1:
        record(names[0], options.seed, os.path.join(options.folder, f"real_{names[0]}.csv.gz"))
        # PyTorch's autograd thread may still be at work, so the interpreter must not shut down in the usual way.
        sys.stdout.flush()
        os._exit(0)
    alone = [sys.executable, os.path.dirname(__file__), f"--seed={options.seed}", options.folder]
    failed = [name for name in names if subprocess.run([*alone, name]).returncode]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
