/*
 * random_tiers_lease.c - what one random worker over tiers asks, and what it may be answered.
 */
#include "tests/engine/random_tiers_internal.h"

/* The path up to and with block i of the lease. */
static uint64_t path_of(const struct tiers_lease *l, uint32_t i)
{
	uint64_t h = (l->p.chain[l->p.skip + i + 1] ^ l->epoch) * 0x9e3779b97f4a7c15u;

	return (h ^ (h >> 31)) | 1;
}

static void check_block(struct tiers_run *r, const struct tiers_lease *l, uint32_t j)
{
	uint8_t want[UNIVERSE_BYTES], got[UNIVERSE_BYTES];

	universe_content(&l->p, l->p.skip + j, want);
	world_read(&r->w, 0, l->slots[j], got, UNIVERSE_BYTES);
	if (memcmp(want, got, UNIVERSE_BYTES) != 0)
		world_fail(&r->w, "slot %u does not hold block %u of the prompt", l->slots[j], j);
	r->result.n_read++;
}

static uint32_t slot_of(struct tiers_run *r, struct proto_span runs, uint32_t i)
{
	for (uint32_t k = 0; k < runs.n; k++) {
		struct radix_run run = proto_run_at(runs, k);

		if (i < run.len)
			return run.start + i;
		i -= run.len;
	}
	world_fail(&r->w, "the runs are shorter than the count says");
}

static struct proto_span keys_of(const struct tiers_lease *l, uint32_t from, uint32_t n,
				 uint8_t *buf)
{
	uint32_t len = universe_key_len(l->p.root);

	for (uint32_t i = 0; i < n; i++)
		memcpy(buf + i * len, l->p.keys[l->p.skip + from + i], len);
	return (struct proto_span){ .p = buf, .n = n * len };
}

/* ---- what may be found ----------------------------------------------------------------------- */

/* Leading blocks that a live lease holds on the device. */
static uint32_t held(const struct tiers_run *r, const struct tiers_lease *l)
{
	uint32_t best = 0;

	for (uint32_t i = 0; i < TIERS_SESSIONS; i++) {
		for (uint32_t k = 0; k < TIERS_LEASES; k++) {
			const struct tiers_lease *o = &r->sessions[i].leases[k];
			uint32_t n = 0;

			if (!o->used || o->p.root != l->p.root || o->epoch != l->epoch ||
			    o->p.skip != l->p.skip || (o->island && !l->island))
				continue;
			while (n < o->n_path && n < l->given && path_of(o, n) == path_of(l, n))
				n++;
			best = n > best ? n : best;
		}
	}
	return best;
}

/* What was invalidated may be found by those who held it, no more. */
static bool invalidated(const struct tiers_run *r, const struct tiers_lease *l)
{
	return l->epoch != r->epochs[universe_roots[l->p.root].ns];
}

/* All blocks found, from the path's beginning, of which n_device lie on the device. */
static void check_found(struct tiers_run *r, const struct tiers_lease *l, uint32_t n_device,
			uint32_t n_all)
{
	uint32_t may = 0, must = 0, least = invalidated(r, l) ? 0 : held(r, l);

	while (may < l->given && oracle_may(&r->oracle, path_of(l, may)))
		may++;
	while (must < l->given && oracle_must(&r->oracle, path_of(l, must)))
		must++;
	if (n_all > may)
		world_fail(&r->w, "%u blocks are found, only %u were ever stored", n_all, may);
	if (n_device < least)
		world_fail(&r->w, "%u blocks are on the device, %u are held there", n_device,
			   least);
	if (r->config.lossless && !r->config.islands && n_all != must)
		world_fail(&r->w, "%u blocks are found of %u that were stored", n_all, must);
}

/* ---- requests twice -------------------------------------------------------------------------- */

static struct proto_id op_id(struct tiers_run *r)
{
	struct proto_id id = { { 0 } };

