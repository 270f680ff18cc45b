"""Sparse and plain models, and a job with two streams."""

import random

import torch
import torch.nn.functional as F
from gpt import GPT
from jobs import job, tokens, train
from torch import nn


@job
def mlp_adam_foreach():
    """Adam over lists of tensors: temporaries as large as all weights together, at once."""
    widths = [784] + [random.choice((512, 768, 1024, 1536)) for _ in range(12)] + [10]
    layers = [layer for a, b in zip(widths, widths[1:]) for layer in (nn.Linear(a, b), nn.ReLU())]
    model = nn.Sequential(*layers).cuda()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=True)
    for _ in range(70):
        batch = random.randint(32, 1024)
        train(model, optimiser, F.cross_entropy(model(torch.randn(batch, 784).to("cuda")), tokens(batch)))


@job
def experts():
    """A mixture of experts: how many tokens each expert gets differs with every layer and step."""
    width, count = 384, 8
    layers = nn.ModuleList(
        nn.ModuleList(nn.Sequential(nn.Linear(width, 1536), nn.GELU(), nn.Linear(1536, width)) for _ in range(count))
        for _ in range(4)
    ).cuda()
    gates = nn.ModuleList(nn.Linear(width, count) for _ in layers).cuda()
    model = nn.ModuleList((layers, gates))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(24):
        h = torch.randn(random.randint(512, 3072), width).to("cuda")
        for gate, group in zip(gates, layers):
            share = gate(h).softmax(dim=1)
            # A router prefers some experts; how many tokens they get must be known on the host.
            liking = [random.expovariate(1) for _ in range(count)]
            routed = random.choices(range(count), liking, k=h.shape[0])
            parts, order = [], []
            for number, expert in enumerate(group):
                rows = [row for row, chosen in enumerate(routed) if chosen == number]
                if rows:
                    index = torch.tensor(rows).to("cuda")
                    weight = share.index_select(0, index)[:, number : number + 1]
                    parts.append(expert(h.index_select(0, index)) * weight)
                    order += rows
            h = h + torch.cat(parts).index_select(0, torch.tensor(order).to("cuda"))
        train(model, optimiser, h.square().mean())


@job
def two_streams():
    """Batches prepared on a stream of their own and handed over, so that memory of two streams is in use."""
    model = GPT(layers=4).cuda()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
    side = torch.cuda.Stream()
    for _ in range(30):
        with torch.cuda.stream(side):
            raw = tokens(4, random.randint(32, 256))
            noise = torch.randn(4, raw.shape[1], 2048, device="cuda").softmax(dim=2)
        torch.cuda.current_stream().wait_stream(side)
        for tensor in (raw, noise):
            tensor.record_stream(torch.cuda.current_stream())
        train(model, optimiser, model.loss(raw) + noise.mean())
