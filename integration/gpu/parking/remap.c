/* Replaces an object of video memory by host memory under a running program: remap SECTION [KIND [MIB]].
 * See README.md for the sections and what each line proves. */
#include "hook.h"
#include "cuda.h"
#include "rm.h"
#include "checks.h"

enum { MIB = 1 << 20, PIECE = 2 * MIB };
static int failures;
#define NEED(condition, what) do { if (!(condition)) { printf("FAILED: %s\n", what); fflush(stdout); _exit(1); } } while (0)

/* cuMemAlloc with an object and a mapping of its own. */
static struct buffer allocate_buffer(uint64_t size) {
    struct buffer buffer = {.size = size};
    int before = mapping_count;
    printf("cuMemAlloc of %llu MiB:\n", (unsigned long long)size / MIB);
    tracing = 1;
    int code = cuMemAlloc_v2(&buffer.address, size);
    tracing = 0;
    must(code, "cuMemAlloc");
    for (int i = before; i < mapping_count; i++)
        if (mappings[i].params.base <= buffer.address && buffer.address + size <= mappings[i].params.base + mappings[i].params.length) buffer.map = mappings[i];
    NEED(buffer.map.params.length, "cuMemAlloc made no mapping of its own: ask for more MiB");
    for (int i = object_count; i-- && !buffer.video.handle;)
        if (objects[i].client == buffer.map.params.client && objects[i].handle == buffer.map.params.memory) buffer.video = objects[i];
    NEED(buffer.video.handle && buffer.video.class == CLASS_VIDEO, "the mapping's object is not known, or not of class 0x40");
    NEED(buffer.map.params.offset == 0, "the mapping does not begin at its object's beginning");
    NEED(buffer.video.params_size == 0 || buffer.video.params_size == sizeof(struct rm_memory), "libcuda's parameters of class 0x40 have another size than driver.h's");
    const struct rm_memory *asked = &buffer.video.asked, *got = &buffer.video.got;
    printf("  %#llx in %#llx+%#llx offset %#llx; object %#x of client %#x below %#x (device %#x): asked flags %#x attr %#x attr2 %#x size %#llx alignment %#llx, got attr %#x attr2 %#x size %#llx\n",
           (unsigned long long)buffer.address, (unsigned long long)buffer.map.params.base, (unsigned long long)buffer.map.params.length, (unsigned long long)buffer.map.params.offset,
           buffer.video.handle, buffer.video.client, buffer.video.parent, device_of(&buffer.video), asked->flags, asked->attr, asked->attr2, (unsigned long long)asked->size,
           (unsigned long long)asked->alignment, got->attr, got->attr2, (unsigned long long)got->size);
    return buffer;
}

static const char *card_node(void) { return getenv("CARD_NODE") ? getenv("CARD_NODE") : "/dev/nvidia0"; }

static uint64_t length_of(const struct buffer *buffer) { return buffer->map.params.length; }

static uint32_t map_whole(const struct buffer *buffer, uint32_t memory) {
    return uvm_map(buffer, memory, buffer->map.params.base, length_of(buffer), buffer->map.params.offset);
}

/* A new class 0x40 like libcuda's, with the handle that libcuda knows. */
static uint32_t video_again(const struct buffer *buffer, uint32_t handle) {
    struct rm_memory params = buffer->video.asked;
    return allocate(&buffer->video, CLASS_VIDEO, buffer->video.parent, &params, handle);
}

static void free_buffer(const struct buffer *buffer, long long before) {
    tracing = 1;
    int code = cuMemFree_v2(buffer->address);
    tracing = 0;
    if (code) failures++;
    long long after = settled();
    printf("  cuMemFree: %d; in use %lld KiB, before cuMemAlloc %lld: %lld left\n", code, after, before, after - before);
}

