/*
 * prompt.c - MATCH, EXTEND, PROBE, EXPLAIN: the calls that name a prompt.
 *
 * A prompt longer than the daemon's limits goes as one MATCH and as many EXTENDs as it takes, and a
 * reply that was cut (`more`) is fetched the same way; the caller sees one result.  If a later part
 * fails, the lease of the first is released: the caller gets all or nothing.
 */
#include "clients/c/internal.h"
#include "clients/c/prefixd_windows.h"

#include <stdlib.h>

static int runs_room(struct pfx_client *c, uint32_t n)
{
	uint32_t cap = c->runs_cap ? c->runs_cap : 64;
	pfx_run *v;

	if (n <= c->runs_cap - c->n_runs)
		return 0;
	while (cap - c->n_runs < n)
		cap *= 2;
	v = realloc(c->runs, cap * sizeof(*v));
	if (!v)
		return pfx_fail(c, PFX_NO_MEMORY, "no memory for %u runs", n);
	c->runs = v;
	c->runs_cap = cap;
	return 0;
}

int pfx_runs_append(struct pfx_client *c, struct proto_span runs)
{
	int r = runs_room(c, runs.n);

	if (r)
		return r;
	for (uint32_t i = 0; i < runs.n; i++) {
		struct radix_run run = proto_run_at(runs, i);
		pfx_run *last = c->n_runs ? &c->runs[c->n_runs - 1] : NULL;

		/* none goes on with none, and with nothing else */
		if (last && run.start != PFX_SLOT_NONE && last->start != PFX_SLOT_NONE
			    ? last->start + last->len == run.start
			    : last && last->start == run.start)
			last->len += run.len;
		else
			c->runs[c->n_runs++] = (pfx_run){ run.start, run.len };
	}
	return 0;
}

/* What a worker will index its mapping with.  Return: true when every slot is in the pool. */
static bool runs_ok(struct proto_span runs, uint32_t n_slots, uint64_t n_blocks)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < runs.n; i++) {
		struct radix_run run = proto_run_at(runs, i);

		if (!run.len || (uint64_t)run.start + run.len > n_slots)
			return false;
		n += run.len;
	}
	return n == n_blocks;
}

bool pfx_runs_ok(const struct pfx_namespace *ns, struct proto_span runs, uint64_t n_blocks)
{
	return runs_ok(runs, ns->info.n_slots, n_blocks);
}

bool pfx_write_runs_ok(const struct pfx_namespace *ns, struct proto_span runs, uint64_t n_blocks)
{
	return runs_ok(runs, ns->info.n_write ? ns->info.n_write : ns->info.n_slots, n_blocks);
}

/* The same of a match: where the namespace has a window, blocks before it have no slots. */
static bool match_runs_ok(const struct pfx_namespace *ns, struct proto_span runs, uint64_t n_blocks)
{
	struct radix_run first;
	struct proto_span rest;

	if (!runs.n || !ns->window)
		return pfx_runs_ok(ns, runs, n_blocks);
	first = proto_run_at(runs, 0);
	if (first.start != PROTO_SLOT_NONE)
		return pfx_runs_ok(ns, runs, n_blocks);
	rest = (struct proto_span){ (const uint8_t *)runs.p + sizeof(first), runs.n - 1 };
	return first.len && first.len <= n_blocks && pfx_runs_ok(ns, rest, n_blocks - first.len);
}

/*
 * Several replies make one result: of its first `n` blocks, which lie before the window now, none
 * has a slot.  Return: 0, PFX_NO_MEMORY.
 */
static int runs_hide(struct pfx_client *c, uint32_t n)
{
	uint32_t at = 0, i = 0;
	int r = runs_room(c, 1);

	if (r)
		return r;
	while (i < c->n_runs && at + c->runs[i].len <= n)
		at += c->runs[i++].len;
	if (at < n) { /* inside run i */
		if (c->runs[i].start == PFX_SLOT_NONE)
			return 0;
		c->runs[i].start += n - at;
		c->runs[i].len -= n - at;
	}
	memmove(c->runs + 1, c->runs + i, (c->n_runs - i) * sizeof(*c->runs));
	c->runs[0] = (pfx_run){ PFX_SLOT_NONE, n };
	c->n_runs -= i - 1;
	return 0;
}

