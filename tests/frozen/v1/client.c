/*
 * client.c - see client.h.
 */
#include "tests/frozen/v1/client.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define HEADER  40u
#define WAIT_MS 20000

enum {
	OP_HELLO = 1,
	OP_OPEN = 2,
	OP_MATCH = 3,
	OP_EXTEND = 4,
	OP_RESERVE = 5,
	OP_COMMIT = 6,
	OP_RELEASE = 7,
	OP_WAIT = 8,
	OP_QUIESCED = 14,
	OP_PING = 15,
	OP_EVENT = 16,
};

/* What version 1 computes for its self-test. */
static const uint8_t self_test[16] = { 0xa5, 0x9d, 0x2b, 0x80, 0x0d, 0x32, 0xfe, 0xd8,
				       0xae, 0x3c, 0x04, 0xac, 0x43, 0x12, 0x56, 0x4b };

/* ---- bytes ----------------------------------------------------------------------------------- */

struct out {
	uint8_t b[4096];
	size_t n;
};

static void put(struct out *o, const void *p, size_t n)
{
	if (n > sizeof(o->b) - o->n)
		abort(); /* a test's own frame */
	if (n)
		memcpy(o->b + o->n, p, n);
	o->n += n;
}

static void put_u(struct out *o, uint64_t v, size_t width)
{
	for (size_t i = 0; i < width; i++, v >>= 8)
		put(o, &(uint8_t){ (uint8_t)v }, 1);
}

static void put_text(struct out *o, const char *s)
{
	put_u(o, strlen(s), 2);
	put(o, s, strlen(s));
}

static void put_bytes(struct out *o, const void *p, size_t n)
{
	put_u(o, n, 4);
	put(o, p, n);
}

struct in {
	const uint8_t *p;
	size_t left;
	bool bad;
};

static const uint8_t *get(struct in *in, size_t n)
{
	const uint8_t *p = in->p;

	if (in->bad || n > in->left) {
		in->bad = true;
		return NULL;
	}
	in->p += n;
	in->left -= n;
	return p;
}

static uint64_t get_u(struct in *in, size_t width)
{
	const uint8_t *p = get(in, width);
	uint64_t v = 0;

	for (size_t i = width; p && i-- > 0;)
		v = v << 8 | p[i];
	return v;
}

static void get_copy(struct in *in, void *ret, size_t n)
{
	const uint8_t *p = get(in, n);

	if (p)
		memcpy(ret, p, n);
}

/* A text of at most `max` bytes, terminated. */
static void get_text(struct in *in, char *ret, size_t max)
{
	size_t n = get_u(in, 2);
	const uint8_t *p = n <= max ? get(in, n) : NULL;

	if (!p || memchr(p, 0, n)) {
		in->bad = true;
		n = 0;
	} else {
		memcpy(ret, p, n);
	}
	ret[n] = 0;
}

static uint32_t get_runs(struct in *in, struct v1_run runs[V1_RUNS])
{
	uint64_t n = get_u(in, 4);

	if (n > V1_RUNS)
		in->bad = true;
	for (uint64_t i = 0; !in->bad && i < n; i++) {
		runs[i].start = (uint32_t)get_u(in, 4);
		runs[i].len = (uint32_t)get_u(in, 4);
	}
	return in->bad ? 0 : (uint32_t)n;
}

__attribute__((format(printf, 3, 4))) static int fail(struct v1 *c, int r, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	(void)vsnprintf(c->why, sizeof(c->why), format, ap); /* cut when longer */
	va_end(ap);
	return r;
}

/* ---- the socket ------------------------------------------------------------------------------ */

static void close_fds(struct v1 *c)
{
	for (uint32_t i = 0; i < c->n_fds; i++)
		close(c->fds[i]);
	c->n_fds = 0;
}

int v1_connect(struct v1 *c, const char *path, const uint8_t instance[16])
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };

	memset(c, 0, sizeof(*c));
	memcpy(c->instance, instance, 16);
	(void)snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", path);
	c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (c->fd < 0 || connect(c->fd, (const struct sockaddr *)&sa, sizeof(sa)) != 0) {
		(void)fail(c, 0, "%s: %s", path, strerror(errno));
		v1_close(c);
		return V1_CLOSED;
	}
	return 0;
}

void v1_close(struct v1 *c)
{
	if (c->fd >= 0)
		close(c->fd);
	c->fd = -1;
	close_fds(c);
	free(c->body);
	c->body = NULL;
}

