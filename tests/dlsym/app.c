/* The application: the argument chooses a scene. The test reads what the scene prints. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int (*alloc_t)(unsigned long long *, size_t);

static const char *home(void *address) {
    Dl_info info;
    if (!address)
        return "nowhere";
    if (!dladdr(address, &info))
        return "no object";
    const char *slash = strrchr(info.dli_fname, '/');
    return slash ? slash + 1 : info.dli_fname;
}

static void *opened(const char *path, int flags) {
    void *handle = dlopen(path, RTLD_NOW | flags);
    if (!handle) {
        printf("%s\n", dlerror());
        exit(2);
    }
    return handle;
}

static void allocate(alloc_t function) {
    unsigned long long address = 0;
    printf("app to %s\n", home((void *)function));
    fflush(stdout);
    printf("result %d\n", function(&address, 64));
}

static void ask(const char *what, void *handle, const char *name) {
    dlerror();
    void *found = dlsym(handle, name);
    const char *error = dlerror();
    const char *words = error ? strstr(error, "undefined symbol") : NULL;
    printf("%s %s: %s, %s\n", what, name, home(found), words ? words : error ? error : "no error");
}

static void ask_version(void *handle, const char *name, const char *version) {
    dlerror();
    void *found = dlvsym(handle, name, version);
    const char *error = dlerror();
    const char *words = error ? strstr(error, "undefined symbol") : NULL;
    printf("%s@%s: %s, %s\n", name, version, home(found), words ? words : error ? error : "no error");
}

static void *look_up(void *library) {
    for (int i = 0; i < 3000; i++) {
        if (!dlsym(library, "cuMemAlloc_v2") || !dlsym(RTLD_DEFAULT, "malloc") || dlsym(library, "cuNothing"))
            abort();
    }
    return NULL;
}

static void *nothing(void *unused) { return unused; }

static volatile sig_atomic_t seen;
static void on_alarm(int number) {
    (void)number;
    seen += dlsym(RTLD_DEFAULT, "malloc") != NULL;
}

int main(int count, char **arguments) {
    const char *scene = count > 1 ? arguments[1] : "";
    const char *library = count > 2 ? arguments[2] : "libcuda.so.1";
    if (!strcmp(scene, "allocate")) {
        allocate((alloc_t)dlsym(opened(library, RTLD_LOCAL), "cuMemAlloc_v2"));
#ifdef LINKED
    } else if (!strcmp(scene, "linked")) {
        extern int cuMemAlloc_v2(unsigned long long *, size_t);
        allocate(cuMemAlloc_v2);
#endif
    } else if (!strcmp(scene, "end")) {
        if (!strcmp(library, "_Exit"))
            _Exit(7);
        _exit(7);
    } else if (!strcmp(scene, "errors")) {
        void *mathematics = opened("libm.so.6", RTLD_LOCAL);
        ask("handle", mathematics, "cos");
        ask("handle", mathematics, "cuMemAlloc_v2");
        ask("handle", mathematics, "cuNothing");
        ask("default", RTLD_DEFAULT, "cuMemAlloc_v2");
        ask("next", RTLD_NEXT, "cuMemAlloc_v2");
        ask("program", opened(NULL, RTLD_LOCAL), "cudaMalloc");
        ask("default", RTLD_DEFAULT, "nothing");
    } else if (!strcmp(scene, "present")) {
        void *handle = opened("libcuda.so.1", RTLD_GLOBAL);
        ask("handle", handle, "cuMemAlloc_v2");
        ask("handle", handle, "cuInit");
        ask("handle", handle, "cuMemAllocX");
        ask("default", RTLD_DEFAULT, "cuMemAlloc_v2");
        ask("next", RTLD_NEXT, "cuMemAlloc_v2");
        ask("program", opened(NULL, RTLD_LOCAL), "cuMemAlloc_v2");
    } else if (!strcmp(scene, "versions")) {
        void *handle = opened(library, RTLD_LOCAL);
        ask_version(handle, "cudaMalloc", "libcudart.so.98");
        ask_version(handle, "cudaUnhooked", "libcudart.so.98");
        ask_version(handle, "cudaMalloc", "libcudart.so.1");
        ask_version(handle, "cudaNothing", "libcudart.so.98");
        ask_version(RTLD_DEFAULT, "cudaMalloc", "libcudart.so.98");
        void *out = NULL;
        int (*function)(void **, size_t) = dlvsym(handle, "cudaMalloc", "libcudart.so.98");
        int result = function(&out, 16);
        printf("result %d, runtime %zu\n", result, (size_t)out);
    } else if (!strcmp(scene, "runtime")) {
        size_t (*which98)(void) = dlsym(opened("libuser98.so", library[0] == 'g' ? RTLD_GLOBAL : RTLD_LOCAL), "which98");
        printf("%zu\n", which98());
    } else if (!strcmp(scene, "handles")) {
        static const char *const names[] = {"libcudart.so.98", "libcudart.so.99"};
        void *handles[2];
        for (int opening = 0; opening < 2; opening++) {
            handles[opening] = opened(names[opening], library[0] == 'g' ? RTLD_GLOBAL : RTLD_LOCAL);
            for (int i = 0; i <= opening; i++) {
                void *out = NULL, *versioned = NULL;
                ((int (*)(void **, size_t))dlsym(handles[i], "cudaMalloc"))(&out, 16);
                ((int (*)(void **, size_t))dlvsym(handles[i], "cudaMalloc", names[i]))(&versioned, 16);
                printf("%zu %zu\n", (size_t)out, (size_t)versioned);
            }
        }
    } else if (!strcmp(scene, "threads")) {
        void *handle = opened("libcuda.so.1", RTLD_LOCAL);
        pthread_t lookers[3];
        for (int i = 0; i < 3; i++)
            pthread_create(&lookers[i], NULL, look_up, handle);
        long sum = 0;
        for (int round = 0; round < 100; round++) {
            pthread_t thread;
            pthread_create(&thread, NULL, nothing, NULL);
#pragma omp parallel for reduction(+ : sum)
            for (int i = 0; i < 64; i++)
                sum += dlsym(handle, "cuMemFree_v2") != NULL;
            pthread_join(thread, NULL);
            if (round % 10 == 0) {
                pid_t child = fork();
                if (child == 0)
                    _exit(!dlsym(handle, "cuMemAlloc_v2"));
                int status = 1;
                waitpid(child, &status, 0);
                sum -= status != 0;
            }
            dlclose(opened("libm.so.6", RTLD_LOCAL));
        }
        for (int i = 0; i < 3; i++)
            pthread_join(lookers[i], NULL);
        printf("%ld\n", sum);
    } else if (!strcmp(scene, "vfork")) {
        void *handle = opened("libcuda.so.1", RTLD_LOCAL);
        pid_t child = vfork();
        if (child == 0)
            _exit(dlsym(handle, "cuMemAlloc_v2") && dlsym(RTLD_DEFAULT, "malloc") ? 0 : 1);
        int status = 1;
        waitpid(child, &status, 0);
        signal(SIGALRM, on_alarm);
        raise(SIGALRM);
        printf("%d %d\n", status, (int)seen);
    }
    return 0;
}

/* Calls dlsym before any other code of the program. */
__attribute__((constructor)) static void early(void) {
    if (!dlsym(RTLD_DEFAULT, "malloc"))
        abort();
}
