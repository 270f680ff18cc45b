"""PyTorch with the driver's stream-ordered allocator as its backend."""

import os

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = "backend:cudaMallocAsync"

import torch

from account import torch_checkpoint

assert torch.cuda.get_allocator_backend() == "cudaMallocAsync"
kept = [torch.empty(number * 1_000_000, dtype=torch.uint8, device="cuda") for number in range(1, 20)]
torch_checkpoint("grown", "async")
del kept[::2]
torch.cuda.synchronize()
torch_checkpoint("half freed", "async")
del kept
torch.cuda.synchronize()
torch.cuda.empty_cache()
torch_checkpoint("emptied", "async")
