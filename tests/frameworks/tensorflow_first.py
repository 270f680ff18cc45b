"""The first allocations of TensorFlow on one GPU: it takes most of the device at once, or with the argument `growth` as
much as it needs."""

import os
import sys

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

from account import checkpoint

devices = tf.config.list_physical_devices("GPU")
if not devices:
    sys.exit("TensorFlow finds no GPU")
if "growth" in sys.argv[1:]:
    tf.config.experimental.set_memory_growth(devices[0], True)
kept = []
with tf.device("/GPU:0"):
    for number in range(1, 11):
        numbers = tf.range(number * (1 << 20), dtype=tf.int64)
        kept.append(numbers)
        print("element", int(numbers[-1]), "of", int(tf.size(numbers)))
    checkpoint({}, "first tensors")
    for number, numbers in enumerate(kept, 1):
        assert int(numbers[-1]) == number * (1 << 20) - 1, "bytes changed"
    used = tf.config.experimental.get_memory_info("GPU:0")["current"]
    assert used >= sum(number * (8 << 20) for number in range(1, 11)), used
checkpoint({}, "checked")
