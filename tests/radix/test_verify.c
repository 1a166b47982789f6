/*
 * test_verify.c - radix_verify() can fail: each invariant is broken by hand and must be named.
 *
 * All other tests end with a verification that finds nothing.  That means something only if it
 * would have found something.  Each case changes one word behind the index's back, expects the
 * number of the rule that this breaks, and puts the word back.
 */
#include "radix/internal.h"
#include "tests/radix/bed.h"

static struct bed b;

static void expect(int number, int line)
{
	char why[256] = "";
	int r = radix_verify(b.ix, why, sizeof(why));

	ck_assert_msg(r == number, "line %d: %d (%s) instead of %d", line, r, why, number);
	ck_assert(number == 0 || why[0]);
}

/* `place` holds `value` while the verification looks. */
#define BROKEN(number, place, value)             \
	do {                                     \
		__typeof__(place) keep_ = place; \
		(place) = (value);               \
		expect(number, __LINE__);        \
		(place) = keep_;                 \
		expect(0, __LINE__);             \
	} while (0)

/* "abcd" and "abxy" below one root: edges ab, cd, xy; "q" beside them. */
static void tree(enum radix_key_mode mode)
{
	bed_init(&b, mode, 16, 200);
	bed_store(&b, "abcd");
	bed_store(&b, "abxy");
	bed_store(&b, "q");
}

static struct radix_node *edge(const char *path)
{
	struct radix_place at = bed_place(&b, path);

	return radix_node(b.ix, at.node);
}

static uint32_t slot_of(const char *path)
{
	struct radix_place at = bed_place(&b, path);

	return *radix_edge_ref(radix_node(b.ix, at.node), b.ix->roots[b.root].g, at.idx - 1);
}

START_TEST(slots)
{
	struct radix_slots *s;
	uint32_t a;

	tree(RADIX_KEYS_TOKENS);
	s = &b.ix->slots;
	a = slot_of("a");
	BROKEN(1, s->state[a], RADIX_SLOT_N_STATES);
	BROKEN(1, s->count[RADIX_SLOT_OWN], 1);
	BROKEN(1, s->count[RADIX_SLOT_FREE], 0);
	BROKEN(2, s->state[a], RADIX_SLOT_FREE);
	BROKEN(2, s->bits[0][0], s->bits[0][0] ^ 1u << a);
	BROKEN(2, s->bits[1][0], 0);
	BROKEN(2, s->bits[2][0], 0);
	BROKEN(3, s->state[a], RADIX_SLOT_OWN);
	BROKEN(3, s->entry[a], RADIX_NONE);
	BROKEN(3, s->entry[100], 0);
	BROKEN(3, s->generation[a], s->reuse + 1);
	bed_deinit(&b);
}
END_TEST

/* An entry's word for that slot, whole. */
static uint64_t device_word(const struct radix_entry *e, uint32_t slot)
{
	return radix_table_device(&b.ix->table, (uint32_t)(e - b.ix->table.v), slot,
				  slot == RADIX_NONE ? 0 : b.ix->slots.generation[slot]);
}

static uint64_t host_word(const struct radix_entry *e, uint32_t slot)
{
	return radix_table_host(&b.ix->table, (uint32_t)(e - b.ix->table.v), slot);
}

START_TEST(entries)
{
	struct radix_entry *e, *child;
	uint32_t *ref;

	tree(RADIX_KEYS_TOKENS);
	e = &b.ix->table.v[b.ix->slots.entry[slot_of("ab")]];
	child = &b.ix->table.v[b.ix->slots.entry[slot_of("abc")]];
	ref = radix_edge_ref(edge("ab"), b.ix->roots[b.root].g, 1);
	BROKEN(4, *ref, 1000);
	BROKEN(4, *ref, 150);
	BROKEN(4, e->device, device_word(e, radix_entry_slot(e) + 1));
	BROKEN(4, e->state, RADIX_ENTRY_FREE);
	BROKEN(4, e->root, e->root + 1);
	BROKEN(5, e->check, e->check + 1);
	BROKEN(5, e->tenant, e->tenant + 1);
	BROKEN(5, e->key, child->key);
	BROKEN(6, e->parent, e->parent ^ 1); /* another generation */
	BROKEN(6, e->parent, child->parent);
	bed_deinit(&b);
}
END_TEST

