/*
 * random.c - see random.h; what the workers ask for is in universe.h.
 */
#include "tests/engine/random_internal.h"

#include <check.h>
#include <stdio.h>

static uint32_t below(struct run *r, uint32_t n)
{
	return test_rng_below(&r->w.rng, n);
}

static bool chance(struct run *r, uint32_t percent)
{
	return below(r, 100) < percent;
}

/* ---- small things --------------------------------------------------------------------------- */

static void check_block(struct run *r, const struct universe_prompt *p, uint32_t j, uint32_t slot,
			uint32_t n_tokens)
{
	uint8_t want[UNIVERSE_BYTES], got[UNIVERSE_BYTES];

	universe_content(p, j, want);
	world_read(&r->w, 0, slot, got, UNIVERSE_BYTES);
	if (memcmp(want, got, 16 * n_tokens) != 0)
		world_fail(&r->w, "slot %u does not hold block %u of the prompt", slot, j);
	r->result.n_verified_blocks++;
}

/* Slot i of a list of runs. */
static uint32_t slot_of(struct run *r, struct proto_span runs, uint32_t i)
{
	for (uint32_t k = 0; k < runs.n; k++) {
		struct radix_run run = proto_run_at(runs, k);

		if (i < run.len)
			return run.start + i;
		i -= run.len;
	}
	world_fail(&r->w, "the runs are shorter than the count says");
}

/* ---- sessions -------------------------------------------------------------------------------- */

static uint32_t pid_of(uint32_t s)
{
	return 100 + s / PER_PROC;
}

/* Processes 4 and 5 belong to the other tenant. */
static bool is_blue(uint32_t s)
{
	return s / PER_PROC >= 4;
}

static struct proto_id op_id(struct run *r, bool fresh)
{
	struct proto_id id = { { 0 } };

	if (fresh) {
		r->next_op++;
		memcpy(id.b, &r->next_op, 8);
		id.b[15] = 1;
	}
	return id;
}

static void open_all(struct run *r, struct session *s, bool blue)
{
	for (uint32_t i = 0; i < UNIVERSE_NS; i++) {
		struct proto_open_req o = world_open_req("m");
		struct proto_open_rep rep;

		if (blue && i != 1)
			continue;
		if (i == 1)
			o.flags = PROTO_OPEN_EXTRA;
		if (i == 2) {
			o.key_mode = PROTO_KEYS_DIGEST;
			o.digest_len = 16;
			o.seed_probe = world_text("seed");
		}
		world_check(&r->w, world_open(s->c, &o, &rep) == PROTO_STATUS_OK);
		world_check(&r->w, rep.key_len == universe_key_len(i == 0 ? 0 : i == 1 ? 2 : 4));
		s->ns[i] = rep.ns;
	}
}

static void start(struct run *r, uint32_t i)
{
	struct session *s = &r->sessions[i];
	struct proto_hello_req hello;
	struct proto_hello_rep rep;

	memset(s, 0, sizeof(*s));
	s->copies = r->config.max_age_ns && i / PER_PROC % 2;
	s->c = world_connect(&r->w, pid_of(i), is_blue(i) ? 2000 : 1000, false);
	hello = world_hello_req(s->c);
	hello.flags = s->copies ? PROTO_HELLO_COPIES : 0;
	world_check(&r->w, world_hello(s->c, &hello, &rep) == PROTO_STATUS_OK);
	open_all(r, s, is_blue(i));
}

