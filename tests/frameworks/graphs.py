"""CUDA graphs, PyTorch's memory pools, and the graphs of torch.compile, whichever allocator serves tensors.

usage: graphs.py graphs|failed|dead|pools|compile
"""

import gc
import sys

import calm_end  # noqa: F401
import torch
from torch.cuda import memory_allocated

MIB = 1 << 20


def tensor(mebibytes):
    return torch.empty(mebibytes * MIB, dtype=torch.uint8, device="cuda")


def graphs():
    x = torch.ones(MIB, device="cuda")
    torch.cuda.synchronize()
    before = memory_allocated()
    side = torch.cuda.Stream()
    for _ in range(20):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            middle = x + 1
            out = middle * 2
            del middle
        graph.replay()
        torch.cuda.synchronize()
        # Memory that the graph may write at its next launch serves no tensor.
        others = [torch.empty_like(x) for _ in range(4)]
        assert out.data_ptr() not in [other.data_ptr() for other in others]
        del others, graph, out
        gc.collect()
    torch.cuda.synchronize()
    assert memory_allocated() == before, (memory_allocated(), before)


def failed():
    """A capture that is invalidated leaves nothing, and the memory of later graphs comes back."""
    x = torch.ones(1000, device="cuda")
    for end in (torch.cuda.synchronize, lambda: y.sum().item()):
        try:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                y = tensor(16)
                end()
        except RuntimeError:
            pass
        else:
            raise SystemExit("the capture has not failed")
        del y
    torch.cuda.synchronize()
    # With 1 GiB, the device is too small for what the graphs use together.
    for _ in range(40):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = tensor(16)
            z = y + 1
        graph.replay()
        torch.cuda.synchronize()
        del y, z
        graph.reset()
    torch.cuda.synchronize()
    assert memory_allocated() == 4096, memory_allocated()


def dead():
    """Memory that dies in a capture serves the same capture again, and the next one of its pool."""
    side = torch.cuda.Stream()
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    addresses = set()
    for graph, pool in ((first, None), (second, first)):
        with torch.cuda.graph(graph, stream=side, pool=pool and pool.pool()):
            for _ in range(50):
                addresses.add(tensor(16).data_ptr())
            # What another stream uses too is not used again.
            z = tensor(8)
            z.record_stream(torch.cuda.default_stream())
            recorded = z.data_ptr()
            del z
            assert tensor(8).data_ptr() != recorded
    assert len(addresses) == 1, len(addresses)
    outside = tensor(16)
    assert outside.data_ptr() not in addresses
    for graph in (first, second):
        graph.replay()
    torch.cuda.synchronize()


def pools():
    old = torch.ones(MIB, device="cuda")
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = torch.ones(MIB, device="cuda")
    assert pool.snapshot(), "the pool is empty"
    new = torch.ones(MIB, device="cuda")
    assert memory_allocated() == 12 * MIB, memory_allocated()
    old.record_stream(torch.cuda.Stream())
    del old, inside, new
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert memory_allocated() == 0, memory_allocated()
    assert torch.cuda.max_memory_allocated() >= 12 * MIB


def compile():
    # The backend "cudagraphs" records the same trees of graphs as mode="reduce-overhead", and generates no kernels.
    @torch.compile(backend="cudagraphs")
    def layer(x, w):
        return (x @ w).relu() @ w

    x, w = torch.randn(64, 64).cuda(), torch.randn(64, 64).cuda()
    with torch.no_grad():
        for _ in range(6):
            torch.compiler.cudagraph_mark_step_begin()
            layer(x, w).clone()
    torch.cuda.synchronize()
    assert memory_allocated() > 0


globals()[sys.argv[1]]()
