"""numba-cuda: copies arrays to the device and back."""

import numpy
from numba import cuda

from account import account, checkpoint

sent = numpy.arange(1_000_001, dtype=numpy.float32)
on_device = cuda.to_device(sent)
more = [cuda.device_array(1000 * (number + 1), dtype=numpy.float64) for number in range(10)]
pinned = cuda.pinned_array(5000, dtype=numpy.uint8)
size = sent.nbytes + sum(array.nbytes for array in more)
checkpoint({(0, "linear"): size, (-1, "host"): 5000}, "allocated")
assert numpy.array_equal(on_device.copy_to_host(), sent), "bytes changed on the way"
books = account()
if books is not None:
    assert books["events_lost"] == 0
