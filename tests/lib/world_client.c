/*
 * world_client.c - the workers of the simulated world: connections, and a call per operation.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/lib/world_internal.h"

/* The request that went out last, for world_again(). */
static struct {
	uint16_t op;
	uint32_t len;
	uint8_t body[1u << 20];
} last;

static const char *who(const struct world_client *c, char out[16])
{
	snprintf(out, 16, "%4u", c->session);
	return out;
}

/* ---- connections ----------------------------------------------------------------------------- */

struct world_client *world_connect_as(struct world *w, const struct prefixd_peer *peer,
				      const struct proto_id *instance)
{
	struct prefixd_event event = { .type = PREFIXD_EVENT_SESSION_OPENED };
	struct world_client *c = NULL;

	for (uint32_t i = 0; i < WORLD_CLIENTS && !c; i++)
		if (!w->clients[i].used)
			c = &w->clients[i];
	ck_assert_ptr_nonnull(c);
	c->peer = *peer;
	c->instance = *instance;
	world_life_process(w, peer->pid, peer->start_time, true);
	c->used = true;
	c->open = true;
	c->closed = false;
	c->seq = 0;
	c->version = 0;
	c->n_events = 0;
	c->reserving = 0;
	world_client_late_drop(c);
	event.session = c->session;
	event.u.peer = c->peer;
	world_note(w, "%4u   connected: pid %u, uid %u%s\n", c->session, peer->pid, peer->uid,
		   peer->admin ? ", admin" : "");
	world_step(w, &event);
	if (!w->engine) /* nobody listens */
		c->used = c->open = false;
	return c;
}

struct world_client *world_connect(struct world *w, uint32_t pid, uint32_t uid, bool admin)
{
	const struct prefixd_peer peer = {
		.pid = pid, .uid = uid, .gid = uid, .start_time = pid, .admin = admin
	};
	struct proto_id instance = { { 0 } };

	memcpy(instance.b, &pid, sizeof(pid));
	return world_connect_as(w, &peer, &instance);
}

struct proto_span world_text(const char *text)
{
	return (struct proto_span){ .p = text, .n = (uint32_t)strlen(text) };
}

struct proto_hello_req world_hello_req(const struct world_client *c)
{
	return (struct proto_hello_req){
		.version_min = 1,
		.version_max = PROTO_VERSION,
		.self_test = proto_self_test(1),
		.instance = c->instance,
		.name = world_text("worker"),
	};
}

struct world_client *world_worker(struct world *w, uint32_t pid, uint32_t uid)
{
	struct world_client *c = world_connect(w, pid, uid, false);
	struct proto_hello_req req = world_hello_req(c);
	struct proto_hello_rep rep;

	int r = world_hello(c, &req, &rep);

	ck_assert(r == PROTO_STATUS_OK || (r == -ECONNRESET && world_life_down(w)));
	return c;
}

struct proto_open_req world_open_req(const char *model)
{
	return (struct proto_open_req){
		.key_mode = PROTO_KEYS_TOKENS,
		.model = world_text(model),
		.revision = world_text("r1"),
		.dtype = world_text("float16"),
		.layers = 1,
		.kv_heads = 1,
		.head_dim = 4,
		.block_tokens = 4,
		.block_bytes = 64,
		.layout = world_text("block-major"),
		.tp_size = 1,
		.engine = world_text("test 1"),
	};
}

void world_eof(struct world_client *c)
{
	struct prefixd_event event = { .type = PREFIXD_EVENT_SESSION_EOF, .session = c->session };

	if (!c->used || !c->open)
		return;
	c->open = false;
	world_note(c->w, "%4u   end of the socket\n", c->session);
	world_step(c->w, &event);
}

void world_gone(struct world_client *c)
{
	struct prefixd_event event = { .type = PREFIXD_EVENT_PROCESS_GONE, .session = c->session };

	if (!c->used)
		return;
	world_note(c->w, "%4u   process %u is gone\n", c->session, c->peer.pid);
	world_step(c->w, &event);
}