/* One object to the host and back: class 0x3e of that kind. */
static void section_block(const char *kind, uint64_t size) {
    long long start = settled(), here_before, away;
    struct buffer buffer = allocate_buffer(size);
    const struct object *video = &buffer.video;
    uint32_t device = device_of(video), add = 7, host;
    char *copy = malloc(size);
    memset(copy, 1, size);
    fill(buffer.address, size, add);
    holds(buffer.address, size, add, "in video memory");
    add = rates(buffer.address, size, add, copy, "video memory");
    failures += !holds(buffer.address, size, add, "after the rates");
    here_before = settled();
    must(cuMemcpyDtoH_v2(copy, buffer.address, size), "cuMemcpyDtoH");

    printf("to the host, class 0x3e '%s':\n", kind);
    struct rm_memory params = host_params(video, length_of(&buffer), kind);
    NEED(host = allocate(video, CLASS_SYSTEM, device, &params, 0), "no host memory of this kind");
    struct cpu_view cpu = view(video, device, host, length_of(&buffer), "/dev/nvidiactl");
    NEED(cpu.address != MAP_FAILED, "no CPU mapping of host memory");
    char *data = (char *)cpu.address + (buffer.address - buffer.map.params.base);
    double begin = seconds();
    memcpy(data, copy, size);
    printf("  memcpy into it: %.2f GB/s\n", size / (seconds() - begin) / 1e9);
    NEED(map_whole(&buffer, host) == 0, "UVM does not take the host memory in the object's place");
    long long mapped = used();
    NEED(release(video, video->parent, video->handle) == 0, "the old object is not freed");
    away = settled();
    printf("  in use: %lld KiB, after the mapping %lld, after the free %lld: %lld given back\n", here_before, mapped, away, here_before - away);
    failures += !holds(buffer.address, size, add, "in host memory");
    bump(kernel_bump, buffer.address, size, "bump in host memory"), add++;
    failures += !holds_here(data, size, add, "what a kernel wrote");
    for (uint64_t i = 0; i < size / 4; i++) ((volatile uint32_t *)data)[i]++;
    add++;
    failures += !holds(buffer.address, size, add, "what the processor wrote");
    add = rates(buffer.address, size, add, copy, "host memory");
    failures += !holds_here(data, size, add, "after the rates");

    printf("back to the card:\n");
    memcpy(copy, data, size);
    uint32_t handle = video_again(&buffer, video->handle);
    NEED(handle, "no video memory");
    NEED(map_whole(&buffer, handle) == 0, "UVM does not take the new video memory");
    must(cuMemcpyHtoD_v2(buffer.address, copy, size), "cuMemcpyHtoD");
    unview(video, &cpu);
    failures += release(video, device, host) != 0;
    failures += !holds(buffer.address, size, add, "in video memory again");
    bump(kernel_bump, buffer.address, size, "bump"), add++;
    add = rates(buffer.address, size, add, copy, "video memory again");
    failures += !holds(buffer.address, size, add, "at the end");
    printf("  in use: %lld KiB, at first %lld\n", settled(), here_before);
    free_buffer(&buffer, start);
}

/* One piece of 2 MiB in the middle of an object, by a second mapping over a part of the first. */
static void section_part(const char *kind, uint64_t size) {
    long long start = settled();
    struct buffer buffer = allocate_buffer(size);
    const struct object *video = &buffer.video;
    uint32_t device = device_of(video), add = 3, host;
    uint64_t at = size / 2, in_object = buffer.map.params.offset + (buffer.address - buffer.map.params.base) + at;
    fill(buffer.address, size, add);
    char *copy = malloc(PIECE);
    must(cuMemcpyDtoH_v2(copy, buffer.address + at, PIECE), "cuMemcpyDtoH");
    struct rm_memory params = host_params(video, PIECE, kind);
    NEED(host = allocate(video, CLASS_SYSTEM, device, &params, 0), "no host memory of this kind");
    struct cpu_view cpu = view(video, device, host, PIECE, "/dev/nvidiactl");
    NEED(cpu.address != MAP_FAILED, "no CPU mapping of host memory");
    memcpy(cpu.address, copy, PIECE);
    NEED(uvm_map(&buffer, host, buffer.address + at, PIECE, 0) == 0, "UVM does not map over a part");
    failures += !holds(buffer.address, size, add, "with one piece on the host");
    bump(kernel_bump, buffer.address, size, "bump"), add++;
    failures += !holds(buffer.address, size, add, "after a kernel");
    printf("  first word of the piece, on the host: %#x, as a kernel left it %#x\n", *(volatile uint32_t *)cpu.address, (uint32_t)(at / 4) * 2654435761u + add);
    memcpy(copy, cpu.address, PIECE);
    NEED(uvm_map(&buffer, video->handle, buffer.address + at, PIECE, in_object) == 0, "UVM does not map the part back");
    must(cuMemcpyHtoD_v2(buffer.address + at, copy, PIECE), "cuMemcpyHtoD");
    unview(video, &cpu);
    failures += release(video, device, host) != 0;
    failures += !holds(buffer.address, size, add, "all in video memory again");
    free_buffer(&buffer, start);
}

