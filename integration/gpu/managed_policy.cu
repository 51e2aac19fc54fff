/* What managed memory takes of a card, by NVML, where its preferred location is the host; outside
 * egpu.
 *
 *   nvcc -O2 -arch=native -o managed_policy managed_policy.cu -ldl -lcuda && ./managed_policy
 *   ./managed_policy later      from the kernel that waits for an address on
 *   ./managed_policy limited    GPU faults in a cgroup whose memory is used up (started by itself)
 *
 * It touches 24 GiB of managed memory at most, all of it host memory, and fills the card once with
 * plain allocations.
 */
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fstream>
#include <string>
#include <unistd.h>
#include <vector>

#include <cuda.h>
#include <cuda_runtime.h>

typedef unsigned long long u64;
static const u64 KIB = 1 << 10, MIB = 1 << 20, GIB = 1 << 30;

#define MUST(call) must(call, #call, __LINE__)
static void must(cudaError_t error, const char *call, int line) {
    if (error == cudaSuccess) return;
    printf("line %d: %s: %s\n", line, call, cudaGetErrorString(error));
    exit(1);
}

static int (*memory_info)(void *, u64 *);
static void *device;
static double base_mib;

static void open_nvml() {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    ((int (*)())dlsym(library, "nvmlInit_v2"))();
    ((int (*)(unsigned, void **))dlsym(library, "nvmlDeviceGetHandleByIndex_v2"))(0, &device);
    memory_info = (int (*)(void *, u64 *))dlsym(library, "nvmlDeviceGetMemoryInfo");
}

static double used_mib() {
    u64 total_free_used[3];
    memory_info(device, total_free_used);
    return total_free_used[2] / 1048576.0;
}

static double seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static std::string own_cgroup() {
    std::ifstream file("/proc/self/cgroup");
    std::string line, path;
    while (std::getline(file, line))
        if (line.rfind("0::", 0) == 0) path = line.substr(3);
    return "/sys/fs/cgroup" + (path == "/" ? "" : path);
}

static double cgroup_mib() {
    std::ifstream file(own_cgroup() + "/memory.current");
    double bytes = -1;
    file >> bytes;
    return bytes / 1048576;
}

static void settle() {
    MUST(cudaDeviceSynchronize());
    usleep(300000);
    base_mib = used_mib();
}

/* Does something, and says what it took. */
template <typename Action> static void say(const char *what, Action action) {
    double begin = seconds();
    action();
    double took = seconds() - begin;
    printf("%-60s card %+8.1f MiB  cgroup %9.1f MiB  %9.2f ms\n", what, used_mib() - base_mib, cgroup_mib(), took * 1e3);
    fflush(stdout);
}

__global__ void write(u64 *data, u64 count, u64 stride, u64 value) {
    u64 first = blockIdx.x * (u64)blockDim.x + threadIdx.x, all = (u64)gridDim.x * blockDim.x;
    for (u64 i = first * stride; i < count; i += all * stride) data[i] = value + i;
}

__global__ void read(const u64 *data, u64 count, u64 stride, u64 *sum) {
    u64 first = blockIdx.x * (u64)blockDim.x + threadIdx.x, all = (u64)gridDim.x * blockDim.x, own = 0;
    for (u64 i = first * stride; i < count; i += all * stride) own += data[i];
    atomicAdd(sum, own);
}

/* Waits for an address, then writes to each page of 4 KiB there. */
__global__ void wait_and_write(volatile u64 *box) {
    u64 address, first = blockIdx.x * (u64)blockDim.x + threadIdx.x, all = (u64)gridDim.x * blockDim.x;
    while (!(address = box[0])) {}
    for (u64 i = first * 512; i < box[1] / 8; i += all * 512) ((volatile u64 *)address)[i] = i;
}

static u64 *sum;
static cudaMemLocation on(cudaMemLocationType type) {
    cudaMemLocation location = {};
    location.type = type;
    return location;
}
static const cudaMemLocation HOST = on(cudaMemLocationTypeHost), CARD = on(cudaMemLocationTypeDevice);

