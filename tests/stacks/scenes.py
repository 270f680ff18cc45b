"""Allocates memory on the simulated GPU, and prints which stack Python itself sees: a line of JSON for each size.

    scenes.py SCENE [HELPER]
"""
import ctypes
import json
import os
import sys
import threading

SCENE = sys.argv[1]
# PyDLL keeps Python's lock during a call, CDLL releases it.
cuda = (ctypes.CDLL if SCENE == "released" else ctypes.PyDLL)("libcuda.so.1")
next_size = 1 << 16


def start():
    context = ctypes.c_void_p()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0


def shown(text):
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def truth(size, frame):
    stack = []
    while frame is not None:
        code = frame.f_code
        stack.append([shown(code.co_filename), frame.f_lineno, getattr(code, "co_qualname", code.co_name)])
        frame = frame.f_back
    print(json.dumps({"size": size, "stack": stack}), flush=True)


def size_of_next():
    global next_size
    next_size += 512
    return next_size


def raw(size):
    return cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(size))


def allocate():
    size = size_of_next()
    address, bytes = ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(size)
    truth(size, sys._getframe()); assert cuda.cuMemAlloc_v2(address, bytes) == 0


class Model:
    def build(self):
        allocate()
        self.layers = [allocate() for _ in range(2)]


class Dies:
    def __del__(self):
        allocate()


def generate():
    allocate()
    yield 1
    allocate()


def recurse(depth):
    if depth:
        return recurse(depth - 1)
    allocate()


def in_thread(depth):
    start()
    recurse(depth)


def raises():
    dies = Dies()
    raise KeyError("kept")


def lines():
    Model().build()
    list(generate())
    recurse(3)
    recurse(200)
    (lambda: allocate())()
    exec(compile("\n\nallocate()", "odd\tname\n\\x", "exec"), globals())
    exec(compile("allocate()", b"caf\xe9.py", "exec"), globals())
    exec(compile("def Größe():\n  allocate()\nGröße()", "größe.py", "exec"), globals())
    try:
        raises()
    except KeyError as error:
        assert error.args == ("kept",)
    # Code objects that come and go get the same addresses. None may get the name of one before it.
    for number in range(50):
        exec(compile("allocate()", f"short-{number}", "exec"), globals())
    threads = [threading.Thread(target=in_thread, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
        thread.join()


def in_threads():
    """Many threads at once, each with its own functions."""

    def work(number):
        start()
        source = f"def own_{number}():\n  return size_of_next(), raw(size)\n"
        space = {"size_of_next": lambda: 0, "raw": raw, "size": (number + 1) << 12}
        exec(compile(source, f"thread-{number}", "exec"), space)
        for _ in range(200):
            assert space[f"own_{number}"]() == (0, 0)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def with_error():
    """The helper sets an error, allocates, and looks whether the error is still set."""
    helper = ctypes.PyDLL(sys.argv[2])
    for number in range(3):
        try:
            code = compile("helper.allocate_with_error(ctypes.c_size_t(1 << 20))", f"error-{number}", "exec")
            # A name that no encoding takes: asking for its bytes sets an error.
            names = {name: "\ud800" for name in ("co_name", "co_qualname") if hasattr(code, name)}
            exec(code.replace(**names), {"helper": helper, "ctypes": ctypes})
            raise SystemExit("the error is gone")
        except ValueError as error:
            assert error.args == ("kept",)


def fails_in_child():
    """A child of a process that uses CUDA cannot use it."""
    assert raw(777) != 0


def forks():
    recurse(1)
    child = os.fork()
    if child == 0:
        fails_in_child()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    recurse(2)


def in_other_interpreter():
    """Allocates 8 KiB in a sub-interpreter, and in the main one before and after."""
    try:
        import _interpreters as interpreters
    except ImportError:
        import _xxsubinterpreters as interpreters
    allocate()
    try:
        other = interpreters.create("legacy")
    except TypeError:
        other = interpreters.create(isolated=False)
    run = getattr(interpreters, "exec", None) or interpreters.run_string
    run(other, """if True:
        import ctypes
        cuda = ctypes.PyDLL("libcuda.so.1")
        assert cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(8192)) == 0
    """)
    interpreters.destroy(other)
    allocate()


def many():
    """More stacks than the table has."""
    address, bytes = ctypes.c_uint64(), ctypes.c_size_t(4096)
    space = {"cuda": cuda, "address": ctypes.byref(address), "bytes": bytes, "free": lambda: cuda.cuMemFree_v2(address)}
    source = "\n".join(["cuda.cuMemAlloc_v2(address, bytes); free()"] * 1000)
    for number in range(70):
        exec(compile(source, f"many-{number}", "exec"), space)


def fails():
    recurse(1)
    assert raw(1 << 50) == 2


def is_killed():
    recurse(2)
    os.kill(os.getpid(), 9)


SCENES = {
    "lines": lines, "released": lines, "threads": in_threads, "error": with_error, "forks": forks,
    "forks_first": lambda: recurse(2), "interpreters": in_other_interpreter, "many": many, "fails": fails, "killed": is_killed,
}
if SCENE == "forks_first" and os.fork() != 0:
    raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))
start()
SCENES[SCENE]()
