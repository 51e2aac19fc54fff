/* The least that mediation costs: runs a program under a seccomp notification filter of the driver's
 * calls, and does with each what any mediator has to, and nothing else: no accounts, no checks, one
 * process, one thread.
 *   notify-floor filter   -- PROGRAM ARGUMENT...   the filter alone, which allows every call
 *   notify-floor continue -- PROGRAM ARGUMENT...   each call is received, and continued by the kernel
 *   notify-floor answer   -- PROGRAM ARGUMENT...   each is copied, executed here, written back, answered
 *   notify-floor spin     -- PROGRAM ARGUMENT...   the same, looking for the next call without sleeping
 *   notify-floor times    -- PROGRAM ARGUMENT...   answer, and says what each step took (the clock included)
 * Calls whose parameters have pointers of their own are continued. Standard error says how many calls
 * came and how many were executed here. Exit code: the program's, or 1. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef SECCOMP_IOCTL_NOTIF_SET_FLAGS
#define SECCOMP_IOCTL_NOTIF_SET_FLAGS SECCOMP_IOW(4, __u64)
#endif
enum { SYNC_WAKE_UP = 1, THREAD = O_EXCL };
enum { LONGEST = 4096, FREE = 0x29, CONTROL = 0x2a, ALLOC = 0x2b, MAP_MEMORY = 0x4e, UNMAP_MEMORY = 0x4f };

enum step { RECEIVE, FILE_STEP, READ, VALID, EXECUTE, WRITE, SEND, STEPS };
static const char *step_names[STEPS] = {"receive and wait", "the file", "read", "still waiting?", "the driver", "write", "send"};
static double spent[STEPS];
static long calls, executed;
static int is_timed, is_spinning;
static double last;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec * 1e-3;
}

static void end_step(enum step step) {
    if (!is_timed) return;
    double at = now();
    spent[step] += at - last;
    last = at;
}

static void fail(const char *what) { perror(what); exit(1); }

/* As egpu's: the resource manager's commands by their type, unified memory's that are plain numbers. */
static int filter(unsigned action, unsigned flags) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_ioctl, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x100, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, action),
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xff00),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 'F' << 8, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, action),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) fail("PR_SET_NO_NEW_PRIVS");
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
}

struct caller { int tid, pidfd, memory; };

/* Opens the calling thread; the last one is kept. */
static struct caller *open_caller(int tid) {
    static struct caller all[64];
    static int count;
    for (int i = 0; i < count; i++) if (all[i].tid == tid) return &all[i];
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/mem", tid);
    struct caller *one = &all[count == 64 ? 63 : count++];
    *one = (struct caller){tid, syscall(SYS_pidfd_open, tid, THREAD), open(path, O_RDWR | O_CLOEXEC)};
    if (one->pidfd < 0 || one->memory < 0) fail("a calling thread");
    return one;
}

/* What a call's argument has at which place: its size, another file's descriptor, its parameters'
 * address and size. -1: none. */
struct shape { int size, file, parameters, parameters_size; };

static int shape_of(unsigned command, unsigned size, struct shape *shape) {
    *shape = (struct shape){size, -1, -1, -1};
    if (command == FREE || command == UNMAP_MEMORY) return 1;
    if (command == CONTROL) { shape->parameters = 16; shape->parameters_size = 24; return 1; }
    if (command == MAP_MEMORY) { shape->file = 48; return 1; }
    return 0;
}

static int shape_of_uvm(unsigned command, struct shape *shape) {
    static const struct { unsigned command; struct shape shape; } known[] = {
        {25, {32, 16, -1, -1}}, {27, {56, 16, -1, -1}}, {33, {9264, 9248, -1, -1}}, {34, {24, -1, -1, -1}},
        {37, {40, 24, -1, -1}}, {73, {24, -1, -1, -1}},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].command == command) { *shape = known[i].shape; return 1; }
    return 0;
}

