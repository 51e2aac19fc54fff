/* Callers that stand still, or are interrupted all the time; a part of hostile.c. */
#include <linux/fuse.h>
#include <linux/userfaultfd.h>
#include <sys/stat.h>
#include <sys/time.h>

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