void world_kill_as(struct world *w, uint32_t pid, uint64_t start_time)
{
	bool socket_first = test_rng_below(&w->rng, 2);

	world_life_process(w, pid, start_time, false);
	world_life_tell_gone(w);
	for (uint32_t i = 0; i < WORLD_CLIENTS; i++) {
		struct world_client *c = &w->clients[i];

		if (!c->used || c->peer.pid != pid ||
		    (start_time != WORLD_ANY_TIME && c->peer.start_time != start_time))
			continue;
		if (socket_first)
			world_eof(c);
		world_gone(c);
		if (c->used && w->engine)
			world_fail(w, "session %u outlived its process", i);
	}
}

void world_kill(struct world *w, uint32_t pid)
{
	world_kill_as(w, pid, WORLD_ANY_TIME);
}

/* ---- requests and replies -------------------------------------------------------------------- */

#define PRINT_MAX 4096

static void print_request(struct world_client *c, uint16_t op, const void *body, uint32_t len)
{
	uint32_t version = c->version ? c->version : PROTO_VERSION;
	char text[PRINT_MAX], name[16];
	const char *bad = NULL;

	if (!c->w->config.record)
		return;
	text[0] = '\0';
	switch (op) {
#define X(name_, OP, req, rep)                                                  \
	case PROTO_OP_##OP: {                                                   \
		struct proto_##req m;                                           \
		if (proto_##req##_decode_as(version, body, len, &m, &bad) == 0) \
			proto_##req##_print(&m, text, sizeof(text));            \
		break;                                                          \
	}
		WORLD_CALLS(X)
#undef X
	default:
		break;
	}
	if (bad)
		snprintf(text, sizeof(text), "(%u bytes that do not decode: %s)", len, bad);
	world_note(c->w, "%s > %s%s%s\n", who(c, name), proto_op_to_string(op), text[0] ? " " : "",
		   text);
}

static void print_reply(struct world_client *c)
{
	uint32_t version = proto_body_version(&c->h, c->body, true);
	char text[PRINT_MAX], name[16];
	const char *bad = NULL;

	text[0] = '\0';
	switch (c->h.op) {
#define X(name_, OP, req, rep)                                                          \
	case PROTO_OP_##OP: {                                                           \
		struct proto_##rep m;                                                   \
		if (proto_##rep##_decode_as(version, c->body, c->h.len, &m, &bad) == 0) \
			proto_##rep##_print(&m, text, sizeof(text));                    \
		break;                                                                  \
	}
		WORLD_CALLS(X)
#undef X
	default:
		bad = "no such operation";
		break;
	}
	if (bad)
		world_fail(c->w, "a reply to %s does not decode: %s", proto_op_to_string(c->h.op),
			   bad);
	world_note(c->w, "%s < %s %s\n", who(c, name), proto_op_to_string(c->h.op), text);
}

void world_client_got(struct world_client *c)
{
	struct proto_error err;
	const char *bad;
	char name[16];

	if (memcmp(&c->h.boot, &c->w->config.engine.boot, sizeof(c->h.boot)) != 0)
		world_fail(c->w, "a reply without the boot id");
	c->error_field[0] = '\0';
	c->error_text[0] = '\0';
	if (c->h.status == PROTO_STATUS_OK) {
		if (c->w->config.record)
			print_reply(c);
		return;
	}
	if (proto_error_decode(c->body, c->h.len, &err, &bad))
		world_fail(c->w, "an error does not decode: %s", bad);
	if (err.field.n)
		memcpy(c->error_field, err.field.p, err.field.n);
	c->error_field[err.field.n] = '\0';
	if (err.text.n)
		memcpy(c->error_text, err.text.p, err.text.n);
	c->error_text[err.text.n] = '\0';
	c->retry_after_us = err.retry_after_us;
	world_check(c->w, err.text.n > 0);
	world_note(c->w, "%s < %s %s %s: %s\n", who(c, name), proto_op_to_string(c->h.op),
		   proto_status_to_string(c->h.status), c->error_field, c->error_text);
}

