/* A program's video memory goes to the host and comes back by another process' copies: park SECTION [ARGUMENTS].
 * See NOTES.md for the sections and what each line proves. */
#include "hook.h"
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include "cuda.h"
#include "rm.h"
#include "roles.h"

enum { MFD_HUGE = 4 };
struct child { const char *name; pid_t pid; int socket; char text[8192]; };
static struct child A = {.name = "program"}, B = {.name = "copier"}, N = {.name = "neighbour"};
static int failures, pages_file = -1, old_huge = -1, count = 8;
static uint32_t add = 77;
static char program_blocks[1024], program_client[32];
static const char *self;

static void end(struct child *child) {
    if (child->pid <= 0) return;
    kill(child->pid, SIGKILL);
    waitpid(child->pid, 0, 0);
    close(child->socket);
    child->pid = 0;
}
static void set_huge(int pages) {
    FILE *file = fopen("/proc/sys/vm/nr_hugepages", "w");
    if (file) fprintf(file, "%d\n", pages), fclose(file);
}
static int get_huge(void) {
    int pages = -1;
    FILE *file = fopen("/proc/sys/vm/nr_hugepages", "r");
    if (file) { if (fscanf(file, "%d", &pages) != 1) pages = -1; fclose(file); }
    return pages;
}
static void finish(void) {
    end(&A), end(&B), end(&N);
    if (pages_file >= 0) close(pages_file);
    if (old_huge >= 0) set_huge(old_huge);
    fflush(stdout);
    _exit(failures != 0);
}
static void fail(const char *format, const char *a, const char *b) {
    printf(format, a, b);
    failures++;
    printf("FAILED: section ended early\n");
    finish();
}

static void start(struct child *child) {
    int pair[2];
    char size[32];
    snprintf(size, sizeof size, "%llu", (unsigned long long)block_size);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) fail("  %s%s\n", "socketpair", "");
    fflush(stdout);
    child->pid = fork();
    if (!child->pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(pair[1], ORDERS);
        if (pages_file >= 0) dup2(pages_file, PAGES);
        execl("/proc/self/exe", self, "role", child->name, size, (char *)0);
        _exit(127);
    }
    close(pair[1]);
    fcntl(pair[0], F_SETFD, FD_CLOEXEC);
    child->socket = pair[0];
}
/* An answer's line; 0 when it is "no", or the child is gone. */
static int hear(struct child *child, double limit) {
    size_t got = 0;
    double until = seconds() + limit;
    child->text[0] = 0;
    while (got + 1 < sizeof child->text) {
        struct pollfd ready = {child->socket, POLLIN, 0};
        int left = (until - seconds()) * 1e3;
        if (left <= 0 || poll(&ready, 1, left) <= 0) { snprintf(child->text, sizeof child->text, "no answer in %.0f s", limit); return 0; }
        if (read(child->socket, child->text + got, 1) != 1) { snprintf(child->text, sizeof child->text, "no, it is gone"); return 0; }
        if (child->text[got] == '\n') break;
        got++;
    }
    child->text[got] = 0;
    return !strncmp(child->text, "ok", 2);
}
static void tell(struct child *child, const char *order) {
    char line[4096];
    int length = snprintf(line, sizeof line, "%s \n", order);
    if (send(child->socket, line, length, MSG_NOSIGNAL) != length) printf("  %s takes no orders\n", child->name);
}
static int ask(struct child *child, const char *format, ...) {
    char order[4096];
    va_list list;
    va_start(list, format);
    vsnprintf(order, sizeof order, format, list);
    va_end(list);
    tell(child, order);
    return hear(child, 40);
}
#define MUST(child, ...) do { if (!ask(child, __VA_ARGS__)) { printf("  order: " __VA_ARGS__); puts(""); fail("  %s answers: %s\n", (child)->name, (child)->text); } } while (0)
static const char *after_ok(const struct child *child) { return strlen(child->text) > 3 ? child->text + 3 : ""; }

/* What is in use by NVML, in MiB. */
static long long mib(void) { return settled() >> 10; }

