/*
 * bed.c - see bed.h.
 */
#include "tests/radix/bed.h"

#include "tests/radix/kept.h"

static void init(struct bed *b, enum radix_key_mode mode, uint32_t key_len,
		 const struct radix_index_config *sizes)
{
	struct radix_index_config config = *sizes;

	*b = (struct bed){ .mode = mode, .key_len = key_len, .n_slots = sizes->n_slots };
	test_heap_init(&b->heap);
	config.alloc = &b->heap.alloc;
	config.secret[0] = 0x0123456789abcdefu;
	config.secret[1] = 0x0fedcba987654321u;
	ck_assert_int_eq(radix_index_new(&b->ix, &config), 0);
	b->root = bed_root(b, 0);
}

void bed_init(struct bed *b, enum radix_key_mode mode, uint32_t key_len, uint32_t n_slots)
{
	struct radix_index_config sizes = { .n_slots = n_slots, .n_entries = n_slots };

	init(b, mode, key_len, &sizes);
}

void bed_init_tiers(struct bed *b, enum radix_key_mode mode, uint32_t n_slots, uint32_t n_host,
		    bool redis, uint32_t budget)
{
	struct radix_index_config sizes = { .n_slots = n_slots,
					    .n_host = n_host,
					    .redis = redis,
					    .n_entries = n_slots + n_host + budget };

	init(b, mode, 16, &sizes);
}

void bed_init_kept(struct bed *b, enum radix_key_mode mode, uint32_t key_len, struct kept *kept)
{
	init(b, mode, key_len, &kept->config);
	kept->config.alloc = &b->heap.alloc;
}

void bed_init_ghosts(struct bed *b, enum radix_key_mode mode, uint32_t n_slots, uint32_t n_host,
		     uint32_t n_ghosts)
{
	struct radix_index_config sizes = { .n_slots = n_slots,
					    .n_host = n_host,
					    .n_entries = n_slots + n_host,
					    .n_ghosts = n_ghosts };

	init(b, mode, 16, &sizes);
}

void bed_deinit(struct bed *b)
{
	bed_verify(b);
	b->ix = radix_index_free(b->ix);
	ck_assert_ptr_null(b->ix);
	ck_assert_uint_eq(b->heap.live_blocks, 0);
	ck_assert_uint_eq(b->heap.live_bytes, 0);
}

uint32_t bed_root(struct bed *b, uint64_t user)
{
	struct radix_root_config config = {
		.mode = b->mode,
		.key_len = b->key_len,
		.block_tokens = b->mode == RADIX_KEYS_TOKENS ? b->key_len / 4 : 16,
		.token_bytes = b->mode == RADIX_KEYS_TOKENS ? b->key_len : 0,
		.ns = 1,
		.tenant = 2,
		.user = user,
	};
	uint32_t root = RADIX_NONE;

	ck_assert_int_eq(radix_root_new(b->ix, &config, &root), 0);
	return root;
}

void bed_key(const struct bed *b, char letter, uint8_t *out)
{
	memset(out, letter, b->key_len);
}

const uint8_t *bed_keys(const struct bed *b, const char *path)
{
	static uint8_t keys[BED_MAX_PATH * BED_MAX_KEY];

	ck_assert_uint_le(strlen(path), BED_MAX_PATH);
	for (size_t i = 0; path[i]; i++)
		bed_key(b, path[i], keys + i * b->key_len);
	return keys;
}

struct radix_match bed_match_from(struct bed *b, const struct radix_place *from, const char *path)
{
	struct radix_match m;

	radix_match(b->ix, from, bed_keys(b, path), (uint32_t)strlen(path), NULL, &m);
	return m;
}

uint32_t bed_match(struct bed *b, const char *path)
{
	struct radix_place from = radix_place_root(b->root);

	return bed_match_from(b, &from, path).n_blocks;
}

struct radix_place bed_place(struct bed *b, const char *path)
{
	struct radix_place from = radix_place_root(b->root);
	struct radix_match m;

