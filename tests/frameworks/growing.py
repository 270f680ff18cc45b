"""Ten tensors of 400 MiB, all kept."""

import torch

from account import torch_checkpoint

kept = []
for number in range(10):
    kept.append(torch.randn([1024, 1024, 100], device="cuda"))
    if number % 3 == 0:
        torch_checkpoint(f"{number + 1} tensors")
assert torch.cuda.memory_allocated() == 10 * 1024 * 1024 * 100 * 4
numbers = torch.arange(1_000_003, dtype=torch.int64)
assert torch.equal(numbers.to("cuda").cpu(), numbers), "bytes changed on the way"
del kept[::2]
torch.cuda.empty_cache()
torch_checkpoint("half of them freed")
