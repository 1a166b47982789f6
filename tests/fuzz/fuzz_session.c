/*
 * fuzz_session.c - any bytes as what workers, processes, the device and an operator do.
 *
 * The bytes choose events for the engine: connections of two processes, frames that are mostly
 * right, and a few bytes of them changed, the ends of sockets and processes, pools made or refused,
 * time, evictions, a reload, the end.  What must hold stands in session_world.h.
 */
#include "tests/fuzz/session_world.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define STEPS_MAX 400u

struct input {
	const uint8_t *p;
	size_t left;
	uint64_t op_ids;
	uint8_t last[8192]; /* the frame sent last, to be sent again */
	uint32_t n_last;
	uint16_t last_op;
	struct session_world w;
};

static uint8_t next(struct input *in)
{
	if (!in->left)
		return 0;
	in->left--;
	return *in->p++;
}

/* A body, now and then with some of its bytes changed; then it goes out. */
static void send_maybe_bent(struct input *in, uint32_t number, uint16_t op, struct proto_writer *wr)
{
	uint8_t bend = next(in);

	must(proto_writer_ok(wr));
	if (bend < 40 && wr->len) {
		for (int n = bend & 3; n >= 0; n--)
			wr->p[next(in) % wr->len] ^= next(in);
	} else if (bend < 48) {
		wr->len -= radix_min_u64(wr->len, next(in));
	} else if (bend < 52) {
		for (int n = bend & 7; n >= 0; n--)
			wr->p[wr->len++] = next(in);
	}
	in->last_op = op;
	in->n_last = (uint32_t)wr->len;
	memcpy(in->last, wr->p, wr->len);
	session_world_send(&in->w, number, op, wr->p, (uint32_t)wr->len);
}

static struct proto_span text(const char *t)
{
	return (struct proto_span){ t, (uint32_t)strlen(t) };
}

static struct proto_id op_id(struct input *in)
{
	struct proto_id id = { { 0 } };
	uint8_t b = next(in) % 8;

	if (b == 7) /* one that may have been used */
		id.b[0] = next(in) & 3;
	else if (b & 1)
		memcpy(id.b + 4, &(uint64_t){ ++in->op_ids }, 8);
	return id;
}

static void do_hello(struct input *in, uint32_t number, struct proto_writer *wr)
{
	uint8_t b = next(in);
	struct proto_hello_req m = {
		.version_min = 1,
		.version_max = (uint16_t)((b & 24) == 24 ? 3 : 1 + (b >> 2 & 1)),
		.self_test = proto_self_test(1),
		.flags = b & 1 ? PROTO_HELLO_COPIES : 0,
		.name = text("fuzz"),
	};

	m.instance.b[0] = b >> 1 & 1;
	in->w.sessions[number].instance = m.instance;
	proto_hello_req_encode(wr, &m);
	send_maybe_bent(in, number, PROTO_OP_HELLO, wr);
}

static uint32_t version_of(const struct input *in, uint32_t number)
{
	uint16_t v = in->w.sessions[number].version;

	return v ? v : PROTO_VERSION;
}

/* What version 3 can ask for: words, ranks, windows, codecs. */
static void open_newest(struct input *in, struct proto_open_req *m)
{
	static const char *const windows[4] = { "0:4", "0:8", "0:full", "0-1:4" };
	static const char *const codecs[4] = { "", "none", "int8", "fp8" };
	uint8_t b = next(in), more = next(in);

	m->flags |= b & 1 ? PROTO_OPEN_WORDS : 0;
	if (b & 2) {
		m->flags |= PROTO_OPEN_STRIPE;
		m->tp_size = 2 + (b >> 6 == 3);
		m->tp_rank = b >> 2 & 1;
	}
	if (b & 8) {
		m->flags |= PROTO_OPEN_WINDOWS;
		m->windows = text(windows[b >> 4 & 3]);
	}
	if (b & 128) {
		m->cold_codec = text(codecs[more & 3]);
		m->exact_layers = text(more & 4 ? "0" : "");
	}
}

