"""A PyTorch job that runs out of memory: it keeps each step's losses on the GPU, where it meant to keep one number.

    vramshim run -- python examples/leak.py     # --sim 24GiB without a GPU
    vramshim why
"""

import torch

model = torch.nn.Sequential(torch.nn.Linear(4096, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 4096)).cuda()
optimizer = torch.optim.Adam(model.parameters())
history = []
for step in range(100_000):
    batch = torch.randn(4096, 4096, device="cuda")
    losses = (model(batch) - batch).square()
    losses.mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    history.append(losses)  # 64 MiB a step; losses.mean().item() is what was meant
