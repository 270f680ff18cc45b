/* cuCheckpointProcess... (cuda.h 13.0, "CUDA Checkpointing"): the memory of a process moves to the host, and its device is free
 * for others until it is restored. Here a process can do this to itself alone, and a locked process does not hold its other
 * threads up. */
#include "sim.h"

enum { RUNNING, LOCKED, CHECKPOINTED }; /* CUprocessState */
static int state = RUNNING;

/* From one state to the next one. */
static CUresult step(int pid, int from, int to)
{
    REQUIRE(pid == getpid());
    if (state != from) return CUDA_ERROR_ILLEGAL_STATE;
    if (to == CHECKPOINTED) work_wait_all();
    if (to == CHECKPOINTED || from == CHECKPOINTED) {
        if (!state_park(to == CHECKPOINTED)) return CUDA_ERROR_OUT_OF_MEMORY;
    }
    state = to;
    return CUDA_SUCCESS;
}
API CUresult cuCheckpointProcessLock(int pid, const void *arguments) { (void)arguments; ENTER("cuCheckpointProcessLock"); return step(pid, RUNNING, LOCKED); }
API CUresult cuCheckpointProcessCheckpoint(int pid, const void *arguments) { (void)arguments; ENTER("cuCheckpointProcessCheckpoint"); return step(pid, LOCKED, CHECKPOINTED); }
API CUresult cuCheckpointProcessRestore(int pid, const void *arguments) { (void)arguments; ENTER("cuCheckpointProcessRestore"); return step(pid, CHECKPOINTED, LOCKED); }
API CUresult cuCheckpointProcessUnlock(int pid, const void *arguments) { (void)arguments; ENTER("cuCheckpointProcessUnlock"); return step(pid, LOCKED, RUNNING); }
API CUresult cuCheckpointProcessGetState(int pid, int *out) { ENTER("cuCheckpointProcessGetState"); REQUIRE(out && pid == getpid()); *out = state; return CUDA_SUCCESS; }
API CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *out) { ENTER("cuCheckpointProcessGetRestoreThreadId"); REQUIRE(out && pid == getpid()); *out = (int)syscall(SYS_gettid); return CUDA_SUCCESS; }
