/*
 * test_recover_crash.c - a session is killed at every point at which it can be.
 *
 * The same session runs once to its end, and after each call that changes something it is noted
 * what a restart would find.  Then it runs again and again, and the process "dies" at the first,
 * second, ... passing of a crash point: what it had stored is given to a restart.  That must find
 * every block that it would have found before the interrupted call and after it, and nothing else
 * but what it would have found before or after; each thing it knows of a block must be as it was
 * before, or as it is after.  The restart is killed at each of its own points too, and begun
 * anew.
 */
#include "radix/recover.h"
#include "tests/lib/rng.h"
#include "tests/lib/run.h"
#include "tests/radix/lives.h"

#include <check.h>
#include <setjmp.h>
#include <stdlib.h>

enum {
	MAX_ENTRIES = 48,
	MAX_SLOTS = 32,
	MAX_CALLS = 4000,
	ARENA = 64 << 20,
};

static const struct lives_shape shapes[] = {
	{ RADIX_KEYS_TOKENS, 14, 0, 0, false, 0 },
	{ RADIX_KEYS_DIGEST, 14, 0, 0, false, 0 },
	{ RADIX_KEYS_TOKENS, 9, 8, 6, true, 8 },
	{ RADIX_KEYS_DIGEST, 9, 8, 6, true, 8 },
	{ RADIX_KEYS_TOKENS, 9, 8, 0, false, 0 },
	{ RADIX_KEYS_TOKENS, 9, 8, 6, true, 8, true },
	{ RADIX_KEYS_TOKENS, 9, 0, 12, false, 0, false, 2 },
	{ RADIX_KEYS_DIGEST, 7, 6, 14, true, 8, false, 2 },
	{ RADIX_KEYS_TOKENS, 7, 6, 14, true, 8, true, 2 },
};

/* What a restart finds. */
struct known {
	struct {
		bool member;
		uint8_t key, kind, sum;
		bool redis, hit;
		bool exact; /* a device copy that is */
		uint32_t root, parent, slot, host;
		uint64_t generation, use;
	} v[MAX_ENTRIES];
	struct {
		uint8_t state;
		uint32_t owner;
		uint64_t generation;
	} slots[MAX_SLOTS];
	uint64_t tick;
};

/* ---- memory of a process that dies ----------------------------------------------------------- */

static struct {
	char *p;
	size_t used;
} arena;

static void *arena_take(void *ctx, size_t size)
{
	char *p = arena.p + arena.used;

	(void)ctx;
	arena.used += (size + 63) / 64 * 64;
	if (arena.used > ARENA)
		ck_abort_msg("the arena is too small");
	memset(p, 0xa5, size);
	return p;
}

static void arena_give(void *ctx, void *p, size_t size)
{
	(void)ctx;
	memset(p, 0xdb, size);
}

static const struct radix_alloc alloc = { arena_take, arena_give, NULL };

/* ---- dying ----------------------------------------------------------------------------------- */

static jmp_buf death;
static uint64_t countdown; /* passings until then; 0: never */
static const char *died_at;

static void hook(const char *name)
{
	if (!countdown || --countdown)
		return;
	died_at = name;
	longjmp(death, 1);
}

/* ---- restarting ------------------------------------------------------------------------------ */

static bool everybody(void *ctx, uint32_t owner)
{
	(void)ctx;
	(void)owner;
	return true;
}

/* The uses of the blocks in the tree, by entry. */
static void know_uses(const struct radix_index *ix, struct known *k)
{
	for (uint32_t node = 0; node < ix->nodes.n_used; node++) {
		const struct radix_node *n = radix_node(ix, node);

		for (uint32_t i = 0; n->flags & RADIX_NODE_F_LIVE && i < n->n_blocks; i++) {
			uint32_t entry = radix_entry_at(ix, node, i);

			k->v[entry].use = radix_edge_tick_at(&ix->slab, n, i);
			k->v[entry].hit = radix_has_tiers(ix) && i < radix_low(ix, node)->again;
		}
	}
}

