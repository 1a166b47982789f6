/*
 * test_conn.c - framing, fairness and limits of one connection, in this process: a socketpair with
 * the loop at one end and plain system calls at the other.
 */
#include "daemon/conn.h"
#include "daemon/log.h"
#include "tests/lib/run.h"

#include <check.h>
#include <event2/event.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_FRAME (1u << 20)

/* ---- a world: one loop, some connections that answer each frame with its echo ---------------- */

struct world {
	struct event_base *base;
	struct prefixd_conns conns;
	uint32_t n_frames, n_bad, n_ended;
	enum proto_status bad_status;
	enum prefixd_closed why;
	uint32_t order[64]; /* which connection each frame came from */
	int pass_fd;        /* >= 0: goes with every reply */
	uint32_t reply_len; /* 0: echo */
};

struct end {
	struct world *w;
	struct prefixd_conn conn;
	uint32_t id;
	int fd; /* the test's side */
};

static void reply_send(struct prefixd_conn *c, const struct proto_header *header, const void *body,
		       uint32_t len)
{
	struct end *e = c->owner;
	struct proto_header h = *header;
	uint8_t *frame = malloc(PROTO_HEADER_LEN + (size_t)len);

	ck_assert_ptr_nonnull(frame);
	h.len = len;
	proto_header_encode(&h, frame);
	if (body)
		memcpy(frame + PROTO_HEADER_LEN, body, len);
	else
		memset(frame + PROTO_HEADER_LEN, 0x5a, len);
	prefixd_conn_send(c, frame, PROTO_HEADER_LEN + (size_t)len, &e->w->pass_fd,
			  e->w->pass_fd >= 0 ? 1 : 0);
	free(frame);
}

static void on_frame(struct prefixd_conn *c, const struct proto_header *h, const void *body)
{
	struct end *e = c->owner;

	if (e->w->n_frames < radix_array_size(e->w->order))
		e->w->order[e->w->n_frames] = e->id;
	e->w->n_frames++;
	if (e->w->reply_len)
		reply_send(c, h, NULL, e->w->reply_len);
	else
		reply_send(c, h, body, h->len);
}

static void on_bad(struct prefixd_conn *c, const struct proto_header *h, enum proto_status status)
{
	struct end *e = c->owner;

	e->w->n_bad++;
	e->w->bad_status = status;
	reply_send(c, h, NULL, 4);
}

static void on_ended(struct prefixd_conn *c, enum prefixd_closed why)
{
	struct end *e = c->owner;

	e->w->n_ended++;
	e->w->why = why;
}

static const struct prefixd_conn_ops ops = { .frame = on_frame, .bad = on_bad, .ended = on_ended };

static void world_init(struct world *w)
{
	memset(w, 0, sizeof(*w));
	w->pass_fd = -1;
	w->base = event_base_new();
	ck_assert_ptr_nonnull(w->base);
	ck_assert_int_eq(prefixd_conns_init(&w->conns, w->base), 0);
}

static void world_deinit(struct world *w)
{
	prefixd_conns_deinit(&w->conns);
	event_base_free(w->base);
}

static void end_init(struct end *e, struct world *w, uint32_t id)
{
	int sv[2];

	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sv), 0);
	e->w = w;
	e->id = id;
	e->fd = sv[0];
	ck_assert_int_eq(
		prefixd_conn_init(&e->conn, &w->conns, sv[1], &ops, e, MAX_FRAME, PROTO_MAX_HELLO),
		0);
}

static void end_deinit(struct end *e)
{
	prefixd_conn_deinit(&e->conn);
	if (e->fd >= 0)
		close(e->fd);
}

/* Runs the loop until nothing is left to do without new input. */
static void settle(struct world *w)
{
	for (int i = 0; i < 8; i++)
		ck_assert_int_ge(event_base_loop(w->base, EVLOOP_NONBLOCK), 0);
}

