/* libcuda's ioctls as they pass through this program (it is linked with -rdynamic, so that libcuda's
 * `ioctl` is the one below), and what is known of its objects from them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "driver.h"

struct object { int file; uint32_t client, parent, handle, class, params_size; struct rm_memory asked, got; uint32_t userd, engine; uint64_t userd_offset; };
struct mapping { int file; struct uvm_map params; };

static pthread_mutex_t hook_lock = PTHREAD_MUTEX_INITIALIZER;
static struct object objects[4096];
static struct mapping mappings[512];
static struct rm_alloc_memory last_os_descriptor, os_descriptors[256];
static int os_descriptor_count, object_count, mapping_count, hooked, tracing, os_descriptor_file = -1;

static double seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static unsigned long escape(unsigned number, size_t size) { return _IOC(_IOC_READ | _IOC_WRITE, 'F', number, size); }

#ifdef FAKE
#include "fake_driver.h"
#else
static int raw(int file, unsigned long request, void *argument) {
    return syscall(SYS_ioctl, file, request, argument);
}
static int open_node(const char *node) { return open(node, O_RDWR | O_CLOEXEC); }
#endif

static void record_alloc(int file, const struct rm_alloc *alloc, const struct rm_memory *asked) {
    if (alloc->status || object_count == (int)(sizeof objects / sizeof *objects)) return;
    struct object *object = &objects[object_count++];
    *object = (struct object){file, alloc->client, alloc->parent, alloc->object, alloc->class, alloc->params_size, *asked, {0}, 0, 0, 0};
    const char *params = (const char *)(uintptr_t)alloc->params;
    if ((alloc->class & 0xff) == 0x6f && params) memcpy(&object->userd, params + CHANNEL_USERD_MEMORY, 4), memcpy(&object->userd_offset, params + CHANNEL_USERD_OFFSET, 8), memcpy(&object->engine, params + CHANNEL_ENGINE, 4);
    if (alloc->class == CLASS_VIDEO || alloc->class == CLASS_SYSTEM) memcpy(&object->got, (void *)(uintptr_t)alloc->params, sizeof object->got);
}

static int hooked_alloc(int file, unsigned long request, struct rm_alloc *alloc) {
    struct rm_memory asked = {0};
    if (alloc->class == CLASS_THIRD_PARTY_P2P && !getenv("KEEP_503C")) { /* as egpu does */
        alloc->status = 0x56;
        return 0;
    }
    if (alloc->class == CLASS_VIDEO || alloc->class == CLASS_SYSTEM) memcpy(&asked, (void *)(uintptr_t)alloc->params, sizeof asked);
    int code = raw(file, request, alloc);
    if (code == 0) record_alloc(file, alloc, &asked);
    if (tracing) printf("    libcuda: alloc class %#x as %#x below %#x, parameters of %u bytes: status %#x\n", alloc->class, alloc->object, alloc->parent, alloc->params_size, alloc->status);
    return code;
}

static void trace(unsigned long request, const void *argument) {
    const uint32_t *words = argument;
    if (_IOC_TYPE(request) != 'F') {
        printf("    libcuda: uvm %lu", request);
        if (request == UVM_CREATE_EXTERNAL || request == UVM_FREE_RANGE) printf(" base %#llx length %#llx: status %#x", *(unsigned long long *)argument, ((unsigned long long *)argument)[1], words[4]);
        if (request == UVM_MAP_EXTERNAL) {
            const struct uvm_map *map = argument;
            printf(" base %#llx length %#llx offset %#llx, %llu gpus, type %u caching %u format %u bits %u compression %u, file %d client %#x memory %#x: status %#x",
                   (unsigned long long)map->base, (unsigned long long)map->length, (unsigned long long)map->offset, (unsigned long long)map->gpu_count, map->gpus[0].mapping_type,
                   map->gpus[0].caching_type, map->gpus[0].format_type, map->gpus[0].element_bits, map->gpus[0].compression_type, map->rm_file, map->client, map->memory, map->status);
        }
        puts("");
    } else if (_IOC_NR(request) == NR_CONTROL) {
        const struct rm_control *control = argument;
        printf("    libcuda: control %#x of %#x: status %#x\n", control->command, control->object, control->status);
    } else if (_IOC_NR(request) == NR_FREE) {
        printf("    libcuda: free %#x: status %#x\n", words[2], words[3]);
    } else if (_IOC_NR(request) != NR_ALLOC) {
        printf("    libcuda: escape %#x, %u bytes\n", (unsigned)_IOC_NR(request), (unsigned)_IOC_SIZE(request));
    }
}

int ioctl(int file, unsigned long request, ...) {
    va_list list;
    va_start(list, request);
    void *argument = va_arg(list, void *);
    va_end(list);
    pthread_mutex_lock(&hook_lock);
    hooked++;
    int code, kept_errno;
    if (request == escape(NR_ALLOC, sizeof(struct rm_alloc))) {
        code = hooked_alloc(file, request, argument);
    } else {
        pthread_mutex_unlock(&hook_lock);
        code = raw(file, request, argument);
        kept_errno = errno;
        pthread_mutex_lock(&hook_lock);
        if (request == escape(NR_ALLOC_MEMORY, sizeof last_os_descriptor)) last_os_descriptor = *(struct rm_alloc_memory *)argument, os_descriptor_file = file, os_descriptors[os_descriptor_count++ % 256] = last_os_descriptor;
        if (request == UVM_MAP_EXTERNAL && mapping_count < (int)(sizeof mappings / sizeof *mappings)) mappings[mapping_count++] = (struct mapping){file, *(struct uvm_map *)argument};
        errno = kept_errno;
    }
    kept_errno = errno;
    if (tracing) trace(request, argument);
    pthread_mutex_unlock(&hook_lock);
    errno = kept_errno;
    return code;
}
