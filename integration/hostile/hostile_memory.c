/* Managed memory, and such as is to be found by nobody; a part of hostile.c. */
#include <dirent.h>

/* UVM_INITIALIZE: its status. */
static long initialize(int uvm) {
    uint64_t call[2] = {0};
    return ioctl(uvm, 0x30000001, call) < 0 ? -errno : (long)(uint32_t)call[1];
}
/* Much for who looks through what processes have mapped, before what comes after it. */
static void decoy(int ready) {
    char *room = mmap(NULL, 60000 * 4096ull, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < 60000; i += 2) mprotect(room + i * 4096ull, 4096, PROT_NONE);
    if (write(ready, "x", 1) != 1) die("write");
}

/* managed MIB: mmap of /dev/nvidia-uvm, offset the address, as libcuda does for cudaMallocManaged. */
static void attack_managed(char **a) {
    struct session s = begin();
    int uvm = xopen("/dev/nvidia-uvm");
    say("initialize", initialize(uvm));
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
    uint64_t address = 0x200000000000ull;
    initialize(uvm);
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
    uint64_t address = 0x200000000000ull;
    say("initialize", initialize(uvm));
    void *at = mmap((void *)address, 16 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, uvm, address);
    say("mapped", at == MAP_FAILED ? -errno : 0);
    say("grown", mremap(at, 16 * MIB, number(a, 0, 64) * MIB, 0) == MAP_FAILED ? -errno : 0);
    for (;;) pause();
}

/* remap MIB: managed memory that is moved, and mapped where it is then by remap_file_pages: no mmap is called for that. */
static void attack_remap(char **a) {
    struct session s = begin();
    (void)s;
    int uvm = xopen("/dev/nvidia-uvm");
    uint64_t size = number(a, 0, 256) * MIB, from = 0x200000000000ull, to = 0x210000000000ull;
    say("initialize", initialize(uvm));
    void *at = mmap((void *)from, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, uvm, from);
    say("mapped", at == MAP_FAILED ? -errno : 0);
    at = mremap(at, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)to);
    say("moved", at == MAP_FAILED ? -errno : 0);
    say("remapped", syscall(SYS_remap_file_pages, to, size, 0, to / 4096, 0) < 0 ? -errno : 0);
    for (;;) pause();
}

/* sharer MIB UNPLACED: managed memory that is charged to nobody, in an address space whose first process makes no driver call. */
static int sharer_fd, sharer_uvm, sharer_plain;
static void *sharer_swap(void *nothing) {
    (void)nothing;
    while (!atomic_load(&stop)) {
        dup2(sharer_uvm, sharer_fd);
        dup2(sharer_plain, sharer_fd);
    }
    return NULL;
}
/* A descriptor that is of UVM now and of a plain file then. */
static void exchange(void) {
    sharer_uvm = xopen("/dev/nvidia-uvm");
    sharer_plain = syscall(SYS_memfd_create, "plain", 0);
    sharer_fd = dup(sharer_plain);
    pthread_t thread;
    pthread_create(&thread, NULL, sharer_swap, NULL);
}
static int sharer_is_uvm(unsigned long at) {
    char line[512], begin[32];
    snprintf(begin, sizeof begin, "%lx-", at);
    FILE *maps = fopen("/proc/self/maps", "r");
    int is = 0;
    while (fgets(line, sizeof line, maps))
        if (strncmp(line, begin, strlen(begin)) == 0) is = strstr(line, "nvidia-uvm") != NULL;
    fclose(maps);
    return is;
}
/* Where a mapping is asked for, and at which offset so that it is managed memory: one that the kernel rounds down, or where it would place it. */
static unsigned long hint, address;
static void choose(char **a, uint64_t size) {
    hint = 0x200000000001ul, address = 0x200000000000ul;
    if (!number(a, 1, 0)) return;
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, sharer_plain, 4096);
    if (at == MAP_FAILED) die("mmap");
    munmap(at, size);
    hint = 0, address = (unsigned long)at;
}
static int sharer_child(void *arguments) {
    uint64_t size = number(arguments, 0, 8192) * MIB;
    struct session s = begin();
    uint64_t piece = 256 * MIB;
    uint32_t handle = 0;
    say("first", memory(&s, &piece, &handle));
    say("initialize", initialize(sharer_uvm));
    int tries = 0, refused = 0, plain = 0;
    choose(arguments, size);
    for (; tries < 30000; tries++) {
        void *at = mmap((void *)hint, size, PROT_READ | PROT_WRITE, MAP_SHARED, sharer_fd, address);
        if (at == MAP_FAILED) { refused++; continue; }
        if (at == (void *)address && sharer_is_uvm(address)) break;
        plain++;
        munmap(at, size);
    }
    atomic_store(&stop, 1);
    say("tries", tries); say("refused", refused); say("plain", plain);
    say("mapped", sharer_is_uvm(address));
    for (;;) pause();
}
static void attack_sharer(char **a) {
    exchange();
    char *stack = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    long child = clone(sharer_child, stack + (1 << 20), CLONE_VM | CLONE_FILES | SIGCHLD, a);
    (void)child;
    for (;;) syscall(SYS_pause);
}

