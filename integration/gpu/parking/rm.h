/* The calls that the mediator would make, each printed with its status and time. */
struct buffer {          /* one cudaMalloc, as the driver knows it */
    uint64_t address, size;
    struct mapping map;  /* libcuda's own UVM_MAP_EXTERNAL_ALLOCATION */
    struct object video; /* libcuda's own class 0x40 */
};
struct cpu_view { void *address; size_t length; uint64_t linear; int file; uint32_t device, memory; };

static int quiet;
#define SAY(...) do { if (!quiet) printf(__VA_ARGS__); } while (0)

static uint32_t allocate(const struct object *like, uint32_t class, uint32_t parent, struct rm_memory *params, uint32_t handle) {
    struct rm_alloc alloc = {like->client, parent, handle, class, (uintptr_t)params, 0, like->params_size, 0, 0xdead, 0};
    uint64_t size = params->size;
    uint32_t attr = params->attr, attr2 = params->attr2;
    double begin = seconds();
    int code = raw(like->file, escape(NR_ALLOC, sizeof alloc), &alloc);
    SAY("  alloc class %#x of %#llx bytes, attr %#x attr2 %#x flags %#x: %d, status %#x; handle %#x, size %#llx attr %#x attr2 %#x; %.0f us\n", class, (unsigned long long)size,
        attr, attr2, params->flags, code, alloc.status, alloc.object, (unsigned long long)params->size, params->attr, params->attr2, (seconds() - begin) * 1e6);
    return code || alloc.status ? 0 : alloc.object;
}

static uint32_t release(const struct object *like, uint32_t parent, uint32_t handle) {
    struct rm_free params = {like->client, parent, handle, 0xdead};
    double begin = seconds();
    int code = raw(like->file, escape(NR_FREE, sizeof params), &params);
    SAY("  free %#x: %d, status %#x; %.0f us\n", handle, code, params.status, (seconds() - begin) * 1e6);
    return code ? ~0u : params.status;
}

static uint32_t duplicate(const struct object *like, uint32_t parent, uint32_t source, uint32_t handle) {
    struct rm_dup params = {like->client, parent, handle, like->client, source, 0, 0xdead};
    int code = raw(like->file, escape(NR_DUP, sizeof params), &params);
    SAY("  duplicate %#x as %#x: %d, status %#x\n", source, params.object, code, params.status);
    return code || params.status ? 0 : params.object;
}

static uint32_t uvm_map(const struct buffer *buffer, uint32_t memory, uint64_t base, uint64_t length, uint64_t offset) {
    static struct uvm_map params;
    params = buffer->map.params;
    params.base = base, params.length = length, params.offset = offset, params.memory = memory, params.status = 0xdead;
    /* What RM takes for video memory only: host memory has no compressible kind (nvGpuOpsGetPteKind). */
    if (memory != buffer->video.handle)
        for (uint64_t i = 0; i < params.gpu_count; i++) params.gpus[i].format_type = params.gpus[i].element_bits = params.gpus[i].compression_type = 0;
    double begin = seconds();
    int code = raw(buffer->map.file, UVM_MAP_EXTERNAL, &params);
    SAY("  UVM_MAP_EXTERNAL_ALLOCATION %#llx+%#llx <- %#x+%#llx: %d, status %#x; %.0f us\n", (unsigned long long)base, (unsigned long long)length, memory, (unsigned long long)offset, code, params.status,
        (seconds() - begin) * 1e6);
    return code ? ~0u : params.status;
}

static uint32_t uvm_range(const struct buffer *buffer, unsigned call, uint64_t base, uint64_t length) {
    struct uvm_range params = {base, length, 0xdead, 0};
    double begin = seconds();
    int code = raw(buffer->map.file, call, &params);
    SAY("  uvm %u %#llx+%#llx: %d, status %#x; %.0f us\n", call, (unsigned long long)base, (unsigned long long)length, code, params.status, (seconds() - begin) * 1e6);
    return code ? ~0u : params.status;
}

