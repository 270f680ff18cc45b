"""Recurrent, sparse and plain models, and a job with two streams."""

import random

import torch
import torch.nn.functional as F
from gpt import GPT
from jobs import job, tokens, train
from torch import nn


def unrolled(cell, state, steps, batch, shortest, longest, width):
    embed, head = nn.Embedding(4000, width).cuda(), nn.Linear(width, 4000).cuda()
    model = nn.ModuleList((embed, cell, head))
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(steps):
        x = tokens(batch, random.randint(shortest, longest))
        h, outputs = state(), []
        for t in range(x.shape[1]):
            h = cell(embed(x[:, t]), h)
            outputs.append(h[0] if isinstance(h, tuple) else h)
        logits = head(torch.stack(outputs, dim=1))
        train(model, optimiser, F.cross_entropy(logits.view(-1, 4000), x.view(-1)))


class Gated(nn.Module):
    """An LSTM's cell by elementary operators, so that every gate is a tensor of its own."""

    def __init__(self, width):
        super().__init__()
        self.x, self.h = nn.Linear(width, 4 * width), nn.Linear(width, 4 * width)

    def forward(self, x, state):
        h, c = state
        i, f, g, o = (self.x(x) + self.h(h)).chunk(4, dim=1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c


@job
def lstm_unrolled():
    """Back-propagation through time over sequences of variable length."""
    width, batch = 384, 48
    zero = lambda: torch.zeros(batch, width, device="cuda")
    unrolled(Gated(width).cuda(), lambda: (zero(), zero()), 14, batch, 8, 60, width)


@job
def gru_unrolled():
    """Like lstm_unrolled, with PyTorch's fused GRU cell and small tensors: thousands of blocks below 1 MiB."""
    width, batch = 256, 32
    zero = lambda: torch.zeros(batch, width, device="cuda")
    unrolled(nn.GRUCell(width, width).cuda(), zero, 16, batch, 10, 120, width)


def mlp(**options):
    widths = [784] + [random.choice((512, 768, 1024, 1536)) for _ in range(12)] + [10]
    layers = [layer for a, b in zip(widths, widths[1:]) for layer in (nn.Linear(a, b), nn.ReLU())]
    model = nn.Sequential(*layers).cuda()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3, **options)
    for _ in range(70):
        batch = random.randint(32, 1024)
        train(model, optimiser, F.cross_entropy(model(torch.randn(batch, 784).to("cuda")), tokens(batch)))


@job
def mlp_adam_foreach():
    """Adam over lists of tensors: temporaries as large as all weights together, at once."""
    mlp(foreach=True)


@job
def mlp_adam_single():
    """Adam tensor by tensor."""
    mlp(foreach=False, fused=False)


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
def recommender():
    """Large embedding tables with gradients by row, tiny dense layers, batches of varying size."""
    tables = nn.ModuleList(nn.Embedding(random.randint(1000, 60000), 64) for _ in range(16)).cuda()
    top = nn.Sequential(nn.Linear(16 * 64, 512), nn.ReLU(), nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 1)).cuda()
    optimiser = torch.optim.SGD([*tables.parameters(), *top.parameters()], lr=0.1)
    for _ in range(60):
        batch = random.randint(128, 4096)
        x = torch.cat([table(tokens(batch)) for table in tables], dim=1)
        train(None, optimiser, top(x).square().mean())


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
