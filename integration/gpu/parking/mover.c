/* egpu's copier for a program that runs with attach.c: mover PID. Takes orders by lines on its standard input, answers each with
 * lines and "." on its standard output. gcc -rdynamic. See README.md. */
#include "hook.h"
#include <emmintrin.h>
#include <smmintrin.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include "cuda.h"
#include "rm.h"

enum { PAGE_2M = 2 << 20, MOST_BLOCKS = 4096, MFD_HUGE = 4 };
struct moved { uint32_t client, handle, duplicate; uint64_t size, at; struct buffer window; uint64_t imported; };
static struct moved blocks[MOST_BLOCKS];
static int block_count, old_huge = -1, pages = -1, program_pid, by_import;
static uint64_t pool_size;
static char *pool, *answer;
static FILE *in, *to;
static address range;
static void *stream;

#define VMM(F) F(cuMemAddressReserve, (address *, size_t, size_t, address, unsigned long long)) F(cuMemAddressFree, (address, size_t)) \
    F(cuMemMap, (address, size_t, size_t, uint64_t, unsigned long long)) F(cuMemUnmap, (address, size_t)) F(cuMemRelease, (uint64_t)) \
    F(cuMemSetAccess, (address, size_t, const void *, size_t)) F(cuMemsetD8_v2, (address, unsigned char, size_t))
VMM(DECLARE)

static double cpu(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}
static int huge_pages(int pages) {
    FILE *file = fopen("/proc/sys/vm/nr_hugepages", pages < 0 ? "r" : "w");
    if (!file) return -1;
    if (pages < 0 ? fscanf(file, "%d", &pages) != 1 : fprintf(file, "%d\n", pages) < 0) pages = -1;
    fclose(file);
    return pages;
}
/* An order to the program; 0: it said "no". */
static int ask(const char *order) {
    static size_t room;
    fprintf(to, "%s \n", order), fflush(to);
    if (getline(&answer, &room, in) < 0) { printf("FAILED: the program is gone\n.\n"); fflush(stdout); exit(1); }
    answer[strcspn(answer, "\n")] = 0;
    if (!strncmp(answer, "ok", 2)) return 1;
    printf("FAILED: %s: %s\n", order, answer);
    return 0;
}
static unsigned long long number(char **rest) { return strtoull(*rest, rest, 0); }

static void connect_to(int pid) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int length = snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "egpu-park-%d", pid), one = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(one, (void *)&address, offsetof(struct sockaddr_un, sun_path) + 1 + length)) { printf("FAILED: process %d takes no orders: %s\n", pid, strerror(errno)); exit(1); }
    in = fdopen(one, "r"), to = fdopen(dup(one), "w");
}

/* Addresses that libcuda takes for cuMemAlloc's, with nothing behind them. */
static int make_window(struct moved *block) {
    struct buffer *window = &block->window;
    int before = mapping_count = 0; /* none of the earlier ones is asked for again */
    window->size = block->size;
    if (cuMemAlloc_v2(&window->address, block->size)) return 0;
    for (int i = before; i < mapping_count; i++)
        if (mappings[i].params.base == window->address && mappings[i].params.length == block->size) window->map = mappings[i];
    for (int i = object_count; i-- && !window->video.handle;)
        if (objects[i].client == window->map.params.client && objects[i].handle == window->map.params.memory) window->video = objects[i];
    if (window->video.class != CLASS_VIDEO) return 0;
    struct uvm_unmap params = {.base = window->address, .length = block->size, .status = 0xdead};
    memcpy(params.uuid, window->map.params.gpus[0].uuid, 16);
    quiet = 1;
    return !raw(window->map.file, UVM_UNMAP, &params) && !params.status && !release(&window->video, window->video.parent, window->video.handle);
}