/* Controls whose parameters have pointers. */
static int has_pointers(uint32_t control) {
    static const uint32_t known[] = {0x80170d, 0x20801201, 0x101, 0x127, 0x80280, 0x800201, 0x801102, 0x20801227,
                                     0x20800102, 0x20801802, 0x802880};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) if (known[i] == control) return 1;
    return control >> 8 == 0x3d;
}

static uint32_t word(const unsigned char *bytes, int at) { uint32_t value; memcpy(&value, bytes + at, 4); return value; }
static uint64_t address(const unsigned char *bytes, int at) { uint64_t value; memcpy(&value, bytes + at, 8); return value; }

static int duplicate(struct caller *caller, int fd) { return syscall(SYS_pidfd_getfd, caller->pidfd, fd, 0); }

/* Executes a call here. 0: it is one to be continued. */
static int execute(int listener, struct seccomp_notif *call, struct seccomp_notif_resp *answer) {
    static unsigned char argument[16384], parameters[1 << 20], before[1 << 20];
    unsigned command = call->data.args[1], number = command & 0xff;
    struct shape shape;
    int is_alloc = command >> 8 & 0xff && number == ALLOC;
    if (is_alloc) shape = (struct shape){command >> 16 & 0x3fff, -1, 16, -1};
    else if (command >> 8 ? !shape_of(number, command >> 16 & 0x3fff, &shape) : !shape_of_uvm(command, &shape)) return 0;

    struct caller *caller = open_caller(call->pid);
    int file = duplicate(caller, call->data.args[0]), other = -1;
    if (file < 0) fail("pidfd_getfd");
    end_step(FILE_STEP);
    if (pread(caller->memory, argument, shape.size, call->data.args[2]) != shape.size) fail("the argument");
    if (command >> 8 && number == CONTROL && has_pointers(word(argument, 8))) { close(file); return 0; }
    uint64_t place = shape.parameters < 0 ? 0 : address(argument, shape.parameters);
    uint64_t rights_place = is_alloc && shape.size >= 48 ? address(argument, 24) : 0, rights[2] = {0};
    ssize_t length = 0;
    if (place) {
        /* Nobody says how long an allocation's are: what is there of so many bytes is read. */
        size_t most = is_alloc ? LONGEST : word(argument, shape.parameters_size);
        if (most > sizeof parameters) { close(file); return 0; }
        if ((length = pread(caller->memory, parameters, most, place)) < 0) fail("the parameters");
        if (is_alloc) memset(parameters + length, 0, LONGEST - length);
        memcpy(before, parameters, length);
        uint64_t here = (uint64_t)(uintptr_t)parameters;
        memcpy(argument + shape.parameters, &here, 8);
    }
    if (rights_place) {
        if (pread(caller->memory, rights, 8, rights_place) != 8) fail("the rights");
        uint64_t here = (uint64_t)(uintptr_t)rights;
        memcpy(argument + 24, &here, 8);
    }
    int32_t named = shape.file < 0 ? -1 : (int32_t)word(argument, shape.file);
    if (named >= 0) {
        if ((other = duplicate(caller, named)) < 0) fail("pidfd_getfd of the other file");
        memcpy(argument + shape.file, &other, 4);
    }
    end_step(READ);
    if (ioctl(listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &call->id)) fail("NOTIF_ID_VALID");
    end_step(VALID);
    int returned = ioctl(file, command, argument);
    int error = returned < 0 ? errno : 0;
    end_step(EXECUTE);
    if (named >= 0) memcpy(argument + shape.file, &named, 4);
    if (place) memcpy(argument + shape.parameters, &place, 8);
    if (rights_place) memcpy(argument + 24, &rights_place, 8);
    if (!error) {
        ssize_t from = 0, to = length;
        while (from < to && parameters[from] == before[from]) from++;
        while (to > from && parameters[to - 1] == before[to - 1]) to--;
        if (to > from && pwrite(caller->memory, parameters + from, to - from, place + from) < 0) fail("writing parameters");
        if (pwrite(caller->memory, argument, shape.size, call->data.args[2]) != shape.size) fail("writing the argument");
    }
    close(file);
    if (other >= 0) close(other);
    end_step(WRITE);
    *answer = (struct seccomp_notif_resp){.id = call->id, .val = returned < 0 ? 0 : returned, .error = -error};
    executed++;
    return 1;
}

