/* The mediator's part for any program, by LD_PRELOAD: notes what its libcuda asks the driver for, and takes orders on the
 * abstract socket "egpu-park-PID" (mover.c gives them). gcc -shared -fPIC. See README.md. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include "driver.h"

enum { MOST_OBJECTS = 1 << 16, MOST_MAPS = 1 << 16, PAGE_2M = 2 << 20, NR_MAP_DMA = 0x57, NR_REGISTER_FD = 0xc9, CLASS_FABRIC = 0xf8 };
enum { CONTROL_EXPORT_OBJECTS = 0x3d0a };
struct object { int file, live; uint32_t client, parent, handle, class, params_size, userd; uint64_t userd_offset; struct rm_memory asked, got; int views, dma, dups, exports, fabric, of_channel; };
struct mapping { int file, live; uint64_t base, length, offset, count; uint32_t client, memory; int rm_file; struct uvm_attributes gpu; };
struct range { int file, live; uint64_t base, length; };
struct block { struct object *object; uint64_t size, at; uint32_t host; int exported; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the tables; held while the channels are off */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct object *objects;
static struct mapping *maps;
static struct range *ranges;
static int object_count, map_count, range_count, calls;
static struct block blocks[4096];
static int block_count;
static char *pool;
static uint64_t pool_size;

static double seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}
static unsigned long escape(unsigned number, size_t size) { return _IOC(_IOC_READ | _IOC_WRITE, 'F', number, size); }
static int raw(int file, unsigned long request, void *argument) { return syscall(SYS_ioctl, file, request, argument); }

static struct object *find(uint32_t client, uint32_t handle) {
    for (int i = object_count; i--;)
        if (objects[i].live && objects[i].client == client && objects[i].handle == handle) return &objects[i];
    return 0;
}
static void note(int file, uint32_t client, uint32_t parent, uint32_t handle, uint32_t class) {
    int at = 0;
    while (at < object_count && objects[at].live) at++;
    if (at == MOST_OBJECTS) return;
    if (at == object_count) object_count++;
    objects[at] = (struct object){.file = file, .live = 1, .client = client, .parent = parent, .handle = handle, .class = class};
}
static void forget(uint32_t client, uint32_t handle) {
    for (int i = 0; i < object_count; i++) {
        if (!objects[i].live || objects[i].client != client) continue;
        if (objects[i].handle == handle || handle == client) objects[i].live = 0;
        else if (objects[i].parent == handle) forget(client, objects[i].handle);
    }
}
static void mark(uint32_t client, uint32_t handle, size_t field) {
    struct object *object = find(client, handle);
    if (object) ++*(int *)((char *)object + field);
}
#define MARK(client, handle, field) mark(client, handle, offsetof(struct object, field))

/* Part of a mapping goes: what is left of it stays. */
static void cut(int file, uint64_t base, uint64_t length) {
    uint64_t end = base + length;
    for (int i = 0, count = map_count; i < count; i++) {
        struct mapping *map = &maps[i], rest;
        uint64_t last = map->base + map->length;
        if (!map->live || map->file != file || last <= base || end <= map->base) continue;
        rest = *map;
        if (end < last && map_count < MOST_MAPS) rest.offset += end - rest.base, rest.length = last - end, rest.base = end, maps[map_count++] = rest;
        if (map->base < base) map->length = base - map->base;
        else map->live = 0;
    }
}
static void note_map(int file, const struct uvm_map *params) {
    int at = 0;
    cut(file, params->base, params->length);
    while (at < map_count && maps[at].live) at++;
    if (at == MOST_MAPS) return;
    if (at == map_count) map_count++;
    maps[at] = (struct mapping){file, 1, params->base, params->length, params->offset, params->gpu_count, params->client, params->memory, params->rm_file, params->gpus[0]};
}

static void note_alloc(int file, const struct rm_alloc *alloc, const struct rm_memory *asked) {
    const char *params = (const char *)(uintptr_t)alloc->params;
    uint32_t word;
    if (alloc->status) return;
    forget(alloc->client, alloc->object);
    note(file, alloc->client, alloc->parent, alloc->object, alloc->class);
    struct object *object = find(alloc->client, alloc->object);
    if (!object) return;
    object->params_size = alloc->params_size;
    if (alloc->class == CLASS_VIDEO || alloc->class == CLASS_SYSTEM) object->asked = *asked, memcpy(&object->got, params, sizeof object->got);
    if ((alloc->class & 0xff) == 0x6f && params) {
        memcpy(&object->userd, params + CHANNEL_USERD_MEMORY, 4), memcpy(&object->userd_offset, params + CHANNEL_USERD_OFFSET, 8);
        for (int at = 0; at < 64; at += 4) memcpy(&word, params + at, 4), MARK(alloc->client, word, of_channel); /* notifier, buffer, USERD */
    }
    if (alloc->class == CLASS_FABRIC && params) memcpy(&word, params + 40, 4), MARK(alloc->client, word, fabric);
}

