"""A small transformer, whose blocks other models use as well."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


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


class Cache:
    """Keys and values that grow by concatenation; the beams are reordered by a copy of everything."""

    def __init__(self):
        self.layers = {}

    def grow(self, layer, k, v):
        if layer in self.layers:
            old_k, old_v = self.layers[layer]
            k, v = torch.cat((old_k, k), dim=2), torch.cat((old_v, v), dim=2)
        self.layers[layer] = (k, v)
        return k, v

    def reorder(self, beams):
        for layer, (k, v) in self.layers.items():
            self.layers[layer] = (k.index_select(0, beams), v.index_select(0, beams))