/* A frame whose body is a pattern of its sequence number; returns its length. */
static size_t frame_make(uint8_t *out, uint64_t seq, uint32_t len)
{
	struct proto_header h = { .magic = PROTO_MAGIC,
				  .version = PROTO_VERSION,
				  .op = PROTO_OP_PING,
				  .len = len,
				  .seq = seq };

	proto_header_encode(&h, out);
	for (uint32_t i = 0; i < len; i++)
		out[PROTO_HEADER_LEN + i] = (uint8_t)(seq * 31 + i);
	return PROTO_HEADER_LEN + (size_t)len;
}

static size_t read_some(int fd, uint8_t *out, size_t cap)
{
	ssize_t n = read(fd, out, cap);

	return n > 0 ? (size_t)n : 0;
}

/* ---- framing --------------------------------------------------------------------------------- */

/* Three frames cut in two at every offset, and each byte on its own: the echo is the same. */
START_TEST(split_at_every_offset)
{
	uint8_t sent[512], got[512];
	size_t len = frame_make(sent, 1, 0);

	len += frame_make(sent + len, 2, 57);
	len += frame_make(sent + len, 3, 200);
	for (size_t cut = 0; cut <= len; cut++) {
		struct world w;
		struct end e;
		size_t n = 0, step = cut == len ? 1 : len;

		world_init(&w);
		end_init(&e, &w, 0);
		for (size_t at = 0; at < len;) {
			size_t until = cut > 0 && at < cut && cut < len ? cut : at + step;

			if (until > len)
				until = len;
			ck_assert_int_eq(write(e.fd, sent + at, until - at), (ssize_t)(until - at));
			at = until;
			settle(&w);
			n += read_some(e.fd, got + n, sizeof(got) - n);
		}
		ck_assert_uint_eq(w.n_frames, 3);
		ck_assert_uint_eq(n, len);
		ck_assert_mem_eq(got, sent, len);
		end_deinit(&e);
		world_deinit(&w);
	}
}
END_TEST

/* The buffer grows for one long frame, goes back to its size, and no byte is lost at the seams. */
START_TEST(long_frames_between_short_ones)
{
	static uint8_t sent[3 * MAX_FRAME], got[sizeof(sent)];
	static const uint32_t lens[] = {
		10, MAX_FRAME - PROTO_HEADER_LEN, 1, 65536, 65496, 65497, 3
	};
	size_t len = 0, at = 0, n = 0;
	struct world w;
	struct end e;

	world_init(&w);
	end_init(&e, &w, 0);
	for (size_t i = 0; i < radix_array_size(lens); i++)
		len += frame_make(sent + len, i, lens[i]);
	for (int idle = 0; n < len && idle < 1000;) {
		ssize_t k = at < len ? write(e.fd, sent + at, len - at) : 0;
		size_t m;

		at += k > 0 ? (size_t)k : 0;
		settle(&w);
		m = read_some(e.fd, got + n, sizeof(got) - n);
		n += m;
		idle = m > 0 || k > 0 ? 0 : idle + 1;
	}
	ck_assert_uint_eq(n, len);
	ck_assert_mem_eq(got, sent, len);
	for (uint64_t i = 0; i < 200; i++) { /* long unused, the grown buffer is given back */
		size_t k = frame_make(sent, i, 5);

		ck_assert_int_eq(write(e.fd, sent, k), (ssize_t)k);
		settle(&w);
		ck_assert_uint_eq(read_some(e.fd, got, sizeof(got)), k);
	}
	ck_assert_uint_eq(e.conn.in_cap, PREFIXD_CONN_IN);
	end_deinit(&e);
	world_deinit(&w);
}
END_TEST