static void serve(int listener, int is_executing) {
    /* The two hand one processor to each other, or each has its own. */
    if (!is_spinning) ioctl(listener, SECCOMP_IOCTL_NOTIF_SET_FLAGS, SYNC_WAKE_UP);
    last = now();
    for (;;) {
        struct seccomp_notif call = {0};
        struct seccomp_notif_resp answer;
        struct pollfd next = {listener, POLLIN, 0};
        while (is_spinning && !poll(&next, 1, 0)) {}
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call)) {
            struct pollfd end = {listener, 0, 0};
            if (errno == EINTR || (poll(&end, 1, 0) == 0)) continue;
            return;
        }
        end_step(RECEIVE);
        calls++;
        if (!is_executing || !execute(listener, &call, &answer))
            answer = (struct seccomp_notif_resp){.id = call.id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
        ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
        end_step(SEND);
    }
}

static void send_file(int socket, int file) {
    union { struct cmsghdr header; char bytes[CMSG_SPACE(sizeof(int))]; } control = {0};
    struct iovec byte = {"", 1};
    struct msghdr message = {.msg_iov = &byte, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    control.header = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(&control.header), &file, sizeof file);
    if (sendmsg(socket, &message, 0) < 0) fail("sending the listener");
}

static int receive_file(int socket) {
    union { struct cmsghdr header; char bytes[CMSG_SPACE(sizeof(int))]; } control = {0};
    char byte;
    struct iovec into = {&byte, 1};
    struct msghdr message = {.msg_iov = &into, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    int file;
    if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) <= 0) fail("receiving the listener");
    memcpy(&file, CMSG_DATA(&control.header), sizeof file);
    return file;
}

int main(int count, char **arguments) {
    if (count < 4 || strcmp(arguments[2], "--")) { fprintf(stderr, "usage: see the head of notify_floor.c\n"); return 1; }
    const char *mode = arguments[1];
    is_timed = !strcmp(mode, "times");
    is_spinning = !strcmp(mode, "spin");
    int is_executing = is_timed || is_spinning || !strcmp(mode, "answer");
    if (!strcmp(mode, "filter")) {
        if (filter(SECCOMP_RET_ALLOW, 0)) fail("the filter");
        execvp(arguments[3], arguments + 3);
        fail(arguments[3]);
    }
    if (!is_executing && strcmp(mode, "continue")) { fprintf(stderr, "%s: no such mode\n", mode); return 1; }
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) fail("socketpair");
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) {
        int listener = filter(SECCOMP_RET_USER_NOTIF, SECCOMP_FILTER_FLAG_NEW_LISTENER);
        if (listener < 0) fail("the filter");
        send_file(ends[1], listener);
        close(listener);
        execvp(arguments[3], arguments + 3);
        fail(arguments[3]);
    }
    close(ends[1]);
    /* The driver wants who allocates to have the card's node open. */
    if (is_executing && open("/dev/nvidia0", O_RDWR | O_CLOEXEC) < 0) perror("/dev/nvidia0");
    serve(receive_file(ends[0]), is_executing);
    fprintf(stderr, "%ld calls, %ld executed\n", calls, executed);
    for (int step = 0; is_timed && step < STEPS; step++)
        fprintf(stderr, "  %-18s %10.0f us, %6.3f a call\n", step_names[step], spent[step], spent[step] / calls);
    int status;
    if (waitpid(child, &status, 0) != child) fail("waitpid");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
