/*
 * client.c - connecting, and the calls that need no namespace.
 *
 * What it guarantees.  A call makes at most one attempt to connect, within its deadline, and none
 * while the back-off of the last failed attempt runs, so that a daemon that is away costs a call
 * next to nothing.  After fork() a child is told so by every call and its pfx_close() leaves the
 * parent's connection as it is.
 *
 * What it relies on.  request.c for one request and its reply, namespace.c for opening again.
 */
#include "clients/c/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>

#define DEFAULT_DIR "/run/prefixd"

#ifndef PFX_VERSION
#define PFX_VERSION "0.1.0"
#endif

const char *pfx_version(void)
{
	return PFX_VERSION;
}

const char *pfx_error(const pfx_client *c)
{
	return c ? c->error : "no client";
}

int pfx_fail(struct pfx_client *c, int status, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	(void)vsnprintf(c->error, sizeof(c->error), format, ap); /* cut when too long */
	va_end(ap);
	return status;
}

int pfx_begin(struct pfx_client *c, uint32_t deadline_ms)
{
	if (!c)
		return PFX_ARGUMENT;
	if (getpid() != c->pid)
		return PFX_FORKED; /* the text stays the parent's: nothing here is touched */
	if (!deadline_ms)
		deadline_ms = c->deadline_ms;
	c->call_deadline_ns = pfx_now_ns() + (uint64_t)deadline_ms * 1000000ull;
	c->attempted = false;
	c->error[0] = 0;
	c->retry_after_us = 0;
	return 0;
}

uint32_t pfx_deadline_us(const struct pfx_client *c)
{
	uint64_t now = pfx_now_ns(), left, margin;

	if (now >= c->call_deadline_ns)
		return 1;
	left = (c->call_deadline_ns - now) / 1000;
	margin = left / 8 < 5000 ? left / 8 : 5000;
	left -= margin;
	return left == 0 ? 1 : left > UINT32_MAX ? UINT32_MAX : (uint32_t)left;
}

struct proto_id pfx_op_id(struct pfx_client *c)
{
	struct proto_id id;

	c->op_counter++;
	memcpy(id.b, &c->op_prefix, 8);
	memcpy(id.b + 8, &c->op_counter, 8);
	return id;
}

void pfx_drop(struct pfx_client *c)
{
	pfx_wire_close(&c->wire, true);
	c->stream_seq = 0;
	c->stream = (struct proto_span){ NULL, 0 };
	c->connected = false;
	c->quiesce_due = false; /* whether there is something to say, the next HELLO tells */
	pfx_lease_lose_all(c);
	c->n_left_behind = c->leases.n_lost;
	c->n_orphans = 0; /* they ended with the connection */
}

int pfx_gone(struct pfx_client *c, int r)
{
	return r == PFX_LOST ? PFX_GONE : r;
}

int pfx_lease_gone(struct pfx_client *c, int r)
{
	if (r != PFX_LOST)
		return r;
	r = pfx_ready(c, NULL);
	if (r)
		return r;
	return pfx_fail(c, PFX_UNKNOWN_LEASE,
			"the daemon was restarted or closed the connection: "
			"the lease ended with it");
}

/* ---- connecting ------------------------------------------------------------------------------ */

static int take_hello(struct pfx_client *c, const struct pfx_frame *f)
{
	struct proto_hello_rep rep;
	uint32_t version = proto_body_version(&f->h, f->body, true);
	const char *bad = "version";
	uint8_t *tenants;

	if (!version || proto_hello_rep_decode_as(version, f->body, f->h.len, &rep, &bad))
		return pfx_bad_reply(c, PROTO_OP_HELLO, bad);
	if (rep.max_frame < PROTO_MAX_HELLO || !rep.max_keys)
		return pfx_bad_reply(c, PROTO_OP_HELLO, "max_frame or max_keys");
	tenants = malloc(rep.tenants.n + 1u);
	if (!tenants)
		return pfx_fail(c, PFX_NO_MEMORY, "no memory for the list of tenants");
	if (rep.tenants.n)
		memcpy(tenants, rep.tenants.p, rep.tenants.n);
	free(c->tenants);
	c->tenants = tenants;
	c->tenants_len = rep.tenants.n;
	c->max_keys = rep.max_keys;
	c->wire.version = (uint16_t)version;
	c->wire.max_frame = rep.max_frame;
	if (rep.max_frame > c->wire.rx_max)
		c->wire.rx_max = rep.max_frame;
	c->boot = f->h.boot;
	c->connected = true;
	c->n_left_behind = version < 2 ? c->leases.n_lost : rep.n_orphans;
	/* Left, and nothing that the caller may read: answers that came too late, releases that did
	 * not arrive.  The daemon may have it back. */
	c->quiesce_due = c->n_left_behind && !c->leases.n_lost;
	c->life++;
	return 0;
}