	if (tiers_chance(r, 300)) {
		r->next_op++;
		memcpy(id.b, &r->next_op, 8);
		id.b[15] = 1;
	}
	return id;
}

/* The same request again is answered from memory: nothing happens a second time. */
static void maybe_again(struct tiers_run *r, struct world_client *c, const struct proto_id *id,
			int status)
{
	uint8_t body[4096];
	uint32_t len = c->h.len;

	if (id->b[15] == 0 || status != PROTO_STATUS_OK || len > sizeof(body) ||
	    !tiers_chance(r, 300))
		return;
	memcpy(body, c->body, len);
	world_check(&r->w,
		    world_again(c) == status && c->h.len == len && memcmp(body, c->body, len) == 0);
	r->result.n_replays++;
}

/* ---- loads ----------------------------------------------------------------------------------- */

static void load_event(struct tiers_run *r, struct tiers_lease *l, const struct proto_event *e)
{
	bool whole = e->n == l->load_want;

	world_check(&r->w, e->state == PROTO_WAIT_LOADED || e->state == PROTO_WAIT_FAILED);
	world_check(&r->w, (e->n > 0) == (e->state == PROTO_WAIT_LOADED));
	world_check(&r->w, e->n <= l->load_want);
	world_check(&r->w, whole == (e->reason == PROTO_REASON_NONE));
	if (r->config.lossless)
		world_check(&r->w,
			    whole || e->reason == PROTO_REASON_NO_ROOM ||
				    (l->load_deadline && e->reason == PROTO_REASON_TIER_DOWN));
	r->result.n_loaded += e->state == PROTO_WAIT_LOADED;
	r->result.n_cut += e->state == PROTO_WAIT_LOADED && !whole;
	r->result.n_failed += e->state == PROTO_WAIT_FAILED;
	l->loading = 0;
	/* Of those that were taken before, another worker may have stored some. */
	l->loaded = e->n > l->load_taken ? e->n - l->load_taken : 0;
}

static void reserved(struct tiers_run *r, struct tiers_lease *l, int status,
		     const struct proto_reserve_rep *rep)
{
	world_check(&r->w, status == PROTO_STATUS_OK || status == PROTO_STATUS_BUSY);
	if (status != PROTO_STATUS_OK)
		return;
	world_check(&r->w, rep->n > 0 && rep->n <= l->want && rep->first == l->n_path + l->n_res);
	for (uint32_t i = 0; i < rep->n; i++)
		l->res[l->n_res++] = slot_of(r, rep->runs, i);
}

/* A WAIT came to an end. */
static void wait_event(struct tiers_run *r, struct tiers_lease *l, const struct proto_event *e)
{
	world_check(&r->w, e->state != PROTO_WAIT_WAITING && e->state != PROTO_WAIT_LOADED);
	world_check(&r->w, (e->state == PROTO_WAIT_READY) <= (e->n > 0));
	world_check(&r->w, e->n <= l->given - l->n_path);
	r->result.n_waits++;
	l->waiting = 0;
}

void tiers_hear(struct tiers_run *r, struct tiers_session *s)
{
	struct proto_reserve_rep rep;
	struct proto_event e;
	uint64_t seq;

	while (s->c && !s->orphan && world_event(s->c, &seq, &e)) {
		struct tiers_lease *l = NULL;

		for (uint32_t i = 0; i < TIERS_LEASES; i++)
			if (s->leases[i].used && s->leases[i].id == e.lease)
				l = &s->leases[i];
		if (l && l->loading == seq)
			load_event(r, l, &e);
		else if (l && l->waiting == seq)
			wait_event(r, l, &e);
		else
			world_fail(&r->w, "an EVENT that nobody waits for");
	}
	for (uint32_t i = 0; i < TIERS_LEASES && s->c && !s->orphan; i++) {
		struct tiers_lease *l = &s->leases[i];
		int status;

		if (!l->used || !l->reserving)
			continue;
		status = world_reserve_reply(s->c, l->reserving, &rep);
		if (status == -EINPROGRESS)
			continue;
		l->reserving = 0;
		reserved(r, l, status, &rep);
	}
}