static void prepare(const char *how) {
    double begin = seconds(), took;
    char order[64];
    by_import = !strcmp(how, "import");
    if (!ask("list")) return;
    char *rest = strstr(answer, "ms") + 2;
    block_count = number(&rest), pool_size = number(&rest);
    for (int i = 0; i < block_count; i++) {
        blocks[i] = (struct moved){0};
        blocks[i].client = number(&rest), blocks[i].handle = number(&rest), blocks[i].size = number(&rest), blocks[i].at = number(&rest);
    }
    if (!block_count) { printf("FAILED: nothing can leave\n"); ask("on"); return; }
    old_huge = huge_pages(-1);
    huge_pages(pool_size / PAGE_2M + 8);
    int is_huge = huge_pages(-1) >= (int)(pool_size / PAGE_2M);
    if (!is_huge) printf("  pages of 4 KiB: no huge ones\n");
    pages = memfd_create("host memory", MFD_CLOEXEC | (is_huge ? MFD_HUGE : 0));
    if (pages < 0 || ftruncate(pages, pool_size)) { printf("FAILED: no file of pages: %s\n", strerror(errno)); ask("on"); return; }
    pool = mmap(0, pool_size, PROT_READ | PROT_WRITE, MAP_SHARED, pages, 0);
    begin = seconds();
    for (uint64_t i = 0; i < pool_size; i += 4096) ((volatile char *)pool)[i] = 0;
    took = seconds() - begin, begin = seconds();
    must(cuMemHostRegister_v2(pool, pool_size, 0), "cuMemHostRegister");
    printf("  %d blocks, %.1f MiB; pool: touching %.1f ms, pinning %.1f ms;", block_count, pool_size / 1048576.0, took * 1e3, (seconds() - begin) * 1e3);
    snprintf(order, sizeof order, "pool %d %d", getpid(), pages);
    if (!ask(order)) { ask("on"); return; }
    printf(" program's part: %s", answer + 3);
    if (!ask("share 2")) ask("share 1");
    begin = seconds();
    if (by_import) {
        must(cuMemAddressReserve(&range, pool_size, PAGE_2M, 0, 0), "cuMemAddressReserve");
    } else {
        for (int i = 0; i < block_count; i++)
            if (!make_window(&blocks[i])) { printf("FAILED: no window of %llu bytes\n", (unsigned long long)blocks[i].size); break; }
    }
    if (!stream) must(cuStreamCreate(&stream, 1), "cuStreamCreate");
    printf("; windows %.1f ms\n", (seconds() - begin) * 1e3);
    ask("on");
}

static int take_imported(void) {
    struct { int type, id; int flags; } access = {1, 0, 3}; /* CUmemAccessDesc: the device, read and write */
    if (!ask("export")) return 0;
    char *rest = answer + 2;
    int process = syscall(SYS_pidfd_open, program_pid, 0), code = 0;
    for (int i = 0; i < block_count && !code; i++) {
        int file = syscall(SYS_pidfd_getfd, process, (int)number(&rest), 0);
        if (file < 0) { printf("FAILED: pidfd_getfd: %s\n", strerror(errno)); return 0; }
        if ((code = cuMemImportFromShareableHandle(&blocks[i].imported, (void *)(uintptr_t)file, 1))) printf("FAILED: cuMemImportFromShareableHandle of block %d: %d\n", i, code);
        else if ((code = cuMemMap(range + blocks[i].at, blocks[i].size, 0, blocks[i].imported, 0))) printf("FAILED: cuMemMap of block %d, %llu bytes: %d\n", i, (unsigned long long)blocks[i].size, code);
        else if ((code = cuMemSetAccess(range + blocks[i].at, blocks[i].size, &access, 1))) printf("FAILED: cuMemSetAccess of block %d: %d\n", i, code);
        close(file);
    }
    close(process);
    return !code;
}
static int drop_imported(void) {
    int code = 0;
    for (int i = 0; i < block_count; i++) {
        if (!blocks[i].imported) continue;
        code |= cuMemUnmap(range + blocks[i].at, blocks[i].size), code |= cuMemRelease(blocks[i].imported);
        blocks[i].imported = 0;
    }
    if (code) printf("FAILED: cuMemUnmap, cuMemRelease: %d\n", code);
    return ask("unexport") && !code;
}
static int take(void) {
    if (by_import) return take_imported();
    const struct object *own = &blocks[0].window.video;
    for (int i = 0; i < block_count; i++) {
        struct rm_dup params = {own->client, device_of(own), 0, blocks[i].client, blocks[i].handle, 0, 0xdead};
        int code = raw(own->file, escape(NR_DUP, sizeof params), &params);
        if (code || params.status) { printf("FAILED: no duplicate: %#x\n", params.status); return 0; }
        blocks[i].duplicate = params.object;
        if (uvm_map(&blocks[i].window, params.object, blocks[i].window.address, blocks[i].size, 0)) { printf("FAILED: no mapping in a window\n"); return 0; }
    }
    return 1;
}
static int drop(void) {
    if (by_import) return drop_imported();
    const struct object *own = &blocks[0].window.video;
    for (int i = 0; i < block_count; i++) {
        struct uvm_unmap params = {.base = blocks[i].window.address, .length = blocks[i].size, .status = 0xdead};
        memcpy(params.uuid, blocks[i].window.map.params.gpus[0].uuid, 16);
        if (raw(blocks[i].window.map.file, UVM_UNMAP, &params) || params.status || release(own, device_of(own), blocks[i].duplicate)) { printf("FAILED: a window is not emptied\n"); return 0; }
    }
    return 1;
}
static int copy(int out) {
    for (int i = 0; i < block_count; i++) {
        address place = by_import ? range + blocks[i].at : blocks[i].window.address;
        must(out ? cuMemcpyDtoHAsync_v2(pool + blocks[i].at, place, blocks[i].size, stream) : cuMemcpyHtoDAsync_v2(place, pool + blocks[i].at, blocks[i].size, stream), "cuMemcpyAsync");
    }
    must(cuStreamSynchronize(stream), "copies");
    return 1;
}
/* Steps; each is an order, or one of the above. */
static void steps(const char *names[], int silent) {
    double all = seconds(), copied = 0;
    char text[1024] = "";
    for (int i = 0; names[i]; i++) {
        double begin = seconds();
        const char *name = names[i];
        int good = !strcmp(name, "take") ? take() : !strcmp(name, "drop") ? drop() : !strcmp(name, "copy out") ? copy(1) : !strcmp(name, "copy in") ? copy(0) : ask(name);
        if (!good) { printf("FAILED: at '%s'\n", name); return; }
        begin = seconds() - begin;
        if (!strncmp(name, "copy", 4)) copied = begin;
        sprintf(text + strlen(text), " %s %.1f,", name, begin * 1e3);
    }
    all = seconds() - all;
    if (!silent) printf("  ms:%s together %.1f; copy %.2f GB/s, %.1f MiB\n", text, all * 1e3, pool_size / copied / 1e9, pool_size / 1048576.0);
}
static void out_steps(int silent) { steps((const char *[]){"off", "take", "copy out", "drop", "place", "free", 0}, silent); }
static void in_steps(int silent) { steps((const char *[]){"video", "take", "copy in", "drop", "back", "on", 0}, silent); }

