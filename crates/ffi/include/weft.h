/* A WireGuard tunnel for a program that has a TUN: an app for Android or iOS, a container runtime, a test.
 *
 * Every function may be called from any thread, but not from a callback. A function that can fail returns a status,
 * and weft_last_error() returns one line with the cause and the remedy. A call that fails changes nothing. A panic
 * inside ends the interface with WEFT_PANIC, and never the process. */

#ifndef WEFT_H
#define WEFT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum weft_status {
    WEFT_OK = 0,
    WEFT_INVALID_ARGUMENT = -1,   /* NULL, an unknown interface, a memory limit that is too low */
    WEFT_INVALID_TEXT = -2,       /* not UTF-8, too long, or not of the UAPI */
    WEFT_INVALID_DESCRIPTOR = -3, /* closed, no TUN, or with another header than expected */
    WEFT_NOT_RUNNING = -4,        /* before weft_run() */
    WEFT_BUSY = -5,               /* weft_run() runs on another thread, or this is a callback */
    WEFT_STOPPED = -6,            /* after weft_stop(), or after the interface ended by itself */
    WEFT_SYSTEM = -7,             /* the system refused something */
    WEFT_PANIC = -8,              /* a defect of weft: the interface has ended */
} weft_status;

/* An interface; 0 is none. */
typedef uint64_t weft_interface;

/* Receives each UDP socket before anything is sent through it: when the interface opens, when its port changes and
 * when the network changes. On Android it calls VpnService.protect(). Returns 0 on success. After weft_run() began it is
 * called on that thread, and must not block. */
typedef int (*weft_protect)(void *context, int descriptor);

typedef struct weft_options {
    uint64_t memory_limit; /* bytes that the program may use, 16 MiB or more; 0: no limit. An extension of iOS: 50 MiB */
    uint16_t mtu;          /* of the TUN; 0: 1420 */
    weft_protect protect;  /* may be NULL */
    void *context;         /* for protect */
} weft_options;

/* Opens an interface from `text`, a request of the cross-platform UAPI (`set=1`, then lines of `key=value`, at most
 * 1 MiB), over the TUN behind `tun_fd`, which is duplicated and made non-blocking. `options` may be NULL. Nothing is
 * sent before weft_run(). The endpoints of peers are addresses: resolve names first. */
int32_t weft_open(const char *text, int tun_fd, const weft_options *options, weft_interface *interface);

/* Writes the descriptors of the UDP sockets to `descriptors`, at most `*count`, and their number to `*count`. They
 * belong to weft: do not close them. They are valid until the port or the network changes, or the interface ends.
 * `descriptors` may be NULL if `*count` is 0. */
int32_t weft_sockets(weft_interface interface, int *descriptors, size_t *count);

/* Moves packets on this thread until weft_stop(). An interface runs once. */
int32_t weft_run(weft_interface interface);

/* Changes the interface while it runs, completely or not at all. The text is that of weft_open(). */
int32_t weft_set(weft_interface interface, const char *text);

/* Returns the state of the interface while it runs, with its keys, as lines of the UAPI in `*text`, which
 * weft_free_text() takes back. */
int32_t weft_get(weft_interface interface, char **text);

/* Wipes and frees a text. NULL is ignored. */
void weft_free_text(char *text);

/* Opens new sockets, on the same port if `listen_port` asked for one, chooses the source addresses again, and sends each
 * peer with a session a keepalive and a handshake. To be called when the system reports another network, and after a
 * sleep. Names that gave endpoints are to be resolved again by the caller, for weft_set(). */
int32_t weft_network_changed(weft_interface interface);

/* Ends the interface: weft_run() returns, and the descriptors are closed. */
int32_t weft_stop(weft_interface interface);

/* Ends the interface if it runs, and forgets it. */
int32_t weft_free(weft_interface interface);

/* Returns the cause and the remedy of the last failure on this thread, one line, valid until the next call on it. */
const char *weft_last_error(void);

/* Levels: 1 error, 2 warning, 3 information, 4 debug, 5 trace. */
typedef void (*weft_logger)(void *context, int level, const char *line);

/* Hands messages up to `level` to `logger`, on any thread; it must not call weft. NULL ends that: when the call
 * returns, the previous logger is not called any more. */
int32_t weft_set_logger(weft_logger logger, void *context, int level);

const char *weft_version(void);

#ifdef __cplusplus
}
#endif

#endif
