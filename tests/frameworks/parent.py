"""Starts jobs of PyTorch under `vramshim run` for scripts, each in a fork of a process that has imported torch (jobs.py)."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
PYTHON = os.environ.get("VRAMSHIM_FRAMEWORKS", str(Path.home() / ".cache/vramshim/frameworks")) + "/bin/python"
PROGRAM = Path(os.environ.get("VRAMSHIM_ARTIFACTS", HERE.parent.parent / "target/release")) / "vramshim"


class Parent:
    def __init__(self, mode, folder):
        self.folder = folder
        command = [PROGRAM, "run", "-q", "--sim", "8GiB", "--torch", mode, "--dir", folder / mode, "--", PYTHON]
        self.process = subprocess.Popen(
            command + [HERE / "jobs.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if self.process.stdout.readline() != "ready\n":
            sys.exit(f"PyTorch does not start: see {PYTHON}")

    def start(self, arguments, memory, variables):
        """Starts a job on a device of this size. Returns its folder, which gets the files out, err and status."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        environment = {
            "VRAMSHIM_DIR": str(folder / "journals"),
            "SIMGPU_STATE": str(folder / "state"),
            "SIMGPU_MEMORY": str(memory),
            **variables,
        }
        arguments = [str(argument) for argument in arguments]
        order = {"arguments": arguments, "environment": environment, "folder": str(folder), "seconds": 300}
        print(json.dumps(order), file=self.process.stdin, flush=True)
        return folder

    def await_file(self, path):
        while not path.exists():
            if self.process.poll() is not None:
                sys.exit("the process that forks has ended")
            time.sleep(0.005)
        return path.read_text()

    def run(self, arguments, memory, variables):
        """Runs a job. Returns its folder, and whether its memory sufficed."""
        folder = self.start(arguments, memory, variables)
        code = os.waitstatus_to_exitcode(int(self.await_file(folder / "status")))
        if code not in (0, 3):
            sys.exit(f"{arguments} ended with {code}:\n{(folder / 'err').read_text()[-2000:]}")
        return folder, code == 0

    def end(self):
        self.process.stdin.close()
        self.process.wait()
