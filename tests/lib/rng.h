/*
 * rng.h - the tests' seeded generator: the same seed gives the same run on every machine.
 *
 * splitmix64 (Steele, Lea, Flood 2014).
 */
#pragma once

#include <stdint.h>
#include <string.h>

static inline uint64_t test_rng(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

/* 0 .. n - 1; the bias of the remainder does not matter here. */
static inline uint32_t test_rng_below(uint64_t *state, uint32_t n)
{
	return (uint32_t)(test_rng(state) % n);
}

static inline void test_rng_fill(uint64_t *state, void *out, size_t len)
{
	uint8_t *p = out;

	while (len) {
		uint64_t v = test_rng(state);
		size_t n = len < sizeof(v) ? len : sizeof(v);

		memcpy(p, &v, n);
		p += n;
		len -= n;
	}
}