/* ---- The steps out and in ---- */
enum { OFF, TAKE, OUT, DROP, PLACE, FREE, VIDEO, TAKE_BACK, IN, DROP_BACK, BACK, ON, STEPS };
static const char *step_names[] = {"channels off", "B maps", "B copies out", "B unmaps", "host memory mapped", "video memory freed", "video memory again", "B maps", "B copies in", "B unmaps", "video memory mapped", "channels on"};
static double step_times[STEPS];
static struct child *step_child(int step) { return step == TAKE || step == OUT || step == DROP || step == TAKE_BACK || step == IN || step == DROP_BACK ? &B : &A; }
static void step_order(int step, char *order) {
    const char *orders[] = {"off", "take %d %s %s", "out %d", "drop %d", "place %d", "free %d", "video %d", "take %d %s %s", "in %d", "drop %d", "back %d", "on"};
    snprintf(order, 2048, orders[step], count, program_client, program_blocks);
}
static int run_step(int step) {
    char order[2048];
    struct child *child = step_child(step);
    double begin = seconds();
    step_order(step, order);
    tell(child, order);
    int good = hear(child, 40);
    step_times[step] = seconds() - begin;
    if (!good) printf("  step '%s': %s answers: %s\n", step_names[step], child->name, child->text);
    return good;
}
static void run_steps(int from, int to) {
    for (int step = from; step <= to; step++)
        if (!run_step(step)) fail("  %s%s\n", "no further after this step", "");
}
static double print_steps(int from, int to, const char *what) {
    double sum = 0;
    printf("  %s:", what);
    for (int step = from; step <= to; step++) sum += step_times[step], printf(" %s %.1f,", step_names[step], step_times[step] * 1e3);
    printf(" together %.1f ms for %d MiB\n", sum * 1e3, (int)(count * (block_size >> 20)));
    return sum;
}

static void start_program(void) {
    start(&A);
    if (!hear(&A, 40)) fail("  %s: %s\n", "program does not start", A.text);
}
static void program_allocates(void) {
    int at = 0;
    MUST(&A, "alloc %d %u", count, add);
    sscanf(A.text, "ok %31s %n", program_client, &at);
    snprintf(program_blocks, sizeof program_blocks, "%s", A.text + at);
}
/* The client's rights: the security token first (same user), else everybody. */
static int sharing = SHARE_SECURITY_TOKEN;
static void program_shares(void) {
    if (ask(&A, "share %d 0", sharing)) return;
    sharing = SHARE_ALL;
    MUST(&A, "share %d 0", sharing);
}
/* KIND: own4k, ownhuge: A's own class 0x71 of pages in a file that B has pinned, too; dup4k, duphuge: duplicates of B's 0x71;
 * alloc: duplicates of what B's cuMemHostAlloc made. */
static void make_pages(const char *kind) {
    int huge = strstr(kind, "huge") != 0;
    uint64_t size = block_size * count;
    if (!strcmp(kind, "alloc")) return;
    if (huge) {
        old_huge = get_huge();
        set_huge(size / PAGE_2M + 16);
        if (get_huge() < (int)(size / PAGE_2M)) printf("  no huge pages to be had (%d): pages of 4 KiB instead\n", get_huge()), huge = 0;
    }
    pages_file = memfd_create("host memory", MFD_CLOEXEC | (huge ? MFD_HUGE : 0));
    if (pages_file < 0 || ftruncate(pages_file, size)) fail("  %s: %s\n", "no file of pages", strerror(errno));
}
static char copier_buffers[1024];
static void start_copier(const char *kind) {
    start(&B);
    if (!hear(&B, 40)) fail("  %s: %s\n", "copier does not start", B.text);
    MUST(&B, "windows %d", count);
    printf("  copier: %s\n", after_ok(&B));
    MUST(&B, "share %d 0", sharing);
    MUST(&B, "buffers %d %d", count, !strcmp(kind, "alloc"));
    snprintf(copier_buffers, sizeof copier_buffers, "%.1000s", after_ok(&B));
    char *touching = strstr(copier_buffers, "touching");
    if (touching) printf("  copier's buffers: %s\n", touching), *touching = 0;
}
/* Host memory that can be mapped in the program: made beforehand, kept for good. */
static void program_hosts(const char *kind) {
    if (!strncmp(kind, "own", 3)) {
        MUST(&A, "pool %d", count);
        printf("  program's class 0x71, beforehand: %s\n", after_ok(&A));
        return;
    }
    char *next = copier_buffers;
    unsigned long client = strtoul(next, &next, 0);
    for (int i = 0; i < count; i++) {
        unsigned long handle = strtoul(next, &next, 0);
        if (!handle) fail("  %s%s\n", "libcuda made not just one object for a buffer of the copier's", "");
        MUST(&A, "adopt %d %#lx %#lx", i, client, handle);
    }
    printf("  duplicates of the copier's buffers in the program's client: the last one %s\n", after_ok(&A));
}
static void prepare(const char *kind) {
    make_pages(kind);
    start_program();
    program_allocates();
    program_shares();
    start_copier(kind);
    program_hosts(kind);
}
static void check_program(const char *when) {
    int good = ask(&A, "check %d %u", count, add);
    printf("  program's blocks %s: %s\n", when, A.text);
    failures += !good;
}
static void judge(int good, const char *what) {
    if (!good) printf("  WRONG: %s\n", what);
    failures += !good;
}

