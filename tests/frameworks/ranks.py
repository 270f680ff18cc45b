"""One process of two that torchrun starts. Each trains on a device of its own, with workers that load the data.

usage: python -m torch.distributed.run --nproc-per-node 2 ranks.py
"""

import os

import calm_end  # noqa: F401
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

rank = int(os.environ["LOCAL_RANK"])
rows = TensorDataset(torch.arange(64.0).unsqueeze(1).expand(64, 256))


def main():
    dist.init_process_group("gloo")
    torch.cuda.set_device(rank)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 16)).cuda()
    optimiser = torch.optim.AdamW(model.parameters())
    for (batch,) in DataLoader(rows, batch_size=16, num_workers=2, pin_memory=True):
        loss = model(batch.cuda(non_blocking=True)).square().mean()
        loss.backward()
        for parameter in model.parameters():
            gradient = parameter.grad.cpu()
            dist.all_reduce(gradient)
            parameter.grad.copy_(gradient)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    peak, held = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
    assert peak > held > 0, (peak, held)
    dist.barrier()
    dist.destroy_process_group()
    print(f"rank {rank} held {held}", flush=True)


if __name__ == "__main__":
    main()