static int hello(struct pfx_client *c)
{
	struct proto_hello_req req = {
		.version_min = PROTO_VERSION_MIN,
		.version_max = PROTO_VERSION,
		.flags = c->copies ? PROTO_HELLO_COPIES : 0,
		.self_test = proto_self_test(PROTO_VERSION_MIN),
		.instance = c->instance,
		.name = { c->name, (uint32_t)strlen(c->name) },
	};
	struct pfx_frame f;
	int r = pfx_request(c, PROTO_OP_HELLO, &req, &f);

	return r ? r : take_hello(c, &f);
}

/* Return: 0, or a public status. */
static int attempt(struct pfx_client *c)
{
	uint64_t now = pfx_now_ns();
	int r;

	if (c->attempted)
		return PFX_GONE; /* the text says how this call lost its connection */
	if (now < c->next_attempt_ns)
		return pfx_fail(c, PFX_GONE, "no daemon at %s; trying again in %u ms", c->socket,
				(unsigned)((c->next_attempt_ns - now) / 1000000 + 1));
	c->attempted = true;
	r = pfx_wire_connect(&c->wire, c->socket, c->call_deadline_ns);
	if (r == PFX_LOST)
		(void)pfx_fail(c, PFX_GONE, "no daemon at %s: %s", c->socket, c->wire.why);
	else if (r)
		(void)pfx_fail(c, r, "connecting to %s took too long", c->socket);
	else
		r = hello(c);
	if (r == 0) {
		c->backoff_ns = 0;
		c->next_attempt_ns = 0;
		return 0;
	}
	pfx_drop(c);
	c->backoff_ns = c->backoff_ns ? 2 * c->backoff_ns : PFX_BACKOFF_MIN_NS;
	if (c->backoff_ns > PFX_BACKOFF_MAX_NS)
		c->backoff_ns = PFX_BACKOFF_MAX_NS;
	c->next_attempt_ns = pfx_now_ns() + c->backoff_ns;
	return pfx_gone(c, r);
}

int pfx_ready(struct pfx_client *c, struct pfx_namespace *ns)
{
	int r;

	/* Twice, since opening again may find that the connection has just died. */
	for (;;) {
		if (!c->connected) {
			r = attempt(c);
			if (r)
				return r;
			/* All of them now, so that their pools are there when they are needed; one
			 * that is refused is tried again, and its refusal told, at its next use. */
			for (struct pfx_namespace *n = c->namespaces; n && c->connected;
			     n = n->next)
				(void)pfx_namespace_ensure(c, n);
			if (!c->connected)
				return PFX_GONE;
			c->error[0] = 0;
		}
		r = ns ? pfx_namespace_ensure(c, ns) : 0;
		if (r != PFX_LOST)
			return r;
	}
}

/* ---- the object ------------------------------------------------------------------------------ */

static const char *program_name(void)
{
	return program_invocation_short_name ? program_invocation_short_name : "?";
}

/* The caller's word, the environment's, or where a daemon without options listens: a user's own one
 * only on a machine that has none of its own.  Return: 0, PFX_NO_MEMORY. */
