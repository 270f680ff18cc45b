/* Steps that change contexts and streams, and give them work: copies, fills, host functions, captures and graphs. */
#include "state.h"

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *how, int *active);
CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext a, CUdeviceptr from, CUcontext b, size_t size);

static struct block *memory_in_graphs(unsigned a)
{
    for (unsigned i = 0; i < GRAPHS; i++) if (graph_memory[(a + i) % GRAPHS].live) return &graph_memory[(a + i) % GRAPHS];
    return NULL;
}

static void drop_graphs(void)
{
    for (int i = 0; i < GRAPHS; i++) {
        if (graphs[i].exec) R(cuGraphExecDestroy(graphs[i].exec));
        if (graphs[i].graph) R(cuGraphDestroy(graphs[i].graph));
        graphs[i] = (struct graph){0};
        if (graph_memory[i].live) forget(&graph_memory[i]);
    }
}

static struct block *memory_of_graph(unsigned a)
{
    struct block *p = &graph_memory[a % GRAPHS];
    if (!use(0) || (!p->live && (forbidden() || !DONE(cuMemAlloc_v2(&p->address, 2 * PART))))) return NULL;
    if (!p->live) {
        *p = (struct block){.live = true, .class = LINEAR, .api = "cuMemAlloc", .address = p->address, .size = 2 * PART, .last = STREAMS};
        *count_of(0, LINEAR) += (long long)p->size;
        set_all_flags(); /* the wait below */
        R(cuMemsetD8_v2(p->address, 3, p->size)), R(finish());
    }
    return p;
}

static void end_streams(int context)
{
    for (int i = 0; i < STREAMS; i++) {
        CUgraph graph;
        if (!streams[i].alive || streams[i].context != context) continue;
        if (streams[i].mode && use(context) && DONE(cuStreamEndCapture(streams[i].handle, &graph))) R(cuGraphDestroy(graph));
        streams[i].alive = false, streams[i].mode = 0;
    }
    for (int i = 0; i < EVENTS; i++) if (events[i].context == context) events[i].alive = false;
    contexts[context].alive = streams[STREAMS + context].alive = false;
}

/* Forgets what ends with a context. A reset of a primary context ends the stream-ordered memory of its device too. Memory
 * that nothing was written to has no last stream, and gets none: no driver promises its bytes. */
static void forget_context(int context)
{
    int device = contexts[context].device;
    end_streams(context);
    for (int i = 0; i < BLOCKS; i++) {
        struct block *p = &blocks[i];
        bool of_device = context < DEVICES && p->device == device && (p->class == ASYNC || p->class == GRAPH);
        bool of_context = p->context == context && p->class != VMM && p->class != HOST_REGISTERED && p->class != ASYNC && p->class != GRAPH;
        if (p->live && (of_device || of_context)) forget(p);
        else if (p->live && p->context == context) p->context = device, p->last = p->last < 0 ? NONE : STREAMS + device;
        else if (p->live && p->last >= 0 && !streams[p->last].alive) p->last = STREAMS + p->context;
    }
    if (context < DEVICES) pools[device] = NULL;
    for (int i = 0; i < devices && context < DEVICES; i++) peers[device][i] = peers[i][device] = false;
}

static void about_to_end(int context)
{
    for (int i = 0; i < BLOCKS; i++) if (blocks[i].live && blocks[i].context == context) close_in_other(&blocks[i]);
    for (int i = 0; i < CONTEXTS; i++) if (use(i)) R(finish());
    if (context == 0) drop_graphs();
}

static void begin_context(int context)
{
    contexts[context].alive = true;
    CURRENT = NONE;
    use(context);
    R(cuEventCreate(&contexts[context].scratch, 2));
    streams[STREAMS + context] = (struct stream){.alive = true, .context = context, .blocking = !together};
    if (together) R(cuStreamCreate(&streams[STREAMS + context].handle, 1)); /* others may capture beside the default stream */
}

