"""Shares a tensor on the device with a spawned process through a queue. Each process sees what the other writes."""

import torch
import torch.multiprocessing as multiprocessing

from account import account, torch_checkpoint


def held(kind):
    rows = (account() or {"totals": []})["totals"]
    return sum(row["requested"]["current"] for row in rows if row["class"] == kind)


def child(tensors, answers):
    first, second = tensors.get()
    whole = torch.arange(5000, dtype=torch.float32)
    assert first.is_cuda and torch.equal(first.cpu(), whole), "the first tensor's values"
    assert torch.equal(second.cpu(), whole.repeat(400)[1000:]), "the second tensor's values"
    first.copy_(whole * 2)
    second.copy_(torch.full((1_999_000,), 7.0))
    torch.cuda.synchronize()
    answers.put(held("imported"))
    # The owner checks the values while this process has the memory open.
    assert tensors.get() == "done"
    del first, second


def main():
    context = multiprocessing.get_context("spawn")
    tensors, answers = context.Queue(), context.Queue()
    process = context.Process(target=child, args=(tensors, answers), daemon=True)
    process.start()
    whole = torch.arange(5000, dtype=torch.float32)
    others = [torch.full((3000,), float(number)).to("cuda") for number in range(8)]
    first = whole.to("cuda")
    large = whole.repeat(400).to("cuda")
    # A tensor inside one of PyTorch's segments, and a slice that begins inside a tensor.
    tensors.put((first, large[1000:]))
    imported = answers.get(timeout=100)
    assert torch.equal(first.cpu(), whole * 2), "what the other process wrote"
    assert torch.equal(large[1000:].cpu(), torch.full((1_999_000,), 7.0)), "what the other process wrote"
    assert torch.equal(large[:1000].cpu(), whole[:1000]), "what is not shared"
    for number, other in enumerate(others):
        assert torch.equal(other.cpu(), torch.full((3000,), float(number))), "another tensor's bytes"
    torch_checkpoint("another process uses the memory", shares=True)
    tensors.put("done")
    process.join(100)
    assert process.exitcode == 0, process.exitcode
    # PyTorch shares whole cudaMallocs, so the child has imported all memory that this process reserved.
    if account() is not None:
        assert imported == torch.cuda.memory_reserved(), (imported, torch.cuda.memory_reserved())
    print("shared", flush=True)


if __name__ == "__main__":
    main()
