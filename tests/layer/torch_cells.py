"""The cells of scripts/layers with PyTorch: unmodified jobs of tests/frameworks over the stand-in layer and the simulated GPU."""
import concurrent.futures
import functools
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import matrix
from matrix import HABITS, LINEAR_ALONE, OF_PRELOADED, OTHER_HOLDS, PLACES, ROOT, STRATEGIES, Bench, Run, compare_strategy, done_instead


# Each scene's file, and what PyTorch must know of it at the import. The jobs set that themselves too.
SCENES = {"train": ("train.py", ""), "out_of_memory": ("out_of_memory.py", ""), "share": ("share.py", ""),
          "expandable": ("expandable.py", ""), "async": ("stream_ordered.py", "backend:cudaMallocAsync")}
# Habits that show themselves when symbols are looked up, and so while torch is imported.
OF_LOOK_UP = {"asks_default", "forgetful"}
# The runtime and cuBLAS of the wheel need NVIDIA's driver.
STAND_INS = ("libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13")
TIME_LIMIT_S = 300
# What `scripts/test --frameworks` runs: each job, each strategy, each place, and the habits that PyTorch meets in other ways.
FEW = [
    ("watcher", "behind", "auto_growth", "train"),
    ("in_one_piece", "replacing", "auto_growth", "train"),
    ("linear_managed", "behind", "auto_growth", "out_of_memory"),
    ("scheduler", "replacing", "naive_best_fit", "out_of_memory"),
    ("refuses_with_-1", "behind", "passthrough", "out_of_memory"),
    ("well_behaved", "behind", "naive_best_fit", "share"),
    ("vmm_uncounted", "behind", "auto_growth", "expandable"),
    ("frees_listed", "behind", "passthrough", "async"),
    ("well_behaved", "in_front", "passthrough", "expandable"),
]