static void do_open(struct input *in, uint32_t number, struct proto_writer *wr)
{
	uint8_t b = next(in), kind = b & 3;
	struct proto_open_req m = {
		.key_mode = kind == 2 ? PROTO_KEYS_DIGEST : PROTO_KEYS_TOKENS,
		.flags = kind == 1 ? PROTO_OPEN_EXTRA : 0,
		.model = text(b & 4 ? "m" : "n"),
		.revision = text("r"),
		.dtype = text("float16"),
		.layers = 1,
		.kv_heads = 1,
		.head_dim = b & 8 ? 8 : 4,
		.block_tokens = 4,
		.block_bytes = b & 8 ? 128 : 64,
		.layout = text("block-major"),
		.adapter = text(b & 16 ? "lora" : ""),
		.tp_size = 1,
		.engine = text("fuzz 1"),
		.digest_len = kind == 2 ? 16 : 0,
		.seed_probe = kind == 2 ? text(b & 32 ? "seed" : "other") : text(""),
	};

	if (version_of(in, number) >= 3)
		open_newest(in, &m);
	proto_open_req_encode_as(wr, version_of(in, number), &m);
	send_maybe_bent(in, number, PROTO_OP_OPEN, wr);
}

/* One key for a letter: neighbours share leading tokens; digests go on from `chain`. */
static void key_write(const struct ns *ns, uint8_t letter, uint64_t *chain, uint8_t *out)
{
	uint32_t tokens[4] = { 7, letter >> 2 & 1, letter >> 1 & 1, letter & 1 };

	*chain = (*chain ^ (letter & 7u)) * 0x9e3779b97f4a7c15u + 1;
	memset(out, 0, ns->key_len);
	if (ns->digest) {
		memcpy(out, chain, sizeof(*chain));
		return;
	}
	memcpy(out, tokens, sizeof(tokens));
	if (ns->key_len > sizeof(tokens))
		out[ns->key_len - 1] = letter >> 3 & 1;
}

static const struct ns *any_ns(struct input *in)
{
	static const struct ns none = { .id = 99, .key_len = 16, .block_tokens = 4 };
	uint8_t b = next(in);

	return in->w.n_ns ? &in->w.ns[b % in->w.n_ns] : &none;
}

static struct lease *any_lease(struct input *in)
{
	uint32_t n = 0, k;

	for (uint32_t i = 0; i < N_LEASES; i++)
		n += in->w.leases[i].used;
	if (!n)
		return NULL;
	k = next(in) % n;
	for (uint32_t i = 0;; i++)
		if (in->w.leases[i].used && k-- == 0)
			return &in->w.leases[i];
}

static void do_match(struct input *in, uint32_t number, struct proto_writer *wr, bool probe)
{
	const struct ns *ns = any_ns(in);
	uint8_t keys[16 * MODEL_KEY], parent[16] = { 0 }, b = next(in), more = next(in);
	uint32_t n = next(in) % 12, skip = ns->digest ? more & 3 : 0, tail[3] = { 7, 1, 0 };
	uint64_t chain = 1;
	struct proto_match_req m = {
		.has = PROTO_HAS_ALL,
		.ns = ns->id,
		.tenant = b & 1,
		.salt = text(b & 2 ? "salt" : ""),
		.op_id = op_id(in),
		.flags = more >> 4 & (ns->digest ? 15u : PROTO_MATCH_NO_TAIL | PROTO_MATCH_LEAD),
		.tail = { tail, ns->digest ? 0 : (b >> 2 & 3) * 4 },
		.keys = { keys, n * ns->key_len },
	};

	for (uint32_t i = 0; i < skip; i++)
		key_write(ns, next(in), &chain, parent);
	for (uint32_t i = 0; i < n; i++)
		key_write(ns, next(in), &chain, keys + (size_t)i * ns->key_len);
	if (version_of(in, number) >= 3 && (more & 8))
		m.flags |= PROTO_MATCH_EXACT;
	if (ns->striped) /* few, so that ranks meet */
		m.decision_id.b[0] = (uint8_t)(1 + next(in) % 6);
	m.n_tokens = n * 4 + m.tail.n / 4 + (b >> 4 & 3);
	if (ns->digest && (m.flags & PROTO_MATCH_ISLAND) && skip && (more & 4))
		m.parent = (struct proto_span){ parent, sizeof(parent) };
	if (probe) {
		struct proto_probe_req pr = { .has = m.has,
					      .ns = m.ns,
					      .tenant = m.tenant,
					      .salt = m.salt,
					      .flags = more & PROTO_PROBE_BITMAP,
					      .n_tokens = m.n_tokens,
					      .keys = m.keys };
		struct proto_explain_req ex = { m.has,      m.ns,   m.tenant, m.salt,
						m.n_tokens, m.keys, m.tail };

		if (more & 2)
			proto_explain_req_encode(wr, &ex);
		else
			proto_probe_req_encode(wr, &pr);
		send_maybe_bent(in, number, more & 2 ? PROTO_OP_EXPLAIN : PROTO_OP_PROBE, wr);
		return;
	}
	proto_match_req_encode(wr, &m);
	in->w.newest = N_LEASES;
	send_maybe_bent(in, number, PROTO_OP_MATCH, wr);
	if (in->w.newest < N_LEASES)
		in->w.leases[in->w.newest].chain = chain;
}

