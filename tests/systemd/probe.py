"""Tries what vramshim-serve.service forbids. It runs in the place of `serve`, under the settings of the unit."""

import ctypes
import errno
import glob
import os
import signal
import socket
import sys

faults = []


def that(truth, message):
    if not truth:
        faults.append(message)


def refused(action, *errors):
    try:
        action()
    except OSError as error:
        return error.errno in errors
    return False


def writes(folder):
    """Whether a new file can be made in the folder."""
    try:
        with open(f"{folder}/probe", "w"):
            return True
    except OSError:
        return False


def killed_by(call):
    """The signal that ends a process which makes the call, or 0."""
    child = os.fork()
    if child == 0:
        call()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


journals = glob.glob("/var/log/vramshim/*.vraj")
that(len(journals) == 1 and open(journals[0], "rb").read(4), f"the journals cannot be read: {journals}")
# The group of the journals may write in their folder, and only the sandbox of the unit forbids it.
that(os.access("/var/log/vramshim", os.R_OK | os.X_OK), "the folder of the journals cannot be read")
that(refused(lambda: open("/var/log/vramshim/probe", "w"), errno.EROFS), "the folder of the journals can be written")
for folder in ("/", "/etc", "/usr", "/var", "/var/lib", "/home", "/root", "/run", "/mnt", "/sys/fs/cgroup", "/proc/sys/kernel"):
    that(not writes(folder), f"a file can be made in {folder}")
that(writes("/tmp"), "no file can be made in /tmp")
that(refused(lambda: os.stat("/home/user/file"), errno.EACCES, errno.ENOENT), "/home can be read")
that(os.access("/dev/nvidia0", os.R_OK | os.W_OK), "NVML does not get the device")
that(os.statvfs("/sys/fs/cgroup").f_flag & os.ST_RDONLY, "the cgroups can be written")
that(refused(lambda: open("/proc/kallsyms"), errno.EACCES), "the addresses of the kernel can be read")
for family in (socket.AF_NETLINK, socket.AF_PACKET, socket.AF_ALG):
    that(refused(lambda: socket.socket(family, socket.SOCK_RAW), errno.EAFNOSUPPORT), f"a socket of {family.name} can be made")
libc = ctypes.CDLL(None)
that(killed_by(lambda: libc.mount(None, None, None, 0, None)) == signal.SIGSYS, "mount() can be called")
sys.exit("\n".join(faults) or 0)
