/* Carries a tunnel as an app does, ROUNDS times: tunnel ROUNDS TEXT. The peer answers at 10.88.0.1:7, and this machine
 * sends nothing to it that has no mark: the mark is what protect() does on Android.
 * Or carries one until its input ends: tunnel LIMIT TEXT BUFFER. The TUN takes BUFFER bytes that the kernel has not
 * handed on. */

#include "common.h"

static const int MARK = 0x77;
static int protected_sockets = 0, loud = 0;

static int protect(void *context, int descriptor) {
    CHECK(context == &protected_sockets);
    if (setsockopt(descriptor, SOL_SOCKET, SO_MARK, &MARK, sizeof MARK) != 0) return -1;
    __atomic_add_fetch(&protected_sockets, 1, __ATOMIC_SEQ_CST);
    return 0;
}

static int protected_now(void) { return __atomic_load_n(&protected_sockets, __ATOMIC_SEQ_CST); }

static void log_line(void *context, int level, const char *line) {
    CHECK(context == &loud && level >= 1 && level <= 2 && strchr(line, '\n') == NULL);
    fprintf(stderr, "weft: %s\n", line);
}

/* Sends until the echo of this number comes back. */
static void echo(int socket, unsigned number) {
    struct sockaddr_in peer = {.sin_family = AF_INET, .sin_port = htons(7)};
    unsigned back[256], out[256] = {number};
    CHECK(inet_pton(AF_INET, "10.88.0.1", &peer.sin_addr) == 1);
    for (int attempt = 0; attempt < 60; attempt++) {
        CHECK(sendto(socket, out, sizeof out, 0, (struct sockaddr *)&peer, sizeof peer) == sizeof out);
        while (recv(socket, back, sizeof back, 0) == sizeof back)
            if (back[0] == number) return;
    }
    CHECK(!"the peer answers");
}

static void carry(const char *text, int tun, int socket, unsigned round) {
    weft_options options = {.memory_limit = 50 << 20, .mtu = 1280, .protect = protect, .context = &protected_sockets};
    weft_interface interface = 0;
    pthread_t thread;
    int sockets[32], before = protected_now();
    size_t count = 32;
    char *state = NULL;
    CHECK(weft_open(text, tun, &options, &interface) == WEFT_OK && interface != 0);
    CHECK(weft_sockets(interface, sockets, &count) == WEFT_OK && count >= 1 && count <= 32);
    /* Every socket, before the first datagram. */
    CHECK(protected_now() == before + (int)count);
    for (size_t place = 0; place < count; place++) {
        int mark = 0;
        socklen_t len = sizeof mark;
        CHECK(getsockopt(sockets[place], SOL_SOCKET, SO_MARK, &mark, &len) == 0 && mark == MARK);
    }
    struct runner runner = {.interface = interface, .status = 1};
    CHECK(pthread_create(&thread, NULL, run, &runner) == 0);
    await_running(interface);
    echo(socket, 3 * round);

    before = protected_now();
    CHECK(weft_network_changed(interface) == WEFT_OK);
    CHECK(protected_now() > before);
    echo(socket, 3 * round + 1);

    CHECK(weft_set(interface, "set=1\nfwmark=119\n") == WEFT_OK);
    CHECK(weft_get(interface, &state) == WEFT_OK);
    CHECK(strstr(state, "fwmark=119\n") && !strstr(state, "last_handshake_time_sec=0\n") && !strstr(state, "errno"));
    weft_free_text(state);
    echo(socket, 3 * round + 2);

    CHECK(weft_stop(interface) == WEFT_OK);
    CHECK(pthread_join(thread, NULL) == 0 && runner.status == WEFT_OK);
    CHECK(weft_get(interface, &state) == WEFT_STOPPED);
    CHECK(weft_free(interface) == WEFT_OK);
}

/* A line of proc_pid_status(5), in KiB: VmRSS is the memory that the program uses, VmHWM the most that it has used. */
static long memory(const char *name) {
    char line[256];
    long kib = -1;
    FILE *status = fopen("/proc/self/status", "r");
    CHECK(status != NULL);
    while (fgets(line, sizeof line, status) != NULL)
        if (strncmp(line, name, strlen(name)) == 0) sscanf(line + strlen(name), ": %ld", &kib);
    fclose(status);
    CHECK(kib > 0);
    return kib;
}

/* The code of the program, up to its end. */
extern const volatile char __executable_start, etext;

/* Says when the tunnel carries packets and, at the end, how much memory it took at most. */
static void endure(const char *text, int tun, int socket, long limit, int buffer) {
    weft_options options = {.memory_limit = limit, .mtu = 1280, .protect = protect, .context = &protected_sockets};
    struct runner runner = {.status = 1};
    pthread_t thread;
    /* What is read of the code later must not count. */
    for (const volatile char *page = &__executable_start; page < &etext; page += 4096) (void)*page;
    long before = memory("VmRSS");
    CHECK(ioctl(tun, TUNSETSNDBUF, &buffer) == 0);
    CHECK(weft_open(text, tun, &options, &runner.interface) == WEFT_OK);
    CHECK(pthread_create(&thread, NULL, run, &runner) == 0);
    await_running(runner.interface);
    echo(socket, 1);
    puts("ready");
    fflush(stdout);
    CHECK(getchar() == EOF);
    /* It has outlived everything. */
    echo(socket, 2);
    printf("took %ld KiB\n", memory("VmHWM") - before);
    CHECK(weft_stop(runner.interface) == WEFT_OK);
    CHECK(pthread_join(thread, NULL) == 0 && runner.status == WEFT_OK);
    CHECK(weft_free(runner.interface) == WEFT_OK);
}

int main(int arguments, char **argument) {
    CHECK(arguments == 3 || arguments == 4);
    struct timeval patience = {.tv_sec = 1};
    struct sockaddr_in own = {.sin_family = AF_INET};
    int rounds = atoi(argument[1]), tun = make_tun("mob0", IFF_TUN | IFF_NO_PI, "10.88.0.2"), descriptors, threads;
    int inner = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    CHECK(inet_pton(AF_INET, "10.88.0.2", &own.sin_addr) == 1);
    CHECK(bind(inner, (struct sockaddr *)&own, sizeof own) == 0);
    CHECK(setsockopt(inner, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0);
    CHECK(weft_set_logger(log_line, &loud, 2) == WEFT_OK && strlen(weft_version()) > 0);
    if (arguments == 4) {
        endure(argument[2], tun, inner, atol(argument[1]), atoi(argument[3]));
        return 0;
    }
    warm_up(tun);
    descriptors = count_entries("/proc/self/fd");
    threads = count_entries("/proc/self/task");
    for (int round = 0; round < rounds; round++) {
        carry(argument[2], tun, inner, round);
        /* A peer answers fifty initiations a second; one that comes sooner is repeated after five seconds. */
        usleep(30000);
        CHECK(count_entries("/proc/self/fd") == descriptors);
        CHECK(count_entries("/proc/self/task") == threads);
    }
    CHECK(weft_set_logger(NULL, NULL, 0) == WEFT_OK);
    printf("%d rounds, peak %ld KiB\n", rounds, memory("VmHWM"));
    return 0;
}