void random_lease_over(struct run *r, struct session *s, struct lease *l, enum random_keep keep)
{
	uint32_t n = l->n_res + l->n_own;

	model_touch(&r->m, l->n_path ? l->path[l->n_path - 1] : MODEL_NOBODY);
	model_drop(&r->m, l->hold);
	model_drop(&r->m, l->donor_hold);
	if (keep != RANDOM_FREE && n) {
		ck_assert_uint_lt(r->n_kept, 4096);
		r->kept[r->n_kept].due_ns = keep == RANDOM_REVOKED
						    ? UINT64_MAX
						    : r->w.now_ns + r->config.grace_ns;
		r->kept[r->n_kept].lease = l->id;
		r->kept[r->n_kept].pid = s->c->peer.pid;
		r->kept[r->n_kept].session = (uint32_t)(s - r->sessions);
		r->kept[r->n_kept++].n = n;
	} else {
		r->m.n_taken -= n;
	}
	l->used = l->f.used = false;
	flight_over(&l->f);
}

/* What was taken back of a session that ends is free, or has the grace of its other slots. */
static void revoked_over(struct run *r, const struct session *s, enum random_keep keep)
{
	for (uint32_t i = 0; i < r->n_kept;) {
		if (r->kept[i].due_ns != UINT64_MAX || &r->sessions[r->kept[i].session] != s) {
			i++;
		} else if (keep == RANDOM_GRACE) {
			r->kept[i++].due_ns = r->w.now_ns + r->config.grace_ns;
		} else {
			r->m.n_taken -= r->kept[i].n;
			r->kept[i] = r->kept[--r->n_kept];
		}
	}
}

void random_session_over(struct run *r, struct session *s, enum random_keep keep)
{
	/* In the order in which the engine ends them: by their beginning. */
	for (;;) {
		struct lease *first = NULL;

		for (uint32_t i = 0; i < N_LEASES; i++)
			if (s->leases[i].used &&
			    (!first || s->leases[i].id >> 20 < first->id >> 20))
				first = &s->leases[i];
		if (!first)
			break;
		random_lease_over(r, s, first, keep);
	}
	revoked_over(r, s, keep);
	flight_settle(&r->flight);
	s->c->n_events = 0; /* nobody is told any more */
	random_flight_check(r);
	s->c = NULL;
	s->orphan = false;
}

static enum random_keep kept_how(const struct run *r)
{
	return r->config.grace_ns > 0 ? RANDOM_GRACE : RANDOM_FREE;
}

/* Slots whose time has come, or whose process has said that it is done; returns how many. */
static uint32_t expire_kept(struct run *r, uint32_t pid)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < r->n_kept;) {
		if (r->kept[i].due_ns > r->w.now_ns &&
		    (r->kept[i].pid != pid || r->kept[i].due_ns == UINT64_MAX)) {
			i++;
			continue;
		}
		n += r->kept[i].n;
		r->m.n_taken -= r->kept[i].n;
		r->kept[i] = r->kept[--r->n_kept];
	}
	return n;
}

static void kill_process(struct run *r, uint32_t proc)
{
	r->result.n_kills++;
	for (uint32_t i = proc * PER_PROC; i < (proc + 1) * PER_PROC; i++) {
		struct session *s = &r->sessions[i];

		if (!s->c)
			continue;
		if (chance(r, 50))
			world_eof(s->c);
		if (s->c->used)
			world_gone(s->c);
		world_check(&r->w, !s->c->used);
		random_session_over(r, s, kept_how(r));
	}
}

static void end_socket(struct run *r, struct session *s)
{
	bool holds = random_revoked_slots(r, s) > 0;

	for (uint32_t i = 0; i < N_LEASES; i++)
		holds |= s->leases[i].used;
	world_eof(s->c);
	world_check(&r->w, s->c->used == (holds && r->config.watches_processes));
	if (!s->c->used) {
		random_session_over(r, s, kept_how(r));
	} else {
		s->orphan = true;
		r->result.n_orphans++;
		for (uint32_t i = 0; i < N_LEASES; i++)
			flight_over(&s->leases[i].f);
	}
}

