/* Other ways into the driver than the calls that its library makes; a part of hostile.c. */

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