/* Mostly none; the shell has waited for those that there are. */
static uint32_t any_word(struct input *in, uint32_t number)
{
	static const uint32_t words[4] = { 1, N_WORDS, N_WORDS + 1, UINT32_MAX };
	uint8_t b = version_of(in, number) >= 3 ? next(in) : 0;

	return b < 192 ? 0 : words[b & 3];
}

static void do_lease_op(struct input *in, uint8_t op, struct proto_writer *wr)
{
	struct lease *l = any_lease(in);
	uint8_t b = next(in), keys[4 * MODEL_KEY], sums[16 * 8];
	uint32_t number = l ? l->session : 0;
	uint64_t id = l ? l->id : 5;

	if (b >= 250) /* somebody else's */
		number = b & (N_SESSIONS - 1);
	else if (l && l->ns->striped)
		number = next(in) & (N_SESSIONS - 1);
	if (!in->w.sessions[number].open)
		return;
	if (op == PROTO_OP_EXTEND && b >= 200) {
		struct proto_wait_req m = { .lease = id, .deadline_us = (b & 7u) * 1000000u };

		op = PROTO_OP_WAIT;
		proto_wait_req_encode(wr, &m);
	} else if (op == PROTO_OP_EXTEND) {
		struct proto_extend_req m = { .op_id = op_id(in),
					      .lease = id,
					      .flags = b >> 4 &
						       (PROTO_MATCH_NO_TAIL | PROTO_MATCH_LEAD) };
		uint32_t n = l && (!l->lost || in->w.unknown[l->ns->group]) ? b & 3 : 0;

		for (uint32_t i = 0; i < n; i++)
			key_write(l->ns, next(in), &l->chain, keys + (size_t)i * l->ns->key_len);
		m.keys = (struct proto_span){ keys, n ? n * l->ns->key_len : 0 };
		m.n_tokens = n ? (l->n_keys + n) * 4u + 3 : 0;
		proto_extend_req_encode(wr, &m);
	} else if (op == PROTO_OP_RESERVE) {
		struct proto_reserve_req m = { .op_id = op_id(in), .lease = id, .n = 1 + b % 9 };

		proto_reserve_req_encode(wr, &m);
	} else if (op == PROTO_OP_COMMIT) {
		uint32_t n = b % 5, kind = b >> 4 & 1;
		struct proto_commit_req m = { .op_id = op_id(in),
					      .lease = id,
					      .n = n,
					      .tail_tokens = b >> 5 & 3,
					      .checksum_kind = (uint8_t)kind };

		if (l && !in->w.unknown[l->ns->group])
			m.n = radix_min_u32(n, l->n_reserved + (b > 240));
		memset(sums, b, sizeof(sums));
		m.checksums = (struct proto_span){ sums, kind ? 16 * m.n : 0 };
		m.word = any_word(in, number);
		proto_commit_req_encode_as(wr, version_of(in, number), &m);
	} else {
		struct proto_release_req m = { .op_id = op_id(in), .lease = id, .flags = b & 3 };

		m.word = any_word(in, number);
		proto_release_req_encode_as(wr, version_of(in, number), &m);
	}
	send_maybe_bent(in, number, op, wr);
}

