/*
 * lives.c - see lives.h.
 */
#include "tests/engine/lives.h"

#include <stdlib.h>

enum {
	BT = 4,
	STRANGER = 999 /* the process that asks for all there is */
};

static bool down(const struct lives *v)
{
	return v->w.engine == NULL;
}

/* Answered, or the daemon was killed; anything else but `allowed` fails the test. */
static bool done(struct lives *v, int r, int allowed)
{
	if (r == PROTO_STATUS_OK)
		return true;
	if (r == -ECONNRESET && down(v))
		return false;
	if (r != allowed)
		world_fail(&v->w, "refused with %s",
			   r > 0 ? proto_status_to_string((uint16_t)r) : "?");
	return false;
}

/* ---- what prompts and blocks are ------------------------------------------------------------- */

static bool is_digest(uint32_t ns)
{
	return ns == 1 || ns == 3;
}

void lives_keys(const struct lives *v, uint32_t ns, uint32_t prompt, uint32_t from, uint32_t n,
		uint8_t *out)
{
	uint32_t key_len = v->ns[ns].key_len;

	for (uint32_t i = from; i < from + n; i++)
		for (uint32_t k = 0; k < key_len / 4; k++) {
			uint32_t token = 100000 * (ns + 1) + 1000 * prompt + 10 * i + k;

			memcpy(out + (size_t)(i - from) * key_len + 4 * (size_t)k, &token, 4);
		}
}

static uint8_t fill_of(uint32_t ns, uint32_t prompt, uint32_t i)
{
	return (uint8_t)(1 + (ns * 61 + prompt * 17 + i * 3) % 200);
}

static void slot_write(struct lives *v, uint32_t ns, uint32_t slot, uint8_t fill)
{
	uint8_t block[256];

	ck_assert_uint_le(v->ns[ns].block_bytes, sizeof(block));
	memset(block, fill, sizeof(block));
	world_write(&v->w, v->ns[ns].group, slot, block, (uint32_t)v->ns[ns].block_bytes);
}

static void slot_check(struct lives *v, uint32_t ns, uint32_t slot, uint8_t fill, const char *whose)
{
	uint8_t block[256];

	world_read(&v->w, v->ns[ns].group, slot, block, (uint32_t)v->ns[ns].block_bytes);
	for (uint32_t i = 0; i < v->ns[ns].block_bytes; i++)
		if (block[i] != fill)
			world_fail(&v->w, "slot %u of pool %u, %s: %02x, not %02x", slot,
				   v->ns[ns].group, whose, block[i], fill);
}

static struct proto_open_req open_of(uint32_t ns)
{
	static const char *const models[LIVES_NS] = { "tokens", "digests", "other", "digests too" };
	static const char *const probes[LIVES_NS] = { "", "seed 1", "", "seed 1" };
	struct proto_open_req o = world_open_req(models[ns]);

	if (is_digest(ns)) {
		o.key_mode = PROTO_KEYS_DIGEST;
		o.digest_len = 16;
		o.seed_probe = world_text(probes[ns]);
	}
	if (ns == 2) {
		o.block_bytes = 128;
		o.head_dim = 8;
	}
	return o;
}

/* ---- life ------------------------------------------------------------------------------------ */

void lives_configure(struct lives *v, uint32_t n_slots, uint32_t n_host, bool redis)
{
	memset(v, 0, sizeof(*v));
	world_config_init(&v->config);
	v->config.keep = true;
	v->config.engine.pool_blocks = v->n_slots = n_slots;
	v->config.engine.index_blocks = 256;
	v->config.engine.grace_ns = 1000000;
	v->config.engine.limits.reserve_ns = 20000000;
	v->config.tiers.host_blocks = n_host;
	v->config.tiers.redis = redis;
	v->config.tiers.copy.latency_ns = 10000;
	v->config.tiers.remote.latency_ns = 100000;
	v->config.tiers.deadline_ns = 50000000;
	v->copies[3] = true;
}

