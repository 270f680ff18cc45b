#!/usr/bin/env python3
"""Runs other projects' tests without the library and under each strategy, and compares what became of each test.

The simulated GPU's kernels do nothing, so many of the tests fail. They must fail without the library too. A test whose
outcome differs between two runs without the library is named and left out.

Some tests read memory that nothing wrote: what a kernel should have written, or what numpy.empty returned. No driver
promises its bytes. So the files of the tests that differ run again, with the same byte in all such memory, without the
library and under each strategy. A test that ends alike in all these runs, for each byte, is no witness: it is named and
counted apart.
"""

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from run import Place, Run
from suites import SELF_TEST, SUITES

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = Path(os.environ.get("VRAMSHIM_ARTIFACTS", ROOT / "target/release")).resolve() / "libvramshim.so"
SIMULATOR = Path(os.environ.get("VRAMSHIM_SIMGPU", ROOT / "target/simgpu")).resolve()
CACHE = os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")
ENVIRONMENTS = Path(os.environ.get("VRAMSHIM_CACHE", Path(CACHE) / "vramshim")) / "suites"
STRATEGIES = ["passthrough", "naive_best_fit", "auto_growth"]
ABSENT = "absent"
# Bytes that memory has which nothing wrote.
FILLS = [0, 165]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    suites_help = "only these suites; TESTS, with commas, are what pytest is told to run"
    parser.add_argument("suites", nargs="*", metavar="SUITE[:TESTS]", help=suites_help)
    parser.add_argument("--quick", action="store_true", help="a sample that takes about two minutes")
    parser.add_argument("--strategy", action="append", choices=STRATEGIES, help="only this strategy (may be repeated)")
    parser.add_argument("--json", action="store_true", help="print JSON, with the outcome of each test")
    parser.add_argument("--self-test", action="store_true", help="run tests that must give differences")
    parser.add_argument("--keep", metavar="FOLDER", type=Path, help="keep the output of pytest here")
    seconds_help = "longest time of one test [180]"
    parser.add_argument("--test-seconds", type=float, default=180, metavar="SECONDS", help=seconds_help)
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="runs at the same time [2]")
    once_help = "one run without the library instead of two; the files of tests that differ still run twice more"
    parser.add_argument("--once", action="store_true", help=once_help)
    given = parser.parse_args()
    named = {suite.name: suite for suite in SUITES}
    chosen = []
    for word in given.suites or named:
        name, _, tests = word.partition(":")
        if name not in named:
            parser.error(f"no suite {name}; suites: {', '.join(named)}")
        chosen.append(replace(named[name], tests=tests.split(",")) if tests else named[name])
    if given.quick:
        chosen = [suite for suite in chosen if suite.quick]
    given.suites = [SELF_TEST] if given.self_test else chosen
    if not given.suites:
        parser.error("none of these suites has a quick form")
    return given, parser


def disagreeing(runs):
    """The tests that have not the same outcome in all runs."""
    tests = set().union(*runs)
    return {test for test in tests if len({run.get(test, ABSENT) for run in runs}) > 1}


def file_of(test):
    return test.partition("::")[0]


class Comparison:
    """One suite: the runs without the library, the run under each strategy, and what follows from them."""

    def __init__(self, suite, bare, under):
        self.suite, self.bare, self.under = suite, bare, under
        self.flaky = sorted(disagreeing(bare))
        self.unwritten = {}
        self.settle()

    def settle(self):
        reference = self.bare[0]
        tests = set(reference).union(*self.under.values()) - set(self.flaky)
        self.tests = len(tests)
        found = [
            {"test": test, "strategy": strategy, "without": reference.get(test, ABSENT), "with": run.get(test, ABSENT)}
            for strategy, run in self.under.items()
            for test in sorted(tests)
            if reference.get(test, ABSENT) != run.get(test, ABSENT)
        ]
        self.differences = [one for one in found if one["test"] not in self.unwritten]
        self.equal = self.tests - len({one["test"] for one in found})
        self.counts = Counter(reference[test] for test in tests if test in reference)

    def files(self):
        """The tests of the files that have a test that differs, so that these run in the company that they had."""
        files = {file_of(one["test"]) for one in self.differences}
        return sorted(test for test in set(self.bare[0]).union(*self.under.values()) if file_of(test) in files)

    def examine(self, bare, filled):
        """`bare`: the files of the tests that differ, again without the library. `filled`: by fill, the same without the
        library and then under each strategy."""
        differing = {one["test"] for one in self.differences}
        self.flaky = sorted(set(self.flaky) | (disagreeing(bare) & differing))
        for test in differing - set(self.flaky):
            outcomes = {fill: {run.get(test, ABSENT) for run in runs} for fill, runs in filled.items()}
            ends_alike = all(len(each) == 1 and ABSENT not in each for each in outcomes.values())
            # If no fill gives the outcome that the test had, the fill has broken the test.
            if ends_alike and {self.bare[0].get(test)} in outcomes.values():
                self.unwritten[test] = {str(fill): each.pop() for fill, each in outcomes.items()}
        self.settle()

    def as_json(self):
        return {
            "suite": self.suite.name,
            "tests": self.tests,
            "equal": self.equal,
            "outcomes_without": dict(self.counts),
            "flaky": self.flaky,
            "unwritten": self.unwritten,
            "differences": self.differences,
            "runs": {"without": self.bare[0], **self.under},
        }

    def row(self):
        passed, skipped = self.counts["passed"], self.counts["skipped"]
        others = self.tests - passed - skipped
        apart = [len(self.flaky), len(self.unwritten), len(self.differences)]
        return [self.suite.name, self.tests, self.equal, passed, skipped, others, *apart]