static int socket_path(const char *given, char **ret_path)
{
	const char *path = given ? given : getenv("PREFIXD_SOCKET");
	const char *runtime = getenv("XDG_RUNTIME_DIR");

	if (path && *path)
		*ret_path = strdup(path);
	else if (geteuid() == 0 || access(DEFAULT_DIR, F_OK) == 0 || !runtime || !*runtime)
		*ret_path = strdup(DEFAULT_DIR "/prefixd.sock");
	else if (asprintf(ret_path, "%s/prefixd.sock", runtime) < 0)
		*ret_path = NULL;
	return *ret_path ? 0 : PFX_NO_MEMORY;
}

static int new_client(const pfx_connect_options *o, struct pfx_client **ret_client)
{
	const char *name = o->name ? o->name : program_name();
	struct pfx_client *c = calloc(1, sizeof(*c));
	uint64_t random[4];

	if (!c)
		return PFX_NO_MEMORY;
	pfx_wire_init(&c->wire);
	if (socket_path(o->socket, &c->socket)) {
		free(c);
		return PFX_NO_MEMORY;
	}
	/* 32 bytes are never cut short; without them ids would still be unique in this process. */
	if (getrandom(random, sizeof(random), 0) != sizeof(random)) {
		random[0] = pfx_now_ns();
		random[1] = (uint64_t)getpid() << 32 | (uint32_t)(uintptr_t)c;
		random[2] = random[0] ^ random[1];
		random[3] = random[0];
	}
	memcpy(c->instance.b, random, sizeof(c->instance.b));
	c->op_prefix = random[2];
	c->leases.first_gen = (uint32_t)random[3];
	(void)snprintf(c->name, sizeof(c->name), "%.64s", name); /* cut when longer */
	c->pid = getpid();
	c->copies = o->copies != 0;
	c->deadline_ms = o->deadline_ms ? o->deadline_ms : PFX_DEADLINE_DEFAULT_MS;
	*ret_client = c;
	return 0;
}

int pfx_connect(const pfx_connect_options *options, pfx_client **ret_client)
{
	pfx_connect_options o = { .struct_size = sizeof(o) };
	struct pfx_client *c;
	int r;

	if (!ret_client || (options && !pfx_struct_in(&o, sizeof(o), options)))
		return PFX_ARGUMENT;
	r = new_client(&o, &c);
	if (r)
		return r;
	*ret_client = c;
	r = pfx_begin(c, 0);
	return r ? r : pfx_ready(c, NULL);
}

void pfx_close(pfx_client *c)
{
	if (!c)
		return;
	if (getpid() == c->pid)
		pfx_orphans_flush(c);
	/* In a child the descriptors and mappings are its own copies: closing those leaves the
	 * parent's connection up, as long as it is not shut down. */
	pfx_wire_close(&c->wire, getpid() == c->pid);
	pfx_wire_deinit(&c->wire);
	pfx_namespace_deinit_all(c);
	pfx_lease_deinit(c);
	free(c->orphans);
	free(c->runs);
	free(c->tenants);
	free(c->socket);
	free(c);
}

/* ---- calls ----------------------------------------------------------------------------------- */

int pfx_ping(pfx_client *c, uint32_t deadline_ms)
{
	struct proto_empty req = {};
	struct pfx_frame f;
	int r = pfx_begin(c, deadline_ms);

	if (r)
		return r;
	for (int round = 0;; round++) {
		r = pfx_ready(c, NULL);
		if (r)
			return r;
		r = pfx_request(c, PROTO_OP_PING, &req, &f);
		if (r != PFX_LOST || round)
			return pfx_gone(c, r);
	}
}

int pfx_boot_id(pfx_client *c, uint8_t ret_boot[16])
{
	int r = pfx_begin(c, 0);

	if (r)
		return r;
	if (!ret_boot)
		return pfx_fail(c, PFX_ARGUMENT, "ret_boot is NULL");
	if (c->connected && pfx_wire_hung_up(&c->wire))
		pfx_drop(c);
	r = pfx_ready(c, NULL);
	if (r == 0)
		memcpy(ret_boot, c->boot.b, 16);
	return r;
}

