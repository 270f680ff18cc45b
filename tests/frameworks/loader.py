"""DataLoader workers, forked and spawned, of a process that uses CUDA."""

import torch
from torch.utils.data import DataLoader, Dataset

from account import torch_checkpoint


class Numbers(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((128,), float(index))


def main():
    first = torch.zeros(10, device="cuda")
    # A spawned worker imports PyTorch anew, so there is one of them.
    for context, workers in (("fork", 2), ("spawn", 1)):
        loader = DataLoader(Numbers(), batch_size=8, num_workers=workers, multiprocessing_context=context, pin_memory=True)
        seen = 0.0
        for batch in loader:
            seen += batch[:, 0].sum().item()
            on_device = batch.to("cuda", non_blocking=True)
            assert torch.equal(on_device.cpu(), batch), "bytes changed on the way"
        assert seen == sum(range(64)), f"{context}: {seen}"
        torch_checkpoint(context)
    del first


if __name__ == "__main__":
    main()