/* Another session of the process says that its device is done. */
static void quiesce(struct run *r, uint32_t i)
{
	struct session *s = &r->sessions[i];
	struct proto_quiesced_req q = { .instance = s->c->instance,
					.old_boot = r->w.config.engine.boot };
	struct proto_quiesced_rep rep;
	uint32_t n_leases = 0, n_slots = 0, first = i / PER_PROC * PER_PROC;

	for (uint32_t k = first; k < first + PER_PROC; k++) {
		if (!r->sessions[k].c || !r->sessions[k].orphan)
			continue;
		for (uint32_t j = 0; j < N_LEASES; j++) {
			const struct lease *l = &r->sessions[k].leases[j];

			n_leases += l->used;
			n_slots += l->used ? l->n_res + l->n_own : 0;
		}
		n_slots += random_revoked_slots(r, &r->sessions[k]);
	}
	n_slots += random_quiesce(r, s);
	n_slots += expire_kept(r, pid_of(i));
	world_check(&r->w, world_quiesced(s->c, &q, &rep) == PROTO_STATUS_OK);
	world_check(&r->w, rep.n_leases == n_leases && rep.n_slots == n_slots);
	for (uint32_t k = first; k < first + PER_PROC; k++) {
		if (!r->sessions[k].c || !r->sessions[k].orphan)
			continue;
		world_check(&r->w, !r->sessions[k].c->used);
		random_session_over(r, &r->sessions[k], RANDOM_FREE);
	}
}

/* ---- requests twice -------------------------------------------------------------------------- */

static void maybe_again(struct run *r, struct world_client *c, bool kept)
{
	struct prefixd_counters before, after;
	uint8_t body[4096];
	uint32_t len = c->h.len;
	uint16_t status = c->h.status;

	if (!kept || status != PROTO_STATUS_OK || !chance(r, 30))
		return;
	ck_assert_uint_le(len, sizeof(body));
	memcpy(body, c->body, len);
	before = world_counters(&r->w);
	world_check(&r->w,
		    world_again(c) == status && c->h.len == len && memcmp(body, c->body, len) == 0);
	after = world_counters(&r->w);
	before.op_replays++;
	world_check(&r->w, memcmp(&before, &after, sizeof(before)) == 0);
	r->result.n_replays++;
}

/* ---- leases ---------------------------------------------------------------------------------- */

static int end_of(const struct lease *l)
{
	return l->n_path ? l->path[l->n_path - 1] : MODEL_NOBODY;
}

static void hold_path(struct run *r, struct lease *l)
{
	model_drop(&r->m, l->hold);
	l->hold = end_of(l) == MODEL_NOBODY ? MODEL_NOBODY : model_hold(&r->m, end_of(l));
}

uint32_t random_expect(struct run *r, const struct lease *l, int blocks[UNIVERSE_MAX])
{
	int at = end_of(l);
	uint32_t n = 0;

	while (l->n_path + n < l->given) {
		const uint8_t *key = l->p.keys[l->p.skip + l->n_path + n];

		if (l->island && l->n_path + n == 0)
			at = model_find(&r->m, l->p.root, key);
		else
			at = model_child(&r->m, l->p.root, at, key);
		if (at == MODEL_NOBODY)
			break;
		blocks[n++] = at;
	}
	return n;
}

static void check_tail(struct run *r, struct lease *l, const struct proto_match_rep *rep,
		       struct proto_span tail)
{
	uint32_t at = l->p.skip + l->n_path, n = UNIVERSE_BT - 1, want = 0;
	const uint8_t *tokens = l->p.keys[at];

	if (l->n_path == l->given) {
		tokens = tail.p;
		n = tail.n / 4;
	}
	if (universe_roots[l->p.root].ns == 0 && n)
		want = model_partial(&r->m, l->p.root, end_of(l), tokens, n);
	world_check(&r->w, rep->tail_tokens == want);
	l->tail_offer = want;
	model_drop(&r->m, l->donor_hold);
	l->donor_hold = MODEL_NOBODY;
	if (!want)
		return;
	world_check(&r->w, r->m.blocks[rep->tail_slot].used &&
				   r->m.blocks[rep->tail_slot].parent == end_of(l));
	l->donor_hold = model_hold(&r->m, (int)rep->tail_slot);
	check_block(r, &l->p, at, rep->tail_slot, want);
}