/* What a restart will rely on. */
START_TEST(kept)
{
	struct radix_head *h;
	struct radix_cells *c;
	struct radix_entry *e;
	struct radix_slots *s;

	tree(RADIX_KEYS_TOKENS);
	h = b.ix->ground.head;
	c = &b.ix->table.cells;
	s = &b.ix->slots;
	e = &b.ix->table.v[s->entry[slot_of("ab")]];
	BROKEN(24, e->device, e->device ^ 1);
	BROKEN(24, e->host, e->host ^ 1);
	BROKEN(24, e->redis, 0);
	BROKEN(24, e->checksum_kind, 1);
	BROKEN(26, e->use, (b.ix->now + 1) << 1);
	BROKEN(25, s->kept[slot_of("ab")], 0);
	BROKEN(25, s->kept[100], radix_slot_word(100, RADIX_SLOT_FREE, 1));
	BROKEN(25, s->owner[slot_of("ab")], 1);
	BROKEN(26, h->magic, 0);
	BROKEN(26, h->n_entries, 1);
	BROKEN(26, h->n_used.v, 0);
	BROKEN(26, h->n_used.inverse, 0);
	BROKEN(26, h->tick.v, 0);
	BROKEN(26, h->tick.inverse, 0);
	BROKEN(26, h->reuse.v, 0);
	BROKEN(26, h->reuse.inverse, 0);
	BROKEN(27, c->page[0].free[0], UINT64_MAX);
	BROKEN(27, c->page[0].n_free, 0);
	BROKEN(27, c->page[0].free[0], c->page[0].free[0] << 1);
	BROKEN(27, c->page[0].word, 1);
	BROKEN(27, c->first[0], RADIX_NONE);
	BROKEN(27, c->page[0].class, 1);
	bed_deinit(&b);
}
END_TEST

/* The stored key and the edge's copy must be one; a check that agrees does not hide that. */
START_TEST(stored_keys)
{
	uint32_t entry;
	uint8_t *key;

	tree(RADIX_KEYS_TOKENS);
	entry = b.ix->slots.entry[slot_of("ab")];
	key = radix_cells_at(&b.ix->table.cells, b.ix->table.v[entry].key);
	for (int twice = 0; twice < 2; twice++) {
		key[3] ^= 1;
		b.ix->table.v[entry].check = radix_table_check(&b.ix->table, entry);
		expect(twice ? 0 : 5, __LINE__);
	}
	bed_deinit(&b);
}
END_TEST

START_TEST(digests)
{
	uint32_t entry;

	bed_init(&b, RADIX_KEYS_DIGEST, 16, 200);
	bed_store(&b, "abcd");
	bed_store_island(&b, "xyz");
	entry = b.ix->slots.entry[slot_of("ab")];
	BROKEN(7, b.ix->where_node[entry], b.ix->where_node[entry] + 1);
	BROKEN(7, b.ix->where_idx[entry], 0);
	for (uint64_t i = 0; i <= b.ix->digests.mask; i++)
		if (b.ix->digests.slots[i])
			BROKEN(7, b.ix->digests.slots[i], b.ix->digests.slots[i] ^ 1ull << 40);
	bed_deinit(&b);
}
END_TEST

START_TEST(shape)
{
	struct radix_node *ab, *cd, *q;
	struct radix_root *root;

	tree(RADIX_KEYS_TOKENS);
	ab = edge("ab");
	cd = edge("abcd");
	q = edge("q");
	root = &b.ix->roots[b.root];
	BROKEN(8, cd->parent, RADIX_NODE_NONE);
	BROKEN(8, cd->root, cd->root + 1);
	BROKEN(8, cd->flags, 0);
	BROKEN(8, q->flags, q->flags | RADIX_NODE_F_ISLAND);
	BROKEN(8, ab->n_child, 1);
	BROKEN(8, root->n_child, 1);
	BROKEN(8, root->n_islands, 1);
	BROKEN(9, cd->n_steps, 0);
	BROKEN(9, cd->n_steps, 3);
	BROKEN(9, cd->step.end, 1);
	BROKEN(10, cd->address, cd->address + 1);
	BROKEN(10, ab->end_chain, ab->end_chain + 1);
	bed_deinit(&b);
}
END_TEST