/* ---- everything but frames ------------------------------------------------------------------- */

static void do_connect(struct input *in, uint32_t number)
{
	struct prefixd_event event = { .type = PREFIXD_EVENT_SESSION_OPENED, .session = number };
	uint8_t b = next(in);
	struct session *s = &in->w.sessions[number];

	s->used = s->open = true;
	s->version = 0;
	s->peer = (struct prefixd_peer){ .pid = 10 + (b & 1), .uid = b & 2 ? 1000 : 2000 };
	s->peer.admin = b >= 248;
	event.u.peer = s->peer;
	session_world_step(&in->w, &event);
}

/* A connection that can work: what most inputs need before anything happens. */
static void do_worker(struct input *in, uint32_t number, struct proto_writer *wr)
{
	do_connect(in, number);
	if (in->w.sessions[number].open)
		do_hello(in, number, wr);
}

static void do_pools(struct input *in, bool ready)
{
	for (uint32_t g = 0; g < N_GROUPS; g++) {
		struct prefixd_event event = { .type = PREFIXD_EVENT_POOL_FAILED };
		struct prefixd_group_info info;
		uint32_t it = 0;

		if (!in->w.wanted[g])
			continue;
		in->w.wanted[g] = false;
		event.u.pool.group = g;
		event.u.pool.why = "no pool for this input";
		if (ready) {
			if (!in->w.made[g]) /* else the slots alone are made anew */
				in->w.models[g] =
					(struct model){ .n_slots = in->w.wanted_slots[g] };
			else
				session_world_renewed(&in->w, g);
			in->w.made[g] = true;
			event.type = PREFIXD_EVENT_POOL_READY;
			event.u.pool.slot_stride = 128;
			event.u.pool.pool_len = 128ull * in->w.wanted_slots[g];
			event.u.pool.generations = in->w.generations[g];
			event.u.pool.n_fds = 2;
		}
		session_world_step(&in->w, &event);
		while (prefixd_engine_next_group(in->w.engine, &it, &info))
			in->w.index[info.id] = info.index;
	}
}

static void do_event(struct input *in, uint8_t b)
{
	struct prefixd_event event = { .type = PREFIXD_EVENT_TIMER };
	struct prefixd_tenant tenants[2] = { { .name = "red", .any_uid = b & 8 },
					     { .name = "blue", .any_uid = true } };
	struct prefixd_limits limits = in->w.config.limits;

	if (b % 8 < 3) {
		in->w.now_ns += (uint64_t)next(in) * 1000000;
	} else if (b % 8 < 5) {
		event.type = PREFIXD_EVENT_ADMIN_EVICT;
		event.u.admin.group = b >> 3 & 1;
		event.u.admin.n = b >> 4;
	} else if (b % 8 < 6) {
		event.type = PREFIXD_EVENT_ADMIN_FLUSH;
		event.u.admin.ns = b & 8 ? RADIX_NONE : 1u + (b >> 4);
	} else if (b % 8 < 7) {
		event.type = PREFIXD_EVENT_RELOAD;
		event.u.reload.tenants = tenants;
		event.u.reload.n_tenants = 2;
		limits.max_leases = 1 + (b >> 4 & 3);
		event.u.reload.limits = &limits;
	} else if (b >= 240) {
		event.type = PREFIXD_EVENT_DRAIN;
		event.u.drain.deadline_ns = b & 8 ? in->w.now_ns + 1000000 : 0;
	} else if (in->w.newest_speaks) {
		session_world_lose(&in->w, b >> 3 & 1);
		return;
	}
	session_world_step(&in->w, &event);
}

static void do_end(struct input *in, uint32_t number, uint8_t b)
{
	struct prefixd_event event = { .type = PREFIXD_EVENT_SESSION_EOF, .session = number };

	if (in->w.config.watches_processes && (b & 1))
		event.type = PREFIXD_EVENT_PROCESS_GONE;
	else if (!in->w.sessions[number].open)
		return;
	in->w.sessions[number].open = false;
	session_world_step(&in->w, &event);
}