/* The reply of MATCH or EXTEND against the model. */
static void check_match(struct run *r, struct lease *l, const struct proto_match_rep *rep,
			struct proto_span tail)
{
	int blocks[UNIVERSE_MAX];
	uint32_t n = random_expect(r, l, blocks);

	if (rep->n_device != n)
		world_fail(&r->w, "%u blocks were found, the model has %u", rep->n_device, n);
	world_check(&r->w, !rep->more && !rep->n_host && !rep->n_redis);
	for (uint32_t i = 0; i < n; i++) {
		uint32_t slot = slot_of(r, rep->runs, i);

		world_check(&r->w, slot == (uint32_t)blocks[i]);
		check_block(r, &l->p, l->p.skip + l->n_path + i, slot, UNIVERSE_BT);
		l->path[l->n_path + i] = blocks[i];
	}
	if (n && l->tail_last) {
		l->tail_used -= l->tail_last;
		l->tail_last = 0;
	}
	l->n_path += n;
	hold_path(r, l);
	check_tail(r, l, rep, tail);
	r->result.n_hits += n;
}

static struct proto_span keys_of(const struct lease *l, uint32_t from, uint32_t n, uint8_t *buf)
{
	uint32_t len = universe_key_len(l->p.root);

	for (uint32_t i = 0; i < n; i++)
		memcpy(buf + i * len, l->p.keys[l->p.skip + from + i], len);
	return (struct proto_span){ .p = buf, .n = n * len };
}

/* Some tokens of the block behind the last key given. */
static struct proto_span tail_of(struct run *r, const struct lease *l)
{
	struct proto_span tail = { 0 };
	uint32_t next = l->p.skip + l->given;

	if (universe_roots[l->p.root].ns != 2 && next < l->p.n) {
		tail.p = l->p.keys[next];
		tail.n = 4 * below(r, UNIVERSE_BT);
	}
	return tail;
}

static void do_match(struct run *r, uint32_t si)
{
	struct session *s = &r->sessions[si];
	struct lease *l = NULL;
	struct proto_match_req m = { .has = PROTO_HAS_ALL };
	struct proto_match_rep rep;
	uint8_t keys[UNIVERSE_MAX * MODEL_KEY];
	bool keep = chance(r, 30);

	for (uint32_t i = 0; i < N_LEASES && !l; i++)
		if (!s->leases[i].used && !s->leases[i].revoked)
			l = &s->leases[i];
	if (!l)
		return;
	memset(l, 0, sizeof(*l));
	l->hold = l->donor_hold = MODEL_NOBODY;
	universe_prompt(&r->w.rng, &l->p,
			is_blue(si)                     ? 3
			: below(r, UNIVERSE_ROOTS) == 3 ? 4
							: below(r, UNIVERSE_ROOTS - 1));
	if (l->p.root == 3 && !is_blue(si))
		l->p.root = 2, universe_prompt(&r->w.rng, &l->p, 2);
	l->island = r->config.islands && universe_roots[l->p.root].ns == 2 && chance(r, 40);
	if (l->island)
		l->p.skip = below(r, l->p.n);
	l->given = 1 + below(r, l->p.n - l->p.skip);
	m.ns = s->ns[universe_roots[l->p.root].ns];
	m.tenant = universe_roots[l->p.root].tenant;
	m.salt = world_text(universe_roots[l->p.root].salt);
	m.flags = (l->island ? PROTO_MATCH_ISLAND : 0u) | (chance(r, 40) ? PROTO_MATCH_LEAD : 0u);
	m.keys = keys_of(l, 0, l->given, keys);
	m.tail = tail_of(r, l);
	m.n_tokens = l->n_tokens = l->given * UNIVERSE_BT + m.tail.n / 4 + below(r, 3);
	m.op_id = op_id(r, keep);
	world_check(&r->w, world_match(s->c, &m, &rep) == PROTO_STATUS_OK);
	l->used = true;
	l->id = rep.lease;
	l->begun_ns = r->w.now_ns;
	check_match(r, l, &rep, m.tail);
	l->n_device = l->n_path;
	l->looked = l->given - l->n_path;
	random_flight_matched(r, l, &rep, m.flags);
	maybe_again(r, s->c, keep);
}

