/* What a program may do wrong: each time a status, one line, and nothing changed. */

#include "common.h"

#define KEY "0101010101010101010101010101010101010101010101010101010101010101"

static int descriptors;

/* The status, and a line that has these words. */
static void refused(int32_t status, int32_t expected, const char *cause, const char *remedy) {
    const char *line = weft_last_error();
    if (status != expected || strchr(line, '\n') != NULL || !strstr(line, cause) || !strstr(line, remedy)) {
        fprintf(stderr, "status %d, expected %d with %s and %s: %s\n", status, expected, cause, remedy, line);
        exit(1);
    }
    CHECK(count_entries("/proc/self/fd") == descriptors);
}

static void refused_text(const char *text, int tun, const char *cause) {
    weft_interface interface = 42;
    refused(weft_open(text, tun, NULL, &interface), WEFT_INVALID_TEXT, cause, "text");
    CHECK(interface == 42);
}

static void refused_descriptor(int descriptor, const char *cause) {
    weft_interface interface = 42;
    descriptors = count_entries("/proc/self/fd");
    refused(weft_open("set=1\n", descriptor, NULL, &interface), WEFT_INVALID_DESCRIPTOR, cause, "pass ");
    CHECK(interface == 42);
}

static int32_t from_callback = 1;
static weft_interface called_back;

/* Refuses, and calls weft from a callback. */
static int refuse(void *context, int descriptor) {
    (void)descriptor;
    if (called_back != 0) {
        from_callback = weft_stop(called_back);
        return 0;
    }
    return *(int *)context;
}

static void ignore(void *context, int level, const char *line) { (void)context, (void)level, (void)line; }