static u64 *managed(u64 bytes) {
    u64 *data;
    MUST(cudaMallocManaged(&data, bytes));
    return data;
}
static void card_writes(u64 *data, u64 bytes, u64 step, u64 value) {
    write<<<256, 256>>>(data, bytes / 8, step / 8, value);
    MUST(cudaGetLastError());
    MUST(cudaDeviceSynchronize());
}
static void card_reads(u64 *data, u64 bytes, u64 step) {
    read<<<256, 256>>>(data, bytes / 8, step / 8, sum);
    MUST(cudaGetLastError());
    MUST(cudaDeviceSynchronize());
}
static void processor_writes(u64 *data, u64 bytes) {
    for (u64 i = 0; i < bytes / 8; i += 512) data[i] = i;
}
static void advise(u64 *data, u64 bytes, cudaMemoryAdvise advice, cudaMemLocation location = HOST) {
    MUST(cudaMemAdvise(data, bytes, advice, location));
}
static void move(u64 *data, u64 bytes, cudaMemLocation location) {
    MUST(cudaMemPrefetchAsync(data, bytes, location, 0, 0));
    MUST(cudaDeviceSynchronize());
}

static void faults_and_advice(bool host) {
    printf("--- 1 GiB, %s\n", host ? "preferred location: host" : "no advice");
    u64 *data = managed(GIB);
    settle();
    if (host) say("advice", [&] { advise(data, GIB, cudaMemAdviseSetPreferredLocation); });
    say("kernel writes all", [&] { card_writes(data, GIB, 8, 1); });
    say("again", [&] { card_writes(data, GIB, 8, 2); });
    say("50 times, 8 of 64 bytes (access counters)", [&] { for (int i = 0; i < 50; i++) card_writes(data, GIB, 64, 3); });
    say("20 times card and processor in turn, 64 MiB (thrashing)", [&] {
        for (int i = 0; i < 20; i++) card_writes(data, 64 * MIB, 4 * KIB, 4), processor_writes(data, 64 * MIB);
    });
    say("accessed by the card, kernel writes all", [&] {
        advise(data, GIB, cudaMemAdviseSetAccessedBy, CARD);
        card_writes(data, GIB, 8, 5);
    });
    say("read-mostly, kernel reads all", [&] {
        advise(data, GIB, cudaMemAdviseSetReadMostly);
        card_reads(data, GIB, 8);
    });
    say("not read-mostly any more", [&] { advise(data, GIB, cudaMemAdviseUnsetReadMostly); });
    say("moved to the host", [&] { move(data, GIB, HOST); });
    say("processor writes each page", [&] { processor_writes(data, GIB); });
    say("free", [&] { MUST(cudaFree(data)); });
}

static void moves() {
    printf("--- 1 GiB that a kernel has brought onto the card\n");
    u64 *data = managed(GIB);
    settle();
    card_writes(data, GIB, 8, 1);
    say("preferred location: host", [&] { advise(data, GIB, cudaMemAdviseSetPreferredLocation); });
    say("kernel writes all", [&] { card_writes(data, GIB, 8, 2); });
    say("moved to the host", [&] { move(data, GIB, HOST); });
    say("kernel writes all", [&] { card_writes(data, GIB, 8, 3); });
    say("moved to the card", [&] { move(data, GIB, CARD); });
    say("moved to the host", [&] { move(data, GIB, HOST); });
    MUST(cudaFree(data));
    printf("--- the second half of 1 GiB preferred on the host\n");
    data = managed(GIB);
    settle();
    advise(data + GIB / 16, GIB / 2, cudaMemAdviseSetPreferredLocation);
    say("kernel writes all", [&] { card_writes(data, GIB, 8, 1); });
    MUST(cudaFree(data));
}

static void page_tables() {
    for (int processor_first = 0; processor_first < 2; processor_first++) {
        printf("--- page tables: 24 GiB on the host, first touched by the %s\n", processor_first ? "processor" : "card");
        u64 *data = managed(24 * GIB);
        settle();
        say("advice", [&] { advise(data, 24 * GIB, cudaMemAdviseSetPreferredLocation); });
        if (processor_first) say("processor writes each page", [&] { processor_writes(data, 24 * GIB); });
        say("kernel writes 8 bytes of each 4 KiB", [&] { card_writes(data, 24 * GIB, 4 * KIB, 1); });
        say("free", [&] { MUST(cudaFree(data)); });
    }
}

/* What a kernel gains that waits for an address, until advice comes. `busy`: faults of it are being
 * handled already. */