int pfx_prompt_take(struct pfx_namespace *ns, const pfx_prompt *in, pfx_prompt *ret,
		    bool *ret_counted)
{
	struct pfx_client *c = ns->client;
	uint64_t n_tokens;

	if (!pfx_struct_in(ret, sizeof(*ret), in))
		return pfx_fail(c, PFX_ARGUMENT, "prompt: struct_size is not set");
	if ((ret->n_keys && !ret->keys) || (ret->n_tail && !ret->tail) ||
	    (ret->salt_len && !ret->salt) || (ret->parent_len && !ret->parent))
		return pfx_fail(c, PFX_ARGUMENT, "prompt: a length is not 0 and its pointer NULL");
	if (ret->salt_len > PROTO_SALT_MAX || ret->parent_len > PROTO_DIGEST_MAX)
		return pfx_fail(c, PFX_ARGUMENT, "prompt: salt or parent is too long");
	if (ret->n_tail >= ns->info.block_tokens && ret->n_tail)
		return pfx_fail(c, PFX_ARGUMENT, "prompt: a tail of %u tokens fills a block of %u",
				ret->n_tail, ns->info.block_tokens);
	n_tokens = (uint64_t)ret->n_keys * ns->info.block_tokens + ret->n_tail;
	if (ret_counted)
		*ret_counted = ret->n_tokens != 0;
	if (!ret->n_tokens)
		ret->n_tokens = n_tokens;
	return 0;
}

uint32_t pfx_prompt_keys_per_frame(const struct pfx_namespace *ns, const pfx_prompt *p)
{
	const struct pfx_client *c = ns->client;
	size_t other = PROTO_HEADER_LEN + 128 + p->salt_len + p->parent_len + 4ull * p->n_tail;
	size_t n;

	if (other >= c->wire.max_frame)
		return 0;
	n = (c->wire.max_frame - other) / ns->info.key_len;
	return n < c->max_keys ? (uint32_t)n : c->max_keys;
}

/* ---- MATCH and EXTEND ------------------------------------------------------------------------ */

/* A call in progress: what was sent, and what the replies so far add up to. */
struct walk {
	struct pfx_namespace *ns;
	const pfx_prompt *p;
	uint32_t per_frame;
	uint32_t done;     /* keys sent */
	uint64_t wire;     /* the lease; 0 before MATCH */
	uint64_t load_seq; /* of the request whose load will be told about; 0: none */
	uint32_t n_lossy;  /* of the device copies so far */
	pfx_match_result out;
};

static struct proto_span part_keys(const struct walk *k, uint32_t n)
{
	const uint8_t *keys = k->p->keys;
	uint32_t len = k->ns->info.key_len;

	if (!n)
		return (struct proto_span){ "", 0 };
	return (struct proto_span){ keys + (size_t)k->done * len, n * len };
}

static uint32_t load_us(uint32_t load_ms)
{
	return load_ms < UINT32_MAX / 1000 ? load_ms * 1000 : UINT32_MAX;
}

