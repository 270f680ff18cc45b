// RMM's pool as a contender of pair.c: one pool that has most of the device's memory, and a stream for each thread.
#include "pair.h"
#include <cstdint>
#include <cstdio>
#include <cuda_runtime_api.h>
#include <exception>
#include <rmm/cuda_stream.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>

constexpr std::size_t ALIGNMENT = 256; // bytes; cudaMalloc guarantees it

static rmm::mr::cuda_memory_resource upstream;
// Never destroyed: pair.c ends with _exit, which runs no destructors.
static rmm::mr::pool_memory_resource *pool;

static rmm::cuda_stream_view stream()
{
    static thread_local auto *mine = new rmm::cuda_stream(rmm::cuda_stream::flags::non_blocking);
    return mine->view();
}

static int failed(const std::exception &error)
{
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}

const char *pair_start(void)
{
    try {
        std::size_t free_bytes = 0, total = 0;
        if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess) return "the CUDA runtime finds no device";
        std::size_t bytes = free_bytes / 100 * 92 / 256 * 256; // the share that naive_best_fit takes
        pool = new rmm::mr::pool_memory_resource(upstream, bytes);
        return nullptr;
    } catch (const std::exception &error) {
        failed(error);
        return "the pool cannot be made";
    }
}

int pair_allocate(unsigned long long *address, size_t size)
{
    try {
        *address = reinterpret_cast<std::uintptr_t>(pool->allocate(stream(), size, ALIGNMENT));
        return 0;
    } catch (const std::exception &error) {
        return failed(error);
    }
}

int pair_release(unsigned long long address, size_t size)
{
    try {
        pool->deallocate(stream(), reinterpret_cast<void *>(static_cast<std::uintptr_t>(address)), size, ALIGNMENT);
        return 0;
    } catch (const std::exception &error) {
        return failed(error);
    }
}