static void retain(int device)
{
    if (!DONE(cuDevicePrimaryCtxRetain(&contexts[device].handle, device))) return;
    contexts[device].device = device;
    begin_context(device);
}
KIND(use_context, 8, "A") { use((int)(a % CONTEXTS)); }
KIND(push_and_pop, 2, "A") {
    int context = (int)(a % CONTEXTS), device = 7;
    CUcontext popped = NULL;
    if (!contexts[context].alive || R(cuCtxPushCurrent_v2(contexts[context].handle))) return;
    if (DONE(cuCtxGetDevice(&device))) say(" device %d", device);
    if (DONE(cuCtxPopCurrent_v2(&popped))) say(" same %d", popped == contexts[context].handle);
}
KIND(create_context, 2, "U") {
    int context = (int)(DEVICES + a % DEVICES), device = (int)(b % (unsigned)devices);
    if (contexts[context].alive || captures(NONE, false) || !DONE(cuCtxCreate_v2(&contexts[context].handle, 0, device))) return;
    R(cuCtxPopCurrent_v2(NULL));
    contexts[context].device = device;
    begin_context(context);
}
KIND(destroy_context, 1, "U") {
    int context = (int)(DEVICES + a % DEVICES);
    if (!contexts[context].alive || captures(NONE, false)) return;
    about_to_end(context);
    if (!(b & 1 ? use(context) : use(0)) || !DONE(cuCtxDestroy_v2(contexts[context].handle))) return;
    forget_context(context);
    if (CURRENT == context) CURRENT = NONE;
}

static void *destroys(void *context) { return (void *)(intptr_t)cuCtxDestroy_v2(context); }

/* Another thread destroys the context that is current here, with memory in it. */
KIND(destroyed_beneath, 2, "OU") {
    CUcontext context, now = NULL;
    CUdeviceptr address = 0, second = 0;
    pthread_t destroyer;
    void *result;
    size_t free_bytes;
    if (captures(NONE, false) || R(cuCtxSetCurrent(NULL))) return;
    CURRENT = NONE;
    if (!DONE(cuCtxCreate_v2(&context, 0, (int)(a % (unsigned)devices)))) return;
    if (b & 1) R(cuMemAlloc_v2(&address, size_from(c)));
    pthread_create(&destroyer, NULL, destroys, context);
    pthread_join(destroyer, &result);
    say(" destroyed %d", (int)(intptr_t)result);
    R(cuMemAlloc_v2(&second, 4096)), R(cuMemGetInfo_v2(&free_bytes, NULL)), R(finish()), R(cuCtxSetCurrent(NULL));
    if (address && in_context()) R(cuMemFree_v2(address));
    R(cuCtxGetCurrent(&now));
}
KIND(reset_device, 1, "OU") {
    int device = (int)(a % 8 == 0 ? 0 : devices - 1);
    if (captures(NONE, false)) return;
    about_to_end(device);
    if (b & 1 ? !DONE(cuDevicePrimaryCtxReset_v2(device)) : !DONE(cuDevicePrimaryCtxRelease_v2(device))) return;
    forget_context(device);
    retain(device);
}
KIND(retain_and_release, 2, "U") {
    CUcontext context;
    int device = (int)(a % (unsigned)devices), active = 7;
    unsigned flags_of = 7;
    if (!DONE(cuDevicePrimaryCtxRetain(&context, device))) return;
    say(" same %d", context == contexts[device].handle);
    R(cuDevicePrimaryCtxRelease_v2(device)), R(cuDevicePrimaryCtxGetState(device, &flags_of, &active)), say(" active %d", active);
}
KIND(ask_context, 2, "A") {
    CUcontext now = NULL;
    int device = 7;
    if (!DONE(cuCtxGetCurrent(&now))) return;
    for (int i = 0; i < CONTEXTS; i++) if (contexts[i].alive && contexts[i].handle == now) say(" %d", i);
    R(cuCtxGetDevice(&device));
}
KIND(ask_device, 1, "A") {
    static const int which[] = {1, 10, 75, 89, 102, 115};
    int device, count = 0, value = 7;
    size_t total = 0;
    if (!DONE(cuDeviceGetCount(&count)) || R(cuDeviceGet(&device, (int)(a % (unsigned)devices))) || R(cuDeviceTotalMem_v2(&total, device))) return;
    for (size_t i = 0; i < sizeof which / sizeof *which; i++) R(cuDeviceGetAttribute(&value, which[i], device)), say(":%d", value);
    say(" %d %zu", count, total);
    R(cuDeviceGet(&device, 99)), R(cuDeviceTotalMem_v2(&total, 99));
}
KIND(synchronise, 3, "OU") { if (in_context()) R(c % 8 || together ? finish() : cuCtxSynchronize()); }

