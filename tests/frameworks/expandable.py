"""Expandable segments: PyTorch reaches the driver's virtual memory management through cudaGetDriverEntryPoint."""

import os

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"

import torch

from account import checkpoint, account, torch_checkpoint

kept = [torch.empty(number * 3_000_000 + 5, dtype=torch.uint8, device="cuda") for number in range(1, 20)]
torch_checkpoint("grown", "vmm")
books = account()
if books is not None:
    classes = {t["class"] for t in books["totals"]}
    assert {"vmm", "address_range"} <= classes, f"expandable segments went past the library: {classes}"
del kept[::2]
torch.cuda.empty_cache()
torch_checkpoint("half freed", "vmm")
del kept
torch.cuda.empty_cache()
torch_checkpoint("emptied", "vmm")
