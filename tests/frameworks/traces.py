"""Runs small PyTorch jobs and writes what each asked of the caching allocator as CSV in the layout of RMM's logging
adaptor (Thread,Time,Action,Pointer,Size,Stream), sizes as requested, not rounded: NAME.csv.gz in OUTDIR.

usage: traces.py OUTDIR [NAME...]

Meant for `vramshim run --sim 80GiB -- python traces.py OUTDIR`. Kernels of the simulated GPU do nothing, so no size
here depends on a value computed on the device: lengths, image sizes and routings are drawn on the host, by fixed seeds.
Each job has a process of its own, so that each begins with an empty caching allocator. A line per job tells its events,
its peak of live bytes and what PyTorch itself counted, to check a model of PyTorch's allocator against.
"""

import copy
import gzip
import math
import os
import random
import subprocess
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

JOBS = {}


def job(function):
    JOBS[function.__name__] = function
    return function


def tokens(*shape):
    """Random token numbers, drawn on the host and copied, as a data loader would."""
    return torch.randint(0, 1000, shape).to("cuda")


def train(model, optimiser, loss):
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    optimiser.step()


# Transformers


class Attention(nn.Module):
    def __init__(self, width, heads, fused):
        super().__init__()
        self.heads, self.fused = heads, fused
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x, cache=None):
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(x).split(width, dim=2)
        )
        if cache is not None:
            k, v = cache.grow(self, k, v)
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        else:
            scores = (q @ k.transpose(2, 3)) / math.sqrt(q.shape[3])
            if cache is None:
                mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
                scores = scores.masked_fill(~mask, float("-inf"))
            y = scores.softmax(dim=3) @ v
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, heads, fused, dropout):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, fused)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, cache=None):
        x = x + self.dropout(self.attention(self.norm1(x), cache))
        return x + self.dropout(self.mlp(self.norm2(x)))


class GPT(nn.Module):
    def __init__(self, layers=6, width=256, heads=8, vocabulary=8000, fused=False, dropout=0.1, remember=True):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(4096, width)
        self.blocks = nn.ModuleList(Block(width, heads, fused, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.remember = remember

    def forward(self, x, cache=None, start=0):
        positions = torch.arange(start, start + x.shape[1], device=x.device)
        h = self.embed(x) + self.position(positions)
        for block in self.blocks:
            h = block(h, cache) if self.remember else checkpoint(block, h, use_reentrant=False)
        return self.head(self.norm(h))

    def loss(self, x):
        logits = self(x)
        return F.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[2]), x[:, 1:].reshape(-1))


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
    """The same, activations computed again in the backward pass."""
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
    """The same in half precision, the noise a tensor per weight that is kept over the step, an evaluation at times."""
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


# Inference


class Grown:
    """A cache of keys and values that grows by concatenation."""

    def __init__(self):
        self.layers = {}

    def grow(self, layer, k, v):
        if layer in self.layers:
            before_k, before_v = self.layers[layer]
            k, v = torch.cat((before_k, k), dim=2), torch.cat((before_v, v), dim=2)
        self.layers[layer] = (k, v)
        return k, v


@job
def kv_cache():
    """One request after the other; the cache grows by concatenation with every token."""
    model = GPT(layers=8, width=512, dropout=0.0).cuda().half()
    with torch.inference_mode():
        for _ in range(6):
            cache, length = Grown(), random.randint(16, 768)
            model(tokens(4, length), cache)
            for step in range(random.randint(10, 36)):
                model(tokens(4, 1), cache, length + step).argmax(dim=2)


@job
def kv_bursts():
    """Bursts of requests of random length served together, each with a cache of its own, done at different times."""
    model = GPT(layers=4, width=512, dropout=0.0).cuda().half()
    with torch.inference_mode():
        for _ in range(3):
            running = []
            for _ in range(random.randint(2, 8)):
                length = int(16 * 64 ** random.random())
                cache = Grown()
                model(tokens(1, length), cache)
                running.append([cache, length, random.randint(4, 24)])
            while running:
                for request in running:
                    request[1] += 1
                    request[2] -= 1
                    model(tokens(1, 1), request[0], request[1])[:, -1].argmax(dim=1)
                running = [request for request in running if request[2] > 0]


