"""The strategy chosen in the program, after PyTorch was imported and before the first CUDA call."""

import os

import torch

os.environ["FLAGS_allocator_strategy"] = "naive_best_fit"
torch.zeros(10, device="cuda")

from account import account

books = account()
assert books is None or books["strategy"] == "naive_best_fit", books