/* A neighbour takes what left, writes over it, and frees it. */
static void neighbour(void) {
    static address all[64];
    uint64_t piece = 1 << 30, left = pool_size;
    int count = 0, code = 0;
    for (; left && count < 64 && !code; count++, left -= left < piece ? left : piece) {
        uint64_t size = left < piece ? left : piece;
        if (!(code = cuMemAlloc_v2(&all[count], size))) cuMemsetD8_v2(all[count], 0x5e, size);
    }
    must(cuCtxSynchronize(), "neighbour");
    for (int i = 0; i < count; i++) if (all[i]) cuMemFree_v2(all[i]), all[i] = 0;
    printf("  a neighbour took and wrote over %.1f MiB: %d\n", (pool_size - left) / 1048576.0, code);
}

/* GP_PUT of all channels, by reads of 8 bytes, or by loads of 64 that the processor may have several of under way. */
static uint32_t puts_now[256], puts_before[256];
static volatile char *userds[256];
static int userd_count;
static void read_plain(void) {
    for (int i = 0; i < userd_count; i++) puts_now[i] = *(volatile uint32_t *)(userds[i] + USERD_GP_PUT);
}
__attribute__((target("sse4.1"))) static void read_streaming(void) {
    __m128i loaded[256];
    _mm_mfence();
    for (int i = 0; i < userd_count; i++) loaded[i] = _mm_stream_load_si128((__m128i *)(userds[i] + (USERD_GP_PUT & ~15)));
    for (int i = 0; i < userd_count; i++) puts_now[i] = _mm_extract_epi32(loaded[i], (USERD_GP_PUT & 15) / 4);
}
static void watch(char *rest) { /* watch MS PERIOD_US all|used plain|streaming */
    struct { uint32_t client, memory, handle; struct cpu_view view; } seen[16];
    double limit = number(&rest) * 1e-3, reading = 0;
    long period = number(&rest);
    int only_used = strstr(rest, "used") != 0, streaming = strstr(rest, "streaming") != 0, known = 0, polls = 0, changed = -1, idle = 0;
    const struct object *own = 0;
    for (int i = 0; i < object_count && !own; i++) if (objects[i].class == CLASS_VIDEO) own = &objects[i];
    if (!ask("userd")) return;
    char *list = strdup(answer), *next = list + 2;
    int count = number(&next);
    userd_count = 0;
    for (int i = 0; i < count && userd_count < 256; i++) {
        uint32_t client = number(&next), memory = number(&next);
        uint64_t offset = number(&next), size = number(&next);
        int at = 0;
        while (at < known && (seen[at].client != client || seen[at].memory != memory)) at++;
        if (at == known) {
            struct rm_dup params = {own->client, device_of(own), 0, client, memory, 0, 0xdead};
            if (known == 16 || raw(own->file, escape(NR_DUP, sizeof params), &params) || params.status) { printf("FAILED: no duplicate of USERD's memory: %#x\n", params.status); break; }
            quiet = 1;
            seen[known].client = client, seen[known].memory = memory, seen[known].handle = params.object;
            seen[known].view = view(own, device_of(own), params.object, size, getenv("CARD_NODE") ? getenv("CARD_NODE") : "/dev/nvidia0");
            if (seen[known++].view.address == MAP_FAILED) { printf("FAILED: no mapping of USERD\n"); break; }
        }
        volatile char *place = (volatile char *)seen[at].view.address + offset;
        if (only_used && *(volatile uint32_t *)(place + USERD_GP_PUT) == 0) { idle++; continue; }
        userds[userd_count++] = place;
    }
    free(list);
    prctl(PR_SET_TIMERSLACK, 1000);
    (streaming ? read_streaming : read_plain)();
    memcpy(puts_before, puts_now, sizeof puts_before);
    printf("  watching %d of %d channels in %d objects, each %ld us\n.\n", userd_count, count, known, period), fflush(stdout);
    double begin = seconds(), spent = cpu(), last = begin, longest = 0;
    while (changed < 0 && seconds() - begin < limit) {
        double read = seconds();
        if (read - last > longest) longest = read - last;
        last = read;
        (streaming ? read_streaming : read_plain)();
        for (int i = 0; i < userd_count; i++) if (puts_now[i] != puts_before[i]) changed = i;
        reading += seconds() - read, polls++;
        if (changed < 0) clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){0, period * 1000}, 0);
    }
    double noticed = seconds();
    spent = cpu() - spent;
    printf("  %s %.6f; %d polls of %d channels (%d never used) %s, %.2f us each, longest rest %.2f ms, processor %.3f %%\n", changed < 0 ? "nothing noticed" : "noticed at", noticed, polls, userd_count, idle,
           streaming ? "by streaming loads" : "one by one", reading / polls * 1e6, longest * 1e3, spent / (noticed - begin) * 100);
    for (int i = 0; i < known; i++) unview(own, &seen[i].view), release(own, device_of(own), seen[i].handle);
}