int v1_send(struct v1 *c, const void *frame, size_t len)
{
	const uint8_t *p = frame;

	while (len) {
		ssize_t n = send(c->fd, p, len, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return fail(c, V1_CLOSED, "send: %s", strerror(errno));
		p += n;
		len -= (size_t)n;
	}
	return 0;
}

static int take_fds(struct v1 *c, struct msghdr *m)
{
	for (struct cmsghdr *h = CMSG_FIRSTHDR(m); h; h = CMSG_NXTHDR(m, h)) {
		size_t n = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (n > 4 - c->n_fds)
			return fail(c, V1_WRONG, "more than 4 descriptors");
		memcpy(c->fds + c->n_fds, CMSG_DATA(h), n * sizeof(int));
		c->n_fds += (uint32_t)n;
	}
	if (m->msg_flags & MSG_CTRUNC)
		return fail(c, V1_WRONG, "descriptors were cut off");
	return 0;
}

static int read_all(struct v1 *c, void *out, size_t len)
{
	uint8_t *p = out;

	while (len) {
		union {
			struct cmsghdr align;
			char room[CMSG_SPACE(4 * sizeof(int))];
		} control;
		struct iovec iov = { p, len };
		struct msghdr m = { .msg_iov = &iov,
				    .msg_iovlen = 1,
				    .msg_control = control.room,
				    .msg_controllen = sizeof(control.room) };
		struct pollfd pfd = { .fd = c->fd, .events = POLLIN };
		ssize_t n;
		int r;

		if (poll(&pfd, 1, WAIT_MS) <= 0)
			return fail(c, V1_WRONG, "no answer in %d ms", WAIT_MS);
		n = recvmsg(c->fd, &m, MSG_CMSG_CLOEXEC);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return fail(c, V1_CLOSED, "the daemon closed");
		r = take_fds(c, &m);
		if (r)
			return r;
		p += n;
		len -= (size_t)n;
	}
	return 0;
}

int v1_receive(struct v1 *c)
{
	uint8_t raw[HEADER];
	struct in in = { raw, sizeof(raw), false };
	uint16_t version, flags;
	int r;

	close_fds(c);
	r = read_all(c, raw, sizeof(raw));
	if (r)
		return r;
	if (memcmp(get(&in, 4), "PFXD", 4) != 0)
		return fail(c, V1_WRONG, "a frame that does not begin with PFXD");
	version = (uint16_t)get_u(&in, 2);
	c->op = (uint16_t)get_u(&in, 2);
	c->len = (uint32_t)get_u(&in, 4);
	c->status = (uint16_t)get_u(&in, 2);
	flags = (uint16_t)get_u(&in, 2);
	c->got_seq = get_u(&in, 8);
	get_copy(&in, c->boot, 16);
	if (version != 1 || flags)
		return fail(c, V1_WRONG, "a header of version %u with flags %u", version, flags);
	if (c->len > (c->greeted ? c->max_frame : 1u << 20) - HEADER)
		return fail(c, V1_WRONG, "a body of %u bytes", c->len);
	if (c->greeted && memcmp(c->boot, c->said, 16) != 0)
		return fail(c, V1_WRONG, "another boot id on one connection");
	free(c->body);
	c->body = malloc(c->len + 1u);
	if (!c->body)
		abort();
	return read_all(c, c->body, c->len);
}

/* ---- one call -------------------------------------------------------------------------------- */

/* The frame's body is in `o`.  Return: the reply's status, V1_CLOSED, V1_WRONG. */
static int call(struct v1 *c, uint16_t op, const struct out *o, struct in *ret_in)
{
	struct out frame = { .n = 0 };
	char text[513];
	struct in in;
	int r;

	put(&frame, "PFXD", 4);
	put_u(&frame, 1, 2);
	put_u(&frame, op, 2);
	put_u(&frame, o->n, 4);
	put_u(&frame, 0, 4);
	put_u(&frame, ++c->seq, 8);
	put(&frame, c->boot, 16);
	put(&frame, o->b, o->n);
	r = v1_send(c, frame.b, frame.n);
	if (r == 0)
		r = v1_receive(c);
	if (r)
		return r;
	if (c->op != op || c->got_seq != c->seq)
		return fail(c, V1_WRONG, "op %u answers op %u", c->op, op);
	in = (struct in){ c->body, c->len, false };
	if (c->status == 0) {
		*ret_in = in;
		return 0;
	}
	if (c->status > 24)
		return fail(c, V1_WRONG, "status %u", c->status);
	get_text(&in, c->error_field, 64);
	get_text(&in, text, 512);
	(void)get_u(&in, 4);
	if (in.bad || in.left)
		return fail(c, V1_WRONG, "an error whose body is not one");
	(void)fail(c, 0, "%s: %.120s", c->error_field, text);
	return c->status;
}

/* A body that is used up exactly, or nothing of it is believed. */
static int done(struct v1 *c, const struct in *in)
{
	if (in->bad || in->left)
		return fail(c, V1_WRONG, "a reply to op %u that is %s", c->op,
			    in->bad ? "too short" : "too long");
	return 0;
}

int v1_hello(struct v1 *c)
{
	struct out o = { .n = 0 };
	char daemon[65];
	struct in in;
	uint64_t n, version;
	int r;

	put_u(&o, 1, 2);
	put_u(&o, 1, 2);
	put_u(&o, 0, 4);
	put(&o, self_test, 16);
	put(&o, c->instance, 16);
	put_text(&o, "frozen");
	r = call(c, OP_HELLO, &o, &in);
	if (r)
		return r;
	version = get_u(&in, 2);
	c->session = (uint32_t)get_u(&in, 4);
	c->max_frame = (uint32_t)get_u(&in, 4);
	c->max_keys = (uint32_t)get_u(&in, 4);
	(void)get(&in, 4 * 4); /* namespaces, leases, op ids and for how long */
	get_text(&in, daemon, 64);
	n = get_u(&in, 4);
	if (n < 6 || n != in.left || get_u(&in, 4) != 0)
		return fail(c, V1_WRONG, "a list of tenants that does not begin with number 0");
	get_text(&in, c->tenant, sizeof(c->tenant) - 1);
	(void)get(&in, in.left);
	if (version != 1 || c->max_frame < 4096 || !c->max_keys || strncmp(daemon, "prefixd ", 8))
		return fail(c, V1_WRONG, "HELLO's reply says version %u", (unsigned)version);
	memcpy(c->said, c->boot, 16);
	c->greeted = true;
	return done(c, &in);
}

int v1_ping(struct v1 *c)
{
	struct out o = { .n = 0 };
	struct in in;
	int r = call(c, OP_PING, &o, &in);

	return r ? r : done(c, &in);
}

static int map_pool(struct v1 *c, struct v1_ns *ns, uint64_t n_fds)
{
	void *v;

	if (n_fds != 2 || c->n_fds != 2)
		return fail(c, V1_WRONG, "%u descriptors came with OPEN", c->n_fds);
	v = mmap(NULL, ns->pool_len, PROT_READ | PROT_WRITE, MAP_SHARED, c->fds[0], 0);
	ns->pool = v == MAP_FAILED ? NULL : v;
	v = mmap(NULL, ns->n_slots * 8ul, PROT_READ, MAP_SHARED, c->fds[1], 0);
	ns->generations = v == MAP_FAILED ? NULL : v;
	close_fds(c);
	return ns->pool && ns->generations ? 0 : fail(c, V1_WRONG, "mmap: %s", strerror(errno));
}

int v1_open(struct v1 *c, const char *model, uint64_t block_bytes, struct v1_ns *ret)
{
	struct out o = { .n = 0 };
	uint64_t n_digest, n_fds;
	struct in in;
	int r;

	put_u(&o, 1, 1); /* keys are tokens */
	put_u(&o, 1, 4); /* OPAQUE */
	put_text(&o, model);
	put_text(&o, "r1");
	put_text(&o, "float16");
	put_text(&o, "");
	put_u(&o, 1, 4); /* layers, heads, their size */
	put_u(&o, 1, 4);
	put_u(&o, 64, 4);
	put_u(&o, 4, 4); /* tokens in a block */
	put_u(&o, block_bytes, 8);
	put_text(&o, "opaque");
	put_text(&o, "");
	put_text(&o, "");
	put_u(&o, 1, 4);
	put_u(&o, 0, 4);
	put_text(&o, "frozen/1");
	put_u(&o, 0, 4);
	put_bytes(&o, "", 0);
	r = call(c, OP_OPEN, &o, &in);
	if (r)
		return r;
	memset(ret, 0, sizeof(*ret));
	ret->id = (uint32_t)get_u(&in, 4);
	ret->flags = (uint32_t)get_u(&in, 4);
	n_digest = get_u(&in, 4);
	get_copy(&in, ret->digest, 32);
	ret->key_len = (uint32_t)get_u(&in, 4);
	ret->block_tokens = (uint32_t)get_u(&in, 4);
	ret->block_bytes = get_u(&in, 8);
	ret->group = (uint32_t)get_u(&in, 4);
	ret->n_slots = (uint32_t)get_u(&in, 4);
	ret->slot_stride = get_u(&in, 8);
	ret->pool_len = get_u(&in, 8);
	n_fds = get_u(&in, 1);
	r = done(c, &in);
	if (r)
		return r;
	if (n_digest != 32 || (ret->flags & ~3u) || ret->key_len != 16 ||
	    ret->block_bytes != block_bytes || ret->slot_stride < block_bytes ||
	    ret->n_slots > ret->pool_len / ret->slot_stride)
		return fail(c, V1_WRONG, "OPEN's reply: flags %u, key_len %u", ret->flags,
			    ret->key_len);
	return map_pool(c, ret, n_fds);
}

void v1_unmap(struct v1_ns *ns)
{
	union {
		const uint64_t *c;
		void *v;
	} g = { ns->generations };

	if (ns->pool)
		munmap(ns->pool, ns->pool_len);
	if (g.v)
		munmap(g.v, ns->n_slots * 8ul);
	ns->pool = NULL;
	ns->generations = NULL;
}

static int take_match(struct v1 *c, struct in *in, struct v1_match *ret)
{
	memset(ret, 0, sizeof(*ret));
	ret->lease = get_u(in, 8);
	get_copy(in, ret->root, 16);
	ret->n_device = (uint32_t)get_u(in, 4);
	ret->n_host = (uint32_t)get_u(in, 4);
	ret->n_redis = (uint32_t)get_u(in, 4);
	ret->n_pending = (uint32_t)get_u(in, 4);
	ret->tail_tokens = (uint32_t)get_u(in, 4);
	ret->tail_slot = (uint32_t)get_u(in, 4);
	ret->advice = (uint8_t)get_u(in, 1);
	ret->reason = (uint8_t)get_u(in, 1);
	ret->more = (uint8_t)get_u(in, 1);
	ret->load_us = (uint32_t)get_u(in, 4);
	ret->miss_token = get_u(in, 8);
	ret->reuse = get_u(in, 8);
	ret->n_runs = get_runs(in, ret->runs);
	if (!ret->lease || ret->reason > 13 || ret->advice > 1 || ret->more > 1)
		return fail(c, V1_WRONG, "a match with reason %u", ret->reason);
	return done(c, in);
}

int v1_match(struct v1 *c, const struct v1_ns *ns, const uint32_t *tokens, uint32_t n_blocks,
	     uint32_t flags, struct v1_match *ret)
{
	struct out o = { .n = 0 };
	struct in in;
	int r;

	put_u(&o, 7, 1); /* namespace, tenant and salt are there */
	put_u(&o, ns->id, 4);
	put_u(&o, 0, 4);
	put_bytes(&o, "salt", 4);
	put(&o, (uint8_t[32]){ 0 }, 32); /* op_id, decision_id */
	put_u(&o, flags, 4);
	put_u(&o, 0, 4);
	put_u(&o, n_blocks * 4ul, 8);
	put_bytes(&o, "", 0);
	put_u(&o, n_blocks * 16ul, 4);
	for (uint32_t i = 0; i < n_blocks * 4; i++)
		put_u(&o, tokens[i], 4);
	put_bytes(&o, "", 0);
	r = call(c, OP_MATCH, &o, &in);
	return r ? r : take_match(c, &in, ret);
}

int v1_extend(struct v1 *c, uint64_t lease, struct v1_match *ret)
{
	struct out o = { .n = 0 };
	struct in in;
	int r;

	put(&o, (uint8_t[16]){ 0 }, 16);
	put_u(&o, lease, 8);
	put_u(&o, 0, 4);
	put_u(&o, 0, 4);
	put_u(&o, 0, 8);
	put_bytes(&o, "", 0);
	put_bytes(&o, "", 0);
	put_bytes(&o, "", 0);
	r = call(c, OP_EXTEND, &o, &in);
	return r ? r : take_match(c, &in, ret);
}

/* The replies of RESERVE and COMMIT have the same shape. */
static int take_slots(struct v1 *c, struct in *in, struct v1_slots *ret)
{
	ret->a = (uint32_t)get_u(in, 4);
	ret->b = (uint32_t)get_u(in, 4);
	ret->reuse = get_u(in, 8);
	ret->n_runs = get_runs(in, ret->runs);
	return done(c, in);
}

int v1_reserve(struct v1 *c, uint64_t lease, uint32_t n, struct v1_slots *ret)
{
	struct out o = { .n = 0 };
	struct in in;
	int r;

	put(&o, (uint8_t[16]){ 0 }, 16);
	put_u(&o, lease, 8);
	put_u(&o, n, 4);
	put_u(&o, 0, 4);
	r = call(c, OP_RESERVE, &o, &in);
	return r ? r : take_slots(c, &in, ret);
}

int v1_commit(struct v1 *c, uint64_t lease, uint32_t n, struct v1_slots *ret)
{
	struct out o = { .n = 0 };
	struct in in;
	int r;

	put(&o, (uint8_t[16]){ 0 }, 16);
	put_u(&o, lease, 8);
	put_u(&o, n, 4);
	put_u(&o, 0, 4);
	put_u(&o, 0, 1);
	put_bytes(&o, "", 0);
	r = call(c, OP_COMMIT, &o, &in);
	return r ? r : take_slots(c, &in, ret);
}

int v1_release(struct v1 *c, uint64_t lease, uint64_t ret_tokens[6])
{
	struct out o = { .n = 0 };
	uint64_t sum = 0;
	struct in in;
	int r;

	put(&o, (uint8_t[16]){ 0 }, 16);
	put_u(&o, lease, 8);
	put_u(&o, 0, 4);
	put_u(&o, 0, 4);
	r = call(c, OP_RELEASE, &o, &in);
	if (r)
		return r;
	for (int i = 0; i < 6; i++) {
		ret_tokens[i] = get_u(&in, 8);
		sum += i ? ret_tokens[i] : 0;
	}
	if (sum != ret_tokens[0])
		return fail(c, V1_WRONG, "hits and misses do not add up");
	return done(c, &in);
}

int v1_wait(struct v1 *c, uint64_t lease, struct v1_wait *ret)
{
	struct out o = { .n = 0 };
	struct in in;
	int r;

	put_u(&o, lease, 8);
	put_u(&o, 0, 4);
	r = call(c, OP_WAIT, &o, &in);
	if (r)
		return r;
	ret->lease = get_u(&in, 8);
	ret->state = (uint8_t)get_u(&in, 1);
	ret->n = (uint32_t)get_u(&in, 4);
	ret->leader_us = (uint32_t)get_u(&in, 4);
	if (ret->state > 3)
		return fail(c, V1_WRONG, "WAIT in state %u", ret->state);
	return done(c, &in);
}

int v1_event(struct v1 *c, struct v1_wait *ret)
{
	struct in in;
	int r = v1_receive(c);

	if (r)
		return r;
	if (c->op != OP_EVENT || c->status || c->got_seq != c->seq)
		return fail(c, V1_WRONG, "op %u is no EVENT of this WAIT", c->op);
	in = (struct in){ c->body, c->len, false };
	ret->lease = get_u(&in, 8);
	ret->state = (uint8_t)get_u(&in, 1);
	ret->n = (uint32_t)get_u(&in, 4);
	ret->leader_us = (uint32_t)get_u(&in, 4);
	if (get_u(&in, 1) > 13 || ret->state > 5)
		return fail(c, V1_WRONG, "an EVENT in state %u", ret->state);
	return done(c, &in);
}

int v1_quiesced(struct v1 *c, const uint8_t boot[16], uint32_t *ret_leases, uint32_t *ret_slots)
{
	struct out o = { .n = 0 };
	struct in in;
	int r;

	put(&o, c->instance, 16);
	put(&o, boot, 16);
	r = call(c, OP_QUIESCED, &o, &in);
	if (r)
		return r;
	*ret_leases = (uint32_t)get_u(&in, 4);
	*ret_slots = (uint32_t)get_u(&in, 4);
	return done(c, &in);
}

uint32_t v1_slot(const struct v1_run *runs, uint32_t n_runs, uint32_t i)
{
	for (uint32_t k = 0; k < n_runs; k++) {
		if (i < runs[k].len)
			return runs[k].start + i;
		i -= runs[k].len;
	}
	return UINT32_MAX;
}

bool v1_stale(const struct v1_ns *ns, uint32_t slot, uint64_t reuse)
{
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return __atomic_load_n(&ns->generations[slot], __ATOMIC_ACQUIRE) > reuse;
}
