"""Convolutional and recurrent nets: forward, backward and optimiser, as cuDNN runs them."""

import calm_end  # noqa: F401
import torch
from torch import nn
from torch.nn import functional

from account import torch_checkpoint

assert torch.backends.cudnn.is_available() and torch.backends.cudnn.enabled
device = torch.device("cuda")


def learn(name, net, shape, layout=torch.contiguous_format, kind=None):
    """Two steps, with the loss scaled as for half precision if `kind` is given."""
    net = net.to(device).to(memory_format=layout)
    optimiser = torch.optim.AdamW(net.parameters())
    scaler = torch.amp.GradScaler("cuda", enabled=kind is torch.float16)
    for _ in range(2):
        batch = torch.randn(shape, device=device).contiguous(memory_format=layout)
        with torch.autocast("cuda", kind, enabled=kind is not None):
            out = net(batch)
            out = out[0] if isinstance(out, tuple) else out
        optimiser.zero_grad()
        scaler.scale(out.float().square().mean()).backward()
        scaler.step(optimiser)
        scaler.update()
    torch.cuda.synchronize()
    assert all(value.grad is not None and value.grad.shape == value.shape for value in net.parameters())
    print(f"learnt: {name}", flush=True)


def image(channels=3):
    return nn.Sequential(nn.Conv2d(channels, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Conv2d(16, 16, 3, groups=4), nn.Conv2d(16, 16, 3, groups=16, dilation=2), nn.ConvTranspose2d(16, 8, 4, stride=2))


for benchmark in (False, True):
    torch.backends.cudnn.benchmark = benchmark
    learn("1d", nn.Sequential(nn.Conv1d(8, 16, 5), nn.ConvTranspose1d(16, 4, 3)), (4, 8, 64))
    learn("2d", image(), (4, 3, 64, 64))
    learn("3d", nn.Sequential(nn.Conv3d(2, 8, 3), nn.BatchNorm3d(8), nn.ConvTranspose3d(8, 2, 3)), (2, 2, 16, 16, 16))
    learn("channels last", image(), (4, 3, 64, 64), torch.channels_last)
    learn("half", image(), (4, 3, 64, 64), torch.channels_last, torch.float16)
    learn("bfloat16", image(), (4, 3, 64, 64), kind=torch.bfloat16)
torch.backends.cudnn.deterministic = True
learn("deterministic", image(), (4, 3, 64, 64))
for cell in (nn.RNN, nn.GRU, nn.LSTM):
    learn(cell.__name__, cell(32, 48, 2, bidirectional=True, dropout=0.1), (10, 4, 32))
learn("projected", nn.LSTM(32, 48, 2, proj_size=16), (10, 4, 32))
learn("without bias", nn.GRU(32, 48, bias=False), (10, 4, 32))
with torch.inference_mode():
    x, w = torch.randn(2, 4, 8, 8, device=device), torch.randn(4, 4, 3, 3, device=device)
    torch.cudnn_convolution_relu(x, w, None, (1, 1), (1, 1), (1, 1), 1)
    functional.grid_sample(x, functional.affine_grid(torch.randn(2, 2, 3, device=device), x.shape, align_corners=True), align_corners=True)
print("learnt: all", flush=True)

# A workspace that PyTorch asks for is memory of the device: the operands once more.
torch.backends.cudnn.benchmark = torch.backends.cudnn.deterministic = False
net = nn.Conv2d(16, 16, 3, padding=1, bias=False).to(device)
batch = torch.randn(8, 16, 128, 128, device=device)
with torch.no_grad():
    net(batch)
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    net(batch)
work = torch.cuda.max_memory_allocated() - held - batch.nbytes
assert work >= 2 * batch.nbytes, work
torch_checkpoint("end")
