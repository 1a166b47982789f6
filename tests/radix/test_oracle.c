/*
 * test_oracle.c - random sessions against the index and the naive oracle, side by side.
 *
 * Several leases match, pin, reserve, commit, lose races, discard, touch, drop, graft, evict and
 * flush on two roots with the same prompts.  After each step the two must agree on everything that
 * can be asked: match lengths and slots of every path, the set of members and so the victims, slot
 * states, counts; and radix_verify() must be 0.  Now and then a restart is made of a copy of the
 * store, and must find the same.
 *
 * Seeds are fixed; one more run per shape takes a fresh seed, which is printed when a test fails.
 * PREFIXD_SEED=N repeats it.
 */
#include "radix/index.h"
#include "tests/lib/heap.h"
#include "tests/lib/rng.h"
#include "tests/radix/corpus.h"
#include "tests/radix/oracle.h"
#include "tests/radix/reborn.h"

#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum {
	N_SLOTS = 72,
	N_LEASES = 5,
	N_ROOTS = 2,
	OWNERS = 3,
	RESTART = 61, /* steps between looks at what a restart would find */
};

static uint64_t fresh_seed;

struct lease {
	bool open;
	uint32_t owner;
	uint32_t root; /* number, not id */
	uint32_t prompt;
	uint32_t cursor; /* keys before it are matched or committed */
	bool stuck;      /* a digest hangs elsewhere: nothing more can be committed */
	struct radix_pin pin;
	int at; /* the oracle's pin */
	uint32_t reserved[N_SLOTS], n_reserved;
	uint32_t own[N_SLOTS], n_own;
};

struct world {
	struct test_heap heap;
	struct kept kept; /* what a restart would find */
	struct radix_index *ix;
	struct oracle o;
	struct corpus c;
	uint32_t root[N_ROOTS];
	struct lease leases[N_LEASES];
	bool digests;
	enum corpus_shape shape;
	uint64_t seed, rng, tick;
	unsigned step;
	const char *op;
	uint8_t *path; /* (N_SLOTS + 1) keys */
};