static int alloc(int file, unsigned long request, struct rm_alloc *params) {
    struct rm_memory asked = {0};
    if (params->class == CLASS_THIRD_PARTY_P2P) { /* as egpu does */
        params->status = 0x56;
        return 0;
    }
    if (params->class == CLASS_VIDEO || params->class == CLASS_SYSTEM) memcpy(&asked, (void *)(uintptr_t)params->params, sizeof asked);
    int code = raw(file, request, params), kept = errno;
    if (code == 0) note_alloc(file, params, &asked);
    errno = kept;
    return code;
}
static void note_control(const struct rm_control *control) {
    if (control->status) return;
    if (control->command == CONTROL_EXPORT_TO_FD) MARK(control->client, ((struct export_to_fd *)(uintptr_t)control->params)->object, exports);
    if (control->command == CONTROL_EXPORT_OBJECTS) {
        const char *params = (const char *)(uintptr_t)control->params;
        uint16_t count;
        uint32_t handle;
        memcpy(&count, params + 2124, 2);
        for (int i = 0; i < count && i < 512; i++) memcpy(&handle, params + 76 + 4 * i, 4), MARK(control->client, handle, exports);
    }
}
static void note_after(int file, unsigned long request, void *argument) {
    uint32_t *words = argument;
    if (_IOC_TYPE(request) == 'F') switch (_IOC_NR(request)) {
        case NR_FREE: if (!words[3]) forget(words[0], words[2]); return;
        case NR_DUP: if (!words[6]) { MARK(words[3], words[4], dups); note(file, words[0], words[1], words[2], 0); } return;
        case NR_MAP: if (!((struct rm_map *)argument)->status) MARK(words[0], words[2], views); return;
        case NR_UNMAP: if (!((struct rm_unmap *)argument)->status) { struct object *object = find(words[0], words[2]); if (object) object->views--; } return;
        case NR_MAP_DMA: MARK(words[0], words[3], dma); return;
        case NR_CONTROL: note_control(argument); return;
        default: return;
    }
    struct uvm_range *range = argument;
    if (request == UVM_MAP_EXTERNAL && !((struct uvm_map *)argument)->status) note_map(file, argument);
    if (request == UVM_UNMAP && !((struct uvm_unmap *)argument)->status) cut(file, range->base, range->length);
    if (request == UVM_CREATE_EXTERNAL && !range->status) {
        int at = 0;
        while (at < range_count && ranges[at].live) at++;
        if (at < MOST_MAPS) ranges[at] = (struct range){file, 1, range->base, range->length};
        if (at == range_count && at < MOST_MAPS) range_count++;
    }
    if (request == UVM_FREE_RANGE)
        for (int i = 0; i < range_count; i++)
            if (ranges[i].live && ranges[i].file == file && ranges[i].base == range->base) cut(file, range->base, ranges[i].length), ranges[i].live = 0;
}

static void start(void);
int ioctl(int file, unsigned long request, ...) {
    va_list list;
    va_start(list, request);
    void *argument = va_arg(list, void *);
    va_end(list);
    request &= 0xffffffff;
    int is_rm = _IOC_TYPE(request) == 'F' && _IOC_NR(request) >= 0x20, is_uvm = request == UVM_MAP_EXTERNAL || request == UVM_UNMAP || request == UVM_CREATE_EXTERNAL || request == UVM_FREE_RANGE;
    if (!is_rm && !is_uvm) return raw(file, request, argument);
    pthread_once(&once, start);
    pthread_mutex_lock(&lock); /* while the channels are off no call is made, as calls of a parked container wait */
    calls++;
    int code = request == escape(NR_ALLOC, sizeof(struct rm_alloc)) ? alloc(file, request, argument) : raw(file, request, argument), kept = errno;
    if (code == 0 && request != escape(NR_ALLOC, sizeof(struct rm_alloc))) note_after(file, request, argument);
    pthread_mutex_unlock(&lock);
    errno = kept;
    return code;
}