/* ---- MATCH and EXTEND ------------------------------------------------------------------------ */

/* One more block of the path; how it counts is what the last reply said of it. */
static void advance(struct tiers_run *r, struct tiers_lease *l, uint32_t slot)
{
	uint32_t j = l->n_path++;

	l->slots[j] = slot;
	check_block(r, l, j);
	l->device += l->marks[j] == TIERS_UNSEEN;
	l->host += l->marks[j] == TIERS_HOST;
	l->redis += l->marks[j] == TIERS_REDIS;
	l->pending += l->marks[j] == TIERS_MISSED;
}

static void check_match(struct tiers_run *r, const struct tiers_session *s, struct tiers_lease *l,
			const struct proto_match_rep *rep, uint32_t flags, uint32_t deadline_us)
{
	uint32_t lower = rep->n_host + rep->n_redis, at;

	world_check(&r->w, !rep->more && l->n_path + rep->n_device + lower <= l->given);
	world_check(&r->w, rep->n_host == 0 || r->config.tiers.host_blocks);
	world_check(&r->w, rep->n_redis == 0 || r->config.tiers.redis);
	for (uint32_t i = 0; i < rep->n_device; i++)
		advance(r, l, slot_of(r, rep->runs, i));
	if (l->loading) /* what is behind the load's blocks came otherwise */
		l->load_taken = radix_min_u32(l->load_want, l->load_taken + rep->n_device);
	if (rep->n_device < l->loaded && !invalidated(r, l))
		world_fail(&r->w, "%u blocks were loaded, %u are usable", l->loaded, rep->n_device);
	l->loaded = 0;
	check_found(r, l, l->n_path, l->n_path + lower);
	at = l->n_path;
	for (uint32_t i = 0; i < rep->n_host; i++)
		l->marks[at++] = TIERS_HOST;
	for (uint32_t i = 0; i < rep->n_redis; i++)
		l->marks[at++] = TIERS_REDIS;
	while (at < l->given)
		l->marks[at++] = TIERS_MISSED;
	if ((flags & PROTO_MATCH_PROMOTE) && lower && rep->advice == 0 && !l->loading) {
		l->loading = s->c->seq;
		l->load_deadline = deadline_us > 0;
		l->load_want = lower;
		l->load_taken = 0;
	}
}

static void begin_prompt(struct tiers_run *r, const struct tiers_session *s, struct tiers_lease *l)
{
	uint32_t root = s->blue ? 3 : tiers_below(r, 4);

	memset(l, 0, sizeof(*l));
	universe_prompt(&r->w.rng, &l->p, root == 3 && !s->blue ? 4 : root);
	l->epoch = r->epochs[universe_roots[l->p.root].ns];
	l->island = r->config.islands && universe_roots[l->p.root].ns == 2 && tiers_chance(r, 300);
	l->p.skip = l->island ? tiers_below(r, l->p.n) : 0;
	l->given = 1 + tiers_below(r, l->p.n - l->p.skip);
}

