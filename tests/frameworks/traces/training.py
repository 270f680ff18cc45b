"""Transformers in training."""

import copy
import random

import torch
import torch.nn.functional as F
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
def gpt_padded():
    """Lengths padded to a multiple of 64, as many loaders do: few distinct sizes."""
    model = GPT(layers=4, width=384).cuda()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(45):
        train(model, optimiser, model.loss(tokens(4, 64 * random.randint(1, 5))))


@job
def gpt_sorted():
    """Ever longer sequences (a curriculum): nothing freed fits what comes next."""
    model = GPT(layers=4).cuda()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(50):
        train(model, optimiser, model.loss(tokens(4, 32 + 7 * step)))


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
def zeroth_order_half():
    """Like zeroth_order, in half precision. A tensor of noise for each weight lives for a whole step."""
    model = GPT(layers=12, width=768, vocabulary=30000, dropout=0.0).cuda().half()
    weights = list(model.parameters())
    with torch.no_grad():
        for step in range(14):
            noise = [torch.randn_like(weight) for weight in weights]
            x = tokens(8, random.randint(64, 512))
            losses = []
            for scale in (1e-3, -2e-3):
                for weight, direction in zip(weights, noise):
                    weight.add_(direction * scale)
                losses.append(model.loss(x).item())
            for weight, direction in zip(weights, noise):
                weight.add_(direction, alpha=1e-3)
            if step % 5 == 4:
                for _ in range(6):
                    model(tokens(24, random.randint(64, 256))).argmax(dim=2).cpu()


@job
def large_activations():
    """Tens of MiB per tensor."""
    train_gpt(12, 8, 512, 1024, layers=8, width=1024, heads=16, vocabulary=16000)


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


@job
def federated():
    """Clients in turn copy the model, train it on their own batches and send back a difference, which is averaged."""
    server = GPT(layers=4, width=384, dropout=0.0).cuda()
    for _ in range(4):
        total = [torch.zeros_like(weight) for weight in server.parameters()]
        for _ in range(3):
            client = copy.deepcopy(server)
            optimiser = torch.optim.SGD(client.parameters(), lr=0.1, momentum=0.9)
            batch, longest = random.choice((2, 4, 8)), random.randint(64, 320)
            for _ in range(5):
                train(client, optimiser, client.loss(tokens(batch, random.randint(32, longest))))
            with torch.no_grad():
                for sum_, new, old in zip(total, client.parameters(), server.parameters()):
                    sum_ += new - old
        with torch.no_grad():
            for weight, sum_ in zip(server.parameters(), total):
                weight += sum_ / 3
                weight.grad = None


@job
def distillation():
    """A large frozen teacher, a small student, both sets of logits alive at once."""
    teacher = GPT(layers=8, width=768, vocabulary=16000, dropout=0.0).cuda().half()
    student = GPT(layers=3, width=384, vocabulary=16000).cuda()
    optimiser = torch.optim.AdamW(student.parameters(), lr=1e-4)
    for _ in range(36):
        x = tokens(4, random.randint(48, 320))
        with torch.no_grad():
            wanted = teacher(x).float().softmax(dim=2)
        train(student, optimiser, F.kl_div(student(x).log_softmax(dim=2), wanted, reduction="batchmean"))