/* ---- What can leave ---- */
enum { MOVABLE, SMALL, VIEWED, CHANNEL, RM_MAPPED, SHARED, FABRIC, UNMAPPED, PARTLY, REASONS };
static const char *reasons[] = {"can leave", "under 2 MiB", "mapped by the processor", "of channels (USERD, notifiers)", "mapped by the resource manager", "duplicated or exported", "with fabric addresses", "mapped by nobody", "mapped on more cards"};
static int reason(const struct object *object) {
    uint64_t mapped = 0;
    int more = 0;
    for (int i = 0; i < map_count; i++)
        if (maps[i].live && maps[i].client == object->client && maps[i].memory == object->handle) mapped += maps[i].length, more |= maps[i].count != 1;
    if (object->of_channel) return CHANNEL;
    if (object->views > 0) return VIEWED;
    if (object->dma) return RM_MAPPED;
    if (object->dups || object->exports) return SHARED;
    if (object->fabric) return FABRIC;
    if (object->got.size < PAGE_2M) return SMALL;
    if (!mapped) return UNMAPPED;
    return more ? PARTLY : MOVABLE;
}

static FILE *out;
#define IS(name) (!strncmp(line, name " ", strlen(name) + 1) && (rest = line + strlen(name) + 1))
#define ANSWER(...) do { fprintf(out, __VA_ARGS__); fputs("\n", out); fflush(out); return; } while (0)
static unsigned long long number(char **rest) { return strtoull(*rest, rest, 0); }

static void order_table(void) {
    uint64_t bytes[REASONS] = {0}, largest[REASONS] = {0}, channels = 0, host = 0;
    int counts[REASONS] = {0};
    pthread_mutex_lock(&lock);
    for (int i = 0; i < object_count; i++) {
        const struct object *object = &objects[i];
        if (!object->live) continue;
        channels += (object->class & 0xff) == 0x6f;
        if (object->class == CLASS_SYSTEM) host += object->got.size;
        if (object->class != CLASS_VIDEO) continue;
        int why = reason(object);
        counts[why]++, bytes[why] += object->got.size;
        if (object->got.size > largest[why]) largest[why] = object->got.size;
    }
    fprintf(out, "ok %d calls, %llu channels, %.1f MiB of class 0x3e", calls, (unsigned long long)channels, host / 1048576.0);
    for (int why = 0; why < REASONS; why++)
        if (counts[why]) fprintf(out, "; %s: %d objects, %.1f MiB, largest %.1f", reasons[why], counts[why], bytes[why] / 1048576.0, largest[why] / 1048576.0);
    pthread_mutex_unlock(&lock);
    ANSWER(" ");
}

static uint32_t of_class(uint32_t client, uint32_t class) {
    for (int i = object_count; i--;)
        if (objects[i].live && objects[i].client == client && objects[i].class == class) return objects[i].handle;
    return 0;
}
static uint32_t channels(int off) {
    uint32_t status = 0;
    for (int from = 0; from < object_count && !status;) {
        struct disable_channels params = {.disable = off};
        const struct object *one = 0;
        for (; from < object_count && params.count < 64; from++) {
            if (!objects[from].live || (objects[from].class & 0xff) != 0x6f) continue;
            one = &objects[from];
            params.clients[params.count] = one->client, params.channels[params.count++] = one->handle;
        }
        if (!one) break;
        struct rm_control control = {one->client, of_class(one->client, CLASS_SUBDEVICE), CONTROL_DISABLE_CHANNELS, 0, (uintptr_t)&params, sizeof params, 0xdead};
        status = raw(one->file, escape(NR_CONTROL, sizeof control), &control) ? ~0u : control.status;
    }
    return status;
}
static uint32_t release(int file, uint32_t client, uint32_t parent, uint32_t handle) {
    struct rm_free params = {client, parent, handle, 0xdead};
    return raw(file, escape(NR_FREE, sizeof params), &params) ? ~0u : params.status;
}
/* All mappings of a block go to another object, of the same client. */
static uint32_t place(const struct block *block, uint32_t memory) {
    for (int i = 0; i < map_count; i++) {
        static struct uvm_map params;
        const struct mapping *map = &maps[i];
        if (!map->live || map->client != block->object->client || map->memory != block->object->handle) continue;
        params = (struct uvm_map){.base = map->base, .length = map->length, .offset = map->offset, .gpu_count = 1, .rm_file = map->rm_file, .client = map->client, .memory = memory, .status = 0xdead};
        params.gpus[0] = map->gpu;
        if (memory == block->host) params.gpus[0].format_type = params.gpus[0].element_bits = params.gpus[0].compression_type = 0;
        if (raw(map->file, UVM_MAP_EXTERNAL, &params)) return ~0u;
        if (params.status) return params.status;
    }
    return 0;
}

