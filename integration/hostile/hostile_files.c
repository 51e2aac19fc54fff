/* Files of the driver in hands that they were not given to; a part of hostile.c. */
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>

static int unix_socket(const char *path, struct sockaddr_un *address) {
    address->sun_family = AF_UNIX;
    memset(address->sun_path, 0, sizeof address->sun_path);
    snprintf(address->sun_path, sizeof address->sun_path, "%s", path);
    /* @NAME: in the network namespace, and in no directory. */
    if (path[0] == '@') address->sun_path[0] = 0;
    return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
}
struct passed {
    uint32_t client, device;
};
/* lend PATH|@NAME [MIB]: takes so much memory, and gives its control file, and the numbers on it, to whoever connects. */
static void attack_lend(char **a) {
    struct session s = begin();
    if (a[0] && a[1]) {
        uint64_t size = strtoull(a[1], NULL, 0) * MIB;
        uint32_t taken = 0;
        say("status", memory(&s, &size, &taken));
    }
    struct sockaddr_un address;
    int listener = unix_socket(a[0], &address);
    if (bind(listener, (void *)&address, sizeof address) || (a[0][0] != '@' && chmod(a[0], 0777)) || listen(listener, 4)) die("listen");
    say("listening", 1);
    for (;;) {
        int peer = accept(listener, NULL, NULL);
        struct passed numbers = {s.client, s.device};
        struct iovec iov = {&numbers, sizeof numbers};
        union {
            char bytes[CMSG_SPACE(2 * sizeof(int))];
            struct cmsghdr align;
        } control = {{0}};
        struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(2 * sizeof(int));
        memcpy(CMSG_DATA(header), (int[]){s.control, s.card}, 2 * sizeof(int));
        /* Another test may have used up what a user may have on its way. */
        while (sendmsg(peer, &message, 0) < 0)
            if (errno != ETOOMANYREFS || usleep(10000)) die("sendmsg");
        close(peer);
    }
}
/* Takes the files that somebody lends at PATH, and what he says of them. */
static struct passed receive(const char *path, int fds[2]) {
    struct sockaddr_un address;
    int peer = unix_socket(path, &address);
    if (connect(peer, (void *)&address, sizeof address)) die("connect");
    struct passed numbers;
    struct iovec iov = {&numbers, sizeof numbers};
    union {
        char bytes[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    if (recvmsg(peer, &message, MSG_CMSG_CLOEXEC) <= 0) die("recvmsg");
    memcpy(fds, CMSG_DATA(CMSG_FIRSTHDR(&message)), 2 * sizeof *fds);
    return numbers;
}
/* keep PATH: takes somebody else's files, and has them until it ends. */
static void attack_keep(char **a) {
    int fds[2];
    receive(a[0], fds);
    say("kept", 1);
    for (;;) pause();
}
/* borrow PATH: takes memory through the file of somebody else, as him and as itself. */
static void attack_borrow(char **a) {
    int fds[2];
    struct passed numbers = receive(a[0], fds);
    struct session theirs = {fds[0], fds[1], numbers.client, numbers.device, 0}, own;
    uint64_t size = 64 * MIB;
    uint32_t handle = 0;
    struct rm_alloc nobody = {.class = 0x41};
    say("nowhere", ioctl(-1, RM(0x2b, struct rm_alloc), &nobody) < 0 ? -errno : 0);
    say("as_them", memory(&theirs, &size, &handle));
    long status = begin_on(&own, fds[0], fds[1]), last = status;
    say("begin", status);
    say("got", status ? 0 : fill(&own, 64 * MIB, &last));
    say("status", last);
    struct rm_dup dup = {.client = status ? numbers.client : own.client, .parent = status ? numbers.device : own.device, .source_client = numbers.client, .source = numbers.device};
    say("dup", ioctl(fds[0], RM(0x34, struct rm_dup), &dup) < 0 ? -errno : (long)dup.status);
    say("free", rm_free(fds[0], numbers.client, numbers.client));
    for (;;) pause();
}
static void *own_files(void *session) {
    struct session *s = session;
    if (unshare(CLONE_FILES)) die("unshare");
    /* The numbers mean other files here than in the rest of the process. */
    int control = xopen("/dev/nvidiactl");
    dup2(control, 400);
    uint64_t got = 0;
    long last = 0;
    struct session own;
    long status = begin_on(&own, 400, s->card);
    say("begin", status);
    if (!status) got = fill(&own, 64 * MIB, &last);
    say("got", got);
    say("status", status ? status : last);
    return NULL;
}
/* A thread with a table of descriptors of its own. */
static void attack_own_table(char **a) {
    (void)a;
    struct session s = begin();
    dup2(open("/dev/null", O_RDWR), 400);
    pthread_t thread;
    pthread_create(&thread, NULL, own_files, &s);
    pthread_join(thread, NULL);
    uint64_t size = 1 * MIB;
    uint32_t handle = 0;
    say("afterwards", memory(&s, &size, &handle));
    for (;;) pause();
}
/* mknod MINOR: another card's node. */
static void attack_mknod(char **a) {
    if (mkdir("/tmp", 0777) && errno != EEXIST) die("/tmp");
    unlink("/tmp/card");
    int made = mknod("/tmp/card", S_IFCHR | 0666, makedev(195, number(a, 0, 1)));
    say("mknod", made ? -errno : 0);
    int fd = open("/tmp/card", O_RDWR);
    say("open", fd < 0 ? -errno : 0);
}
/* in-flight: keeps as many descriptors on their way in sockets as its user may have. */
static void attack_in_flight(char **a) {
    (void)a;
    enum { MOST = 253 };
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    int file = open("/dev/null", O_RDONLY), fds[MOST];
    for (int i = 0; i < MOST; i++) fds[i] = file;
    struct iovec iov = {"", 1};
    union {
        char bytes[CMSG_SPACE(sizeof fds)];
        struct cmsghdr align;
    } control = {{0}};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(sizeof fds);
    memcpy(CMSG_DATA(header), fds, sizeof fds);
    long sent = 0;
    int pair[2] = {-1, -1};
    for (;;) {
        if (pair[0] < 0 && socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair)) break;
        if (sendmsg(pair[0], &message, MSG_DONTWAIT) >= 0) sent += MOST;
        else if (errno == EAGAIN) pair[0] = -1;
        else break;
    }
    say("error", errno);
    say("sent", sent);
    for (;;) pause();
}
