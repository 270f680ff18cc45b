"""PaddlePaddle's own check of its installation on one GPU, then a loop whose tensors grow."""

import os
import sys

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")

import paddle

from account import checkpoint

if not paddle.is_compiled_with_cuda() or paddle.device.cuda.device_count() == 0:
    sys.exit("PaddlePaddle finds no GPU")
paddle.utils.run_check()
checkpoint({}, "run_check")

paddle.set_device("gpu:0")
kept = []
for number in range(1, 21):
    # Sizes that no chunk of the last round fits: 16, 32 ... 320 MiB, with half of them kept.
    tensor = paddle.arange(number * (4 << 20), dtype="int32")
    if number % 2:
        kept.append(tensor)
    print("element", int(tensor[-1]), "of", tensor.shape[0])
checkpoint({}, "grown")
for number, tensor in zip(range(1, 21, 2), kept):
    assert int(tensor[-1]) == number * (4 << 20) - 1, "bytes changed"
del kept, tensor
paddle.device.cuda.empty_cache()
checkpoint({}, "freed")
