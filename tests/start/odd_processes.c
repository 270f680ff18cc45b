/* Processes that the library must know by other means than the C library's own.
 *
 *   odd_processes namespace       the driver is loaded into a namespace of its own
 *   odd_processes last_thread     the first thread ends before the others do; the process ends with its last thread
 *   odd_processes clone           a child of the system call `clone` uses CUDA; its parent goes on */
#include "client.h"
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void in_a_namespace(void)
{
    void *copy = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
    if (!copy) exit(1);
    CUresult (*init)(unsigned) = dlsym(copy, "cuInit");
    CUresult (*retain)(CUcontext *, CUdevice) = dlsym(copy, "cuDevicePrimaryCtxRetain");
    CUresult (*set)(CUcontext) = dlsym(copy, "cuCtxSetCurrent");
    CUresult (*allocate)(CUdeviceptr *, size_t) = dlsym(copy, "cuMemAlloc_v2");
    CUresult (*release)(CUdeviceptr) = dlsym(copy, "cuMemFree_v2");
    CUcontext context;
    CUdeviceptr block;
    printf("%d", init(0));
    printf(" %d", retain(&context, 0));
    printf(" %d", set(context));
    printf(" %d", allocate(&block, 1 << 20));
    printf(" %d\n", release(block));
}

static void *ends_last(void *unused)
{
    CUdeviceptr block;
    CUipcMemHandle handle;
    start_cuda();
    printf("%d", cuMemAlloc_v2(&block, 3 << 20));
    printf(" %d\n", cuIpcGetMemHandle(&handle, block));
    fflush(stdout);
    usleep(700000); /* the library's threads look meanwhile, and must go on */
    return unused;
}

static void in_a_child(void)
{
    CUdeviceptr block = 0;
    long child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (!child) {
        /* A process of its own: with the driver it has nothing yet. */
        start_cuda();
        printf("child %d", cuMemAlloc_v2(&block, 5 << 20));
        printf(" %d\n", cuMemFree_v2(block));
        fflush(stdout);
        _exit(7);
    }
    int status;
    waitpid((pid_t)child, &status, 0);
    printf("status %d\n", WEXITSTATUS(status));
}

int main(int count, char **arguments)
{
    const char *scene = count > 1 ? arguments[1] : "";
    if (!strcmp(scene, "namespace")) in_a_namespace();
    else if (!strcmp(scene, "last_thread")) {
        pthread_t thread;
        pthread_create(&thread, NULL, ends_last, NULL);
        pthread_exit(NULL);
    } else if (!strcmp(scene, "clone")) {
        size_t free, total;
        printf("%d\n", cuMemGetInfo_v2(&free, &total));
        fflush(stdout);
        in_a_child();
        CUdeviceptr block;
        start_cuda();
        printf("parent %d\n", cuMemAlloc_v2(&block, 7 << 20));
    }
    return 0;
}
