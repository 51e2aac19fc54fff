/* Managed memory, more of it than a quota has room for; says what it did, and whether it was right.
 *
 *   nvcc -O2 -arch=native -Xlinker --export-dynamic -o managed_load managed_load.cu
 *   managed_load sum MIB          written by the processor, added to by the card, summed up by the processor
 *   managed_load tiles MIB        the same, moved to the card and back in tiles of 64 MiB
 *   managed_load advice MIB       each advice there is; what it answers when it is asked for it again
 *   managed_load atomics MIB      each word added to by the card and by the processor
 *   managed_load batch MIB        moved, discarded, and both at once, in batches (CUDA 13)
 *   managed_load attach MIB       attached to the host, to a stream, and to all
 *   managed_load pool MIB         a pool of managed memory, pieces of 24 MiB (CUDA 13)
 *   managed_load malloc MIB       ordinary memory of the program's, where the card can use that
 *   managed_load touch MIB        time of cudaMallocManaged, and of a kernel's first touch
 *   managed_load random SEED STEPS MIB   all of these in any order
 *   managed_load wait MIB         an attack: kernels wait for the addresses of ranges that come to be
 *   managed_load cut MIB          the same, of which a part is unmapped before a kernel hears of it; libcuda is told that it failed
 *   managed_load hold MIB SECONDS the card uses it again and again
 * Exit status: 0, 1 (wrong), 2 (out of memory).
 */
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <vector>

#include <cuda_runtime.h>

typedef unsigned long long u64;
static const u64 MIB = 1 << 20, PAGE = 4096, TILE = 64 * MIB;

#define MUST(call) must(call, #call, __LINE__)
static void must(cudaError_t error, const char *call, int line) {
    if (error == cudaSuccess) return;
    printf("line %d: %s: %s\n", line, call, cudaGetErrorString(error));
    exit(error == cudaErrorMemoryAllocation ? 2 : 1);
}

static void expect(u64 is, u64 should, const char *what) {
    if (is == should) return;
    printf("%s: %llu instead of %llu\n", what, is, should);
    exit(1);
}

static double seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/* One word of each 4 KiB. */
__global__ void add(u64 *data, u64 pages, u64 value) {
    u64 first = blockIdx.x * (u64)blockDim.x + threadIdx.x, all = (u64)gridDim.x * blockDim.x;
    for (u64 page = first; page < pages; page += all) data[page * 512] += value;
}

__global__ void add_atomically(u64 *data, u64 pages) {
    u64 first = blockIdx.x * (u64)blockDim.x + threadIdx.x, all = (u64)gridDim.x * blockDim.x;
    for (u64 page = first; page < pages; page += all) {
        atomicAdd(&data[page * 512], 1);
        atomicAdd_system(&data[page * 512], 2);
    }
}

__global__ void wait_and_write(volatile u64 *box) {
    u64 address, first = blockIdx.x * (u64)blockDim.x + threadIdx.x, all = (u64)gridDim.x * blockDim.x;
    while (!(address = box[0])) {}
    for (u64 page = first; page < box[1] / PAGE; page += all) ((volatile u64 *)address)[page * 512] = page;
}

static cudaMemLocation location(cudaMemLocationType type) {
    cudaMemLocation location = {};
    location.type = type;
    return location;
}
static const cudaMemLocation HOST = location(cudaMemLocationTypeHost), CARD = location(cudaMemLocationTypeDevice);

static u64 *managed(u64 bytes) {
    u64 *data;
    MUST(cudaMallocManaged(&data, bytes));
    return data;
}

static void card_adds(u64 *data, u64 bytes, u64 value, cudaStream_t stream = 0) {
    add<<<256, 256, 0, stream>>>(data, bytes / PAGE, value);
    MUST(cudaGetLastError());
    MUST(cudaStreamSynchronize(stream));
}

static void fill(u64 *data, u64 bytes) {
    for (u64 page = 0; page < bytes / PAGE; page++) data[page * 512] = page;
}

/* Each word is its page's number and `more`. */
static void check(const u64 *data, u64 bytes, u64 more, const char *what) {
    for (u64 page = 0; page < bytes / PAGE; page++) expect(data[page * 512], page + more, what);
}

