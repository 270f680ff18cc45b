"""Checks the files of scripts/systemd with systemd's own programs, and runs what the units name."""

import os
import re
import shutil
import stat
import subprocess
import urllib.request

LIBRARY, PROGRAM, JOURNALS, LISTEN = (
    "/usr/lib/vramshim/lib/libvramshim.so",
    "/usr/bin/vramshim",
    "/var/log/vramshim",
    "127.0.0.1:9087",
)
GROUP = 65533


def that(truth, message):
    if not truth:
        raise SystemExit(f"test-kubernetes: {message}")


def values(text, key):
    return re.findall(rf"^{key}=(.*)$", text, re.M)


def complaints(units, unit):
    """What systemd says of the units in a folder. It only warns of a key that it does not know. Units of this machine may
    have faults of their own."""
    ran = subprocess.run(["systemd-analyze", "verify", "--man=no", f"{units}/{unit}"], capture_output=True, text=True,
                         env={**os.environ, "SYSTEMD_UNIT_PATH": f"{units}:"})
    own = [line for line in ran.stderr.splitlines() if units in line or unit in line]
    return own or ([ran.stderr] if ran.returncode else [])


def verify(systemd, artifacts, work):
    units = f"{work}/units"
    os.makedirs(f"{units}/job.service.d")
    with open(f"{systemd}/vramshim-serve.service") as file:
        # systemd looks whether the program is there.
        serve = file.read().replace(f"={PROGRAM} ", f"={artifacts}/vramshim ")
    with open(f"{units}/vramshim-serve.service", "w") as file:
        file.write(serve)
    with open(f"{units}/job.service", "w") as file:
        file.write("[Service]\nExecStart=/bin/true\n")
    drop_in = f"{units}/job.service.d/vramshim.conf"
    shutil.copy(f"{systemd}/job.conf", drop_in)
    for unit in ("vramshim-serve.service", "job.service"):
        said = complaints(units, unit)
        that(not said, f"systemd says of {unit}: {said}")
    # What is checked must be able to fail, for each of the files.
    with open(drop_in, "a") as file:
        file.write("Enviroment=A=1\n")
    that(complaints(units, "job.service"), "systemd takes a drop-in with a misspelt key")
    with open(f"{units}/vramshim-serve.service", "w") as file:
        file.write(serve.replace("MemoryMax=", "MemoryMaximum="))
    that(complaints(units, "vramshim-serve.service"), "systemd takes a unit with a misspelt key")


def make_folder(systemd, work):
    """The folder of the journals, made by systemd-tmpfiles below another root folder."""
    root = f"{work}/root"
    os.mkdir(root)
    command = ["systemd-tmpfiles", "--create", f"--root={root}", f"{systemd}/vramshim.tmpfiles.conf"]
    ran = subprocess.run(command, capture_output=True, text=True)
    that(ran.returncode == 0 and not ran.stderr, f"systemd-tmpfiles: {ran.stderr}")
    about = os.stat(root + JOURNALS)
    that((stat.S_IMODE(about.st_mode), about.st_uid, about.st_gid) == (0o2770, 0, GROUP), f"the folder: {about}")
    return root + JOURNALS


def run_for_real(systemd, artifacts, simgpu, job, folder, work):
    """A job with the variables of the drop-in, and `serve` with the arguments of the unit. systemd's limits are not set."""
    with open(f"{systemd}/job.conf") as file:
        assigned = [value.split("=", 1) for value in values(file.read(), "Environment")]
    environment = {name: value.replace(LIBRARY, f"{artifacts}/libvramshim.so").replace(JOURNALS, folder) for name, value in assigned}
    with open(f"{work}/service.py", "w") as file:
        file.write(job)
    ran = subprocess.run(["/usr/bin/python3", f"{work}/service.py"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                         cwd=work, env={"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": simgpu, **environment})
    that(ran.stdout == "holds\n", f"the service: {ran.stderr}")
    journals = [name for name in os.listdir(folder) if name.endswith(".vraj")]
    that(len(journals) == 1, f"the journals of the service: {journals}")
    about = os.stat(f"{folder}/{journals[0]}")
    that((stat.S_IMODE(about.st_mode), about.st_gid) == (0o640, GROUP), f"the journal of the service: {about}")
    with open(f"{systemd}/vramshim-serve.service") as file:
        [start] = values(file.read(), "ExecStart")
    that(start.startswith(PROGRAM + " ") and LISTEN in start, f"ExecStart={start}")
    command = [part.replace(JOURNALS, folder).replace(LISTEN, "127.0.0.1:0") for part in start.split()[1:]]
    served = subprocess.Popen([f"{artifacts}/vramshim", *command], stderr=subprocess.PIPE, text=True)
    try:
        said = served.stderr.readline()
        found = re.search(r"http://([^/]*)/metrics", said)
        that(found, f"serve said {said!r}")
        with urllib.request.urlopen(f"http://{found[1]}/metrics") as answer:
            text = answer.read().decode()
        held = re.search(r"^vramshim_requested_bytes\{.*job=\"service\".*\} 67108864$", text, re.M)
        that(held, f"serve does not have the job:\n{text}")
    finally:
        served.kill()
        served.wait()


def check(root, artifacts, simgpu, job, work):
    """Returns what was left out."""
    if not shutil.which("systemd-analyze") or not shutil.which("systemd-tmpfiles"):
        return ["the units of systemd (Debian: apt-get install systemd)"]
    systemd = f"{root}/scripts/systemd"
    verify(systemd, artifacts, work)
    print("systemd takes the unit and the drop-in")
    if os.geteuid() != 0:
        return ["the folder of the journals by systemd-tmpfiles (it takes root)"]
    run_for_real(systemd, artifacts, simgpu, job, make_folder(systemd, work), work)
    print("systemd-tmpfiles makes the folder, a job with the drop-in's variables writes there, and the unit's command serves it")
    return []
