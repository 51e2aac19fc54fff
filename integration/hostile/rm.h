/* The resource manager's calls as raw bytes, and nothing of NVIDIA's libraries: layouts of release 580 (nv_escape.h, nvos.h). */
#ifndef RM_H
#define RM_H
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MIB (1ull << 20)
#define OUT_OF_MEMORY 0x51u /* NV_ERR_NO_MEMORY */
#define RM(number, type) _IOC(_IOC_READ | _IOC_WRITE, 'F', number, sizeof(type))

struct rm_alloc { /* NVOS64 */
    uint32_t root, parent, handle, class;
    uint64_t params, rights;
    uint32_t params_size, flags, status, unused;
};
struct rm_free { /* NVOS00 */
    uint32_t root, parent, handle, status;
};
struct rm_control { /* NVOS54 */
    uint32_t client, object, command, flags;
    uint64_t params;
    uint32_t params_size, status;
};
struct rm_dup { /* NVOS55 */
    uint32_t client, parent, handle, source_client, source, flags, status;
};
struct rm_map { /* NVOS33, and the file that the mapping is prepared on */
    uint32_t client, device, memory, unused;
    uint64_t offset, length, address;
    uint32_t status, flags;
    int32_t fd;
    uint32_t rest;
};
struct rm_pin { /* NVOS02, and the file of a mapping */
    uint32_t root, parent, handle, class;
    uint32_t flags, unused;
    uint64_t memory, limit;
    uint32_t status, rest;
    int32_t fd;
    uint32_t more;
};
struct rm_xfer {
    uint32_t command, size;
    uint64_t pointer;
};
struct memory_params { /* NV_MEMORY_ALLOCATION_PARAMS */
    uint32_t owner, type, flags, width, height;
    int32_t pitch;
    uint32_t attr, attr2, format, unused[3];
    uint64_t low, high, size, alignment, offset, limit, address;
    uint32_t rest[6];
};
_Static_assert(sizeof(struct memory_params) == 128, "as the driver has it");
_Static_assert(sizeof(struct rm_alloc) == 48 && sizeof(struct rm_dup) == 28 && sizeof(struct rm_map) == 56 && sizeof(struct rm_pin) == 56, "as the driver has it");

/* One program's way to one card. */
struct session {
    int control, card;
    uint32_t client, device, subdevice;
};

static int xopen(const char *path) {
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        printf("open %s: %s\n", path, strerror(errno));
        exit(3);
    }
    return fd;
}

/* The driver's status, or -errno. `handle` 0 asks the driver for one. */
static long rm_alloc(int fd, uint32_t client, uint32_t parent, uint32_t *handle, uint32_t class, void *params, uint32_t size) {
    struct rm_alloc call = {.root = client, .parent = parent, .handle = *handle, .class = class, .params = (uintptr_t)params, .params_size = size};
    if (ioctl(fd, RM(0x2b, struct rm_alloc), &call) < 0) return -errno;
    if (call.status == 0) *handle = call.handle;
    return call.status;
}

static long rm_free(int fd, uint32_t client, uint32_t handle) {
    struct rm_free call = {.root = client, .parent = 0, .handle = handle};
    if (ioctl(fd, RM(0x29, struct rm_free), &call) < 0) return -errno;
    return call.status;
}

static long rm_control(int fd, uint32_t client, uint32_t object, uint32_t command, void *params, uint32_t size) {
    struct rm_control call = {.client = client, .object = object, .command = command, .params = (uintptr_t)params, .params_size = size};
    if (ioctl(fd, RM(0x2a, struct rm_control), &call) < 0) return -errno;
    return call.status;
}

/* Video memory; `size` becomes what the driver says that it takes. */
static long memory(const struct session *s, uint64_t *size, uint32_t *handle) {
    /* Anything but 0, which the driver refuses; libcuda puts its client there. */
    struct memory_params params = {.owner = s->client, .size = *size};
    long status = rm_alloc(s->control, s->client, s->device, handle, 0x40, &params, sizeof params);
    if (status == 0) *size = params.size;
    return status;
}

