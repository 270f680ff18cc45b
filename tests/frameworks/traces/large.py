"""Jobs of several GiB to tens of GiB: the sizes of today's language models, with few layers."""

import random

import torch
import torch.nn.functional as F
from jobs import job, tokens, train
from torch import nn


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


class Layer(nn.Module):
    """A layer of a Llama-like model: grouped keys and values, fused attention, a gated network."""

    def __init__(self, width, heads, groups):
        super().__init__()
        self.heads, self.groups, size = heads, groups, width // heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = nn.Linear(width, groups * size, bias=False), nn.Linear(width, groups * size, bias=False)
        inner = 256 * (8 * width // 3 // 256)
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x, cache=None):
        batch, length, width = x.shape
        h = self.norm1(x)
        q = self.q(h).view(batch, length, self.heads, -1).transpose(1, 2)
        k, v = (part(h).view(batch, length, self.groups, -1).transpose(1, 2) for part in (self.k, self.v))
        # Rotary positions: two temporaries as large as the tensor that they turn.
        q, k = (part * 0.5 + torch.cat(part.chunk(2, dim=3)[::-1], dim=3) for part in (q, k))
        if cache is not None:
            k, v = cache.grow(self, k, v)
        k, v = (part.repeat_interleave(self.heads // self.groups, dim=1) for part in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self, layers, width, heads, groups, vocabulary):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width, heads, groups) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, x, cache=None, last=False):
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h, cache)
        return self.head(self.norm(h[:, -1:] if last else h))

    def loss(self, x):
        logits = self(x).float()
        return F.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[2]), x[:, 1:].reshape(-1))