/* ---- Sections ---- */
/* Who may duplicate: by no share, by client, security token, all. And files. */
static void section_share(const char *kind) {
    (void)kind;
    count = 1;
    start_program();
    program_allocates();
    start(&B);
    if (!hear(&B, 40)) fail("  %s: %s\n", "copier does not start", B.text);
    MUST(&B, "windows 1");
    unsigned copier_client = 0;
    char *client = strstr(B.text, "client ");
    if (client) copier_client = strtoul(client + 7, 0, 0);
    ask(&B, "dup %s %s", program_client, program_blocks);
    printf("  duplicate with no share: %s (by the source: 0x1b, as only the same process may)\n", B.text);
    const struct { int type; unsigned target; const char *name; } kinds[] = {{SHARE_CLIENT, copier_client, "client"}, {SHARE_SECURITY_TOKEN, 0, "security token"}, {SHARE_ALL, 0, "all"}};
    int worked = 0;
    for (int one = 1; one >= 0; one--)
        for (int i = 0; i < 3; i++) {
            ask(&A, "%s %d %u", one ? "shareone" : "share", kinds[i].type, kinds[i].target);
            printf("  share of %s by %s: %s;", one ? "one object" : "the client", kinds[i].name, A.text);
            worked += ask(&B, "dup %s %s", program_client, program_blocks);
            printf(" duplicate: %s\n", B.text);
        }
    judge(worked > 0, "no policy lets the copier duplicate");
    ask(&A, "export");
    printf("  %s\n", A.text);
    check_program("at the end");
}

static void section_cycle(const char *kind) {
    prepare(kind);
    start(&N);
    if (!hear(&N, 40)) fail("  %s: %s\n", "neighbour does not start", N.text);
    MUST(&N, "alloc 99");
    check_program("at first");
    double until = seconds() + (getenv("CYCLE_SECONDS") ? atof(getenv("CYCLE_SECONDS")) : 4), best_out = 1e9, best_in = 1e9, worst_out = 0, worst_in = 0;
    int most = getenv("CYCLE_ROUNDS") ? atoi(getenv("CYCLE_ROUNDS")) : 50;
    long long at_first = mib();
    for (int round = 0; round == 0 || (seconds() < until && round < most); round++) {
        run_steps(OFF, FREE);
        double out = 0, in = 0;
        for (int step = OFF; step <= FREE; step++) out += step_times[step];
        if (round == 0) {
            print_steps(OFF, FREE, "out, ms");
            printf("  copies out %.2f GB/s\n", count * block_size / step_times[OUT] / 1e9);
            long long away = mib();
            printf("  in use: %lld MiB at first, %lld away: %lld given back\n", at_first, away, at_first - away);
            judge(at_first - away >= (long long)(count * (block_size >> 20)) * 255 / 256 - 2, /* page tables of 4 KiB pages take 1/512 */
                  "less is given back than has left");
            int good = ask(&N, "fill %d", count);
            printf("  neighbour: %s\n", N.text);
            judge(good, "the neighbour does not get the memory");
        } else if (!ask(&N, "fill %d", count)) {
            printf("  round %d: neighbour: %s\n", round, N.text), judge(0, "the neighbour does not get the memory");
        }
        run_steps(VIDEO, ON);
        for (int step = VIDEO; step <= ON; step++) in += step_times[step];
        if (round == 0) {
            print_steps(VIDEO, ON, "in, ms");
            printf("  copies in %.2f GB/s\n", count * block_size / step_times[IN] / 1e9);
            printf("  in use: %lld MiB\n", mib());
        }
        best_out = out < best_out ? out : best_out, best_in = in < best_in ? in : best_in;
        if (round) worst_out = out > worst_out ? out : worst_out, worst_in = in > worst_in ? in : worst_in;
        if (!ask(&A, "check %d %u", count, add)) { printf("  round %d: %s\n", round, A.text); judge(0, "the program's words"); break; }
        if (!ask(&A, "launch %d", count) || !ask(&A, "done 5000")) { judge(0, "the program's kernels"); break; }
        add++;
        if (seconds() >= until || round == most - 1) {
            print_steps(OFF, FREE, "last, out, ms");
            print_steps(VIDEO, ON, "last, in, ms");
            printf("  %d rounds; longest: out %.1f ms, in %.1f ms\n", round + 1, worst_out * 1e3, worst_in * 1e3);
            printf("  %d rounds; best: out %.1f ms (copies at %.2f GB/s in the last), in %.1f ms (%.2f GB/s)\n", round + 1, best_out * 1e3, count * block_size / step_times[OUT] / 1e9, best_in * 1e3,
                   count * block_size / step_times[IN] / 1e9);
        }
    }
    check_program("at the end");
    int good = ask(&N, "check 99");
    printf("  neighbour's block: %s\n", N.text);
    failures += !good;
    printf("  in use: %lld MiB, at first %lld\n", mib(), at_first);
}