/* Memory of the host's that the driver makes: NVOS32_ATTR_LOCATION_PCI, in scattered pages that the processor caches. */
static long host_memory(const struct session *s, uint64_t size, uint32_t *handle) {
    struct memory_params params = {.owner = s->client, .attr = 1u << 25 | 1u << 27 | 1u << 29, .size = size};
    return rm_alloc(s->control, s->client, s->device, handle, 0x3e, &params, sizeof params);
}

/* Prepares a mapping of all of it on a file. */
static long rm_map(const struct session *s, uint32_t handle, uint64_t length, int fd) {
    struct rm_map call = {.client = s->client, .device = s->device, .memory = handle, .length = length, .fd = fd};
    if (ioctl(s->control, RM(0x4e, struct rm_map), &call) < 0) return -errno;
    return call.status;
}

/* How the card's file is told whose clients it takes: the call that pins memory is made on it. */
static long register_card(const struct session *s) {
    int control = s->control;
    return ioctl(s->card, RM(0xc9, int), &control) < 0 ? -errno : 0;
}

/* A call that pins memory of this program's, as libcuda makes it: scattered pages that the processor caches, not mapped anywhere else. */
static struct rm_pin pin_call(const struct session *s, uint32_t handle, void *at, uint64_t length) {
    return (struct rm_pin){.root = s->client, .parent = s->device, .handle = handle, .class = 0x71, .flags = 0x40001010,
                           .memory = (uintptr_t)at, .limit = length - 1, .fd = -1};
}

/* The class of an object, 0 if there is none of that name: NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO. */
static uint32_t class_of(const struct session *s, uint32_t handle) {
    uint32_t params[4] = {handle, 2};
    return rm_control(s->control, s->client, s->client, 0xd02, params, sizeof params) ? 0 : params[2];
}

static long begin_on(struct session *s, int control, int card) {
    long status;
    uint32_t device_params[14] = {0}, subdevice_params[1] = {0}, attached[32] = {0}, id[8] = {0};
    s->control = control;
    s->card = card;
    s->client = s->device = s->subdevice = 0;
    if ((status = rm_alloc(control, 0, 0, &s->client, 0x41, NULL, 0))) return status;
    /* NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS, and GET_ID_INFO_V2: which instance the first card is. */
    if ((status = rm_control(control, s->client, s->client, 0x201, attached, sizeof attached))) return status;
    id[0] = attached[0];
    if ((status = rm_control(control, s->client, s->client, 0x205, id, sizeof id))) return status;
    device_params[0] = id[2];
    if ((status = rm_alloc(control, s->client, s->client, &s->device, 0x80, device_params, sizeof device_params))) return status;
    return rm_alloc(control, s->client, s->device, &s->subdevice, 0x2080, subdevice_params, sizeof subdevice_params);
}

/* Opens the nodes and makes client, device and subdevice; ends the program if that fails. */
static struct session begin(void) {
    struct session s;
    int control = xopen("/dev/nvidiactl");
    char path[32] = "/dev/nvidia0";
    int card = -1;
    for (int minor = 0; card < 0 && minor < 16; minor++) {
        snprintf(path, sizeof path, "/dev/nvidia%d", minor);
        card = open(path, O_RDWR | O_CLOEXEC);
    }
    long status = begin_on(&s, control, card);
    if (status) {
        printf("begin: %ld\n", status);
        exit(4);
    }
    return s;
}

/* Takes memory in pieces until there is no more; says how much it got. */
static uint64_t fill(const struct session *s, uint64_t piece, long *last) {
    uint64_t sum = 0;
    for (;;) {
        uint64_t size = piece;
        uint32_t handle = 0;
        if ((*last = memory(s, &size, &handle))) return sum;
        sum += size;
    }
}
#endif
