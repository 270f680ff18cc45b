"""Finds the largest batch that fits, as batch-size finders do: halve the batch after each out of memory.

Two loops: one catches torch.OutOfMemoryError, the other reads the message, as accelerate and Lightning do.
"""

import gc

import calm_end  # noqa: F401
import torch
from torch import nn

torch.manual_seed(0)
held = torch.empty(torch.cuda.mem_get_info()[1] // 4, dtype=torch.uint8, device="cuda")


def step(batch):
    model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
    optimiser = torch.optim.AdamW(model.parameters())
    loss = model(torch.randn(batch, 1024, device="cuda")).square().mean()
    loss.backward()
    optimiser.step()
    return loss.item()


def find(catches):
    batch, failures = 1 << 20, 0
    while True:
        try:
            step(batch)
            return batch, failures
        except RuntimeError as problem:
            if not catches(problem):
                raise
            assert problem.args[0].startswith("CUDA out of memory. Tried to allocate "), problem
        gc.collect()
        torch.cuda.empty_cache()
        batch //= 2
        failures += 1


found = find(lambda problem: isinstance(problem, torch.OutOfMemoryError))
assert found == find(lambda problem: len(problem.args) == 1 and "CUDA out of memory." in problem.args[0])
assert 0 < found[1] < 20, found
assert torch.cuda.memory_stats()["num_ooms"] >= 2 * found[1]
# Memory is intact afterwards.
numbers = torch.arange(100_003, dtype=torch.int64)
assert torch.equal(numbers.to("cuda").cpu(), numbers)
print(f"found {found[0]} after {found[1]} failures", flush=True)