void lives_connect(struct lives *v, uint32_t worker)
{
	struct world_client *c;
	struct proto_hello_req m;
	struct proto_hello_rep rep;

	v->c[worker] = NULL;
	if (down(v))
		return;
	c = world_connect(&v->w, 100 + worker, 1000, false);
	m = world_hello_req(c);
	m.flags = v->copies[worker] ? PROTO_HELLO_COPIES : 0;
	if (!done(v, down(v) ? -ECONNRESET : world_hello(c, &m, &rep), 0))
		return;
	memcpy(&v->tenant, rep.tenants.p, sizeof(v->tenant));
	for (uint32_t i = 0; i < LIVES_NS; i++) {
		struct proto_open_req o = open_of(i);
		int r = world_open(c, &o, &v->ns[i]);

		v->ns[i].digest.p = NULL;
		if (!done(v, r, 0))
			return;
	}
	v->c[worker] = c;
}

void lives_begin(struct lives *v)
{
	ck_assert_int_eq(world_init(&v->w, &v->config), 0);
	v->boot = v->w.config.engine.boot;
	for (uint32_t i = 0; i < LIVES_WORKERS; i++)
		lives_connect(v, i);
}

void lives_end(struct lives *v)
{
	world_deinit(&v->w);
}

static struct world_client *worker_of(struct lives *v, uint32_t worker)
{
	return down(v) ? NULL : v->c[worker];
}

/* The lease, if its worker can still speak of it. */
static struct lives_lease *lease_of(struct lives *v, int h)
{
	struct lives_lease *l = h < 0 ? NULL : &v->leases[h];

	return l && l->used && l->id && worker_of(v, l->worker) ? l : NULL;
}

static void hold(struct lives_lease *l, uint32_t slot, uint32_t i, bool known)
{
	for (uint32_t k = 0; k < l->n_held; k++) {
		if (l->held[k].slot != slot)
			continue;
		l->held[k].i = i;
		l->held[k].known = known;
		return;
	}
	ck_assert_uint_lt(l->n_held, radix_array_size(l->held));
	l->held[l->n_held++] = (struct lives_slot){ slot, i, known };
}

/* ---- operations ------------------------------------------------------------------------------ */

/* Slots of blocks that were found behind the path: to be read. */
static void found(struct lives *v, struct lives_lease *l, const struct proto_match_rep *m)
{
	uint32_t i = l->n_path;

	for (uint32_t k = 0; k < m->runs.n; k++) {
		struct radix_run run = proto_run_at(m->runs, k);

		for (uint32_t j = 0; j < run.len; j++, i++) {
			hold(l, run.start + j, i, true);
			slot_check(v, l->ns, run.start + j, fill_of(l->ns, l->prompt, i), "found");
		}
	}
	l->n_path = i;
	if (m->tail_tokens) /* a donor, whose tokens may be copied; of what block, is not known */
		hold(l, m->tail_slot, 0, false);
}

int lives_match(struct lives *v, uint32_t worker, uint32_t ns, uint32_t prompt, uint32_t n,
		uint32_t flags)
{
	struct world_client *c = worker_of(v, worker);
	uint8_t keys[LIVES_KEYS * 64];
	struct proto_match_rep m;
	struct proto_match_req req = {
		.has = PROTO_HAS_ALL,
		.ns = v->ns[ns].ns,
		.tenant = v->tenant,
		.salt = world_text(ns == 3 ? "salt" : ""),
		.flags = flags,
		.n_tokens = (uint64_t)n * BT,
		.keys = { keys, n * v->ns[ns].key_len },
	};
	struct lives_lease *l;
	int h = 0;

	if (!c)
		return -1;
	lives_keys(v, ns, prompt, 0, n, keys);
	if (!done(v, world_match(c, &req, &m), 0))
		return -1;
	while (v->leases[h].used)
		ck_assert_int_lt(++h, LIVES_LEASES);
	l = &v->leases[h];
	*l = (struct lives_lease){ .used = true,
				   .worker = worker,
				   .ns = ns,
				   .prompt = prompt,
				   .n_keys = n,
				   .id = m.lease };
	found(v, l, &m);
	return h;
}

