"""JAX: device_put, its settings of the allocator, and out of memory.

A test runs a job of its own for each setting, because JAX reads the settings once. What JAX compiles runs on the simulated
GPU, but its kernels compute nothing, so only copies are tested."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TOTAL = 1 << 30
PROGRAM = Path(__file__).with_name("jax_program.py")


def job(**settings):
    """Returns what the job printed."""
    named = {f"XLA_PYTHON_CLIENT_{name}": value for name, value in settings.items()}
    always = {"JAX_PLATFORMS": "cuda", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run([sys.executable, PROGRAM], env=os.environ | always | named, stdout=subprocess.PIPE)
    assert done.returncode == 0, settings
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("allocator", ["default", "bfc", "platform", "cuda_async"])
def test_allocator(allocator):
    job(ALLOCATOR=allocator)


@pytest.mark.parametrize("allocator", ["bfc", "cuda_async"])
def test_without_preallocation(allocator):
    job(ALLOCATOR=allocator, PREALLOCATE="false")


@pytest.mark.parametrize("fraction", [0.3, 0.9])
def test_fraction_of_the_device(fraction):
    """JAX takes the fraction of the memory that the driver calls free."""
    told = job(MEM_FRACTION=str(fraction))
    assert abs(told["limit"] - fraction * TOTAL) < 0.02 * TOTAL
    assert told["fits"][0] == told["fits"][1]


def test_settings_together():
    job(ALLOCATOR="platform", PREALLOCATE="false", MEM_FRACTION="0.5")
