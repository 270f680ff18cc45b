"""Frees all tensors, and prints what NVML says is used before and after `torch.cuda.empty_cache`."""

import json

import torch

MIB = 1 << 20
tensors = [torch.empty(16 * MIB, dtype=torch.uint8, device="cuda") for _ in range(32)]
torch.cuda.synchronize()
full = torch.cuda.device_memory_used()
tensors.clear()
kept = torch.cuda.device_memory_used()
torch.cuda.empty_cache()
print(json.dumps({"full": full, "kept": kept, "emptied": torch.cuda.device_memory_used()}))