static void do_extend(struct run *r, struct session *s, struct lease *l)
{
	struct proto_extend_req m = { .lease = l->id };
	struct proto_match_rep rep;
	uint8_t keys[UNIVERSE_MAX * MODEL_KEY];
	uint32_t n, before = l->n_path, late;
	bool keep = chance(r, 30);

	if (l->given == l->p.n - l->p.skip)
		universe_grow(&r->w.rng, &l->p);
	n = below(r, 1 + l->p.n - l->p.skip - l->given);
	m.keys = keys_of(l, l->given, n, keys);
	l->given += n;
	m.tail = tail_of(r, l);
	if (n || m.tail.n) {
		uint64_t least = l->given * UNIVERSE_BT + m.tail.n / 4;

		m.n_tokens = least > l->n_tokens ? least : l->n_tokens;
		l->n_tokens = m.n_tokens;
	}
	m.op_id = op_id(r, keep);
	m.flags = chance(r, 40) ? PROTO_MATCH_LEAD : 0;
	world_check(&r->w, world_extend(s->c, &m, &rep) == PROTO_STATUS_OK);
	flight_stop(&l->f);
	if (l->n_res) {
		world_check(&r->w, rep.n_device == 0 && rep.tail_tokens == 0);
	} else {
		check_match(r, l, &rep, m.tail);
		late = l->n_path - before < l->looked ? l->n_path - before : l->looked;
		l->n_pending += late;
		l->n_device += l->n_path - before - late;
		l->looked = l->given - l->n_path;
	}
	random_flight_matched(r, l, &rep, m.flags);
	maybe_again(r, s->c, keep);
}

static void do_reserve(struct run *r, struct session *s, struct lease *l)
{
	struct proto_reserve_req m = { .lease = l->id, .n = 1 + below(r, 8) };
	struct proto_reserve_rep rep;
	uint32_t left = l->given - l->n_path - l->n_res, want, got;
	bool keep = chance(r, 30);
	int status;

	m.op_id = op_id(r, keep);
	status = world_reserve(s->c, &m, &rep);
	if (left == 0) {
		world_check(&r->w, status == PROTO_STATUS_WRONG_STATE);
		return;
	}
	want = m.n < left ? m.n : left;
	got = model_reserve(&r->m, want);
	world_check(&r->w, status == (got ? PROTO_STATUS_OK : PROTO_STATUS_BUSY));
	flight_stop(&l->f);
	if (!got) {
		l->f.rest = false;
		flight_changed(&l->f);
		return;
	}
	world_check(&r->w, rep.n == got && rep.first == l->n_path + l->n_res);
	for (uint32_t i = 0; i < got; i++) {
		uint32_t slot = slot_of(r, rep.runs, i);

		world_check(&r->w, !r->m.blocks[slot].used);
		l->res[l->n_res++] = slot;
	}
	random_flight_sync(l);
	flight_lead(&r->flight, &l->f, l->f.rest && got == want);
	maybe_again(r, s->c, keep);
}

