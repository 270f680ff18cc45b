"""Models of images."""

import copy
import random

import torch
import torch.nn.functional as F
from jobs import job, tokens, train
from torch import nn


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
