/* Programs that try to get more of a card than their container was granted, or to harm those who share it with them.
 * usage: hostile ATTACK [ARGUMENT...]. Prints what it got, one `name=value` a line; the test judges. Static, without NVIDIA's
 * libraries, so that nothing in it cooperates. */
#include "rm.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
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

#include "hostile_calls.c"
#include "hostile_races.c"
#include "hostile_floods.c"
#include "hostile_pinned.c"
#include "hostile_files.c"
#include "hostile_escapes.c"
#include "hostile_stalls.c"
#include "hostile_memory.c"
#include "hostile_cgroups.c"
#include "hostile_users.c"
#include "hostile_visible.c"

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
    {"garbage", attack_garbage}, {"flood", attack_flood}, {"flood-firmware", attack_flood_firmware}, {"lend", attack_lend}, {"borrow", attack_borrow}, {"keep", attack_keep},
    {"own-table", attack_own_table}, {"mknod", attack_mknod}, {"user-namespace", attack_user_namespace},
    {"listener", attack_listener}, {"block", attack_block}, {"fuse", attack_fuse}, {"stopped", attack_stopped}, {"signals", attack_signals},
    {"recycled", attack_recycled}, {"pin", attack_pin}, {"pin-mapped", attack_pin_mapped},
    {"race-pin", attack_race_pin}, {"managed", attack_managed}, {"grow", attack_grow}, {"remap", attack_remap},
    {"leaderless", attack_leaderless}, {"deep", attack_deep}, {"unified", attack_unified}, {"ice", attack_ice},
    {"sharer", attack_sharer}, {"hop", attack_hop}, {"leap", attack_leap}, {"idle", attack_idle}, {"mask", attack_mask}, {"masked", attack_masked}, {"slow", attack_slow},
    {"users", attack_users}, {"visible", attack_visible}, {"in-flight", attack_in_flight},
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
