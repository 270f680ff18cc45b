"""The Python functions of `vramshim`, with the library in this process and without it."""

import ctypes
import errno
import os
import sys

import vramshim

MIB = 1 << 20


def refused(error, ask, *arguments):
    try:
        ask(*arguments)
    except error as refusal:
        return refusal
    raise AssertionError(f"{ask.__name__}{arguments} was not refused")


def without_the_library():
    assert not vramshim.is_loaded()
    assert "vramshim run" in str(refused(vramshim.NotLoaded, vramshim.stat, "pid"))
    assert vramshim.mark("never") is False and vramshim.figures() == {} and vramshim.verdict() is None


def train():
    """A function with a name that the stack shows."""
    # Calls through CDLL give up the interpreter's lock, and then no frames can be read.
    assert ctypes.PyDLL("libcuda.so.1").cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(3 * MIB)) == 0


def with_the_library(copy):
    assert vramshim.is_loaded() and vramshim.version().count(".") == 2
    assert refused(OSError, vramshim.set, "stacks", "python").errno == errno.ENODATA
    cuda, context, address = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
    assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(8 * MIB)) == 0

    assert vramshim.stat("device.0.requested") == 8 * MIB and "device.0.reserved" in vramshim.names()
    assert vramshim.stats()["requested"] == vramshim.stats(0, "linear")["requested"] == 8 * MIB
    assert vramshim.stats(vramshim.HOST)["live"] == 0
    assert [total["requested"]["current"] for total in vramshim.account()["totals"] if total["class"] == "linear"] == [8 * MIB]
    limit = vramshim.limit()
    assert (limit["limit"], limit["used"], limit["group"]) == (1 << 30, limit["used"], False), limit
    assert 8 * MIB <= limit["used"] and limit["available"] <= (1 << 30) - 8 * MIB, limit

    refused(ValueError, vramshim.stats, 77)
    refused(ValueError, vramshim.stats, 0, "nothing")
    refused(ValueError, vramshim.limit, 77)
    for ask in (vramshim.stats, vramshim.limit, vramshim.trim):
        refused(ValueError, ask, 7)
    assert refused(OSError, vramshim.stat, "device.0.nothing").errno == errno.ENOENT
    assert refused(OSError, vramshim.set, "stacks", "all").errno == errno.EINVAL
    assert refused(OSError, vramshim.dump, "copy.txt").errno == errno.EINVAL

    vramshim.set("stacks", "python")
    vramshim.set("stack_depth", 16)
    assert vramshim.mark("the middle")
    train()
    vramshim.dump(copy)
    vramshim.set("stacks", "off")
    assert vramshim.journal_path().endswith(".vraj")
    assert cuda.cuMemFree_v2(address) == 0
    reserved = vramshim.stat("device.0.reserved")
    assert vramshim.trim(0) == reserved - vramshim.stat("device.0.reserved")

    child = os.fork()
    if child == 0:
        # The parent's memory is not the child's, and the child has no journal until it uses CUDA itself.
        assert refused(OSError, vramshim.dump, "child.vraj").errno == errno.ENODATA
        os._exit(vramshim.stat("device.0.requested") != 0 or vramshim.stat("pid") != os.getpid())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


without_the_library() if sys.argv[1] == "without" else with_the_library(sys.argv[1])
print("passed", sys.version_info[:2])
