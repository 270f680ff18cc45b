"""A training script that prints the peak of each epoch, as many do, and resets it.

Each line of JSON has what torch.cuda reports of one epoch.
"""

import json

import calm_end  # noqa: F401
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1024)).cuda()
optimiser = torch.optim.AdamW(model.parameters())
for epoch in range(4):
    torch.cuda.reset_peak_memory_stats()
    for step in range(3):
        batch = torch.randn(512 << epoch % 3, 1024).cuda()
        loss = (model(batch) - batch).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    peak, requested = torch.cuda.max_memory_allocated(), torch.cuda.memory_stats()["requested_bytes.all.peak"]
    print(json.dumps({"epoch": epoch, "peak": peak, "requested": requested, "now": torch.cuda.memory_allocated()}), flush=True)
    del batch, loss