void tiers_match(struct tiers_run *r, struct tiers_session *s)
{
	struct proto_match_req m = { .has = PROTO_HAS_ALL };
	struct proto_match_rep rep;
	struct tiers_lease *l = NULL;
	uint8_t keys[UNIVERSE_MAX * MODEL_KEY];

	for (uint32_t i = 0; i < TIERS_LEASES && !l; i++)
		if (!s->leases[i].used)
			l = &s->leases[i];
	if (!l)
		return;
	begin_prompt(r, s, l);
	m.ns = s->ns[universe_roots[l->p.root].ns];
	m.tenant = universe_roots[l->p.root].tenant;
	m.salt = world_text(universe_roots[l->p.root].salt);
	m.flags = (tiers_chance(r, 700) ? PROTO_MATCH_PROMOTE : 0u) |
		  (l->island ? PROTO_MATCH_ISLAND : 0u) |
		  (tiers_chance(r, 200) ? PROTO_MATCH_LEAD : 0u) |
		  (tiers_chance(r, 200) ? PROTO_MATCH_NO_TAIL : 0u);
	m.deadline_us = tiers_chance(r, 300) ? 1 + tiers_below(r, 500) : 0;
	m.keys = keys_of(l, 0, l->given, keys);
	m.n_tokens = l->n_tokens = l->given * UNIVERSE_BT + tiers_below(r, 3);
	m.op_id = op_id(r);
	world_check(&r->w, world_match(s->c, &m, &rep) == PROTO_STATUS_OK);
	l->used = true;
	l->id = rep.lease;
	r->result.found[0] += rep.n_device;
	r->result.found[1] += rep.n_host;
	r->result.found[2] += rep.n_redis;
	check_match(r, s, l, &rep, m.flags, m.deadline_us);
	maybe_again(r, s->c, &m.op_id, PROTO_STATUS_OK);
}

void tiers_extend(struct tiers_run *r, struct tiers_session *s, struct tiers_lease *l)
{
	struct proto_extend_req m = { .lease = l->id };
	struct proto_match_rep rep;
	uint8_t keys[UNIVERSE_MAX * MODEL_KEY];
	uint64_t n_tokens = l->n_tokens;
	uint32_t n = 0;
	int status;

	if (l->reserving) {
		world_check(&r->w, world_extend(s->c, &m, &rep) == PROTO_STATUS_WRONG_STATE);
		return;
	}
	if (tiers_chance(r, 300)) {
		if (l->given == l->p.n - l->p.skip)
			universe_grow(&r->w.rng, &l->p);
		n = tiers_below(r, 1 + l->p.n - l->p.skip - l->given);
	}
	m.keys = keys_of(l, l->given, n, keys);
	l->given += n;
	if (l->island && l->p.skip && l->n_path && !l->n_res && tiers_chance(r, 300))
		m.parent = (struct proto_span){ .p = l->p.keys[l->p.skip - 1],
						.n = universe_key_len(l->p.root) };
	if (n) {
		m.n_tokens = l->given * UNIVERSE_BT;
		m.n_tokens = m.n_tokens > l->n_tokens ? m.n_tokens : l->n_tokens;
		l->n_tokens = m.n_tokens;
	}
	m.flags = (tiers_chance(r, 500) ? PROTO_MATCH_PROMOTE : 0u) |
		  (tiers_chance(r, 200) ? PROTO_MATCH_LEAD : 0u);
	m.deadline_us = tiers_chance(r, 300) ? 1 + tiers_below(r, 500) : 0;
	l->waiting = 0; /* it looks for itself */
	status = world_extend(s->c, &m, &rep);
	/* The parent may not be there, or in no tier as high. */
	world_check(&r->w, status == PROTO_STATUS_OK || m.parent.n);
	if (status != PROTO_STATUS_OK) {
		l->given -= n;
		l->n_tokens = n_tokens;
		return;
	}
	r->result.n_grafts += m.parent.n > 0;
	if (l->n_res)
		world_check(&r->w, rep.n_device == 0 && rep.tail_tokens == 0);
	else
		check_match(r, s, l, &rep, m.flags, m.deadline_us);
}

/* ---- RESERVE, COMMIT, RELEASE ---------------------------------------------------------------- */