@job
def serving():
    """Batches of random size and length, no cache, large logits: an embedding or scoring service."""
    model = GPT(layers=6, width=768, vocabulary=32000, dropout=0.0).cuda().half()
    with torch.inference_mode():
        for _ in range(120):
            logits = model(tokens(random.randint(1, 12), int(16 * 32 ** random.random())))
            logits.float().softmax(dim=2).argmax(dim=2).cpu()


@job
def model_switching():
    """Loads a model, trains or serves it, drops it for the next, which is mostly larger."""
    for turn in range(8):
        width = random.choice((192, 256, 384)) + 64 * turn
        model = GPT(layers=4 + turn % 4, width=width, heads=8, dropout=0.0).cuda()
        if turn % 3 == 2:
            optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
            for _ in range(8):
                train(model, optimiser, model.loss(tokens(4, random.randint(32, 256))))
            del optimiser
        else:
            with torch.inference_mode():
                for _ in range(20):
                    model(tokens(random.randint(1, 8), random.randint(16, 384))).argmax(dim=2)
        del model


# Convolutions


class Residual(nn.Module):
    def __init__(self, inner, outer, stride):
        super().__init__()
        self.a = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.b = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norm_a, self.norm_b = nn.BatchNorm2d(outer), nn.BatchNorm2d(outer)
        same = inner == outer and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inner, outer, 1, stride, bias=False)

    def forward(self, x):
        y = F.relu(self.norm_a(self.a(x)))
        return F.relu(self.norm_b(self.b(y)) + self.shortcut(x))


def resnet(widths=(64, 128, 256, 512), depth=2):
    layers, inner = [nn.Conv2d(3, widths[0], 7, 2, 3, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU()], widths[0]
    for index, width in enumerate(widths):
        for position in range(depth):
            layers.append(Residual(inner, width, 2 if index and not position else 1))
            inner = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, 1000))


@job
def resnet_sizes():
    """Every step another image size, SGD with momentum, an evaluation of larger images at times."""
    model = resnet().cuda()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(30):
        size = 8 * random.randint(8, 28)
        images = torch.randn(8, 3, size, size).to("cuda")
        train(model, optimiser, F.cross_entropy(model(images), tokens(8)))
        if step % 10 == 9:
            model.eval()
            with torch.no_grad():
                for _ in range(4):
                    size = 8 * random.randint(20, 36)
                    model(torch.randn(16, 3, size, size).to("cuda")).argmax(dim=1)
            model.train()


@job
def resnet_epochs():
    """One image size, a smaller last batch and an evaluation of larger batches every epoch, a moving average kept."""
    model = resnet().cuda()
    average = copy.deepcopy(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        for batch in [32] * 8 + [11]:
            images = torch.randn(batch, 3, 128, 128).to("cuda")
            train(model, optimiser, F.cross_entropy(model(images), tokens(batch)))
            with torch.no_grad():
                for kept, weight in zip(average.parameters(), model.parameters()):
                    kept.mul_(0.99).add_(weight, alpha=0.01)
        average.eval()
        with torch.no_grad():
            for batch in (64, 64, 64, 23):
                average(torch.randn(batch, 3, 160, 160).to("cuda")).argmax(dim=1).cpu()


class UNet(nn.Module):
    def __init__(self, widths=(32, 64, 128, 256)):
        super().__init__()
        self.down = nn.ModuleList(Residual(a, b, 1) for a, b in zip((3, *widths), widths))
        back = widths[::-1]
        self.rise = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in zip(back, back[1:]))
        self.up = nn.ModuleList(Residual(2 * b, b, 1) for b in back[1:])
        self.out = nn.Conv2d(widths[0], 4, 1)

    def forward(self, x):
        kept = []
        for index, down in enumerate(self.down):
            x = down(F.max_pool2d(x, 2) if index else x)
            kept.append(x)
        kept.pop()
        for rise, up in zip(self.rise, self.up):
            x = up(torch.cat((rise(x), kept.pop()), dim=1))
        return self.out(x)


@job
def unet():
    """Crops of varying height and width; early activations live until the end."""
    model = UNet().cuda()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(40):
        height, width = 16 * random.randint(4, 20), 16 * random.randint(4, 20)
        images = torch.randn(4, 3, height, width).to("cuda")
        train(model, optimiser, (model(images) - 1).square().mean())


