/* Keeps a card's compute engine busy through libcuda, and prints how far it is: no CUDA toolkit is needed to build it.
 *   compute-load calibrate KIND                  prints the ITERATIONS that make one kernel of that kind as long as it should be here
 *   compute-load run KIND ITERATIONS SECONDS [PROCESSES]
 *                                                every 50 ms a line "MICROSECONDS WORK": CLOCK_MONOTONIC, and what is done so far; by so many
 *                                                processes together, each with a context of its own, once all of them work
 * KIND: short         kernels of 0.7 ms, 16 of them queued
 *       long          kernels of 300 ms, two queued; what is done of one counts
 *       graph         a graph of 20 kernels of 50 us, 8 launches queued
 *       cooperative   a cooperative launch of 1 ms with 10 barriers of the whole grid, 8 queued
 *       waiting       kernels of 0.7 ms, each waited for
 *       streams       kernels of 0.7 ms in 32 streams, each on a channel of its own, two queued in each
 *       copy          copies of 64 MiB to the card, 4 queued; ITERATIONS says nothing
 *       memory        1 GiB of the card's memory written by a kernel, 4 queued; ITERATIONS says nothing
 *       migrate       64 MiB of managed memory to the card and back, which the kernel copies; ITERATIONS says nothing
 * The work is arithmetic, so that time off the card does not count. A unit of WORK is one kernel (of "long": a thousandth). */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { COPIED = 64 << 20, WRITTEN = 1 << 30, QUEUE = 64, STREAMS = 32, PROCESSES = 64, MULTIPROCESSORS = 16, THREADS = 256, NOT_READY = 600, NO_TIMING = 2 };

#define FUNCTIONS(F) \
    F(cuInit, (unsigned)) \
    F(cuDevicePrimaryCtxRetain, (void **, int)) \
    F(cuCtxSetCurrent, (void *)) \
    F(cuCtxSynchronize, (void)) \
    F(cuDeviceGetAttribute, (int *, int, int)) \
    F(cuMemAlloc_v2, (address *, size_t)) \
    F(cuMemsetD8_v2, (address, unsigned char, size_t)) \
    F(cuMemsetD32Async, (address, unsigned, size_t, void *)) \
    F(cuMemHostAlloc, (void **, size_t, unsigned)) \
    F(cuMemcpyHtoDAsync_v2, (address, const void *, size_t, void *)) \
    F(cuMemAllocManaged, (address *, size_t, unsigned)) \
    F(cuMemPrefetchAsync, (address, size_t, int, void *)) \
    F(cuMemHostGetDevicePointer_v2, (address *, void *, unsigned)) \
    F(cuModuleLoadData, (void **, const void *)) \
    F(cuModuleGetFunction, (void **, void *, const char *)) \
    F(cuStreamCreate, (void **, unsigned)) \
    F(cuStreamSynchronize, (void *)) \
    F(cuEventCreate, (void **, unsigned)) \
    F(cuEventRecord, (void *, void *)) \
    F(cuEventQuery, (void *)) \
    F(cuStreamBeginCapture_v2, (void *, int)) \
    F(cuStreamEndCapture, (void *, void **)) \
    F(cuGraphInstantiateWithFlags, (void **, void *, unsigned long long)) \
    F(cuGraphLaunch, (void *, void *)) \
    F(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **)) \
    F(cuLaunchCooperativeKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **)) \
    F(cuGetErrorName, (result, const char **))
#include "cuda.h"

#define EIGHT_STEPS \
    "fma.rn.f32 %f1, %f1, %f3, %f4; fma.rn.f32 %f2, %f2, %f3, %f4; fma.rn.f32 %f1, %f1, %f3, %f4; fma.rn.f32 %f2, %f2, %f3, %f4;\n" \
    "fma.rn.f32 %f1, %f1, %f3, %f4; fma.rn.f32 %f2, %f2, %f3, %f4; fma.rn.f32 %f1, %f1, %f3, %f4; fma.rn.f32 %f2, %f2, %f3, %f4;\n"
#define ENDING \
    "add.f32 %f1, %f1, %f2; setp.eq.f32 %p4, %f1, 0f3f9e0652; @%p4 st.global.f32 [%rd3], %f1; ret;\n"