static bool is_of_first(const struct block *b) { return is_linear(b) && b->context == 0; }
static bool is_of_second(const struct block *b) { return is_linear(b) && b->context == 1; }

/* A block is freed right after a peer has used it, and as much is asked for again: it is not served before the peer is done. */
static void free_behind_peer(int peer, int owner, unsigned b)
{
    struct block *p = next_block(b, owner ? is_of_second : is_of_first);
    size_t size = p ? p->size : 0;
    if (!p || !works(STREAMS + peer)) return;
    fill(p, STREAMS + peer);
    give_back(p, b);
    if (!p->live && use(owner) && DONE(cuMemAlloc_v2(&p->address, size))) got(p, LINEAR, "cuMemAlloc", owner, size, b);
}
KIND(give_access, 2, "OU") {
    int from = (int)(a & 1), to = !from;
    if (devices < 2 || !use(from)) return;
    CUresult result = R(cuCtxEnablePeerAccess(contexts[to].handle, 0));
    peers[from][to] = result == CUDA_SUCCESS || result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    if (peers[from][to] && c & 1) free_behind_peer(from, to, b);
}
KIND(take_access_back, 1, "OU") {
    int from = (int)(a & 1), to = !from;
    if (devices < 2 || !use(from) || captures(NONE, false)) return;
    R(finish());
    R(cuCtxDisablePeerAccess(contexts[to].handle));
    peers[from][to] = false;
}

KIND(make_stream, 5, "A") {
    for (unsigned i = 0; streams[a % STREAMS].alive && i < STREAMS; i++) a++;
    struct stream *s = &streams[a % STREAMS];
    if (s->alive || !in_context() || !DONE(cuStreamCreate(&s->handle, b % 3 || together))) return;
    *s = (struct stream){.handle = s->handle, .alive = true, .context = CURRENT, .blocking = b % 3 == 0 && !together};
}
KIND(end_stream, 2, "A") {
    int s = (int)(a % STREAMS);
    if (!ready(s)) return;
    for (int i = 0; i < BLOCKS; i++) if (blocks[i].live && blocks[i].home == s + 1) return;
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].live && blocks[i].last == s && !follow(&blocks[i], STREAMS + streams[s].context)) return;
    if (ready(s) && DONE(cuStreamDestroy_v2(streams[s].handle))) streams[s].alive = false;
}

/* After a wait all host functions before it are done. */
KIND(sync_stream, 6, "") {
    int s = (int)(a % (STREAMS + CONTEXTS));
    if (ready(s) && DONE(cuStreamSynchronize(streams[s].handle))) say(" done %u", streams[s].done);
}
KIND(query_stream, 3, "POA") {
    int s = (int)(a % (STREAMS + CONTEXTS));
    if (ready(s)) say(" ready?"), R(cuStreamQuery(streams[s].handle));
}
KIND(new_event, 3, "A") {
    struct event *e = &events[a % EVENTS];
    if (!e->alive && in_context() && DONE(cuEventCreate(&e->handle, b & 2))) *e = (struct event){e->handle, CURRENT, true, false};
}
KIND(end_event, 1, "A") {
    struct event *e = event_from(a);
    if (e && use(e->context)) R(cuEventDestroy_v2(e->handle)), e->alive = false;
}
KIND(record, 5, "A") {
    struct event *e = event_from(a);
    int s = e ? stream_of(e->context, b) : NONE;
    if (ready(s)) e->recorded = DONE(cuEventRecord(e->handle, streams[s].handle));
}
KIND(wait_event, 4, "A") {
    struct event *e = event_from(a);
    int s = own_stream(b);
    if (e && ready(s)) R(cuStreamWaitEvent(streams[s].handle, e->handle, 0));
}
KIND(sync_event, 3, "U") { struct event *e = event_from(a); if (e && in_context()) R(cuEventSynchronize(e->handle)); }
KIND(query_event, 2, "POUA") { struct event *e = event_from(a); if (e && in_context()) say(" ready?"), R(cuEventQuery(e->handle)); }
KIND(host_function, 5, "A") {
    int s = own_stream(a);
    if (ready(s)) R(cuLaunchHostFunc(streams[s].handle, counts, &streams[s].done));
}