void world_client_event(struct world_client *c, const struct proto_header *h, const void *body)
{
	char text[PRINT_MAX], name[16];
	struct proto_event e;
	const char *bad;

	if (memcmp(&h->boot, &c->w->config.engine.boot, sizeof(h->boot)) != 0)
		world_fail(c->w, "an EVENT without the boot id");
	if (proto_event_decode(body, h->len, &e, &bad))
		world_fail(c->w, "an EVENT does not decode: %s", bad);
	proto_event_print(&e, text, sizeof(text));
	world_note(c->w, "%s ! EVENT of %llu %s\n", who(c, name), (unsigned long long)h->seq, text);
	world_check(c->w, c->n_events < WORLD_EVENTS && h->seq <= c->seq);
	c->events[c->n_events].seq = h->seq;
	c->events[c->n_events++].e = e;
}

void world_client_lost(struct world_client *c, const struct proto_header *h, const void *body)
{
	struct proto_error m;
	const char *bad;

	world_check(c->w, c->version >= 3);
	world_check(c->w, memcmp(&h->boot, &c->w->config.engine.boot, sizeof(h->boot)) == 0);
	if (proto_error_decode(body, h->len, &m, &bad))
		world_fail(c->w, "a LOST does not decode: %s", bad);
	world_check(c->w, m.field.n == 4 && memcmp(m.field.p, "pool", 4) == 0 && m.text.n > 0 &&
				  m.retry_after_us > 0);
	c->n_lost++;
	c->lost_seq = h->seq;
	world_note(c->w, "%4u ! LOST pool %llu\n", c->session, (unsigned long long)h->seq);
}

bool world_event(struct world_client *c, uint64_t *ret_seq, struct proto_event *ret)
{
	if (c->n_events == 0)
		return false;
	*ret_seq = c->events[0].seq;
	*ret = c->events[0].e;
	memmove(&c->events[0], &c->events[1], --c->n_events * sizeof(c->events[0]));
	return true;
}

/* ---- RESERVEs that are put off --------------------------------------------------------------- */

/* What was granted is nobody's source or target. */
static void check_granted(struct world_client *c, uint64_t lease, const void *body, uint32_t len)
{
	struct prefixd_namespace_info ns;
	struct prefixd_lease_info info;
	struct proto_reserve_rep m;
	const char *bad;
	uint64_t at = 0;
	uint32_t it = 0;

	if (c->w->config.engine.staged) /* they are places, and not slots */
		return;
	if (world_in_flight(c->w) == 0 || proto_reserve_rep_decode(body, len, &m, &bad))
		return;
	while (prefixd_engine_next_lease(c->w->engine, &at, c->w->now_ns, &info))
		if (info.id == lease)
			break;
	while (prefixd_engine_next_namespace(c->w->engine, &it, &ns))
		if (ns.id == info.ns)
			break;
	world_check(c->w, info.id == lease && ns.id == info.ns);
	for (uint32_t k = 0; k < m.runs.n; k++) {
		struct radix_run run = proto_run_at(m.runs, k);

		for (uint32_t i = 0; i < run.len; i++)
			world_tiers_given(c->w, ns.group, run.start + i, "granted");
	}
}

bool world_client_late(struct world_client *c, const struct proto_header *h, const void *body)
{
	for (uint32_t i = 0; i < c->n_late; i++) {
		struct world_late *l = &c->late[i];

		if (l->seq != h->seq)
			continue;
		world_check(c->w, !l->came && h->op == l->op);
		l->came = true;
		l->status = h->status;
		l->len = h->len;
		l->body = malloc(h->len + 1);
		world_check(c->w, l->body);
		if (h->len)
			memcpy(l->body, body, h->len);
		world_note(c->w, "%4u < (late, of %llu) %s %s\n", c->session,
			   (unsigned long long)l->seq, proto_op_to_string(h->op),
			   proto_status_to_string(h->status));
		if (h->op == PROTO_OP_RESERVE && h->status == PROTO_STATUS_OK)
			check_granted(c, l->lease, body, h->len);
		return true;
	}
	return false;
}

