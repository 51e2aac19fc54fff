/* Allocates to the last byte in each way that CUDA 13 has, each in a process of its own, which has to end by itself: a
 * refusal is an error code, never a crash.
 *
 *   nvcc -O2 -arch=native -o last_byte last_byte.cu -lcuda && ./last_byte
 *
 * For a share: outside it fills the card. Prints a line for each way; exit status 1 when one did not end as it should.
 */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <cuda.h>
#include <cuda_runtime.h>

static const size_t MIB = 1 << 20;
/* The host's memory, of which no more than this is taken. */
static const size_t MOST = 6144 * MIB;

static size_t got;
static cudaError_t last;

/* Asks for blocks until one is refused, then for smaller ones. */
template <typename Ask> static void fill(size_t first, size_t least, Ask ask) {
    for (size_t size = first; size >= least; size /= 4)
        while (got < MOST && (last = ask(size)) == cudaSuccess) got += size;
    cudaGetLastError();
}

static cudaError_t of(CUresult result) {
    return result == CUDA_SUCCESS ? cudaSuccess : result == CUDA_ERROR_OUT_OF_MEMORY ? cudaErrorMemoryAllocation : cudaErrorUnknown;
}

static void plain() {
    fill(256 * MIB, 4096, [](size_t size) { void *block; return cudaMalloc(&block, size); });
}

static void managed() {
    fill(1024 * MIB, 4096, [](size_t size) { void *block; return cudaMallocManaged(&block, size); });
}

static void host() {
    fill(1024 * MIB, MIB, [](size_t size) { void *block; return cudaMallocHost(&block, size); });
}

static void from_pool(cudaMemAllocationType type, cudaMemAllocationHandleType exported) {
    cudaMemPoolProps wanted = {};
    wanted.allocType = type;
    wanted.handleTypes = exported;
    wanted.location.type = cudaMemLocationTypeDevice;
    cudaMemPool_t pool;
    if ((last = cudaMemPoolCreate(&pool, &wanted)) != cudaSuccess) return;
    fill(256 * MIB, 4096, [&](size_t size) {
        void *block;
        cudaError_t error = cudaMallocFromPoolAsync(&block, size, pool, 0);
        return error == cudaSuccess ? cudaStreamSynchronize(0) : error;
    });
}
static void pool() { from_pool(cudaMemAllocationTypePinned, cudaMemHandleTypeNone); }
static void exported_pool() { from_pool(cudaMemAllocationTypePinned, cudaMemHandleTypePosixFileDescriptor); }
static void managed_pool() { from_pool(cudaMemAllocationTypeManaged, cudaMemHandleTypeNone); }

/* Physical memory and addresses by themselves. */
static void mapped() {
    CUmemAllocationProp wanted = {};
    wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    fill(256 * MIB, 2 * MIB, [&](size_t size) {
        CUmemGenericAllocationHandle memory;
        CUdeviceptr at;
        CUresult result = cuMemCreate(&memory, size, &wanted, 0);
        if (result != CUDA_SUCCESS) return of(result);
        if ((result = cuMemAddressReserve(&at, size, 0, 0, 0)) != CUDA_SUCCESS) return of(result);
        if ((result = cuMemMap(at, size, 0, memory, 0)) != CUDA_SUCCESS) return of(result);
        CUmemAccessDesc access = {wanted.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        return of(cuMemSetAccess(at, size, &access, 1));
    });
}

static void arrays() {
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float4>();
    fill(256 * MIB, 65536, [&](size_t size) { cudaArray_t array; return cudaMallocArray(&array, &format, 4096, size / 65536); });
}

static void mipmaps() {
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float4>();
    fill(256 * MIB, MIB, [&](size_t size) {
        cudaMipmappedArray_t array;
        return cudaMallocMipmappedArray(&array, &format, make_cudaExtent(4096, size / 65536, 0), 4);
    });
}

/* Memory nodes, and what the upload of a graph takes. */
static void graphs() {
    fill(256 * MIB, 2 * MIB, [](size_t size) {
        cudaGraph_t graph;
        cudaGraphExec_t ready;
        cudaGraphNode_t node;
        cudaMemAllocNodeParams wanted = {};
        wanted.poolProps.allocType = cudaMemAllocationTypePinned;
        wanted.poolProps.location.type = cudaMemLocationTypeDevice;
        wanted.bytesize = size;
        cudaError_t error = cudaGraphCreate(&graph, 0);
        if (error == cudaSuccess) error = cudaGraphAddMemAllocNode(&node, graph, nullptr, 0, &wanted);
        if (error == cudaSuccess) error = cudaGraphInstantiate(&ready, graph, 0);
        if (error == cudaSuccess) error = cudaGraphUpload(ready, 0);
        if (error == cudaSuccess) error = cudaGraphLaunch(ready, 0);
        return error == cudaSuccess ? cudaStreamSynchronize(0) : error;
    });
}

static void streams() {
    fill(MIB, MIB, [](size_t) { cudaStream_t stream; return cudaStreamCreate(&stream); });
}

__global__ void deep(int *out, int depth) {
    volatile int large[4096];
    large[depth % 4096] = depth;
    *out = large[(depth + 1) % 4096];
}

/* What the driver takes by itself for a kernel with much local memory, where there is nothing left. */
static void local_memory() {
    int *out;
    if ((last = cudaMalloc(&out, 4)) != cudaSuccess) return;
    plain();
    deep<<<4096, 1024>>>(out, 5);
    last = cudaGetLastError();
    if (last == cudaSuccess) last = cudaDeviceSynchronize();
}

int main() {
    struct { const char *name; void (*run)(); } ways[] = {
        {"cudaMalloc", plain}, {"cudaMallocManaged", managed}, {"cudaMallocHost", host}, {"pool", pool},
        {"exported pool", exported_pool}, {"managed pool", managed_pool}, {"cuMemCreate", mapped}, {"arrays", arrays},
        {"mipmaps", mipmaps}, {"graphs", graphs}, {"streams", streams}, {"local memory", local_memory},
    };
    int wrong = 0;
    for (auto &way : ways) {
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            last = cudaFree(0);
            way.run();
            printf("%-18s %6zu MiB, then %s\n", way.name, got / MIB, cudaGetErrorString(last));
            fflush(stdout);
            _exit(0);
        }
        int status = 0;
        waitpid(child, &status, 0);
        if (status) printf("%-18s status 0x%x\n", way.name, status), wrong = 1;
    }
    return wrong;
}