void lives_reserve(struct lives *v, int h, uint32_t n)
{
	struct lives_lease *l = lease_of(v, h);
	struct proto_reserve_req m = { .n = n };
	struct proto_reserve_rep rep;

	if (!l || l->n_path + l->n_reserved == l->n_keys)
		return;
	m.lease = l->id;
	if (!done(v, world_reserve_wait(v->c[l->worker], &m, &rep), PROTO_STATUS_BUSY))
		return;
	for (uint32_t k = 0; k < rep.runs.n; k++) {
		struct radix_run run = proto_run_at(rep.runs, k);

		for (uint32_t j = 0; j < run.len; j++) {
			hold(l, run.start + j, 0, false);
			l->reserved[l->n_reserved++] = run.start + j;
		}
	}
}

void lives_commit(struct lives *v, int h, uint32_t n)
{
	struct lives_lease *l = lease_of(v, h);
	uint8_t sums[LIVES_KEYS][16], block[256];
	struct proto_commit_req m = { .checksum_kind = PROTO_CHECKSUM_XXH3_128 };
	struct proto_commit_rep rep;
	uint32_t *acked;

	if (!l)
		return;
	n = radix_min_u32(n, l->n_reserved);
	if (n == 0)
		return;
	for (uint32_t i = 0; i < n; i++) {
		uint8_t fill = fill_of(l->ns, l->prompt, l->n_path + i);

		slot_write(v, l->ns, l->reserved[i], fill);
		hold(l, l->reserved[i], l->n_path + i, true);
		memset(block, fill, sizeof(block));
		world_sum(block, v->ns[l->ns].block_bytes, sums[i]);
	}
	m.lease = l->id;
	m.n = n;
	m.checksums = (struct proto_span){ sums, 16 * n };
	if (!done(v, world_commit(v->c[l->worker], &m, &rep), PROTO_STATUS_CONFLICT))
		return;
	for (uint32_t k = 0, i = l->n_path; k < rep.runs.n; k++) {
		struct radix_run run = proto_run_at(rep.runs, k);

		for (uint32_t j = 0; j < run.len; j++, i++)
			hold(l, run.start + j, i, true); /* the canonical one, of two */
	}
	memmove(l->reserved, l->reserved + n, (l->n_reserved - n) * sizeof(l->reserved[0]));
	l->n_reserved -= n;
	l->n_path += n;
	acked = &v->acked[l->ns][l->prompt];
	*acked = l->n_path > *acked ? l->n_path : *acked;
}

void lives_extend(struct lives *v, int h, uint32_t n, uint32_t flags)
{
	struct lives_lease *l = lease_of(v, h);
	uint8_t keys[LIVES_KEYS * 64];
	struct proto_extend_req m = { .flags = flags };
	struct proto_match_rep rep;

	if (!l)
		return;
	m.lease = l->id;
	m.n_tokens = (uint64_t)(l->n_keys + n) * BT;
	m.keys = (struct proto_span){ keys, n * v->ns[l->ns].key_len };
	lives_keys(v, l->ns, l->prompt, l->n_keys, n, keys);
	if (!done(v, world_extend(v->c[l->worker], &m, &rep), 0))
		return;
	l->n_keys += n;
	found(v, l, &rep);
}

void lives_release(struct lives *v, int h)
{
	struct lives_lease *l = lease_of(v, h);
	struct proto_release_req m = { 0 };
	struct proto_release_rep rep;

	if (!l)
		return;
	m.lease = l->id;
	l->used = false; /* it uses nothing any more, whether the daemon hears of it or not */
	(void)done(v, world_release(v->c[l->worker], &m, &rep), PROTO_STATUS_REVOKED);
}

void lives_put(struct lives *v, uint32_t worker, uint32_t ns, uint32_t prompt, uint32_t n)
{
	int h = lives_match(v, worker, ns, prompt, n, is_digest(ns) ? PROTO_MATCH_ISLAND : 0);

	if (h >= 0 && v->leases[h].n_path < n) {
		lives_reserve(v, h, n - v->leases[h].n_path);
		lives_commit(v, h, n);
	}
	lives_release(v, h);
}

