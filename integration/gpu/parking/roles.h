/* The three processes that take orders by lines: the program (A, with its mediator's calls), egpu's copier (B), a neighbour (N).
 * An answer is "ok ..." or "no ...". */
enum { ORDERS = 200, PAGES = 201, MOST = 16, PAGE_2M = 2 << 20 };
#define NEED(condition, what) do { if (!(condition)) { printf("FAILED: %s: %s\n", role, what); fflush(stdout); _exit(1); } } while (0)
/* So that a word tells its place in its 2 MiB, whichever block it is of. */
#define SPACING (2654435761u << 19)
static uint64_t block_size;
static struct buffer blocks[MOST];
static uint32_t hosts[MOST];   /* A: host memory, objects of its client. B: its own pinned buffers' objects */
static uint32_t copies[MOST];  /* B: duplicates of A's objects */
static char *host_pages[MOST]; /* B: what cuMemcpy copies to and from */
static void *stream;

#define ANSWER(...) do { dprintf(ORDERS, __VA_ARGS__); dprintf(ORDERS, "\n"); return; } while (0)
#define IS(name) (!strncmp(line, name " ", strlen(name) + 1) && (rest = line + strlen(name) + 1))
static unsigned long long number(char **rest) { return strtoull(*rest, rest, 0); }
static double cpu(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

/* cuMemAlloc with an object and a mapping of its own. */
static int allocate_block(struct buffer *buffer) {
    int before = mapping_count, code = cuMemAlloc_v2(&buffer->address, block_size);
    buffer->size = block_size;
    if (code) return code;
    for (int i = before; i < mapping_count; i++)
        if (mappings[i].params.base == buffer->address && mappings[i].params.length == block_size) buffer->map = mappings[i];
    NEED(buffer->map.params.length, "cuMemAlloc made no mapping of just this block");
    for (int i = object_count; i-- && !buffer->video.handle;)
        if (objects[i].client == buffer->map.params.client && objects[i].handle == buffer->map.params.memory) buffer->video = objects[i];
    NEED(buffer->video.class == CLASS_VIDEO && buffer->map.params.offset == 0, "the block is not one object of class 0x40 from its beginning");
    return 0;
}

static uint32_t map_block(const struct buffer *buffer, uint32_t memory) {
    return uvm_map(buffer, memory, buffer->map.params.base, buffer->map.params.length, 0);
}

static uint32_t unmap_block(const struct buffer *buffer) {
    struct uvm_unmap params = {.base = buffer->map.params.base, .length = buffer->map.params.length, .status = 0xdead};
    memcpy(params.uuid, buffer->map.params.gpus[0].uuid, 16);
    return raw(buffer->map.file, UVM_UNMAP, &params) ? ~0u : params.status;
}

/* Another client's object in the own one. */
static uint32_t adopt(const struct object *own, uint32_t parent, uint32_t client, uint32_t memory, uint32_t *handle) {
    struct rm_dup params = {own->client, parent, *handle, client, memory, 0, 0xdead};
    int code = raw(own->file, escape(NR_DUP, sizeof params), &params);
    *handle = params.object;
    return code ? ~0u : params.status;
}

static uint32_t share(const struct object *own, uint32_t object, unsigned type, uint32_t target) {
    struct rm_share params = {.client = own->client, .object = object, .target = target, .rights = 1, .type = type, .status = 0xdead};
    int code = raw(own->file, escape(NR_SHARE, sizeof params), &params);
    return code ? ~0u : params.status;
}

/* The object of class 0x71 that cuMemHostRegister made, if it made just one for all of it. */
static uint32_t register_pages(void *pages, uint64_t size) {
    int before = os_descriptor_count;
    must(cuMemHostRegister_v2(pages, size, 0), "cuMemHostRegister");
    return os_descriptor_count == before + 1 && last_os_descriptor.limit == size - 1 ? last_os_descriptor.object : 0;
}

/* ---- A, the program ---- */
static int all_hold(int count, uint32_t add) {
    uint32_t wrong = 0;
    must(cuMemsetD32_v2(scratch, 0, 1), "cuMemsetD32");
    for (int i = 0; i < count; i++) {
        uint64_t words = block_size / 4;
        uint32_t own = add + i * SPACING;
        launch(kernel_check, (void *[]){&blocks[i].address, &words, &own, &scratch}, "check");
    }
    must(cuCtxSynchronize(), "check");
    must(cuMemcpyDtoH_v2(&wrong, scratch, 4), "cuMemcpyDtoH");
    if (wrong) printf("  %s: WRONG: %u words of %d blocks\n", role, wrong, count);
    return !wrong;
}

/* Own pages as class 0x71 of A's client, as the mediator would make them beforehand. */
static void order_pool(char *rest) {
    int count = number(&rest);
    void *page = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    register_pages(page, 1 << 20);
    struct rm_alloc_memory like = last_os_descriptor;
    int file = os_descriptor_file;
    NEED(file >= 0, "libcuda made no class 0x71");
    char *all = mmap(0, block_size * count, PROT_READ | PROT_WRITE, MAP_SHARED, PAGES, 0);
    if (all == MAP_FAILED) ANSWER("no mmap %s", strerror(errno));
    double begin = seconds(), touched;
    for (uint64_t i = 0; i < block_size * count; i += 4096) ((volatile char *)all)[i] += 0;
    touched = seconds() - begin, begin = seconds();
    for (int i = 0; i < count; i++) {
        struct rm_alloc_memory alloc = like;
        alloc.parent = device_of(&blocks[0].video), alloc.object = 0xe9000100 + i, alloc.memory = (uintptr_t)all + block_size * i, alloc.limit = block_size - 1, alloc.status = 0xdead;
        if (raw(file, escape(NR_ALLOC_MEMORY, sizeof alloc), &alloc) || alloc.status) ANSWER("no class 0x71: status %#x", alloc.status);
        hosts[i] = alloc.object;
    }
    ANSWER("ok touching its pages %.1f ms, class 0x71 of them %.1f ms", touched * 1e3, (seconds() - begin) * 1e3);
}

static void order_userd(void) {
    char text[4096] = "";
    int length = 0, count = 0;
    for (int i = 0; i < object_count && length < 3500; i++) {
        uint64_t size = 0;
        if ((objects[i].class & 0xff) != 0x6f || !objects[i].userd) continue;
        for (int j = 0; j < object_count; j++)
            if (objects[j].client == objects[i].client && objects[j].handle == objects[i].userd) size = objects[j].got.size;
        length += sprintf(text + length, " %#x %#x %llu %llu", objects[i].client, objects[i].userd, (unsigned long long)objects[i].userd_offset, (unsigned long long)size), count++;
    }
    ANSWER("ok %d%s", count, text);
}

static void program(char *line) {
    char *rest = line;
    double begin = seconds(), middle;
    if (IS("alloc")) {
        int count = number(&rest);
        uint32_t add = number(&rest);
        for (int i = 0; i < count; i++) must(allocate_block(&blocks[i]), "cuMemAlloc"), fill(blocks[i].address, block_size, add + i * SPACING);
        dprintf(ORDERS, "ok %#x", blocks[0].video.client);
        for (int i = 0; i < count; i++) dprintf(ORDERS, " %#x", blocks[i].video.handle);
        ANSWER(" ");
    }
    if (IS("share")) { /* share TYPE TARGET: the client with all that it has; shareone: block 0 */
        unsigned type = number(&rest);
        uint32_t status = share(&blocks[0].video, blocks[0].video.client, type, number(&rest));
        ANSWER("%s status %#x; %.0f us", status ? "no" : "ok", status, (seconds() - begin) * 1e6);
    }
    if (IS("shareone")) {
        unsigned type = number(&rest);
        uint32_t status = share(&blocks[0].video, blocks[0].video.handle, type, number(&rest));
        ANSWER("%s status %#x; %.0f us", status ? "no" : "ok", status, (seconds() - begin) * 1e6);
    }
    if (IS("pool")) { order_pool(rest); return; }
    if (IS("adopt")) { /* adopt I CLIENT HANDLE: host memory of another client's */
        int i = number(&rest);
        uint32_t client = number(&rest), memory = number(&rest), status = adopt(&blocks[0].video, device_of(&blocks[0].video), client, memory, (hosts[i] = 0, &hosts[i]));
        ANSWER("%s status %#x; %.0f us", status ? "no" : "ok", status, (seconds() - begin) * 1e6);
    }
    if (IS("off") || IS("on")) {
        uint32_t status = channels(&blocks[0].video, line[1] == 'f');
        ANSWER("%s status %#x; %.2f ms", status ? "no" : "ok", status, (seconds() - begin) * 1e3);
    }
    if (IS("place") || IS("back")) { /* the mappings go to the host memory, or to the video memory */
        int count = number(&rest), out = line[0] == 'p';
        for (int i = 0; i < count; i++) {
            uint32_t status = map_block(&blocks[i], out ? hosts[i] : blocks[i].video.handle);
            if (status) ANSWER("no mapping: status %#x", status);
        }
        ANSWER("ok %.2f ms", (seconds() - begin) * 1e3);
    }
    if (IS("free")) {
        for (int i = 0, count = number(&rest); i < count; i++) {
            uint32_t status = release(&blocks[i].video, blocks[i].video.parent, blocks[i].video.handle);
            if (status) ANSWER("no free: status %#x", status);
        }
        ANSWER("ok %.2f ms", (seconds() - begin) * 1e3);
    }
    if (IS("video")) { /* new objects with the handles that libcuda knows */
        for (int i = 0, count = number(&rest); i < count; i++) {
            struct rm_memory params = blocks[i].video.asked;
            if (!allocate(&blocks[i].video, CLASS_VIDEO, blocks[i].video.parent, &params, blocks[i].video.handle)) ANSWER("no video memory for block %d", i);
        }
        ANSWER("ok %.2f ms", (seconds() - begin) * 1e3);
    }
    if (IS("check")) {
        int count = number(&rest);
        ANSWER("%s", all_hold(count, number(&rest)) ? "ok right" : "no WRONG words");
    }
    if (IS("launch")) { /* each word one more; does not wait */
        for (int i = 0, count = number(&rest); i < count; i++) {
            uint64_t words = block_size / 4;
            launch(kernel_bump, (void *[]){&blocks[i].address, &words}, "bump");
        }
        middle = seconds();
        ANSWER("ok %.9f %.9f", begin, middle);
    }
    if (IS("done")) { /* done MS: until what was launched is done */
        double end = begin + number(&rest) * 1e-3;
        int code;
        while ((code = cuStreamQuery(0)) == 600 && seconds() < end) usleep(50);
        ANSWER("%s %.9f code %d", code ? "no" : "ok", seconds(), code);
    }
    if (IS("userd")) { order_userd(); return; }
    if (IS("export")) { /* object 0x40 into a file, and libcuda's import of it */
        struct export_to_fd params = {1, device_of(&blocks[0].video), blocks[0].video.parent, blocks[0].video.handle, -1, 0};
        int file = open_node("/dev/nvidiactl");
        params.fd = file;
        struct rm_control control = {blocks[0].video.client, blocks[0].video.client, CONTROL_EXPORT_TO_FD, 0, (uintptr_t)&params, sizeof params, 0xdead};
        int code = raw(blocks[0].video.file, escape(NR_CONTROL, sizeof control), &control);
        uint64_t imported = 0;
        int import = control.status ? -1 : cuMemImportFromShareableHandle(&imported, (void *)(uintptr_t)params.fd, 1);
        ANSWER("ok export of a 0x40 into a file: %d, status %#x, fd %d; cuMemImportFromShareableHandle of it: %d", code, control.status, params.fd, import);
    }
    ANSWER("no such order: %s", line);
}

/* ---- B, egpu's copier ---- */
/* Its windows: addresses that libcuda takes for cuMemAlloc's, with no memory behind them until an object is mapped there. */
static void order_windows(char *rest) {
    int count = number(&rest);
    double begin = seconds();
    for (int i = 0; i < count; i++) {
        must(allocate_block(&blocks[i]), "cuMemAlloc of a window");
        uint32_t status = unmap_block(&blocks[i]), freed = release(&blocks[i].video, blocks[i].video.parent, blocks[i].video.handle);
        if (status || freed) ANSWER("no window: UVM_UNMAP_EXTERNAL %#x, free %#x", status, freed);
    }
    must(cuStreamCreate(&stream, 1), "cuStreamCreate");
    ANSWER("ok %d windows %.1f ms; client %#x", count, (seconds() - begin) * 1e3, blocks[0].video.client);
}

/* Its pinned buffers: the shared file's pages, or memory of cuMemHostAlloc's. */
static void order_buffers(char *rest) {
    int count = number(&rest), by_alloc = number(&rest);
    char *all = by_alloc ? 0 : mmap(0, block_size * count, PROT_READ | PROT_WRITE, MAP_SHARED, PAGES, 0);
    if (all == MAP_FAILED) ANSWER("no mmap: %s", strerror(errno));
    double begin = seconds(), touched = 0;
    if (all) for (uint64_t i = 0; i < block_size * count; i += 4096) ((volatile char *)all)[i] += 0;
    touched = seconds() - begin, begin = seconds();
    for (int i = 0; i < count; i++) {
        int before = object_count;
        host_pages[i] = all + block_size * i;
        if (by_alloc) must(cuMemHostAlloc((void **)&host_pages[i], block_size, 1), "cuMemHostAlloc");
        else hosts[i] = register_pages(host_pages[i], block_size);
        for (int j = before; by_alloc && j < object_count; j++)
            if (objects[j].class == CLASS_SYSTEM && objects[j].got.size == block_size) hosts[i] = objects[j].handle;
    }
    begin = seconds() - begin;
    dprintf(ORDERS, "ok %#x", blocks[0].video.client);
    for (int i = 0; i < count; i++) dprintf(ORDERS, " %#x", hosts[i]);
    ANSWER(" touching %.1f ms, pinning %.1f ms", touched * 1e3, begin * 1e3);
}

/* 1 kHz: the counters of all of A's channels, until one has more to fetch than at first. */
static void order_watch(char *rest) {
    struct { volatile uint32_t *words; uint32_t put; } userd[64];
    struct { uint32_t client, memory, handle; struct cpu_view view; } seen[8];
    double limit = number(&rest) * 1e-3, begin, cpu_begin, reading = 0;
    int count = number(&rest), known = 0, polls = 0, changed = -1;
    for (int i = 0; i < count && i < 64; i++) {
        uint32_t client = number(&rest), memory = number(&rest), at;
        uint64_t offset = number(&rest), size = number(&rest);
        for (at = 0; at < (uint32_t)known && (seen[at].client != client || seen[at].memory != memory); at++) {}
        if (at == (uint32_t)known) {
            NEED(known < 8 && size, "USERDs in more than 8 objects, or of unknown size");
            uint32_t handle = 0, status = adopt(&blocks[0].video, device_of(&blocks[0].video), client, memory, &handle);
            if (status) ANSWER("no duplicate of USERD's memory: status %#x", status);
            seen[known].client = client, seen[known].memory = memory, seen[known].handle = handle;
            seen[known].view = view(&blocks[0].video, device_of(&blocks[0].video), handle, size, getenv("CARD_NODE") ? getenv("CARD_NODE") : "/dev/nvidia0");
            if (seen[known++].view.address == MAP_FAILED) ANSWER("no CPU mapping of USERD");
        }
        userd[i].words = (volatile uint32_t *)((char *)seen[at].view.address + offset);
        userd[i].put = userd[i].words[USERD_GP_PUT / 4];
    }
    dprintf(ORDERS, "ok watching %d channels in %d objects\n", count, known);
    begin = seconds(), cpu_begin = cpu();
    while (changed < 0 && seconds() - begin < limit) {
        double read = seconds();
        for (int i = 0; i < count && i < 64; i++)
            if (userd[i].words[USERD_GP_PUT / 4] != userd[i].put) { changed = i; break; }
        reading += seconds() - read, polls++;
        if (changed < 0) usleep(1000);
    }
    double noticed = seconds(), used_cpu = cpu() - cpu_begin;
    uint32_t get = changed < 0 ? 0 : userd[changed].words[USERD_GP_GET / 4], put = changed < 0 ? 0 : userd[changed].words[USERD_GP_PUT / 4];
    for (int i = 0; i < known; i++) unview(&blocks[0].video, &seen[i].view), release(&blocks[0].video, device_of(&blocks[0].video), seen[i].handle);
    ANSWER("%s %.9f channel %d, GP_GET %u GP_PUT %u before %u; %d polls, %.2f us each for %d channels, processor %.2f%%", changed < 0 ? "no" : "ok", noticed, changed, get, put,
           changed < 0 ? 0 : userd[changed].put, polls, reading / polls * 1e6, count, used_cpu / (noticed - begin) * 100);
}

static void copier(char *line) {
    char *rest = line;
    double begin = seconds();
    uint32_t status = 0;
    if (IS("windows")) { order_windows(rest); return; }
    if (IS("buffers")) { order_buffers(rest); return; }
    if (IS("watch")) { order_watch(rest); return; }
    if (IS("share")) {
        unsigned type = number(&rest);
        status = share(&blocks[0].video, blocks[0].video.client, type, number(&rest));
        ANSWER("%s status %#x", status ? "no" : "ok", status);
    }
    if (IS("dup")) { /* whether it may: dup CLIENT HANDLE */
        uint32_t client = number(&rest), memory = number(&rest), handle = 0;
        status = adopt(&blocks[0].video, device_of(&blocks[0].video), client, memory, &handle);
        double took = seconds() - begin;
        if (!status) release(&blocks[0].video, device_of(&blocks[0].video), handle);
        ANSWER("%s status %#x; %.0f us", status ? "no" : "ok", status, took * 1e6);
    }
    if (IS("take")) { /* take COUNT CLIENT HANDLE...: the objects into the windows */
        int count = number(&rest);
        uint32_t client = number(&rest);
        for (int i = 0; i < count; i++) {
            uint32_t memory = number(&rest);
            copies[i] = 0;
            if ((status = adopt(&blocks[0].video, device_of(&blocks[0].video), client, memory, &copies[i]))) { copies[i] = 0; ANSWER("no duplicate: status %#x", status); }
            if ((status = map_block(&blocks[i], copies[i]))) ANSWER("no mapping: status %#x", status);
        }
        ANSWER("ok %.2f ms", (seconds() - begin) * 1e3);
    }
    if (IS("out") || IS("in")) {
        int count = number(&rest);
        for (int i = 0; i < count; i++)
            must(line[0] == 'o' ? cuMemcpyDtoHAsync_v2(host_pages[i], blocks[i].address, block_size, stream) : cuMemcpyHtoDAsync_v2(blocks[i].address, host_pages[i], block_size, stream), "cuMemcpyAsync");
        must(cuStreamSynchronize(stream), "copies");
        begin = seconds() - begin;
        ANSWER("ok %.2f ms, %.2f GB/s", begin * 1e3, block_size * count / begin / 1e9);
    }
    if (IS("drop")) {
        for (int i = 0, count = number(&rest); i < count; i++) {
            if (!copies[i]) continue;
            if ((status = unmap_block(&blocks[i]))) ANSWER("no unmapping: status %#x", status);
            if ((status = release(&blocks[i].video, device_of(&blocks[i].video), copies[i]))) ANSWER("no free: status %#x", status);
            copies[i] = 0;
        }
        ANSWER("ok %.2f ms", (seconds() - begin) * 1e3);
    }
    ANSWER("no such order: %s", line);
}

/* ---- N, a neighbour ---- */
static void neighbour(char *line) {
    char *rest = line;
    static address many[512];
    double begin = seconds();
    if (IS("alloc")) {
        uint32_t add = number(&rest);
        must(allocate_block(&blocks[0]), "cuMemAlloc"), fill(blocks[0].address, block_size, add);
        ANSWER("ok");
    }
    if (IS("check")) ANSWER("%s", all_hold(1, number(&rest)) ? "ok right" : "no WRONG words");
    if (IS("fill")) { /* fill COUNT: takes, fills and frees */
        int count = number(&rest), got = 0;
        while (got < count && !cuMemAlloc_v2(&many[got], block_size)) got++;
        double took = seconds() - begin;
        for (int i = 0; i < got; i++) fill(many[i], block_size, 0x5eed);
        for (int i = 0; i < got; i++) must(cuMemFree_v2(many[i]), "cuMemFree");
        ANSWER("%s %d of %d blocks, allocated in %.1f ms", got == count ? "ok" : "no", got, count, took * 1e3);
    }
    if (IS("traces")) { /* traces ADD COUNT: of A's words, in COUNT blocks or as much as there is */
        uint32_t add = number(&rest), counts[2] = {0};
        int most = number(&rest), got = 0, code = 0;
        unsigned long long words = 0, left = 0, of_program = 0;
        while (got < most && got < 512 && !(code = cuMemAlloc_v2(&many[got], block_size))) got++;
        for (int i = 0; i < got; i++) {
            uint64_t count = block_size / 4;
            must(cuMemsetD32_v2(scratch, 0, 2), "cuMemsetD32");
            launch(kernel_traces, (void *[]){&many[i], &count, &add, &scratch}, "traces");
            must(cuCtxSynchronize(), "traces");
            must(cuMemcpyDtoH_v2(counts, scratch, 8), "cuMemcpyDtoH");
            words += count, left += counts[0], of_program += counts[1];
        }
        for (int i = 0; i < got; i++) must(cuMemFree_v2(many[i]), "cuMemFree");
        ANSWER("%s %d blocks (then code %d), %llu words: %llu not 0, %llu look like the program's", left ? "no" : "ok", got, code, words, left, of_program);
    }
    ANSWER("no such order: %s", line);
}
