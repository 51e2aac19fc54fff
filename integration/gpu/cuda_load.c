/* Uses a card through libcuda, for measurements: no CUDA toolkit is needed to build it, no Python to run it.
 *   cuda-load init                  milliseconds of cuInit and a context
 *   cuda-load info                  "free BYTES total BYTES"
 *   cuda-load attribute NUMBER      what cuDeviceGetAttribute says
 *   cuda-load fill [LEAST_KIB]      allocates halving blocks (1 GiB down to LEAST_KIB, 2048) until the last is refused, touches all
 *   cuda-load launch COUNT [TIMES]  kernel launches a second; so many times, each in a process of its own
 *   cuda-load malloc KIB COUNT      microseconds of one cuMemAlloc and cuMemFree
 *   cuda-load hold KIB SECONDS      holds that much
 *   cuda-load random SEED STEPS KIB allocates, frees, maps, exports at random, never asking for more than KIB at once
 * Exit codes: 0 done, 1 something unexpected, 2 out of memory. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* CUmemAllocationProp, CUmemAccessDesc (cuda.h) */
struct location { int type, id; };
struct properties { int type, handle_types; struct location location; void *windows; unsigned char flags[8]; };
struct access { struct location location; int flags; };

#define FUNCTIONS(F) \
    F(cuInit, (unsigned)) \
    F(cuDevicePrimaryCtxRetain, (void **, int)) \
    F(cuDeviceGetAttribute, (int *, int, int)) \
    F(cuCtxSetCurrent, (void *)) \
    F(cuCtxSynchronize, (void)) \
    F(cuMemGetInfo_v2, (size_t *, size_t *)) \
    F(cuMemAlloc_v2, (address *, size_t)) \
    F(cuMemFree_v2, (address)) \
    F(cuMemsetD8_v2, (address, unsigned char, size_t)) \
    F(cuModuleLoadData, (void **, const void *)) \
    F(cuModuleGetFunction, (void **, void *, const char *)) \
    F(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **)) \
    F(cuMemCreate, (uint64_t *, size_t, const struct properties *, unsigned long long)) \
    F(cuMemRelease, (uint64_t)) \
    F(cuMemAddressReserve, (address *, size_t, size_t, address, unsigned long long)) \
    F(cuMemAddressFree, (address, size_t)) \
    F(cuMemMap, (address, size_t, size_t, uint64_t, unsigned long long)) \
    F(cuMemUnmap, (address, size_t)) \
    F(cuMemSetAccess, (address, size_t, const struct access *, size_t)) \
    F(cuMemExportToShareableHandle, (void *, uint64_t, int, unsigned long long)) \
    F(cuGetErrorName, (result, const char **))
#include "cuda.h"

/* When the library was loaded, CUDA initialised, the context made. */
static double loaded, initialised, made;

static void start(void) {
    void *context;
    load();
    loaded = now();
    must(cuInit(0), "cuInit");
    initialised = now();
    must(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    made = now();
}

static double seconds(struct timeval time) { return time.tv_sec + time.tv_usec / 1e6; }

static void print_start(double begin) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    printf("%.2f ms: library %.2f, cuInit %.2f, context %.2f; %.1f ms by the process and %.1f by the kernel for it, %ld page faults\n",
           (made - begin) * 1e3, (loaded - begin) * 1e3, (initialised - loaded) * 1e3, (made - initialised) * 1e3, seconds(used.ru_utime) * 1e3,
           seconds(used.ru_stime) * 1e3, used.ru_minflt);
}

static size_t info(size_t *total) {
    size_t available;
    must(cuMemGetInfo_v2(&available, total), "cuMemGetInfo");
    return available;
}

static int fill(size_t least) {
    size_t sum = 0, total, blocks = 0, shown;
    for (size_t size = (size_t)1 << 30; size >= least; size /= 2) {
        address block;
        result code;
        while (!(code = cuMemAlloc_v2(&block, size))) {
            must(cuMemsetD8_v2(block, 1, size), "cuMemsetD8");
            sum += size;
            blocks++;
        }
        if (code != OUT_OF_MEMORY) must(code, "cuMemAlloc");
    }
    must(cuCtxSynchronize(), "cuCtxSynchronize");
    shown = info(&total);
    printf("allocated %zu in %zu blocks, then refused; free %zu total %zu\n", sum, blocks, shown, total);
    return 0;
}

static void launch(long count) {
    static const char kernel[] = ".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry nothing() { ret; }\n";
    void *module, *function;
    must(cuModuleLoadData(&module, kernel), "cuModuleLoadData");
    must(cuModuleGetFunction(&function, module, "nothing"), "cuModuleGetFunction");
    for (int warm = 0; warm < 2; warm++) {
        struct rusage before, after;
        getrusage(RUSAGE_SELF, &before);
        double begin = now();
        long rounds = warm ? count : 2000;
        for (long i = 0; i < rounds; i++) must(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0), "cuLaunchKernel");
        must(cuCtxSynchronize(), "cuCtxSynchronize");
        double took = now() - begin;
        getrusage(RUSAGE_SELF, &after);
        if (warm)
            printf("%.0f a second, %.3f s by the process and %.3f s by the kernel for it, %ld and %ld switches, %ld page faults\n", count / took,
                   seconds(after.ru_utime) - seconds(before.ru_utime), seconds(after.ru_stime) - seconds(before.ru_stime),
                   after.ru_nvcsw - before.ru_nvcsw, after.ru_nivcsw - before.ru_nivcsw, after.ru_minflt - before.ru_minflt);
    }
}