/* Check writes a file at each of its own assertions, passed ones too: not for millions of them. */
#define CHECK(w, cond)                             \
	do {                                       \
		if (!(cond))                       \
			wrong(w, __LINE__, #cond); \
	} while (0)

static void wrong(const struct world *w, int line, const char *what)
{
	ck_abort_msg("seed %" PRIu64
		     " shape %s digests %d key_len %u step %u after %s, line %d: %s",
		     w->seed, corpus_shape_to_string(w->shape), w->digests, w->c.key_len, w->step,
		     w->op, line, what);
}

static uint32_t below(struct world *w, uint32_t n)
{
	return test_rng_below(&w->rng, n);
}

static void world_init(struct world *w, enum corpus_shape shape, bool digests, uint32_t key_len,
		       uint64_t seed)
{
	struct radix_index_config config;

	*w = (struct world){ .shape = shape, .digests = digests, .seed = seed, .rng = seed };
	test_heap_init(&w->heap);
	corpus_init(&w->c, shape, digests, key_len, test_rng(&w->rng));
	oracle_init(&w->o, N_SLOTS, key_len);
	config = (struct radix_index_config){
		.alloc = &w->heap.alloc,
		.n_slots = N_SLOTS,
		.n_entries = N_SLOTS,
		.secret = { test_rng(&w->rng), test_rng(&w->rng) },
	};
	kept_init(&w->kept, &config);
	ck_assert_int_eq(radix_index_new(&w->ix, &w->kept.config), 0);
	for (uint32_t i = 0; i < N_ROOTS; i++) {
		struct radix_root_config rc = {
			.mode = digests ? RADIX_KEYS_DIGEST : RADIX_KEYS_TOKENS,
			.key_len = key_len,
			.block_tokens = digests ? 16 : key_len / 4,
			.token_bytes = digests ? 0 : key_len / 4 * 4,
			.ns = i,
		};

		ck_assert_int_eq(radix_root_new(w->ix, &rc, &w->root[i]), 0);
	}
	w->path = malloc((size_t)(N_SLOTS + 1) * key_len);
	ck_assert_ptr_nonnull(w->path);
}

static void world_deinit(struct world *w)
{
	w->ix = radix_index_free(w->ix);
	w->op = "free";
	CHECK(w, w->heap.live_blocks == 0);
	CHECK(w, w->heap.live_bytes == 0);
	kept_deinit(&w->kept);
	oracle_deinit(&w->o);
	corpus_deinit(&w->c);
	free(w->path);
}

static bool has_children(const struct world *w, uint32_t root, int at)
{
	for (uint32_t i = 0; i < N_SLOTS; i++) {
		const struct oracle_slot *s = &w->o.slots[i];

		if (s->state == RADIX_SLOT_READY && s->root == root && s->parent == at)
			return true;
	}
	return false;
}

/* Runs must name the oracle's slots from `end` upwards, n of them. */
static void check_runs(struct world *w, const struct radix_runs *runs, int end, uint32_t n)
{
	uint32_t total = 0;

	for (uint32_t i = runs->n; i-- > 0;) {
		for (uint32_t j = runs->v[i].len; j-- > 0;) {
			CHECK(w, total < n && end >= 0);
			CHECK(w, runs->v[i].start + j == (uint32_t)end);
			end = w->o.slots[end].parent;
			total++;
		}
	}
	CHECK(w, total == n);
	CHECK(w, !runs->full);
}

static void match_both(struct world *w, uint32_t root, const struct radix_place *from, int o_from,
		       const uint8_t *keys, uint32_t n, struct radix_match *ret_m, int *ret_at)
{
	struct radix_run v[N_SLOTS];
	struct radix_runs runs = { .v = v, .cap = N_SLOTS };
	struct radix_match lengths;
	uint32_t expect;

	*ret_at = oracle_match(&w->o, root, o_from, keys, n, &expect);
	radix_match(w->ix, from, keys, n, &runs, ret_m);
	CHECK(w, ret_m->n_blocks == expect);
	CHECK(w, ret_m->n_device == expect);
	CHECK(w, ret_m->end.root == w->root[root]);
	CHECK(w, ret_m->diverged == (expect < n && has_children(w, root, *ret_at)));
	check_runs(w, &runs, *ret_at, expect);
	radix_match(w->ix, from, keys, n, NULL, &lengths);
	CHECK(w, lengths.n_blocks == expect && lengths.n_device == expect);
	CHECK(w, lengths.end.node == ret_m->end.node && lengths.end.idx == ret_m->end.idx);
}

/* Where the path of a member begins, for a match; *ret_o_from is the oracle's word for it. */
static struct radix_place start_of(struct world *w, uint32_t root, const uint8_t *first_key,
				   int start)
{
	struct radix_place place = radix_place_root(w->root[root]);
	bool rooted = true;

	if (start == ORACLE_ISLAND) {
		CHECK(w, radix_find_digest(w->ix, w->root[root], first_key, &place, &rooted) == 0);
		CHECK(w, !rooted);
	}
	return place;
}

static void check_leaf(struct world *w, int slot)
{
	uint32_t key_len = w->c.key_len, root = w->o.slots[slot].root, depth;
	struct radix_place from;
	struct radix_match m;
	int start, at = slot;

	depth = oracle_depth(&w->o, slot, &start);
	for (uint32_t i = depth; i-- > 0; at = w->o.slots[at].parent)
		memcpy(w->path + (size_t)i * key_len, w->o.slots[at].key, key_len);
	memset(w->path + (size_t)depth * key_len, 0x77, key_len);
	from = start_of(w, root, w->path, start);
	match_both(w, root, &from, start, w->path, depth + 1, &m, &at);
	CHECK(w, m.n_blocks == depth);
	CHECK(w, at == slot);
}

static void check_world(struct world *w)
{
	struct radix_stats s;
	uint64_t removed = 0, n_pins = 0;
	char why[256] = "";

	if (radix_verify(w->ix, why, sizeof(why)) != 0)
		wrong(w, __LINE__, why);
	radix_index_stats(w->ix, &s);
	for (enum radix_slot_state st = 0; st < RADIX_SLOT_N_STATES; st++)
		CHECK(w, s.slots[st] == oracle_count(&w->o, st));
	for (uint32_t i = 0; i < RADIX_REMOVE_N_REASONS; i++)
		removed += s.removed[i];
	for (uint32_t i = 0; i < N_LEASES; i++)
		n_pins += w->leases[i].open;
	CHECK(w, s.n_pins == n_pins);
	CHECK(w, removed == s.removed_total);
	CHECK(w, s.n_slots == N_SLOTS);
	CHECK(w, s.n_blocks == s.slots[RADIX_SLOT_READY]);
	CHECK(w, s.stored_total == s.n_blocks + s.removed_total);
	for (uint32_t i = 0; i < N_SLOTS; i++) {
		CHECK(w, radix_slot_state(w->ix, i) == w->o.slots[i].state);
		if (w->o.slots[i].state == RADIX_SLOT_READY && oracle_is_leaf(&w->o, (int)i))
			check_leaf(w, (int)i);
	}
	for (uint32_t i = 0; i < N_LEASES; i++) {
		const struct lease *l = &w->leases[i];
		int start;

		if (l->open && !w->digests)
			CHECK(w, l->pin.at.depth == oracle_depth(&w->o, l->at, &start));
	}
}

static void repin(struct world *w, struct lease *l, int at)
{
	oracle_unpin(&w->o, l->at);
	oracle_pin(&w->o, at);
	l->at = at;
}

static void op_open(struct world *w, struct lease *l, uint32_t number)
{
	struct radix_place from;
	struct radix_match m;
	uint32_t first = 0;
	bool rooted;
	int found;

	*l = (struct lease){ .open = true,
			     .owner = 1 + number % OWNERS,
			     .root = below(w, N_ROOTS),
			     .prompt = below(w, w->c.n_prompts) };
	from = radix_place_root(w->root[l->root]);
	l->at = ORACLE_ROOT;
	if (w->digests && below(w, 3) == 0) {
		const uint8_t *key;

		first = below(w, w->c.prompts[l->prompt].n);
		key = corpus_key(&w->c, l->prompt, first);
		found = oracle_find(&w->o, l->root, key);
		if (found == ORACLE_NONE) {
			CHECK(w, radix_find_digest(w->ix, w->root[l->root], key, &from, &rooted) ==
					 RADIX_E_NOTFOUND);
			from = radix_place_island(w->root[l->root]);
			l->at = ORACLE_ISLAND;
			l->cursor = first;
			radix_pin_take(w->ix, &l->pin, &from);
			oracle_pin(&w->o, l->at);
			return;
		}
		CHECK(w, radix_find_digest(w->ix, w->root[l->root], key, &from, &rooted) == 0);
		oracle_depth(&w->o, found, &l->at);
		CHECK(w, rooted == (l->at == ORACLE_ROOT));
		l->at = w->o.slots[found].parent;
	}
	match_both(w, l->root, &from, l->at, corpus_key(&w->c, l->prompt, first),
		   w->c.prompts[l->prompt].n - first, &m, &l->at);
	l->cursor = first + m.n_blocks;
	radix_pin_take(w->ix, &l->pin, &m.end);
	oracle_pin(&w->o, l->at);
}

static void op_extend(struct world *w, struct lease *l)
{
	struct radix_match m;
	int at;

	if (l->at == ORACLE_ISLAND)
		return;
	match_both(w, l->root, &l->pin.at, l->at, corpus_key(&w->c, l->prompt, l->cursor),
		   w->c.prompts[l->prompt].n - l->cursor, &m, &at);
	l->cursor += m.n_blocks;
	radix_pin_move(w->ix, &l->pin, &m.end);
	repin(w, l, at);
}

static void op_reserve(struct world *w, struct lease *l)
{
	struct radix_run v[N_SLOTS];
	struct radix_runs runs = { .v = v, .cap = N_SLOTS };
	uint32_t want = 1 + below(w, 12), granted, n = 0, expect;
	uint32_t n_free = oracle_count(&w->o, RADIX_SLOT_FREE);
	uint64_t g = radix_reuse_counter(w->ix);

	expect = want <= n_free ? want : n_free + oracle_evict(&w->o, want - n_free);
	radix_reserve(w->ix, l->owner, want, &runs, &granted);
	CHECK(w, granted == expect);
	for (uint32_t i = 0; i < runs.n; i++) {
		for (uint32_t j = 0; j < runs.v[i].len; j++) {
			uint32_t slot = runs.v[i].start + j;
			uint64_t gen;

			CHECK(w, slot < N_SLOTS);
			/* FREE now means free before, or a victim of this call. */
			CHECK(w, w->o.slots[slot].state == RADIX_SLOT_FREE);
			gen = radix_slot_generation(w->ix, slot);
			CHECK(w, gen > w->o.slots[slot].gen_at);
			CHECK(w, gen > g && gen <= radix_reuse_counter(w->ix));
			w->o.slots[slot].gen_at = gen;
			w->o.slots[slot].state = RADIX_SLOT_RESERVED;
			w->o.slots[slot].owner = l->owner;
			l->reserved[l->n_reserved++] = slot;
			n++;
		}
	}
	CHECK(w, n == granted);
}

/* Now and then one of the next allocations fails. */
static bool short_of_memory(struct world *w)
{
	if (below(w, 8))
		return false;
	test_heap_fail_at(&w->heap, 1 + below(w, 4));
	return true;
}

/* What a commit of that key at the lease's place must answer, and the slot it must name. */
static int expected_commit(struct world *w, struct lease *l, const uint8_t *key,
			   enum radix_commit_result *ret_result, int *ret_canonical)
{
	int found = w->digests ? oracle_find(&w->o, l->root, key)
			       : oracle_child(&w->o, l->root, l->at, key);

	*ret_result = found == ORACLE_NONE ? RADIX_COMMIT_STORED : RADIX_COMMIT_DUPLICATE;
	*ret_canonical = found;
	if (found == ORACLE_NONE || l->at == ORACLE_ISLAND || w->o.slots[found].parent == l->at)
		return 0;
	/* The writer says what an island's parent is: it hangs there now, unless in a circle. */
	if (w->o.slots[found].parent != ORACLE_ISLAND)
		return RADIX_E_CONFLICT;
	return oracle_is_circle(&w->o, found, l->at) ? RADIX_E_CIRCLE : 0;
}

static void op_commit(struct world *w, struct lease *l)
{
	enum radix_commit_result result, expect_result;
	uint32_t slot, ret_slot = RADIX_NONE;
	struct radix_block block;
	int r, expect, canonical;

	if (!l->n_reserved || l->stuck || l->cursor == w->c.prompts[l->prompt].n)
		return;
	slot = l->reserved[0];
	block = (struct radix_block){ .key = corpus_key(&w->c, l->prompt, l->cursor),
				      .slot = slot,
				      .n_tokens = w->digests ? 16 : w->c.key_len / 4 };
	expect = expected_commit(w, l, block.key, &expect_result, &canonical);
	r = radix_commit(w->ix, &l->pin, l->owner + 1, &block, w->tick, &ret_slot, &result);
	CHECK(w, r == RADIX_E_STATE); /* somebody else's slot */
	if (short_of_memory(w)) {
		r = radix_commit(w->ix, &l->pin, l->owner, &block, w->tick, &ret_slot, &result);
		test_heap_fail_at(&w->heap, 0);
		if (r == -ENOMEM)
			return; /* nothing happened: the comparison after this step sees to it */
	} else {
		r = radix_commit(w->ix, &l->pin, l->owner, &block, w->tick, &ret_slot, &result);
	}
	CHECK(w, r == expect);
	if (r == RADIX_E_CONFLICT || r == RADIX_E_CIRCLE) {
		l->stuck = true;
		return;
	}
	CHECK(w, result == expect_result);
	memmove(l->reserved, l->reserved + 1, --l->n_reserved * sizeof(*l->reserved));
	if (result == RADIX_COMMIT_DUPLICATE) {
		CHECK(w, ret_slot == (uint32_t)canonical);
		if (w->o.slots[canonical].parent == ORACLE_ISLAND)
			w->o.slots[canonical].parent = l->at;
		w->o.slots[slot].state = RADIX_SLOT_OWN;
		l->own[l->n_own++] = slot;
		repin(w, l, canonical);
	} else {
		CHECK(w, ret_slot == slot);
		oracle_commit(&w->o, slot, l->root, l->at, block.key, w->tick);
		repin(w, l, (int)slot);
	}
	l->cursor++;
}

static void discard(struct world *w, struct lease *l, uint32_t slot, bool quarantine)
{
	CHECK(w, radix_slot_discard(w->ix, l->owner + 1, slot, quarantine) == RADIX_E_STATE);
	CHECK(w, radix_slot_discard(w->ix, l->owner, slot, quarantine) == 0);
	CHECK(w, radix_slot_discard(w->ix, l->owner, slot, quarantine) == RADIX_E_STATE);
	w->o.slots[slot].state = quarantine ? RADIX_SLOT_QUARANTINED : RADIX_SLOT_FREE;
}

static void op_discard(struct world *w, struct lease *l)
{
	uint32_t *v = below(w, 2) ? l->reserved : l->own;
	uint32_t *n = v == l->own ? &l->n_own : &l->n_reserved;
	uint32_t i;

	if (!*n)
		return;
	i = below(w, *n);
	discard(w, l, v[i], below(w, 3) == 0);
	memmove(v + i, v + i + 1, (--*n - i) * sizeof(*v));
}

static void op_close(struct world *w, struct lease *l)
{
	bool quarantine = below(w, 6) == 0;

	if (below(w, 8)) {
		radix_touch(w->ix, &l->pin.at, w->tick);
		oracle_touch(&w->o, l->at, w->tick);
	}
	radix_pin_drop(w->ix, &l->pin);
	radix_pin_drop(w->ix, &l->pin);
	oracle_unpin(&w->o, l->at);
	while (l->n_reserved)
		discard(w, l, l->reserved[--l->n_reserved], quarantine);
	while (l->n_own)
		discard(w, l, l->own[--l->n_own], quarantine);
	l->open = false;
}

static void op_quarantine_end(struct world *w)
{
	for (uint32_t i = 0; i < N_SLOTS; i++) {
		if (w->o.slots[i].state != RADIX_SLOT_QUARANTINED) {
			CHECK(w, radix_quarantine_end(w->ix, i) == RADIX_E_STATE);
			continue;
		}
		CHECK(w, radix_quarantine_end(w->ix, i) == 0);
		w->o.slots[i].state = RADIX_SLOT_FREE;
	}
}

/* A use of part of a path: the blocks behind it keep their older time. */
static void op_touch(struct world *w)
{
	uint32_t root = below(w, N_ROOTS), prompt = below(w, w->c.n_prompts);
	struct radix_place from = radix_place_root(w->root[root]);
	struct radix_match m;
	int at;

	match_both(w, root, &from, ORACLE_ROOT, corpus_key(&w->c, prompt, 0),
		   1 + below(w, w->c.prompts[prompt].n), &m, &at);
	radix_touch(w->ix, &m.end, w->tick);
	oracle_touch(&w->o, at, w->tick);
}

static void op_evict(struct world *w)
{
	uint32_t n = 1 + below(w, 10), expect = oracle_evict(&w->o, n);

	CHECK(w, radix_evict(w->ix, n, RADIX_REMOVE_EVICT) == expect);
}

static void op_flush(struct world *w)
{
	uint32_t root = below(w, N_ROOTS);
	uint64_t expect = oracle_flush(&w->o, root);

	CHECK(w, radix_flush_root(w->ix, w->root[root], RADIX_REMOVE_FLUSH) == expect);
	CHECK(w, radix_root_n_blocks(w->ix, w->root[root]) ==
			 oracle_count(&w->o, RADIX_SLOT_READY) -
				 radix_root_n_blocks(w->ix, w->root[!root]));
}

static void op_graft(struct world *w)
{
	uint32_t root = below(w, N_ROOTS), prompt = below(w, w->c.n_prompts);
	uint32_t n = w->c.prompts[prompt].n, i, other = below(w, w->c.n_prompts);
	const uint8_t *parent_key, *key;
	int r, expect = 0, parent, slot;

	if (n < 2)
		return;
	i = 1 + below(w, n - 1);
	key = corpus_key(&w->c, prompt, i);
	parent_key = corpus_key(&w->c, prompt, i - 1);
	if (below(w, 10) == 0) /* an engine that is wrong about its own digests */
		parent_key = corpus_key(&w->c, other, below(w, w->c.prompts[other].n));
	slot = oracle_find(&w->o, root, key);
	parent = oracle_find(&w->o, root, parent_key);
	if (slot == ORACLE_NONE || parent == ORACLE_NONE)
		expect = RADIX_E_NOTFOUND;
	else if (w->o.slots[slot].parent == parent)
		expect = 0;
	else if (w->o.slots[slot].parent != ORACLE_ISLAND)
		expect = RADIX_E_CONFLICT;
	else if (oracle_is_circle(&w->o, slot, parent))
		expect = RADIX_E_CIRCLE;
	(void)short_of_memory(w);
	r = radix_graft(w->ix, w->root[root], parent_key, key);
	test_heap_fail_at(&w->heap, 0);
	if (r == -ENOMEM)
		return;
	CHECK(w, r == expect);
	if (r == 0)
		w->o.slots[slot].parent = parent;
}

static void step(struct world *w)
{
	uint32_t number = below(w, N_LEASES), dice = below(w, 100);
	struct lease *l = &w->leases[number];

#define OP(name, call)        \
	do {                  \
		w->op = name; \
		call;         \
	} while (0)
	w->tick++;
	if (dice < 4)
		OP("evict", op_evict(w));
	else if (dice < 5)
		OP("flush", op_flush(w));
	else if (dice < 10)
		OP("touch", op_touch(w));
	else if (dice < 12)
		OP("quarantine_end", op_quarantine_end(w));
	else if (dice < 18 && w->digests)
		OP("graft", op_graft(w));
	else if (!l->open)
		OP("open", op_open(w, l, number));
	else if (dice < 30)
		OP("extend", op_extend(w, l));
	else if (dice < 50)
		OP("reserve", op_reserve(w, l));
	else if (dice < 86)
		for (uint32_t n = 1 + below(w, 6); n > 0; n--)
			OP("commit", op_commit(w, l));
	else if (dice < 92)
		OP("discard", op_discard(w, l));
	else
		OP("close", op_close(w, l));
#undef OP
}

static void session(enum corpus_shape shape, bool digests, uint32_t key_len, uint64_t seed,
		    unsigned steps)
{
	struct world *w = malloc(sizeof(*w));

	ck_assert_ptr_nonnull(w);
	world_init(w, shape, digests, key_len, seed);
	for (w->step = 0; w->step < steps; w->step++) {
		step(w);
		check_world(w);
		if (w->step % RESTART == 0) {
			w->op = "restart";
			reborn_check(w->ix, &w->kept, false);
		}
	}
	w->op = "close";
	for (uint32_t i = 0; i < N_LEASES; i++)
		if (w->leases[i].open)
			op_close(w, &w->leases[i]);
	check_world(w);
	CHECK(w, radix_evict(w->ix, N_SLOTS, RADIX_REMOVE_EVICT) ==
			 oracle_count(&w->o, RADIX_SLOT_READY));
	oracle_evict(&w->o, N_SLOTS);
	check_world(w);
	world_deinit(w);
	free(w);
}

static const uint32_t key_lens[][2] = {
	/* tokens, digests */
	{ 8, 16 }, { 16, 20 }, { 64, 32 }, { 96, 48 }, { 2048, 64 },
};

/* _i is (shape, mode, key length). */
START_TEST(fixed_seeds)
{
	uint32_t rest = (uint32_t)_i / radix_array_size(key_lens);
	bool digests = rest % 2;
	uint32_t key_len = key_lens[(uint32_t)_i % radix_array_size(key_lens)][digests];

	session(rest / 2, digests, key_len, 1000003u * (uint64_t)(_i + 1),
		key_len == 2048 ? 2000 : 5000);
}
END_TEST

START_TEST(fresh_seed_run)
{
	session((uint32_t)_i / 2, _i % 2, _i % 2 ? 32 : 64, fresh_seed + (uint64_t)_i, 5000);
}
END_TEST

int main(void)
{
	const char *given = getenv("PREFIXD_SEED");
	Suite *s = suite_create("oracle");
	TCase *tc = tcase_create("oracle");
	SRunner *sr;
	int failed;

	fresh_seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL) * 1000003u;
	tcase_set_timeout(tc, 60);
	tcase_add_loop_test(tc, fixed_seeds, 0,
			    CORPUS_N_SHAPES * 2 * (int)radix_array_size(key_lens));
	tcase_add_loop_test(tc, fresh_seed_run, 0, CORPUS_N_SHAPES * 2);
	suite_add_tcase(s, tc);
	sr = srunner_create(s);
	srunner_run_all(sr, CK_ENV);
	failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	if (failed)
		fprintf(stderr, "test_oracle: fresh seed was %" PRIu64 "\n", fresh_seed);
	return failed ? 1 : 0;
}
