/* What both programs share: a TUN as an app has it, and checks that end the program. */

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "weft.h"

#define CHECK(condition)                                                                             \
    do {                                                                                             \
        if (!(condition)) {                                                                          \
            fprintf(stderr, "%s:%d: %s: %m (%s)\n", __FILE__, __LINE__, #condition, weft_last_error()); \
            exit(1);                                                                                 \
        }                                                                                            \
    } while (0)

static inline int count_entries(const char *directory) {
    int entries = 0;
    DIR *open = opendir(directory);
    CHECK(open != NULL);
    while (readdir(open) != NULL) entries++;
    closedir(open);
    return entries;
}

/* A new device with these flags, up, with an address of 10.88.0.0/24 unless it is NULL. */
static inline int make_tun(const char *name, int flags, const char *address) {
    struct ifreq request = {0};
    struct sockaddr_in *inet = (struct sockaddr_in *)&request.ifr_addr;
    int tun = open("/dev/net/tun", O_RDWR | O_CLOEXEC), control = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    CHECK(tun >= 0 && control >= 0);
    strncpy(request.ifr_name, name, IFNAMSIZ - 1);
    request.ifr_flags = flags;
    CHECK(ioctl(tun, TUNSETIFF, &request) == 0);
    if (address != NULL) {
        inet->sin_family = AF_INET;
        CHECK(inet_pton(AF_INET, address, &inet->sin_addr) == 1);
        CHECK(ioctl(control, SIOCSIFADDR, &request) == 0);
        CHECK(inet_pton(AF_INET, "255.255.255.0", &inet->sin_addr) == 1);
        CHECK(ioctl(control, SIOCSIFNETMASK, &request) == 0);
    }
    CHECK(ioctl(control, SIOCGIFFLAGS, &request) == 0);
    request.ifr_flags |= IFF_UP;
    CHECK(ioctl(control, SIOCSIFFLAGS, &request) == 0);
    close(control);
    return tun;
}

/* What the first interface of a process leaves to the next: the runtime keeps two descriptors where another crate of
 * the build handles signals. */
static inline void warm_up(int tun) {
    weft_interface interface;
    CHECK(weft_open("set=1\n", tun, NULL, &interface) == WEFT_OK && weft_free(interface) == WEFT_OK);
}

struct runner {
    weft_interface interface;
    int32_t status;
    char error[512];
};

static inline void *run(void *argument) {
    struct runner *runner = argument;
    runner->status = weft_run(runner->interface);
    snprintf(runner->error, sizeof runner->error, "%s", weft_last_error());
    return NULL;
}

/* Waits until the interface runs. */
static inline void await_running(weft_interface interface) {
    char *text = NULL;
    int32_t status;
    while ((status = weft_get(interface, &text)) == WEFT_NOT_RUNNING) sched_yield();
    CHECK(status == WEFT_OK);
    weft_free_text(text);
}
