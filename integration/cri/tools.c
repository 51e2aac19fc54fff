/* What critest looks for in its images, under the name that it is called by: a web server (nginx), the program of its
   no-new-privileges image (nnp), ipcs -m and pgrep, which some builds of busybox lack.
   Built static by run.sh. */
#include <ctype.h>
#include <dirent.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void end(int signal) {
    (void)signal;
    _exit(0);
}

static int nginx(int port) {
    static const char answer[] = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\nConnection: close\r\n\r\nIt works!\n";
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    char request[4096];
    FILE *pid = fopen("/var/run/nginx.pid", "w");
    if (pid) {
        fprintf(pid, "%d\n", getpid());
        fclose(pid);
    }
    signal(SIGTERM, end);
    signal(SIGPIPE, SIG_IGN);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 16)) {
        perror("nginx");
        return 1;
    }
    printf("httpd: ready\n");
    fflush(stdout);
    for (;;) {
        int client = accept(listener, NULL, NULL);
        if (client < 0) continue;
        if (read(client, request, sizeof request) > 0 && write(client, answer, sizeof answer - 1) < 0) perror("nginx");
        close(client);
    }
}

static int ipcs(void) {
    FILE *table = fopen("/proc/sysvipc/shm", "r");
    char line[512];
    long key, id;
    if (!table) return 1;
    while (fgets(line, sizeof line, table))
        if (sscanf(line, "%ld %ld", &key, &id) == 2) printf("0x%08lx %ld\n", key, id);
    return 0;
}

static int pgrep(const char *wanted) {
    DIR *processes = opendir("/proc");
    struct dirent *entry;
    int status = 1;
    while (processes && (entry = readdir(processes))) {
        char path[300], name[64];
        FILE *comm;
        if (!isdigit((unsigned char)entry->d_name[0])) continue;
        snprintf(path, sizeof path, "/proc/%s/comm", entry->d_name);
        if (!(comm = fopen(path, "r"))) continue;
        if (fgets(name, sizeof name, comm) && strstr(name, wanted)) {
            puts(entry->d_name);
            status = 0;
        }
        fclose(comm);
    }
    return status;
}

int main(int count, char **arguments) {
    const char *slash = strrchr(arguments[0], '/'), *name = slash ? slash + 1 : arguments[0];
    if (!strcmp(name, "nnp")) return printf("Effective uid: %d\n", (int)geteuid()) < 0;
    if (!strcmp(name, "ipcs")) return ipcs();
    if (!strcmp(name, "pgrep") && count > 1) return pgrep(arguments[1]);
    if (!strcmp(name, "nginx") && count > 1) return nginx(atoi(arguments[1]));
    fprintf(stderr, "%s: unknown name or too few arguments\n", name);
    return 2;
}
