/* Requests that arrive at random, tokens one after another, and the batch work beside them, through libcuda: no CUDA toolkit is
 * needed to build it.
 *   latency-load calibrate                        prints PER_US: steps of the kernels' loop in a microsecond, with nobody beside it
 *   latency-load serve PER_US REQUEST_US LOAD REQUESTS [SECONDS [SEED]]
 *                                                 open loop: Poisson arrivals, LOAD percent of the card; one request is a copy in, a graph of
 *                                                 kernels of 20 us, a copy out. SECONDS: when it stops, served or not; SEED: of the arrivals
 *   latency-load decode PER_US TOKEN_US TOKENS [SECONDS]
 *                                                 closed loop: a token is such a graph, and the next one begins when it is there
 *   latency-load batch PER_US KERNEL_US SECONDS   kernels of that length, always some queued; every 50 ms a line "MICROSECONDS WORK":
 *                                                 CLOCK_MONOTONIC, and the microseconds of work done so far
 * serve and decode end with quantiles, a line "served N requests in S s from US to US", and a line "ARRIVAL LATENCY FIRST WAITED" of each
 * request, all in microseconds. ARRIVAL: from the beginning. LATENCY: from the arrival to the end of the copy out. FIRST: from the first call of
 * a request to its first kernel. WAITED: from the arrival to the first call, behind the requests before it. */
#include <math.h>
#include <string.h>
#include <unistd.h>

enum { COPIED = 256 << 10, QUEUE = 8, MULTIPROCESSORS = 16, THREADS = 256, PER_MULTIPROCESSOR = 4, NOT_READY = 600, NO_TIMING = 2, KERNEL_US = 20, PARTS = 64 };

#define FUNCTIONS(F) \
    F(cuInit, (unsigned)) \
    F(cuDevicePrimaryCtxRetain, (void **, int)) \
    F(cuCtxSetCurrent, (void *)) \
    F(cuDeviceGetAttribute, (int *, int, int)) \
    F(cuMemAlloc_v2, (address *, size_t)) \
    F(cuMemHostAlloc, (void **, size_t, unsigned)) \
    F(cuMemHostGetDevicePointer_v2, (address *, void *, unsigned)) \
    F(cuMemcpyHtoDAsync_v2, (address, const void *, size_t, void *)) \
    F(cuMemcpyDtoHAsync_v2, (void *, address, size_t, void *)) \
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
    F(cuGetErrorName, (result, const char **))
#include "cuda.h"

/* steps: of the loop; every: steps after which each block adds one to its counter at place, which is 8 bytes a block; 0: never.
 * "begun" counts at place. */
static const char kernels[] =
    ".version 6.0\n.target sm_60\n.address_size 64\n"
    ".visible .entry work(.param .u64 place, .param .u32 steps, .param .u32 every) {\n"
    ".reg .f32 %f<5>; .reg .u32 %r<8>; .reg .u64 %rd<6>; .reg .pred %p<6>;\n"
    "ld.param.u64 %rd1, [place]; ld.param.u32 %r1, [steps]; ld.param.u32 %r2, [every]; mov.u32 %r3, %tid.x; mov.u32 %r5, %ctaid.x;\n"
    "mul.wide.u32 %rd2, %r5, 8; add.u64 %rd3, %rd1, %rd2; cvt.rn.f32.u32 %f1, %r3; cvt.rn.f32.u32 %f2, %r5; mov.f32 %f3, 0f3f7fff58; mov.f32 %f4, 0f3f000000;\n"
    "setp.eq.u32 %p1, %r3, 0; setp.ne.u32 %p2, %r2, 0; and.pred %p1, %p1, %p2; mov.u32 %r4, 0; mov.u32 %r6, 0;\n"
    "LOOP: fma.rn.f32 %f1, %f1, %f3, %f4; fma.rn.f32 %f2, %f2, %f3, %f4; fma.rn.f32 %f1, %f1, %f3, %f4; fma.rn.f32 %f2, %f2, %f3, %f4;\n"
    "add.u32 %r4, %r4, 1; add.u32 %r6, %r6, 1; setp.ge.u32 %p3, %r6, %r2; and.pred %p3, %p3, %p1; @!%p3 bra NEXT;\n"
    "mov.u32 %r6, 0; ld.volatile.global.u64 %rd4, [%rd3]; add.u64 %rd4, %rd4, 1; st.volatile.global.u64 [%rd3], %rd4; membar.sys;\n"
    "NEXT: setp.lt.u32 %p4, %r4, %r1; @%p4 bra LOOP;\n"
    "add.f32 %f1, %f1, %f2; setp.eq.f32 %p5, %f1, 0f3f9e0652; @%p5 st.global.f32 [%rd3], %f1; ret;\n}\n"
    ".visible .entry begun(.param .u64 place) {\n.reg .u64 %rd<4>;\n"
    "ld.param.u64 %rd1, [place]; ld.volatile.global.u64 %rd2, [%rd1]; add.u64 %rd2, %rd2, 1; st.volatile.global.u64 [%rd1], %rd2; membar.sys; ret;\n}\n";