/* Ten thousand frames in one go: all answered, in order, with little memory. */
START_TEST(pipelined)
{
	enum {
		N = 10000,
		LEN = 32
	};
	static uint8_t sent[N * (PROTO_HEADER_LEN + LEN)], got[sizeof(sent)];
	size_t len = 0, at = 0, n = 0, most = 0;
	struct world w;
	struct end e;

	world_init(&w);
	end_init(&e, &w, 0);
	for (uint64_t i = 0; i < N; i++)
		len += frame_make(sent + len, i, LEN);
	for (int idle = 0; at < len && idle < 1000; idle++) { /* does not read until all is sent */
		ssize_t k = write(e.fd, sent + at, len - at);

		if (k > 0) {
			at += (size_t)k;
			idle = 0;
		}
		settle(&w);
		if (prefixd_conn_unsent(&e.conn) + e.conn.in_cap > most)
			most = prefixd_conn_unsent(&e.conn) + e.conn.in_cap;
	}
	ck_assert_uint_eq(at, len);
	for (int idle = 0; n < len && idle < 1000; idle++) {
		size_t k = read_some(e.fd, got + n, sizeof(got) - n);

		n += k;
		idle = k ? 0 : idle;
		settle(&w);
	}
	ck_assert_uint_eq(w.n_frames, N);
	ck_assert_uint_eq(n, len);
	ck_assert_mem_eq(got, sent, len);
	ck_assert_uint_le(most, 2 * PREFIXD_CONN_SOFT);
	end_deinit(&e);
	world_deinit(&w);
}
END_TEST

/* ---- fairness and limits --------------------------------------------------------------------- */

/* A client with hundreds of frames waiting does not make one with a single frame wait for all. */
START_TEST(nobody_starves)
{
	static uint8_t many[600 * PROTO_HEADER_LEN];
	uint8_t one[PROTO_HEADER_LEN];
	struct end a, b;
	struct world w;
	size_t len = 0;
	uint32_t seen = UINT32_MAX;

	world_init(&w);
	end_init(&a, &w, 1);
	end_init(&b, &w, 2);
	for (uint64_t i = 0; i < 600; i++)
		len += frame_make(many + len, i, 0);
	ck_assert_int_eq(write(a.fd, many, len), (ssize_t)len);
	ck_assert_uint_eq(frame_make(one, 1, 0), sizeof(one));
	ck_assert_int_eq(write(b.fd, one, sizeof(one)), (ssize_t)sizeof(one));
	while (b.conn.n_frames == 0)
		ck_assert_int_ge(event_base_loop(w.base, EVLOOP_ONCE), 0);
	seen = (uint32_t)a.conn.n_frames;
	ck_assert_uint_le(seen, 128); /* two turns of 64 */
	for (int i = 0; i < 100 && a.conn.n_frames < 600; i++)
		settle(&w);
	ck_assert_uint_eq(a.conn.n_frames, 600); /* and the busy one gets all its answers */
	end_deinit(&a);
	end_deinit(&b);
	world_deinit(&w);
}
END_TEST

/* Who does not read is not read from; once he reads, it goes on where it stopped. */
START_TEST(slow_reader_is_paused)
{
	enum {
		N = 200,
		LEN = 64 << 10
	};
	static uint8_t got[1 << 20];
	uint8_t frame[PROTO_HEADER_LEN];
	struct world w;
	struct end e;
	size_t n = 0;
	uint32_t before;

	world_init(&w);
	w.reply_len = LEN;
	end_init(&e, &w, 0);
	for (uint64_t i = 0; i < N; i++) {
		frame_make(frame, i, 0);
		ck_assert_int_eq(write(e.fd, frame, sizeof(frame)), (ssize_t)sizeof(frame));
	}
	settle(&w);
	before = w.n_frames;
	ck_assert_uint_lt(before, N);
	ck_assert_uint_le(prefixd_conn_unsent(&e.conn), PREFIXD_CONN_SOFT + LEN + PROTO_HEADER_LEN);
	settle(&w);
	ck_assert_uint_eq(w.n_frames, before); /* no progress, and no spinning */
	for (int idle = 0; idle < 1000; idle++) {
		size_t k = read_some(e.fd, got, sizeof(got));

		n += k;
		idle = k ? 0 : idle;
		settle(&w);
	}
	ck_assert_uint_eq(w.n_frames, N);
	ck_assert_uint_eq(n, (size_t)N * (LEN + PROTO_HEADER_LEN));
	ck_assert_uint_eq(w.n_ended, 0);
	end_deinit(&e);
	world_deinit(&w);
}
END_TEST

