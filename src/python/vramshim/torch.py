"""Makes the library PyTorch's allocator: each tensor is then a request to the strategy in force.

`install()` must run before the job uses CUDA. `vramshim run --torch allocator` calls it when the job imports PyTorch.
The functions of `torch.cuda` that report memory then answer from the library's counts (`answers`).

PyTorch's own allocator takes over, once and for the rest of the process, if the job uses what PyTorch's interface for
other allocators lacks: memory pools (`torch.cuda.MemPool`) and the graphs of `torch.compile(mode="reduce-overhead")`.
Tensors that live at that moment stay where they are.

If the job sets an allocator of its own before it uses CUDA, that one serves all tensors, and nothing is replaced.
"""

import ctypes
import os

import torch

from . import library as _library
from .answers import Answers as _Answers
from .startup import after_import as _after_import

# The C++ name of `c10::cuda::CUDACachingAllocator::allocator`, the pointer to the allocator in force.
_POINTER = "_ZN3c104cuda20CUDACachingAllocator9allocatorE"

_installed = None


def install():
    """Makes the library PyTorch's allocator in this process. Does nothing for a PyTorch without CUDA."""
    global _installed
    if torch.version.cuda and not hasattr(torch._C, "_cuda_customAllocator"):
        raise RuntimeError(f"PyTorch {torch.__version__} takes no other allocator; 2.0 and newer do")
    if _installed is None and hasattr(torch._C, "_cuda_customAllocator"):
        library = _library.preloaded()
        if library is None:
            raise RuntimeError("libvramshim.so is not preloaded: start the job with vramshim run")
        if torch.cuda.is_initialized():
            raise RuntimeError("PyTorch has used CUDA already; install the allocator before that")
        _installed = _Installed(library)
        if not any(os.environ.get(name) for name in ("VRAMSHIM_STRATEGY", "FLAGS_allocator_strategy")):
            _choose_strategy(library)


def _choose_strategy(library):
    """Without a policy, each tensor would be a call of the driver."""
    if "strategy" in _library.parsed(library.vramshim_account):
        _library.say("no strategy was chosen before CUDA was used, so each tensor is a call of the driver")
        return
    # The library reads the variable when the process first uses CUDA.
    os.environ["VRAMSHIM_STRATEGY"] = "auto_growth"
    _library.say("no strategy is chosen: auto_growth serves the tensors; vramshim run --strategy chooses another")


def is_in_force():
    """Whether the library serves new tensors now."""
    return _installed is not None and not _installed.replaced


def _pointer_to_allocator():
    path = os.path.join(os.path.dirname(torch.__file__), "lib", "libc10_cuda.so")
    try:
        return ctypes.c_void_p.in_dll(ctypes.CDLL(path), _POINTER)
    except (OSError, ValueError):
        return None


class _Installed(_Answers):
    def __init__(self, library):
        super().__init__(library)
        self.pointer = _pointer_to_allocator()
        self.native = self.pointer.value if self.pointer is not None else None
        self.allocator = self._make()
        torch._C._cuda_changeCurrentAllocator(self.allocator)
        self.answer()
        self.replace("_cuda_changeCurrentAllocator", self._change_allocator)
        # PyTorch initialises the allocator in force when the job first uses CUDA. Its own must be initialised to take
        # over later. Nothing can be allocated before that.
        self.replace("_cuda_init", self._initialise)
        if self.native:
            self.ours = self.pointer.value
            self.pointer.value = self.native
            self._hand_over_for_pools()

    def has_native(self):
        return bool(self.native)

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

    def _initialise(self):
        self.original["_cuda_init"]()
        if not self.replaced:
            self.began()
            if self.native:
                self.pointer.value = self.ours

    # The job sets an allocator of its own.

    def _change_allocator(self, allocator):
        # Raises an error if CUDA was used already, as it does without the library.
        self.original["_cuda_changeCurrentAllocator"](allocator)
        if not self.replaced:
            self.replaced = True
            for name, function in self.original.items():
                setattr(torch._C, name, function)
            _library.say("the job sets an allocator of its own, which serves PyTorch's tensors from now on")

    # PyTorch's own allocator takes over.

    def hand_over(self, reason):
        """PyTorch's own allocator serves all tensors from now on."""
        if self.replaced:
            return
        torch.cuda.init()
        self.replaced = True
        self.pointer.value = self.native
        self.library.vramshim_torch_replaced()
        self.hand_over_settings()
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
