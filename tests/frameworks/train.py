"""A small training run: linear layers and one transformer layer, AdamW, a few steps. Prints the losses.

usage: train.py [STEPS]
"""

import sys
import time

import calm_end  # noqa: F401
import torch
from torch import nn

from account import time_spent, torch_checkpoint

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 8
torch.manual_seed(0)
device = torch.device("cuda")
model = nn.Sequential(
    nn.Linear(256, 1024),
    nn.ReLU(),
    nn.Linear(1024, 256),
    nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.0, batch_first=True),
    nn.Linear(256, 256),
).to(device)
optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
generator = torch.Generator().manual_seed(1)
started = None
for step in range(steps):
    if step == 2:
        torch.cuda.synchronize()
        started = time.perf_counter() - time_spent()
    batch = torch.randn(8 + 4 * (step % 3), 32 + 16 * (step % 4), 256, generator=generator).to(device)
    loss = (model(batch) - batch).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    print(f"step {step}: loss {loss.item():.9g}", flush=True)
    if step % 3 == 0:
        torch_checkpoint(f"step {step}", libraries=True)
torch.cuda.synchronize()
if started is not None:
    elapsed = time.perf_counter() - time_spent() - started
    print(f"milliseconds a step: {elapsed * 1000 / (steps - 2):.3f}")
del loss, batch, optimiser, model
torch.cuda.empty_cache()
torch_checkpoint("after empty_cache", libraries=True)
