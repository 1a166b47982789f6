/*
 * bed.h - a small index whose paths are written as strings: one letter, one block.
 *
 *     bed_store(&b, "abcd");
 *     bed_store(&b, "abXY");
 *     ck_assert_uint_eq(bed_match(&b, "abcZ"), 3);
 *
 * A letter's key is that letter repeated, in digest mode that letter's digest.  Each store uses the
 * next tick, so what was stored first is coldest.
 */
#pragma once

#include "radix/index.h"
#include "tests/lib/heap.h"

#include <check.h>

enum {
	BED_MAX_PATH = 64,
	BED_OWNER = 7,
	BED_MAX_KEY = 4096
};

struct bed {
	struct test_heap heap;
	struct radix_index *ix;
	uint32_t root;
	uint32_t key_len;
	uint32_t n_slots;
	enum radix_key_mode mode;
	uint64_t tick;
};

/* What a test holds after bed_reserve(): slots in the order in which they are to be filled. */
struct bed_slots {
	uint32_t v[BED_MAX_PATH];
	uint32_t n;
};

void bed_init(struct bed *b, enum radix_key_mode mode, uint32_t key_len, uint32_t n_slots);
/* With lower tiers; `budget` members may be in Redis only.  redis false: none. */
void bed_init_tiers(struct bed *b, enum radix_key_mode mode, uint32_t n_slots, uint32_t n_host,
		    bool redis, uint32_t budget);
/* In a store, which is empty; it and its numbers are the caller's. */
struct kept;
void bed_init_kept(struct bed *b, enum radix_key_mode mode, uint32_t key_len, struct kept *kept);
/* With a host tier, and so many ghosts. */
void bed_init_ghosts(struct bed *b, enum radix_key_mode mode, uint32_t n_slots, uint32_t n_host,
		     uint32_t n_ghosts);
/* Frees the index and checks that nothing leaked. */
void bed_deinit(struct bed *b);
uint32_t bed_root(struct bed *b, uint64_t user);

void bed_key(const struct bed *b, char letter, uint8_t *out);
/* Keys of a path, at most BED_MAX_PATH of at most BED_MAX_KEY bytes; static memory. */
const uint8_t *bed_keys(const struct bed *b, const char *path);

struct radix_match bed_match_from(struct bed *b, const struct radix_place *from, const char *path);
uint32_t bed_match(struct bed *b, const char *path);
/* The place after the whole path, which must be a member. */
struct radix_place bed_place(struct bed *b, const char *path);
void bed_pin(struct bed *b, struct radix_pin *pin, const char *path);
void bed_touch(struct bed *b, const char *path);

struct bed_slots bed_reserve(struct bed *b, uint32_t owner, uint32_t n);
int bed_commit(struct bed *b, struct radix_pin *pin, uint32_t slot, char letter, uint32_t *ret_slot,
	       enum radix_commit_result *ret_result);
/* Match, reserve, commit the rest, touch, drop.  Returns how many blocks were new. */
uint32_t bed_store(struct bed *b, const char *path);
/* Digest mode: the same as an island that starts with the path's first letter. */
void bed_store_island(struct bed *b, const char *path);

struct radix_stats bed_stats(const struct bed *b);
/* radix_verify() is 0. */
void bed_verify(const struct bed *b);