static void finish(void) {
    if (pool) cuMemHostUnregister(pool), munmap(pool, pool_size), close(pages), pool = 0;
    if (range) cuMemAddressFree(range, pool_size), range = 0;
    for (int i = 0; i < block_count && !by_import; i++) /* a window has no memory that cuMemFree could free */
        blocks[i].window.address = 0;
    if (old_huge >= 0) huge_pages(old_huge), old_huge = -1;
}

int main(int count, char **arguments) {
    static char line[4096];
    if (count != 2) return 2;
    role = "mover", program_pid = atoi(arguments[1]);
    setvbuf(stdout, 0, _IOLBF, 0);
    start_cuda();
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    VMM(FIND)
    load_nvml();
    connect_to(program_pid);
    puts(".");
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (!strcmp(line, "table")) printf("  %s\n", ask("table") ? answer + 3 : answer);
        else if (!strncmp(line, "prepare ", 8)) prepare(line + 8);
        else if (!strcmp(line, "out")) { long long before = settled(), after; out_steps(0); after = settled(); printf("  in use %lld MiB, %lld away: %lld given back\n", before >> 10, after >> 10, (before - after) >> 10); }
        else if (!strcmp(line, "in")) in_steps(0);
        else if (!strcmp(line, "out silently")) out_steps(1);
        else if (!strcmp(line, "in silently")) in_steps(1);
        else if (!strcmp(line, "neighbour")) neighbour();
        else if (!strncmp(line, "watch ", 6)) watch(line + 6);
        else if (!strcmp(line, "finish")) { ask("unpool"); finish(); }
        else if (!strcmp(line, "quit")) break;
        else printf("FAILED: no such order: %s\n", line);
        puts(".");
    }
    finish();
    return 0;
}