def compare(given, place, pool):
    """Runs all suites. The runs of one suite wait for nothing but a free job."""
    strategies = given.strategy or STRATEGIES

    def start(suite, strategy, again=0, only=None, fill=None):
        return pool.submit(Run(place, suite, strategy, given.quick, again, only, fill).outcomes)

    def start_all(suite):
        bare = [start(suite, None, again) for again in range(1 if given.once else 2)]
        return suite, bare, {strategy: start(suite, strategy) for strategy in strategies}

    for suite, bare, under in [start_all(suite) for suite in given.suites]:
        bare = [run.result() for run in bare]
        under = {strategy: run.result() for strategy, run in under.items()}
        comparison = Comparison(suite, bare, under)
        if comparison.differences:
            only = comparison.files()
            # A test may be flaky and yet have been equal in two runs.
            again = [start(suite, None, again, only) for again in (2, 3)]
            filled = {fill: [start(suite, each, 0, only, fill) for each in (None, *strategies)] for fill in FILLS}
            filled = {fill: [run.result() for run in runs] for fill, runs in filled.items()}
            comparison.examine([run.result() for run in again], filled)
        yield comparison


def print_table(comparisons):
    head = ["suite", "tests", "equal", "passed", "skipped", "failed", "flaky", "unwritten", "differences"]
    rows = [head] + [[str(cell) for cell in one.row()] for one in comparisons]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths)]
        print("  ".join([row[0].ljust(widths[0])] + cells[1:]))
    for one in comparisons:
        for test in one.flaky:
            print(f"{one.suite.name}: left out, differs between runs without the library: {test}")
        for test, outcomes in sorted(one.unwritten.items()):
            told = ", ".join(f"{outcome} in all runs with {fill}" for fill, outcome in outcomes.items())
            print(f"{one.suite.name}: depends on memory that nothing wrote: {test}: {told} there")
        if not one.counts["passed"]:
            print(f"{one.suite.name}: no test passes without the library, so nothing was compared")
        for difference in one.differences:
            print(
                f"{one.suite.name}: {difference['test']}: {difference['without']} without the library, "
                f"{difference['with']} under {difference['strategy']}"
            )


def main():
    given, parser = arguments()
    for needed in (LIBRARY, SIMULATOR / "libcuda.so.1"):
        if not needed.exists():
            parser.error(f"{needed} does not exist; run scripts/build, or set VRAMSHIM_ARTIFACTS and VRAMSHIM_SIMGPU")
    for suite in given.suites:
        if not (ENVIRONMENTS / suite.environment / ".vramshim-complete").exists():
            parser.error(f"{suite.name} is not set up; run scripts/ci/setup suites {suite.environment}")
    with tempfile.TemporaryDirectory(prefix="vramshim-suites.") as scratch:
        work = given.keep or Path(scratch)
        place = Place(LIBRARY, SIMULATOR, ENVIRONMENTS, work.resolve(), given.test_seconds)
        with ThreadPoolExecutor(given.jobs) as pool:
            comparisons = list(compare(given, place, pool))
    if given.json:
        print(json.dumps([one.as_json() for one in comparisons], indent=1, sort_keys=True))
    else:
        print_table(comparisons)
    return 1 if any(one.differences or not one.counts["passed"] for one in comparisons) else 0


if __name__ == "__main__":
    sys.exit(main())
