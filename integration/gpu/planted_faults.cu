/* A kernel with a fault that one of compute-sanitizer's tools is to find, or with none.
 *
 *   planted_faults memcheck|racecheck|initcheck|synccheck|none
 */
#include <cstdio>
#include <cstring>
#include <cuda_runtime.h>

__global__ void out_of_bounds(int *data) { data[threadIdx.x + 2048] = 1; }

__global__ void race(int *data) {
    __shared__ int shared[32];
    shared[threadIdx.x % 32] = threadIdx.x;
    data[threadIdx.x] = shared[(threadIdx.x + 1) % 32];
}

__global__ void uninitialised(int *data, int *copy) { copy[threadIdx.x] = data[threadIdx.x]; }

__global__ void divergent(int *data) {
    if (threadIdx.x < 16) __syncthreads();
    data[threadIdx.x] = 1;
}

__global__ void good(int *data) { data[threadIdx.x] = 1; }

int main(int count, char **arguments) {
    const char *fault = count > 1 ? arguments[1] : "none";
    int *data, *copy;
    cudaError_t error = cudaMalloc(&data, 4096);
    if (error) {
        printf("cudaMalloc %s\n", cudaGetErrorName(error));
        return 2;
    }
    cudaMalloc(&copy, 4096);
    if (!strcmp(fault, "memcheck")) out_of_bounds<<<1, 64>>>(data);
    else if (!strcmp(fault, "racecheck")) race<<<1, 64>>>(data);
    else if (!strcmp(fault, "initcheck")) uninitialised<<<1, 64>>>(data, copy);
    else if (!strcmp(fault, "synccheck")) divergent<<<1, 32>>>(data);
    else good<<<1, 64>>>(data);
    error = cudaDeviceSynchronize();
    printf("program: %s\n", cudaGetErrorName(error));
    return 0;
}