/* ---- the input ------------------------------------------------------------------------------- */

static void do_frame(struct input *in, uint32_t number, uint8_t b)
{
	uint8_t buf[8192];
	struct proto_writer wr = { buf, sizeof(buf) - 256, 0, NULL };
	struct prefixd_event event = { .type = PREFIXD_EVENT_FRAME_BAD, .session = number };
	struct proto_header bad = { .magic = b, .op = PROTO_OP_PING, .len = 9, .seq = 3 };
	struct proto_report_req report = { .ns = 1, .running = b };
	struct proto_quiesced_req quiesced = { .instance.b[0] = b & 1 };
	struct proto_subscribe_req subscribe = { .ns = b >> 7,
						 .from = b & 32 ? 2 : 0,
						 .life = in->w.config.boot };

	if (!in->w.sessions[number].open)
		return;
	switch (b % 16) {
	case 0:
		do_hello(in, number, &wr);
		return;
	case 1:
		do_open(in, number, &wr);
		return;
	case 2:
	case 3:
	case 4:
		do_match(in, number, &wr, false);
		return;
	case 5:
		do_match(in, number, &wr, true);
		return;
	case 6:
		quiesced.old_boot = in->w.config.boot;
		quiesced.old_boot.b[0] = b & 16 ? 0 : quiesced.old_boot.b[0];
		quiesced.word = any_word(in, number);
		proto_quiesced_req_encode_as(&wr, version_of(in, number), &quiesced);
		send_maybe_bent(in, number, PROTO_OP_QUIESCED, &wr);
		return;
	case 7:
		proto_report_req_encode(&wr, &report);
		send_maybe_bent(in, number, PROTO_OP_REPORT, &wr);
		return;
	case 8:
		if (b & 16) {
			proto_subscribe_req_encode(&wr, &subscribe);
			send_maybe_bent(in, number, PROTO_OP_SUBSCRIBE, &wr);
			return;
		}
		send_maybe_bent(in, number, PROTO_OP_PING, &wr);
		return;
	case 9: /* whatever is not known, with the body of something else */
		session_world_send(&in->w, number, next(in), in->last, in->n_last);
		return;
	case 10:
		if (b > 128) {
			in->w.sessions[number].n_replies = 0;
			event.u.bad.header = &bad;
			event.u.bad.status = PROTO_STATUS_BAD_FRAME;
			session_world_step(&in->w, &event);
			must(in->w.sessions[number].n_replies == 1);
			must(!in->w.sessions[number].open);
		}
		return;
	default:
		session_world_send(&in->w, number, in->last_op, in->last, in->n_last);
	}
}

static void one_step(struct input *in)
{
	uint8_t b = next(in), arg, number;
	uint8_t buf[8192];
	struct proto_writer wr = { buf, sizeof(buf) - 256, 0, NULL };

	if (b < 96) { /* most of what happens is the life of leases */
		static const uint8_t ops[4] = { PROTO_OP_EXTEND, PROTO_OP_RESERVE, PROTO_OP_COMMIT,
						PROTO_OP_RELEASE };

		do_lease_op(in, ops[b % 4], &wr);
		return;
	}
	arg = next(in);
	number = arg & (N_SESSIONS - 1);
	if (b < 192) {
		if (in->w.sessions[number].used)
			do_frame(in, number, b);
		else
			do_worker(in, number, &wr);
	} else if (b < 216) {
		do_pools(in, arg < 224);
	} else if (b < 240) {
		do_event(in, arg);
	} else if (in->w.sessions[number].used) {
		do_end(in, number, arg >> 2);
	} else {
		do_connect(in, number);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct input in; /* large; nothing of it outlives an input */

	memset(&in, 0, sizeof(in));
	in.p = data;
	in.left = size;
	session_world_init(&in.w, next(&in));
	for (uint32_t i = 0; i < STEPS_MAX && in.left && !in.w.full; i++)
		one_step(&in);
	session_world_deinit(&in.w);
	return 0;
}
