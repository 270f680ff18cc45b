"""A client that calls the driver through cuda-bindings, which looks functions up with cuGetProcAddress."""

from cuda.bindings import driver

from account import checkpoint


def check(result):
    error, *values = result
    assert error == driver.CUresult.CUDA_SUCCESS, error
    return values[0] if values else None


check(driver.cuInit(0))
own = {}
blocks = []
for number in range(10):
    device = number % check(driver.cuDeviceGetCount())
    context = check(driver.cuDevicePrimaryCtxRetain(device))
    check(driver.cuCtxSetCurrent(context))
    size = (number + 1) * 123_457
    blocks.append((device, size, check(driver.cuMemAlloc(size))))
    own[(device, "linear")] = own.get((device, "linear"), 0) + size
sent = bytes(range(256)) * 100
check(driver.cuMemcpyHtoD(blocks[4][2], sent, len(sent)))
received = bytearray(len(sent))
check(driver.cuMemcpyDtoH(received, blocks[4][2], len(sent)))
assert received == sent, "bytes changed on the way"
managed = check(driver.cuMemAllocManaged(5000, 1))
own[(blocks[-1][0], "managed")] = 5000
checkpoint(own, "allocated")
for device, size, address in blocks[::2]:
    check(driver.cuMemFree(address))
    own[(device, "linear")] -= size
checkpoint(own, "half freed")
free, total = driver.cuMemGetInfo()[1:]
assert 0 < free < total