/* One of ours became a member, or turned out to be one already. */
static void committed(struct run *r, struct lease *l, uint32_t slot)
{
	const uint8_t *key = l->p.keys[l->p.skip + l->n_path];
	uint32_t ours = l->res[0];
	bool first = l->island && l->n_path == 0;
	int there = first ? model_find(&r->m, l->p.root, key)
			  : model_child(&r->m, l->p.root, end_of(l), key);

	/* A digest that begins an island elsewhere is hung below us. */
	if (there == MODEL_NOBODY && universe_roots[l->p.root].ns == 2 && !first) {
		there = model_find(&r->m, l->p.root, key);
		if (there != MODEL_NOBODY) {
			world_check(&r->w, r->m.blocks[there].island);
			r->m.blocks[there].island = false;
			r->m.blocks[there].parent = end_of(l);
		}
	}
	memmove(l->res, l->res + 1, --l->n_res * sizeof(l->res[0]));
	if (there != MODEL_NOBODY) {
		world_check(&r->w, slot == (uint32_t)there);
		l->own[l->n_own++] = ours;
		r->m.tick++;
	} else {
		world_check(&r->w, slot == ours);
		model_commit(&r->m, slot, l->p.root, end_of(l), first, key);
		there = (int)slot;
	}
	l->path[l->n_path++] = there;
	if (l->looked)
		l->looked--;
}

static void do_commit(struct run *r, struct session *s, struct lease *l)
{
	struct proto_commit_req m = { .lease = l->id };
	struct proto_commit_rep rep;
	bool keep = chance(r, 30);

	if (chance(r, 3)) {
		m.n = l->n_res + 1;
		world_check(&r->w, world_commit(s->c, &m, &rep) == PROTO_STATUS_WRONG_STATE);
		return;
	}
	if (l->n_res == 0 && l->tail_offer == 0)
		return;
	m.n = l->n_res ? 1 + below(r, l->n_res) : 0;
	m.tail_tokens = l->tail_offer ? below(r, l->tail_offer + 1) : 0;
	if (m.n == 0 && m.tail_tokens == 0)
		m.tail_tokens = 1;
	for (uint32_t i = 0; i < m.n; i++) {
		uint8_t bytes[UNIVERSE_BYTES];

		universe_content(&l->p, l->p.skip + l->n_path + i, bytes);
		world_write(&r->w, 0, l->res[i], bytes, UNIVERSE_BYTES);
	}
	m.op_id = op_id(r, keep);
	world_check(&r->w, world_commit(s->c, &m, &rep) == PROTO_STATUS_OK);
	world_check(&r->w, rep.n_stored + rep.n_duplicate == m.n);
	if (m.tail_tokens > l->tail_last) {
		l->tail_used += m.tail_tokens - l->tail_last;
		l->tail_last = m.tail_tokens;
	}
	if (m.n)
		l->tail_last = 0;
	for (uint32_t i = 0; i < m.n; i++)
		committed(r, l, slot_of(r, rep.runs, i));
	hold_path(r, l);
	random_flight_sync(l);
	flight_changed(&l->f);
	l->tail_offer = 0;
	model_drop(&r->m, l->donor_hold);
	l->donor_hold = MODEL_NOBODY;
	maybe_again(r, s->c, keep);
}

static uint64_t min64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static void do_release(struct run *r, struct session *s, struct lease *l)
{
	struct proto_release_req m = { .lease = l->id };
	struct proto_release_rep rep;
	uint64_t device = min64(UNIVERSE_BT * l->n_device, l->n_tokens);
	uint64_t pending = min64(UNIVERSE_BT * l->n_pending, l->n_tokens - device);
	uint64_t tail = min64(l->tail_used, l->n_tokens - device - pending);
	bool keep = chance(r, 30);

	/* What was held is still what it was. */
	for (uint32_t i = 0; i < l->n_path; i++)
		check_block(r, &l->p, l->p.skip + i, (uint32_t)l->path[i], UNIVERSE_BT);
	m.op_id = op_id(r, keep);
	world_check(&r->w, world_release(s->c, &m, &rep) == PROTO_STATUS_OK);
	world_check(&r->w, rep.queried_tokens == l->n_tokens);
	world_check(&r->w, rep.hit_device_tokens == device + tail);
	world_check(&r->w, rep.hit_pending_tokens == pending);
	world_check(&r->w, rep.miss_tokens == l->n_tokens - device - pending - tail);
	random_lease_over(r, s, l, RANDOM_FREE);
	maybe_again(r, s->c, keep);
	if (chance(r, 10)) {
		m.op_id = op_id(r, false);
		world_check(&r->w, world_release(s->c, &m, &rep) == PROTO_STATUS_UNKNOWN_LEASE);
	}
}