/* Sends the next part.  Return: as pfx_request. */
static int send_part(struct walk *k, bool match, uint32_t n, struct pfx_frame *ret_frame)
{
	struct pfx_client *c = k->ns->client;
	const pfx_prompt *p = k->p;
	bool last = k->done + n == p->n_keys;
	struct proto_span tail = { p->tail, last ? 4 * p->n_tail : 0 };
	struct proto_span parent = { p->parent, k->done ? 0 : p->parent_len };
	/* A load is of all keys or of none: the last part asks for it. */
	uint32_t flags = last ? p->flags : p->flags & ~(uint32_t)PFX_MATCH_PROMOTE;
	bool load = (flags & PFX_MATCH_PROMOTE) && p->load_ms;
	/* Said once, by MATCH; and a daemon that does not know EXACT codes nothing. */
	uint32_t once = PFX_MATCH_ISLAND | PFX_MATCH_EXACT;
	uint32_t deadline_us = load ? load_us(p->load_ms) : pfx_deadline_us(c);
	struct proto_extend_req extend;

	if (match) {
		struct proto_match_req req = {
			.has = PROTO_HAS_ALL,
			.ns = k->ns->info.id,
			.tenant = p->tenant,
			.salt = { p->salt, p->salt_len },
			.op_id = pfx_op_id(c),
			.flags = c->wire.version < 3 ? flags & ~(uint32_t)PFX_MATCH_EXACT : flags,
			.deadline_us = deadline_us,
			.n_tokens = p->n_tokens,
			.parent = parent,
			.keys = part_keys(k, n),
			.tail = tail,
		};

		memcpy(req.decision_id.b, p->decision_id, sizeof(req.decision_id.b));
		return pfx_request(c, PROTO_OP_MATCH, &req, ret_frame);
	}
	extend = (struct proto_extend_req){
		.op_id = pfx_op_id(c),
		.lease = k->wire,
		.flags = flags & ~once,
		.deadline_us = deadline_us,
		.n_tokens = p->n_tokens,
		.parent = parent,
		.keys = part_keys(k, n),
		.tail = tail,
	};
	return pfx_request(c, PROTO_OP_EXTEND, &extend, ret_frame);
}

/*
 * What lies lower is told again with each part, and is changed as a whole; device copies are told
 * once.
 */
static void add_lossy(struct walk *k, const struct proto_match_rep *rep)
{
	pfx_match_result *out = &k->out;
	uint32_t lower = rep->n_host + rep->n_redis;
	uint32_t device = rep->n_lossy > lower ? rep->n_lossy - lower : 0;

	if (device > rep->n_device)
		device = rep->n_device;
	if (rep->n_lossy && (!out->n_lossy || rep->first_lossy < out->first_lossy))
		out->first_lossy = rep->first_lossy;
	k->n_lossy += device;
	out->n_lossy = k->n_lossy + rep->n_lossy - device;
}

/* Adds a reply to the result.  Return: 0, or a public status; a wrong reply ends the connection. */
static int take_part(struct walk *k, uint16_t op, const struct pfx_frame *f, uint32_t n,
		     bool *ret_more)
{
	struct pfx_client *c = k->ns->client;
	pfx_match_result *out = &k->out;
	struct proto_match_rep rep;
	const char *bad;
	int r;

	if (proto_match_rep_decode_as(f->h.version, f->body, f->h.len, &rep, &bad))
		return pfx_bad_reply(c, op, bad);
	if (!match_runs_ok(k->ns, rep.runs, rep.n_device))
		return pfx_bad_reply(c, op, "runs");
	if (rep.tail_tokens &&
	    (rep.tail_tokens >= k->ns->info.block_tokens || rep.tail_slot >= k->ns->info.n_slots))
		return pfx_bad_reply(c, op, "tail_tokens");
	if (op == PROTO_OP_MATCH)
		k->wire = rep.lease;
	r = pfx_runs_append(c, rep.runs);
	if (r)
		return r;
	memcpy(out->root, rep.root.b, sizeof(out->root));
	out->n_device += rep.n_device;
	if (k->ns->window && out->n_device > k->ns->window && rep.n_device)
		r = runs_hide(c, out->n_device - k->ns->window);
	if (r)
		return r;
	/* Each reply speaks of the whole path so far, so the last one is right about its end. */
	out->n_host = rep.n_host;
	out->n_redis = rep.n_redis;
	out->load_us = rep.load_us;
	out->n_pending = rep.n_pending;
	out->reason = rep.reason;
	out->advice = rep.advice;
	out->miss_token = rep.miss_token;
	out->tail_tokens = rep.tail_tokens;
	out->tail_slot = rep.tail_slot;
	add_lossy(k, &rep);
	k->done += n;
	*ret_more = rep.more != 0;
	if ((k->p->flags & PFX_MATCH_PROMOTE) && k->done == k->p->n_keys && !rep.more &&
	    rep.n_host + rep.n_redis && !rep.advice)
		k->load_seq = f->h.seq;
	/* The last counter is right for all of them: what an earlier part named is pinned since. */
	out->reuse = pfx_reuse(k->ns, rep.reuse);
	return 0;
}