int pfx_tenant(pfx_client *c, const char *name, uint32_t *ret_tenant)
{
	struct proto_span rest, found;
	uint32_t id;
	int r = pfx_begin(c, 0);

	if (r)
		return r;
	if (!name || !ret_tenant)
		return pfx_fail(c, PFX_ARGUMENT, "name or ret_tenant is NULL");
	r = pfx_ready(c, NULL);
	if (r)
		return r;
	rest = (struct proto_span){ c->tenants, c->tenants_len };
	while (proto_tenant_next(&rest, &id, &found)) {
		if (found.n == strlen(name) && memcmp(found.p, name, found.n) == 0) {
			*ret_tenant = id;
			return 0;
		}
	}
	return pfx_fail(c, PFX_FORBIDDEN,
			"this process may not use tenant \"%.64s\", or there is "
			"none of that name",
			name);
}

int pfx_orphans(pfx_client *c, uint32_t *ret_n_leases)
{
	int r = pfx_begin(c, 0);

	if (r)
		return r;
	if (!ret_n_leases)
		return pfx_fail(c, PFX_ARGUMENT, "ret_n_leases is NULL");
	if (c->connected && pfx_wire_hung_up(&c->wire))
		pfx_drop(c);
	r = pfx_ready(c, NULL);
	if (r == 0)
		*ret_n_leases = c->quiesce_due ? 0 : c->n_left_behind;
	return r;
}

int pfx_quiesced_after(pfx_client *c, uint32_t word, uint64_t value, uint32_t *ret_n_slots)
{
	struct proto_quiesced_req req;
	struct proto_quiesced_rep rep;
	struct pfx_frame f;
	const char *bad;
	int r = pfx_begin(c, 0);

	if (r)
		return r;
	if (c->connected && pfx_wire_hung_up(&c->wire))
		pfx_drop(c);
	r = pfx_ready(c, NULL);
	if (r)
		return r;
	r = pfx_word_check(c, word);
	if (r)
		return r;
	req = pfx_quiesced_req(c);
	req.word = word;
	req.value = value;
	r = pfx_request(c, PROTO_OP_QUIESCED, &req, &f);
	if (r)
		return pfx_gone(c, r);
	c->n_left_behind = 0;
	c->quiesce_due = false;
	pfx_lease_forget_all(c);
	pfx_let_go(c);
	if (proto_quiesced_rep_decode(f.body, f.h.len, &rep, &bad))
		return pfx_bad_reply(c, PROTO_OP_QUIESCED, bad);
	if (ret_n_slots)
		*ret_n_slots = rep.n_slots;
	return 0;
}

int pfx_quiesced(pfx_client *c, uint32_t *ret_n_slots)
{
	return pfx_quiesced_after(c, 0, 0, ret_n_slots);
}

int pfx_admin(pfx_client *c, const char *json, uint32_t deadline_ms, char **ret_json)
{
	struct proto_admin req, rep;
	struct pfx_frame f;
	const char *bad;
	char *s;
	int r = pfx_begin(c, deadline_ms);

	if (r)
		return r;
	if (!json || !ret_json || strlen(json) > UINT32_MAX)
		return pfx_fail(c, PFX_ARGUMENT, "json or ret_json is NULL");
	r = pfx_ready(c, NULL);
	if (r)
		return r;
	c->wire.rx_max = PROTO_MAX_FRAME_LIMIT; /* a dump of a tree is long */
	req.json = (struct proto_span){ json, (uint32_t)strlen(json) };
	r = pfx_request(c, PROTO_OP_ADMIN, &req, &f);
	if (r)
		return pfx_gone(c, r); /* never sent twice: it may have been an order */
	if (proto_admin_decode(f.body, f.h.len, &rep, &bad))
		return pfx_bad_reply(c, PROTO_OP_ADMIN, bad);
	s = malloc(rep.json.n + 1u);
	if (!s)
		return pfx_fail(c, PFX_NO_MEMORY, "no memory for the reply");
	if (rep.json.n)
		memcpy(s, rep.json.p, rep.json.n);
	s[rep.json.n] = 0;
	*ret_json = s;
	return 0;
}

void pfx_free_string(char *s)
{
	free(s);
}
