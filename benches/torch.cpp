// PyTorch's caching allocator as a contender of pair.c, called as PyTorch's C++ code calls it: without Python and
// without tensors.
#include "pair.h"
#include <c10/cuda/CUDACachingAllocator.h>
#include <cstdint>
#include <cstdio>
#include <string>

namespace allocator = c10::cuda::CUDACachingAllocator;

static int failed(const std::exception &error)
{
    std::string text = error.what();
    std::fprintf(stderr, "%s\n", text.substr(0, text.find('\n')).c_str());
    return 1;
}

const char *pair_start(void)
{
    try {
        int devices = 0;
        if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return "the CUDA runtime finds no device";
        allocator::init(devices);
        return nullptr;
    } catch (const std::exception &error) {
        failed(error);
        return "the allocator cannot be started";
    }
}

int pair_allocate(unsigned long long *address, size_t size)
{
    try {
        *address = reinterpret_cast<std::uintptr_t>(allocator::raw_alloc(size));
        return 0;
    } catch (const std::exception &error) {
        return failed(error);
    }
}

int pair_release(unsigned long long address, size_t)
{
    try {
        allocator::raw_delete(reinterpret_cast<void *>(static_cast<std::uintptr_t>(address)));
        return 0;
    } catch (const std::exception &error) {
        return failed(error);
    }
}