START_TEST(pins)
{
	struct radix_pin pin;

	tree(RADIX_KEYS_TOKENS);
	bed_pin(&b, &pin, "abc");
	BROKEN(11, pin.at.node, pin.at.node + 1);
	BROKEN(11, pin.at.idx, 3);
	BROKEN(11, pin.at.root, pin.at.root + 1);
	BROKEN(11, b.ix->n_pins, 0);
	radix_pin_drop(b.ix, &pin);
	bed_deinit(&b);
}
END_TEST

START_TEST(queue)
{
	struct radix_node *cd;
	struct radix_queue *q;

	tree(RADIX_KEYS_TOKENS);
	cd = edge("abcd");
	q = &b.ix->queue;
	BROKEN(12, cd->heap_pos, RADIX_NONE);
	BROKEN(12, cd->heap_pos, 77);
	BROKEN(12, cd->heap_pos, (cd->heap_pos + 1) % 3);
	BROKEN(12, q->v[cd->heap_pos].tick, UINT64_MAX);
	BROKEN(12, q->n, q->n + 1);
	BROKEN(12, edge("ab")->heap_pos, 0);
	bed_deinit(&b);
}
END_TEST

START_TEST(totals)
{
	tree(RADIX_KEYS_TOKENS);
	BROKEN(13, b.ix->table.n_ready, 4);
	BROKEN(13, b.ix->nodes.n_live, 3);
	BROKEN(13, b.ix->children.n, 3);
	BROKEN(13, b.ix->roots[b.root].n_blocks, 6);
	BROKEN(14, b.ix->removed[RADIX_REMOVE_FLUSH], 1);
	BROKEN(14, b.ix->removed_total, 1);
	BROKEN(14, b.ix->stored_total, 9);
	bed_deinit(&b);
}
END_TEST

/* "abcd" and "abxy" as above: ab and c in the device, d and xy lower, x with a copy in the host. */
static void lower_tree(void)
{
	struct radix_move moves[4];
	struct radix_room room;

	bed_init_tiers(&b, RADIX_KEYS_TOKENS, 20, 20, true, 20);
	bed_store(&b, "abcd");
	bed_store(&b, "abxy");
	bed_touch(&b, "abc");
	radix_make_room(b.ix, RADIX_TIER_DEVICE, 3, 0, moves, 4, &room);
	ck_assert_uint_eq(room.started, 3); /* d, y, x */
	for (uint32_t i = 0; i < 3; i++)
		ck_assert_int_eq(radix_move_end(b.ix, &moves[i], true, NULL, NULL), 0);
	radix_make_room(b.ix, RADIX_TIER_HOST, 2, 0, moves, 4, &room);
	ck_assert_uint_eq(room.started, 2);
	for (uint32_t i = 0; i < 2; i++)
		ck_assert_int_eq(radix_move_end(b.ix, &moves[i], true, NULL, NULL), 0);
	bed_touch(&b, "abxy");
	bed_verify(&b);
}

static struct radix_low *low(const char *path)
{
	return radix_low(b.ix, bed_place(&b, path).node);
}

static struct radix_entry *lower_entry(const char *path)
{
	struct radix_place at = bed_place(&b, path);

	return &b.ix->table.v[radix_entry_at(b.ix, at.node, at.idx - 1)];
}

