/* What root with all capabilities of a user namespace does; a part of hostile.c. */
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
