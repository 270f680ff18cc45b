"""Frees every other tensor, and asks for one that fits into no free piece. Prints the reserved memory before and after.

The segments of `memory_snapshot` must have each byte of the reserved memory once, and each tensor in one block.
"""

import json

import torch

MIB = 1 << 20


def check(tensors):
    total, found = 0, {}
    for segment in torch.cuda.memory_snapshot():
        at = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == at, (segment, block)
            at += block["size"]
            if block["state"] == "active_allocated":
                found[block["address"]] = block["requested_size"]
        assert at == segment["address"] + segment["total_size"], segment
        total += segment["total_size"]
    assert total == torch.cuda.memory_reserved(), (total, torch.cuda.memory_reserved())
    assert found == {tensor.data_ptr(): tensor.nbytes for tensor in tensors}, found


def tensor(mebibytes):
    return torch.empty(mebibytes * MIB, dtype=torch.uint8, device="cuda")


kept = [tensor(18) for _ in range(20)]
kept = kept[::2]
torch.cuda.synchronize()
check(kept)
before = torch.cuda.memory_reserved()
kept.append(tensor(160))
check(kept)
kept.append(tensor(1))
check(kept)
print(json.dumps({"before": before, "after": torch.cuda.memory_reserved()}))