/* All parts from `done` on.  Return: 0, a public status, or PFX_LOST. */
static int walk_parts(struct walk *k, bool match)
{
	bool more = false;

	do {
		uint32_t left = k->p->n_keys - k->done;
		uint32_t n = more ? 0 : left < k->per_frame ? left : k->per_frame;
		struct pfx_frame f;
		int r = send_part(k, match, n, &f);

		if (r == 0)
			r = take_part(k, match ? PROTO_OP_MATCH : PROTO_OP_EXTEND, &f, n, &more);
		if (r)
			return r;
		match = false;
		if (!k->wire)
			break; /* nothing to extend: the daemon gave no lease */
	} while (more || k->done < k->p->n_keys);
	return 0;
}

static int walk_init(struct walk *k, struct pfx_namespace *ns, const pfx_prompt *p)
{
	*k = (struct walk){ .ns = ns, .p = p };
	k->out.struct_size = sizeof(k->out);
	ns->client->n_runs = 0;
	k->per_frame = pfx_prompt_keys_per_frame(ns, p);
	if (!k->per_frame)
		return pfx_fail(ns->client, PFX_LIMIT,
				"the tail alone is longer than the daemon's frames of %u bytes",
				ns->client->wire.max_frame);
	return 0;
}

static void walk_result(struct walk *k, pfx_match_result *ret)
{
	struct pfx_client *c = k->ns->client;
	struct pfx_lease *l = pfx_lease_find(c, k->out.lease);

	if (l && k->load_seq)
		pfx_lease_loading(l, k->load_seq);
	k->out.loading = l && l->load_seq && !l->load_ended;
	k->out.runs = c->runs;
	k->out.n_runs = c->n_runs;
	pfx_struct_out(ret, &k->out, sizeof(k->out));
}

int pfx_match(pfx_namespace *ns, const pfx_prompt *prompt, pfx_match_result *ret)
{
	struct pfx_client *c = ns ? ns->client : NULL;
	struct walk k;
	pfx_prompt p;
	int r = pfx_begin(c, 0);

	if (r)
		return r;
	if (!prompt || !ret || !pfx_struct_ok(ret))
		return pfx_fail(c, PFX_ARGUMENT, "prompt, ret or a struct_size is missing");
	r = pfx_prompt_take(ns, prompt, &p, NULL);
	if (r)
		return r;
	if (p.deadline_ms)
		r = pfx_begin(c, p.deadline_ms);
	for (int round = 0; r == 0; round++) {
		r = pfx_ready(c, ns);
		if (r == 0)
			r = walk_init(&k, ns, &p);
		if (r)
			return r;
		r = walk_parts(&k, true);
		if (r == 0)
			break;
		if (r == PFX_LOST && round == 0) {
			r = 0; /* no lease outlived the connection: ask anew on the next one */
			continue;
		}
		if (k.wire && c->connected) {
			pfx_orphan(c, k.wire);
			pfx_orphans_flush(c);
		}
		return pfx_gone(c, r);
	}
	if (k.wire) {
		r = pfx_lease_add(c, ns, k.wire, p.n_keys, &k.out.lease);
		if (r) {
			pfx_orphan(c, k.wire);
			pfx_orphans_flush(c);
			return pfx_fail(c, r, "no memory for a lease");
		}
	}
	walk_result(&k, ret);
	return 0;
}

