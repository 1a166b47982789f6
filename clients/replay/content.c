/*
 * content.c - generating and comparing block content at memory speed.
 *
 * Word i of a block is mix(path + (i + 1) * STEP): the path is a 64-bit hash, STEP is odd, and mix
 * is a bijection made of shifts and exclusive ors only.  Multiplications are avoided because the
 * baseline x86-64 has no packed 64-bit one; four words are made at a time with the compilers'
 * vector type, which they lower to whatever the target has.
 *
 * Checking makes the words in registers and never writes them down, so that it reads the block once
 * and touches no other memory.
 */
#include "clients/replay/content.h"

#define XXH_INLINE_ALL
#include <stdbool.h>
#include <string.h>
#include <xxhash.h>

#define STEP 0x9e3779b97f4a7c15u

typedef uint64_t words __attribute__((vector_size(32)));

#define WORDS_LEN sizeof(words)
#define WORDS_N   (sizeof(words) / sizeof(uint64_t))
/* Checked between two looks at whether a difference was seen. */
#define STRIDE    (4 * WORDS_LEN)

uint64_t replay_path_root(const uint8_t digest[32], const uint8_t root[16])
{
	uint64_t seed;

	memcpy(&seed, root, sizeof(seed));
	return XXH3_64bits_withSeed(digest, 32, seed ^ XXH3_64bits(root, 16));
}

uint64_t replay_path_step(uint64_t path, const void *key, size_t key_len)
{
	return XXH3_64bits_withSeed(key, key_len, path);
}

/* Works on one word and on four alike, so that the tail of a block follows the same rule. */
#define MIX(x)                           \
	({                               \
		__typeof__(x) mixed = x; \
		mixed ^= mixed >> 29;    \
		mixed ^= mixed << 17;    \
		mixed ^= mixed >> 37;    \
		mixed;                   \
	})

static inline uint64_t word_at(uint64_t path, size_t i)
{
	return MIX(path + (uint64_t)(i + 1) * STEP);
}

/* Through a pointer: returning a vector wider than the target's registers has no stable ABI. */
static inline void first_counters(uint64_t path, words *ret_counter)
{
	for (size_t i = 0; i < WORDS_N; i++)
		(*ret_counter)[i] = path + (uint64_t)(i + 1) * STEP;
}

void replay_content_fill(void *block, size_t len, uint64_t path)
{
	uint8_t *p = block;
	words counter;
	size_t at = 0;

	first_counters(path, &counter);
	for (; len - at >= WORDS_LEN; at += WORDS_LEN) {
		words w = MIX(counter);

		memcpy(p + at, &w, WORDS_LEN);
		counter += WORDS_N * STEP;
	}
	while (at < len) {
		uint64_t w = word_at(path, at / sizeof(w));
		size_t n = len - at < sizeof(w) ? len - at : sizeof(w);

		memcpy(p + at, &w, n);
		at += n;
	}
}

/* Word by word: the tail of a block, and where exactly a difference lies. */
static size_t check_words(const uint8_t *p, size_t at, size_t len, uint64_t path)
{
	while (at < len) {
		uint64_t w = word_at(path, at / sizeof(w));
		size_t n = len - at < sizeof(w) ? len - at : sizeof(w);

		if (memcmp(p + at, &w, n) != 0)
			return at;
		at += n;
	}
	return len;
}

size_t replay_content_check(const void *block, size_t len, uint64_t path)
{
	const uint8_t *p = block;
	words counter;
	size_t at = 0;

	first_counters(path, &counter);
	for (; len - at >= STRIDE; at += STRIDE) {
		words seen[4];
		words wrong;

		memcpy(seen, p + at, STRIDE);
		wrong = seen[0] ^ MIX(counter);
		wrong |= seen[1] ^ MIX(counter + WORDS_N * STEP);
		wrong |= seen[2] ^ MIX(counter + 2 * WORDS_N * STEP);
		wrong |= seen[3] ^ MIX(counter + 3 * WORDS_N * STEP);
		if ((wrong[0] | wrong[1]) | (wrong[2] | wrong[3]))
			return check_words(p, at, len, path);
		counter += 4 * WORDS_N * STEP;
	}
	return check_words(p, at, len, path);
}