/* Goes on in so many processes, one after the other, and ends with the last. */
static void fork_times(long times) {
    for (long i = 0; i < times; i++) {
        int status = 1;
        pid_t child = fork();
        if (child == 0) return;
        if (child < 0 || waitpid(child, &status, 0) != child || status) { fprintf(stderr, "a process failed\n"); exit(1); }
    }
    if (times) exit(0);
}

static void allocate_and_free(size_t size, long count) {
    double begin = 0;
    for (long i = -10; i < count; i++) {
        address block;
        if (i == 0) begin = now();
        must(cuMemAlloc_v2(&block, size), "cuMemAlloc");
        must(cuMemFree_v2(block), "cuMemFree");
    }
    printf("%.2f\n", (now() - begin) / count * 1e6);
}

struct held { int is_mapped, fd; address at; size_t size; uint64_t handle; };

static void let_go(struct held *held) {
    if (!held->size) return;
    if (held->is_mapped) {
        /* Unlike cuMemFree, this does not wait for what still writes there. */
        must(cuCtxSynchronize(), "cuCtxSynchronize");
        must(cuMemUnmap(held->at, held->size), "cuMemUnmap");
        must(cuMemAddressFree(held->at, held->size), "cuMemAddressFree");
        if (held->handle) must(cuMemRelease(held->handle), "cuMemRelease");
        if (held->fd >= 0) close(held->fd);
    } else {
        must(cuMemFree_v2(held->at), "cuMemFree");
    }
    held->size = 0;
}

static int map(struct held *held, size_t size) {
    struct location card = {1, 0};
    struct properties properties = {.type = 1, .handle_types = 1, .location = card};
    struct access access = {card, 3};
    size = (size + (2 << 20) - 1) & ~(size_t)((2 << 20) - 1);
    result code = cuMemCreate(&held->handle, size, &properties, 0);
    if (code) return code;
    must(cuMemAddressReserve(&held->at, size, 0, 0, 0), "cuMemAddressReserve");
    must(cuMemMap(held->at, size, 0, held->handle, 0), "cuMemMap");
    code = cuMemSetAccess(held->at, size, &access, 1);
    if (code) {
        cuMemUnmap(held->at, size);
        cuMemAddressFree(held->at, size);
        cuMemRelease(held->handle);
        return code;
    }
    held->fd = -1;
    if (rand() % 2) must(cuMemExportToShareableHandle(&held->fd, held->handle, 1, 0), "cuMemExportToShareableHandle");
    /* Half of them give up the handle at once: the mapping and the exported file keep the memory. */
    if (rand() % 2) {
        must(cuMemRelease(held->handle), "cuMemRelease");
        held->handle = 0;
    }
    held->is_mapped = 1;
    held->size = size;
    return 0;
}

static int at_random(unsigned seed, long steps, size_t most) {
    static struct held all[24];
    long refused = 0, made = 0;
    srand(seed);
    for (long i = 0; i < steps; i++) {
        struct held *held = &all[rand() % 24];
        let_go(held);
        size_t size = 1 + (size_t)rand() % most;
        result code = rand() % 3 ? cuMemAlloc_v2(&held->at, size) : map(held, size);
        if (code == OUT_OF_MEMORY) { refused++; continue; }
        must(code, "an allocation");
        if (!held->size) { held->size = size; held->is_mapped = 0; }
        if (rand() % 4 == 0) must(cuMemsetD8_v2(held->at, 1, held->size), "cuMemsetD8");
        made++;
    }
    printf("made %ld refused %ld\n", made, refused);
    /* Half end as they are: the driver has to clean up. */
    if (rand() % 2) for (size_t i = 0; i < 24; i++) let_go(&all[i]);
    return 0;
}

int main(int count, char **arguments) {
    const char *what = count > 1 ? arguments[1] : "";
    long numbers[3] = {0};
    for (int i = 2; i < count && i < 5; i++) numbers[i - 2] = atol(arguments[i]);
    if (!strcmp(what, "launch")) fork_times(numbers[1]);
    double begin = now();
    start();
    if (!strcmp(what, "init")) print_start(begin);
    else if (!strcmp(what, "info")) { size_t total, available = info(&total); printf("free %zu total %zu\n", available, total); }
    else if (!strcmp(what, "attribute")) { int value; must(cuDeviceGetAttribute(&value, numbers[0], 0), "cuDeviceGetAttribute"); printf("%d\n", value); }
    else if (!strcmp(what, "fill")) return fill((size_t)(numbers[0] ? numbers[0] : 2048) << 10);
    else if (!strcmp(what, "launch")) launch(numbers[0] ? numbers[0] : 300000);
    else if (!strcmp(what, "malloc")) allocate_and_free((size_t)numbers[0] << 10, numbers[1] ? numbers[1] : 1000);
    else if (!strcmp(what, "hold")) {
        address block;
        must(cuMemAlloc_v2(&block, (size_t)numbers[0] << 10), "cuMemAlloc");
        must(cuMemsetD8_v2(block, 1, (size_t)numbers[0] << 10), "cuMemsetD8");
        must(cuCtxSynchronize(), "cuCtxSynchronize");
        printf("holding\n");
        fflush(stdout);
        sleep(numbers[1]);
    }
    else if (!strcmp(what, "random")) return at_random(numbers[0], numbers[1], (size_t)numbers[2] << 10);
    else { fprintf(stderr, "see the head of cuda_load.c for the commands\n"); return 1; }
    return 0;
}
