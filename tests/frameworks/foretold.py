"""Twelve jobs of PyTorch whose memory has different shapes, for scripts/ci/advice. usage: foretold.py NAME

A job asks for the same memory on a device of any size. Kernels of the simulated GPU do nothing, so no size depends on a value that
was computed on the device. Ends with 3 if PyTorch is out of memory.
"""

import functools
import random
import sys

import calm_end  # noqa: F401
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

KIB, MIB = 1 << 10, 1 << 20
JOBS = {}


def job(function):
    JOBS[function.__name__] = function


# No frame of Python: the line that calls it is the one that holds.
floats = functools.partial(torch.empty, device="cuda")


def megabytes(count):
    return floats(int(count * MIB) // 4)


class Model(nn.Module):
    def __init__(self, width=512, layers=6, words=16000, saves=False):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        layer = lambda: nn.TransformerEncoderLayer(width, 8, 4 * width, 0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.ModuleList(layer() for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False)
        self.saves = saves

    def forward(self, words):
        x = self.embedding(words)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.saves else layer(x)
        return self.head(x)


def train(model, optimiser, shapes, parts=1):
    for batch, length in shapes:
        for _ in range(parts):
            ids = torch.zeros(batch, length, dtype=torch.long, device="cuda")
            logits = model(ids)
            (F.cross_entropy(logits.flatten(0, 1), ids.flatten()) / parts).backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)


@job
def perceptron():
    """Batches that grow and shrink."""
    sizes = [1024, 4096, 4096, 4096, 10]
    model = nn.Sequential(*(part for a, b in zip(sizes, sizes[1:]) for part in (nn.Linear(a, b), nn.ReLU()))).cuda()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(30):
        model(floats(random.randint(1000, 12000), 1024)).sum().backward()
        optimiser.step()
        optimiser.zero_grad()


@job
def adamw():
    model = Model().cuda()
    train(model, torch.optim.AdamW(model.parameters()), [(8, 256)] * 4)


@job
def checkpointing():
    model = Model(width=768, layers=8, saves=True).cuda()
    train(model, torch.optim.AdamW(model.parameters()), [(8, 512)] * 3)


@job
def variable_lengths():
    model = Model().cuda()
    train(model, torch.optim.AdamW(model.parameters(), foreach=False), [(8, random.randint(64, 448)) for _ in range(20)])


@job
def accumulation():
    model = Model(width=640, layers=4).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        train(model, torch.optim.AdamW(model.parameters()), [(6, 320)] * 2, parts=4)


@job
def key_value_cache():
    """Sequences that join and leave; each step makes every cache longer by a copy."""
    weights = [megabytes(48) for _ in range(8)]
    caches = []
    for step in range(70):
        if step % 6 == 0:
            caches.append([floats(1, 16, random.randint(64, 512), 128) for _ in range(8)])
        if len(caches) > 6:
            caches.pop(random.randrange(len(caches)))
        for cache in caches:
            for layer, old in enumerate(cache):
                cache[layer] = torch.cat((old, floats(1, 16, 16, 128)), 2)
    return weights


@job
def graphs():
    """Three graphs in pools of their own, and work beside them."""
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(6))).cuda()
    kept = []
    with torch.no_grad():
        for batch in (2048, 8192, 5000):
            x = floats(batch, 2048)
            model(x)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = model(x)
            kept.append((graph, x, y))
    for batch in (4000, 9000, 12000):
        model(floats(batch, 2048)).sum().backward()
    return kept


@job
def two_streams():
    side = torch.cuda.Stream()
    kept = []
    for step in range(40):
        batch = megabytes(random.randint(20, 90))
        with torch.cuda.stream(side):
            loaded = megabytes(random.randint(10, 60))
            batch.record_stream(side)
            if step % 4 == 0:
                kept.append(megabytes(random.randint(2, 14)))
        loaded.record_stream(torch.cuda.current_stream())
        work = [megabytes(random.randint(1, 30)) for _ in range(6)]
        del batch, loaded, work
    return kept


@job
def quantise():
    """Loads layers as floats, keeps them as bytes, and drops the floats; then serves requests."""
    layers = []
    for _ in range(16):
        parts = [floats(random.randint(3, 40), KIB, 512) for _ in range(3)]
        layers.append([part.to(torch.int8) for part in parts])
    for _ in range(30):
        x = floats(random.randint(20, 160), KIB, 512)
        del x
    return layers


@job
def pinned_down():
    """Small results live on between large temporaries that differ in size."""
    kept = []
    for step in range(60):
        acts = [floats(random.randint(256, 4096), 4096) for _ in range(4)]
        kept.append(floats(random.randint(16, 256), 4096))
        if step % 10 == 9:
            kept.pop(random.randrange(len(kept)))
        del acts
    return kept, megabytes(1500)


@job
def phases():
    """Trains, gives the cache back, and evaluates with other sizes."""
    model = Model(layers=4).cuda()
    train(model, torch.optim.AdamW(model.parameters()), [(8, 200), (8, 300)])
    torch.cuda.empty_cache()
    with torch.no_grad():
        for length in (900, 120, 700):
            F.softmax(model(torch.zeros(4, length, dtype=torch.long, device="cuda")), -1)


@job
def beams():
    """Beams that are copied and reordered, of many sizes below 10 MiB."""
    states = {}
    for step in range(400):
        states[step % 37] = [megabytes(random.uniform(0.2, 9.5)) for _ in range(random.randint(2, 9))]
        if step % 5 == 0:
            states = {name: [part.clone() for part in parts] for name, parts in states.items() if random.random() < 0.9}
    return megabytes(300)


if __name__ == "__main__":
    random.seed(sys.argv[1])
    torch.manual_seed(0)
    try:
        kept = JOBS[sys.argv[1]]()
        torch.cuda.synchronize()
    except torch.OutOfMemoryError:
        sys.exit(3)