#define BEGINNING \
    ".reg .f32 %f<5>; .reg .u32 %r<12>; .reg .u64 %rd<12>; .reg .pred %p<6>;\n" \
    "ld.param.u64 %rd1, [place]; ld.param.u32 %r1, [iterations]; mov.u32 %r3, %tid.x; mov.u32 %r5, %ctaid.x;\n" \
    "cvt.rn.f32.u32 %f1, %r3; cvt.rn.f32.u32 %f2, %r5; mov.f32 %f3, 0f3f7fff58; mov.f32 %f4, 0f3f000000;\n"
static const char kernels[] =
    ".version 6.0\n.target sm_60\n.address_size 64\n"
    /* place: 8 bytes for each block, in which it adds up what it has done; every: how often, 0 for not at all. */
    ".visible .entry work(.param .u64 place, .param .u32 iterations, .param .u32 every) {\n" BEGINNING
    "ld.param.u32 %r2, [every]; mov.u32 %r4, 0; mov.u32 %r6, 0; mul.wide.u32 %rd2, %r5, 8; add.u64 %rd3, %rd1, %rd2;\n"
    "setp.eq.u32 %p1, %r3, 0; setp.ne.u32 %p2, %r2, 0; and.pred %p1, %p1, %p2; mov.u64 %rd4, 0; @%p1 ld.volatile.global.u64 %rd4, [%rd3];\n"
    "LOOP:\n" EIGHT_STEPS EIGHT_STEPS
    "add.u32 %r4, %r4, 1; add.u32 %r6, %r6, 1; setp.lt.u32 %p2, %r6, %r2; not.pred %p3, %p2; and.pred %p3, %p3, %p1;\n"
    "@!%p3 bra NEXT;\n mov.u32 %r6, 0; add.u64 %rd4, %rd4, 1; st.volatile.global.u64 [%rd3], %rd4; membar.sys;\n"
    "NEXT: setp.lt.u32 %p2, %r4, %r1; @%p2 bra LOOP;\n" ENDING "}\n"
    /* place: one counter of all who came to a barrier. */
    ".visible .entry together(.param .u64 place, .param .u32 iterations, .param .u32 barriers, .param .u64 base) {\n" BEGINNING
    "ld.param.u32 %r2, [barriers]; ld.param.u64 %rd4, [base]; mov.u64 %rd3, %rd1; mov.u32 %r7, %nctaid.x; cvt.u64.u32 %rd5, %r7; setp.eq.u32 %p1, %r3, 0;\n"
    "AGAIN: mov.u32 %r4, 0;\n"
    "LOOP:\n" EIGHT_STEPS EIGHT_STEPS
    "add.u32 %r4, %r4, 1; setp.lt.u32 %p2, %r4, %r1; @%p2 bra LOOP;\n"
    "add.u64 %rd4, %rd4, %rd5; bar.sync 0; @!%p1 bra WAITED;\n membar.gl; atom.global.add.u64 %rd6, [%rd1], 1;\n"
    "SPIN: ld.volatile.global.u64 %rd7, [%rd1]; setp.lt.u64 %p2, %rd7, %rd4; @%p2 bra SPIN;\n membar.gl;\n"
    "WAITED: bar.sync 0; sub.u32 %r2, %r2, 1; setp.ne.u32 %p2, %r2, 0; @%p2 bra AGAIN;\n" ENDING "}\n";

struct kind { const char *name; double kernel_ms; int queued, kernels, parts, streams; };
static const struct kind kinds[] = {
    {"short", 0.7, 16, 1, 0, 1}, {"long", 300, 2, 1, 1000, 1}, {"graph", 0.05, 8, 20, 0, 1}, {"cooperative", 0.1, 8, 10, 0, 1},
    {"waiting", 0.7, 1, 1, 0, 1}, {"streams", 0.7, 2 * STREAMS, 1, 0, STREAMS}, {"copy", 0, 4, 1, 0, 1}, {"memory", 0, 4, 1, 0, 1}, {"migrate", 0, 4, 1, 0, 1},
};

