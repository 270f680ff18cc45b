"""ONNX Runtime with the CUDA provider: sessions, both strategies of its arena, limits, out of memory, graphs, threads.

The simulated GPU's kernels do nothing, so the tests compare bytes only after copies."""

import threading

import numpy
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

EXTEND = ["kNextPowerOfTwo", "kSameAsRequested"]
MIB = 1 << 20


def model(rows, columns, layers=2):
    """Layers of Relu(x * w + b), for any batch."""
    nodes, weights, last = [], [], "x"
    for layer in range(layers):
        for name, shape in ((f"w{layer}", (rows if layer == 0 else columns, columns)), (f"b{layer}", (columns,))):
            weights.append(numpy_helper.from_array(numpy.ones(shape, numpy.float32), name))
        nodes.append(helper.make_node("MatMul", [last, f"w{layer}"], [f"m{layer}"]))
        nodes.append(helper.make_node("Add", [f"m{layer}", f"b{layer}"], [f"a{layer}"]))
        nodes.append(helper.make_node("Relu", [f"a{layer}"], [f"r{layer}"]))
        last = f"r{layer}"
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", rows])],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, ["batch", columns])],
        weights,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 9
    return made.SerializeToString()


def session(rows=256, columns=256, layers=2, **options):
    made = onnxruntime.InferenceSession(model(rows, columns, layers), providers=[("CUDAExecutionProvider", options)])
    assert made.get_providers()[0] == "CUDAExecutionProvider"
    return made


def run(made, batch, rows=256):
    (out,) = made.run(None, {"x": numpy.ones((batch, rows), numpy.float32)})
    return out.shape


@pytest.mark.parametrize("extend", EXTEND)
def test_growing_batches(extend):
    made = session(arena_extend_strategy=extend)
    for batch in (1, 7, 64, 1000, 10_000, 3):
        assert run(made, batch) == (batch, 256)


@pytest.mark.parametrize("extend", EXTEND)
def test_many_sessions(extend):
    for _ in range(3):
        made = [session(columns=128 * number, arena_extend_strategy=extend) for number in range(1, 6)]
        for number, one in enumerate(made, 1):
            assert run(one, 100) == (100, 128 * number)


@pytest.mark.parametrize("extend", EXTEND)
def test_arena_shrinks(extend):
    made = session(arena_extend_strategy=extend)
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "gpu:0")
    for batch in (20_000, 10, 20_000):
        (out,) = made.run(None, {"x": numpy.ones((batch, 256), numpy.float32)}, options)
        assert out.shape == (batch, 256)


@pytest.mark.parametrize("extend", EXTEND)
def test_limit_of_the_arena(extend):
    made = session(arena_extend_strategy=extend, gpu_mem_limit=str(32 * MIB))
    assert run(made, 10) == (10, 256)
    with pytest.raises(Exception, match="allocate memory|Failed to allocate|arena"):
        run(made, 100_000)
    assert run(made, 10) == (10, 256)


def value(array, device=0):
    return onnxruntime.OrtValue.ortvalue_from_numpy(array, "cuda", device)


@pytest.mark.parametrize("size", [1, 1000, MIB + 1, 40 * MIB])
def test_bytes_come_back(size):
    sent = numpy.arange(size, dtype=numpy.int64).astype(numpy.uint8)
    on_device = value(sent)
    assert on_device.device_name() == "cuda"
    assert numpy.array_equal(on_device.numpy(), sent)


def test_second_device():
    sent = numpy.arange(100_000, dtype=numpy.float32)
    assert numpy.array_equal(value(sent, 1).numpy(), sent)
    assert run(session(device_id="1"), 100) == (100, 256)


def test_bound_inputs_and_outputs():
    made = session()
    bound = made.io_binding()
    bound.bind_ortvalue_input("x", value(numpy.ones((500, 256), numpy.float32)))
    bound.bind_output("r1", "cuda")
    for _ in range(5):
        made.run_with_iobinding(bound)
        assert bound.get_outputs()[0].shape() == [500, 256]
    assert bound.copy_outputs_to_cpu()[0].shape == (500, 256)


def test_cuda_graph():
    made = session(enable_cuda_graph="1")
    bound = made.io_binding()
    bound.bind_ortvalue_input("x", value(numpy.ones((64, 256), numpy.float32)))
    bound.bind_ortvalue_output("r1", value(numpy.zeros((64, 256), numpy.float32)))
    for _ in range(6):
        made.run_with_iobinding(bound)


def test_threads():
    made, failed = session(), []

    def worker(number):
        try:
            for batch in range(1, 20):
                assert run(made, batch * number) == (batch * number, 256)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=worker, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


@pytest.mark.parametrize("extend", EXTEND)
def test_out_of_memory(extend):
    """The last test: the arena of these values keeps their memory."""
    held = [value(numpy.zeros(128 * MIB, numpy.uint8)) for _ in range(6)]
    made = session(arena_extend_strategy=extend)
    assert run(made, 10) == (10, 256)
    with pytest.raises(Exception, match="allocate|memory"):
        run(made, 400_000)
    assert run(made, 10) == (10, 256)
    del held
