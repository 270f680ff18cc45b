"""Transformers in training."""

import random

import torch
from gpt import GPT
from jobs import job, tokens, train
from torch import nn


def train_gpt(steps, batch, shortest, longest, **shape):
    model = GPT(**shape).cuda()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(steps):
        train(model, optimiser, model.loss(tokens(batch, random.randint(shortest, longest))))


@job
def gpt_variable():
    """Every step another sequence length."""
    train_gpt(40, 4, 32, 320)


@job
def gpt_checkpointed():
    """Like gpt_variable, with activations that are computed again in the backward pass."""
    train_gpt(30, 4, 32, 320, remember=False)


@job
def gpt_mixed_precision():
    """Autocast to bfloat16 with fused attention, a weight cast per layer and step."""
    model = GPT(layers=6, width=384, fused=True, dropout=0.0).cuda()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(30):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model.loss(tokens(6, random.randint(48, 400)))
        train(model, optimiser, loss)


@job
def accumulation():
    """Gradient accumulation: 4 to 8 micro-batches of their own lengths before each step."""
    model = GPT(layers=4, width=320).cuda()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(10):
        optimiser.zero_grad(set_to_none=True)
        for _ in range(random.randint(4, 8)):
            model.loss(tokens(2, random.randint(64, 512))).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()


@job
def zeroth_order():
    """Forward passes only: the weights are moved by seeded noise, twice and back, per step."""
    model = GPT(layers=6, width=512, dropout=0.0).cuda()

    def shift(scale):
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=scale)

    with torch.no_grad():
        for _ in range(31):
            x = tokens(4, random.randint(48, 384))
            shift(1e-3)
            above = model.loss(x)
            shift(-2e-3)
            below = model.loss(x)
            shift(1e-3)
            shift((above.item() - below.item()) * 1e-5)


@job
def gpt_fixed():
    """Every step the same shapes, a shorter validation at times: what most training looks like."""
    model = GPT(layers=8, width=512).cuda()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(24):
        train(model, optimiser, model.loss(tokens(8, 256)))
        if step % 8 == 7:
            with torch.no_grad():
                for rows in (8, 8, 3):
                    model.loss(tokens(rows, 256)).item()


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

    model = GPT(layers=10, width=768, vocabulary=32000, dropout=0.0).half()
    for weight in model.parameters():
        weight.requires_grad_(False)
    for block in model.blocks:
        block.attention.qkv, block.attention.out = Adapted(block.attention.qkv), Adapted(block.attention.out)
    model.cuda()
    optimiser = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=1e-4)
    for _ in range(18):
        train(model, optimiser, model.loss(tokens(4, random.randint(40, 400))))