/* Whether the kernel in flight comes on in what the processor sees. */
static uint32_t moved(volatile uint32_t *word, unsigned microseconds) {
    uint32_t before = *word;
    usleep(microseconds);
    return *word - before;
}

/* A kernel is in the middle of its work: off the card, to the host, on, off, to the card, on. */
static void section_running(const char *kind, uint64_t size) {
    long long start = settled();
    struct buffer buffer = allocate_buffer(size);
    const struct object *video = &buffer.video;
    uint32_t device = device_of(video), add = 11, rounds = 1000, host;
    uint64_t words = size / 4, inside = buffer.address - buffer.map.params.base;
    fill(buffer.address, size, add);
    double begin = seconds();
    launch(kernel_steady, (void *[]){&buffer.address, &words, &rounds}, "steady");
    must(cuCtxSynchronize(), "steady");
    begin = seconds() - begin, add += rounds;
    rounds = 4.0 / begin * rounds;
    printf("  a round takes %.1f us; %u of them now\n", begin * 1e3, rounds);
    long long here_before = settled();
    struct cpu_view bar = view(video, device, video->handle, length_of(&buffer), card_node());
    NEED(bar.address != MAP_FAILED, "no CPU mapping of video memory: give another node, or skip this section");
    volatile uint32_t *word = (volatile uint32_t *)((char *)bar.address + inside);
    launch(kernel_steady, (void *[]){&buffer.address, &words, &rounds}, "steady");
    add += rounds;
    usleep(300000);
    printf("  rounds in 100 ms, on the card: %u\n", moved(word, 100000));

    printf("off, and to the host:\n");
    NEED(channels(video, 1) == 0, "channels are not off");
    printf("  rounds in 100 ms, off: %u (must be 0)\n", moved(word, 100000));
    struct rm_memory params = host_params(video, length_of(&buffer), kind);
    host = allocate(video, CLASS_SYSTEM, device, &params, 0);
    NEED(host, "no host memory");
    struct cpu_view cpu = view(video, device, host, length_of(&buffer), "/dev/nvidiactl");
    NEED(cpu.address != MAP_FAILED, "no CPU mapping of host memory");
    begin = seconds();
    memcpy(cpu.address, bar.address, length_of(&buffer));
    printf("  processor reads %llu MiB through the window: %.0f us\n", (unsigned long long)length_of(&buffer) / MIB, (seconds() - begin) * 1e6);
    NEED(map_whole(&buffer, host) == 0, "UVM does not take the host memory");
    unview(video, &bar);
    NEED(release(video, video->parent, video->handle) == 0, "the old object is not freed");
    long long away = settled();
    printf("  in use: %lld KiB before, %lld now: %lld given back\n", here_before, away, here_before - away);
    word = (volatile uint32_t *)((char *)cpu.address + inside);
    printf("  rounds in 100 ms, off: %u (must be 0)\n", moved(word, 100000));
    NEED(channels(video, 0) == 0, "channels are not on");
    usleep(50000);
    printf("  rounds in 200 ms, on, in host memory: %u (must not be 0)\n", moved(word, 200000));

    printf("off, and back to the card:\n");
    NEED(channels(video, 1) == 0, "channels are not off");
    printf("  rounds in 100 ms, off: %u (must be 0)\n", moved(word, 100000));
    uint32_t handle = video_again(&buffer, video->handle);
    NEED(handle, "no video memory");
    bar = view(video, device, handle, length_of(&buffer), card_node());
    NEED(bar.address != MAP_FAILED, "no CPU mapping of video memory");
    begin = seconds();
    memcpy(bar.address, cpu.address, length_of(&buffer));
    __sync_synchronize();
    printf("  processor writes %llu MiB through the window: %.0f us\n", (unsigned long long)length_of(&buffer) / MIB, (seconds() - begin) * 1e6);
    NEED(map_whole(&buffer, handle) == 0, "UVM does not take the new video memory");
    unview(video, &cpu);
    failures += release(video, device, host) != 0;
    word = (volatile uint32_t *)((char *)bar.address + inside);
    NEED(channels(video, 0) == 0, "channels are not on");
    usleep(50000);
    printf("  rounds in 100 ms, on the card again: %u (must not be 0)\n", moved(word, 100000));
    unview(video, &bar);
    must(cuCtxSynchronize(), "the kernel that ran all along");
    failures += !holds(buffer.address, size, add, "all rounds of that kernel");
    free_buffer(&buffer, start);
}

