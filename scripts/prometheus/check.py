"""Compares each query of the dashboard in a real Prometheus with the journals of eight jobs, three of which are dead.

usage: check.py PROMETHEUS INSTANCE VRAMSHIM JOURNALS HOLDER SINCE_NS

INSTANCE is what Prometheus calls `vramshim serve`, HOLDER the program of tests/reconcile/holder.c, and SINCE_NS the time when
serve started, in nanoseconds after 1970. The environment names the simulated GPU of serve.
"""
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections import Counter
from pathlib import Path

prometheus, instance, vramshim, journals, holder, since_ns = sys.argv[1:]
MIB = 1 << 20
CONTEXT = int(os.environ["SIMGPU_CONTEXT_BYTES"])
BOARD = json.loads((Path(__file__).parent / "dashboard.json").read_text())
# An address on this machine needs no proxy.
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def asked(expression):
    with opener.open(f"{prometheus}/api/v1/query?query={urllib.parse.quote(expression)}", timeout=9) as answer:
        return json.load(answer)["data"]["result"]


class Job:
    def __init__(self, number):
        self.hidden, limit = 0, ["--limit", "8GiB"] if number % 4 < 2 else []
        environment = os.environ | {"VRAMSHIM_DIR": journals, "RANK": str(number)}
        environment |= {"VRAMSHIM_POD": f"team/pod-{number % 4}"} if number < 6 else {}
        strategy = ["passthrough", "auto_growth"][number % 2]
        command = [vramshim, "run", "--sim", "2x24GiB", "--strategy", strategy, *limit, "--", holder]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env=environment, **pipes)
        self.tell(f"device {number // 2 % 2}")
        for line in [f"alloc {100 + 10 * number}", f"alloc {300 + number}", "free"]:
            self.tell(line)
        if number in (1, 4, 6):
            self.tell(f"hide {64 + number}")
            self.hidden = (64 + number) * MIB

    def tell(self, line):
        print(line, file=self.process.stdin, flush=True)
        return self.process.stdout.readline()


def expected(jobs, device):
    """By panel and legend: what the journals say of the devices that the variable matches."""
    truth = {panel["title"]: Counter() for panel in BOARD["panels"]}
    pages = json.loads(subprocess.check_output([vramshim, "inspect", "--json", journals]))["jobs"]
    hidden = {job.process.pid: job.hidden for job in jobs}
    together, limits = truth["Memory of the selected devices, together"], {}
    uuids = {row["uuid"]: row["total_memory"] for page in pages for row in page["devices"] if re.fullmatch(device, row["uuid"])}
    for uuid in uuids:
        truth["Others on each device: not under the library"][f"{instance} {uuid}"] = 0
        truth["Share of each device that is in use"][f"{instance} {uuid}: all, by NVML"] = 0
    for page in pages:
        runs = page["ended"] == "running"
        truth["Processes"][f"{instance} {'running' if runs else 'ended'}"] += 1
        if page["failed_calls"] and page["start_time_ns"] > int(since_ns):
            truth["Failed requests by verdict"][page["why"]["verdict"]] += page["failed_calls"]
        if page["start_time_ns"] > int(since_ns) and page["ended"] == "without_exit":
            truth["Processes"][f"{instance} ended badly: killed"] += 1
        elif page["start_time_ns"] > int(since_ns) and page.get("exit_status"):
            truth["Processes"][f"{instance} ended badly: failed"] += 1
        for row in page["devices"] if runs else []:
            uuid, reserved, live = row["uuid"], row["reserved"]["current"], row["allocated"]["current"]
            if uuid not in uuids:
                continue
            name = f"{instance} {page['job']} {page['pid']}"
            # NVML tells the context if there is a limit. Else it is among what others hold.
            context = CONTEXT if row["limit"] else 0
            others = hidden[page["pid"]] + CONTEXT - context
            together.update({"live": live, "cached": reserved - live, "contexts": context, "others": others})
            all_of_device = reserved + CONTEXT + hidden[page["pid"]]
            truth["Share of each device that is in use"].update({
                f"{instance} {uuid}: all, by NVML": all_of_device / uuids[uuid],
                f"{instance} {uuid}: reserved under the library": reserved / uuids[uuid]})
            truth["Reserved of each device"][f"{instance} {uuid}"] += reserved
            truth["Others on each device: not under the library"][f"{instance} {uuid}"] += others
            rank = page["environment"]["RANK"]
            truth["Reserved by process: the ten largest"][f"{name} rank {rank} {uuid}"] = reserved
            truth["Live / reserved"][f"{name} {uuid}"] = live / reserved
            if pod := page["environment"].get("VRAMSHIM_POD"):
                truth["Pods: reserved and limit"][f"{pod} {uuid}"] += reserved
                if row["limit"]:
                    limits[f"{pod} {uuid}: limit"] = row["limit"]
            if row["limit"]:
                truth["Share of the limit"][f"{name} {uuid}"] = reserved / row["limit"]
            for of_class in row["classes"]:
                truth["Allocated by class"][of_class["class"]] += of_class["allocated"]["current"]
    together["capacity"] = sum(uuids.values())
    truth["Pods: reserved and limit"].update(limits)
    return {(title, legend): value for title, values in truth.items() for legend, value in values.items()}


def shown(device):
    """By panel and legend: what the dashboard shows."""
    values = {}
    for panel in BOARD["panels"]:
        for target in panel["targets"]:
            query = target["expr"].replace("$node", ".+").replace("$device", device).replace("$__rate_interval", "5m")
            for series in asked(query):
                label = lambda name: series["metric"].get(name[1], "")
                key = panel["title"], re.sub(r"{{(\w+)}}", label, target["legendFormat"])
                assert key not in values, f"two series of one name: {key}"
                values[key] = float(series["value"][1])
    return values


def differences(jobs, device):
    truth, board = expected(jobs, device), shown(device)
    # How fast jobs allocate is not in the journals. `increase` estimates: it is not a whole number.
    rate = board.pop(("Allocations a second", instance), 0)
    counts = ("Failed requests by verdict", "Processes")
    board = {key: round(value) if key[0] in counts else value for key, value in board.items()}
    keys = {key for key in truth | board if abs(truth.get(key, 0) - board.get(key, 0)) > 1e-9 * abs(truth.get(key, 0))}
    missing = {key for key in truth.keys() - board.keys() if truth[key]}
    told = [f"{key}: {board.get(key)}, and the journals say {truth.get(key)}" for key in sorted(keys | missing)]
    return told + ([] if rate > 0 else ["no allocations a second"]), len(board)


jobs = [Job(number) for number in range(8)]
try:
    jobs[2].process.send_signal(signal.SIGKILL)
    jobs[3].tell("alloc 40000")
    jobs[7].process.stdin.close()
    for number in (2, 3, 7):
        jobs[number].process.wait(60)
        jobs[number].hidden = 0
    until = time.monotonic() + 90
    for device in (".+", "GPU-51585f66-6d74-7b82-8990-979ea5acb3ba"):
        while (found := differences(jobs, device))[0] and time.monotonic() < until:
            time.sleep(1)
        if found[0]:
            sys.exit("\n".join([f"the dashboard is wrong for device {device}:", *found[0]]))
        print(f"device {device}: {found[1]} series of {len(BOARD['panels'])} panels are those of the journals")
finally:
    for job in jobs:
        job.process.kill()
