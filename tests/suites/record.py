"""A plugin for pytest that writes what becomes of each test to a file, at once, so a crash of pytest loses nothing.

SUITE_RECORD names the file. It has a line of JSON for each event: {"test": ID, "outcome": OUTCOME}. The outcome "began"
is written before a test runs. Tests that the file names already are left out, so a suite goes on after a crash.

SUITE_ONLY names a file with a test a line; other tests are left out.
"""

import json
import os
from pathlib import Path

RECORD = os.environ["SUITE_RECORD"]
ONLY = set(Path(os.environ["SUITE_ONLY"]).read_text().splitlines()) if "SUITE_ONLY" in os.environ else None
# If a test has several reports (set-up, call, sub-tests, tear-down), the last of this list counts.
RISING = ["passed", "xpassed", "skipped", "xfailed", "failed", "error"]

worst = {}


def write(test, outcome):
    with open(RECORD, "a") as file:
        file.write(json.dumps({"test": test, "outcome": outcome}) + "\n")


def outcome_of(report):
    if hasattr(report, "wasxfail"):
        return "xpassed" if report.passed else "xfailed"
    return "error" if report.failed and report.when != "call" else report.outcome


def pytest_collection_modifyitems(config, items):
    with open(RECORD) as file:
        known = {json.loads(line)["test"] for line in file}
    wanted = {item for item in items if item.nodeid not in known and (ONLY is None or item.nodeid in ONLY)}
    left_out = [item for item in items if item not in wanted]
    items[:] = [item for item in items if item in wanted]
    if left_out:
        config.hook.pytest_deselected(items=left_out)


def pytest_collectreport(report):
    if not report.passed:
        write(report.nodeid, "error" if report.failed else "skipped")


def pytest_runtest_logstart(nodeid, location):
    worst.clear()
    write(nodeid, "began")


def pytest_runtest_logreport(report):
    worst[report.nodeid] = max(worst.get(report.nodeid, "passed"), outcome_of(report), key=RISING.index)


def pytest_runtest_logfinish(nodeid, location):
    write(nodeid, worst.get(nodeid, "error"))
