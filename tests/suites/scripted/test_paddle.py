"""PaddlePaddle 2.6: import, flags, and what its CUDA runtime asks the driver for.

Paddle is linked with NVIDIA's runtime, which stops at tables that no header documents. The simulated GPU does not imitate
these tables, so Paddle finds no device. What comes before that must be the same with the library."""

import os
import subprocess
import sys

import pytest


def python(code, **variables):
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | variables, capture_output=True, text=True)
    return done.returncode, done.stdout.strip(), done.stderr


@pytest.mark.parametrize("strategy", ["naive_best_fit", "auto_growth", "thread_local"])
def test_flags(strategy):
    code = "import paddle; print(list(paddle.get_flags(['FLAGS_allocator_strategy']).values())[0])"
    assert python(code, FLAGS_allocator_strategy=strategy)[:2] == (0, strategy)


def test_tensors_of_the_host():
    assert python("import paddle; print(int(paddle.ones([1000]).sum()))")[:2] == (0, "1000")


def test_no_device_is_found():
    assert python("import paddle; print(paddle.device.cuda.device_count())")[:2] == (0, "0")


def test_a_device_that_is_not_there():
    status, _, told = python("import paddle; paddle.set_device('gpu:0'); print(paddle.zeros([10]))")
    assert status != 0 and "no GPU detected" in told


def test_the_runtime_looks_functions_up(tmp_path):
    lookups = tmp_path / "lookups"
    assert python("import paddle; paddle.device.cuda.device_count()", SIMGPU_LOOKUPS=str(lookups))[0] == 0
    names = {line.split()[0] for line in lookups.read_text().splitlines()}
    assert {"cuInit", "cuMemAlloc", "cuMemFree", "cuLaunchKernel"} <= names, sorted(names)
