"""Runs small PyTorch jobs and writes what each asked of the caching allocator as CSV in the layout of RMM's logging
adaptor (Thread,Time,Action,Pointer,Size,Stream), sizes as requested, not rounded: NAME.csv.gz in OUTDIR.

Meant for `vramshim run --sim 80GiB -- python tests/frameworks/traces OUTDIR`. Kernels of the simulated GPU do nothing,
so no size here depends on a value computed on the device: lengths, image sizes and routings are drawn on the host.
Each job has a process of its own, so that each begins with an empty caching allocator. A line per job tells its events,
its peak of live bytes and what PyTorch itself counted, to check a model of PyTorch's allocator against.
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

# Each of these makes its jobs known.
for family in ("training", "inference", "images", "others"):
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
    # The history's own order and times; what is left at the end is left in the trace as well.
    first = events[0]["time_us"]
    live, bytes_live, peak, count = {}, 0, 0, 0
    # No time of writing in the file: the same history makes the same bytes.
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
        # The interpreter's end may catch PyTorch's autograd thread at work.
        sys.stdout.flush()
        os._exit(0)
    alone = [sys.executable, os.path.dirname(__file__), f"--seed={options.seed}", options.folder]
    failed = [name for name in names if subprocess.run([*alone, name]).returncode]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