/* Only where work is done later: a host function that waits for a later step. */
KIND(waits, 6, "A") {
    int s = own_stream(a);
    if (flags_used == FLAGS || !ready(s) || (optional_function("simgpu_calls") && !getenv("SIMGPU_DELAYED"))) return;
    flags[flags_used] = 0;
    R(cuLaunchHostFunc(streams[s].handle, waits_for, &flags[flags_used++]));
}
KIND(set_flag, 3, "A") { if (flags_used) flags[a % (unsigned)flags_used] = 1; }

/* The halves of a collective around an allocation: the first waits for the second. */
KIND(collective, 2, "UA") {
    int one = own_stream(a), other = own_stream(b);
    CUdeviceptr address = 0;
    if (one == other || flags_used == FLAGS || (optional_function("simgpu_calls") && !getenv("SIMGPU_DELAYED"))) return;
    set_all_flags(); /* so that the second half waits for nothing */
    if (!ready(other) || R(cuStreamSynchronize(streams[other].handle)) || !ready(one)) return;
    flags[flags_used] = 0;
    R(cuLaunchHostFunc(streams[one].handle, waits_for, &flags[flags_used]));
    R(cuMemAlloc_v2(&address, size_from(c)));
    if (ready(other)) R(cuLaunchHostFunc(streams[other].handle, sets, &flags[flags_used]));
    if (ready(other)) R(cuStreamSynchronize(streams[other].handle));
    say(" set %d", flags[flags_used]);
    flags[flags_used++] = 1;
    if (address) R(cuMemFree_v2(address));
}

KIND(fill_block, 20, "A") { struct block *p = next_block(a, holds_bytes); if (p) fill(p, stream_for(p, b)); }
KIND(verify_block, 12, "U") { struct block *p = next_block(a, holds_bytes); if (p) verify(p); }
KIND(fill_at_once, 3, "U") {
    struct block *p = next_block(a, holds_bytes);
    if (!p || !ready(p->last) || R(cuStreamSynchronize(streams[p->last].handle)) || !ready(STREAMS + p->context)) return;
    if (!follow(p, STREAMS + p->context)) return;
    R(cuMemsetD8_v2(p->address, (unsigned char)c, part_of(p))), R(cuMemcpyHtoD_v2(p->address, "0123456789abcdef", p->size < 16 ? p->size : 16)), R(finish());
}

