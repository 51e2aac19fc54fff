/* What remap.c checks and measures by kernels. */
/* Whether word i is i * 2654435761 + add, by a kernel. */
static int holds(address place, uint64_t size, uint32_t add, const char *when) {
    uint64_t words = size / 4;
    uint32_t wrong = 0;
    must(cuMemsetD32_v2(scratch, 0, 1), "cuMemsetD32");
    launch(kernel_check, (void *[]){&place, &words, &add, &scratch}, "check");
    must(cuCtxSynchronize(), when);
    must(cuMemcpyDtoH_v2(&wrong, scratch, 4), "cuMemcpyDtoH");
    printf("  %s %s by a kernel: %u of %llu words wrong\n", wrong ? "WRONG" : "right", when, wrong, (unsigned long long)words);
    return !wrong;
}

/* The same by the processor. */
static int holds_here(const void *memory, uint64_t size, uint32_t add, const char *when) {
    const volatile uint32_t *words = memory;
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < size / 4; i++) wrong += words[i] != (uint32_t)i * 2654435761u + add;
    printf("  %s %s by the processor: %llu of %llu words wrong\n", wrong ? "WRONG" : "right", when, (unsigned long long)wrong, (unsigned long long)size / 4);
    return !wrong;
}

static void bump(void *kernel, address place, uint64_t size, const char *what) {
    uint64_t words = size / 4;
    launch(kernel, (void *[]){&place, &words}, what);
    must(cuCtxSynchronize(), what);
}

/* How fast kernels and copies are; `add` is what the words hold, and is returned. */
static uint32_t rates(address place, uint64_t size, uint32_t add, void *here, const char *where) {
    uint64_t quads = size / 16;
    address sum = scratch + 4;
    double begin, best[5] = {0};
    for (int i = 0; i < 4; i++) {
#define RATE(n, action) begin = seconds(), action, begin = seconds() - begin, best[n] = size / begin / 1e9 > best[n] ? size / begin / 1e9 : best[n]
        RATE(0, (launch(kernel_read, (void *[]){&place, &quads, &sum}, "read"), must(cuCtxSynchronize(), "read")));
        RATE(1, bump(kernel_bump, place, size, "bump"));
        if (i == 0) RATE(2, bump(kernel_atomic, place, size, "atomic"));
        RATE(3, must(cuMemcpyDtoH_v2(here, place, size), "cuMemcpyDtoH"));
        RATE(4, must(cuMemcpyHtoD_v2(place, here, size), "cuMemcpyHtoD"));
    }
    printf("  GB/s in %s: a kernel reads %.2f, adds one to each word %.2f, by atomics %.2f; cuMemcpy to pageable memory %.2f, from it %.2f\n", where, best[0], best[1], best[2], best[3], best[4]);
    return add + 5;
}