static void window(bool busy) {
    printf("--- a kernel waits for the address of 4 GiB; advice comes later%s\n", busy ? "; it has faults all the time" : "");
    u64 *box, *other = managed(2 * GIB);
    MUST(cudaHostAlloc(&box, 4096, cudaHostAllocMapped));
    cudaStream_t streams[2];
    for (cudaStream_t &stream : streams) MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int delay_us : {0, 0, 0, 20, 50, 100, 200, 500, 1000, 5000}) {
        processor_writes(other, 2 * GIB);
        box[0] = 0, box[1] = 4 * GIB;
        wait_and_write<<<64, 256, 0, streams[0]>>>(box);
        MUST(cudaGetLastError());
        usleep(100000);
        double before = used_mib();
        if (busy) write<<<32, 256, 0, streams[1]>>>(other, 2 * GIB / 8, 512, 1), usleep(3000);
        u64 *data = managed(4 * GIB);
        double begin = seconds();
        __atomic_store_n(&box[0], (u64)data, __ATOMIC_SEQ_CST);
        while ((seconds() - begin) * 1e6 < delay_us) {}
        double asked = seconds() - begin;
        advise(data, 4 * GIB, cudaMemAdviseSetPreferredLocation);
        double advised = seconds() - begin;
        MUST(cudaDeviceSynchronize());
        printf("advice asked for at %7.0f us, in force by %7.0f us: %8.1f MiB on the card%s\n", asked * 1e6, advised * 1e6,
               used_mib() - before, busy ? " with the 2 GiB of the faults, if they were not there before" : "");
        fflush(stdout);
        MUST(cudaFree(data));
        usleep(200000);
    }
    MUST(cudaFree(other));
}

/* Whether a plain allocation gets what managed memory has left on the card. */
static void left_behind() {
    printf("--- 8 GiB that were on the card and were moved to the host; the card filled by plain allocations\n");
    u64 *data = managed(8 * GIB);
    settle();
    say("kernel writes all", [&] { card_writes(data, 8 * GIB, 4 * KIB, 1); });
    say("moved to the host", [&] { move(data, 8 * GIB, HOST); });
    size_t free, total;
    MUST(cudaMemGetInfo(&free, &total));
    printf("free by CUDA: %zu MiB\n", free >> 20);
    std::vector<void *> blocks;
    say("as much as can be had in blocks of 512 MiB", [&] {
        void *block;
        while (cudaMalloc(&block, 512 * MIB) == cudaSuccess) blocks.push_back(block);
        cudaGetLastError();
    });
    printf("had: %zu MiB\n", blocks.size() * 512);
    for (void *block : blocks) MUST(cudaFree(block));
    say("given back", [&] {});
    MUST(cudaFree(data));
}

static void reserve() {
    printf("--- 120 GiB reserved, untouched\n");
    settle();
    u64 *data;
    say("cudaMallocManaged", [&] { data = managed(120 * GIB); });
    say("preferred location: host", [&] { advise(data, 120 * GIB, cudaMemAdviseSetPreferredLocation); });
    say("kernel writes 8 bytes of each 64 MiB", [&] { card_writes(data, 120 * GIB, 64 * MIB, 1); });
    say("free", [&] { MUST(cudaFree(data)); });
}

static int limited() {
    u64 *data = managed(2 * GIB);
    advise(data, 2 * GIB, cudaMemAdviseSetPreferredLocation);
    std::string limit = own_cgroup() + "/memory.max";
    settle();
    printf("cgroup %.0f MiB, limit 1024 MiB more; a kernel writes 2 GiB on the host\n", cgroup_mib());
    { std::ofstream(limit) << (u64)((cgroup_mib() + 1024) * 1048576); }
    fflush(stdout);
    write<<<256, 256>>>(data, 2 * GIB / 8, 512, 1);
    cudaError_t error = cudaDeviceSynchronize();
    printf("the kernel: %s; cgroup %.0f MiB\n", cudaGetErrorString(error), cgroup_mib());
    return 0;
}

int main(int count, char **arguments) {
    open_nvml();
    MUST(cudaSetDevice(0));
    MUST(cudaMalloc(&sum, 8));
    if (count > 1 && !strcmp(arguments[1], "limited")) return limited();
    card_writes(sum, 8, 8, 0);
    if (count == 1) {
        faults_and_advice(false);
        faults_and_advice(true);
        moves();
        page_tables();
    }
    window(false);
    window(true);
    left_behind();
    reserve();
    std::string group = own_cgroup() + "/managed_policy", command = "mkdir -p " + group + " && echo $$ > " + group + "/cgroup.procs && exec " + arguments[0] + " limited";
    printf("--- in a cgroup with a limit\n");
    fflush(stdout);
    int status = system(command.c_str());
    printf("exit status 0x%x\n", status);
    printf("done\n");
}
