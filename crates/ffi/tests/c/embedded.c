/* Fetches from a server behind a tunnel and serves there, without a TUN or a right: embedded TEXT. The peer echoes what
 * connections to 10.88.0.1:7 and datagrams carry, and connects to 10.88.0.2:80 when the first connection has ended. */

#include "common.h"

#include <signal.h>
#include <sys/wait.h>

enum { BYTES = 1 << 20 };

/* Sends and receives BYTES, and sees the end of both directions. */
static void echo_stream(int socket) {
    static unsigned char out[BYTES], back[BYTES];
    size_t sent = 0, received = 0;
    for (size_t place = 0; place < BYTES; place++) out[place] = place / 7;
    while (received < BYTES) {
        ssize_t count;
        if (sent < BYTES) {
            count = send(socket, out + sent, BYTES - sent < 4096 ? BYTES - sent : 4096, MSG_NOSIGNAL);
            CHECK(count > 0);
            sent += count;
            if (sent == BYTES) CHECK(shutdown(socket, SHUT_WR) == 0);
        }
        count = recv(socket, back + received, BYTES - received, sent < BYTES ? MSG_DONTWAIT : 0);
        CHECK(count > 0 || (count < 0 && errno == EAGAIN && sent < BYTES));
        if (count > 0) received += count;
    }
    CHECK(memcmp(out, back, BYTES) == 0);
    CHECK(recv(socket, back, 1, 0) == 0);
}

static void echo_datagrams(weft_tunnel tunnel) {
    char back[64];
    int socket;
    struct timeval second = {.tv_sec = 1};
    CHECK(weft_udp(tunnel, "10.88.0.1", 7, &socket) == WEFT_OK);
    CHECK(setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof second) == 0);
    for (int attempt = 0;; attempt++) {
        CHECK(attempt < 60);
        CHECK(send(socket, "ping", 4, MSG_NOSIGNAL) == 4);
        if (recv(socket, back, sizeof back, 0) == 4 && memcmp(back, "ping", 4) == 0) break;
    }
    CHECK(close(socket) == 0);
}

static void *close_after(void *tunnel) {
    usleep(50000);
    CHECK(weft_tunnel_close(*(weft_tunnel *)tunnel) == WEFT_OK);
    return NULL;
}

static void *accept_in_vain(void *listener) {
    int accepted;
    CHECK(weft_accept(*(weft_listener *)listener, 0, &accepted, NULL) == WEFT_NETWORK);
    return NULL;
}

/* A child that has a copy of every descriptor, until it is ended. */
static pid_t bystander(void) {
    pid_t child = fork();
    if (child == 0) for (;;) pause();
    CHECK(child > 0);
    return child;
}

