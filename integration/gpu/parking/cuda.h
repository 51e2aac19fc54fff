/* libcuda and NVML by dlopen, and the kernels of kernels.ptx. */
typedef uint64_t address;
#define FUNCTIONS(F) \
    F(cuInit, (unsigned)) \
    F(cuDriverGetVersion, (int *)) \
    F(cuDevicePrimaryCtxRetain, (void **, int)) \
    F(cuCtxSetCurrent, (void *)) \
    F(cuCtxSynchronize, (void)) \
    F(cuMemAlloc_v2, (address *, size_t)) \
    F(cuMemFree_v2, (address)) \
    F(cuMemGetInfo_v2, (size_t *, size_t *)) \
    F(cuMemsetD32_v2, (address, unsigned, size_t)) \
    F(cuMemcpyHtoD_v2, (address, const void *, size_t)) \
    F(cuMemcpyDtoH_v2, (void *, address, size_t)) \
    F(cuMemHostAlloc, (void **, size_t, unsigned)) \
    F(cuMemHostRegister_v2, (void *, size_t, unsigned)) \
    F(cuModuleLoadData, (void **, const void *)) \
    F(cuModuleGetFunction, (void **, void *, const char *)) \
    F(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **)) \
    F(cuGetErrorName, (int, const char **))
#define DECLARE(name, arguments) static int (*name) arguments;
FUNCTIONS(DECLARE)

__asm__(".pushsection .rodata\nkernels: .incbin \"kernels.ptx\"\n.byte 0\n.popsection");
extern const char kernels[];

enum { BLOCKS = 132 * 8, THREADS = 256 };
static void *kernel_fill, *kernel_check, *kernel_bump, *kernel_atomic, *kernel_read, *kernel_copy, *kernel_steady;
static address scratch; /* two words: wrong, sum */
static int (*nvml_memory)(void *, void *);
static void *nvml_card;

static void must(int code, const char *what) {
    const char *name = "?";
    if (!code) return;
    if (cuGetErrorName) cuGetErrorName(code, &name);
    printf("FAILED: %s: %s (%d)\n", what, name, code);
    fflush(stdout);
    _exit(1);
}

static void load_nvml(void) {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) return;
    int (*init)(void) = (int (*)(void))dlsym(library, "nvmlInit_v2");
    int (*card)(unsigned, void **) = (int (*)(unsigned, void **))dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
    if (init && card && init() == 0 && card(0, &nvml_card) == 0) nvml_memory = (int (*)(void *, void *))dlsym(library, "nvmlDeviceGetMemoryInfo");
}

/* KiB of the card in use, by NVML; a MiB is its grain. */
static long long used(void) {
    unsigned long long info[3] = {0}; /* total, free, used */
    if (!nvml_memory || nvml_memory(nvml_card, info)) return -1;
    return info[2] >> 10;
}

/* What is in use once it has not changed for a while: memory is scrubbed after its release. */
static long long settled(void) {
    long long last = used();
    for (int same = 0, tries = 0; same < 5 && tries < 200; tries++) {
        usleep(10000);
        long long next = used();
        same = next == last ? same + 1 : 0;
        last = next;
    }
    return last;
}

static void launch(void *kernel, void **arguments, const char *what) {
    must(cuLaunchKernel(kernel, BLOCKS, 1, 1, THREADS, 1, 1, 0, 0, arguments, 0), what);
}

static void start_cuda(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *context, *module;
    int version = 0;
    if (!library) { printf("FAILED: %s\n", dlerror()); _exit(1); }
#define FIND(name, arguments) if (!(name = (int (*) arguments)dlsym(library, #name))) { printf("FAILED: no %s\n", #name); _exit(1); }
    FUNCTIONS(FIND)
    must(cuInit(0), "cuInit");
    cuDriverGetVersion(&version);
    must(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    must(cuModuleLoadData(&module, kernels), "cuModuleLoadData");
    must(cuModuleGetFunction(&kernel_fill, module, "fill"), "fill");
    must(cuModuleGetFunction(&kernel_check, module, "check"), "check");
    must(cuModuleGetFunction(&kernel_bump, module, "bump"), "bump");
    must(cuModuleGetFunction(&kernel_atomic, module, "atomic"), "atomic");
    must(cuModuleGetFunction(&kernel_read, module, "read"), "read");
    must(cuModuleGetFunction(&kernel_copy, module, "copy"), "copy");
    must(cuModuleGetFunction(&kernel_steady, module, "steady"), "steady");
    must(cuMemAlloc_v2(&scratch, 4096), "cuMemAlloc");
    must(cuMemsetD32_v2(scratch, 0, 1024), "cuMemsetD32");
    must(cuCtxSynchronize(), "cuCtxSynchronize");
    load_nvml();
    printf("CUDA %d; %d ioctls of libcuda's seen, %d objects, %d external mappings; %lld KiB of the card in use\n", version, hooked, object_count, mapping_count, used());
    for (int i = 0, channels = 0, host = 0; i < object_count; i++) {
        channels += (objects[i].class & 0xff) == 0x6f;
        if (objects[i].class == CLASS_SYSTEM && host++ < 3) printf("  libcuda's own class 0x3e: type %u flags %#x attr %#x attr2 %#x size %#llx, got attr %#x attr2 %#x\n", objects[i].asked.type, objects[i].asked.flags, objects[i].asked.attr, objects[i].asked.attr2, (unsigned long long)objects[i].asked.size, objects[i].got.attr, objects[i].got.attr2);
        if (i == object_count - 1) printf("  %d channels, %d objects of class 0x3e\n", channels, host);
    }
    if (!mapping_count) { printf("FAILED: libcuda does not call this program's ioctl\n"); _exit(3); }
}

static void fill(address place, uint64_t size, uint32_t add) {
    uint64_t words = size / 4;
    launch(kernel_fill, (void *[]){&place, &words, &add}, "fill");
    must(cuCtxSynchronize(), "after fill");
}

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
