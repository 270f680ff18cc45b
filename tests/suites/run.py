"""Runs one suite in one configuration, and tells what became of each test.

pytest writes each outcome to a file at once (record.py). If pytest crashes, or a test takes too long, that test gets
its outcome here, and pytest is started again for the tests that are left.
"""

import json
import os
import resource
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
STAND_INS = ["libcublas.so.*", "libcublasLt.so.*", "libcudnn.so.9", "libcudart.so.12", "libcudart.so.13"]
# Variables that would make two configurations differ in more than the library.
OURS = ("VRAMSHIM_", "SIMGPU_", "FLAGS_", "CUDA_", "LD_", "PYTHON", "PYTEST_", "SUITE_")
# pytest's own exit statuses: all passed, some failed, interrupted, ... ; a crash gives another.
ENDED = {0, 1, 5}


@dataclass
class Place:
    """Where things are, and how long a test may take."""

    library: Path
    simulator: Path
    environments: Path
    work: Path
    test_seconds: float


def limit_process():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class Run:
    """`strategy` None means without the library. `again` tells several runs of one configuration apart. `only`,
    if given, has the tests that run. `fill` is the byte that memory has which nothing wrote; None: whatever is there."""

    def __init__(self, place, suite, strategy, quick, again=0, only=None, fill=None):
        self.place, self.suite, self.strategy, self.quick = place, suite, strategy, quick
        self.only, self.fill = only, fill
        details = [f".{again}" * bool(again), f".fill{fill}" * (fill is not None), ".only" * (only is not None)]
        self.name = (strategy or "without") + "".join(details)
        self.folder = place.work / suite.name / self.name
        self.record = self.folder / "record.jsonl"
        self.home = place.environments / suite.environment
        self.packages = next(self.home.glob("lib/python*/site-packages"))

    def environment(self):
        place, suite = self.place, self.suite
        kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        preloads = sorted(path for pattern in STAND_INS for path in place.simulator.glob(pattern))
        if self.strategy:
            preloads.insert(0, place.library)
            kept |= {"VRAMSHIM_STRATEGY": self.strategy, "VRAMSHIM_DIR": str(self.folder / "journals")}
        if self.fill is not None:
            kept |= {"SIMGPU_FRESH": str(self.fill), "SUITE_FILL": str(self.fill)}
        if self.only is not None:
            kept["SUITE_ONLY"] = str(self.folder / "only")
        folders = [place.simulator] + [place.simulator / "libraries"] * suite.stand_ins
        folders += [self.packages / folder for folder in suite.libraries]
        return kept | {
            "LD_PRELOAD": ":".join(map(str, preloads)),
            "LD_LIBRARY_PATH": ":".join(map(str, folders)),
            "SIMGPU_MEMORY": suite.memory,
            "SIMGPU_DEVICES": "2",
            "SIMGPU_STATE": str(self.folder / "gpu"),
            "PYTHONPATH": str(HERE),
            "PYTHONHASHSEED": "0",
            "SUITE_RECORD": str(self.record),
            "TMPDIR": str(self.folder / "tmp"),
            "HOME": str(self.folder / "home"),
        } | suite.variables

    def command(self):
        suite = self.suite
        tests = suite.quick if self.quick else suite.tests
        names = ["record", *["unwritten"] * (self.fill is not None), *suite.plugins]
        plugins = [word for name in names for word in ("-p", name)]
        if suite.root:
            tests = [str(suite.root / test) for test in tests]
        # pytest names a test by its path below the root folder.
        options = ["-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", suite.root or self.packages]
        options += ["--tb=short", "--import-mode=importlib", "--continue-on-collection-errors", "--pyargs"]
        return [self.home / "bin/python", "-m", "pytest", *plugins, *options, *suite.options, *tests]

    def outcomes(self):
        """Returns {test: outcome}."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for name in ("tmp", "home", "journals"):
            (self.folder / name).mkdir(parents=True)
        self.record.touch()
        (self.folder / "only").write_text("".join(f"{test}\n" for test in self.only or ()))
        while True:
            before = self.record.stat().st_size
            ended, verdict = self.pytest()
            if ended:
                break
            found = self.read()
            began = [test for test, outcome in found.items() if outcome == "began"]
            self.write(began, verdict)
            if not began and self.record.stat().st_size == before:
                # pytest itself does not run: no later attempt would get further.
                self.write([f"pytest of {self.suite.name}"], verdict)
                break
            if not began:
                self.write([f"pytest of {self.suite.name}, after {len(found)} tests"], verdict)
        found = self.read()
        if self.strategy and self.suite.uses_cuda and not any(self.folder.glob("journals/**/*.vraj")):
            # The loader goes on without a library that it cannot load.
            found["the library leaves a journal"] = "failed"
        shutil.rmtree(self.folder / "journals", ignore_errors=True)
        shutil.rmtree(self.folder / "tmp", ignore_errors=True)
        return found

    def read(self):
        lines = self.record.read_text().splitlines()
        return {event["test"]: event["outcome"] for event in map(json.loads, lines)}

    def write(self, tests, outcome):
        with self.record.open("a") as file:
            for test in tests:
                file.write(json.dumps({"test": test, "outcome": outcome}) + "\n")

    def pytest(self):
        """Returns whether pytest came to its end, and otherwise the outcome of the test that it was at."""
        with (self.folder / "log").open("a") as log:
            process = subprocess.Popen(
                self.command(),
                cwd=self.folder / "tmp",
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=limit_process,
            )
            try:
                verdict = self.wait(process)
            finally:
                kill_group(process)
        return process.returncode in ENDED and verdict is None, verdict or "crashed"

    def wait(self, process):
        """Waits for the end of pytest, or until no outcome has come for too long."""
        size, since = -1, time.monotonic()
        while process.poll() is None:
            now = self.record.stat().st_size
            if now != size:
                size, since = now, time.monotonic()
            elif time.monotonic() - since > self.place.test_seconds:
                return "timed out"
            time.sleep(0.1)
        return None


def kill_group(process):
    """Ends pytest and what its tests left running."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
