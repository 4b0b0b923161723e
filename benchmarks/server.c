/* A lean streaming server for client_ceiling.py: it must never be what limits a client.
 *
 * One thread, epoll and one 1 ms timerfd. Every request is answered with TOKENS events, the first after GAP_MS, then one
 * each GAP_MS; the events of all streams that are due are written in one wake-up, in the shape vLLM gives them.
 * For each request it remembers when its last byte was read and when the first and the last token were handed to the
 * kernel (CLOCK_MONOTONIC, ns), by the number behind "id": in the body; SIGTERM prints that table: id received
 * first_token last_token.
 *
 * Usage: server TOKENS GAP_MS MAX_ID     prints its port, serves, and prints the table when told to stop.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define BUFFER (64 * 1024)
#define TICK_NS 1000000LL

struct stream {
    int fd;
    long id;
    int sent;         /* tokens so far, -1: idle */
    int64_t due_ns;   /* of the next token */
    struct stream *next; /* in its tick's list */
    size_t filled;
    char in[BUFFER];
};

static int tokens, max_id;
static int64_t gap_ns, *received_ns, *first_ns, *last_ns;
#define WHEEL 4096
static struct stream *wheel[WHEEL]; /* by tick modulo WHEEL */

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void schedule(struct stream *s) {
    int64_t tick = (s->due_ns + TICK_NS - 1) / TICK_NS;
    s->next = wheel[tick % WHEEL];
    wheel[tick % WHEEL] = s;
}

static const char HEAD[] = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                           "transfer-encoding: chunked\r\n\r\n";

static int chunk(char *out, const char *data, int length) {
    int n = sprintf(out, "%x\r\n", length);
    memcpy(out + n, data, length);
    memcpy(out + n + length, "\r\n", 2);
    return n + length + 2;
}

static void token(struct stream *s) {
    char data[1024], out[4096];
    int last = s->sent == tokens - 1, n = 0;
    int length = sprintf(data,
        "data: {\"id\":\"cmpl-%016lx\",\"object\":\"text_completion\",\"created\":1796002942,\"model\":\"tiny\","
        "\"choices\":[{\"index\":0,\"text\":\" miskos\",\"logprobs\":null,\"finish_reason\":%s,\"stop_reason\":null,"
        "\"prompt_token_ids\":null,\"token_ids\":null}]}\n\n", s->id, last ? "\"length\"" : "null");
    n += chunk(out, data, length);
    if (last) {
        length = sprintf(data,
            "data: {\"id\":\"cmpl-%016lx\",\"object\":\"text_completion\",\"created\":1796002942,\"model\":\"tiny\","
            "\"choices\":[],\"usage\":{\"prompt_tokens\":32,\"total_tokens\":%d,\"completion_tokens\":%d}}\n\n",
            s->id, 32 + tokens, tokens);
        n += chunk(out + n, data, length);
        n += chunk(out + n, "data: [DONE]\n\n", 14);
        n += sprintf(out + n, "0\r\n\r\n");
    }
    if (s->id >= 0 && s->id < max_id && (last || s->sent == 0)) (last ? last_ns : first_ns)[s->id] = now_ns();
    if (write(s->fd, out, n) != n) { /* a client that is this far behind has failed; leave it to notice */
        s->sent = -1;
        shutdown(s->fd, SHUT_RDWR);
        return;
    }
    if (last) {
        s->sent = -1;
        return;
    }
    s->sent++;
    s->due_ns += gap_ns;
    schedule(s);
}

static void closed(struct stream *s) {
    close(s->fd);
    s->fd = -1;
    if (s->sent < 0) free(s); /* else the wheel still holds it */
}

static void readable(struct stream *s) {
    for (;;) {
        ssize_t n = read(s->fd, s->in + s->filled, BUFFER - s->filled - 1);
        if (n < 0 && errno == EAGAIN) break;
        if (n <= 0) {
            closed(s);
            return;
        }
        s->filled += n;
        if (s->filled == BUFFER - 1) break;
    }
    s->in[s->filled] = 0;
    char *body = strstr(s->in, "\r\n\r\n");
    if (!body || s->sent >= 0) return;
    body += 4;
    char *length = strcasestr(s->in, "\ncontent-length:");
    if (!length || s->filled < (size_t)(body - s->in) + atol(length + 16)) return;
    char *id = strstr(body, "\"id\":");
    s->id = id ? atol(id + 5) : -1;
    s->filled = 0;
    s->sent = 0;
    int64_t now = now_ns();
    if (s->id >= 0 && s->id < max_id) received_ns[s->id] = now;
    s->due_ns = now + gap_ns;
    if (write(s->fd, HEAD, sizeof HEAD - 1) < 0) return;
    schedule(s);
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    tokens = atoi(argv[1]);
    gap_ns = atoi(argv[2]) * 1000000LL;
    max_id = atoi(argv[3]);
    received_ns = calloc(max_id, sizeof *received_ns);
    first_ns = calloc(max_id, sizeof *first_ns);
    last_ns = calloc(max_id, sizeof *last_ns);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    signal(SIGPIPE, SIG_IGN);

    sigset_t stop;
    sigemptyset(&stop);
    sigaddset(&stop, SIGTERM);
    sigprocmask(SIG_BLOCK, &stop, NULL);
    int signals = signalfd(-1, &stop, SFD_NONBLOCK);

    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, 4096)) return 1;
    getsockname(listener, (struct sockaddr *)&address, &size);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);

    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    struct itimerspec every = {{0, TICK_NS}, {0, TICK_NS}};
    timerfd_settime(timer, 0, &every, NULL);

    int epoll = epoll_create1(0);
    int *own[] = {&listener, &timer, &signals};
    for (int i = 0; i < 3; i++) {
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = own[i]};
        epoll_ctl(epoll, EPOLL_CTL_ADD, *own[i], &e);
    }
    int64_t done = now_ns() / TICK_NS; /* last tick that was served */
    static struct epoll_event ready[1024];
    for (;;) {
        int n = epoll_wait(epoll, ready, 1024, -1);
        for (int i = 0; i < n; i++) {
            void *source = ready[i].data.ptr;
            if (source == &signals) {
                for (long id = 0; id < max_id; id++)
                    if (received_ns[id])
                        printf("%ld %ld %ld %ld\n", id, (long)received_ns[id], (long)first_ns[id], (long)last_ns[id]);
                fflush(stdout);
                return 0;
            }
            if (source == &timer) {
                uint64_t fired;
                if (read(timer, &fired, 8) < 0) continue;
                int64_t now = now_ns() / TICK_NS;
                for (; done < now; done++) {
                    struct stream **slot = &wheel[(done + 1) % WHEEL], *s = *slot;
                    *slot = NULL;
                    while (s) {
                        struct stream *next = s->next;
                        if (s->fd < 0) free(s);
                        else token(s);
                        s = next;
                    }
                }
                continue;
            }
            if (source == &listener) {
                int fd;
                while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                    struct stream *s = malloc(sizeof *s);
                    s->fd = fd;
                    s->sent = -1;
                    s->filled = 0;
                    struct epoll_event e = {.events = EPOLLIN, .data.ptr = s};
                    epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e);
                }
                continue;
            }
            readable(source);
        }
    }
}