/* The stream of the copy's last work, or NONE. */
static int ordered(struct block *to, struct block *from, unsigned b)
{
    int s = stream_for(to, b);
    return to != from && s >= 0 && may_use(s, from) && follow(to, s) && follow(from, s) ? s : NONE;
}
static size_t least(const struct block *to, const struct block *from) { return part_of(to) < part_of(from) ? part_of(to) : part_of(from); }
KIND(copy, 8, "A") {
    struct block *to = next_block(a, holds_bytes), *from = next_block(b, holds_bytes);
    int s = to && from ? ordered(to, from, c) : NONE;
    if (s < 0) return;
    if (c & 1) R(cuMemcpyDtoDAsync_v2(to->address, from->address, least(to, from), streams[s].handle));
    else R(cuMemcpyAsync(to->address, from->address, least(to, from), streams[s].handle));
}
KIND(copy_at_once, 3, "U") {
    struct block *to = next_block(a, holds_bytes), *from = next_block(b, holds_bytes);
    int s = to && from ? ordered(to, from, c) : NONE;
    if (s < 0 || R(cuStreamSynchronize(streams[s].handle))) return;
    R(c & 1 ? cuMemcpy(to->address, from->address, least(to, from)) : cuMemcpyDtoD_v2(to->address, from->address, least(to, from)));
    R(finish());
}
KIND(copy_to_peer, 3, "U") {
    struct block *to = next_block(a, is_linear), *from = next_block(b, is_linear);
    if (!to || !from || to == from || to->context >= DEVICES || from->context >= DEVICES || captures(NONE, false)) return;
    if (!ready(to->last) || R(cuStreamSynchronize(streams[to->last].handle)) || !ready(from->last) || R(cuStreamSynchronize(streams[from->last].handle))) return;
    if (!ready(STREAMS + to->context)) return;
    CUcontext there = contexts[to->context].handle, here = contexts[from->context].handle;
    if (c & 1) R(cuMemcpyPeer(to->address, there, from->address, here, least(to, from)));
    else R(cuMemcpyPeerAsync(to->address, there, from->address, here, least(to, from), streams[STREAMS + to->context].handle));
    R(finish());
    verify(to);
}
KIND(copy_rows, 3, "A") {
    struct block *to = next_block(a, holds_bytes), *from = next_block(b, holds_bytes);
    int s = to && from ? ordered(to, from, c) : NONE;
    size_t most = s < 0 ? 0 : least(to, from), width = 1 + c % 64;
    CUDA_MEMCPY2D rows = {.srcMemoryType = 2, .dstMemoryType = 2, .WidthInBytes = width, .Height = 4, .srcPitch = 64, .dstPitch = 128};
    if (most < 512) return;
    rows.srcDevice = from->address, rows.dstDevice = to->address;
    R(cuMemcpy2DAsync_v2(&rows, streams[s].handle));
}
KIND(copy_batch, 2, "A") {
    struct block *to = next_block(a, is_linear), *from = next_block(b, is_linear);
    int s = to && from ? ordered(to, from, c) : NONE;
    struct { int order; CUmemLocation hints[2]; unsigned more; } attributes = {.order = 1};
    size_t size = s < 0 ? 0 : least(to, from), index = 0;
    if (!size || s >= STREAMS) return;
    R(cuMemcpyBatchAsync_v2(&to->address, &from->address, &size, 1, &attributes, &index, 1, streams[s].handle));
}
KIND(copy_from_host, 3, "U") {
    struct block *to = next_block(a, holds_bytes), *from = next_block(b, is_host);
    if (!to || !from || !ready(to->last)) return;
    R(cuMemcpyAsync(to->address, (CUdeviceptr)from->address, least(to, from), streams[to->last].handle));
    R(cuStreamSynchronize(streams[to->last].handle));
}
KIND(copy_array, 3, "U") {
    struct block *p = next_block(a, is_linear), *array = next_block(b, is_array);
    if (!p || !array || p->context != array->context || strcmp(array->api, "cuArrayCreate") || !ready(p->last) || p->size < 16) return;
    R(cuStreamSynchronize(streams[p->last].handle)), use(p->context);
    R(cuMemcpyDtoA_v2((CUarray)array->handle, 0, p->address, 16)), R(cuMemsetD8_v2(p->address, (unsigned char)c, 16));
    R(cuMemcpyAtoD_v2(p->address, (CUarray)array->handle, 0, 16)), R(finish());
    verify(p);
}
KIND(copy_behind, 1, "PU") {
    struct block *p = next_block(a, is_linear);
    static unsigned char bytes[64];
    if (p && p->size > 64 && ready(STREAMS + p->context)) R(cuMemcpyDtoH_v2(bytes, p->address + p->size - 64, 64)), R(cuMemcpyDtoH_v2(NULL, p->address, 0));
}