void tiers_reserve(struct tiers_run *r, struct tiers_session *s, struct tiers_lease *l)
{
	struct proto_reserve_req m = { .lease = l->id, .n = 1 + tiers_below(r, 12) };
	struct proto_reserve_rep rep;
	uint32_t left = l->given - l->n_path - l->n_res;
	int status;

	m.deadline_us = tiers_chance(r, 300) && !r->config.lossless ? 1 + tiers_below(r, 300) : 0;
	m.op_id = op_id(r);
	status = world_reserve(s->c, &m, &rep);
	maybe_again(r, s->c, &m.op_id, status);
	if (l->reserving || left == 0) {
		world_check(&r->w, status == PROTO_STATUS_WRONG_STATE);
		return;
	}
	l->loading = l->waiting = 0; /* what is not there is computed now */
	l->loaded = 0;
	l->want = m.n < left ? m.n : left;
	if (status == -EINPROGRESS) {
		l->reserving = s->c->seq;
		r->result.n_deferred++;
	} else {
		reserved(r, l, status, &rep);
	}
}

/*
 * The next block begins an island that cannot be hung here: what is before it lies lower.  Some
 * blocks before it may have been stored; the worker gives up.
 */
static void conflict(struct tiers_run *r, struct tiers_session *s, struct tiers_lease *l,
		     int status)
{
	struct proto_release_req m = { .lease = l->id };
	struct proto_release_rep rep;

	world_check(&r->w, status == PROTO_STATUS_CONFLICT && r->config.islands &&
				   universe_roots[l->p.root].ns == 2);
	for (uint32_t i = 0; i < l->n_res; i++)
		oracle_add(&r->oracle, path_of(l, l->n_path + i), l->p.root);
	world_check(&r->w, world_release(s->c, &m, &rep) == PROTO_STATUS_OK);
	world_check(&r->w, rep.queried_tokens == l->n_tokens);
	r->result.n_conflicts++;
	l->used = false;
}

void tiers_commit(struct tiers_run *r, struct tiers_session *s, struct tiers_lease *l)
{
	struct proto_commit_req m = { .lease = l->id };
	struct proto_commit_rep rep;
	uint32_t n_other = 0;
	int status;

	if (l->n_res == 0)
		return;
	if (l->reserving) {
		m.n = 1;
		world_check(&r->w, world_commit(s->c, &m, &rep) == PROTO_STATUS_WRONG_STATE);
		return;
	}
	m.n = 1 + tiers_below(r, l->n_res);
	for (uint32_t i = 0; i < m.n; i++) {
		uint8_t bytes[UNIVERSE_BYTES];

		universe_content(&l->p, l->p.skip + l->n_path + i, bytes);
		world_write(&r->w, 0, l->res[i], bytes, UNIVERSE_BYTES);
	}
	status = world_commit(s->c, &m, &rep);
	if (status != PROTO_STATUS_OK) {
		conflict(r, s, l, status);
		return;
	}
	for (uint32_t i = 0; i < m.n; i++) {
		uint32_t slot = slot_of(r, rep.runs, i);

		n_other += slot != l->res[i];
		l->slots[l->n_path] = slot;
		oracle_add(&r->oracle, path_of(l, l->n_path), l->p.root);
		check_block(r, l, l->n_path++);
	}
	world_check(&r->w, rep.n_duplicate == n_other && rep.n_stored + n_other == m.n);
	l->n_res -= m.n;
	memmove(l->res, l->res + m.n, l->n_res * sizeof(l->res[0]));
}

/*
 * Hits count for the tier that was told.  With losses a block may have sunk since, or it was lost
 * altogether and stored anew by another worker: then it is that one's.
 */
static void check_settled(struct tiers_run *r, const struct tiers_lease *l,
			  const struct proto_release_rep *rep)
{
	uint64_t host = UNIVERSE_BT * l->host, redis = UNIVERSE_BT * l->redis;
	uint64_t pending = UNIVERSE_BT * l->pending;
	uint64_t found = UNIVERSE_BT * l->device + host + redis + pending;

	world_check(&r->w, rep->queried_tokens == l->n_tokens);
	world_check(&r->w, rep->miss_tokens == l->n_tokens - found);
	world_check(&r->w, rep->hit_device_tokens == UNIVERSE_BT * l->device);
	if (r->config.losses) {
		world_check(&r->w, rep->hit_host_tokens + rep->hit_redis_tokens <= host + redis);
		pending += host + redis - rep->hit_host_tokens - rep->hit_redis_tokens;
	} else {
		world_check(&r->w, rep->hit_host_tokens == host && rep->hit_redis_tokens == redis);
	}
	world_check(&r->w, rep->hit_pending_tokens == pending);
}

