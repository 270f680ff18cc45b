"""CUDA graphs, PyTorch's memory pools, and the graphs of torch.compile, whichever allocator serves tensors.

usage: graphs.py graphs|pools|compile
"""

import gc
import sys
import time

import torch


def graphs():
    x = torch.ones(1 << 20, device="cuda")
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
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
    assert torch.cuda.memory_allocated() == before, (torch.cuda.memory_allocated(), before)
    torch.cuda.empty_cache()
    print("reserved", torch.cuda.memory_reserved(), flush=True)


def pools():
    old = torch.ones(1 << 20, device="cuda")
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = torch.ones(1 << 20, device="cuda")
    assert pool.snapshot(), "the pool is empty"
    new = torch.ones(1 << 20, device="cuda")
    assert torch.cuda.memory_allocated() == 3 << 22, torch.cuda.memory_allocated()
    stream = torch.cuda.Stream()
    old.record_stream(stream)
    del old, inside, new
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() == 0, torch.cuda.memory_allocated()
    assert torch.cuda.max_memory_allocated() >= 3 << 22
    print("pools", flush=True)


def compile():
    # The backend "cudagraphs" records the same trees of graphs as mode="reduce-overhead", and generates no kernels.
    @torch.compile(backend="cudagraphs")
    def layer(x, w):
        return (x @ w).relu() @ w

    x, w = torch.randn(64, 64).cuda(), torch.randn(64, 64).cuda()
    with torch.no_grad():
        for _ in range(6):
            torch.compiler.cudagraph_mark_step_begin()
            y = layer(x, w).clone()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() > 0
    print("compiled", tuple(y.shape), flush=True)


{"graphs": graphs, "pools": pools, "compile": compile}[sys.argv[1]]()
sys.stdout.flush()
time.sleep(0.3)