/* A kernel is launched while the channels are off and the memory is away: who notices when, and does it run? */
static void section_demand(const char *kind) {
    prepare(kind);
    check_program("at first");
    if (!ask(&A, "launch %d", count) || !ask(&A, "done 5000")) fail("  %s: %s\n", "no kernel with the channels on", A.text); /* loads the kernel */
    add++;
    for (int round = 0; round < 5; round++) {
        double before, after, noticed, done, on;
        char userd[4096];
        run_steps(OFF, FREE);
        MUST(&A, "userd");
        snprintf(userd, sizeof userd, "%s", after_ok(&A));
        userd[sizeof userd - 64] = 0;
        MUST(&B, "watch 3000 %s", userd);
        if (round == 0) printf("  %s\n", B.text);
        usleep(200000 + round * 333);
        MUST(&A, "launch %d", count);
        sscanf(A.text, "ok %lf %lf", &before, &after);
        int seen = hear(&B, 10);
        sscanf(B.text, "%*s %lf", &noticed);
        printf("  launch took %.0f us; noticed %.2f ms after its beginning: %s\n", (after - before) * 1e6, (noticed - before) * 1e3, B.text);
        judge(seen, "the launch was not noticed");
        run_steps(VIDEO, ON);
        on = seconds();
        int ran = ask(&A, "done 1000");
        sscanf(A.text, "%*s %lf", &done);
        printf("  channels on %.2f ms after the launch was noticed; work done %.2f ms after that: %s\n", (on - noticed) * 1e3, (done - on) * 1e3, A.text);
        if (!ran) { /* the doorbell is lost: what makes it run? */
            ask(&A, "off"), ask(&A, "on"), ran = ask(&A, "done 1000");
            printf("  after off and on again: %s\n", A.text);
            if (!ran) ask(&A, "launch 0"), ask(&A, "launch 1"), ran = ask(&A, "done 1000"), printf("  after one more launch (of block 0): %s\n", A.text);
            judge(0, "work launched while the channels are off does not run by itself");
            return;
        }
        add++;
        check_program("after the work");
    }
    /* The poller's cost alone. */
    MUST(&A, "userd");
    char userd[4096];
    snprintf(userd, sizeof userd, "%s", after_ok(&A));
    MUST(&B, "watch 2000 %s", userd);
    hear(&B, 10);
    printf("  2 s of watching with nothing to see: %s\n", B.text);
    judge(!strncmp(B.text, "no", 2), "work was seen that nobody launched");
}

/* What a neighbour reads in memory that was the program's. */
static void section_scrub(const char *kind) {
    prepare(kind);
    check_program("at first");
    start(&N);
    if (!hear(&N, 40)) fail("  %s: %s\n", "neighbour does not start", N.text);
    run_steps(OFF, FREE);
    int good = ask(&N, "traces %u %d", add, count);
    printf("  neighbour's new blocks, at once: %s\n", N.text);
    judge(good, "new memory is not zeros");
    good = ask(&N, "traces %u 512", add);
    printf("  all of the card's memory that there is: %s\n", N.text);
    judge(good, "new memory is not zeros");
    run_steps(VIDEO, ON);
    check_program("at the end");
}

