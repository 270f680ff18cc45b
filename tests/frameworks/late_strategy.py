"""Sets the strategy inside the program, after the import of PyTorch and before the first CUDA call."""

import os

import torch

os.environ["FLAGS_allocator_strategy"] = "naive_best_fit"
torch.zeros(10, device="cuda")

from account import account

books = account()
assert books is None or books["strategy"] == "naive_best_fit", books