/* Host memory is mapped through a control file of its own, video memory through a card's. */
static struct cpu_view view(const struct object *like, uint32_t device, uint32_t memory, size_t length, const char *node) {
    struct cpu_view view = {MAP_FAILED, length, 0, open_node(node), device, memory};
    struct rm_map params = {like->client, device, memory, 0, 0, length, 0, 0xdead, 0, view.file, 0};
    double begin = seconds();
    int code = raw(like->file, escape(NR_MAP, sizeof params), &params);
    view.linear = params.linear;
    if (code == 0 && params.status == 0) view.address = mmap(0, length, PROT_READ | PROT_WRITE, MAP_SHARED, view.file, 0);
    SAY("  CPU mapping of %#x by %s: %d, status %#x, linear %#llx; mmap %p%s; %.0f us\n", memory, node, code, params.status, (unsigned long long)params.linear, view.address,
        view.address == MAP_FAILED ? strerror(errno) : "", (seconds() - begin) * 1e6);
    return view;
}

static void unview(const struct object *like, struct cpu_view *view) {
    struct rm_unmap params = {like->client, view->device, view->memory, 0, view->linear, 0xdead, 0};
    if (view->address != MAP_FAILED) munmap(view->address, view->length);
    int code = raw(like->file, escape(NR_UNMAP, sizeof params), &params);
    SAY("  CPU mapping of %#x ended: %d, status %#x\n", view->memory, code, params.status);
    close(view->file);
}

static uint32_t parent_of_class(const struct object *like, uint32_t class) {
    for (int i = object_count; i--;)
        if (objects[i].client == like->client && objects[i].class == class) return objects[i].handle;
    return 0;
}

/* Classes 0x3e and 0x71 live below the device; 0x40 of libcuda's may be below the subdevice. */
static uint32_t device_of(const struct object *like) { return parent_of_class(like, CLASS_DEVICE); }

static struct rm_memory host_params(const struct object *like, uint64_t size, const char *kind) {
    struct rm_memory params = {.owner = like->client, .size = size, .attr = ATTR_PCI | ATTR_CPU_CACHED};
    if (!strcmp(kind, "4k")) params.attr |= ATTR_NONCONTIGUOUS | ATTR_PAGE_4K;
    if (!strcmp(kind, "default")) params.attr |= ATTR_NONCONTIGUOUS;
    if (!strcmp(kind, "big")) params.attr |= ATTR_NONCONTIGUOUS | ATTR_PAGE_BIG;
    if (!strcmp(kind, "huge")) params.attr |= ATTR_NONCONTIGUOUS | ATTR_PAGE_HUGE, params.attr2 |= ATTR2_HUGE_2M;
    if (!strcmp(kind, "contiguous")) params.attr |= ATTR_CONTIGUOUS | ATTR_PAGE_HUGE, params.attr2 |= ATTR2_HUGE_2M;
    return params;
}

/* All channels of the process off the card (DISABLE_CHANNELS), or on. */
static uint32_t channels(const struct object *like, int off) {
    struct disable_channels params = {.disable = off};
    for (int i = 0; i < object_count && params.count < 64; i++) {
        if ((objects[i].class & 0xff) != 0x6f) continue;
        params.clients[params.count] = objects[i].client;
        params.channels[params.count++] = objects[i].handle;
    }
    struct rm_control control = {like->client, parent_of_class(like, CLASS_SUBDEVICE), CONTROL_DISABLE_CHANNELS, 0, (uintptr_t)&params, sizeof params, 0xdead};
    double begin = seconds();
    int code = raw(like->file, escape(NR_CONTROL, sizeof control), &control);
    SAY("  %u channels %s: %d, status %#x; %.0f us\n", params.count, off ? "off" : "on", code, control.status, (seconds() - begin) * 1e6);
    return code ? ~0u : control.status;
}
