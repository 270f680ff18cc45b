"""Two devices in one process: each byte is charged to the device that holds it."""

import torch

from account import torch_checkpoint

assert torch.cuda.device_count() >= 2, "this job needs two devices"
kept = []
for number in range(12):
    with torch.cuda.device(number % 2):
        # Every third tensor is on a device that is not current.
        where = f"cuda:{(number + (number % 3 == 0)) % 2}"
        kept.append(torch.empty((number + 1) * 5_000_000, dtype=torch.uint8, device=where))
torch_checkpoint("both")
there = torch.arange(100_000).to("cuda:0").to("cuda:1").cpu()
assert torch.equal(there, torch.arange(100_000)), "bytes changed on the way"
del kept[::3]
torch.cuda.empty_cache()
torch_checkpoint("some freed")