void lives_prefetch(struct lives *v, uint32_t worker, uint32_t ns, uint32_t prompt, uint32_t n)
{
	struct world_client *c = worker_of(v, worker);
	uint8_t keys[LIVES_KEYS * 64];
	struct proto_prefetch_rep rep;
	struct proto_prefetch_req m = {
		.has = PROTO_HAS_ALL,
		.ns = v->ns[ns].ns,
		.tenant = v->tenant,
		.salt = world_text(ns == 3 ? "salt" : ""),
		.n_tokens = (uint64_t)n * BT,
		.keys = { keys, n * v->ns[ns].key_len },
	};

	if (!c)
		return;
	lives_keys(v, ns, prompt, 0, n, keys);
	(void)done(v, world_prefetch(c, &m, &rep), PROTO_STATUS_UNSUPPORTED);
}

void lives_wait(struct lives *v, int h, uint32_t deadline_us)
{
	struct lives_lease *l = lease_of(v, h);
	struct proto_wait_req m = { .deadline_us = deadline_us };
	struct proto_wait_rep rep;

	if (!l)
		return;
	m.lease = l->id;
	(void)done(v, world_wait(v->c[l->worker], &m, &rep), PROTO_STATUS_WRONG_STATE);
}

void lives_exit(struct lives *v, uint32_t worker)
{
	for (uint32_t i = 0; i < LIVES_LEASES; i++)
		v->leases[i].used = v->leases[i].used && v->leases[i].worker != worker;
	world_kill(&v->w, 100 + worker);
	v->c[worker] = NULL;
}

void lives_eof(struct lives *v, uint32_t worker)
{
	if (!worker_of(v, worker))
		return;
	for (uint32_t i = 0; i < LIVES_LEASES; i++)
		if (v->leases[i].worker == worker)
			v->leases[i].id = 0;
	world_eof(v->c[worker]);
	v->c[worker] = NULL;
}

void lives_quiesced(struct lives *v, uint32_t worker)
{
	struct world_client *c = worker_of(v, worker);
	struct proto_quiesced_req m = { .old_boot = v->boot };
	struct proto_quiesced_rep rep;

	if (!c)
		return;
	m.instance = c->instance;
	for (uint32_t i = 0; i < LIVES_LEASES; i++)
		v->leases[i].used = v->leases[i].used &&
				    (v->leases[i].worker != worker || v->leases[i].id);
	(void)done(v, world_quiesced(c, &m, &rep), 0);
}

void lives_forget(struct lives *v, uint32_t ns)
{
	memset(v->acked[ns], 0, sizeof(v->acked[ns]));
}

void lives_idle(struct lives *v, uint64_t ns)
{
	if (down(v))
		return;
	world_advance(&v->w, ns);
	world_run_until_idle(&v->w);
}

/* ---- the script ------------------------------------------------------------------------------ */

/* Two workers store the same, one is left with a duplicate. */
static void script_duplicates(struct lives *v)
{
	int a = lives_match(v, 0, 0, 1, 6, 0), b;

	lives_reserve(v, a, 4);
	lives_commit(v, a, 1);
	b = lives_match(v, 1, 0, 1, 6, 0);
	lives_reserve(v, b, 3);
	lives_commit(v, b, 2);
	lives_release(v, b);
	lives_commit(v, a, 2); /* both are stored already */
	b = lives_match(v, 1, 0, 1, 6, 0);
	lives_reserve(v, b, 1);
	lives_extend(v, b, 2, 0);
	lives_commit(v, b, 1);
	lives_commit(v, a, 1);
	lives_release(v, b);
	/* a stays: a path, slots of its own */
}

static void script_islands(struct lives *v)
{
	int h;

	lives_put(v, 1, 1, 2, 5);
	lives_put(v, 2, 3, 2, 4);
	h = lives_match(v, 1, 1, 2, 5, PROTO_MATCH_ISLAND);
	lives_extend(v, h, 2, 0);
	lives_reserve(v, h, 2);
	lives_commit(v, h, 1);
	/* stays, with a slot reserved */
	h = lives_match(v, 0, 1, 3, 4, 0); /* rooted */
	lives_reserve(v, h, 4);
	lives_commit(v, h, 4);
	lives_release(v, h);
}

