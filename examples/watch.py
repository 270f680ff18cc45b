"""Runs a script, samples what it has allocated and what is mapped for it, and writes a plot, also if the script failed.

    vramshim run --strategy auto_growth -- python watch.py train.py
"""

import ctypes, runpy, sys, threading

shim, samples, done = ctypes.CDLL(None), [], threading.Event()

def figure(name):
    value = ctypes.c_uint64()
    error = shim.vramshim_stat(b"device.0." + name, ctypes.byref(value))
    assert error == 0, f"{name}: errno {error}"
    return value.value >> 20  # MiB

def watch():
    while not samples or not done.wait(0.01):
        samples.append((figure(b"allocated"), figure(b"reserved")))

watcher = threading.Thread(target=watch)
watcher.start()
sys.argv = sys.argv[1:]  # as the script has it alone
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    done.set(), watcher.join()
    top = max(mapped for _, mapped in samples) or 1
    lines = [" ".join(f"{800 * x / len(samples):.0f},{400 - 390 * both[of] / top:.0f}" for x, both in enumerate(samples)) for of in (0, 1)]
    curves = "".join(f'<polyline fill="none" stroke="{colour}" points="{line}"/>' for colour, line in zip(("green", "red"), lines))
    open("memory.svg", "w").write(f'<svg xmlns="http://www.w3.org/2000/svg" width="800" height="400">{curves}</svg>')
    print(f"at most {max(a for a, _ in samples)} MiB allocated, {top} MiB mapped, {max(m - a for a, m in samples)} MiB mapped and not allocated")