/* A or B is killed after a step, or in the middle of a copy. */
static void kill_once(const char *kind, struct child *victim, int step, int middle, long long idle) {
    printf("  %s killed %s '%s': ", victim->name, middle ? "in the middle of" : "after", step_names[step]);
    for (int i = OFF; i < step + !middle; i++)
        if (!run_step(i)) fail("  %s%s\n", "no further after this step", "");
    if (middle) {
        char order[2048];
        step_order(step, order);
        tell(step_child(step), order);
        usleep(1000 * (15 + count * 3));
    }
    end(victim);
    if (victim == &A) {
        if (middle && B.pid) hear(&B, 40), printf("the copier's copy: %s; ", B.text);
        long long held = mib();
        int good = ask(&B, "drop %d", count);
        long long now = mib();
        printf("in use %lld MiB, after the copier let go (%s) %lld, idle %lld\n", held, B.text, now, idle);
        judge(good, "the copier is not well");
        judge(now <= idle + 2, "memory is still in use");
        start_program(), program_allocates(), program_shares(), program_hosts(kind);
        return;
    }
    puts("a new copier goes on");
    start_copier(kind);
    int from = step == TAKE || step == OUT ? TAKE : step == TAKE_BACK || step == IN ? TAKE_BACK : step + 1;
    if (step < ON) run_steps(from, ON);
    check_program("    after all steps");
    if (strncmp(kind, "own", 3)) program_hosts(kind);
}
static void section_kill(const char *kind) {
    start(&N);
    if (!hear(&N, 40)) fail("  %s: %s\n", "neighbour does not start", N.text);
    MUST(&N, "alloc 99");
    long long alone = mib(), idle;
    prepare(kind);
    end(&A);
    idle = mib();
    printf("  in use: %lld MiB by the neighbour alone, %lld with an idle copier\n", alone, idle);
    start_program(), program_allocates(), program_shares(), program_hosts(kind);
    const struct { int step, middle; } points[] = {{OFF, 0}, {TAKE, 0}, {OUT, 1}, {PLACE, 0}, {FREE, 0}, {VIDEO, 0}, {IN, 1}, {BACK, 0}};
    for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
        kill_once(kind, &B, points[i].step, points[i].middle, idle);
        judge(ask(&N, "check 99"), "the neighbour's block");
    }
    for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
        kill_once(kind, &A, points[i].step, points[i].middle, idle);
        judge(ask(&N, "check 99"), "the neighbour's block");
    }
    end(&A), end(&B);
    long long last = mib();
    printf("  in use with the neighbour alone: %lld MiB, at first %lld\n", last, alone);
    judge(last <= alone, "memory is still in use");
}

static const struct { const char *name; void (*run)(const char *); } sections[] = {
    {"share", section_share}, {"cycle", section_cycle}, {"demand", section_demand}, {"scrub", section_scrub}, {"kill", section_kill},
};

static int be(const char *name, const char *size) {
    char line[4096];
    size_t got = 0;
    role = name, block_size = strtoull(size, 0, 0);
    void (*orders)(char *) = !strcmp(name, "program") ? program : !strcmp(name, "copier") ? copier : neighbour;
    fcntl(ORDERS, F_SETFD, FD_CLOEXEC);
    start_cuda();
    dprintf(ORDERS, "ok\n");
    while (read(ORDERS, line + got, 1) == 1) {
        if (line[got] != '\n') { got += got + 2 < sizeof line; continue; }
        line[got] = 0, got = 0;
        orders(line);
    }
    _exit(0);
}

int main(int arguments_count, char **arguments) {
    setvbuf(stdout, 0, _IOLBF, 0);
    self = arguments[0];
    quiet = 1;
    if (arguments_count == 4 && !strcmp(arguments[1], "role")) return be(arguments[2], arguments[3]);
    const char *name = arguments_count > 1 ? arguments[1] : "", *kind = arguments_count > 2 ? arguments[2] : "own4k";
    count = arguments_count > 3 ? atoi(arguments[3]) : 8;
    block_size = (uint64_t)(arguments_count > 4 ? atoi(arguments[4]) : 1024) << 20;
    if (count < 1 || count > MOST) count = 8;
    role = "parent";
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++) {
        if (strcmp(name, sections[i].name)) continue;
        int blocks_count = count;
        printf("==== %s %s %d blocks of %d MiB\n", name, kind, count, (int)(block_size >> 20));
        load_nvml();
        double begin = seconds();
        sections[i].run(kind);
        printf("%s: %s %s %d blocks of %d MiB, %d failures, %.1f s\n", failures ? "FAILED" : "PASSED", name, kind, blocks_count, (int)(block_size >> 20), failures, seconds() - begin);
        finish();
    }
    printf("park share|cycle|demand|scrub|kill [own4k|ownhuge|dup4k|duphuge|alloc [BLOCKS [MIB]]]\n");
    return 2;
}
