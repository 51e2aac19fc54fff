/* Memory that another card, or another handle, may use; prints "fine" at its end.
 *
 *   memory_pools access    a pool of the first card that the second may use (two cards)
 *   memory_pools export    a pool that is exported to a file, and imported again (one card)
 *   memory_pools big       a block of 600 MiB that another card writes to (two cards)
 */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>

static void must(cudaError_t error, const char *call) {
    if (error == cudaSuccess) return;
    printf("%s -> %d %s: %s\n", call, error, cudaGetErrorName(error), cudaGetErrorString(error));
    exit(1);
}

#define MUST(call) must(call, #call)

__global__ void add(int *data, int count) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < count) data[index] += 1;
}

static void expect_one(const int *data) {
    int value = 0;
    MUST(cudaMemcpy(&value, data, 4, cudaMemcpyDeviceToHost));
    printf("the kernel wrote %d\n", value);
    if (value != 1) exit(1);
}

static void use_from_peer() {
    cudaMemPool_t pool;
    MUST(cudaDeviceGetDefaultMemPool(&pool, 0));
    cudaMemAccessDesc peer = {};
    peer.location.type = cudaMemLocationTypeDevice;
    peer.location.id = 1;
    peer.flags = cudaMemAccessFlagsProtReadWrite;
    MUST(cudaMemPoolSetAccess(pool, &peer, 1));
    cudaStream_t stream;
    MUST(cudaSetDevice(0));
    MUST(cudaStreamCreate(&stream));
    for (size_t mib = 256; mib <= 1024; mib *= 2) {
        int *data;
        MUST(cudaMallocAsync(&data, mib << 20, stream));
        MUST(cudaMemsetAsync(data, 0, mib << 20, stream));
        MUST(cudaStreamSynchronize(stream));
        MUST(cudaSetDevice(1));
        add<<<1024, 256>>>(data, 1024 * 256);
        MUST(cudaDeviceSynchronize());
        expect_one(data);
        MUST(cudaSetDevice(0));
        MUST(cudaFreeAsync(data, stream));
        MUST(cudaStreamSynchronize(stream));
        MUST(cudaMemPoolTrimTo(pool, 0));
    }
}

static void share() {
    cudaMemPoolProps wanted = {};
    wanted.allocType = cudaMemAllocationTypePinned;
    wanted.handleTypes = cudaMemHandleTypePosixFileDescriptor;
    wanted.location.type = cudaMemLocationTypeDevice;
    cudaMemPool_t pool, imported;
    MUST(cudaMemPoolCreate(&pool, &wanted));
    cudaMemAllocationHandleType type = cudaMemHandleTypePosixFileDescriptor;
    int file = -1;
    MUST(cudaMemPoolExportToShareableHandle(&file, pool, type, 0));
    int *data, *seen;
    MUST(cudaMallocFromPoolAsync((void **)&data, 64 << 20, pool, 0));
    MUST(cudaMemset(data, 0, 64 << 20));
    cudaMemPoolPtrExportData handle;
    MUST(cudaMemPoolExportPointer(&handle, data));
    MUST(cudaMemPoolImportFromShareableHandle(&imported, (void *)(long)file, type, 0));
    MUST(cudaMemPoolImportPointer((void **)&seen, imported, &handle));
    add<<<64, 256>>>(seen, 64 * 256);
    MUST(cudaDeviceSynchronize());
    expect_one(data);
}

static void big() {
    int can = 0, *data;
    MUST(cudaDeviceCanAccessPeer(&can, 1, 0));
    printf("peer access %d\n", can);
    MUST(cudaSetDevice(0));
    MUST(cudaMalloc(&data, (size_t)600 << 20));
    MUST(cudaMemset(data, 0, 4096));
    MUST(cudaDeviceSynchronize());
    MUST(cudaSetDevice(1));
    MUST(cudaDeviceEnablePeerAccess(0, 0));
    add<<<1, 256>>>(data, 256);
    MUST(cudaDeviceSynchronize());
    expect_one(data);
}

int main(int count, char **arguments) {
    const char *what = count > 1 ? arguments[1] : "";
    if (!strcmp(what, "access")) use_from_peer();
    else if (!strcmp(what, "export")) share();
    else if (!strcmp(what, "big")) big();
    else return 1;
    puts("fine");
    return 0;
}
