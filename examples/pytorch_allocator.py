"""Makes the library PyTorch's allocator, in place of PyTorch's cache. Every tensor is then a separate request.

Run this program under the library, on a simulated GPU of 4 GiB or on a real GPU:

    target/release/vramshim run --sim 4GiB --strategy auto_growth -- python examples/pytorch_allocator.py
    target/release/vramshim run -- python examples/pytorch_allocator.py

A CUDA build of PyTorch runs on the simulated GPU, but the GPU's kernels do nothing. So the numbers that a model
computes there have no meaning. The totals of memory are exact.
"""

import ctypes
import os
import sys

import torch

MIB = 1 << 20


class Stats(ctypes.Structure):
    """struct vramshim_stats of shim.h; sizes in bytes."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "requested",
            "requested_peak",
            "allocated",
            "allocated_peak",
            "reserved",
            "reserved_peak",
            "free_inside",
            "largest_free_block",
            "live",
            "failures",
        )
    ]


def preloaded_library():
    """The path of the preloaded libvramshim.so. PyTorch must load this very file."""
    for path in os.environ.get("LD_PRELOAD", "").replace(":", " ").split():
        if os.path.basename(path) == "libvramshim.so":
            return path
    sys.exit("libvramshim.so is not preloaded: start this program with vramshim run")


def use_as_allocator(path):
    """Makes the library at this path PyTorch's allocator. Must run before the first use of CUDA."""
    allocator = torch.cuda.memory.CUDAPluggableAllocator(path, "vramshim_torch_alloc", "vramshim_torch_free")
    torch.cuda.memory.change_current_allocator(allocator)
    # Without the next two lines, a job that creates streams waits for the device at each reuse of memory.
    record = ctypes.CDLL(path).vramshim_torch_record_stream
    allocator.allocator().set_record_stream_fn(ctypes.cast(record, ctypes.c_void_p).value)


def stats(shim, device=0):
    out = Stats()
    if shim.vramshim_stats(device, ctypes.byref(out)) != 0:
        sys.exit(f"vramshim_stats has no device {device}")
    return out


def show(moment, now):
    print(
        f"{moment:20} requested {now.requested / MIB:6.1f} MiB, reserved {now.reserved / MIB:6.1f} MiB, "
        f"{now.live} live tensors and buffers",
        flush=True,
    )


def main():
    path = preloaded_library()
    use_as_allocator(path)
    shim = ctypes.CDLL(path)

    before = stats(shim)
    tensors = [torch.empty(2 * MIB, dtype=torch.uint8, device="cuda") for _ in range(50)]
    held = stats(shim)
    show("50 tensors of 2 MiB", held)
    if held.live - before.live != 50 or held.requested - before.requested != 100 * MIB:
        sys.exit("the totals do not match the 50 tensors of 2 MiB")
    del tensors
    show("all 50 freed", stats(shim))

    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256)).cuda()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(3):
        batch = torch.randn(64 * (step + 1), 256, device="cuda")
        loss = (model(batch) - batch).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        show(f"training step {step}", stats(shim))
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
