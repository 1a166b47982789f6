/*
 * fake_redis.c - see fake_redis.h.
 *
 * One thread and poll(); everything that the test may change lies under one lock.  A command is
 * read as far as its words go; values of any size are read past.
 */
#include "tests/redis/fake_redis.h"

#include <check.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define MAX_PEERS 64
#define MAX_WAYS  16
#define BUFFER    (8u << 20)

struct way {
	char command[16];
	enum fake_way way;
	char *bytes;
	size_t len;
	uint64_t count;
};

struct peer {
	int fd;
	bool stalled;
	char *in;
	size_t len;
};

struct fake_redis {
	char dir[64], path[96], url[128];
	int fd, wake;
	pthread_t thread;
	pthread_mutex_t lock;
	struct way ways[MAX_WAYS];
	struct peer peers[MAX_PEERS];
	uint64_t n_connections;
	size_t piece;
	bool hang_up, refuse, stop;
};

/* ---- one command ----------------------------------------------------------------------------- */

struct command {
	char name[16];
	int argc;
	size_t len; /* bytes of all of it */
};

/* A number behind `kind` and its line's end.  Return: bytes taken; 0: not all there. */
static size_t number(const char *p, size_t n, char kind, size_t *ret)
{
	const char *end = memchr(p, '\n', n);

	if (!end)
		return 0;
	ck_assert_msg(p[0] == kind, "the client sent \"%.*s\"", (int)(end - p), p);
	*ret = strtoul(p + 1, NULL, 10);
	return (size_t)(end + 1 - p);
}

/* Return: true when a whole command is there. */
static bool command_read(const char *p, size_t n, struct command *ret)
{
	size_t argc, at = number(p, n, '*', &argc);

	if (!at)
		return false;
	memset(ret, 0, sizeof(*ret));
	for (size_t i = 0; i < argc; i++) {
		size_t len, line = number(p + at, n - at, '$', &len);

		if (!line || n - at - line < len + 2)
			return false;
		at += line;
		if (i == 0)
			snprintf(ret->name, sizeof(ret->name), "%.*s", (int)len, p + at);
		at += len + 2;
	}
	ret->argc = (int)argc;
	ret->len = at;
	return true;
}

static struct way *way_of(struct fake_redis *f, const char *command)
{
	for (int i = 0; i < MAX_WAYS; i++) {
		struct way *w = &f->ways[i];

		if (!w->command[0])
			snprintf(w->command, sizeof(w->command), "%s", command);
		if (!strcasecmp(w->command, command))
			return w;
	}
	ck_abort_msg("too many commands for this fake");
}

static void write_all(struct fake_redis *f, int fd, const char *p, size_t n)
{
	size_t piece = f->piece ? f->piece : n;

	while (n) {
		size_t some = n < piece ? n : piece;
		ssize_t done = send(fd, p, some, MSG_NOSIGNAL);

		if (done < 0)
			return; /* it has gone away */
		p += done;
		n -= (size_t)done;
		if (f->piece)
			usleep(50); /* so that it is read by itself */
	}
}

/* What a Redis without keys answers. */
static void usual(struct fake_redis *f, int fd, const struct command *c)
{
	static const char info[] = "# Memory\r\nused_memory:1\r\nmaxmemory_policy:allkeys-lru\r\n";
	char text[256];

	if (!strcmp(c->name, "PING"))
		write_all(f, fd, "+PONG\r\n", 7);
	else if (!strcmp(c->name, "GET"))
		write_all(f, fd, "$-1\r\n", 5);
	else if (!strcmp(c->name, "EXISTS") || !strcmp(c->name, "UNLINK"))
		write_all(f, fd, ":0\r\n", 4);
	else if (!strcmp(c->name, "INFO"))
		write_all(f, fd, text,
			  (size_t)snprintf(text, sizeof(text), "$%zu\r\n%s\r\n", sizeof(info) - 1,
					   info));
	else if (!strcmp(c->name, "MGET")) {
		write_all(f, fd, text,
			  (size_t)snprintf(text, sizeof(text), "*%d\r\n", c->argc - 1));
		for (int i = 1; i < c->argc; i++)
			write_all(f, fd, "$-1\r\n", 5);
	} else {
		write_all(f, fd, "+OK\r\n", 5);
	}
}

static void peer_close(struct peer *p)
{
	close(p->fd);
	free(p->in);
	memset(p, 0, sizeof(*p));
	p->fd = -1;
}

