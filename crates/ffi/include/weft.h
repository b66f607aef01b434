/* A WireGuard tunnel for a program that has a TUN: an app for Android or iOS, a container runtime, a test; and, further
 * below, one with sockets for connections, for a program that has none.
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
    WEFT_NETWORK = -9,            /* a destination in the tunnel was not reached, or not in time */
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

/* A tunnel that ends in this process, with a TCP/IP stack of its own: it needs no TUN and no right, and changes nothing
 * of the system. 0 is none. Each has two threads, about 18 descriptors and two more a connection, and ends with the
 * process. In a child of fork(2) calls return WEFT_STOPPED; a child that does not call exec(2) keeps the port of the tunnel
 * taken. */
typedef uint64_t weft_tunnel;
typedef uint64_t weft_listener;

typedef struct weft_address {
    char ip[46]; /* text, ends with a zero */
    uint16_t port;
} weft_address;

typedef struct weft_tunnel_statistics {
    uint64_t sent_bytes;     /* to all peers, UDP payload */
    uint64_t received_bytes; /* from all peers */
    int64_t last_handshake;  /* the latest of a peer, seconds since 1970; 0: none */
    uint64_t connections;    /* open now */
    uint64_t memory;         /* bytes that they have reserved */
} weft_tunnel_statistics;

/* Opens a tunnel from `text`, a file of wg-quick(8): PrivateKey, Address, DNS, ListenPort and MTU of [Interface] count,
 * and the peers; at most 1 MiB. `memory`: bytes that connections may reserve, 1 MiB or more; 0: 64 MiB. Names of endpoints are looked up by the system,
 * again when a peer does not answer. */
int32_t weft_tunnel_open(const char *text, uint64_t memory, weft_tunnel *tunnel);

/* Connects to a name or an address in the tunnel. A name is looked up at the servers of `DNS`, through the tunnel.
 * `*descriptor` is a connected TCP socket of the loopback that belongs to the program; resets and the end of one direction
 * pass through it. `timeout_ms`: at most 30 s, and 30 s if it is 0. */
int32_t weft_connect(weft_tunnel tunnel, const char *host, uint16_t port, uint32_t timeout_ms, int *descriptor);

/* Listens at `ip`, an address of the tunnel. Port 0 selects a free port. `at`, which may be NULL, gets the address. */
int32_t weft_listen(weft_tunnel tunnel, const char *ip, uint16_t port, weft_listener *listener, weft_address *at);

/* Waits for a connection, with several threads one after the other: `timeout_ms` at most, without limit if it is 0. `from` may be NULL. */
int32_t weft_accept(weft_listener listener, uint32_t timeout_ms, int *descriptor, weft_address *from);

/* Listens no more. A call of weft_accept() that waits returns when it has its connection, or its time is over; the address
 * is free then. */
int32_t weft_listener_close(weft_listener listener);

/* `*descriptor` is a socket for datagrams to one destination and from it, a message each: SOCK_SEQPACKET on Linux, else
 * SOCK_DGRAM, at most 65,507 bytes each. It belongs to the program. Lost datagrams cause no error. */
int32_t weft_udp(weft_tunnel tunnel, const char *host, uint16_t port, int *descriptor);

int32_t weft_tunnel_stats(weft_tunnel tunnel, weft_tunnel_statistics *statistics);

/* Waits until the program has closed its sockets of connections, and their other ends have all that was written:
 * `timeout_ms` at most, without limit if it is 0. Without it weft_tunnel_close() cuts off what is under way. */
int32_t weft_tunnel_drain(weft_tunnel tunnel, uint32_t timeout_ms);

/* Ends the tunnel and its listeners: its connections are reset, calls that wait return, and its port is free. */
int32_t weft_tunnel_close(weft_tunnel tunnel);

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