int pfx_extend(pfx_namespace *ns, uint64_t lease, const pfx_prompt *more, pfx_match_result *ret)
{
	struct pfx_client *c = ns ? ns->client : NULL;
	struct pfx_lease *l;
	struct walk k;
	bool whole;
	pfx_prompt p;
	int r = pfx_begin(c, 0);

	if (r)
		return r;
	if (!more || !ret || !pfx_struct_ok(ret))
		return pfx_fail(c, PFX_ARGUMENT, "more, ret or a struct_size is missing");
	r = pfx_prompt_take(ns, more, &p, &whole);
	if (r)
		return r;
	if (p.deadline_ms)
		(void)pfx_begin(c, p.deadline_ms); /* the same process still */
	r = pfx_lease_use(c, ns, lease, false, &l);
	if (r == 0 && !whole) /* counted without what the lease has already */
		p.n_tokens += l->n_keys * ns->info.block_tokens;
	if (r == 0)
		r = walk_init(&k, ns, &p);
	if (r)
		return r;
	k.wire = l->wire;
	r = walk_parts(&k, false);
	if (r) {
		pfx_lease_failed(c, lease, r, k.done > 0);
		return pfx_lease_gone(c, r);
	}
	l->n_keys += p.n_keys;
	k.out.lease = lease;
	walk_result(&k, ret);
	return 0;
}

/* ---- PROBE and EXPLAIN ----------------------------------------------------------------------- */

static int probe_part(struct pfx_namespace *ns, const pfx_prompt *p, struct proto_span keys,
		      bool bitmap, struct proto_probe_rep *ret_rep)
{
	struct pfx_client *c = ns->client;
	struct proto_probe_req req = {
		.has = PROTO_HAS_ALL,
		.ns = ns->info.id,
		.tenant = p->tenant,
		.salt = { p->salt, p->salt_len },
		.flags = bitmap ? PROTO_PROBE_BITMAP : 0,
		.n_tokens = p->n_tokens,
		.keys = keys,
	};
	struct pfx_frame f;
	const char *bad;
	int r = pfx_request(c, PROTO_OP_PROBE, &req, &f);

	if (r)
		return r;
	if (proto_probe_rep_decode(f.body, f.h.len, ret_rep, &bad))
		return pfx_bad_reply(c, PROTO_OP_PROBE, bad);
	if (bitmap && ret_rep->bitmap.n < (keys.n / ns->info.key_len + 7) / 8)
		return pfx_bad_reply(c, PROTO_OP_PROBE, "bitmap");
	return 0;
}

/*
 * Digest mode: all parts, since the bits of a bitmap do not depend on each other.  In token mode a
 * key is known by its path alone and a later part would be taken for the beginning of a prompt; so
 * what lies behind the first one is not asked for, and its bits are 0.  The length is of the first.
 */
static int probe_parts(struct pfx_namespace *ns, const pfx_prompt *p, uint32_t *ret_device,
		       uint8_t *bitmap)
{
	uint32_t per_frame = pfx_prompt_keys_per_frame(ns, p) & ~7u, done = 0;
	const uint8_t *keys = p->keys;
	bool tokens = ns->open_body[0] == PFX_KEYS_TOKENS; /* the body's first field */

	if (!per_frame)
		return pfx_fail(ns->client, PFX_LIMIT,
				"PROBE: no key fits into the daemon's frames");
	do {
		uint32_t left = p->n_keys - done, n = left < per_frame ? left : per_frame;
		struct proto_span part = { n ? keys + (size_t)done * ns->info.key_len
					     : (const uint8_t *)"",
					   n * ns->info.key_len };
		struct proto_probe_rep rep;
		int r = probe_part(ns, p, part, bitmap != NULL, &rep);

		if (r)
			return r;
		if (!done)
			*ret_device = rep.n_device;
		if (bitmap && n)
			memcpy(bitmap + done / 8, rep.bitmap.p, (n + 7u) / 8);
		done += n;
	} while (bitmap && !tokens && done < p->n_keys);
	if (bitmap && done < p->n_keys)
		memset(bitmap + done / 8, 0, ((size_t)p->n_keys + 7) / 8 - done / 8);
	return 0;
}