KIND(begin_capture, 5, "A") {
    int s = stream_of(0, a);
    if (s >= STREAMS || !memory_of_graph(a) || !memory_of_graph(a + 1) || !ready(s)) return;
    int mode = together && b % 3 == CU_STREAM_CAPTURE_MODE_GLOBAL ? CU_STREAM_CAPTURE_MODE_RELAXED : (int)(b % 3);
    if (!DONE(cuStreamBeginCapture_v2(streams[s].handle, mode))) return;
    streams[s].mode = mode + 1, streams[s].captor = thread, streams[s].origin = s;
}

static int capturing(unsigned a)
{
    for (unsigned i = 0; i < STREAMS; i++)
        if (streams[(a + i) % STREAMS].mode) return streams[(a + i) % STREAMS].origin;
    return NONE;
}
KIND(captured_fill, 8, "A") {
    int s = capturing(a);
    struct block *p = memory_in_graphs(b);
    if (s < 0 || !p || !p->live || !use(0)) return;
    R(cuMemsetD8Async(p->address, (unsigned char)c, PART, streams[s].handle));
}
KIND(captured_copy, 4, "A") {
    int s = capturing(a);
    struct block *to = memory_in_graphs(b), *from = memory_in_graphs(b + 1);
    if (s < 0 || to == from || !use(0)) return;
    R(cuMemcpyDtoDAsync_v2(to->address, from->address, PART, streams[s].handle));
}
KIND(captured_pool_memory, 4, "A") {
    int s = capturing(a);
    CUdeviceptr address;
    if (s < 0 || !use(0) || !DONE(cuMemAllocAsync(&address, size_from(c), streams[s].handle))) return;
    R(cuMemsetD8Async(address, 1, 1, streams[s].handle)), R(cuMemFreeAsync(address, streams[s].handle));
}
KIND(captured_fork, 3, "A") {
    int s = capturing(a), other = stream_of(0, b);
    struct block *p = memory_in_graphs(b);
    if (s < 0 || !p || other < 0 || other >= STREAMS || !use(0)) return;
    CUevent scratch = contexts[0].scratch;
    R(cuEventRecord(scratch, streams[s].handle)), R(cuStreamWaitEvent(streams[other].handle, scratch, 0));
    R(cuMemsetD8Async(p->address, (unsigned char)c, 64, streams[other].handle));
    R(cuEventRecord(scratch, streams[other].handle)), R(cuStreamWaitEvent(streams[s].handle, scratch, 0));
    streams[other].mode = streams[s].mode, streams[other].captor = streams[s].captor, streams[other].origin = s; /* until the end */
}
KIND(ask_capture, 3, "A") {
    int s = (int)(a % STREAMS), status = 7;
    if (streams[s].alive && use(streams[s].context) && DONE(cuStreamIsCapturing(streams[s].handle, &status))) say(" status %d", status);
}
KIND(end_capture, 6, "A") {
    int s = capturing(a);
    struct graph *g = &graphs[b % GRAPHS];
    CUgraph graph = NULL;
    size_t nodes = 0;
    if (s < 0 || (streams[s].captor != thread && streams[s].mode - 1 != CU_STREAM_CAPTURE_MODE_RELAXED) || !use(0)) return;
    capture_over(s);
    if (!DONE(cuStreamEndCapture(streams[s].handle, &graph)) || !graph) return;
    if (DONE(cuGraphGetNodes(graph, NULL, &nodes))) say(" nodes %zu", nodes);
    if (g->graph) R(cuGraphDestroy(g->graph));
    g->graph = graph;
}