void tiers_release(struct tiers_run *r, struct tiers_session *s, struct tiers_lease *l)
{
	struct proto_release_req m = { .lease = l->id };
	struct proto_release_rep rep;
	struct proto_reserve_rep none;

	for (uint32_t j = 0; j < l->n_path; j++)
		check_block(r, l, j);
	world_check(&r->w, world_release(s->c, &m, &rep) == PROTO_STATUS_OK);
	check_settled(r, l, &rep);
	if (l->reserving)
		world_check(&r->w, world_reserve_reply(s->c, l->reserving, &none) ==
					   PROTO_STATUS_UNKNOWN_LEASE);
	l->used = false;
}

/* ---- WAIT ------------------------------------------------------------------------------------ */

void tiers_wait(struct tiers_run *r, struct tiers_session *s, struct tiers_lease *l)
{
	struct proto_wait_req m = { .lease = l->id, .deadline_us = tiers_below(r, 800) };
	struct proto_wait_rep rep;
	int status = world_wait(s->c, &m, &rep);

	if (l->n_res || l->reserving) {
		world_check(&r->w, status == PROTO_STATUS_WRONG_STATE);
		return;
	}
	world_check(&r->w, status == PROTO_STATUS_OK);
	l->waiting = rep.state == PROTO_WAIT_WAITING ? s->c->seq : 0;
}

/* ---- looking --------------------------------------------------------------------------------- */

void tiers_probe(struct tiers_run *r, struct tiers_session *s)
{
	static struct tiers_lease l;
	struct proto_probe_req m = { .has = PROTO_HAS_ALL, .flags = PROTO_PROBE_BITMAP };
	struct proto_probe_rep rep;
	uint8_t keys[UNIVERSE_MAX * MODEL_KEY];

	begin_prompt(r, s, &l);
	l.given += l.p.skip; /* from the beginning */
	l.p.skip = 0;
	l.island = false;
	m.ns = s->ns[universe_roots[l.p.root].ns];
	m.tenant = universe_roots[l.p.root].tenant;
	m.salt = world_text(universe_roots[l.p.root].salt);
	m.keys = keys_of(&l, 0, l.given, keys);
	m.n_tokens = l.given * UNIVERSE_BT;
	world_check(&r->w, world_probe(s->c, &m, &rep) == PROTO_STATUS_OK);
	check_found(r, &l, rep.n_device, rep.n_device + rep.n_host + rep.n_redis);
}

void tiers_prefetch(struct tiers_run *r, struct tiers_session *s)
{
	static struct tiers_lease l;
	struct proto_prefetch_req m = { .has = PROTO_HAS_ALL };
	struct proto_prefetch_rep rep;
	uint8_t keys[UNIVERSE_MAX * MODEL_KEY];

	begin_prompt(r, s, &l);
	l.given += l.p.skip; /* from the beginning */
	l.p.skip = 0;
	l.island = false;
	m.ns = s->ns[universe_roots[l.p.root].ns];
	m.tenant = universe_roots[l.p.root].tenant;
	m.salt = world_text(universe_roots[l.p.root].salt);
	m.deadline_us = tiers_chance(r, 300) ? 1 + tiers_below(r, 500) : 0;
	m.keys = keys_of(&l, 0, l.given, keys);
	m.n_tokens = l.given * UNIVERSE_BT;
	world_check(&r->w, world_prefetch(s->c, &m, &rep) == PROTO_STATUS_OK);
	check_found(r, &l, rep.n_device, rep.n_device + rep.n_host + rep.n_redis);
}
