"""Transformers that serve requests."""

import random

import torch
from gpt import GPT, Cache
from jobs import job, tokens


@job
def kv_cache():
    """One request after the other; the cache grows by concatenation with every token."""
    model = GPT(layers=8, width=512, dropout=0.0).cuda().half()
    with torch.inference_mode():
        for _ in range(6):
            cache, length = Cache(), random.randint(16, 768)
            model(tokens(4, length), cache)
            for step in range(random.randint(10, 36)):
                model(tokens(4, 1), cache, length + step).argmax(dim=2)


@job
def serving():
    """Batches of random size and length, no cache, large logits: an embedding or scoring service."""
    model = GPT(layers=6, width=768, vocabulary=32000, dropout=0.0).cuda().half()
    with torch.inference_mode():
        for _ in range(120):
            logits = model(tokens(random.randint(1, 12), int(16 * 32 ** random.random())))
            logits.float().softmax(dim=2).argmax(dim=2).cpu()
