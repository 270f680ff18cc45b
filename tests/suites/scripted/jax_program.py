"""The job of test_jax.py: puts arrays on both devices until nothing fits, and prints the limit of JAX's allocator."""

import json
import sys

import numpy
from jax._src import hardware_utils

# JAX looks for device files, which the simulated GPU does not have.
hardware_utils.has_visible_nvidia_gpu = lambda: True

import jax  # noqa: E402

MIB = 1 << 20
SIZES = [1, 1000, 4097, MIB + 1, 9 * MIB, 40 * MIB]


def put(size, device):
    sent = numpy.arange(size, dtype=numpy.int64).astype(numpy.uint8)
    array = jax.device_put(sent, device)
    assert numpy.array_equal(numpy.asarray(array), sent), f"{size} bytes changed on the way"
    return array


def fill(device):
    """Returns how many arrays of 32 MiB fit."""
    held = []
    try:
        while True:
            held.append(jax.device_put(numpy.zeros(32 * MIB, numpy.uint8), device))
            held[-1].block_until_ready()
    except jax.errors.JaxRuntimeError as error:
        assert "RESOURCE_EXHAUSTED" in str(error) or "out of memory" in str(error).lower(), error
    for array in held:
        array.delete()
    return len(held)


devices = jax.devices()
assert len(devices) == 2 and devices[0].platform == "gpu", devices
for device in devices:
    kept = [put(size, device) for size in SIZES * 2]
    kept[1].delete()
    kept[4].delete()
    kept += [put(size, device) for size in SIZES]
    for array in kept:
        array.delete()
fits = [fill(devices[0]) for _ in range(2)]
assert fits[0] > 2, fits
put(9 * MIB, devices[0])
stats = devices[0].memory_stats() or {}
json.dump({"fits": fits, "limit": stats.get("bytes_limit")}, sys.stdout)
