"""The functions of shim.h from Python: figures, settings and dumps, from several threads and in a forked child."""

import ctypes
import errno
import os
import sys
import threading

MIB = 1 << 20
shim, cuda = ctypes.CDLL(None), ctypes.CDLL("libcuda.so.1")
for name, arguments, result in [
    ("vramshim_stat", [ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint64)], ctypes.c_int),
    ("vramshim_stat_names", [ctypes.c_char_p, ctypes.c_size_t], ctypes.c_size_t),
    ("vramshim_set", [ctypes.c_char_p, ctypes.c_char_p], ctypes.c_int),
    ("vramshim_dump", [ctypes.c_char_p], ctypes.c_int),
    ("vramshim_trim", [ctypes.c_int], ctypes.c_uint64),
]:
    getattr(shim, name).argtypes, getattr(shim, name).restype = arguments, result


def figure(name):
    value = ctypes.c_uint64()
    error = shim.vramshim_stat(name.encode(), ctypes.byref(value))
    if error:
        raise OSError(error, os.strerror(error), name)
    return value.value


def names():
    size = shim.vramshim_stat_names(None, 0)
    buffer = ctypes.create_string_buffer(size)
    shim.vramshim_stat_names(buffer, size)
    return buffer.value.decode().split("\n")


def check(code):
    assert code == 0, code


def begin():
    context = ctypes.c_void_p()
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(cuda.cuCtxSetCurrent(context))
    return context


def allocate(size):
    address = ctypes.c_uint64()
    check(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)))
    return address


def free(address):
    check(cuda.cuMemFree_v2(address))


def train():
    """A function with a name that the stack shows."""
    address = ctypes.c_uint64()
    # Calls through CDLL give up the interpreter's lock, and then no frames can be read.
    check(ctypes.PyDLL("libcuda.so.1").cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(3 * MIB)))
    return address


def main():
    assert shim.vramshim_set(b"stacks", b"python") == errno.ENODATA
    context = begin()
    free(allocate(64 * MIB))
    held = allocate(8 * MIB)
    assert figure("device.0.requested") == 8 * MIB and figure("device.0.requested_peak") == 64 * MIB
    assert {figure(name) >= 0 for name in names()} == {True} and "device.0.reserved" in names()

    before = figure("device.0.reserved")
    given_back = shim.vramshim_trim(0)
    assert given_back + figure("device.0.reserved") == before, given_back

    assert shim.vramshim_set(b"stacks", b"python") == 0
    kept = train()
    assert shim.vramshim_dump(b"now.vraj") == 0
    assert shim.vramshim_set(b"stacks", b"off") == 0

    def work(done):
        check(cuda.cuCtxSetCurrent(context))
        for step in range(200):
            free(allocate(1000 + step))
            figure("device.0.class.linear.live")
            if step % 50 == 0:
                assert shim.vramshim_dump(f"{done}.vraj".encode()) == 0
                assert shim.vramshim_set(b"stack_depth", b"%d" % (step + 1)) == (0 if step < 128 else errno.EINVAL)

    threads = [threading.Thread(target=work, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    child = os.fork()
    if child == 0:
        # The parent's memory is not the child's, and the child has no journal until it uses CUDA itself.
        alone = figure("device.0.requested") == 0 and shim.vramshim_dump(b"child.vraj") == errno.ENODATA
        os._exit(0 if alone and figure("pid") == os.getpid() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    free(kept)
    free(held)
    assert figure("device.0.requested") == 0
    print("passed", sys.version_info[:2])


main()