static void move(u64 *data, u64 bytes, cudaMemLocation to) {
    MUST(cudaMemPrefetchAsync(data, bytes, to, 0, 0));
    MUST(cudaDeviceSynchronize());
}

static void sum(u64 bytes) {
    u64 *data = managed(bytes);
    fill(data, bytes);
    for (u64 round = 0; round < 3; round++) card_adds(data, bytes, 1);
    check(data, bytes, 3, "sum");
    MUST(cudaFree(data));
}

static void tiles(u64 bytes) {
    u64 *data = managed(bytes);
    fill(data, bytes);
    for (u64 at = 0; at < bytes; at += TILE) {
        u64 *tile = data + at / 8, length = bytes - at < TILE ? bytes - at : TILE;
        MUST(cudaMemPrefetchAsync(tile, length, CARD, 0, 0));
        add<<<256, 256>>>(tile, length / PAGE, 5);
        MUST(cudaGetLastError());
        MUST(cudaMemPrefetchAsync(tile, length, HOST, 0, 0));
    }
    MUST(cudaDeviceSynchronize());
    check(data, bytes, 5, "tiles");
    move(data, bytes, CARD);
    card_adds(data, bytes, 1);
    move(data, bytes, HOST);
    check(data, bytes, 6, "tiles, moved as one");
    MUST(cudaFree(data));
}

static void advice(u64 bytes) {
    u64 *data = managed(bytes), more = 0;
    fill(data, bytes);
    struct { cudaMemoryAdvise set, unset; cudaMemRangeAttribute attribute; cudaMemLocation where; int answer; } all[] = {
        {cudaMemAdviseSetReadMostly, cudaMemAdviseUnsetReadMostly, cudaMemRangeAttributeReadMostly, CARD, 1},
        {cudaMemAdviseSetPreferredLocation, cudaMemAdviseUnsetPreferredLocation, cudaMemRangeAttributePreferredLocation, CARD, 0},
        {cudaMemAdviseSetPreferredLocation, cudaMemAdviseUnsetPreferredLocation, cudaMemRangeAttributePreferredLocation, HOST, cudaCpuDeviceId},
        {cudaMemAdviseSetAccessedBy, cudaMemAdviseUnsetAccessedBy, cudaMemRangeAttributeAccessedBy, CARD, 0},
    };
    for (auto &one : all) {
        int answer = -5;
        MUST(cudaMemAdvise(data, bytes, one.set, one.where));
        MUST(cudaMemRangeGetAttribute(&answer, 4, one.attribute, data, bytes));
        expect(answer, one.answer, "advice as it is answered");
        card_adds(data, bytes, 1);
        check(data, bytes, ++more, "under an advice");
        MUST(cudaMemAdvise(data + bytes / 16, bytes / 2, one.unset, one.where));
        card_adds(data, bytes, 1);
        check(data, bytes, ++more, "where half of an advice is taken back");
        MUST(cudaMemAdvise(data, bytes, one.unset, one.where));
    }
    card_adds(data, bytes, 1);
    check(data, bytes, ++more, "without advice");
    MUST(cudaFree(data));
}

static void atomics(u64 bytes) {
    u64 *data = managed(bytes);
    fill(data, bytes);
    for (u64 round = 0; round < 3; round++) {
        add_atomically<<<256, 256>>>(data, bytes / PAGE);
        MUST(cudaGetLastError());
        MUST(cudaDeviceSynchronize());
        for (u64 page = 0; page < bytes / PAGE; page++) __atomic_fetch_add(&data[page * 512], 1, __ATOMIC_SEQ_CST);
    }
    check(data, bytes, 12, "atomics");
    MUST(cudaFree(data));
}