/* Restarts from what is stored there, which it may change. */
static void restart_any(const struct lives *l, struct kept *kept, struct known *ret, bool damaged)
{
	struct radix_recover_root roots[LIVES_ROOTS];
	struct radix_recover_config config = { .roots = roots,
					       .n_roots = LIVES_ROOTS,
					       .holds = everybody };
	struct radix_recovered r;
	struct radix_index *ix;
	char why[256] = "";
	int bad;

	lives_roots(l, roots);
	for (uint32_t i = 0; i < LIVES_ROOTS; i++)
		roots[i].root = i;
	bad = radix_index_recover(&ix, &kept->config, &config, &r);
	if (bad)
		ck_abort_msg("%s: the restart failed: %d", died_at, bad);
	bad = radix_verify(ix, why, sizeof(why));
	if (bad)
		ck_abort_msg("%s: invariant %d: %s", died_at, bad, why);
	/* a kill is no damage; a checksum is unknown while it changes; and where a member has just
	   become one in Redis only, which is one too many, the coldest goes after all */
	if (!damaged && (r.n_lost > r.damaged[RADIX_DAMAGE_ROOM] || r.n_lost > 1 ||
			 r.n_copies_lost || r.n_islands || r.n_sums_lost > 1))
		ck_abort_msg("%s: %u entries are lost", died_at, (unsigned)r.n_lost);
	*ret = (struct known){ .tick = r.tick };
	for (uint32_t i = 0; i < ix->table.n_used; i++) {
		const struct radix_entry *e = &ix->table.v[i];

		if (e->state != RADIX_ENTRY_READY)
			continue;
		ret->v[i].member = true;
		ret->v[i].key = *(const uint8_t *)radix_table_key(&ix->table, i);
		ret->v[i].kind = e->checksum_kind;
		ret->v[i].sum = e->checksum_kind ? e->checksum[0] : 0;
		ret->v[i].redis = radix_entry_redis(e);
		ret->v[i].exact = radix_entry_slot(e) != RADIX_NONE &&
				  e->exact == radix_exact_mark(e->device);
		ret->v[i].root = e->root;
		ret->v[i].parent = radix_entry_parent(e);
		ret->v[i].slot = radix_entry_slot(e);
		ret->v[i].host = radix_entry_host(e);
		ret->v[i].generation = e->generation;
	}
	know_uses(ix, ret);
	for (uint32_t i = 0; i < ix->slots.n; i++) {
		ret->slots[i].state = ix->slots.state[i];
		ret->slots[i].owner = ix->slots.owner[i];
		ret->slots[i].generation = ix->slots.generation[i];
	}
	radix_index_free(ix);
}

static void restart(const struct lives *l, struct kept *kept, struct known *ret)
{
	restart_any(l, kept, ret, false);
}

/* ---- what may be found ----------------------------------------------------------------------- */