/* hop MIB UNPLACED MICROSECONDS: the same, in an address space that goes from one process to the next. */
static char *hop_stack[2];
static long hop_pause;
static int hop_next(void *arguments) {
    long which = (long)arguments;
    struct timespec t = {0, hop_pause};
    syscall(SYS_nanosleep, &t, NULL);
    clone(hop_next, hop_stack[which ^ 1] + (1 << 16), CLONE_VM | CLONE_FILES | SIGCHLD, (void *)(which ^ 1));
    syscall(SYS_exit, 0);
    return 0;
}
static void attack_hop(char **a) {
    uint64_t size = number(a, 0, 8192) * MIB;
    hop_pause = (long)number(a, 2, 2000) * 1000;
    signal(SIGCHLD, SIG_IGN);
    int ready[2];
    if (pipe(ready)) die("pipe");
    if (fork() == 0) {
        for (int i = 0; i < 2; i++)
            hop_stack[i] = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        char byte;
        if (read(ready[0], &byte, 1) != 1) die("read");
        exchange();
        struct session s = begin();
        uint64_t piece = 256 * MIB;
        uint32_t handle = 0;
        say("first", memory(&s, &piece, &handle));
        initialize(sharer_uvm);
        choose(a, size);
        for (;;) {
            void *at = mmap((void *)hint, size, PROT_READ | PROT_WRITE, MAP_SHARED, sharer_fd, address);
            if (at == MAP_FAILED) continue;
            if (at == (void *)address && sharer_is_uvm(address)) break;
            munmap(at, size);
        }
        say("mapped", 1);
        atomic_store(&stop, 1);
        clone(hop_next, hop_stack[0] + (1 << 16), CLONE_VM | CLONE_FILES | SIGCHLD, (void *)0);
        syscall(SYS_exit_group, 0);
    }
    decoy(ready[1]);
    say("decoy", 1);
    for (;;) pause();
}

