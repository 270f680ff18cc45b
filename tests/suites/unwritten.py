"""A plugin for pytest: memory that nothing wrote has the byte SUITE_FILL in each run.

numpy.empty and numpy.empty_like return memory as it is, with what the process left there before. The simulated GPU fills
memory of the device by SIMGPU_FRESH."""

import ctypes
import functools
import os

import numpy

BYTE = int(os.environ["SUITE_FILL"])


def filled(make):
    @functools.wraps(make)
    def wrapper(*arguments, **named):
        array = make(*arguments, **named)
        if isinstance(array, numpy.ndarray) and not array.dtype.hasobject:
            ctypes.memset(array.ctypes.data, BYTE, array.nbytes)
        return array

    return wrapper


# Before numba and others are imported, which know the functions by identity.
numpy.empty = filled(numpy.empty)
numpy.empty_like = filled(numpy.empty_like)