START_TEST(tiers)
{
	struct radix_entry *d, *x, *y;
	uint32_t *ref, last;

	lower_tree();
	d = lower_entry("abcd");
	x = lower_entry("abx");
	y = lower_entry("abxy");
	ref = radix_edge_ref(edge("abcd"), b.ix->roots[b.root].g, 1);
	last = b.ix->where_idx[d - b.ix->table.v];
	BROKEN(4, *ref, 1000);
	BROKEN(4, d->device, device_word(d, 0));
	BROKEN(7, b.ix->where_idx[d - b.ix->table.v], last + 1);
	BROKEN(15, low("abcd")->end[0], 3);
	BROKEN(15, low("abxy")->end[1], 0xffffffff);
	BROKEN(4, low("ab")->end[0], 1);
	BROKEN(16, low("abxy")->end[1], 2);
	BROKEN(16, x->host, host_word(x, RADIX_NONE));
	BROKEN(16, x->host, host_word(x, radix_entry_host(x) ^ 1));
	BROKEN(24, x->host, x->host ^ 1);
	BROKEN(16, d->redis, RADIX_REDIS_NO);
	BROKEN(13, b.ix->tier[1], 7);
	BROKEN(21, b.ix->redis_budget, 1);
	BROKEN(21, low("abcd")->again, 9);
	BROKEN(21, low("abcd")->again, 1);
	BROKEN(14, b.ix->removed_from[1][0], 1);
	BROKEN(14, b.ix->found_total, 1);
	BROKEN(13, b.ix->table.n_ready, 4);
	BROKEN(12, low("abxy")->heap_pos[0], RADIX_NONE);
	BROKEN(12, low("abxy")->heap_pos[1], 5);
	BROKEN(12, b.ix->lower[1].v[0].tick, UINT64_MAX);
	BROKEN(12, b.ix->lower[0].n, 7);
	BROKEN(20, low("ab")->kids[0], 2);
	BROKEN(20, low("ab")->kids[1], 1);
	BROKEN(20, low("ab")->firm[0], 0);
	BROKEN(20, low("ab")->held, 1);
	ck_assert(radix_entry_redis(y));
	bed_deinit(&b);
}
END_TEST

START_TEST(bonuses)
{
	struct radix_move m;
	struct radix_member x;
	uint32_t slot[2], i = 0;

	lower_tree();
	for (const char *path = "abx"; i < 2; i++, path = "ab") {
		struct radix_place at = bed_place(&b, path);

		ck_assert_uint_eq(radix_path_members(b.ix, &at, 1, &x), 1);
		if (i)
			ck_assert_int_eq(radix_copy_begin(b.ix, x, RADIX_TIER_HOST, &m), 0);
		else
			ck_assert_int_eq(radix_promote_begin(b.ix, x, &m), 0);
		ck_assert_int_eq(radix_move_end(b.ix, &m, true, NULL, NULL), 0);
		slot[i] = radix_entry_host(lower_entry(path));
	}
	expect(0, __LINE__);
	BROKEN(17, b.ix->bonus.count, 1);
	BROKEN(17, b.ix->bonus.first, slot[1]);
	BROKEN(17, b.ix->bonus.last, slot[0]);
	BROKEN(17, b.ix->bonus.prev[slot[1]], RADIX_NONE);
	BROKEN(17, b.ix->bonus.tick[slot[1]], 1);
	BROKEN(17, b.ix->bonus.tick[slot[0]], 0);
	BROKEN(1, b.ix->host.count[RADIX_SLOT_FREE], 0);
	BROKEN(2, b.ix->host.bits[1][0], 0);
	BROKEN(3, b.ix->host.entry[slot[0]], RADIX_NONE);
	bed_deinit(&b);
}
END_TEST

START_TEST(leaving)
{
	struct radix_move m[2];
	struct radix_room room;
	struct radix_pin pin;
	struct radix_entry *c;

	lower_tree();
	radix_make_room(b.ix, RADIX_TIER_DEVICE, 2, 0, m, 2, &room);
	ck_assert_uint_eq(room.started, 2); /* c and b */
	c = lower_entry("abc");
	expect(0, __LINE__);
	BROKEN(18, low("ab")->leaving[0], 0);
	BROKEN(20, low("abc")->leaving[0], 0);
	BROKEN(18, low("abc")->leaving[0], 7);
	BROKEN(18, low("ab")->leaving[1], 1);
	BROKEN(18, c->moving, 0);
	BROKEN(19, b.ix->slots.reads[15], 1);
	b.ix->slots.state[radix_entry_slot(c)] = RADIX_SLOT_READY;
	b.ix->slots.count[RADIX_SLOT_READY]++;
	b.ix->slots.count[RADIX_SLOT_LEAVING]--;
	expect(18, __LINE__);
	radix_slots_set(&b.ix->slots, radix_entry_slot(c), RADIX_SLOT_LEAVING);
	bed_pin(&b, &pin, "a");
	expect(0, __LINE__);
	BROKEN(18, pin.at.idx, 2);
	radix_pin_drop(b.ix, &pin);
	for (uint32_t i = 0; i < 2; i++)
		ck_assert_int_eq(radix_move_end(b.ix, &m[i], true, NULL, NULL), 0);
	bed_deinit(&b);
}
END_TEST