@job
def vision_transformer():
    """Images of several resolutions cut in patches, fused attention, gradient clipping."""
    layers = nn.ModuleList(Block(384, 6, True, 0.0) for _ in range(8)).cuda()
    cut, head = nn.Conv2d(3, 384, 16, 16).cuda(), nn.Linear(384, 1000).cuda()
    model = nn.ModuleList((layers, cut, head))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(36):
        size, batch = random.choice((160, 192, 224, 288)), random.choice((8, 12, 16))
        h = cut(torch.randn(batch, 3, size, size).to("cuda")).flatten(2).transpose(1, 2)
        for layer in layers:
            h = layer(h)
        optimiser.zero_grad(set_to_none=True)
        F.cross_entropy(head(h.mean(dim=1)), tokens(batch)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()


@job
def gan():
    """Two models in turn, one's output the other's input, some images kept for a replay buffer."""
    make = nn.ModuleList(nn.ConvTranspose2d(a, b, 4, 2, 1) for a, b in zip((128, 128, 64, 32), (128, 64, 32, 3))).cuda()
    judge = resnet((32, 64, 128), 1).cuda()
    optimisers = [torch.optim.Adam(model.parameters(), lr=1e-4) for model in (make, judge)]
    replay = []

    def images(batch):
        x = torch.randn(batch, 128, 4, 4).to("cuda")
        for layer in make:
            x = layer(F.relu(x))
        return x.tanh()

    for _ in range(45):
        batch = random.randint(4, 48)
        fake = images(batch)
        replay.append(fake.detach())
        if len(replay) > 12:
            replay.pop(random.randrange(len(replay)))
        old = torch.cat(random.sample(replay, min(3, len(replay))))
        train(judge, optimisers[1], judge(old).mean() - judge(torch.randn(batch, 3, 64, 64).to("cuda")).mean())
        train(make, optimisers[0], -judge(images(batch)).mean())


# Others


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
    """The same with PyTorch's fused cell and small tensors: thousands of blocks below 1 MiB."""
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


def record(name, path):
    random.seed(name)
    torch.manual_seed(0)
    # The simulated GPU has no cuDNN.
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.cuda.init()
    torch.cuda.memory._record_memory_history(enabled="all", context=None, stacks="python", max_entries=4_000_000)
    JOBS[name]()
    torch.cuda.synchronize()
    snapshot = torch.cuda.memory._snapshot()
    stats = torch.cuda.memory_stats()
    events = snapshot["device_traces"][0]
    # The history's own order and times; what is left at the end is left in the trace as well.
    first = events[0]["time_us"]
    live, bytes_live, peak, count = {}, 0, 0, 0
    # No time of writing in the file: the same history makes the same bytes.
    with open(f"{path}.part", "wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as file:
        file.write(b"Thread,Time,Action,Pointer,Size,Stream\n")
        for event in events:
            address, size = event["addr"], event["size"]
            if event["action"] == "alloc":
                live[address] = size
                bytes_live += size
                peak = max(peak, bytes_live)
                word = "allocate"
            elif event["action"] == "free_completed" and address in live:
                bytes_live -= live.pop(address)
                word = "free"
            else:
                continue
            count += 1
            seconds, micros = divmod(event["time_us"] - first, 1_000_000)
            minutes, seconds = divmod(seconds, 60)
            hours, minutes = divmod(minutes, 60)
            time = f"{hours:02}:{minutes:02}:{seconds:02}.{micros:06}"
            file.write(f"0,{time},{word},{address:#x},{size},{event['stream']}\n".encode())
    os.replace(f"{path}.part", path)
    reserved = stats["reserved_bytes.all.peak"]
    print(
        f"{name}: {count} events, peak live {peak} (PyTorch: {stats['requested_bytes.all.peak']}), "
        f"PyTorch's peak reserved {reserved}, utilisation {peak / reserved:.3f}, "
        f"segments {stats['segment.all.allocated']}",
        flush=True,
    )


def main():
    if len(sys.argv) < 2 or any(name not in JOBS for name in sys.argv[2:]):
        sys.exit(f"usage: traces.py OUTDIR [NAME...]; names: {', '.join(JOBS)}")
    folder, names = sys.argv[1], sys.argv[2:] or list(JOBS)
    os.makedirs(folder, exist_ok=True)
    if len(names) == 1:
        record(names[0], os.path.join(folder, f"real_{names[0]}.csv.gz"))
        # The interpreter's end may catch PyTorch's autograd thread at work.
        sys.stdout.flush()
        os._exit(0)
    failed = [name for name in names if subprocess.run([sys.executable, __file__, folder, name]).returncode]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