static int blocks;
static void *work, *begun, *stream, *graph, *copied;
static volatile uint64_t *counters;
static address counters_at, copied_at;

static void start(void) {
    void *context, *module;
    load();
    must(cuInit(0), "cuInit");
    must(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    must(cuDeviceGetAttribute(&blocks, MULTIPROCESSORS, 0), "cuDeviceGetAttribute");
    blocks *= PER_MULTIPROCESSOR;
    must(cuModuleLoadData(&module, kernels), "cuModuleLoadData");
    must(cuModuleGetFunction(&work, module, "work"), "work");
    must(cuModuleGetFunction(&begun, module, "begun"), "begun");
    must(cuMemHostAlloc((void **)&counters, blocks * 8, 2), "cuMemHostAlloc");
    memset((void *)counters, 0, blocks * 8);
    must(cuMemHostGetDevicePointer_v2(&counters_at, (void *)counters, 0), "cuMemHostGetDevicePointer");
    must(cuMemHostAlloc(&copied, COPIED, 0), "cuMemHostAlloc");
    must(cuMemAlloc_v2(&copied_at, COPIED), "cuMemAlloc");
    must(cuStreamCreate(&stream, 1), "cuStreamCreate");
}

static void launch(double steps, double every) {
    unsigned of_kernel = steps, of_part = every;
    void *arguments[] = {&counters_at, &of_kernel, &of_part};
    must(cuLaunchKernel(work, blocks, 1, 1, THREADS, 1, 1, 0, stream, arguments, 0), "cuLaunchKernel");
}

static void calibrate(void) {
    double steps = 1000, each = 0;
    for (int round = 0; round < 4; round++) {
        double begin = now();
        for (int i = 0; i < 20; i++) launch(steps, 0);
        must(cuStreamSynchronize(stream), "cuStreamSynchronize");
        each = (now() - begin) / 20;
        if (round < 3) steps *= 0.005 / each;
    }
    printf("%.3f\n", steps / each * 1e-6);
}

static void capture(double per_us, double request_us) {
    void *captured, *arguments[] = {&counters_at};
    must(cuStreamBeginCapture_v2(stream, 2), "cuStreamBeginCapture");
    must(cuLaunchKernel(begun, 1, 1, 1, 1, 1, 1, 0, stream, arguments, 0), "cuLaunchKernel");
    for (double left_us = request_us; left_us > 0; left_us -= KERNEL_US) launch(per_us * fmin(left_us, KERNEL_US), 0);
    must(cuStreamEndCapture(stream, &captured), "cuStreamEndCapture");
    must(cuGraphInstantiateWithFlags(&graph, captured, 0), "cuGraphInstantiate");
}

/* Serves one request. Returns the seconds from its first call to its first kernel. */
static double serve_one(void) {
    double begin = now(), first;
    uint64_t before = counters[0];
    must(cuMemcpyHtoDAsync_v2(copied_at, copied, COPIED, stream), "cuMemcpyHtoDAsync");
    must(cuGraphLaunch(graph, stream), "cuGraphLaunch");
    must(cuMemcpyDtoHAsync_v2(copied, copied_at, COPIED, stream), "cuMemcpyDtoHAsync");
    while (counters[0] == before);
    first = now() - begin;
    must(cuStreamSynchronize(stream), "cuStreamSynchronize");
    return first;
}

static int by_value(const void *one, const void *other) {
    double difference = *(const double *)one - *(const double *)other;
    return (difference > 0) - (difference < 0);
}

static double quantile(const double *values, int count, double part) {
    double *sorted = malloc(count * sizeof *sorted), found;
    memcpy(sorted, values, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, by_value);
    found = sorted[(int)fmin(count - 1, count * part)];
    free(sorted);
    return found;
}

/* One line: quantiles in ms, and those of the 99th of five parts. */
static void report(const char *what, const double *values, int count) {
    if (!count) return;
    printf("%s p50 %.3f p90 %.3f p99 %.3f max %.3f mean", what, quantile(values, count, 0.5) * 1e3, quantile(values, count, 0.9) * 1e3,
           quantile(values, count, 0.99) * 1e3, quantile(values, count, 1) * 1e3);
    double sum = 0;
    for (int i = 0; i < count; i++) sum += values[i];
    printf(" %.3f p99 of five parts", sum / count * 1e3);
    for (int part = 0; part < 5 && count >= 5; part++) printf(" %.3f", quantile(values + count / 5 * part, count / 5, 0.99) * 1e3);
    printf("\n");
}

/* load: 0 for a closed loop; seconds: 0 for no end but the requests'. */
static void serve(double per_us, double request_us, double load, int requests, double seconds, long seed) {
    double *latency = calloc(requests, sizeof *latency), *first = calloc(requests, sizeof *first), *waited = calloc(requests, sizeof *waited);
    double *arrivals = calloc(requests, sizeof *arrivals), arrival, begin;
    capture(per_us, request_us);
    for (int i = 0; i < 20; i++) serve_one();
    srand48(seed);
    begin = arrival = now() + (load > 0 ? 0.05 : 0);
    for (int i = 0; i < requests; i++) {
        double at;
        if (load > 0) arrival += -log(1 - drand48()) * request_us * 1e-6 / load;
        else arrival = now();
        if (arrival - now() > 200e-6) usleep((arrival - now()) * 1e6 - 150);
        while ((at = now()) < arrival);
        if (seconds > 0 && at - begin > seconds) {
            requests = i;
            break;
        }
        waited[i] = at - arrival;
        first[i] = serve_one();
        latency[i] = now() - arrival;
        arrivals[i] = arrival - begin;
    }
    double end = now();
    report("latency", latency, requests);
    report("first", first, requests);
    report("waited", waited, requests);
    printf("served %d requests in %.3f s from %.0f to %.0f\n", requests, end - begin, begin * 1e6, end * 1e6);
    for (int i = 0; i < requests; i++)
        printf("%.0f %.0f %.0f %.0f\n", arrivals[i] * 1e6, latency[i] * 1e6, first[i] * 1e6, waited[i] * 1e6);
}

static void batch(double per_us, double kernel_us, double seconds) {
    void *events[QUEUE];
    uint64_t launched = 0, finished = 0;
    int queued = kernel_us < 1000 ? QUEUE : 2, is_long = kernel_us > 20000;
    double begin = now(), next_line = begin;
    for (int i = 0; i < QUEUE; i++) must(cuEventCreate(&events[i], NO_TIMING), "cuEventCreate");
    while (now() - begin < seconds) {
        for (; launched - finished < (uint64_t)queued; launched++) {
            launch(per_us * kernel_us, is_long ? per_us * kernel_us / PARTS : 0);
            must(cuEventRecord(events[launched % QUEUE], stream), "cuEventRecord");
        }
        for (; finished < launched; finished++) {
            result code = cuEventQuery(events[finished % QUEUE]);
            if (code == NOT_READY) break;
            must(code, "cuEventQuery");
        }
        if (now() >= next_line) {
            double done = finished, parts = 0;
            for (int i = 0; i < blocks; i++) parts += counters[i];
            if (is_long) done = parts / blocks / PARTS;
            printf("%.0f %.1f\n", now() * 1e6, done * kernel_us);
            fflush(stdout);
            next_line += 0.05;
        }
        usleep(20);
    }
    _exit(0);
}

int main(int count, char **arguments) {
    const char *what = count > 1 ? arguments[1] : "";
    double number[6] = {0, 0, 0, 0, 0, 1};
    for (int i = 2; i < count && i < 8; i++) number[i - 2] = atof(arguments[i]);
    if (!strcmp(what, "calibrate")) {
        start();
        calibrate();
    } else if (!strcmp(what, "serve") && count >= 6) {
        start();
        serve(number[0], number[1], number[2] / 100, number[3], number[4], number[5]);
    } else if (!strcmp(what, "decode") && count >= 5) {
        start();
        serve(number[0], number[1], 0, number[2], number[3], 1);
    } else if (!strcmp(what, "batch") && count == 5) {
        start();
        batch(number[0], number[1], number[2]);
    } else {
        fprintf(stderr, "see the head of latency_load.c for how to call it\n");
        return 1;
    }
    return 0;
}