START_TEST(runs)
{
	struct radix_seg *seg;

	bed_init(&b, RADIX_KEYS_TOKENS, 16, 20);
	bed_store(&b, "ab");
	bed_store(&b, "x");
	bed_store(&b, "abc"); /* in slots 0, 1, 3 */
	seg = edge("abc")->segs[0];
	BROKEN(22, seg->run, 3);
	BROKEN(22, seg->run, 99);
	bed_deinit(&b);
}
END_TEST

/* Keys of 16 KiB and more lie in pages of their own, which are used again when they are free. */
START_TEST(large_keys)
{
	static uint8_t keys[6][RADIX_KEY_MAX];
	struct radix_root_config config = { .key_len = RADIX_KEY_MAX,
					    .block_tokens = RADIX_KEY_MAX / 4,
					    .token_bytes = RADIX_KEY_MAX };
	uint32_t root;

	bed_init(&b, RADIX_KEYS_TOKENS, 16, 4);
	ck_assert_int_eq(radix_root_new(b.ix, &config, &root), 0);
	for (uint32_t round = 0; round < 20; round++) {
		struct radix_place from = radix_place_root(root);
		struct radix_match m;

		for (uint32_t i = 0; i < 6; i++) {
			struct radix_place at = radix_place_root(root);
			struct radix_pin pin = { 0 };
			struct bed_slots s;
			struct radix_block block = { .key = keys[i] };
			enum radix_commit_result result;
			uint32_t slot;

			keys[i][RADIX_KEY_MAX - 1] = (uint8_t)(i + 6 * round + 1);
			radix_pin_take(b.ix, &pin, &at);
			s = bed_reserve(&b, BED_OWNER, 1);
			ck_assert_uint_eq(s.n, 1);
			block.slot = s.v[0];
			ck_assert_int_eq(radix_commit(b.ix, &pin, BED_OWNER, &block, ++b.tick,
						      &slot, &result),
					 0);
			radix_pin_drop(b.ix, &pin);
		}
		expect(0, __LINE__);
		for (uint32_t i = 0; i < 6; i++) {
			radix_match(b.ix, &from, keys[i], 1, NULL, &m);
			ck_assert_uint_eq(m.n_blocks, i >= 2);
		}
		if (round % 5 == 4)
			ck_assert_uint_eq(radix_flush_root(b.ix, root, RADIX_REMOVE_FLUSH), 4);
	}
	ck_assert_uint_lt(b.ix->slab.n_pages + b.ix->table.cells.n, 40);
	bed_deinit(&b);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("verify");
	TCase *tc = tcase_create("verify");
	SRunner *sr;
	int failed;

	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, slots);
	tcase_add_test(tc, entries);
	tcase_add_test(tc, kept);
	tcase_add_test(tc, stored_keys);
	tcase_add_test(tc, digests);
	tcase_add_test(tc, shape);
	tcase_add_test(tc, pins);
	tcase_add_test(tc, queue);
	tcase_add_test(tc, totals);
	tcase_add_test(tc, large_keys);
	tcase_add_test(tc, tiers);
	tcase_add_test(tc, bonuses);
	tcase_add_test(tc, leaving);
	tcase_add_test(tc, runs);
	suite_add_tcase(s, tc);
	sr = srunner_create(s);
	srunner_run_all(sr, CK_ENV);
	failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed ? 1 : 0;
}