/* Return: false when the connection has ended. */
static bool serve(struct fake_redis *f, struct peer *p, const struct command *c)
{
	struct way *w = way_of(f, c->name);

	w->count++;
	switch (w->way) {
	case FAKE_USUAL:
		usual(f, p->fd, c);
		break;
	case FAKE_BYTES:
		write_all(f, p->fd, w->bytes, w->len);
		break;
	case FAKE_STALL:
		p->stalled = true;
		break;
	case FAKE_ONCE:
		write_all(f, p->fd, w->bytes, w->len);
		w->way = FAKE_MUTE;
		break;
	case FAKE_MUTE:
		break;
	case FAKE_CLOSE:
		write_all(f, p->fd, w->bytes, w->len);
		peer_close(p);
		return false;
	}
	return true;
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void peer_read(struct fake_redis *f, struct peer *p)
{
	ssize_t n = recv(p->fd, p->in + p->len, BUFFER - p->len, MSG_DONTWAIT);
	struct command c;
	size_t used = 0;

	if (n < 0 && errno == EAGAIN)
		return;
	if (n <= 0) {
		peer_close(p);
		return;
	}
	p->len += (size_t)n;
	while (!p->stalled && command_read(p->in + used, p->len - used, &c)) {
		used += c.len;
		if (!serve(f, p, &c))
			return;
	}
	memmove(p->in, p->in + used, p->len - used);
	p->len -= used;
}

static void accept_one(struct fake_redis *f)
{
	int fd = accept(f->fd, NULL, NULL);

	if (fd < 0)
		return;
	f->n_connections++;
	for (int i = 0; i < MAX_PEERS && !f->refuse; i++) {
		if (f->peers[i].fd >= 0)
			continue;
		f->peers[i] = (struct peer){ .fd = fd, .in = malloc(BUFFER) };
		ck_assert_ptr_nonnull(f->peers[i].in);
		return;
	}
	close(fd);
}

static void *fake_main(void *ctx)
{
	struct fake_redis *f = ctx;
	bool stop = false;

	while (!stop) {
		struct pollfd fds[MAX_PEERS + 2];
		uint64_t value;

		pthread_mutex_lock(&f->lock);
		for (int i = 0; i < MAX_PEERS; i++)
			fds[i] = (struct pollfd){ f->peers[i].stalled ? -1 : f->peers[i].fd, POLLIN,
						  0 };
		pthread_mutex_unlock(&f->lock);
		fds[MAX_PEERS] = (struct pollfd){ f->fd, POLLIN, 0 };
		fds[MAX_PEERS + 1] = (struct pollfd){ f->wake, POLLIN, 0 };
		(void)poll(fds, MAX_PEERS + 2, 1000);
		pthread_mutex_lock(&f->lock);
		if (fds[MAX_PEERS + 1].revents)
			(void)eventfd_read(f->wake, &value);
		for (int i = 0; i < MAX_PEERS; i++) {
			if (f->hang_up && f->peers[i].fd >= 0)
				peer_close(&f->peers[i]);
			else if (f->peers[i].fd >= 0 && fds[i].fd == f->peers[i].fd &&
				 fds[i].revents)
				peer_read(f, &f->peers[i]);
		}
		f->hang_up = false;
		if (fds[MAX_PEERS].revents)
			accept_one(f);
		stop = f->stop;
		pthread_mutex_unlock(&f->lock);
	}
	return NULL;
}

/* ---- for the test ---------------------------------------------------------------------------- */

struct fake_redis *fake_new(void)
{
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	struct fake_redis *f = calloc(1, sizeof(*f));

	ck_assert_ptr_nonnull(f);
	snprintf(f->dir, sizeof(f->dir), "/tmp/prefixd-fake-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(f->dir));
	snprintf(f->path, sizeof(f->path), "%s/s", f->dir);
	snprintf(f->url, sizeof(f->url), "unix:%s", f->path);
	snprintf(un.sun_path, sizeof(un.sun_path), "%s", f->path);
	for (int i = 0; i < MAX_PEERS; i++)
		f->peers[i].fd = -1;
	f->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	f->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	ck_assert(f->fd >= 0 && f->wake >= 0);
	ck_assert_int_eq(bind(f->fd, (const struct sockaddr *)&un, sizeof(un)), 0);
	ck_assert_int_eq(listen(f->fd, 64), 0);
	ck_assert_int_eq(pthread_mutex_init(&f->lock, NULL), 0);
	ck_assert_int_eq(pthread_create(&f->thread, NULL, fake_main, f), 0);
	return f;
}

void fake_free(struct fake_redis *f)
{
	pthread_mutex_lock(&f->lock);
	f->stop = f->hang_up = true;
	pthread_mutex_unlock(&f->lock);
	(void)eventfd_write(f->wake, 1);
	pthread_join(f->thread, NULL);
	for (int i = 0; i < MAX_PEERS; i++) {
		if (f->peers[i].fd >= 0)
			peer_close(&f->peers[i]);
	}
	for (int i = 0; i < MAX_WAYS; i++)
		free(f->ways[i].bytes);
	close(f->fd);
	close(f->wake);
	(void)unlink(f->path);
	(void)rmdir(f->dir);
	pthread_mutex_destroy(&f->lock);
	free(f);
}

const char *fake_url(const struct fake_redis *f)
{
	return f->url;
}

void fake_answer(struct fake_redis *f, const char *command, enum fake_way way, const void *bytes,
		 size_t len)
{
	struct way *w;
	char *copy = malloc(len + 1);

	ck_assert_ptr_nonnull(copy);
	if (len)
		memcpy(copy, bytes, len);
	pthread_mutex_lock(&f->lock);
	w = way_of(f, command);
	free(w->bytes);
	w->way = way;
	w->bytes = copy;
	w->len = len;
	pthread_mutex_unlock(&f->lock);
}

void fake_split(struct fake_redis *f, size_t piece)
{
	pthread_mutex_lock(&f->lock);
	f->piece = piece;
	pthread_mutex_unlock(&f->lock);
}

void fake_hang_up(struct fake_redis *f, bool refuse)
{
	pthread_mutex_lock(&f->lock);
	f->hang_up = true;
	f->refuse = refuse;
	pthread_mutex_unlock(&f->lock);
	(void)eventfd_write(f->wake, 1);
}

uint64_t fake_count(struct fake_redis *f, const char *command)
{
	uint64_t n;

	pthread_mutex_lock(&f->lock);
	n = way_of(f, command)->count;
	pthread_mutex_unlock(&f->lock);
	return n;
}

uint64_t fake_connections(struct fake_redis *f)
{
	uint64_t n;

	pthread_mutex_lock(&f->lock);
	n = f->n_connections;
	pthread_mutex_unlock(&f->lock);
	return n;
}