/* Replies that nobody asked for (events) end a peer that never reads. */
START_TEST(hard_limit_drops)
{
	static uint8_t bytes[1 << 20];
	struct world w;
	struct end e;

	world_init(&w);
	end_init(&e, &w, 0);
	for (int i = 0; i < 12 && w.n_ended == 0; i++) {
		prefixd_conn_send(&e.conn, bytes, sizeof(bytes), NULL, 0);
		prefixd_conns_turn(&w.conns);
	}
	ck_assert_uint_eq(w.n_ended, 1);
	ck_assert_int_eq(w.why, PREFIXD_CLOSED_OUTPUT_LIMIT);
	end_deinit(&e);
	world_deinit(&w);
}
END_TEST

/* Lets time pass in the loop; at most so many milliseconds, or until a connection has ended. */
static void pass(struct world *w, unsigned ms)
{
	for (unsigned i = 0; i < ms && w->n_ended == 0; i++) {
		ck_assert_int_ge(event_base_loop(w->base, EVLOOP_NONBLOCK), 0);
		usleep(1000);
	}
}

/* Who stays above the soft limit for slow_ns is dropped; who has caught up by then is not, and who
 * is merely owed something neither. */
START_TEST(slow_reader_is_dropped)
{
	static uint8_t got[1 << 16];
	const uint64_t slow_ns = 100000000;
	uint8_t frame[PROTO_HEADER_LEN];
	struct world w;
	struct end e, owed;

	world_init(&w);
	w.conns.slow_ns = &slow_ns;
	w.reply_len = 64 << 10;
	end_init(&owed, &w, 0);
	frame_make(frame, 1, 0);
	for (int i = 0; i < 8; i++)
		ck_assert_int_eq(write(owed.fd, frame, sizeof(frame)), (ssize_t)sizeof(frame));
	settle(&w);
	ck_assert_uint_gt(prefixd_conn_unsent(&owed.conn), 0);
	end_init(&e, &w, 1);
	for (int round = 0; round < 3; round++) { /* behind, and not for long */
		for (int i = 0; i < 30; i++)
			ck_assert_int_eq(write(e.fd, frame, sizeof(frame)), (ssize_t)sizeof(frame));
		settle(&w);
		ck_assert_uint_gt(prefixd_conn_unsent(&e.conn), PREFIXD_CONN_SOFT);
		while (prefixd_conn_unsent(&e.conn) > 0 || e.conn.more) {
			(void)read_some(e.fd, got, sizeof(got));
			settle(&w);
		}
		while (read_some(e.fd, got, sizeof(got)) > 0)
			;
	}
	pass(&w, 300); /* no timer was left behind */
	ck_assert_uint_eq(w.n_ended, 0);
	for (int i = 0; i < 30; i++)
		ck_assert_int_eq(write(e.fd, frame, sizeof(frame)), (ssize_t)sizeof(frame));
	settle(&w);
	ck_assert_uint_gt(prefixd_conn_unsent(&e.conn), PREFIXD_CONN_SOFT);
	pass(&w, 10000);
	ck_assert_uint_eq(w.n_ended, 1);
	ck_assert_int_eq(w.why, PREFIXD_CLOSED_SLOW_READER);
	ck_assert_int_lt(owed.conn.why, PREFIXD_CLOSED_PEER); /* open */
	end_deinit(&e);
	end_deinit(&owed);
	world_deinit(&w);
}
END_TEST

/* ---- wrong headers, ends --------------------------------------------------------------------- */

