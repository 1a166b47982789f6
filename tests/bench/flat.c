/*
 * flat.c - see flat.h.
 */
#include "tests/bench/flat.h"

#include <sys/mman.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum {
	AHEAD = 32,
	MAX_KEY = 256
};

struct name {
	uint64_t low, high;
};

int flat_init(struct flat *f, uint32_t n_max, uint32_t key_len)
{
	uint64_t n = 64;

	*f = (struct flat){ .n_max = n_max, .key_len = key_len };
	radix_assert(key_len <= MAX_KEY);
	while (n < 2 * (uint64_t)n_max)
		n *= 2;
	f->mask = n - 1;
	f->bytes = n * sizeof(*f->slots) + (size_t)n_max * sizeof(*f->blocks);
	f->slots = bench_arena_map(n * sizeof(*f->slots));
	f->blocks = bench_arena_map((size_t)n_max * sizeof(*f->blocks));
	if (!f->slots || !f->blocks)
		return -ENOMEM;
	for (uint32_t i = 0; i < n_max; i++)
		f->blocks[i].next = i + 2;
	f->blocks[n_max - 1].next = 0;
	f->first_free = 1;
	return 0;
}

void flat_deinit(struct flat *f)
{
	size_t huge = (size_t)2 << 20;

	if (f->slots)
		(void)munmap(f->slots,
			     ((f->mask + 1) * sizeof(*f->slots) + huge - 1) / huge * huge);
	if (f->blocks)
		(void)munmap(f->blocks, (f->n_max * sizeof(*f->blocks) + huge - 1) / huge * huge);
	*f = (struct flat){ 0 };
}

static inline struct name name_of(const struct flat *f, struct name parent, const uint8_t *key)
{
	uint8_t in[16 + MAX_KEY]
		__attribute__((uninitialized)); /* no zeroes per block for a peer */
	XXH128_hash_t h;

	memcpy(in, &parent, 16);
	memcpy(in + 16, key, f->key_len);
	h = XXH3_128bits(in, 16 + f->key_len);
	return (struct name){ h.low64, h.high64 };
}

static inline uint64_t home(const struct flat *f, uint64_t low)
{
	return low & f->mask;
}

/* The block with that name, or UINT32_MAX. */
static inline uint32_t find(const struct flat *f, struct name name)
{
	for (uint64_t i = home(f, name.low);; i = (i + 1) & f->mask) {
		const struct flat_slot *s = &f->slots[i];

		if (!s->block)
			return UINT32_MAX;
		if (s->low == name.low && s->high == (uint32_t)name.high)
			return s->block - 1;
	}
}

uint32_t flat_match(const struct flat *f, const uint8_t *keys, uint32_t n, uint32_t *out)
{
	struct name name = { 0 };

	for (uint32_t i = 0; i < n; i++) {
		name = name_of(f, name, keys + (size_t)i * f->key_len);
		out[i] = find(f, name);
		if (out[i] == UINT32_MAX)
			return i;
	}
	return n;
}

uint32_t flat_match_ahead(const struct flat *f, const uint8_t *keys, uint32_t n, uint32_t *out)
{
	struct name name = { 0 }, names[AHEAD] __attribute__((uninitialized));

	for (uint32_t i = 0; i < n; i += AHEAD) {
		uint32_t m = radix_min_u32(AHEAD, n - i);

		for (uint32_t j = 0; j < m; j++) {
			name = name_of(f, name, keys + (size_t)(i + j) * f->key_len);
			names[j] = name;
			__builtin_prefetch(&f->slots[home(f, name.low)]);
		}
		for (uint32_t j = 0; j < m; j++) {
			out[i + j] = find(f, names[j]);
			if (out[i + j] == UINT32_MAX)
				return i + j;
		}
	}
	return n;
}

static void add(struct flat *f, struct name name)
{
	uint32_t number = f->first_free;
	struct flat_block *b = &f->blocks[number - 1];
	uint64_t i = home(f, name.low);

	f->first_free = b->next;
	while (f->slots[i].block)
		i = (i + 1) & f->mask;
	f->slots[i] =
		(struct flat_slot){ .low = name.low, .high = (uint32_t)name.high, .block = number };
	*b = (struct flat_block){ .low = name.low, .prev = f->newest };
	if (f->newest)
		f->blocks[f->newest - 1].next = number;
	else
		f->oldest = number;
	f->newest = number;
	f->n++;
}

uint32_t flat_insert(struct flat *f, const uint8_t *keys, uint32_t n)
{
	struct name name = { 0 };
	uint32_t n_new = 0;

	for (uint32_t i = 0; i < n; i++) {
		name = name_of(f, name, keys + (size_t)i * f->key_len);
		if (!n_new && find(f, name) != UINT32_MAX)
			continue;
		if (!f->first_free)
			return n_new;
		add(f, name);
		n_new++;
	}
	return n_new;
}

static void slot_remove(struct flat *f, uint32_t number)
{
	uint64_t i = home(f, f->blocks[number - 1].low), hole;

	while (f->slots[i].block != number)
		i = (i + 1) & f->mask;
	hole = i;
	for (;;) {
		uint64_t from;

		i = (i + 1) & f->mask;
		if (!f->slots[i].block)
			break;
		from = home(f, f->slots[i].low);
		if (((i - from) & f->mask) < ((i - hole) & f->mask))
			continue; /* its home lies behind the hole */
		f->slots[hole] = f->slots[i];
		hole = i;
	}
	f->slots[hole].block = 0;
}

uint32_t flat_evict(struct flat *f, uint32_t n)
{
	uint32_t done = 0;

	while (done < n && f->oldest) {
		uint32_t number = f->oldest;
		struct flat_block *b = &f->blocks[number - 1];

		slot_remove(f, number);
		f->oldest = b->next;
		if (f->oldest)
			f->blocks[f->oldest - 1].prev = 0;
		else
			f->newest = 0;
		b->next = f->first_free;
		f->first_free = number;
		f->n--;
		done++;
	}
	return done;
}