static void script_tiers(struct lives *v)
{
	int h;

	for (uint32_t p = 4; p < 8; p++) {
		lives_put(v, p % 3, 0, p, 6);
		lives_idle(v, 100000);
	}
	h = lives_match(v, 0, 0, 4, 6, 0); /* it computes what lies lower */
	lives_reserve(v, h, 3);
	lives_commit(v, h, 3);
	lives_release(v, h);
	h = lives_match(v, 2, 0, 4, 6, PROTO_MATCH_PROMOTE);
	lives_idle(v, 1000000);
	lives_extend(v, h, 0, 0);
	lives_release(v, h);
	lives_prefetch(v, 2, 0, 5, 6);
	lives_idle(v, 100000);
	h = lives_match(v, 1, 0, 5, 6, PROTO_MATCH_PROMOTE);
	lives_extend(v, h, 0, 0);
	lives_reserve(v, h, 6); /* it recomputes what did not come */
	lives_commit(v, h, 6);
	lives_release(v, h);
	h = lives_match(v, 2, 0, 6, 8, PROTO_MATCH_PROMOTE | PROTO_MATCH_LEAD);
	lives_idle(v, 300000);
	lives_extend(v, h, 0, PROTO_MATCH_LEAD);
	/* stays, as a leader */
}

static void script_ends(struct lives *v)
{
	int a, b;

	/* Who was let go of by his socket, and comes back. */
	a = lives_match(v, 1, 2, 0, 4, 0);
	lives_reserve(v, a, 4);
	lives_commit(v, a, 2);
	lives_eof(v, 1);
	lives_connect(v, 1);
	lives_quiesced(v, 1);
	/* Who is killed with slots reserved: they wait for the grace. */
	a = lives_match(v, 2, 2, 1, 4, 0);
	lives_reserve(v, a, 3);
	lives_exit(v, 2);
	lives_idle(v, 500000);
	lives_connect(v, 2);
	lives_idle(v, 1000000);
	/* Who waits, and whom he waits for. */
	a = lives_match(v, 0, 2, 2, 4, PROTO_MATCH_LEAD);
	lives_reserve(v, a, 4);
	b = lives_match(v, 1, 2, 2, 4, 0);
	lives_wait(v, b, 1000000);
	lives_commit(v, a, 4);
	lives_extend(v, b, 0, 0);
	lives_release(v, a);
	/* b stays */
}

static void script_admin(struct lives *v)
{
	int h;

	(void)lives_match(v, 2, 3, 2, 4, PROTO_MATCH_ISLAND); /* stays, of an epoch that is over */
	if (!down(v))
		world_invalidate(&v->w, v->ns[3].ns);
	lives_forget(v, 3);
	lives_put(v, 0, 3, 5, 3);
	if (!down(v))
		world_evict(&v->w, v->ns[2].group, 1);
	lives_forget(v, 2);
	lives_put(v, 0, 2, 6, 2);
	h = lives_match(v, 3, 0, 9, 3, 0); /* who copies, and may be revoked */
	lives_reserve(v, h, 2);
	lives_commit(v, h, 1);
}

void lives_script(struct lives *v)
{
	int h;

	lives_put(v, 0, 0, 0, 6);
	h = lives_match(v, 2, 0, 0, 8, 0);
	(void)h; /* stays: a path only */
	script_duplicates(v);
	script_islands(v);
	lives_put(v, 0, 2, 0, 3);
	script_tiers(v);
	script_ends(v);
	script_admin(v);
	lives_idle(v, 100000);
}

/* ---- audits ---------------------------------------------------------------------------------- */

void lives_restart(struct lives *v)
{
	for (uint32_t i = 0; i < LIVES_LEASES; i++)
		v->leases[i].id = 0;
	ck_assert_int_eq(world_life_restart(&v->w), 0);
	for (uint32_t i = 0; i < LIVES_WORKERS; i++)
		lives_connect(v, i);
}

static bool is_held(const struct lives *v, uint32_t group, uint32_t slot)
{
	for (uint32_t i = 0; i < LIVES_LEASES; i++) {
		const struct lives_lease *l = &v->leases[i];

		for (uint32_t k = 0; l->used && v->ns[l->ns].group == group && k < l->n_held; k++)
			if (l->held[k].slot == slot)
				return true;
	}
	return false;
}

