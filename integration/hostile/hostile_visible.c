/* What a container sees of processes that the runtime makes in its pid namespace, until they execute; a part of hostile.c. */
#include <dirent.h>

static char others[64 << 10], own[64 << 10];

static ssize_t slurp(const char *process, const char *file, char *into) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%s/%s", process, file);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    ssize_t length = 0, got;
    while (length < (ssize_t)sizeof others - 1 && (got = read(fd, into + length, sizeof others - 1 - length)) > 0) length += got;
    close(fd);
    into[length] = 0;
    return length;
}
static void found(const char *process, const char *what, const char *text) {
    static int lines;
    if (lines++ < 50) printf("foreign %s of %s: %s\n", what, process, text);
}
/* Only what it was executed with is the runtime's: its name says so. */
static int is_runtime(const char *process) {
    return slurp(process, "comm", others) > 0 && (!strncmp(others, "egpu", 4) || !strncmp(others, "containerd", 10) || !strncmp(others, "runc", 4));
}
static void compare_directory(const char *process, const char *name) {
    char path[64];
    struct stat there, here;
    snprintf(path, sizeof path, "/proc/%s/%s", process, name);
    if (stat(path, &there) || stat("/", &here)) return;
    if (there.st_dev != here.st_dev || there.st_ino != here.st_ino) found(process, name, "not the container's root");
}
static void compare_namespaces(const char *process) {
    static const char *const names[] = {"mnt", "net", "ipc", "uts", "cgroup", "user", "pid"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[64], there[64] = "", here[64] = "";
        snprintf(path, sizeof path, "/proc/%s/ns/%s", process, names[i]);
        if (readlink(path, there, sizeof there - 1) < 0) continue;
        snprintf(path, sizeof path, "/proc/self/ns/%s", names[i]);
        if (readlink(path, here, sizeof here - 1) > 0 && strcmp(there, here)) found(process, "namespace", there);
    }
}
static void look_at_descriptors(const char *process) {
    static const char *const known[] = {"socket:", "pipe:", "anon_inode:", "/memfd:egpu-details", "/dev/null", "/dev/pts", "/dev/ptmx"};
    char path[64];
    snprintf(path, sizeof path, "/proc/%s/fd", process);
    DIR *directory = opendir(path);
    struct dirent *entry;
    while (directory && (entry = readdir(directory))) {
        char link[256] = "";
        if (readlinkat(dirfd(directory), entry->d_name, link, sizeof link - 1) < 0) continue;
        struct stat there, here;
        /* The container's own passwd, which is read for HOME. */
        int is_known = !fstatat(dirfd(directory), entry->d_name, &there, 0) && !stat(link, &here) && there.st_dev == here.st_dev && there.st_ino == here.st_ino;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++) is_known |= !strncmp(link, known[i], strlen(known[i]));
        if (!is_known) found(process, "descriptor", link);
    }
    if (directory) closedir(directory);
}
static unsigned long long capabilities(const char *process, const char *set) {
    if (slurp(process, "status", others) <= 0) return 0;
    char *line = strstr(others, set);
    return line ? strtoull(line + strlen(set), NULL, 16) : 0;
}
/* Arguments and environment are the shim's, or gone. */
static void look_at_text(const char *process, const char *file) {
    ssize_t length = slurp(process, file, others);
    for (ssize_t i = 0; i < length; i++)
        if (others[i]) {
            found(process, file, others + i);
            return;
        }
}
static void look_at(const char *process, unsigned long long allowed) {
    compare_directory(process, "root");
    compare_directory(process, "cwd");
    compare_namespaces(process);
    look_at_descriptors(process);
    static const char *const files[] = {"mountinfo", "net/unix", "net/route", "net/if_inet6"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (slurp(process, files[i], others) > 0 && slurp("self", files[i], own) >= 0 && strcmp(others, own))
            found(process, files[i], "not the container's");
    look_at_text(process, "cmdline");
    look_at_text(process, "environ");
    static const char *const sets[] = {"CapEff:", "CapPrm:", "CapBnd:", "CapInh:", "CapAmb:"};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        unsigned long long more = capabilities(process, sets[i]) & ~allowed;
        char text[64];
        snprintf(text, sizeof text, "%s %llx", sets[i], more);
        if (more) found(process, "capabilities", text);
    }
}
/* A process that another container's init is made of: in namespaces of its own by then, whichever. */
static void look_at_init(const char *process, char **hosts) {
    static const char *const names[] = {"mnt", "net", "ipc", "uts"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[64], there[64] = "";
        snprintf(path, sizeof path, "/proc/%s/ns/%s", process, names[i]);
        if (readlink(path, there, sizeof there - 1) > 0 && !strcmp(there, hosts[i])) found(process, "namespace", there);
    }
    look_at_text(process, "cmdline");
    look_at_text(process, "environ");
}
static void stop_process(long pid, const char *process) {
    kill(pid, SIGSTOP);
    while (slurp(process, "status", others) > 0 && !strstr(others, "State:\tT")) sched_yield();
}
/* visible [NAMESPACE...]: looks at each such process until there is a file /tmp/end; `seen=`: how many, `looks=`: how often.
 * With the host's namespaces: at inits of other containers that join this one's pid namespace. */
static void attack_visible(char **a) {
    unsigned long long allowed = capabilities("self", "CapBnd:");
    long last = getpid(), seen = 0, looks = 0;
    say("ready", 1);
    while (access("/tmp/end", F_OK)) {
        for (long pid = last + 1; pid < last + 24; pid++) {
            char process[24];
            snprintf(process, sizeof process, "%ld", pid);
            if (!is_runtime(process)) continue;
            seen++;
            /* Stopped, it is looked at as a whole; then it may go on a bit. */
            while (is_runtime(process)) {
                stop_process(pid, process);
                if (is_runtime(process)) a[0] ? look_at_init(process, a) : look_at(process, allowed), looks++;
                kill(pid, SIGCONT);
                sched_yield();
            }
            last = pid;
        }
        char *newest = slurp(".", "loadavg", others) > 0 ? strrchr(others, ' ') : NULL;
        if (newest && atol(newest) - 12 > last) last = atol(newest) - 12;
    }
    say("looks", looks);
    say("seen", seen);
}