static void order_list(void) { /* pauses the program's calls; takes its channels off */
    pthread_mutex_lock(&lock);
    double begin = seconds();
    uint32_t status = channels(1);
    if (status) { channels(0); pthread_mutex_unlock(&lock); ANSWER("no channels off: status %#x", status); }
    block_count = 0, pool_size = 0;
    for (int i = 0; i < object_count && block_count < 4096; i++) {
        if (!objects[i].live || objects[i].class != CLASS_VIDEO || reason(&objects[i]) != MOVABLE) continue;
        uint64_t size = objects[i].got.size, room = (size + PAGE_2M - 1) / PAGE_2M * PAGE_2M;
        blocks[block_count++] = (struct block){&objects[i], size, pool_size, 0, -1};
        pool_size += room;
    }
    fprintf(out, "ok %.3f ms %d %llu", (seconds() - begin) * 1e3, block_count, (unsigned long long)pool_size);
    for (int i = 0; i < block_count; i++) fprintf(out, " %#x %#x %llu %llu", blocks[i].object->client, blocks[i].object->handle, (unsigned long long)blocks[i].size, (unsigned long long)blocks[i].at);
    ANSWER(" ");
}
static void order_on(void) {
    uint32_t status = channels(0);
    pthread_mutex_unlock(&lock);
    ANSWER("%s status %#x", status ? "no" : "ok", status);
}
static void order_pool(char *rest) { /* pool PID FILE */
    char path[64];
    double begin = seconds(), touched;
    int pid = number(&rest), at = number(&rest);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, at);
    int file = open(path, O_RDWR | O_CLOEXEC);
    pool = file < 0 ? MAP_FAILED : mmap(0, pool_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (pool == MAP_FAILED) ANSWER("no pool: %s", strerror(errno));
    close(file);
    for (uint64_t i = 0; i < pool_size; i += 4096) ((volatile char *)pool)[i] += 0;
    touched = seconds() - begin, begin = seconds();
    int card = -1, control = -1; /* class 0x71 is made on a card's file, which is told the client's */
    for (int i = 0; i < block_count; i++) {
        const struct object *object = blocks[i].object;
        if (object->file != control) {
            card = open(getenv("CARD_NODE") ? getenv("CARD_NODE") : "/dev/nvidia0", O_RDWR | O_CLOEXEC), control = object->file;
            if (card < 0 || raw(card, escape(NR_REGISTER_FD, sizeof control), &control)) ANSWER("no file of the card: %s", strerror(errno));
        }
        struct rm_alloc_memory alloc = {.client = object->client, .parent = of_class(object->client, CLASS_DEVICE), .object = 0xe9000100 + i, .class = CLASS_OS_DESCRIPTOR, .flags = 0x40001010,
                                        .memory = (uintptr_t)pool + blocks[i].at, .limit = blocks[i].size - 1, .status = 0xdead, .fd = -1};
        if (raw(card, escape(NR_ALLOC_MEMORY, sizeof alloc), &alloc) || alloc.status) ANSWER("no class 0x71 of %llu bytes: status %#x, %s", (unsigned long long)blocks[i].size, alloc.status, strerror(errno));
        blocks[i].host = alloc.object;
    }
    ANSWER("ok touching %.1f ms, class 0x71 %.1f ms", touched * 1e3, (seconds() - begin) * 1e3);
}
static void order_export(void) {
    fprintf(out, "ok");
    for (int i = 0; i < block_count; i++) {
        const struct object *object = blocks[i].object;
        int file = open("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
        struct export_to_fd params = {1, of_class(object->client, CLASS_DEVICE), object->parent, object->handle, file, 0};
        struct rm_control control = {object->client, object->client, CONTROL_EXPORT_TO_FD, 0, (uintptr_t)&params, sizeof params, 0xdead};
        if (raw(object->file, escape(NR_CONTROL, sizeof control), &control) || control.status) ANSWER("no: export status %#x", control.status);
        blocks[i].exported = file;
        fprintf(out, " %d", file);
    }
    ANSWER(" ");
}

static void obey(char *line) {
    char *rest = line;
    double begin = seconds();
    if (IS("table")) { order_table(); return; }
    if (IS("list")) { order_list(); return; }
    if (IS("on")) { order_on(); return; }
    if (IS("off")) { /* the same blocks once more */
        pthread_mutex_lock(&lock);
        uint32_t status = channels(1);
        ANSWER("%s status %#x", status ? "no" : "ok", status);
    }
    if (IS("pool")) { order_pool(rest); return; }
    if (IS("export")) { order_export(); return; }
    if (IS("unexport")) {
        for (int i = 0; i < block_count; i++) close(blocks[i].exported);
        ANSWER("ok");
    }
    if (IS("share")) {
        uint32_t last = 0, status = 0;
        for (int i = 0; i < block_count && !status; i++) {
            const struct object *object = blocks[i].object;
            if (object->client == last) continue;
            struct rm_share params = {.client = last = object->client, .object = object->client, .rights = 1, .type = number(&rest), .status = 0xdead};
            status = raw(object->file, escape(NR_SHARE, sizeof params), &params) ? ~0u : params.status;
        }
        ANSWER("%s status %#x", status ? "no" : "ok", status);
    }
    if (IS("place") || IS("back")) {
        for (int i = 0; i < block_count; i++) {
            uint32_t status = place(&blocks[i], line[0] == 'p' ? blocks[i].host : blocks[i].object->handle);
            if (status) ANSWER("no mapping of block %d: status %#x", i, status);
        }
        ANSWER("ok %.2f ms", (seconds() - begin) * 1e3);
    }
    if (IS("free")) {
        for (int i = 0; i < block_count; i++) {
            uint32_t status = release(blocks[i].object->file, blocks[i].object->client, blocks[i].object->parent, blocks[i].object->handle);
            if (status) ANSWER("no free of block %d: status %#x", i, status);
        }
        ANSWER("ok %.2f ms", (seconds() - begin) * 1e3);
    }
    if (IS("video")) {
        for (int i = 0; i < block_count; i++) {
            const struct object *object = blocks[i].object;
            struct rm_memory params = object->asked;
            struct rm_alloc alloc = {object->client, object->parent, object->handle, CLASS_VIDEO, (uintptr_t)&params, 0, object->params_size, 0, 0xdead, 0};
            if (raw(object->file, escape(NR_ALLOC, sizeof alloc), &alloc) || alloc.status) ANSWER("no video memory for block %d: status %#x", i, alloc.status);
        }
        ANSWER("ok %.2f ms", (seconds() - begin) * 1e3);
    }
    if (IS("unpool")) {
        for (int i = 0; i < block_count; i++) release(blocks[i].object->file, blocks[i].object->client, of_class(blocks[i].object->client, CLASS_DEVICE), blocks[i].host);
        munmap(pool, pool_size);
        ANSWER("ok");
    }
    if (IS("userd")) {
        char *text = 0;
        size_t length;
        FILE *list = open_memstream(&text, &length);
        int count = 0;
        for (int i = 0; i < object_count; i++) {
            const struct object *memory = objects[i].live && (objects[i].class & 0xff) == 0x6f ? find(objects[i].client, objects[i].userd) : 0;
            if (memory) fprintf(list, " %#x %#x %llu %llu", objects[i].client, objects[i].userd, (unsigned long long)objects[i].userd_offset, (unsigned long long)memory->got.size), count++;
        }
        fclose(list);
        ANSWER("ok %d%s", count, text);
    }
    ANSWER("no such order: %s", line);
}

static void *serve(void *socket_number) {
    int listening = (int)(intptr_t)socket_number;
    static char line[1 << 16];
    for (;;) {
        int one = accept4(listening, 0, 0, SOCK_CLOEXEC);
        if (one < 0) return 0;
        FILE *in = fdopen(one, "r");
        out = fdopen(dup(one), "w");
        while (fgets(line, sizeof line, in)) line[strcspn(line, "\n")] = 0, obey(line);
        fclose(in), fclose(out);
    }
}
static void start(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    pthread_t thread;
    objects = calloc(MOST_OBJECTS, sizeof *objects), maps = calloc(MOST_MAPS, sizeof *maps), ranges = calloc(MOST_MAPS, sizeof *ranges);
    int length = snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "egpu-park-%d", getpid());
    int listening = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listening, (void *)&address, offsetof(struct sockaddr_un, sun_path) + 1 + length) || listen(listening, 1)) return;
    pthread_create(&thread, 0, serve, (void *)(intptr_t)listening);
}