/* What a capture in a strict mode allows: the table of what a policy changes names both. */
KIND(strict_requests, 2, "PO") {
    CUstream stream;
    CUgraph graph = NULL;
    CUdeviceptr address = 0, before = 0;
    if (captures(NONE, false) || !use(0) || !DONE(cuStreamCreate(&stream, 1))) return;
    if (c & 1) R(cuMemAlloc_v2(&before, 4096));
    if (DONE(cuStreamBeginCapture_v2(stream, c & 2 ? CU_STREAM_CAPTURE_MODE_GLOBAL : CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))) {
        say(" strict:");
        if (before) R(cuMemFree_v2(before)) ? 0 : (before = 0);
        else R(cuMemAlloc_v2(&address, 4096));
        if (DONE(cuStreamEndCapture(stream, &graph))) R(cuGraphDestroy(graph));
        say(" end:");
    }
    if (before) R(cuMemFree_v2(before));
    if (address) R(cuMemFree_v2(address));
    R(cuStreamDestroy_v2(stream));
}

KIND(instantiate, 5, "A") {
    struct graph *g = &graphs[a % GRAPHS];
    if (!g->graph || g->exec || !use(0)) return;
    if (!DONE(cuGraphInstantiateWithFlags(&g->exec, g->graph, 0))) g->exec = NULL;
}
KIND(launch, 8, "A") {
    for (unsigned i = 0; !graphs[a % GRAPHS].exec && i < GRAPHS; i++) a++;
    struct graph *g = &graphs[a % GRAPHS];
    if (g->exec && ready(STREAMS)) R(cuGraphLaunch(g->exec, streams[STREAMS].handle));
}
KIND(verify_graph, 4, "U") { struct block *p = memory_in_graphs(a); if (p) verify(p); }
KIND(end_exec, 2, "") { struct graph *g = &graphs[a % GRAPHS]; if (g->exec && ready(STREAMS)) R(cuStreamSynchronize(streams[STREAMS].handle)), R(cuGraphExecDestroy(g->exec)), g->exec = NULL; }
KIND(trim_graphs, 1, "") { R(cuDeviceGraphMemTrim((int)(a % (unsigned)devices))); }

KIND(build, 3, "U") {
    struct graph *g = &graphs[a % GRAPHS];
    struct block *p = memory_of_graph(a), *from = memory_of_graph(a + 1);
    CUgraphNode one, two, three;
    if (!p || !from || g->graph || !use(0) || !DONE(cuGraphCreate(&g->graph, 0))) return;
    CUDA_MEMSET_NODE_PARAMS bytes = {.dst = from->address, .value = c % 256, .elementSize = 1, .width = 1 + c % PART, .height = 1, .ctx = contexts[0].handle};
    CUDA_MEMCPY3D rows = {.srcMemoryType = 2, .srcDevice = from->address, .dstMemoryType = 2, .dstDevice = p->address,
        .WidthInBytes = 1 + c % PART, .Height = 1, .Depth = 1};
    CUDA_HOST_NODE_PARAMS host = {counts, &streams[STREAMS].done};
    if (!DONE(cuGraphAddMemsetNode(&one, g->graph, NULL, 0, &bytes, contexts[0].handle))) return;
    if (DONE(cuGraphAddMemcpyNode(&two, g->graph, &one, 1, &rows, contexts[0].handle))) R(cuGraphAddHostNode(&three, g->graph, &two, 1, &host));
}

/* Memory of a graph that outlives its launch. */
KIND(graph_memory_node, 3, "U") {
    struct block *p = place(a);
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec = NULL;
    if (p->live || !in_context() || CURRENT >= DEVICES || captures(NONE, false) || !DONE(cuGraphCreate(&graph, 0))) return;
    CUDA_MEM_ALLOC_NODE_PARAMS parameters = {.poolProps = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, CURRENT}}, .bytesize = size_from(c)};
    bool made = DONE(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &parameters)) && DONE(cuGraphInstantiateWithFlags(&exec, graph, 0));
    bool launched = made && DONE(cuGraphLaunch(exec, streams[STREAMS + CURRENT].handle));
    R(cuGraphDestroy(graph));
    if (made && !launched) R(cuGraphExecDestroy(exec));
    if (!launched) return;
    p->address = parameters.dptr;
    p->more = exec;
    got(p, GRAPH, "", CURRENT, size_from(c), (unsigned)(STREAMS + CURRENT));
}
