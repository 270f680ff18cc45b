"""What vramshim does inside a Python job: `vramshim.torch` serves PyTorch's tensors, `vramshim.record` records them."""