static void *use_tunnels(void *argument) {
    const char *text = argument;
    weft_tunnel tunnel, second;
    weft_listener listener, waiting;
    weft_address at, from;
    weft_tunnel_statistics statistics;
    int socket, accepted, held;
    char byte;
    pthread_t thread, other;

    CHECK(weft_tunnel_open(text, 0, &tunnel) == WEFT_OK);
    CHECK(weft_listen(tunnel, "10.88.0.2", 80, &listener, &at) == WEFT_OK);
    CHECK(strcmp(at.ip, "10.88.0.2") == 0 && at.port == 80);
    CHECK(weft_connect(tunnel, "10.88.0.1", 7, 0, &socket) == WEFT_OK);
    echo_stream(socket);
    CHECK(close(socket) == 0);
    echo_datagrams(tunnel);

    CHECK(weft_accept(listener, 0, &accepted, &from) == WEFT_OK && strcmp(from.ip, "10.88.0.1") == 0);
    CHECK(send(accepted, "hello", 5, MSG_NOSIGNAL) == 5);
    /* The peer resets it, and that is not the end of the data. */
    CHECK(recv(accepted, &byte, 1, 0) < 0 && errno == ECONNRESET);
    CHECK(close(accepted) == 0);

    CHECK(weft_tunnel_stats(tunnel, &statistics) == WEFT_OK);
    CHECK(statistics.sent_bytes > BYTES && statistics.received_bytes > BYTES && statistics.last_handshake > 0);

    /* Refusals, each with a line. */
    CHECK(weft_connect(tunnel, "10.88.0.1", 9, 0, &socket) == WEFT_NETWORK && strstr(weft_last_error(), "port 9"));
    CHECK(weft_connect(tunnel, "192.0.2.1", 9, 0, &socket) == WEFT_NETWORK);
    CHECK(weft_connect(tunnel, "name.internal", 9, 0, &socket) == WEFT_NETWORK && strstr(weft_last_error(), "DNS ="));
    CHECK(weft_connect(tunnel, NULL, 9, 0, &socket) == WEFT_INVALID_ARGUMENT);
    CHECK(weft_connect(tunnel, "10.88.0.1", 9, 0, NULL) == WEFT_INVALID_ARGUMENT);
    CHECK(weft_connect(tunnel + 77, "10.88.0.1", 9, 0, &socket) == WEFT_INVALID_ARGUMENT);
    CHECK(weft_listen(tunnel, "10.88.0.2", 80, &waiting, NULL) == WEFT_NETWORK);
    CHECK(weft_listen(tunnel, "here", 80, &waiting, NULL) == WEFT_INVALID_ARGUMENT);
    CHECK(weft_accept(listener, 1, &accepted, NULL) == WEFT_NETWORK);
    CHECK(weft_tunnel_open("[Interface]\nAdress = 10.0.0.1\n", 0, &second) == WEFT_INVALID_TEXT);
    CHECK(strstr(weft_last_error(), "Address") != NULL);
    CHECK(weft_tunnel_open(NULL, 0, &second) == WEFT_INVALID_ARGUMENT);
    CHECK(weft_tunnel_open(text, 1, &second) == WEFT_INVALID_ARGUMENT);
    CHECK(weft_connect(tunnel, "10.88.0.1:7", 9, 0, &socket) == WEFT_NETWORK && strstr(weft_last_error(), "neither"));
    CHECK(strchr(weft_last_error(), '\n') == NULL);

    /* A child has no threads of weft. It is killed, since valgrind would find what they had. */
    pid_t child = fork();
    if (child == 0) _exit(weft_connect(tunnel, "10.88.0.1", 7, 0, &socket) == WEFT_STOPPED ? raise(SIGKILL) : 1);
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);

    /* What was written before the end arrives if it is waited for. */
    CHECK(weft_connect(tunnel, "10.88.0.1", 8, 0, &socket) == WEFT_OK);
    static char much[BYTES];
    CHECK(send(socket, much, BYTES, MSG_NOSIGNAL) == BYTES && close(socket) == 0);
    CHECK(weft_tunnel_drain(tunnel, 0) == WEFT_OK);

    /* Two at once, and one ends while it is waited for, with an open connection. */
    CHECK(weft_connect(tunnel, "10.88.0.1", 7, 0, &held) == WEFT_OK);
    CHECK(pthread_create(&other, NULL, accept_in_vain, &listener) == 0);
    CHECK(pthread_create(&thread, NULL, close_after, &tunnel) == 0);
    CHECK(weft_accept(listener, 0, &accepted, NULL) == WEFT_NETWORK);
    CHECK(pthread_join(thread, NULL) == 0 && pthread_join(other, NULL) == 0);
    CHECK(recv(held, &byte, 1, 0) < 0 && errno == ECONNRESET);
    CHECK(weft_listener_close(listener) == WEFT_INVALID_ARGUMENT);
    CHECK(weft_tunnel_close(tunnel) == WEFT_INVALID_ARGUMENT);

    /* The end of a tunnel is a reset, each time, whoever else has the descriptors. */
    for (int round = 0; round < 30; round++) {
        /* Peers take an initiation in 20 ms; the next one would come 5 s later. */
        usleep(25000);
        CHECK(weft_tunnel_open(text, 0, &second) == WEFT_OK);
        CHECK(weft_connect(second, "10.88.0.1", 7, 0, &held) == WEFT_OK);
        pid_t copies = round % 10 == 0 ? bystander() : 0;
        CHECK(weft_tunnel_close(second) == WEFT_OK);
        CHECK(recv(held, &byte, 1, 0) < 0 && errno == ECONNRESET);
        CHECK(close(held) == 0);
        if (copies > 0) CHECK(kill(copies, SIGKILL) == 0 && waitpid(copies, &status, 0) == copies);
    }
    return NULL;
}

int main(int count, char **arguments) {
    pthread_t thread;
    CHECK(count == 2);
    /* What weft keeps for a thread goes with it, so that valgrind finds nothing. */
    CHECK(pthread_create(&thread, NULL, use_tunnels, arguments[1]) == 0 && pthread_join(thread, NULL) == 0);
    printf("done\n");
    return 0;
}