void world_client_late_drop(struct world_client *c)
{
	while (c->n_late)
		free(c->late[--c->n_late].body);
}

/* Takes a reply that came: its status, and its body where it is OK. */
static int late_take(struct world_client *c, struct world_late *l, void *body, size_t cap)
{
	struct proto_error err;
	int status = l->status;
	const char *bad;

	world_check(c->w, l->len <= cap);
	memcpy(body, l->body, l->len);
	c->error_field[0] = c->error_text[0] = '\0';
	if (status != PROTO_STATUS_OK) {
		world_check(c->w, proto_error_decode(body, l->len, &err, &bad) == 0);
		snprintf(c->error_field, sizeof(c->error_field), "%.*s", (int)err.field.n,
			 (const char *)err.field.p);
		snprintf(c->error_text, sizeof(c->error_text), "%.*s", (int)err.text.n,
			 (const char *)err.text.p);
		c->retry_after_us = err.retry_after_us;
	}
	free(l->body);
	*l = c->late[--c->n_late];
	return status;
}

int world_reserve_reply(struct world_client *c, uint64_t seq, struct proto_reserve_rep *ret)
{
	static uint8_t kept[1u << 20];
	struct world_late *l = NULL;
	const char *bad;
	uint32_t len;
	int status;

	for (uint32_t i = 0; i < c->n_late; i++)
		if (c->late[i].seq == seq)
			l = &c->late[i];
	world_check(c->w, l);
	if (!l->came)
		return -EINPROGRESS;
	len = l->len;
	status = late_take(c, l, kept, sizeof(kept));
	if (status == PROTO_STATUS_OK && proto_reserve_rep_decode(kept, len, ret, &bad))
		world_fail(c->w, "the reply does not decode: %s", bad);
	return status;
}

int world_commit_reply(struct world_client *c, struct proto_commit_rep *ret)
{
	static uint8_t kept[1u << 20];
	struct world_late *l = NULL;
	const char *bad;
	uint32_t len;
	int status;

	for (uint32_t i = 0; i < c->n_late && !l; i++)
		if (c->late[i].op == PROTO_OP_COMMIT)
			l = &c->late[i];
	world_check(c->w, l);
	if (!l->came)
		return -EINPROGRESS;
	len = l->len;
	status = late_take(c, l, kept, sizeof(kept));
	if (status == PROTO_STATUS_OK && proto_commit_rep_decode(kept, len, ret, &bad))
		world_fail(c->w, "the reply does not decode: %s", bad);
	return status;
}

int world_reserve_wait(struct world_client *c, const struct proto_reserve_req *m,
		       struct proto_reserve_rep *ret)
{
	int r = world_reserve(c, m, ret);
	uint64_t seq = c->seq;