/* The host memory under libcuda's own handle, so that its cuMemFree works while it is away. */
static void section_dup(const char *kind, uint64_t size) {
    long long start = settled();
    struct buffer buffer = allocate_buffer(size);
    const struct object *video = &buffer.video;
    uint32_t device = device_of(video), add = 5, host;
    fill(buffer.address, size, add);
    char *copy = malloc(size);
    must(cuMemcpyDtoH_v2(copy, buffer.address, size), "cuMemcpyDtoH");
    struct rm_memory params = host_params(video, length_of(&buffer), kind);
    NEED(host = allocate(video, CLASS_SYSTEM, device, &params, 0), "no host memory");
    NEED(map_whole(&buffer, host) == 0, "UVM does not take the host memory");
    must(cuMemcpyHtoD_v2(buffer.address, copy, size), "cuMemcpyHtoD into host memory");
    NEED(release(video, video->parent, video->handle) == 0, "the old object is not freed");
    NEED(duplicate(video, device, host, video->handle) == video->handle, "no duplicate with libcuda's handle");
    failures += release(video, device, host) != 0;
    failures += !holds(buffer.address, size, add, "in host memory, by a duplicate's handle");
    free_buffer(&buffer, start);
}

/* Pages of this process' own (class 0x71) instead of class 0x3e. */
static void section_own(const char *kind, uint64_t size) {
    long long start = settled();
    struct buffer buffer = allocate_buffer(size);
    const struct object *video = &buffer.video;
    uint32_t device = device_of(video), add = 9;
    void *page = mmap(0, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fill(buffer.address, size, add);
    must(cuMemHostRegister_v2(page, MIB, 0), "cuMemHostRegister");
    NEED(os_descriptor_file >= 0, "libcuda made no class 0x71");
    printf("  libcuda's class %#x: flags %#x, below %#x, on file %d, fd %d, status %#x\n", last_os_descriptor.class, last_os_descriptor.flags, last_os_descriptor.parent, os_descriptor_file,
           last_os_descriptor.fd, last_os_descriptor.status);
    uint64_t length = length_of(&buffer);
    char *space = mmap(0, length + PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *own = (char *)(((uintptr_t)space + PIECE - 1) / PIECE * PIECE);
    if (!strcmp(kind, "huge")) madvise(own, length, MADV_HUGEPAGE);
    char *data = own + (buffer.address - buffer.map.params.base);
    must(cuMemcpyDtoH_v2(data, buffer.address, size), "cuMemcpyDtoH");
    struct rm_alloc_memory alloc = last_os_descriptor;
    alloc.parent = device, alloc.object = 0xe9000071, alloc.memory = (uintptr_t)own, alloc.limit = length - 1, alloc.status = 0xdead;
    double begin = seconds();
    int code = raw(os_descriptor_file, escape(NR_ALLOC_MEMORY, sizeof alloc), &alloc);
    printf("  class 0x71 of own pages: %d, status %#x, handle %#x; %.0f us\n", code, alloc.status, alloc.object, (seconds() - begin) * 1e6);
    NEED(!code && !alloc.status, "no class 0x71");
    NEED(map_whole(&buffer, alloc.object) == 0, "UVM does not take own pages");
    NEED(release(video, video->parent, video->handle) == 0, "the old object is not freed");
    printf("  in use: %lld KiB\n", settled());
    failures += !holds(buffer.address, size, add, "in own pages");
    bump(kernel_bump, buffer.address, size, "bump in own pages"), add++;
    failures += !holds_here(data, size, add, "what a kernel wrote into own pages");
    char *copy = malloc(size);
    memset(copy, 1, size);
    add = rates(buffer.address, size, add, copy, "own pages");
    memcpy(copy, data, size);
    NEED(video_again(&buffer, video->handle), "no video memory");
    NEED(map_whole(&buffer, video->handle) == 0, "UVM does not take the new video memory");
    must(cuMemcpyHtoD_v2(buffer.address, copy, size), "cuMemcpyHtoD");
    failures += release(video, device, alloc.object) != 0;
    failures += !holds(buffer.address, size, add, "in video memory again");
    free_buffer(&buffer, start);
}

/* Copies by the card: the other object is mapped at a second address, and a kernel copies. */
static void section_alias(const char *kind, uint64_t size) {
    long long start = settled();
    struct buffer buffer = allocate_buffer(size);
    const struct object *video = &buffer.video;
    uint32_t device = device_of(video), add = 13, host;
    uint64_t length = length_of(&buffer), quads = length / 16;
    void *reserved = mmap(0, length + PIECE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    address base = buffer.map.params.base, second = ((uintptr_t)reserved + PIECE - 1) / PIECE * PIECE;
    fill(buffer.address, size, add);
    struct rm_memory params = host_params(video, length, kind);
    NEED(host = allocate(video, CLASS_SYSTEM, device, &params, 0), "no host memory");
    NEED(uvm_range(&buffer, UVM_CREATE_EXTERNAL, second, length) == 0, "no second range");
    NEED(uvm_map(&buffer, host, second, length, 0) == 0, "no second mapping");
    double begin = seconds();
    launch(kernel_copy, (void *[]){&second, &base, &quads}, "copy");
    must(cuCtxSynchronize(), "a kernel copies to the host");
    printf("  a kernel copies to the host: %.2f GB/s\n", length / (seconds() - begin) / 1e9);
    NEED(map_whole(&buffer, host) == 0, "UVM does not take the host memory at both addresses");
    NEED(release(video, video->parent, video->handle) == 0, "the old object is not freed");
    failures += !holds(buffer.address, size, add, "in host memory");
    bump(kernel_bump, buffer.address, size, "bump"), add++;
    NEED(video_again(&buffer, video->handle), "no video memory");
    NEED(uvm_map(&buffer, video->handle, second, length, buffer.map.params.offset) == 0, "no second mapping of video memory");
    begin = seconds();
    launch(kernel_copy, (void *[]){&second, &base, &quads}, "copy");
    must(cuCtxSynchronize(), "a kernel copies to the card");
    printf("  a kernel copies to the card: %.2f GB/s\n", length / (seconds() - begin) / 1e9);
    NEED(map_whole(&buffer, video->handle) == 0, "UVM does not take the new video memory");
    failures += uvm_range(&buffer, UVM_FREE_RANGE, second, length) != 0;
    failures += release(video, device, host) != 0;
    failures += !holds(buffer.address, size, add, "in video memory again");
    free_buffer(&buffer, start);
}

/* What a failed mapping leaves: by the source nothing, as the old one is unmapped first. Ends the context. */
static void section_fault(const char *kind, uint64_t size) {
    struct buffer buffer = allocate_buffer(size);
    uint64_t words = size / 4;
    (void)kind;
    fill(buffer.address, size, 1);
    printf("  a mapping of an object that is not there: status %#x\n", map_whole(&buffer, 0xe9ffffff));
    if (getenv("FAULT_REPAIR")) {
        NEED(map_whole(&buffer, buffer.video.handle) == 0, "UVM does not take the object again");
        failures += !holds(buffer.address, size, 1, "mapped again after a failed mapping");
        return;
    }
    cuLaunchKernel(kernel_bump, BLOCKS, 1, 1, THREADS, 1, 1, 0, 0, (void *[]){&buffer.address, &words}, 0);
    int code = cuCtxSynchronize();
    printf("  a kernel there afterwards: %d (700: nothing was mapped any more; 0: the old mapping stayed)\n", code);
}

/* The processor's speed through the card's window, for a mediator without a channel of its own. */
static void section_window(const char *kind, uint64_t size) {
    struct buffer buffer = allocate_buffer(size);
    struct cpu_view bar = view(&buffer.video, device_of(&buffer.video), buffer.video.handle, length_of(&buffer), card_node());
    (void)kind;
    NEED(bar.address != MAP_FAILED, "no CPU mapping of video memory");
    char *here = malloc(size);
    memset(here, 1, size);
    fill(buffer.address, size, 21);
    double begin = seconds();
    memcpy(here, (char *)bar.address + (buffer.address - buffer.map.params.base), size);
    printf("  read through the window, memcpy: %.3f GB/s\n", size / (seconds() - begin) / 1e9);
    failures += !holds_here(here, size, 21, "read through the window");
    begin = seconds();
    typedef long long quad __attribute__((vector_size(16)));
    quad *to = (quad *)here, *from = (quad *)((char *)bar.address + (buffer.address - buffer.map.params.base));
    for (uint64_t i = 0; i < size / 16; i += 4) {
        quad a, b, c, d;
        __asm__ volatile("movntdqa (%4), %0; movntdqa 16(%4), %1; movntdqa 32(%4), %2; movntdqa 48(%4), %3" : "=&x"(a), "=&x"(b), "=&x"(c), "=&x"(d) : "r"(from + i) : "memory");
        to[i] = a, to[i + 1] = b, to[i + 2] = c, to[i + 3] = d;
    }
    printf("  read through the window, streaming loads: %.3f GB/s\n", size / (seconds() - begin) / 1e9);
    failures += !holds_here(here, size, 21, "read by streaming loads");
    for (uint64_t i = 0; i < size / 4; i++) ((uint32_t *)here)[i]++;
    begin = seconds();
    memcpy(from, here, size);
    __sync_synchronize();
    printf("  written through the window: %.3f GB/s\n", size / (seconds() - begin) / 1e9);
    failures += !holds(buffer.address, size, 22, "written through the window");
    unview(&buffer.video, &bar);
}

static const struct { const char *name; void (*run)(const char *, uint64_t); } sections[] = {
    {"block", section_block}, {"part", section_part}, {"running", section_running}, {"dup", section_dup},
    {"own", section_own}, {"alias", section_alias}, {"fault", section_fault}, {"window", section_window},
};

int main(int count, char **arguments) {
    const char *name = count > 1 ? arguments[1] : "", *kind = count > 2 ? arguments[2] : "4k";
    uint64_t size = (uint64_t)(count > 3 ? atoi(arguments[3]) : 2) * MIB;
    setvbuf(stdout, 0, _IOLBF, 0);
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++) {
        if (strcmp(name, sections[i].name)) continue;
        printf("==== %s %s %llu MiB\n", name, kind, (unsigned long long)size / MIB);
        load_nvml();
        start_cuda();
        sections[i].run(kind, size);
        printf("%s: %s %s %llu MiB, %d failures\n", failures ? "FAILED" : "PASSED", name, kind, (unsigned long long)size / MIB, failures);
        fflush(stdout);
        _exit(failures != 0);
    }
    printf("remap block|part|running|dup|own|alias|fault|window [4k|default|big|huge|contiguous [MIB]]\n");
    return 2;
}