#define MAY(cond)                                                                    \
	do {                                                                         \
		if (!(cond))                                                         \
			ck_abort_msg("%s, call %u, number %u, line %d: %s", died_at, \
				     (unsigned)call, i, __LINE__, #cond);            \
	} while (0)
#define EITHER(field) MAY(x->v[i].field == a->v[i].field || x->v[i].field == b->v[i].field)

static void check_entry(const struct known *a, const struct known *b, const struct known *x,
			uint32_t i, uint64_t call)
{
	bool before = a->v[i].member && x->v[i].generation == a->v[i].generation;
	bool after = b->v[i].member && x->v[i].generation == b->v[i].generation;

	if (!x->v[i].member) {
		MAY(!a->v[i].member || !b->v[i].member || a->v[i].generation != b->v[i].generation);
		return;
	}
	MAY(before || after);
	if (!before)
		a = b;
	if (!after)
		b = a;
	EITHER(key);
	EITHER(root);
	EITHER(parent);
	MAY(x->v[i].slot == a->v[i].slot || x->v[i].slot == b->v[i].slot ||
	    x->v[i].slot == RADIX_NONE || x->v[i].slot == RADIX_HOLLOW);
	/* a copy is never taken for exact that was not, nor for changed when it was not */
	MAY(x->v[i].slot >= RADIX_HOLLOW || x->v[i].slot != a->v[i].slot ||
	    x->v[i].exact == a->v[i].exact);
	MAY(x->v[i].slot >= RADIX_HOLLOW || x->v[i].slot == a->v[i].slot ||
	    x->v[i].exact == b->v[i].exact);
	MAY(x->v[i].host == a->v[i].host || x->v[i].host == b->v[i].host ||
	    x->v[i].host == RADIX_NONE);
	/* what arrives there and finds no place in the table goes in the same call */
	MAY(x->v[i].redis == a->v[i].redis || x->v[i].redis == b->v[i].redis || !x->v[i].redis ||
	    !after);
	MAY(!x->v[i].kind || (x->v[i].kind == a->v[i].kind && x->v[i].sum == a->v[i].sum) ||
	    (x->v[i].kind == b->v[i].kind && x->v[i].sum == b->v[i].sum));
	/* a copy that came to host memory has what tells it from a corrupt one, if it is known */
	MAY(x->v[i].host == RADIX_NONE || x->v[i].host == a->v[i].host || x->v[i].kind ||
	    !b->v[i].kind);
	/* and one that lay there does not lose it */
	MAY(x->v[i].host == RADIX_NONE || x->v[i].host != a->v[i].host || x->v[i].kind ||
	    !a->v[i].kind || (x->v[i].host == b->v[i].host && !b->v[i].kind));
	MAY(x->v[i].hit == a->v[i].hit || x->v[i].hit == b->v[i].hit || (!before && !x->v[i].hit));
	if (before && after) {
		MAY(x->v[i].use >= a->v[i].use || x->v[i].use >= b->v[i].use);
		MAY(x->v[i].use <= a->v[i].use || x->v[i].use <= b->v[i].use);
	}
}

static void check_known(const struct known *a, const struct known *b, const struct known *x,
			uint64_t call)
{
	for (uint32_t i = 0; i < MAX_ENTRIES; i++)
		check_entry(a, b, x, i, call);
	for (uint32_t i = 0; i < MAX_SLOTS; i++) {
		MAY(x->slots[i].state == a->slots[i].state ||
		    x->slots[i].state == b->slots[i].state ||
		    (x->slots[i].state == RADIX_SLOT_FREE &&
		     a->slots[i].state != b->slots[i].state));
		if (x->slots[i].state == RADIX_SLOT_OWN)
			MAY(x->slots[i].owner == a->slots[i].owner ||
			    x->slots[i].owner == b->slots[i].owner);
	}
	for (uint32_t i = 0; i < 1; i++)
		MAY(x->tick >= a->tick && x->tick <= b->tick);
}

/* ---- the session ----------------------------------------------------------------------------- */

static struct known *notes; /* [0]: before the first call */
static uint64_t n_calls, seed;
static uint32_t n_steps;

static void kept_new(struct kept *k, const struct lives_shape *shape)
{
	struct radix_index_config numbers = lives_numbers(shape, &alloc);

	kept_init(k, &numbers);
}

/* In the first run: a restart from a copy, and what it found. */
static void note(struct lives *l)
{
	struct kept *copy = l->ctx;
	size_t used = arena.used;

	ck_assert_uint_lt(l->n_calls, MAX_CALLS);
	kept_restore(copy, l->kept);
	died_at = "nowhere";
	restart(l, copy, &notes[l->n_calls]);
	arena.used = used;
}

static void session(struct lives *l, const struct lives_shape *shape, struct kept *kept)
{
	lives_init(l, shape, kept, seed);
	for (uint32_t i = 0; i < n_steps; i++)
		lives_step(l);
	lives_quiet(l);
}

static void first_run(const struct lives_shape *shape)
{
	static struct lives l;
	struct kept kept, copy;

	kept_new(&kept, shape);
	kept_new(&copy, shape);
	arena.used = 0;
	lives_init(&l, shape, &kept, seed);
	l.called = note;
	l.ctx = &copy;
	note(&l);
	for (uint32_t i = 0; i < n_steps; i++)
		lives_step(&l);
	lives_quiet(&l);
	n_calls = l.n_calls;
	kept_deinit(&kept);
	kept_deinit(&copy);
}

/* Restarts that are killed too, at each of their points; the last one is not. */
static void restart_killed(const struct lives *l, struct kept *kept, struct known *ret,
			   bool damaged)
{
	for (volatile uint64_t at = 1;; at++) {
		size_t used = arena.used;

		if (setjmp(death) == 0) {
			countdown = at;
			restart_any(l, kept, ret, damaged);
			countdown = 0;
			return;
		}
		arena.used = used;
	}
}

/* False: the session ended before the n-th passing. */
static bool killed_run(const struct lives_shape *shape, uint64_t n, struct kept *kept)
{
	static struct lives l;
	static const struct kept none;
	static struct kept empty;
	struct known found;
	uint64_t call;

	if (!empty.store.base)
		kept_new(&empty, shape);
	kept_restore(kept, &empty);
	kept->store.committed = none.store.committed;
	arena.used = 0;
	countdown = n;
	if (setjmp(death) == 0) {
		session(&l, shape, kept);
		countdown = 0;
		return false;
	}
	call = l.n_calls;
	if (strncmp(died_at, "head_", 5) == 0 && !call) {
		struct radix_store_info info;

		if (radix_store_look(&kept->store, NULL, &info) == RADIX_STORE_EMPTY)
			return true; /* half a head is none */
	}
	if (n % 7 == 0)
		restart_killed(&l, kept, &found, false);
	else
		restart(&l, kept, &found);
	check_known(&notes[call], &notes[call + 1], &found, call);
	return true;
}

START_TEST(every_point)
{
	const struct lives_shape *shape = &shapes[_i % (int)radix_array_size(shapes)];
	struct kept kept;
	uint64_t n = 1;

	arena.p = malloc(ARENA);
	notes = calloc(MAX_CALLS + 1, sizeof(*notes));
	ck_assert(arena.p && notes);
	n_steps = 1000;
	seed = 99 + (uint64_t)_i;
	radix_crash_hook = hook;
	countdown = 0;
	first_run(shape);
	kept_new(&kept, shape);
	while (killed_run(shape, n, &kept))
		n++;
	ck_assert_uint_gt(n, n_calls / 2);
	kept_deinit(&kept);
	free(notes);
	free(arena.p);
}
END_TEST

/* Bits of entries and slots, but not the head. */
static void spoil(struct kept *k, uint64_t from, uint64_t *rng)
{
	uint8_t *p = k->store.base;

	for (uint32_t n = 1 + test_rng_below(rng, 12); n; n--)
		p[RADIX_HEAD_BYTES + test_rng_below(rng, (uint32_t)(from - RADIX_HEAD_BYTES))] ^=
			(uint8_t)(1u << test_rng_below(rng, 8));
}

/* Whenever a recovery of a damaged store is killed, the next one comes to the same. */
START_TEST(a_recovery_that_is_killed)
{
	const struct lives_shape *shape = &shapes[_i];
	static struct lives l;
	struct kept kept, damaged, copy;
	static struct known once, again;

	arena.p = malloc(ARENA);
	ck_assert(arena.p);
	n_steps = 400;
	seed = 5 + (uint64_t)_i;
	radix_crash_hook = hook;
	countdown = 0;
	died_at = "damaged";
	arena.used = 0;
	kept_new(&kept, shape);
	kept_new(&damaged, shape);
	kept_new(&copy, shape);
	session(&l, shape, &kept);
	for (uint32_t round = 0; round < 100; round++) {
		size_t used = arena.used;

		kept_restore(&damaged, &kept);
		spoil(&damaged, l.ix->ground.pages_at, &l.rng);
		kept_restore(&copy, &damaged);
		restart_any(&l, &copy, &once, true);
		kept_restore(&copy, &damaged);
		restart_killed(&l, &copy, &again, true);
		for (uint32_t i = 0; i < MAX_ENTRIES; i++) {
			once.v[i].use = again.v[i].use; /* a tick that was damaged is 0 then */
			ck_assert_mem_eq(&once.v[i], &again.v[i], sizeof(once.v[i]));
		}
		for (uint32_t i = 0; i < MAX_SLOTS; i++) {
			ck_assert_uint_eq(once.slots[i].state, again.slots[i].state);
			ck_assert_uint_eq(once.slots[i].owner, again.slots[i].owner);
		}
		arena.used = used;
	}
	kept_deinit(&kept);
	kept_deinit(&damaged);
	kept_deinit(&copy);
	free(arena.p);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("recover-crash");
	TCase *tc = tcase_create("crash");

	tcase_set_timeout(tc, 150);
	tcase_add_loop_test(tc, a_recovery_that_is_killed, 0, (int)radix_array_size(shapes));
	tcase_add_loop_test(tc, every_point, 0, 4 * (int)radix_array_size(shapes));
	suite_add_tcase(s, tc);
	return test_run(s);
}
