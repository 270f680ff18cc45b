# Makes the table of cuGetProcAddress from the exported symbols of the library, one name a line on standard input. An
# entry has the base name, the first CUDA version in which the name means this symbol, and whether the symbol is the
# variant for per-thread default streams.
function since(base, generation) {
    if (base ~ /GreenCtx|DevResource|DevSmResource/) return base == "cuGreenCtxStreamCreate" ? 12050 : 12040
    if (base ~ /^cuCheckpointProcess|^cuMemBatchDecompressAsync$/) return 12080
    if (base ~ /^cuMem(Prefetch|Discard|DiscardAndPrefetch)BatchAsync$/) return 13000
    if (base ~ /^cuMulticast/) return 12010
    if (base ~ /^cu(Import|Destroy|Signal|Wait)ExternalSemaphore/) return 10000
    if (base ~ /^cuStream(Wait|Write)Value|^cuStreamBatchMemOp/) return generation == 2 ? 11070 : base ~ /64/ ? 9000 : 8000
    if (base ~ /^cuMemMapArrayAsync$|SparseProperties$/) return 11010
    if (base == "cuStreamGetCtx") return generation == 2 ? 12050 : 9020
    if (base == "cuMemGetHandleForAddressRange") return 11070
    if (base ~ /^cuMemcpy(3D)?WithAttributesAsync$/) return 13020
    if (base == "cuGraphNodeSetParams") return generation == 2 ? 13040 : 12020
    if (base ~ /^cuMemcpy(3D)?BatchAsync$/) return generation == 2 ? 13000 : 12080
    if (base ~ /^cuMem(Get|GetDefault|Set)MemPool$/) return 13000
    if (base == "cuCtxRecordEvent") return 12050
    if (base == "cuStreamBeginRecaptureToGraph") return 13030
    if (base ~ /CaptureToCig$/ || (base == "cuLaunchHostFunc" && generation == 2)) return 13020
    if (base ~ /GraphKernelNode[GS]etParams|GraphExecKernelNodeSetParams/) return generation == 2 ? 12000 : 10000
    if (base == "cuGraphConditionalHandleCreate") return 12030
    if (base ~ /^cuLink/) return generation == 2 ? 6050 : 5050
    if (generation == 1) {
        if (base ~ /Async$|MemPool|GraphMem|MemAllocFromPool/ && base ~ /MemAlloc|MemFree|Pool|GraphMem/) return 11020
        if (base ~ /^cuMem(Address|Create|Release|Map|Unmap|SetAccess|GetAccess|Export|Import|GetAllocation|Retain)/) return 10020
        if (base ~ /Library|Kernel(Get|Set)|cuGetProcAddress/) return base == "cuGetProcAddress" ? 11030 : 12000
        return 2000
    }
    if (base ~ /^cuTexRefSetAddress2D$/) return generation == 3 ? 4010 : 3020
    if (generation == 3) return 12030
    if (base ~ /^cuGraphAddNode$|CaptureInfo$|UpdateCapture|Edges$|Dependen/) return base ~ /CaptureInfo$|UpdateCapture/ ? 11030 : 12030
    if (base ~ /PrefetchAsync|cuMemAdvise|EventElapsed/) return base ~ /Event/ ? 12080 : 12020
    if (base == "cuGetProcAddress") return 12000
    if (base == "cuCtxSynchronize") return 13000
    if (base ~ /PrimaryCtx|IpcOpen/) return 11000
    if (base ~ /DeviceGetUuid/) return 11040
    if (base ~ /GraphExecUpdate|GraphAddKernelNode/) return 12000
    if (base == "cuStreamBeginCapture") return 10010
    if (base == "cuMemHostRegister") return 6050
    if (base ~ /cuGraphInstantiate$/) return 11000
    if (base ~ /Ctx(Destroy|P)|StreamDestroy|EventDestroy/) return 4000
    return 3020
}
{
    name = base = $1
    per_thread = sub(/_pts[z]$|_ptds$/, "", base)
    generation = match(base, /_v[234]$/) ? substr(base, RSTART + 2) + 0 : 1
    sub(/_v[234]$/, "", base)
    version = since(base, generation)
    # Functions with more than two generations.
    if (base == "cuStreamGetCaptureInfo" || base == "cuStreamUpdateCaptureDependencies") version = generation == 1 ? 10010 : (generation == 3 || (base ~ /Update/ && generation == 2)) ? 12030 : 11030
    if (base == "cuCtxCreate") version = generation == 1 ? 2000 : generation == 2 ? 3020 : generation == 3 ? 11040 : 12050
    printf "X(%s, \"%s\", %d, %d)\n", name, base, version, per_thread
    if (base == "cuGraphInstantiateWithFlags") printf "X(%s, \"cuGraphInstantiate\", 12000, %d)\n", name, per_thread
}