def llama(layers, width, heads, groups, vocabulary):
    """Made on the device: kernels do nothing there, so that large models cost the host no time."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Llama(layers, width, heads, groups, vocabulary)
    torch.set_default_dtype(before)
    return model


@job
def llama_variable():
    """Training at lengths of 200 to 4,096, batches of two: 15 GiB."""
    model = llama(8, 2048, 16, 4, 64000)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for _ in range(9):
        train(model, optimiser, model.loss(tokens(2, random.randint(200, 4096))))


@job
def beam_search():
    """Beams are reordered after each token: every cache is copied twice a token."""
    model = llama(10, 2048, 16, 16, 50000).half()
    with torch.inference_mode():
        for _ in range(4):
            beams, cache = random.choice((4, 6, 8)), Cache()
            model(tokens(beams, random.randint(50, 1500)), cache, last=True)
            for _ in range(random.randint(5, 14)):
                logits = model(tokens(beams, 1), cache, last=True)
                scores = logits.float().log_softmax(dim=2).view(1, -1)
                scores.topk(beams, dim=1)
                cache.reorder(torch.tensor([random.randrange(beams) for _ in range(beams)]).to("cuda"))


class Mixer(nn.Module):
    def __init__(self, patches, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(patches, 2 * width), nn.GELU(), nn.Linear(2 * width, patches))
        self.within = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.across(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.norm2(x))


@job
def prefetching():
    """A stream of its own prepares the next two batches while the model trains on one, so blocks cross streams."""
    with torch.device("cuda"):
        layers = nn.Sequential(*(Mixer(256, 512) for _ in range(10)))
        cut, head = nn.Linear(768, 512), nn.Linear(512, 1000)
    model = nn.ModuleList((layers, cut, head))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
    side, ready = torch.cuda.Stream(), []

    def prepare():
        with torch.cuda.stream(side):
            batch = random.randint(40, 120)
            raw = torch.empty(batch, 3, 288, 288, dtype=torch.uint8, device="cuda")
            images = raw.float().div(255.0)
            if random.random() < 0.5:
                images = images.flip(3)
            patches = images[:, :, 16:272, 16:272].unfold(2, 16, 16).unfold(3, 16, 16)
            patches = patches.permute(0, 2, 3, 1, 4, 5).reshape(batch, 256, 768)
            ready.append((patches, tokens(batch)))

    prepare()
    for _ in range(16):
        prepare()
        torch.cuda.current_stream().wait_stream(side)
        patches, wanted = ready.pop(0)
        for tensor in (patches, wanted):
            tensor.record_stream(torch.cuda.current_stream())
        train(model, optimiser, F.cross_entropy(head(layers(cut(patches)).mean(dim=1)), wanted))


@job
def sharded():
    """Layers are gathered before use and dropped after it, as in fully sharded training: flat buffers of 0.8 GiB."""
    with torch.device("cuda"):
        layers = [Layer(5120, 40, 8).bfloat16() for _ in range(20)]
    own = []
    for layer in layers:
        weights = list(layer.parameters())
        flat = torch.empty(sum(weight.numel() for weight in weights) // 4, device="cuda")
        own.append((flat, torch.zeros_like(flat), torch.zeros_like(flat), [weight.shape for weight in weights]))
        for weight in weights:
            weight.data = torch.empty(0, dtype=torch.bfloat16, device="cuda")

    def gather(number):
        flat, _, _, shapes = own[number]
        part = flat.bfloat16()
        whole = torch.empty(4 * part.numel() + 64, dtype=torch.bfloat16, device="cuda")
        start = 0
        for weight, shape in zip(layers[number].parameters(), shapes):
            weight.data = whole[start : start + shape.numel()].view(shape)
            start += shape.numel()

    def drop(number):
        for weight in layers[number].parameters():
            weight.data = torch.empty(0, dtype=torch.bfloat16, device="cuda")

    for step in range(3):
        h, kept = torch.zeros(2, random.randint(1500, 4096), 5120, dtype=torch.bfloat16, device="cuda"), []
        for number, layer in enumerate(layers):
            gather(number)
            kept.append(h)
            with torch.no_grad():
                h = layer(h)
            drop(number)
        grad = torch.ones_like(h)
        for number in reversed(range(len(layers))):
            gather(number)
            x = kept.pop().requires_grad_()
            layers[number](x).backward(grad)
            grad = x.grad
            x.grad = None
            weights = list(layers[number].parameters())
            flat = torch.cat([weight.grad.flatten() for weight in weights])
            share, first, second, _ = own[number]
            part = flat[: share.numel()].float()
            for weight in weights:
                weight.grad = None
            drop(number)
            first.lerp_(part, 0.1)
            second.mul_(0.99).addcmul_(part, part, value=0.01)
            share.addcdiv_(first, second.sqrt().add_(1e-8), value=-1e-4)


@job
def convolutions():
    """A deep residual network with bottlenecks: images of 224, batches of 96 and a last one of 29."""

    class Bottleneck(nn.Module):
        def __init__(self, inner, middle, stride):
            super().__init__()
            outer, shapes = 4 * middle, ((inner, middle, 1, 1), (middle, middle, 3, stride), (middle, 4 * middle, 1, 1))
            self.convs = nn.ModuleList(nn.Conv2d(a, b, k, s, k // 2, bias=False) for a, b, k, s in shapes)
            self.norms = nn.ModuleList(nn.BatchNorm2d(b) for _, b, _, _ in shapes)
            same = inner == outer and stride == 1
            self.shortcut = nn.Identity() if same else nn.Conv2d(inner, outer, 1, stride, bias=False)

        def forward(self, x):
            y = x
            for conv, norm in zip(self.convs, self.norms):
                y = F.relu(norm(conv(y)))
            return F.relu(y + self.shortcut(x))

    with torch.device("cuda"):
        layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        inner = 64
        for index, (middle, depth) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
            for position in range(depth):
                layers.append(Bottleneck(inner, middle, 2 if index and not position else 1))
                inner = 4 * middle
        model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, 1000))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        for batch in (96, 96, 96, 29):
            images = torch.empty(batch, 3, 224, 224, device="cuda").normal_()
            train(model, optimiser, F.cross_entropy(model(images), tokens(batch)))