/* leap MIB: no race: who has mapped executes another program, and the address space lives on in others. */
static char *leap_stack[64];
static volatile uint64_t leap_piece, leap_at = 0x200000000000ull, leap_got;
static double leap_last;
static int leap_next(void *arguments) {
    long which = (long)arguments, next = (which + 1) % 64;
    struct timespec t = {0, 2000000};
    syscall(SYS_nanosleep, &t, NULL);
    if (now() > leap_last + 3) {
        leap_last = now();
        long at = syscall(SYS_mmap, leap_at, leap_piece, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, sharer_uvm, leap_at);
        if (at > 0) {
            leap_at += leap_piece + 2 * MIB, leap_got += leap_piece;
            clone(leap_next, leap_stack[next] + (1 << 14), CLONE_VM | CLONE_FILES | SIGCHLD, (void *)next);
            char *arguments[] = {"hostile", "idle", NULL}, *none[] = {NULL};
            syscall(SYS_execve, "/bin/hostile", arguments, none);
        }
    }
    clone(leap_next, leap_stack[next] + (1 << 14), CLONE_VM | CLONE_FILES | SIGCHLD, (void *)next);
    syscall(SYS_exit, 0);
    return 0;
}
static void attack_idle(char **a) {
    (void)a;
    struct rm_alloc call = {.class = 0x41};
    ioctl(-1, RM(0x2b, struct rm_alloc), &call);
    for (;;) pause();
}
static void attack_leap(char **a) {
    leap_piece = number(a, 0, 256) * MIB;
    signal(SIGCHLD, SIG_IGN);
    int ready[2];
    if (pipe(ready)) die("pipe");
    if (fork() == 0) {
        for (int i = 0; i < 64; i++)
            leap_stack[i] = mmap(NULL, 1 << 14, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        char byte;
        if (read(ready[0], &byte, 1) != 1) die("read");
        sharer_uvm = xopen("/dev/nvidia-uvm");
        initialize(sharer_uvm);
        clone(leap_next, leap_stack[0] + (1 << 14), CLONE_VM | CLONE_FILES | SIGCHLD, (void *)0);
        syscall(SYS_exit_group, 0);
    }
    decoy(ready[1]);
    double begin = now();
    unsigned long most = 0;
    while (now() < begin + 60) {
        DIR *proc = opendir("/proc");
        struct dirent *entry;
        while ((entry = readdir(proc))) {
            if (entry->d_name[0] < '1' || entry->d_name[0] > '9' || atoi(entry->d_name) == getpid()) continue;
            char path[64], line[512];
            snprintf(path, sizeof path, "/proc/%s/maps", entry->d_name);
            FILE *maps = fopen(path, "r");
            if (!maps) continue;
            unsigned long sum = 0, from, to;
            while (fgets(line, sizeof line, maps))
                if (strstr(line, "nvidia-uvm") && sscanf(line, "%lx-%lx", &from, &to) == 2) sum += to - from;
            fclose(maps);
            if (sum > most) most = sum, say("most", most);
        }
        closedir(proc);
        usleep(1000);
    }
    for (;;) pause();
}

/* mask MIB: a process executes another program, whose first thread ends so that the kernel says less of it, while its old memory lives on in
 * another process. What it maps then is not to pass for mapped there. */
static int mask_child(void *nothing) {
    (void)nothing;
    for (;;) syscall(SYS_pause);
    return 0;
}
static void attack_mask(char **a) {
    int uvm = xopen("/dev/nvidia-uvm");
    initialize(uvm);
    static char stack[1 << 14] __attribute__((aligned(64)));
    if (clone(mask_child, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL) < 0) die("clone");
    char *arguments[] = {"hostile", "masked", a[0], NULL}, *none[] = {NULL};
    execve("/bin/hostile", arguments, none);
    die("execve");
}
static void *masked_thread(void *arguments) {
    uint64_t piece = number(arguments, 0, 400) * MIB, at = 0x200000000000ull, got = 0;
    usleep(200000);
    int uvm = xopen("/dev/nvidia-uvm");
    initialize(uvm);
    for (int i = 0; i < 4; i++, at += piece + 2 * MIB) {
        if (mmap((void *)at, piece, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, uvm, (long)at) != MAP_FAILED) got += piece;
        /* For the accounts to be compared. */
        sleep(3);
    }
    say("got", (long)got);
    for (;;) pause();
    return NULL;
}
static void attack_masked(char **a) {
    pthread_t thread;
    pthread_create(&thread, NULL, masked_thread, a);
    syscall(SYS_exit, 0);
}

/* slow MIB UNPLACED PROCESSES: so much to be read before the process that has it that nobody gets there. */
static int slow_child(void *nothing) {
    (void)nothing;
    for (;;) syscall(SYS_pause);
    return 0;
}
static void attack_slow(char **a) {
    int ready[2];
    if (pipe(ready)) die("pipe");
    char name[250];
    memset(name, 'n', 249), name[249] = 0;
    int fd = (int)syscall(SYS_memfd_create, name, 0);
    if (fd < 0 || ftruncate(fd, 4096)) die("memfd");
    if (fork() == 0) {
        int n = 0;
        while (n < 64000 && mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) != MAP_FAILED) n++;
        say("mappings", n);
        static char stacks[400][1024] __attribute__((aligned(64)));
        long i, count = (long)number(a, 2, 100);
        for (i = 0; i < count && i < 400; i++)
            if (clone(slow_child, stacks[i] + 1024, CLONE_VM | CLONE_FILES | SIGCHLD, NULL) < 0) break;
        say("processes", i);
        if (write(ready[1], "x", 1) != 1) die("write");
        for (;;) pause();
    }
    char byte;
    if (read(ready[0], &byte, 1) != 1) die("read");
    pid_t mapper = fork();
    if (mapper == 0) {
        exchange();
        sharer_child(a);
    }
    int status = 0;
    waitpid(mapper, &status, 0);
    say("killed", WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    for (;;) pause();
}
