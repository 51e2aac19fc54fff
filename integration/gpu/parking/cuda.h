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
    F(cuMemHostUnregister, (void *)) \
    F(cuMemcpyDtoHAsync_v2, (void *, address, size_t, void *)) \
    F(cuMemcpyHtoDAsync_v2, (address, const void *, size_t, void *)) \
    F(cuStreamCreate, (void **, unsigned)) \
    F(cuStreamSynchronize, (void *)) \
    F(cuStreamQuery, (void *)) \
    F(cuMemImportFromShareableHandle, (uint64_t *, void *, int)) \
    F(cuModuleLoadData, (void **, const void *)) \
    F(cuModuleGetFunction, (void **, void *, const char *)) \
    F(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **)) \
    F(cuGetErrorName, (int, const char **))
#define DECLARE(name, arguments) static int (*name) arguments;
FUNCTIONS(DECLARE)

__asm__(".pushsection .rodata\nkernels: .incbin \"kernels.ptx\"\n.byte 0\n.popsection");
extern const char kernels[];

enum { BLOCKS = 132 * 8, THREADS = 256 };
static const char *role = "?";
static void *kernel_fill, *kernel_check, *kernel_bump, *kernel_atomic, *kernel_read, *kernel_copy, *kernel_steady, *kernel_traces;
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
    must(cuModuleGetFunction(&kernel_traces, module, "traces"), "traces");
    must(cuMemAlloc_v2(&scratch, 4096), "cuMemAlloc");
    must(cuMemsetD32_v2(scratch, 0, 1024), "cuMemsetD32");
    must(cuCtxSynchronize(), "cuCtxSynchronize");
    printf("  %s: CUDA %d; %d ioctls of libcuda's seen, %d objects, %d external mappings; pid %d\n", role, version, hooked, object_count, mapping_count, getpid());
    for (int i = 0, channels = 0, host = 0; i < object_count; i++) {
        channels += (objects[i].class & 0xff) == 0x6f;
        host += objects[i].class == CLASS_SYSTEM;
        if (i == object_count - 1) printf("  %d channels, %d objects of class 0x3e\n", channels, host);
    }
    if (!mapping_count) { printf("FAILED: libcuda does not call this program's ioctl\n"); _exit(3); }
}

static void fill(address place, uint64_t size, uint32_t add) {
    uint64_t words = size / 4;
    launch(kernel_fill, (void *[]){&place, &words, &add}, "fill");
    must(cuCtxSynchronize(), "after fill");
}

