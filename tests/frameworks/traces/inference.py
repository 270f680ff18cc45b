"""Transformers that serve requests."""

import random

import torch
from gpt import GPT
from jobs import job, tokens, train


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
    """Bursts of requests that are served together. Each request has its own length, its own cache and its own end."""
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
