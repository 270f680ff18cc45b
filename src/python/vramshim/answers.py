"""What the functions of `torch.cuda` answer while the library is PyTorch's allocator.

Each function here stands in the place of one of `torch._C`. It has that function's arguments, and raises the same type
of exception. PyTorch's own allocator answers again after it has taken over; `replaced` tells.

Source: `torch/cuda/memory.py`, `torch/csrc/cuda/Module.cpp` and `c10/cuda/CUDACachingAllocator.cpp`, PyTorch 2.12.
"""

import atexit
import ctypes
import operator
import os
import re

import torch

from . import library as _library

# The settings of PyTorch's own cache. The others concern host memory, or the first limit of tensors.
_OF_THE_CACHE = (
    "backend",
    "expandable_segments",
    "garbage_collection_threshold",
    "graph_capture_record_stream_reuse",
    "max_split_size_mb",
    "release_lock_on_cudamalloc",
    "roundup_power2_divisions",
    "throw_on_cudamalloc_oom",
)
# What PyTorch does without them.
_AS_WITHOUT = {"backend": "native", "expandable_segments": "False"}
_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_OBSERVER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_uint64)


def _without_effect(settings):
    """The names in a text of settings ("name:value,name:[a,b]") that only PyTorch's own cache heeds."""
    pairs = (setting.split(":") for setting in re.sub(r"\[[^]]*\]", "", settings).split(","))
    given = {name.strip(): "".join(value).strip() for name, *value in pairs}
    return [name for name in _OF_THE_CACHE if name in given and given[name] != _AS_WITHOUT.get(name)]


def _say_without_effect(settings, where):
    names = _without_effect(settings)
    if names:
        have = "has" if len(names) == 1 else "have"
        _library.say(f"{', '.join(names)} in {where} {have} no effect, because the library is PyTorch's allocator")