	if (!*path)
		return from;
	m = bed_match_from(b, &from, path);
	ck_assert_uint_eq(m.n_blocks, strlen(path));
	return m.end;
}

void bed_pin(struct bed *b, struct radix_pin *pin, const char *path)
{
	struct radix_place at = bed_place(b, path);

	*pin = (struct radix_pin){ 0 };
	radix_pin_take(b->ix, pin, &at);
}

void bed_touch(struct bed *b, const char *path)
{
	struct radix_place at = bed_place(b, path);

	radix_touch(b->ix, &at, ++b->tick);
}

struct bed_slots bed_reserve(struct bed *b, uint32_t owner, uint32_t n)
{
	struct radix_run v[BED_MAX_PATH];
	struct radix_runs runs = { .v = v, .cap = BED_MAX_PATH };
	struct bed_slots s = { .n = 0 };
	uint32_t granted = 0;

	radix_reserve(b->ix, owner, n, &runs, &granted);
	for (uint32_t i = 0; i < runs.n; i++)
		for (uint32_t j = 0; j < v[i].len; j++)
			s.v[s.n++] = v[i].start + j;
	ck_assert_uint_eq(s.n, granted);
	ck_assert_uint_le(granted, n);
	return s;
}

int bed_commit(struct bed *b, struct radix_pin *pin, uint32_t slot, char letter, uint32_t *ret_slot,
	       enum radix_commit_result *ret_result)
{
	uint8_t key[BED_MAX_KEY];
	struct radix_block block = { .key = key, .slot = slot, .n_tokens = b->key_len / 4 };

	if (b->mode == RADIX_KEYS_DIGEST)
		block.n_tokens = 16;
	bed_key(b, letter, key);
	return radix_commit(b->ix, pin, BED_OWNER, &block, b->tick, ret_slot, ret_result);
}

static void commit_all(struct bed *b, struct radix_pin *pin, const char *letters)
{
	struct bed_slots s = bed_reserve(b, BED_OWNER, (uint32_t)strlen(letters));
	enum radix_commit_result result;
	uint32_t slot;

	ck_assert_uint_eq(s.n, strlen(letters));
	for (uint32_t i = 0; i < s.n; i++) {
		ck_assert_int_eq(bed_commit(b, pin, s.v[i], letters[i], &slot, &result), 0);
		ck_assert_int_eq(result, RADIX_COMMIT_STORED);
		ck_assert_uint_eq(slot, s.v[i]);
	}
}

uint32_t bed_store(struct bed *b, const char *path)
{
	struct radix_place from = radix_place_root(b->root);
	struct radix_match m = bed_match_from(b, &from, path);
	struct radix_pin pin = { 0 };
	uint32_t n_new = (uint32_t)strlen(path) - m.n_blocks;

	b->tick++;
	radix_pin_take(b->ix, &pin, &m.end);
	if (n_new)
		commit_all(b, &pin, path + m.n_blocks);
	radix_touch(b->ix, &pin.at, b->tick);
	radix_pin_drop(b->ix, &pin);
	bed_verify(b);
	return n_new;
}

void bed_store_island(struct bed *b, const char *path)
{
	struct radix_place at = radix_place_island(b->root);
	struct radix_pin pin = { 0 };

	b->tick++;
	radix_pin_take(b->ix, &pin, &at);
	commit_all(b, &pin, path);
	radix_touch(b->ix, &pin.at, b->tick);
	radix_pin_drop(b->ix, &pin);
	bed_verify(b);
}

struct radix_stats bed_stats(const struct bed *b)
{
	struct radix_stats s;

	radix_index_stats(b->ix, &s);
	return s;
}

void bed_verify(const struct bed *b)
{
	char why[256] = "";
	int r = radix_verify(b->ix, why, sizeof(why));

	ck_assert_msg(r == 0, "invariant %d: %s", r, why);
}