def python():
    """The Python with PyTorch; None if scripts/ci/setup frameworks did not run."""
    cache = os.environ.get("VRAMSHIM_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vramshim"
    found = Path(os.environ.get("VRAMSHIM_FRAMEWORKS") or Path(cache) / "frameworks") / "bin/python"
    return found if found.exists() else None


def not_applicable(habit, place, strategy, scene):
    """Why a cell would show nothing; None if it shows something."""
    if habit == "no_pools" and scene == "async":
        return "the job is about memory pools, and the layer says that there are none"
    if scene == "share" and habit in LINEAR_ALONE:
        return "managed memory cannot be shared, so the job waits in vain; the scene ipc shows that it fails alike"
    if place == "replacing" and habit in OF_PRELOADED:
        return "this form of the layer hooks neither dlsym nor NVML, so the cell would repeat well_behaved"
    return None


def every_cell(habits):
    return list(itertools.product(habits or [one for one in HABITS if one not in OTHER_HOLDS | {"host_pids"}], PLACES, STRATEGIES, SCENES))


class TorchBench(Bench):
    """The runs of the cells, each with PyTorch in a process of its own. A process imports torch once for many of them."""

    def __init__(self, folder, artifacts, simgpu):
        super().__init__(folder, artifacts, simgpu)
        self.ran = {}

    def environment(self, habit, place, strategy):
        environment = super().environment(habit, place, strategy)
        preloads = [one for one in environment["LD_PRELOAD"].split(":") if one]
        environment["LD_PRELOAD"] = ":".join(preloads + [str(self.simgpu / name) for name in STAND_INS])
        return environment | {"LAYER_LIMIT": "4GiB", "SIMGPU_MEMORY": "8GiB", "PYTHONDONTWRITEBYTECODE": "1"}

    def prepare(self, cells, processes):
        """Runs the jobs of all cells, with `processes` at the same time."""
        runs = set()
        for habit, place, strategy, scene in cells:
            if not not_applicable(habit, place, strategy, scene):
                runs |= {(habit, place, strategy, scene), (habit, where_alone(place), None, scene)}
        parents = {}
        for habit, place, strategy, scene in sorted(runs, key=str):
            at_start = habit if habit in OF_LOOK_UP else "well_behaved"
            parents.setdefault((at_start, place, strategy, SCENES[scene][1]), []).append((habit, scene))
        with concurrent.futures.ThreadPoolExecutor(processes) as pool:
            list(pool.map(self.run_children, parents, parents.values()))

    def run_children(self, parent, jobs):
        at_start, place, strategy, settings = parent
        environment = self.environment(at_start, place, strategy) | settings_of(settings)
        command = [python(), ROOT / "tests/frameworks/jobs.py"]
        forks = subprocess.Popen(command, cwd=self.folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        for habit, scene in jobs:
            with tempfile.TemporaryDirectory(dir=self.folder) as folder:
                order = {
                    "arguments": [str(ROOT / "tests/frameworks" / SCENES[scene][0])],
                    "environment": HABITS[habit] | {"SIMGPU_STATE": f"{folder}/state"}, "folder": folder, "seconds": TIME_LIMIT_S,
                }
                if (place, scene) == ("in_front", "out_of_memory"):
                    order["arguments"].append("in_front")
                print(json.dumps(order), file=forks.stdin, flush=True)
                while not Path(folder, "status").exists():
                    if forks.poll() is not None:
                        raise RuntimeError(f"{parent}: jobs.py ends with {forks.returncode}")
                    time.sleep(0.01)
                status, output, errors = (Path(folder, name).read_text() for name in ("status", "out", "err"))
                code = os.waitstatus_to_exitcode(int(status))
                self.ran[habit, place, strategy, scene] = TorchRun(code, output, errors)
        forks.stdin.close()
        forks.wait()
        print(f"{at_start}, {place}, {strategy or 'alone'}, {settings or 'no setting'}: {len(jobs)} jobs have run",
              file=sys.stderr, flush=True)

    def run(self, habit, place, strategy, scene):
        return self.ran[habit, where_alone(place) if strategy is None else place, strategy, scene]


def where_alone(place):
    """Without the library, nothing is in front of it or behind it."""
    return "behind" if place == "in_front" else place


def settings_of(words):
    return {name: words for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF") if words}


class TorchRun(Run):
    def __init__(self, code, output, errors):
        super().__init__(code, output, errors)
        lines = output.splitlines()
        self.checkpoints = [json.loads(line) for line in lines if line.startswith("{")]
        # Losses, the text of out of memory, and that the other process saw the bytes. Times differ from run to run.
        self.words = [line for line in lines if not line.startswith(("{", "agreed: ", "milliseconds "))]
        python_lines = [line for line in errors.splitlines() if "Error" in line or "exited" in line]
        # The free bytes that PyTorch tells next include those of the policy.
        self.problem = python_lines[-1].split(" of which ")[0] if python_lines else "no line of Python"


def compare_failures(alone, with_library, result):
    result.that("the error's line", with_library.problem == alone.problem,
                f"fails with {with_library.problem!r}, alone {alone.problem!r}")
    result.that("what was printed until then", with_library.words == alone.words,
                f"printed {with_library.words[-1:]}, alone {alone.words[-1:]}")
    return True


def compare_ends(bench, cell, alone, with_library, result):
    habit, place, _strategy, scene = cell
    if alone.code == 0:
        result.that("what the job printed", with_library.words == alone.words, f"printed {with_library.words}, alone {alone.words}")
        result.that("checkpoints", len(with_library.checkpoints) == len(alone.checkpoints),
                    f"{len(with_library.checkpoints)} checkpoints, alone {len(alone.checkpoints)}")
    # The other jobs ask for little or no linear memory, and over a layer in front that takes managed memory all do.
    if scene in ("train", "out_of_memory", "share") and not (place == "in_front" and habit in LINEAR_ALONE):
        did = done_instead(with_library)
        # The strategy says so when mapping has failed three times. The job `share` grows less often.
        if (did, scene) == (None, "share") and maps_nothing(with_library) and bench.forecast(*cell[:3]) == "chunks":
            did = "chunks"
        compare_strategy(bench, cell, did, False, result)


def maps_nothing(run):
    """Whether memory was taken, and none of it was mapped."""
    rows = [row for one in run.checkpoints for row in one["truth"]["totals"] if row["reserved"]]
    return bool(rows) and all(row["class"] not in ("vmm", "address_range") for row in rows)


judge = functools.partial(matrix.judge, not_applicable=not_applicable, failures=compare_failures, ends=compare_ends)
