"""Makes requests whose sizes PyTorch's own allocator serves without a remainder, and prints what torch.cuda reports.

Each line of JSON has the figures of one moment. The test compares a run under PyTorch's own allocator with one under
the library. Left out are the figures of segments, in which allocators differ on purpose.
"""

import json
import random

import torch

MIB = 1 << 20
# Figures of memory that an allocator reserves, and of the parts of segments.
OF_SEGMENTS = ("reserved_bytes", "segment", "inactive_split", "num_device", "oversize", "num_alloc_retries")


def show(moment):
    stats = torch.cuda.memory_stats()
    blocks = [block for segment in torch.cuda.memory_snapshot() for block in segment["blocks"]]
    told = {
        "moment": moment,
        "allocated": torch.cuda.memory_allocated(),
        "peak": torch.cuda.max_memory_allocated(),
        "stats": {key: value for key, value in stats.items() if not key.startswith(OF_SEGMENTS)},
        "keys": sorted(stats),
        "live in snapshot": sum(block["requested_size"] for block in blocks if block["state"] == "active_allocated"),
        "total": torch.cuda.mem_get_info()[1],
        "accelerator": torch.accelerator.memory_allocated(),
    }
    print(json.dumps(told), flush=True)
    reserved, most = torch.cuda.memory_reserved(), torch.cuda.max_memory_reserved()
    assert told["allocated"] <= reserved <= most, (told["allocated"], reserved, most)
    assert "Allocated memory" in torch.cuda.memory_summary()


def request():
    small = random.random() < 0.7
    size = random.randrange(1, MIB) if small else 2 * MIB * random.randrange(1, 12)
    return torch.empty(size, dtype=torch.uint8, device="cuda")


random.seed(3)
assert torch.cuda.memory_allocated() == 0
kept = [request() for _ in range(80)]
show("80 requests")
for _ in range(300):
    kept[random.randrange(len(kept))] = request()
show("300 replaced")
del kept[20:]
show("20 kept")
torch.cuda.reset_peak_memory_stats()
show("peaks reset")
kept += [request() for _ in range(5)]
torch.cuda.reset_accumulated_memory_stats()
kept += [request() for _ in range(5)]
show("sums reset")
with torch.cuda.stream(torch.cuda.Stream()):
    other = request()
other.record_stream(torch.cuda.default_stream())
torch.cuda.synchronize()
# Two of PyTorch's figures count a block until the work of a recorded stream is known to be done.
del other
torch.cuda.synchronize()
kept.append(request())
show("a second stream")
before = torch.cuda.memory_reserved()
kept.clear()
torch.cuda.empty_cache()
assert torch.cuda.memory_reserved() < before, "empty_cache gave nothing back"
show("emptied")
torch.cuda.set_per_process_memory_fraction(0.125)
assert torch.cuda.get_per_process_memory_fraction() == 0.125
allowed = torch.cuda.mem_get_info()[1] // 8
try:
    torch.empty(allowed + 2 * MIB, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    pass
else:
    raise SystemExit("the fraction allowed too much")
torch.empty(allowed // 2, dtype=torch.uint8, device="cuda")
torch.cuda.set_per_process_memory_fraction(1.0)
show("after a fraction")