static void batch(u64 bytes) {
    u64 *data = managed(bytes);
    fill(data, bytes);
    cudaStream_t stream;
    MUST(cudaStreamCreate(&stream));
    std::vector<void *> parts;
    std::vector<size_t> sizes;
    for (u64 at = 0; at < bytes; at += TILE) parts.push_back(data + at / 8), sizes.push_back(bytes - at < TILE ? bytes - at : TILE);
    cudaMemLocation to[] = {CARD, HOST};
    for (size_t first = 0; first < 2; first++) {
        size_t from = 0;
        MUST(cudaMemPrefetchBatchAsync(parts.data(), sizes.data(), parts.size(), &to[first], &from, 1, 0, stream));
        card_adds(data, bytes, 1, stream);
    }
    check(data, bytes, 2, "batch");
    size_t from = 0;
    MUST(cudaMemDiscardBatchAsync(parts.data(), sizes.data(), parts.size(), 0, stream));
    MUST(cudaMemDiscardAndPrefetchBatchAsync(parts.data(), sizes.data(), parts.size(), to, &from, 1, 0, stream));
    MUST(cudaMemsetAsync(data, 0, bytes, stream));
    card_adds(data, bytes, 7, stream);
    for (u64 page = 0; page < bytes / PAGE; page++) expect(data[page * 512], 7, "after it was discarded");
    MUST(cudaStreamDestroy(stream));
    MUST(cudaFree(data));
}

static void attach(u64 bytes) {
    cudaStream_t stream;
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    u64 *data;
    MUST(cudaMallocManaged(&data, bytes, cudaMemAttachHost));
    fill(data, bytes);
    for (unsigned how : {cudaMemAttachSingle, cudaMemAttachGlobal}) {
        MUST(cudaStreamAttachMemAsync(stream, data, 0, how));
        MUST(cudaStreamSynchronize(stream));
        card_adds(data, bytes, 1, stream);
    }
    MUST(cudaStreamAttachMemAsync(stream, data, 0, cudaMemAttachHost));
    MUST(cudaStreamSynchronize(stream));
    check(data, bytes, 2, "attach");
    MUST(cudaStreamDestroy(stream));
    MUST(cudaFree(data));
}

static void pool(u64 bytes) {
    cudaMemPoolProps wanted = {};
    wanted.allocType = cudaMemAllocationTypeManaged;
    wanted.location = CARD;
    cudaMemPool_t pool;
    MUST(cudaMemPoolCreate(&pool, &wanted));
    const u64 PIECE = 24 * MIB;
    std::vector<u64 *> pieces;
    for (u64 at = 0; at < bytes; at += PIECE) {
        u64 *piece;
        MUST(cudaMallocFromPoolAsync((void **)&piece, PIECE, pool, 0));
        MUST(cudaStreamSynchronize(0));
        fill(piece, PIECE);
        card_adds(piece, PIECE, 1);
        pieces.push_back(piece);
    }
    for (u64 *piece : pieces) {
        check(piece, PIECE, 1, "pool");
        MUST(cudaFreeAsync(piece, 0));
    }
    MUST(cudaStreamSynchronize(0));
    MUST(cudaMemPoolTrimTo(pool, 0));
    MUST(cudaMemPoolDestroy(pool));
}

static void ordinary(u64 bytes) {
    int can = 0;
    MUST(cudaDeviceGetAttribute(&can, cudaDevAttrPageableMemoryAccess, 0));
    printf("the card uses ordinary memory: %d\n", can);
    if (!can) return;
    u64 *data = (u64 *)mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *over = managed(bytes), more = 0;
    fill(data, bytes);
    /* With managed memory on the host, and without. */
    for (int round = 0; round < 2; round++) {
        for (auto set : {cudaMemAdviseSetPreferredLocation, cudaMemAdviseSetReadMostly, cudaMemAdviseSetAccessedBy}) {
            MUST(cudaMemAdvise(data, bytes, set, CARD));
            card_adds(data, bytes, 1);
            check(data, bytes, ++more, "ordinary memory");
        }
        MUST(cudaMemAdvise(data, bytes, cudaMemAdviseUnsetReadMostly, CARD));
        MUST(cudaMemAdvise(data, bytes, cudaMemAdviseUnsetPreferredLocation, CARD));
        move(data, bytes, CARD);
        card_adds(data, bytes, 1);
        move(data, bytes, HOST);
        check(data, bytes, ++more, "ordinary memory, moved");
        if (over) MUST(cudaFree(over)), over = nullptr;
    }
    munmap(data, bytes);
}

static void touch(u64 bytes) {
    MUST(cudaFree(0));
    for (int round = 0; round < 5; round++) {
        double begin = seconds();
        u64 *data = managed(bytes);
        double made = seconds();
        card_adds(data, bytes, 1);
        printf("made %.1f us, touched %.1f us\n", (made - begin) * 1e6, (seconds() - made) * 1e6);
        MUST(cudaFree(data));
    }
}

