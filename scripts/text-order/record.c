/* Record of the functions that a program executes; preloaded into it by scripts/text-order/order.py.
 *
 * Each function begins with a breakpoint, which the first to come by takes away and notes. RECORD_FUNCTIONS names the file
 * of offsets, in order. Each process that executes RECORD_PROGRAM writes a file, a byte a function, with a bit for what a
 * shim itself executes in its first seconds and one for all else, and what it forks writes the latter bit there:
 * RECORD_OUTPUT.shim.PID of one that has `-socket` among its arguments, a shim that serves, RECORD_OUTPUT.command.PID of
 * any other. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

enum { MOST = 1 << 18 };
static size_t offsets[MOST], count, base;
static unsigned char first[MOST], *executed;
/* The end of a shim's first seconds; 0 in commands and in what is forked, some of which must not make system calls. */
static int64_t *end_ms;
enum { FIRST_MS = 2000 };
enum { BY_IDLE_SHIM = 1, OTHERWISE = 2 };

static int64_t now_ms(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

static int compare(const void *left, const void *right)
{
    size_t a = *(const size_t *)left, b = *(const size_t *)right;
    return (a > b) - (a < b);
}

static void at_breakpoint(int number, siginfo_t *information, void *context)
{
    greg_t *rip = &((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    size_t offset = (size_t)*rip - 1 - base;
    size_t *found = bsearch(&offset, offsets, count, sizeof offset, compare);
    if (!found)
        abort();
    *(volatile unsigned char *)(base + offset) = first[found - offsets];
    __atomic_fetch_or(&executed[found - offsets], now_ms() <= *end_ms ? BY_IDLE_SHIM : OTHERWISE, __ATOMIC_RELAXED);
    --*rip;
}

/* The helper resets all signals. */
int sigaction(int number, const struct sigaction *action, struct sigaction *old)
{
    int (*next)(int, const struct sigaction *, struct sigaction *) = dlsym(RTLD_NEXT, "sigaction");
    return number == SIGTRAP ? 0 : next(number, action, old);
}

sighandler_t signal(int number, sighandler_t handler)
{
    sighandler_t (*next)(int, sighandler_t) = dlsym(RTLD_NEXT, "signal");
    return number == SIGTRAP ? SIG_DFL : next(number, handler);
}

static int open_text(struct dl_phdr_info *program, size_t size, void *unused)
{
    base = program->dlpi_addr;
    for (int i = 0; i < program->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &program->dlpi_phdr[i];
        size_t start = (base + part->p_vaddr) & ~4095UL;
        if (part->p_type == PT_LOAD && part->p_flags & PF_X)
            mprotect((void *)start, base + part->p_vaddr + part->p_memsz - start, PROT_READ | PROT_WRITE | PROT_EXEC);
    }
    return 1; /* the program alone, which comes first */
}

__attribute__((constructor)) static void begin(void)
{
    const char *program = getenv("RECORD_PROGRAM");
    if (strcmp(program_invocation_short_name, program) != 0)
        return;
    char text[4096] = "";
    int file = open("/proc/self/cmdline", O_RDONLY);
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    int is_shim = memmem(text, length < 0 ? 0 : length, "\0-socket", 9) != NULL;
    FILE *functions = fopen(getenv("RECORD_FUNCTIONS"), "r");
    while (count < MOST && fscanf(functions, "%zx", &offsets[count]) == 1)
        count++;
    fclose(functions);
    end_ms = mmap(NULL, sizeof *end_ms, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (end_ms == MAP_FAILED || madvise(end_ms, sizeof *end_ms, MADV_WIPEONFORK) != 0)
        abort();
    *end_ms = is_shim ? now_ms() + FIRST_MS : 0;
    snprintf(text, sizeof text, "%s.%s.%d", getenv("RECORD_OUTPUT"), is_shim ? "shim" : "command", getpid());
    file = open(text, O_RDWR | O_CREAT, 0600);
    if (ftruncate(file, count) != 0)
        abort();
    executed = mmap(NULL, count, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    dl_iterate_phdr(open_text, NULL);
    struct sigaction action = {.sa_sigaction = at_breakpoint, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    /* Another handler's breakpoints would overflow the signal stack. */
    sigfillset(&action.sa_mask);
    int (*next)(int, const struct sigaction *, struct sigaction *) = dlsym(RTLD_NEXT, "sigaction");
    next(SIGTRAP, &action, NULL);
    for (size_t i = 0; i < count; i++) {
        first[i] = *(unsigned char *)(base + offsets[i]);
        *(volatile unsigned char *)(base + offsets[i]) = 0xcc;
    }
}
