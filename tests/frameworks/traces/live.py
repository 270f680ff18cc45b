"""Compares what PyTorch jobs reserve live under `vramshim run --torch allocator` with what `vramshim replay` foretells.

Each job runs twice on the simulated GPU: under PyTorch's own allocator, which records the requests, and under the
library with auto_growth. `replay` plays the trace in between. A line for each job has the peaks of reserved bytes. The
exit code is 1 if a job reserves live more than foretold + 1%, or more than under PyTorch's own allocator.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

FOLDER = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.abspath(f"{FOLDER}/../../..")
DEVICE = "140GiB"
# What live may reserve beyond what was foretold: the two runs request memory in a slightly different order, because
# threads of autograd allocate too.
MOST_MORE = 0.01


def output(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr}")
    return done.stdout


def compare(options, name, scratch):
    """The peaks of reserved bytes of one job: under PyTorch's own allocator, foretold, live; and of live bytes."""
    job = [options.python, FOLDER, "--seed", options.seed]
    start = [options.program, "run", "--sim", DEVICE, "--quiet", "--dir"]
    own = output([*start, f"{scratch}/own", "--", *job, scratch, name])
    trace = f"{scratch}/real_{name}.csv.gz"
    played = [options.program, "replay", trace, "--json", "--device-memory", DEVICE, "--strategy", "auto_growth"]
    foretold = json.loads(output(played))["strategies"][0]["peak_reserved"]
    os.remove(trace)
    allocator = ["--strategy", "auto_growth", "--torch", "allocator"]
    told = json.loads(output([*start, f"{scratch}/live", *allocator, "--", *job, "-", name]))
    if told["backend"] != "pluggable":
        sys.exit(f"{name}: the library was not the allocator: {told}")
    reserved = int(own.split("PyTorch's peak reserved ")[1].split(",")[0])
    return reserved, foretold, told["reserved"], told["live"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    artifacts = os.environ.get("VRAMSHIM_ARTIFACTS", f"{ROOT}/target/release")
    parser.add_argument("--program", default=f"{artifacts}/vramshim", help="vramshim, with the library beside it")
    parser.add_argument("--python", default=sys.executable, help="a Python with PyTorch [this one]")
    os.environ.setdefault("VRAMSHIM_SIMGPU", f"{ROOT}/target/simgpu")
    parser.add_argument("--seed", default="", help="draw other lengths, sizes and batches")
    parser.add_argument("names", metavar="NAME", nargs="*", help="these jobs alone")
    options = parser.parse_args()
    names = options.names or output([options.python, FOLDER, "--list"]).split()
    mib = lambda size: f"{size / 2**20:,.1f}"
    heads = ("job", "live MiB", "PyTorch's own", "foretold", "reserved live", "")
    print("{:24} {:>12} {:>14} {:>12} {:>14}  {}".format(*heads), flush=True)
    failed = 0
    for name in names:
        with tempfile.TemporaryDirectory() as scratch:
            own, foretold, reserved, live = compare(options, name, scratch)
        problems = []
        if reserved > foretold * (1 + MOST_MORE):
            problems.append(f"{reserved / foretold - 1:.1%} more than foretold")
        if reserved > own:
            problems.append("more than PyTorch's own")
        failed += bool(problems)
        line = (name, mib(live), mib(own), mib(foretold), mib(reserved), ", ".join(problems) or "ok")
        print("{:24} {:>12} {:>14} {:>12} {:>14}  {}".format(*line), flush=True)
    print(f"{len(names) - failed} of {len(names)} jobs reserve at most what was foretold, and what PyTorch does")
    sys.exit(1 if failed else 0)


main()