static void expect_bad(const uint8_t *bytes, size_t len, bool spoke, enum proto_status status)
{
	uint8_t got[256], hello[PROTO_HEADER_LEN];
	struct world w;
	struct end e;
	size_t n = 0;

	world_init(&w);
	end_init(&e, &w, 0);
	if (spoke) {
		frame_make(hello, 1, 0);
		ck_assert_int_eq(write(e.fd, hello, sizeof(hello)), (ssize_t)sizeof(hello));
		settle(&w);
		ck_assert_uint_eq(read_some(e.fd, got, sizeof(got)), sizeof(hello));
	}
	ck_assert_int_eq(write(e.fd, bytes, len), (ssize_t)len);
	settle(&w);
	n = read_some(e.fd, got, sizeof(got));
	ck_assert_uint_eq(n, PROTO_HEADER_LEN + 4); /* the error comes before the close */
	ck_assert_int_eq(read(e.fd, got, sizeof(got)) <= 0, 1);
	ck_assert_uint_eq(w.n_bad, 1);
	ck_assert_uint_eq(w.n_ended, 1);
	ck_assert_int_eq(w.bad_status, status);
	end_deinit(&e);
	world_deinit(&w);
}

START_TEST(wrong_headers)
{
	uint8_t frame[2 * PROTO_HEADER_LEN];
	uint32_t len = MAX_FRAME;

	frame_make(frame, 1, 0);
	frame[0] ^= 1;
	expect_bad(frame, PROTO_HEADER_LEN, true, PROTO_STATUS_BAD_FRAME);
	frame_make(frame, 1, 0);
	frame[4] = 99; /* version */
	expect_bad(frame, PROTO_HEADER_LEN, true, PROTO_STATUS_VERSION);
	frame_make(frame, 1, 0);
	memcpy(frame + 8, &len, sizeof(len));
	expect_bad(frame, PROTO_HEADER_LEN, true, PROTO_STATUS_TOO_LARGE);
	len = PROTO_MAX_HELLO - PROTO_HEADER_LEN + 1; /* before anybody said who he is: less */
	memcpy(frame + 8, &len, sizeof(len));
	expect_bad(frame, PROTO_HEADER_LEN, false, PROTO_STATUS_TOO_LARGE);
	/* What follows a wrong header is not looked at. */
	frame_make(frame, 1, 0);
	frame[0] ^= 1;
	frame_make(frame + PROTO_HEADER_LEN, 2, 0);
	expect_bad(frame, sizeof(frame), true, PROTO_STATUS_BAD_FRAME);
}
END_TEST

/* The peer closes its sending side: what it asked is answered, then the socket is closed. */
START_TEST(half_closed)
{
	uint8_t frame[PROTO_HEADER_LEN + 10], got[256];
	struct world w;
	struct end e;

	world_init(&w);
	end_init(&e, &w, 0);
	ck_assert_uint_eq(frame_make(frame, 7, 10), sizeof(frame));
	ck_assert_int_eq(write(e.fd, frame, sizeof(frame)), (ssize_t)sizeof(frame));
	ck_assert_int_eq(write(e.fd, frame, 13), 13); /* and a frame that never ends */
	ck_assert_int_eq(shutdown(e.fd, SHUT_WR), 0);
	settle(&w);
	ck_assert_uint_eq(read_some(e.fd, got, sizeof(got)), sizeof(frame));
	ck_assert_mem_eq(got, frame, sizeof(frame));
	ck_assert_int_eq(read(e.fd, got, sizeof(got)), 0);
	ck_assert_uint_eq(w.n_ended, 1);
	end_deinit(&e);
	world_deinit(&w);
}
END_TEST

/* The peer is gone while replies wait: no signal, one end. */
START_TEST(broken_pipe)
{
	enum {
		LEN = 512 << 10
	};
	uint8_t frame[PROTO_HEADER_LEN];
	struct world w;
	struct end e;

	world_init(&w);
	w.reply_len = LEN;
	end_init(&e, &w, 0);
	for (uint64_t i = 0; i < 4; i++) {
		frame_make(frame, i, 0);
		ck_assert_int_eq(write(e.fd, frame, sizeof(frame)), (ssize_t)sizeof(frame));
	}
	settle(&w);
	close(e.fd);
	e.fd = -1;
	settle(&w);
	ck_assert_uint_eq(w.n_ended, 1);
	end_deinit(&e);
	world_deinit(&w);
}
END_TEST

