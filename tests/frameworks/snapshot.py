"""Makes requests of mixed sizes, writes PyTorch's own memory history of them, and prints the peaks that PyTorch counted.

usage: snapshot.py PICKLE
"""

import json
import random
import sys

import torch

torch.cuda.memory._record_memory_history()
random.seed(1)
kept = []
for _ in range(600):
    # 600 bytes to 12 MiB, uniform over the orders of magnitude, so that PyTorch makes every kind of segment.
    size = int(600 * 20_000 ** random.random())
    kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    if len(kept) > 40:
        kept.pop(random.randrange(len(kept)))
torch.cuda.memory._dump_snapshot(sys.argv[1])
stats = torch.cuda.memory_stats()
print(json.dumps({"live": stats["requested_bytes.all.peak"], "reserved": stats["reserved_bytes.all.peak"]}))