class Answers:
    def __init__(self, library):
        self.library = library
        self.replaced = False
        self.original = {}
        # How many PyTorch knows: none before it has used CUDA.
        self.devices = 0
        self.fractions = {}
        self.metadata = ""
        self.observers = []
        self.observe = None
        library.vramshim_torch_allow.argtypes = (ctypes.c_int, ctypes.c_uint64)
        library.vramshim_torch_observe.argtypes = (ctypes.c_void_p,)

    def replace(self, name, function):
        """Puts `function` in the place of a function of `torch._C`, if this PyTorch has it."""
        if hasattr(torch._C, name):
            self.original[name] = getattr(torch._C, name)
            setattr(torch._C, name, function)

    def answer(self):
        for name, function in (
            ("_cuda_memoryStats", self._stats),
            ("_cuda_resetPeakMemoryStats", self._reset_peaks),
            ("_cuda_resetAccumulatedMemoryStats", self._reset_sums),
            ("_accelerator_getDeviceStats", self._stats_of),
            ("_accelerator_resetPeakStats", self._reset_peaks_of),
            ("_accelerator_resetAccumulatedStats", self._reset_sums_of),
            ("_cuda_memorySnapshot", self._snapshot),
            ("_cuda_emptyCache", self._empty_cache),
            ("_cuda_setMemoryFraction", self._set_fraction),
            ("_cuda_getMemoryFraction", self._get_fraction),
            ("_cuda_cudaCachingAllocator_raw_delete", self._delete),
            ("_accelerator_setAllocatorSettings", self._change_settings("_accelerator_setAllocatorSettings")),
            (
                "_cuda_cudaCachingAllocator_set_allocator_settings",
                self._change_settings("_cuda_cudaCachingAllocator_set_allocator_settings"),
            ),
            ("_cuda_setMemoryMetadata", self._set_metadata),
            ("_cuda_getMemoryMetadata", self._get_metadata),
            ("_cuda_record_memory_history", self._record_history),
            ("_cuda_record_memory_history_legacy", self._record_history),
            ("_cuda_attach_out_of_memory_observer", self._attach_observer),
        ):
            self.replace(name, function)

    def began(self):
        """PyTorch has initialised its own allocator, which still answers. Takes over what it read from variables."""
        self.devices = torch._C._cuda_getDeviceCount()
        # Older versions of PyTorch have neither the function nor the setting.
        fraction_of = self.original.get("_cuda_getMemoryFraction") if self.has_native() else None
        for device in range(self.devices if fraction_of else 0):
            fraction = fraction_of(device)
            if fraction < 1.0:
                self._limit(device, fraction)
        for variable in _VARIABLES:
            _say_without_effect(os.environ.get(variable, ""), variable)

    def has_native(self):
        raise NotImplementedError

    def hand_over_settings(self):
        """PyTorch's own allocator gets what the job has set."""
        for device, fraction in self.fractions.items():
            self.original["_cuda_setMemoryFraction"](fraction, device)
        if self.metadata:
            self.original["_cuda_setMemoryMetadata"](self.metadata)
        for observer in self.observers:
            self.original["_cuda_attach_out_of_memory_observer"](observer)

    # Devices.

    def _number(self, device):
        device = operator.index(device)
        if not 0 <= device < self.devices:
            raise RuntimeError(f"Invalid device argument {device}: did you call init?")
        return device

    def _checked(self, device, function):
        """The number of a device, for the functions of PyTorch that take no other type."""
        if isinstance(device, bool) or not hasattr(device, "__index__"):
            raise RuntimeError(f"invalid argument to {function}")
        return self._number(device)

    # Figures.

    def _stats(self, device):
        return self._stats_of(self._checked(device, "memory_allocated"))

    def _stats_of(self, device):
        device = self._number(device)
        stats = _library.parsed(self.library.vramshim_torch_stats, ctypes.c_int(device))
        if self.replaced:
            return _sum(self.original["_cuda_memoryStats"](device), stats)
        return stats

    def _reset_peaks(self, device):
        self._reset_peaks_of(self._checked(device, "reset_peak_memory_stats"))

    def _reset_peaks_of(self, device):
        device = self._number(device)
        self.library.vramshim_torch_reset_peaks(ctypes.c_int(device))
        if self.replaced:
            self.original["_cuda_resetPeakMemoryStats"](device)

    def _reset_sums(self, device):
        self._reset_sums_of(self._checked(device, "reset_accumulated_memory_stats"))

    def _reset_sums_of(self, device):
        device = self._number(device)
        self.library.vramshim_torch_reset_sums(ctypes.c_int(device))
        if self.replaced:
            self.original["_cuda_resetAccumulatedMemoryStats"](device)

    def _snapshot(self, *arguments):
        if self.replaced:
            return self.original["_cuda_memorySnapshot"](*arguments)
        segments = _library.parsed(self.library.vramshim_torch_snapshot)["segments"]
        for segment in segments:
            segment["segment_pool_id"] = tuple(segment["segment_pool_id"])
        pool = tuple(arguments[0][:2]) if arguments and arguments[0] else (0, 0)
        # To PyTorch, this pool stands for all.
        if pool != (0, 0):
            segments = [segment for segment in segments if segment["segment_pool_id"] == pool]
        return {
            "segments": segments,
            "device_traces": [[] for _ in range(self.devices)],
            "allocator_settings": self._settings(),
            "external_annotations": [],
        }

    def _settings(self):
        """What PyTorch was told, and what is in force: none of the settings of the cache."""
        told = getattr(torch._C, "_accelerator_getAllocatorSettings", lambda: os.environ.get(_VARIABLES[-1], ""))
        return {
            "PYTORCH_CUDA_ALLOC_CONF": told(),
            "max_split_size": -1,
            "garbage_collection_threshold": 0.0,
            "expandable_segments": False,
            "release_lock_on_cudamalloc": False,
            "graph_capture_record_stream_reuse": False,
            "roundup_power2_divisions": {str(1 << power): 0 for power in range(16)},
        }

    # What the job asks of the allocator.

    def _empty_cache(self, *arguments):
        if self.replaced:
            self.original["_cuda_emptyCache"](*arguments)
        self.library.vramshim_torch_empty_cache()

    def _delete(self, pointer):
        address = operator.index(pointer)
        try:
            return self.original["_cuda_cudaCachingAllocator_raw_delete"](address) if address else None
        except RuntimeError as problem:
            if "not allocated here" not in str(problem):
                raise
            raise RuntimeError(f"invalid device pointer: {address & (1 << 64) - 1:#x}") from None

    def _limit(self, device, fraction):
        self.fractions[device] = fraction
        total = torch.cuda._get_device_properties(device).total_memory
        self.library.vramshim_torch_allow(device, int(fraction * total))

    def _set_fraction(self, fraction, device):
        fraction, device = float(fraction), operator.index(device)
        if not 0 <= device < self.devices:
            raise RuntimeError(f"Allocator not initialized for device {device}: did you call init?")
        if not 0 <= fraction <= 1:
            raise RuntimeError(f"invalid fraction:{fraction}. Please set within [0, 1].")
        self._limit(device, fraction)
        if self.replaced:
            self.original["_cuda_setMemoryFraction"](fraction, device)

    def _get_fraction(self, device):
        return self.fractions.get(self._number(device), 1.0)

    def _change_settings(self, name):
        def change(settings):
            if self.replaced:
                return self.original[name](settings)
            # PyTorch compares the backend with the allocator in force.
            others = (one for one in settings.split(",") if re.sub(r"\s", "", one) != "backend:native")
            self.original[name](",".join(others))
            _say_without_effect(settings, "the settings of the allocator")

        return change

    def _set_metadata(self, metadata):
        if self.replaced:
            return self.original["_cuda_setMemoryMetadata"](metadata)
        self.metadata = metadata

    def _get_metadata(self):
        return self.original["_cuda_getMemoryMetadata"]() if self.replaced else self.metadata

    def _record_history(self, *arguments):
        if self.replaced:
            return self.original["_cuda_record_memory_history"](*arguments)
        if arguments and arguments[0]:
            _library.say("PyTorch records no memory history, because the library is its allocator; see the journal")

    # Observers of out of memory.

    def _attach_observer(self, observer):
        if self.replaced:
            return self.original["_cuda_attach_out_of_memory_observer"](observer)
        self.observers.append(observer)
        if self.observe is None:
            self.observe = _OBSERVER(self._out_of_memory)
            self.library.vramshim_torch_observe(self.observe)
            # No thread can enter Python after its end.
            atexit.register(self.library.vramshim_torch_observe, None)

    def _out_of_memory(self, device, size):
        free, total = torch.cuda.mem_get_info(device)
        allowed = int(self.fractions.get(device, 1.0) * total)
        for observer in self.observers:
            observer(device, size, allowed, free)


def _sum(one, other):
    """The sum of two nested dictionaries of statistics."""
    total = dict(one)
    for key, value in other.items():
        if isinstance(value, dict):
            total[key] = _sum(one.get(key, {}), value)
        elif key != "max_split_size":
            total[key] = one.get(key, 0) + value
    return total
