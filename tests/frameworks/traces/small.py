"""Jobs of less than a GiB."""

import math
import random

import torch
import torch.nn.functional as F
from jobs import job, tokens, train
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(x).split(width, dim=2))
        scores = (q @ k.transpose(2, 3)) / math.sqrt(q.shape[3])
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        y = scores.masked_fill(~mask, float("-inf")).softmax(dim=3) @ v
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, layers, width, heads, vocabulary):
        super().__init__()
        self.embed, self.position = nn.Embedding(vocabulary, width), nn.Embedding(4096, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def loss(self, x):
        h = self.embed(x) + self.position(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            h = block(h)
        logits = self.head(self.norm(h))
        return F.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[2]), x[:, 1:].reshape(-1))


@job
def adapters():
    """A frozen model in half precision, small trained matrices beside its layers, padded prompts of any length."""

    class Adapted(nn.Module):
        def __init__(self, layer, rank=8):
            super().__init__()
            self.layer = layer
            self.a = nn.Linear(layer.in_features, rank, bias=False)
            self.b = nn.Linear(rank, layer.out_features, bias=False)

        def forward(self, x):
            return self.layer(x) + self.b(self.a(x.float())).to(x.dtype)

    model = GPT(10, 768, 8, 32000).half()
    for weight in model.parameters():
        weight.requires_grad_(False)
    for block in model.blocks:
        block.attention.qkv, block.attention.out = Adapted(block.attention.qkv), Adapted(block.attention.out)
    model.cuda()
    optimiser = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=1e-4)
    for _ in range(18):
        train(model, optimiser, model.loss(tokens(4, random.randint(40, 400))))


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