	while (r == -EINPROGRESS) {
		uint64_t due = world_next_due(c->w);

		if (!c->w->engine)
			return -ECONNRESET;
		if (due == UINT64_MAX)
			world_fail(c->w, "a RESERVE waits for nothing");
		world_advance(c->w, due > c->w->now_ns ? due - c->w->now_ns : 0);
		if (!c->w->engine)
			return -ECONNRESET;
		r = world_reserve_reply(c, seq, ret);
	}
	return r;
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* The lease that a RESERVE names; 0: it does not decode. */
static uint64_t lease_of(const void *body, uint32_t len)
{
	struct proto_reserve_req m;
	const char *bad;

	return proto_reserve_req_decode(body, len, &m, &bad) == 0 ? m.lease : 0;
}

static int exchange(struct world_client *c, uint16_t op, const void *body, uint32_t len)
{
	struct prefixd_event event = { .type = PREFIXD_EVENT_FRAME, .session = c->session };
	struct proto_header h = {
		.magic = PROTO_MAGIC,
		.version = c->version ? c->version : PROTO_VERSION_HELLO,
		.op = op,
		.len = len,
		.seq = ++c->seq,
	};
	uint32_t wanted = c->w->n_wanted;

	if (!c->w->engine)
		return -ECONNRESET;
	world_check(c->w, c->used && c->open && !c->closed);
	print_request(c, op, body, len);
	event.u.frame.header = &h;
	event.u.frame.body = body;
	c->n_replies = 0;
	c->reserving = 0;
	if (op == PROTO_OP_RESERVE && c->w->tiers)
		c->reserving = lease_of(body, len);
	world_step(c->w, &event);
	if (!c->w->engine)
		return -ECONNRESET;
	/* Its pool is being made, or what is in it is being compared with its checksums. */
	if (c->n_replies == 0 && op == PROTO_OP_OPEN &&
	    c->w->n_wanted + wanted + (c->w->life.n > 1) + c->w->desks.n_wanted > 0)
		return -EINPROGRESS;
	if (c->n_replies == 0 &&
	    (c->reserving || (op == PROTO_OP_COMMIT && c->w->desks.n_takes > 0))) {
		world_check(c->w, c->n_late < WORLD_LATE);
		c->late[c->n_late++] =
			(struct world_late){ .op = op, .seq = h.seq, .lease = c->reserving };
		world_note(c->w, "%4u   %s %llu waits\n", c->session, proto_op_to_string(op),
			   (unsigned long long)h.seq);
		return -EINPROGRESS;
	}
	world_check(c->w, c->n_replies == 1);
	world_check(c->w, c->h.seq == h.seq && c->h.op == op);
	world_check(c->w, c->h.version == h.version);
	if (op == PROTO_OP_HELLO && c->h.status == PROTO_STATUS_OK)
		c->version = (uint16_t)proto_body_version(&c->h, c->body, true);
	if (c->reserving && c->h.status == PROTO_STATUS_OK)
		check_granted(c, c->reserving, c->body, c->h.len);
	return c->h.status;
}

int world_raw(struct world_client *c, uint16_t op, const void *body, uint32_t len)
{
	/* A copy of its own size, so that a sanitizer sees every byte read behind it. */
	uint8_t *copy = malloc(len ? len : 1);
	int r;

	world_check(c->w, copy && len <= sizeof(last.body));
	if (len)
		memcpy(copy, body, len);
	last.op = op;
	last.len = len;
	if (len)
		memcpy(last.body, body, len);
	r = exchange(c, op, copy, len);
	free(copy);
	return r;
}

int world_again(struct world_client *c)
{
	return exchange(c, last.op, last.body, last.len);
}

#define X(name, OP, req, rep)                                                                  \
	int world_##name(struct world_client *c, const struct proto_##req *m,                  \
			 struct proto_##rep *ret)                                              \
	{                                                                                      \
		static uint8_t body[1u << 20];                                                 \
		struct proto_writer wr = { .p = body, .cap = sizeof(body) };                   \
		const char *bad;                                                               \
		int r;                                                                         \
                                                                                               \
		proto_##req##_encode_as(&wr, c->version ? c->version : PROTO_VERSION, m);      \
		ck_assert(proto_writer_ok(&wr));                                               \
		r = world_raw(c, PROTO_OP_##OP, body, (uint32_t)wr.len);                       \
		if (r == PROTO_STATUS_OK &&                                                    \
		    proto_##rep##_decode_as(proto_body_version(&c->h, c->body, true), c->body, \
					    c->h.len, ret, &bad))                              \
			world_fail(c->w, "the reply does not decode: %s", bad);                \
		return r;                                                                      \
	}
WORLD_CALLS(X)
#undef X

int world_open_reply(struct world_client *c, struct proto_open_rep *ret)
{
	const char *bad;

	world_check(c->w, c->n_replies == 1 && c->h.op == PROTO_OP_OPEN);
	if (c->h.status == PROTO_STATUS_OK &&
	    proto_open_rep_decode_as(c->h.version, c->body, c->h.len, ret, &bad))
		world_fail(c->w, "the reply does not decode: %s", bad);
	return c->h.status;
}