static int blocks;
static void *work, *together, *stream, *streams[STREAMS], *graph;
static volatile uint64_t *reported;
static address reported_at, counter_at, copied_at;
static void *copied;
static uint64_t launched;

static void start(const struct kind *kind) {
    void *context, *module;
    load();
    /* As many channels for launches; 8 unless it is said. */
    if (kind->streams > 1) setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    must(cuInit(0), "cuInit");
    must(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    must(cuDeviceGetAttribute(&blocks, MULTIPROCESSORS, 0), "cuDeviceGetAttribute");
    /* All are on the card at once: as a cooperative launch demands, and so that the work that each reports adds up. */
    blocks *= strcmp(kind->name, "cooperative") ? 8 : 4;
    must(cuModuleLoadData(&module, kernels), "cuModuleLoadData");
    must(cuModuleGetFunction(&work, module, "work"), "work");
    must(cuModuleGetFunction(&together, module, "together"), "together");
    must(cuMemHostAlloc((void **)&reported, blocks * 8, 2), "cuMemHostAlloc");
    memset((void *)reported, 0, blocks * 8);
    must(cuMemHostGetDevicePointer_v2(&reported_at, (void *)reported, 0), "cuMemHostGetDevicePointer");
    must(cuMemAlloc_v2(&counter_at, 8), "cuMemAlloc");
    must(cuMemsetD8_v2(counter_at, 0, 8), "cuMemsetD8");
    if (!strcmp(kind->name, "copy")) {
        must(cuMemHostAlloc(&copied, COPIED, 0), "cuMemHostAlloc");
        must(cuMemAlloc_v2(&copied_at, COPIED), "cuMemAlloc");
    } else if (!strcmp(kind->name, "memory")) {
        must(cuMemAlloc_v2(&copied_at, WRITTEN), "cuMemAlloc");
    } else if (!strcmp(kind->name, "migrate")) {
        must(cuMemAllocManaged(&copied_at, COPIED, 1), "cuMemAllocManaged");
        memset((void *)copied_at, 1, COPIED);
    }
    for (int i = 0; i < kind->streams; i++) must(cuStreamCreate(&streams[i], 1), "cuStreamCreate");
    stream = streams[0];
}

static void launch_one(unsigned iterations, unsigned every) {
    void *arguments[] = {&reported_at, &iterations, &every};
    must(cuLaunchKernel(work, blocks, 1, 1, THREADS, 1, 1, 0, stream, arguments, 0), "cuLaunchKernel");
}

static void launch(const struct kind *kind, unsigned iterations) {
    stream = streams[launched % kind->streams];
    if (!strcmp(kind->name, "cooperative")) {
        unsigned barriers = kind->kernels;
        uint64_t base = launched * barriers * blocks;
        void *arguments[] = {&counter_at, &iterations, &barriers, &base};
        must(cuLaunchCooperativeKernel(together, blocks, 1, 1, THREADS, 1, 1, 0, stream, arguments), "cuLaunchCooperativeKernel");
    } else if (!strcmp(kind->name, "graph")) {
        if (!graph) {
            void *captured;
            must(cuStreamBeginCapture_v2(stream, 2), "cuStreamBeginCapture");
            for (int i = 0; i < kind->kernels; i++) launch_one(iterations, 0);
            must(cuStreamEndCapture(stream, &captured), "cuStreamEndCapture");
            must(cuGraphInstantiateWithFlags(&graph, captured, 0), "cuGraphInstantiate");
        }
        must(cuGraphLaunch(graph, stream), "cuGraphLaunch");
    } else if (!strcmp(kind->name, "copy")) {
        must(cuMemcpyHtoDAsync_v2(copied_at, copied, COPIED, stream), "cuMemcpyHtoDAsync");
    } else if (!strcmp(kind->name, "memory")) {
        must(cuMemsetD32Async(copied_at, launched, WRITTEN / 4, stream), "cuMemsetD32Async");
    } else if (!strcmp(kind->name, "migrate")) {
        /* Card 0; -1 is the processor. */
        must(cuMemPrefetchAsync(copied_at, COPIED, launched % 2 ? -1 : 0, stream), "cuMemPrefetchAsync");
    } else {
        launch_one(iterations, kind->parts ? (iterations + kind->parts - 1) / kind->parts : 0);
    }
    launched++;
}

static void calibrate(const struct kind *kind) {
    unsigned iterations = 1000;
    double each = 0;
    for (int round = 0; round < 4; round++) {
        int count = round ? 20 : 3;
        double begin = now();
        for (int i = 0; i < count; i++) launch_one(iterations, 0);
        must(cuStreamSynchronize(stream), "cuStreamSynchronize");
        each = (now() - begin) / count;
        iterations = iterations * (round < 3 ? 0.002 : kind->kernel_ms * 1e-3) / each;
    }
    printf("%u\n", iterations);
}

static double done(const struct kind *kind, uint64_t finished) {
    uint64_t sum = 0;
    if (!kind->parts) return finished;
    for (int i = 0; i < blocks; i++) sum += reported[i];
    return (double)sum / blocks;
}

/* progress: where the work done is stored; without it, it is printed. */
static void run(const struct kind *kind, unsigned iterations, double seconds, volatile double *progress) {
    void *events[QUEUE];
    uint64_t finished = 0;
    double begin = now(), next_line = begin;
    for (int i = 0; i < kind->queued; i++) must(cuEventCreate(&events[i], NO_TIMING), "cuEventCreate");
    while (now() - begin < seconds) {
        while (launched - finished < (uint64_t)kind->queued) {
            int slot = launched % kind->queued;
            launch(kind, iterations);
            must(cuEventRecord(events[slot], stream), "cuEventRecord");
        }
        while (finished < launched) {
            result code = cuEventQuery(events[finished % kind->queued]);
            if (code == NOT_READY) break;
            must(code, "cuEventQuery");
            finished++;
        }
        if (progress) {
            *progress = done(kind, finished);
        } else if (now() >= next_line) {
            printf("%.0f %.3f\n", now() * 1e6, done(kind, finished));
            fflush(stdout);
            next_line += 0.05;
        }
        usleep(20);
    }
    _exit(0);
}

static void run_many(const struct kind *kind, unsigned iterations, double seconds, int processes) {
    volatile double *progress = mmap(0, PROCESSES * sizeof *progress, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pids[PROCESSES];
    double begin = now();
    int living = processes;
    if (progress == MAP_FAILED) { perror("mmap"); exit(1); }
    for (int i = 0; i < processes; i++) {
        if ((pids[i] = fork()) < 0) { perror("fork"); processes = living = i; break; }
        if (pids[i]) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        start(kind);
        run(kind, iterations, seconds, &progress[i]);
    }
    while (now() - begin < seconds && living) {
        double sum = 0;
        int working = 0;
        for (int i = 0; i < processes; i++) {
            sum += progress[i];
            working += progress[i] > 0;
            if (pids[i] > 0 && waitpid(pids[i], 0, WNOHANG) == pids[i]) {
                pids[i] = 0;
                living--;
                printf("process %d has ended: %d of %d are left\n", i, living, processes);
            }
        }
        /* Who has ended before it worked is not waited for. */
        if (working >= living) printf("%.0f %.3f\n", now() * 1e6, sum);
        fflush(stdout);
        usleep(50000);
    }
    for (int i = 0; i < processes; i++) if (pids[i] > 0) kill(pids[i], SIGKILL);
    while (wait(0) > 0);
}

int main(int count, char **arguments) {
    const struct kind *kind = 0;
    for (size_t i = 0; count > 2 && i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(kinds[i].name, arguments[2])) kind = &kinds[i];
    if (kind && !strcmp(arguments[1], "calibrate")) {
        start(kind);
        calibrate(kind);
    } else if (kind && count == 5 && !strcmp(arguments[1], "run")) {
        start(kind);
        run(kind, strtoul(arguments[3], 0, 10), atof(arguments[4]), 0);
    } else if (kind && count == 6 && !strcmp(arguments[1], "run") && atoi(arguments[5]) > 0 && atoi(arguments[5]) <= PROCESSES) {
        run_many(kind, strtoul(arguments[3], 0, 10), atof(arguments[4]), atoi(arguments[5]));
    } else {
        fprintf(stderr, "see the head of compute_load.c for how to call it\n");
        return 1;
    }
    return 0;
}
