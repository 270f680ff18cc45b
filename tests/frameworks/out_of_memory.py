"""Out of memory, PyTorch's recovery, and work afterwards."""

import sys

import torch

from account import account, torch_checkpoint

total = torch.cuda.mem_get_info()[1]
held = torch.empty(total // 8, dtype=torch.uint8, device="cuda")
cached = [torch.empty(total // 20, dtype=torch.uint8, device="cuda") for _ in range(4)]
torch_checkpoint("before")
try:
    torch.empty(total, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as problem:
    print(f"as it should be: {str(problem).splitlines()[0][:90]}")
else:
    raise SystemExit("a tensor of the device's whole memory was granted")
torch_checkpoint("after running out")
del cached
# This fits only because PyTorch gives its cache back and repeats the request.
large = torch.empty(total // 2, dtype=torch.uint8, device="cuda")
large[:5] = 0
torch_checkpoint("after recovery")
books = account()
# A layer in front of the library refuses by itself, so the library sees no request that fails.
if books is not None and sys.argv[1:] != ["in_front"]:
    failures = sum(t["failures"] for t in books["totals"] if t["device"] == 0)
    assert failures > 0, "the ledger knows of no failure"
del large, held
torch.cuda.empty_cache()
torch_checkpoint("emptied")
