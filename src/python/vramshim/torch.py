"""Makes the library PyTorch's allocator: each tensor is then a request to the strategy in force.

`install()` must run before the job uses CUDA. `vramshim run --torch allocator` calls it when the job imports PyTorch.
The functions of `torch.cuda` that report memory then answer from the library's counts.

PyTorch's own allocator takes over, once and for the rest of the process, if the job uses what PyTorch's interface for
other allocators lacks: memory pools (`torch.cuda.MemPool`) and the graphs of `torch.compile(mode="reduce-overhead")`.
Tensors that live at that moment stay where they are.
"""

import ctypes
import os

import torch

from . import library as _library
from .startup import after_import as _after_import

# The C++ name of `c10::cuda::CUDACachingAllocator::allocator`, the pointer to the allocator in force.
_POINTER = "_ZN3c104cuda20CUDACachingAllocator9allocatorE"

_installed = None


def install():
    """Makes the library PyTorch's allocator in this process. Does nothing for a PyTorch without CUDA."""
    global _installed
    if _installed is None and hasattr(torch._C, "_cuda_customAllocator"):
        library = _library.preloaded()
        if library is None:
            raise RuntimeError("libvramshim.so is not preloaded: start the job with vramshim run")
        if torch.cuda.is_initialized():
            raise RuntimeError("PyTorch has used CUDA already; install the allocator before that")
        _installed = _Installed(library)


def is_in_force():
    """Whether the library serves new tensors now."""
    return _installed is not None and not _installed.replaced


def _pointer_to_allocator():
    path = os.path.join(os.path.dirname(torch.__file__), "lib", "libc10_cuda.so")
    try:
        return ctypes.c_void_p.in_dll(ctypes.CDLL(path), _POINTER)
    except (OSError, ValueError):
        return None