static void do_probe(struct run *r, uint32_t si)
{
	struct session *s = &r->sessions[si];
	static struct lease l;
	struct proto_probe_req m = { .has = PROTO_HAS_ALL, .flags = PROTO_PROBE_BITMAP };
	struct proto_probe_rep rep;
	uint8_t keys[UNIVERSE_MAX * MODEL_KEY];
	int blocks[UNIVERSE_MAX];
	uint32_t n;

	memset(&l, 0, sizeof(l));
	universe_prompt(&r->w.rng, &l.p, is_blue(si) ? 3 : below(r, 3));
	l.given = l.p.n;
	m.ns = s->ns[universe_roots[l.p.root].ns];
	m.tenant = universe_roots[l.p.root].tenant;
	m.salt = world_text(universe_roots[l.p.root].salt);
	m.keys = keys_of(&l, 0, l.given, keys);
	m.n_tokens = l.given * UNIVERSE_BT;
	world_check(&r->w, world_probe(s->c, &m, &rep) == PROTO_STATUS_OK);
	n = random_expect(r, &l, blocks);
	world_check(&r->w, rep.n_device == n && rep.bitmap.n == (l.given + 7) / 8);
	for (uint32_t i = 0; i < l.given; i++) {
		uint32_t bit = ((const uint8_t *)rep.bitmap.p)[i / 8] >> (i % 8) & 1;

		world_check(&r->w, bit == (i < n));
	}
}

/* Anything: the engine answers once, and nothing moves. */
static void do_nonsense(struct run *r, struct session *s)
{
	uint8_t body[128];
	uint32_t len = below(r, sizeof(body));
	static const uint16_t ops[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 32, 77 };
	struct proto_empty none = {}, rep;
	struct proto_release_req release = { .lease = test_rng(&r->w.rng) };
	struct proto_release_rep released;

	switch (below(r, 3)) {
	case 0:
		test_rng_fill(&r->w.rng, body, len);
		len += len == 0 || len == 32; /* an empty PING and any QUIESCED are right */
		world_check(&r->w, world_raw(s->c, ops[below(r, radix_array_size(ops))], body,
					     len) != PROTO_STATUS_OK);
		break;
	case 1:
		world_check(&r->w, world_ping(s->c, &none, &rep) == PROTO_STATUS_OK);
		break;
	default:
		world_check(&r->w,
			    world_release(s->c, &release, &released) == PROTO_STATUS_UNKNOWN_LEASE);
		break;
	}
}

static void do_admin(struct run *r)
{
	if (chance(r, 70)) {
		uint32_t n = below(r, 6);

		world_check(&r->w, world_evict(&r->w, 0, n) == model_evict(&r->m, n));
		return;
	}
	for (uint32_t i = 0; i < N_SESSIONS; i++) {
		uint32_t want;

		if (!r->sessions[i].c || is_blue(i))
			continue;
		want = model_flush(&r->m, 0) + model_flush(&r->m, 1);
		world_check(&r->w, world_flush(&r->w, r->sessions[i].ns[0]) == want);
		return;
	}
}

/* ---- the run --------------------------------------------------------------------------------- */