/* The peer says much and closes without reading a word: all of it is heard, then the end. */
START_TEST(heard_to_the_end)
{
	static uint8_t frames[300 * PROTO_HEADER_LEN];
	struct world w;
	struct end e;
	size_t len = 0;

	world_init(&w);
	end_init(&e, &w, 0);
	for (uint64_t i = 0; i < 300; i++)
		len += frame_make(frames + len, i, 0);
	ck_assert_int_eq(write(e.fd, frames, len), (ssize_t)len);
	close(e.fd);
	e.fd = -1;
	settle(&w);
	ck_assert_uint_eq(w.n_frames, 300);
	ck_assert_uint_eq(w.n_ended, 1);
	end_deinit(&e);
	world_deinit(&w);
}
END_TEST

/* ---- descriptors ----------------------------------------------------------------------------- */

/* Receives bytes and at most one descriptor. */
static ssize_t recv_fd(int fd, uint8_t *out, size_t cap, int *ret_fd)
{
	union {
		char buf[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec iov = { .iov_base = out, .iov_len = cap };
	struct msghdr msg = { .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = control.buf,
			      .msg_controllen = sizeof(control.buf) };
	ssize_t n = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC);
	struct cmsghdr *cmsg = n > 0 ? CMSG_FIRSTHDR(&msg) : NULL;

	*ret_fd = -1;
	if (cmsg)
		memcpy(ret_fd, CMSG_DATA(cmsg), sizeof(int));
	return n;
}

static void fd_same(int a, int b)
{
	struct stat x, y;

	ck_assert_int_eq(fstat(a, &x), 0);
	ck_assert_int_eq(fstat(b, &y), 0);
	ck_assert_uint_eq(x.st_ino, y.st_ino);
	ck_assert_uint_eq(x.st_dev, y.st_dev);
}

/* Each descriptor comes with the first byte of its reply, also when the reply waits in our buffer
 * and the original is closed meanwhile. */
START_TEST(descriptors_go_with_their_reply)
{
	enum {
		N = 40,
		LEN = 20000
	};
	static uint8_t got[N * (PROTO_HEADER_LEN + LEN)];
	uint8_t frame[PROTO_HEADER_LEN];
	int original = open("/dev/zero", O_RDONLY | O_CLOEXEC), copy, n_fds = 0;
	size_t n = 0;
	struct world w;
	struct end e;

	ck_assert_int_ge(original, 0);
	copy = fcntl(original, F_DUPFD_CLOEXEC, 3);
	world_init(&w);
	w.pass_fd = original;
	w.reply_len = LEN;
	end_init(&e, &w, 0);
	for (uint64_t i = 0; i < N; i++) {
		frame_make(frame, i, 0);
		ck_assert_int_eq(write(e.fd, frame, sizeof(frame)), (ssize_t)sizeof(frame));
	}
	settle(&w);
	ck_assert_uint_eq(w.n_frames, N);
	ck_assert_uint_gt(prefixd_conn_unsent(&e.conn), 0);
	close(original);
	for (int idle = 0; n < sizeof(got) && idle < 1000; idle++) {
		/* Never more than one reply at a time, so that each descriptor's place is seen. */
		size_t in_reply = n % (PROTO_HEADER_LEN + LEN);
		ssize_t k;
		int fd;

		k = recv_fd(e.fd, got + n, PROTO_HEADER_LEN + LEN - in_reply, &fd);
		ck_assert_int_eq(fd >= 0, k > 0 && in_reply == 0);
		if (fd >= 0) {
			fd_same(fd, copy);
			close(fd);
			n_fds++;
		}
		if (k > 0) {
			n += (size_t)k;
			idle = 0;
		}
		settle(&w);
	}
	ck_assert_uint_eq(n, sizeof(got));
	ck_assert_int_eq(n_fds, N);
	end_deinit(&e);
	world_deinit(&w);
	close(copy);
}
END_TEST

static int open_descriptors(void)
{
	int n = 0;

	for (int fd = 0; fd < 256; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

/* Descriptors that wait in our buffer are the whole process's: who asks for them by short requests
 * and does not read is not read from long before its bytes would be too many. */
START_TEST(waiting_descriptors_are_few)
{
	enum {
		N = 5000
	};
	static uint8_t got[1 << 20];
	uint8_t frame[PROTO_HEADER_LEN];
	struct world w;
	struct end e;
	int before;

	world_init(&w);
	w.pass_fd = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	ck_assert_int_ge(w.pass_fd, 0);
	end_init(&e, &w, 0);
	before = open_descriptors();
	for (uint64_t i = 0; i < N; i++) {
		frame_make(frame, i, 0);
		if (write(e.fd, frame, sizeof(frame)) != (ssize_t)sizeof(frame))
			break;
		settle(&w);
		ck_assert_int_le(open_descriptors(), before + (int)PREFIXD_CONN_MARKS);
	}
	ck_assert_uint_eq(e.conn.n_marks, PREFIXD_CONN_MARKS);
	ck_assert_uint_lt(prefixd_conn_unsent(&e.conn), PREFIXD_CONN_SOFT);
	w.pass_fd = -1;
	for (int idle = 0; idle < 1000; idle++) {
		idle = read_some(e.fd, got, sizeof(got)) ? 0 : idle;
		settle(&w);
	}
	ck_assert_uint_eq(e.conn.n_marks, 0);
	ck_assert_int_eq(open_descriptors(), before);
	ck_assert_uint_eq(w.n_ended, 0);
	frame_make(frame, 0, 0);
	before = (int)w.n_frames; /* and it is heard again */
	ck_assert_int_eq(write(e.fd, frame, sizeof(frame)), (ssize_t)sizeof(frame));
	settle(&w);
	ck_assert_int_eq((int)w.n_frames, before + 1);
	end_deinit(&e);
	world_deinit(&w);
}
END_TEST

/* A peer that passes descriptors passes nothing: the bytes arrive, the descriptor does not. */
START_TEST(descriptors_are_not_accepted)
{
	uint8_t frame[PROTO_HEADER_LEN], got[256];
	union {
		char buf[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = { 0 };
	struct iovec iov = { .iov_base = frame, .iov_len = sizeof(frame) };
	struct msghdr msg = { .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = control.buf,
			      .msg_controllen = sizeof(control.buf) };
	struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
	struct world w;
	struct end e;
	int before, fd = STDIN_FILENO;

	world_init(&w);
	end_init(&e, &w, 0);
	frame_make(frame, 1, 0);
	cmsg->cmsg_level = SOL_SOCKET;
	cmsg->cmsg_type = SCM_RIGHTS;
	cmsg->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(cmsg), &fd, sizeof(fd));
	before = open_descriptors();
	ck_assert_int_eq(sendmsg(e.fd, &msg, 0), (ssize_t)sizeof(frame));
	settle(&w);
	ck_assert_uint_eq(w.n_frames, 1);
	ck_assert_uint_eq(read_some(e.fd, got, sizeof(got)), sizeof(frame));
	ck_assert_int_eq(open_descriptors(), before);
	end_deinit(&e);
	world_deinit(&w);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("conn");
	TCase *tc = tcase_create("conn");

	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, split_at_every_offset);
	tcase_add_test(tc, long_frames_between_short_ones);
	tcase_add_test(tc, pipelined);
	tcase_add_test(tc, nobody_starves);
	tcase_add_test(tc, slow_reader_is_paused);
	tcase_add_test(tc, hard_limit_drops);
	tcase_add_test(tc, slow_reader_is_dropped);
	tcase_add_test(tc, wrong_headers);
	tcase_add_test(tc, half_closed);
	tcase_add_test(tc, broken_pipe);
	tcase_add_test(tc, heard_to_the_end);
	tcase_add_test(tc, descriptors_go_with_their_reply);
	tcase_add_test(tc, waiting_descriptors_are_few);
	tcase_add_test(tc, descriptors_are_not_accepted);
	suite_add_tcase(s, tc);
	return s;
}

int main(void)
{
	return test_run(suite());
}