int pfx_probe(pfx_namespace *ns, const pfx_prompt *prompt, uint32_t *ret_device,
	      uint8_t *ret_bitmap, size_t bitmap_len)
{
	struct pfx_client *c = ns ? ns->client : NULL;
	pfx_prompt p;
	int r = pfx_begin(c, 0);

	if (r)
		return r;
	if (!prompt || !ret_device)
		return pfx_fail(c, PFX_ARGUMENT, "prompt or ret_device is NULL");
	r = pfx_prompt_take(ns, prompt, &p, NULL);
	if (r)
		return r;
	if (ret_bitmap && bitmap_len < ((size_t)p.n_keys + 7) / 8)
		return pfx_fail(c, PFX_TOO_SMALL, "a bitmap of %u keys needs %zu bytes", p.n_keys,
				((size_t)p.n_keys + 7) / 8);
	if (p.deadline_ms)
		r = pfx_begin(c, p.deadline_ms);
	for (int round = 0; r == 0; round++) {
		r = pfx_ready(c, ns);
		if (r)
			return r;
		r = probe_parts(ns, &p, ret_device, ret_bitmap);
		if (r != PFX_LOST || round)
			break;
		r = 0;
	}
	return pfx_gone(c, r);
}

static int explain_once(struct pfx_namespace *ns, const pfx_prompt *p, pfx_explain_result *out)
{
	struct pfx_client *c = ns->client;
	struct proto_explain_req req = {
		.has = PROTO_HAS_ALL,
		.ns = ns->info.id,
		.tenant = p->tenant,
		.salt = { p->salt, p->salt_len },
		.n_tokens = p->n_tokens,
		.keys = { p->n_keys ? p->keys : "", p->n_keys * ns->info.key_len },
		.tail = { p->tail, 4 * p->n_tail },
	};
	struct proto_explain_rep rep;
	struct pfx_frame f;
	const char *bad;
	int r;

	if (p->n_keys > pfx_prompt_keys_per_frame(ns, p))
		return pfx_fail(c, PFX_LIMIT, "EXPLAIN takes %u keys here, not %u",
				pfx_prompt_keys_per_frame(ns, p), p->n_keys);
	r = pfx_request(c, PROTO_OP_EXPLAIN, &req, &f);
	if (r)
		return r;
	if (proto_explain_rep_decode(f.body, f.h.len, &rep, &bad))
		return pfx_bad_reply(c, PROTO_OP_EXPLAIN, bad);
	*out = (pfx_explain_result){
		.struct_size = sizeof(*out),
		.matched_tokens = rep.matched_tokens,
		.position = rep.position,
		.lost_tokens = rep.lost_tokens,
		.reason = rep.reason,
		.has_own_token = rep.has_tokens & 1,
		.has_stored_token = rep.has_tokens >> 1 & 1,
		.own_token = rep.own_token,
		.stored_token = rep.stored_token,
	};
	if (rep.text.n)
		memcpy(out->text, rep.text.p, rep.text.n); /* at most 512, decoded */
	return 0;
}

int pfx_explain(pfx_namespace *ns, const pfx_prompt *prompt, pfx_explain_result *ret)
{
	struct pfx_client *c = ns ? ns->client : NULL;
	pfx_explain_result out;
	pfx_prompt p;
	int r = pfx_begin(c, 0);

	if (r)
		return r;
	if (!prompt || !ret || !pfx_struct_ok(ret))
		return pfx_fail(c, PFX_ARGUMENT, "prompt, ret or a struct_size is missing");
	r = pfx_prompt_take(ns, prompt, &p, NULL);
	if (r)
		return r;
	if (p.deadline_ms)
		r = pfx_begin(c, p.deadline_ms);
	for (int round = 0; r == 0; round++) {
		r = pfx_ready(c, ns);
		if (r)
			return r;
		r = explain_once(ns, &p, &out);
		if (r != PFX_LOST || round)
			break;
		r = 0;
	}
	if (r == 0)
		pfx_struct_out(ret, &out, sizeof(out));
	return pfx_gone(c, r);
}