static void one_op(struct run *r)
{
	uint32_t si = below(r, N_SESSIONS), dice = below(r, 1000);
	struct session *s = &r->sessions[si];
	struct lease *l;

	if (below(r, 1000) < r->config.kills_permille) {
		kill_process(r, si / PER_PROC);
		return;
	}
	if (!s->c) {
		start(r, si);
		return;
	}
	if (s->orphan)
		return;
	l = &s->leases[below(r, N_LEASES)];
	if (dice < 10) {
		random_pass(r, 1 + below(r, 1000000));
		expire_kept(r, 0);
	} else if (dice < 20 && r->config.kills_permille) {
		end_socket(r, s);
	} else if (dice < 30) {
		quiesce(r, si);
	} else if (dice < 40) {
		do_admin(r);
	} else if (dice < 80) {
		do_probe(r, si);
	} else if (dice < 120) {
		do_nonsense(r, s);
	} else if (l->revoked) {
		random_hear_of(r, s, l);
	} else if (!l->used) {
		do_match(r, si);
	} else if (dice < 200) {
		random_wait(r, s, l);
	} else if (dice < 340) {
		do_extend(r, s, l);
	} else if (dice < 550) {
		do_reserve(r, s, l);
	} else if (dice < 850) {
		do_commit(r, s, l);
	} else {
		do_release(r, s, l);
	}
}

/* The index holds exactly the model's blocks. */
static void check_members(struct run *r)
{
	const struct radix_index *ix = world_index(&r->w, 0);

	for (uint32_t i = 0; ix && i < r->config.n_slots; i++) {
		bool ready = radix_slot_state(ix, i) == RADIX_SLOT_READY;

		if (ready != r->m.blocks[i].used)
			world_fail(&r->w, "slot %u is %s, the model %s a block there", i,
				   radix_slot_state_to_string(radix_slot_state(ix, i)),
				   ready ? "misses" : "has");
	}
}

/* Everybody leaves: what is left is free or stored, and nothing is held. */
static void check_end(struct run *r)
{
	struct radix_stats st;

	for (uint32_t p = 0; p < N_PROCS; p++)
		kill_process(r, p);
	random_pass(r, r->config.grace_ns + 1);
	expire_kept(r, 0);
	world_stats(&r->w, 0, &st);
	world_check(&r->w, st.n_pins == 0);
	world_check(&r->w,
		    st.slots[RADIX_SLOT_FREE] + st.slots[RADIX_SLOT_READY] == r->config.n_slots);
	world_check(&r->w, st.slots[RADIX_SLOT_READY] == model_n_blocks(&r->m));
	world_check(&r->w, r->m.n_taken == 0);
	r->result.n_removed = st.removed_total;
}

void random_run(const struct random_config *config, struct random_result *ret)
{
	static struct run r;
	struct world_config wc;

	memset(&r, 0, sizeof(r));
	r.config = *config;
	world_config_init(&wc);
	wc.seed = config->seed;
	wc.engine.pool_blocks = config->n_slots;
	wc.engine.limits.op_ids = 64; /* so that old ones go */
	wc.engine.limits.pending_ns = 3000000;
	wc.engine.grace_ns = config->grace_ns;
	wc.engine.limits.lease_max_age_ns = config->max_age_ns;
	wc.engine.watches_processes = config->watches_processes;
	ck_assert_int_eq(world_init(&r.w, &wc), 0);
	r.w.heap.quick = true; /* junk in each allocation would take most of the time */
	model_init(&r.m, config->n_slots);
	for (uint32_t i = 0; i < UNIVERSE_ROOTS; i++)
		r.m.key_len[i] = universe_key_len(i);
	random_flight_init(&r);
	while (r.w.n_steps < config->n_steps) {
		one_op(&r);
		flight_settle(&r.flight);
		random_flight_check(&r);
		check_members(&r);
	}
	check_end(&r);
	r.result.counters = world_counters(&r.w);
	r.result.n_steps = r.w.n_steps;
	*ret = r.result;
	world_deinit(&r.w);
}