static void at_random(unsigned seed, u64 steps, u64 most) {
    srand(seed);
    void (*all[])(u64) = {sum, tiles, advice, atomics, batch, attach, pool};
    std::vector<void *> plain;
    for (u64 step = 0; step < steps; step++) {
        u64 bytes = (1 + rand() % (most / MIB)) * MIB;
        int what = rand() % 10;
        void *block;
        if (what < 7) all[what](bytes);
        else if (what == 7 && plain.size()) MUST(cudaFree(plain.back())), plain.pop_back();
        else if (cudaMalloc(&block, bytes / 8) == cudaSuccess) plain.push_back(block);
        else cudaGetLastError();
    }
}

/* What libcuda maps of managed memory goes through here: a kernel hears of it before anybody else, and it may be cut. */
static u64 *box, *left;
static std::atomic<bool> is_told, cuts;
extern "C" void *mmap(void *at, size_t length, int protection, int flags, int file, off_t offset) noexcept {
    void *mapped = (void *)syscall(SYS_mmap, at, length, protection, flags, file, offset);
    if (is_told && mapped != MAP_FAILED && (flags & MAP_SHARED) && offset && (u64)mapped == (u64)offset) {
        is_told = false;
        box[1] = cuts ? length / 2 : length;
        if (cuts) munmap((char *)mapped + length - 2 * MIB, 2 * MIB), munmap((char *)mapped + length / 2, PAGE);
        __atomic_store_n(&box[0], (u64)mapped, __ATOMIC_SEQ_CST);
        /* libcuda reserves the addresses anew: not while the kernel is at work there. */
        if (cuts) return sleep(3), left = (u64 *)mapped, errno = ENOMEM, MAP_FAILED;
    }
    return mapped;
}

/* A kernel waits for the address of a range that comes to be. */
static void wait(u64 bytes) {
    MUST(cudaHostAlloc(&box, PAGE, cudaHostAllocMapped));
    cudaStream_t stream;
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int round = 0; round < (cuts ? 4 : 16); round++) {
        box[0] = 0;
        wait_and_write<<<64, 256, 0, stream>>>(box);
        MUST(cudaGetLastError());
        usleep(20000);
        is_told = true;
        u64 *data;
        cudaError_t error = cudaMallocManaged(&data, bytes);
        if (is_told) __atomic_store_n(&box[1], 0, __ATOMIC_SEQ_CST), __atomic_store_n(&box[0], 1, __ATOMIC_SEQ_CST);
        MUST(cudaDeviceSynchronize());
        if (cuts && left) munmap(left, bytes), left = nullptr, cudaGetLastError();
        else if (error != cudaSuccess) printf("round %d: %s\n", round, cudaGetErrorString(error)), exit(2);
        else MUST(cudaFree(data));
    }
}

static void hold(u64 bytes, u64 lasting) {
    u64 *data = managed(bytes), more = 0;
    fill(data, bytes);
    for (double end = seconds() + lasting; seconds() < end; more++) card_adds(data, bytes, 1);
    check(data, bytes, more, "hold");
    printf("%llu times\n", more);
}

int main(int count, char **arguments) {
    std::string what = count > 1 ? arguments[1] : "";
    auto number = [&](int at) { return at < count ? strtoull(arguments[at], 0, 0) : 0; };
    struct { const char *name; void (*run)(u64); } modes[] = {
        {"sum", sum}, {"tiles", tiles}, {"advice", advice}, {"atomics", atomics}, {"batch", batch}, {"attach", attach},
        {"pool", pool}, {"malloc", ordinary}, {"touch", touch},
    };
    double begin = seconds();
    bool known = true;
    if (what == "random") at_random(number(2), number(3), number(4) * MIB);
    else if (what == "wait" || what == "cut") cuts = what == "cut", wait(number(2) * MIB);
    else if (what == "hold") hold(number(2) * MIB, number(3));
    else {
        known = false;
        for (auto &mode : modes) if (what == mode.name) mode.run(number(2) * MIB), known = true;
    }
    if (!known) return printf("no such part: %s\n", what.c_str()), 1;
    printf("%s: right, %.2f s\n", what.c_str(), seconds() - begin);
    return 0;
}