int main(void) {
    int tun = make_tun("mob0", IFF_TUN | IFF_NO_PI, "10.88.0.2"), ends[2], yes = 0, no = -1;
    weft_interface interface = 42;
    weft_options options = {.memory_limit = 1 << 20};
    char *text = NULL, *large = malloc((1 << 20) + 2);
    size_t count = 1;
    warm_up(tun);
    descriptors = count_entries("/proc/self/fd");

    refused(weft_open(NULL, tun, NULL, &interface), WEFT_INVALID_ARGUMENT, "text is NULL", "pass");
    refused(weft_open("set=1\n", tun, NULL, NULL), WEFT_INVALID_ARGUMENT, "interface is NULL", "pass");
    refused(weft_open("set=1\n", tun, &options, &interface), WEFT_INVALID_ARGUMENT, "memory limit", "16 MiB");
    refused_text("set=1\nprivate_key=\xff\xfe\n", tun, "not UTF-8");
    memset(large, '\n', (1 << 20) + 1);
    large[(1 << 20) + 1] = 0;
    refused_text(large, tun, "more than 1048576 bytes");
    refused_text("", tun, "set=1");
    refused_text("get=1\n\n", tun, "asks for the state");
    refused_text("set=1\nprivate_key=" KEY "0\n", tun, "line 2: private_key is not 64");
    refused_text("set=1\npublic_key=" KEY "\nendpoint=example.com:51820\n", tun, "line 3: endpoint is not an address");
    refused_text("set=1\nmtu=1280\n", tun, "line 2");
    CHECK(strstr(weft_last_error(), KEY) == NULL);

    refused_descriptor(-1, "descriptor -1 cannot be duplicated");
    refused_descriptor(999, "descriptor 999 cannot be duplicated");
    CHECK(pipe(ends) == 0);
    refused_descriptor(ends[0], "not an attached TUN queue");
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0);
    refused_descriptor(ends[1], "not an attached TUN queue");
    refused_descriptor(open("/dev/net/tun", O_RDWR), "not an attached TUN queue");
    refused_descriptor(make_tun("tap0", IFF_TAP | IFF_NO_PI, NULL), "without IFF_TUN");
    refused_descriptor(make_tun("info0", IFF_TUN, NULL), "packet information");

    options = (weft_options){.protect = refuse, .context = &no};
    refused(weft_open("set=1\n", tun, &options, &interface), WEFT_SYSTEM, "did not protect", "VpnService.prepare");

    for (uint64_t number = 0; number < 3; number++) {
        refused(weft_run(number), WEFT_INVALID_ARGUMENT, "no interface", "weft_open");
        refused(weft_set(number, "set=1\n"), WEFT_INVALID_ARGUMENT, "no interface", "weft_open");
        refused(weft_stop(number), WEFT_INVALID_ARGUMENT, "no interface", "weft_open");
        refused(weft_free(number), WEFT_INVALID_ARGUMENT, "no interface", "weft_open");
    }
    weft_free_text(NULL);
    refused(weft_set_logger(ignore, NULL, 6), WEFT_INVALID_ARGUMENT, "log level", "1 (error)");

    /* Before it runs. */
    options.context = &yes;
    CHECK(weft_open("set=1\nlisten_port=4242\n", tun, &options, &interface) == WEFT_OK && interface != 42);
    descriptors = count_entries("/proc/self/fd");
    refused(weft_get(interface, &text), WEFT_NOT_RUNNING, "does not run yet", "weft_run");
    refused(weft_set(interface, "set=1\n"), WEFT_NOT_RUNNING, "does not run yet", "weft_run");
    refused(weft_network_changed(interface), WEFT_NOT_RUNNING, "does not run yet", "weft_run");
    refused(weft_sockets(interface, NULL, NULL), WEFT_INVALID_ARGUMENT, "count is NULL", "pass");
    refused(weft_sockets(interface, NULL, &count), WEFT_INVALID_ARGUMENT, "descriptors is NULL", "pass");

    /* While it runs: another thread, bad requests, and calls from its callback. */
    pthread_t thread;
    struct runner runner = {.interface = interface, .status = 1};
    CHECK(pthread_create(&thread, NULL, run, &runner) == 0);
    await_running(interface);
    descriptors = count_entries("/proc/self/fd");
    refused(weft_run(interface), WEFT_BUSY, "runs on another thread", "once");
    refused(weft_set(interface, NULL), WEFT_INVALID_ARGUMENT, "text is NULL", "pass");
    refused(weft_set(interface, "set=1\nlisten_port=4243\nfwmark=x\n"), WEFT_INVALID_TEXT, "line 3: fwmark", "text");
    refused(weft_get(interface, NULL), WEFT_INVALID_ARGUMENT, "text is NULL", "pass");
    int other = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in taken = {.sin_family = AF_INET, .sin_port = htons(4244)};
    CHECK(bind(other, (struct sockaddr *)&taken, sizeof taken) == 0);
    descriptors = count_entries("/proc/self/fd");
    refused(weft_set(interface, "set=1\nlisten_port=4244\n"), WEFT_SYSTEM, "4244 is in use", "choose another");
    CHECK(weft_get(interface, &text) == WEFT_OK && strcmp(text, "listen_port=4242\n") == 0);
    weft_free_text(text);
    called_back = interface;
    CHECK(weft_network_changed(interface) == WEFT_OK);
    called_back = 0;
    CHECK(from_callback == WEFT_BUSY);
    CHECK(weft_get(interface, &text) == WEFT_OK && strcmp(text, "listen_port=4242\n") == 0);
    weft_free_text(text);

    /* After it ended, and after it was forgotten. */
    CHECK(weft_stop(interface) == WEFT_OK && weft_stop(interface) == WEFT_OK);
    CHECK(pthread_join(thread, NULL) == 0 && runner.status == WEFT_OK);
    descriptors = count_entries("/proc/self/fd");
    refused(weft_run(interface), WEFT_STOPPED, "has ended", "weft_open");
    refused(weft_get(interface, &text), WEFT_STOPPED, "has ended", "weft_open");
    refused(weft_set(interface, "set=1\n"), WEFT_STOPPED, "has ended", "weft_open");
    refused(weft_network_changed(interface), WEFT_STOPPED, "has ended", "weft_open");
    count = 0;
    refused(weft_sockets(interface, NULL, &count), WEFT_STOPPED, "has ended", "weft_open");
    CHECK(weft_free(interface) == WEFT_OK);
    refused(weft_free(interface), WEFT_INVALID_ARGUMENT, "no interface", "weft_open");

    /* The TUN is the program's still. */
    CHECK(weft_open("set=1\n", tun, NULL, &interface) == WEFT_OK && weft_free(interface) == WEFT_OK);

    /* A device that is gone ends the interface. */
    int gone = make_tun("gone0", IFF_TUN | IFF_NO_PI, NULL);
    CHECK(weft_open("set=1\n", gone, NULL, &interface) == WEFT_OK);
    runner = (struct runner){.interface = interface, .status = 1};
    CHECK(pthread_create(&thread, NULL, run, &runner) == 0);
    await_running(interface);
    CHECK(system("ip link del gone0") == 0);
    CHECK(pthread_join(thread, NULL) == 0 && runner.status == WEFT_SYSTEM);
    CHECK(strstr(runner.error, "is gone") != NULL && strstr(runner.error, "open another") != NULL);
    CHECK(weft_free(interface) == WEFT_OK);
    free(large);
    return 0;
}
