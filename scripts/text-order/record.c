/* Record of the functions that a program executes; preloaded into it by scripts/text-order/order.py.
 *
 * Each function begins with a breakpoint, which the first to come by takes away and notes. RECORD_FUNCTIONS names the file
 * of offsets, in order; each process that is executed and has `-socket` among its arguments, a shim that serves, writes
 * RECORD_OUTPUT.PID, a byte a function: 1 executed by it in the first seconds, 0 not. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
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
static pid_t shim;
static time_t end;
enum { SECONDS = 2 };

static time_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec;
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
    if (getpid() == shim && now() <= end)
        executed[found - offsets] = 1;
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
    char text[4096] = "";
    int file = open("/proc/self/cmdline", O_RDONLY);
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    if (!memmem(text, length < 0 ? 0 : length, "\0-socket", 9))
        return;
    FILE *functions = fopen(getenv("RECORD_FUNCTIONS"), "r");
    while (count < MOST && fscanf(functions, "%zx", &offsets[count]) == 1)
        count++;
    fclose(functions);
    shim = getpid();
    end = now() + SECONDS;
    snprintf(text, sizeof text, "%s.%d", getenv("RECORD_OUTPUT"), shim);
    file = open(text, O_RDWR | O_CREAT, 0600);
    if (ftruncate(file, count) != 0)
        abort();
    executed = mmap(NULL, count, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    dl_iterate_phdr(open_text, NULL);
    struct sigaction action = {.sa_sigaction = at_breakpoint, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
    int (*next)(int, const struct sigaction *, struct sigaction *) = dlsym(RTLD_NEXT, "sigaction");
    next(SIGTRAP, &action, NULL);
    for (size_t i = 0; i < count; i++) {
        first[i] = *(unsigned char *)(base + offsets[i]);
        *(volatile unsigned char *)(base + offsets[i]) = 0xcc;
    }
}