class _Installed:
    def __init__(self, library):
        self.library = library
        self.replaced = False
        self.fractions = {}
        self.original = {}
        library.vramshim_torch_allow.argtypes = (ctypes.c_int, ctypes.c_uint64)
        self.pointer = _pointer_to_allocator()
        self.native = self.pointer.value if self.pointer is not None else None
        self.allocator = self._make()
        torch._C._cuda_changeCurrentAllocator(self.allocator)
        self._answer()
        if self.native:
            self.ours = self.pointer.value
            # PyTorch initialises the allocator in force when the job first uses CUDA. Its own must be initialised to
            # take over later. Nothing can be allocated before that.
            self.pointer.value = self.native
            self._replace("_cuda_init", self._initialise)
            self._hand_over_for_pools()

    def _make(self):
        """An allocator object of PyTorch's that calls the library."""
        find = lambda name: _library.address(self.library, name)
        allocator = torch._C._cuda_customAllocator(find("vramshim_torch_alloc"), find("vramshim_torch_free"))
        for setter, name in (
            ("set_record_stream_fn", "vramshim_torch_record_stream"),
            ("set_reset_fn", "vramshim_torch_empty_cache"),
            ("set_begin_allocate_to_pool", "vramshim_torch_begin_pool"),
            ("set_end_allocate_to_pool_fn", "vramshim_torch_end_pool"),
            ("set_release_pool", "vramshim_torch_release_pool"),
        ):
            getattr(allocator, setter)(find(name))
        return allocator

    def _replace(self, name, function):
        """Puts `function` in the place of a function of `torch._C`, if this PyTorch has it."""
        if hasattr(torch._C, name):
            self.original[name] = getattr(torch._C, name)
            setattr(torch._C, name, function)

    # What torch.cuda asks of the allocator.

    def _answer(self):
        for name, function in (
            ("_cuda_memoryStats", self._stats),
            ("_cuda_resetPeakMemoryStats", self._reset_peaks),
            ("_cuda_resetAccumulatedMemoryStats", self._reset_sums),
            ("_cuda_memorySnapshot", self._snapshot),
            ("_cuda_emptyCache", self._empty_cache),
            ("_cuda_setMemoryFraction", self._set_fraction),
            ("_cuda_getMemoryFraction", lambda device: self.fractions.get(device, 1.0)),
            ("_cuda_record_memory_history", self._record_history),
            ("_cuda_record_memory_history_legacy", self._record_history),
            ("_cuda_attach_out_of_memory_observer", self._attach_observer),
            ("_accelerator_getDeviceStats", self._stats),
            ("_accelerator_resetPeakStats", self._reset_peaks),
            ("_accelerator_resetAccumulatedStats", self._reset_sums),
        ):
            self._replace(name, function)

    def _stats(self, device):
        stats = _library.parsed(self.library.vramshim_torch_stats, ctypes.c_int(device))
        if self.replaced:
            return _sum(self.original["_cuda_memoryStats"](device), stats)
        return stats

    def _reset_peaks(self, device):
        self.library.vramshim_torch_reset_peaks(ctypes.c_int(device))
        if self.replaced:
            self.original["_cuda_resetPeakMemoryStats"](device)

    def _reset_sums(self, device):
        self.library.vramshim_torch_reset_sums(ctypes.c_int(device))
        if self.replaced:
            self.original["_cuda_resetAccumulatedMemoryStats"](device)

    def _snapshot(self, *arguments):
        if self.replaced:
            return self.original["_cuda_memorySnapshot"](*arguments)
        segments = _library.parsed(self.library.vramshim_torch_snapshot)["segments"]
        for segment in segments:
            segment["segment_pool_id"] = tuple(segment["segment_pool_id"])
        return {
            "segments": segments,
            "device_traces": [[] for _ in range(torch.cuda.device_count())],
            "allocator_settings": {},
            "external_annotations": [],
        }

    def _empty_cache(self, *arguments):
        if self.replaced:
            self.original["_cuda_emptyCache"](*arguments)
        self.library.vramshim_torch_empty_cache()

    def _set_fraction(self, fraction, device):
        self.fractions[device] = fraction
        total = torch.cuda.mem_get_info(device)[1]
        self.library.vramshim_torch_allow(device, int(fraction * total))
        if self.replaced:
            self.original["_cuda_setMemoryFraction"](fraction, device)

    def _record_history(self, *arguments):
        if self.replaced:
            return self.original["_cuda_record_memory_history"](*arguments)
        if arguments and arguments[0]:
            _library.say("PyTorch records no memory history, because the library is its allocator; see the journal")

    def _attach_observer(self, observer):
        if self.replaced:
            return self.original["_cuda_attach_out_of_memory_observer"](observer)
        _library.say("PyTorch calls no observer of out of memory, because the library is its allocator")

    # PyTorch's own allocator takes over.

    def _initialise(self):
        self.original["_cuda_init"]()
        if not self.replaced:
            self.pointer.value = self.ours

    def hand_over(self, reason):
        """PyTorch's own allocator serves all tensors from now on."""
        if self.replaced:
            return
        torch.cuda.init()
        self.replaced = True
        self.pointer.value = self.native
        self.library.vramshim_torch_replaced()
        for device, fraction in self.fractions.items():
            self.original["_cuda_setMemoryFraction"](fraction, device)
        _library.say(f"{reason}: PyTorch's own allocator serves tensors from now on")

    def _hand_over_before(self, owner, name, reason):
        original = getattr(owner, name)

        def function(*arguments, **named):
            self.hand_over(reason)
            return original(*arguments, **named)

        function.__name__, function.__doc__ = name, original.__doc__
        setattr(owner, name, function)

    def _hand_over_for_pools(self):
        from torch.cuda import memory

        reason = "the job uses memory pools of PyTorch"
        if hasattr(memory, "MemPool"):
            self._hand_over_before(memory.MemPool, "__init__", reason)
        for name in (
            "_cuda_beginAllocateToPool",
            "_cuda_beginAllocateCurrentThreadToPool",
            "_cuda_beginAllocateCurrentStreamToPool",
        ):
            for owner in (torch._C, memory):
                if hasattr(owner, name):
                    self._hand_over_before(owner, name, reason)
        _after_import(
            "torch._inductor.cudagraph_trees",
            lambda trees: self._hand_over_before(
                trees.CUDAGraphTreeManager,
                "__init__",
                'the job uses the graphs of torch.compile(mode="reduce-overhead")',
            ),
        )


def _sum(one, other):
    """The sum of two nested dictionaries of statistics."""
    total = dict(one)
    for key, value in other.items():
        if isinstance(value, dict):
            total[key] = _sum(one.get(key, {}), value)
        elif key != "max_split_size":
            total[key] = one.get(key, 0) + value
    return total