static void check_held(struct lives *v)
{
	for (uint32_t i = 0; i < LIVES_LEASES; i++) {
		const struct lives_lease *l = &v->leases[i];

		for (uint32_t k = 0; l->used && k < l->n_held; k++) {
			if (!l->held[k].known)
				continue;
			slot_check(v, l->ns, l->held[k].slot,
				   fill_of(l->ns, l->prompt, l->held[k].i), "held");
			v->n_held_checked++;
		}
	}
}

static void check_acked(struct lives *v, uint32_t ns, uint32_t prompt)
{
	uint32_t n = v->acked[ns][prompt], have = 0;
	uint32_t flags = PROTO_MATCH_PROMOTE | (is_digest(ns) ? PROTO_MATCH_ISLAND : 0);
	int h = lives_match(v, 0, ns, prompt, n, flags); /* checks the bytes of what it finds */
	struct lives_lease *l = &v->leases[h];

	for (uint32_t i = 0; i < 20 && l->n_path < n; i++) {
		lives_idle(v, 10000000);
		lives_extend(v, h, 0, PROTO_MATCH_PROMOTE);
	}
	have = l->n_path;
	lives_release(v, h);
	if (have < n)
		world_fail(&v->w,
			   "%u of %u acknowledged blocks of prompt %u in namespace %u are left",
			   have, n, prompt, ns);
	v->n_acked_checked += n;
}

/* A stranger asks for every slot of the group, and looks whose he is given.  Returns how many. */
static uint32_t grab(struct lives *v, uint32_t ns)
{
	static uint8_t keys[LIVES_SLOTS * 4 * 64];
	struct proto_open_req o = open_of(ns);
	struct world_client *c = world_worker(&v->w, STRANGER, 1000);
	struct proto_open_rep opened;
	struct proto_match_req m = { .has = PROTO_HAS_ALL };
	struct proto_reserve_req want = { 0 };
	struct proto_reserve_rep got;
	struct proto_match_rep rep;
	uint32_t n = 0;

	ck_assert_int_eq(world_open(c, &o, &opened), PROTO_STATUS_OK);
	memset(keys, 0xee, sizeof(keys));
	for (uint32_t i = 0; i < v->n_slots; i++)
		memcpy(keys + (size_t)i * opened.key_len, &i, sizeof(i));
	m.ns = opened.ns;
	m.tenant = v->tenant;
	m.keys = (struct proto_span){ keys, v->n_slots * opened.key_len };
	m.n_tokens = (uint64_t)v->n_slots * BT;
	ck_assert_int_eq(world_match(c, &m, &rep), PROTO_STATUS_OK);
	want.lease = rep.lease;
	want.n = v->n_slots;
	if (world_reserve_wait(c, &want, &got) == PROTO_STATUS_OK) {
		for (uint32_t k = 0; k < got.runs.n; k++) {
			struct radix_run run = proto_run_at(got.runs, k);

			for (uint32_t j = 0; j < run.len; j++) {
				if (is_held(v, opened.group, run.start + j))
					world_fail(&v->w, "slot %u of pool %u is given away",
						   run.start + j, opened.group);
				slot_write(v, ns, run.start + j, 0xf1);
			}
		}
		n = got.n;
	}
	world_kill(&v->w, STRANGER);
	lives_idle(v, 2000000); /* his grace */
	return n;
}

void lives_audit(struct lives *v)
{
	check_held(v);
	for (uint32_t ns = 0; ns < LIVES_NS; ns++)
		for (uint32_t p = 0; p < LIVES_PROMPTS; p++)
			if (v->acked[ns][p])
				check_acked(v, ns, p);
	(void)grab(v, 0);
	(void)grab(v, 2);
	check_held(v);
}

void lives_audit_end(struct lives *v)
{
	for (uint32_t i = 0; i < LIVES_WORKERS; i++)
		if (i % 2)
			lives_exit(v, i);
		else
			lives_quiesced(v, i);
	lives_idle(v, 10000000);
	ck_assert_uint_eq(grab(v, 0), v->n_slots);
	ck_assert_uint_eq(grab(v, 2), v->n_slots);
	ck_assert_uint_eq(world_life_watches(&v->w), 0);
}
