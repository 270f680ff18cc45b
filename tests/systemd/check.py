"""Runs as a service of a real systemd: starts a job with the drop-in and vramshim-serve.service, and looks at both."""

import glob
import os
import re
import signal
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request

UNITS = ["vramshim-serve.service", "job.service"]
JOURNALS, GROUP = "/var/log/vramshim", 65533
HELD = re.compile(r'^vramshim_allocated_bytes\{.*job_name="job".*\} 67108864$', re.M)
# DynamicUser=yes takes a user from these.
DYNAMIC = range(61184, 65520)


def that(truth, message):
    if truth:
        return
    print(message)
    subprocess.run(["journalctl", "--no-pager", "--output=short-monotonic"])
    sys.exit(1)


def systemctl(*arguments):
    ran = subprocess.run(["systemctl", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    that(ran.returncode == 0, f"systemctl {' '.join(arguments)}: {ran.stdout}")
    return ran.stdout


def shown(unit, name):
    return systemctl("show", "--value", f"--property={name}", unit).strip()


def status(pid):
    with open(f"/proc/{pid}/status") as file:
        return dict(re.findall(r"^(\w+):\s*(.*)$", file.read(), re.M))


def serves():
    """Waits until serve has the job, and returns its process."""
    until = time.monotonic() + 120
    text = "no answer"
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen("http://127.0.0.1:9087/metrics", timeout=5) as answer:
                text = answer.read().decode()
            if HELD.search(text):
                return int(shown("vramshim-serve", "MainPID"))
        except OSError:
            pass
        time.sleep(0.05)
    that(False, f"serve does not have the job: {text}")


def complaints():
    """What systemd says of the units. It only warns of a key that it does not know."""
    return subprocess.run(["systemd-analyze", "verify", "--man=no", *UNITS], stderr=subprocess.PIPE, text=True).stderr


said = complaints()
that(not said, f"systemd says of the units: {said}")
folder = os.stat(JOURNALS)
about = (stat.S_IMODE(folder.st_mode), folder.st_uid, folder.st_gid)
that(about == (0o3777, 0, GROUP), f"the folder of the journals: {folder}")

systemctl("start", "job")
journals = glob.glob(f"{JOURNALS}/*.vraj")
that(len(journals) == 1, f"the journals of the job: {journals}")
journal = os.stat(journals[0])
that((stat.S_IMODE(journal.st_mode), journal.st_gid) == (0o640, GROUP), f"the journal: {journal}")
that(journal.st_uid in DYNAMIC, f"the job's user is {journal.st_uid}")
print("a service with the drop-in writes its journal")

systemctl("start", "vramshim-serve")
first = serves()
about = status(first)
user = int(about["Uid"].split()[0])
that(user in DYNAMIC and user != journal.st_uid, f"serve is of user {user}")
that(str(GROUP) in about["Groups"].split(), f"the groups of serve: {about['Groups']}")
rights = {about[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}
that(rights == {"0" * 16}, f"the capabilities of serve: {rights}")
that((about["NoNewPrivs"], about["Seccomp"]) == ("1", "2"), f"serve may get more rights: {about}")
that(shown("vramshim-serve", "MemoryMax") == "268435456", "serve has another limit of memory")
allowed = shown("vramshim-serve", "DeviceAllow").split()
devices = dict(zip(allowed[::2], allowed[1::2], strict=True))
# ProtectClock lets the clock be read.
wanted = {"char-nvidia": "rw", "char-nvidia-frontend": "rw", "char-nvidia-caps": "r", "char-rtc": "r"}
that((shown("vramshim-serve", "DevicePolicy"), devices) == ("closed", wanted), f"the devices of serve: {devices}")
print("vramshim-serve.service has the job's metrics, without root")

systemctl("daemon-reload")
that(serves() == first, "serve does not survive a reload of the units")
os.kill(first, signal.SIGKILL)
that(serves() != first and shown("vramshim-serve", "NRestarts") == "1", "serve is not started again")
systemctl("stop", "vramshim-serve")
ended = [shown("vramshim-serve", name) for name in ("Result", "ExecMainCode", "ExecMainStatus")]
that(ended == ["success", "1", "0"], f"serve ended with {ended}")
print("it survives a reload, comes back after SIGKILL, and ends with 0")

# Each user of the machine may use this device.
os.mknod("/dev/nvidia0", stat.S_IFCHR | 0o666, os.makedev(1, 3))
os.chmod("/dev/nvidia0", 0o666)
systemctl("start", "probe")
print("a program in its place can read the journals, and do nothing that the unit forbids")
systemctl("stop", "job")
