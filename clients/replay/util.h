/*
 * util.h - the few helpers that every part of prefixd-replay shares.
 *
 * A replay is a short-lived tool: without memory it cannot measure anything, so allocation here
 * never returns NULL but ends the program with a message.  Nothing of this is for the daemon or the
 * client library.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define replay_array_size(a) (sizeof(a) / sizeof((a)[0]))

/* Zeroed memory for n objects; never NULL (n 0 gives room for one). */
void *replay_alloc(size_t n, size_t size);
/* Grows `ptr` so that it holds at least `need` objects; *cap is in objects. */
void *replay_grow(void *ptr, size_t *cap, size_t need, size_t size);
/* "prefixd-replay: ..." on stderr. */
void replay_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A bijection of 64-bit numbers that spreads every bit (the finalizer of a multiplicative hash). */
static inline uint64_t replay_mix(uint64_t x)
{
	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9u;
	x ^= x >> 27;
	x *= 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

static inline uint64_t replay_min(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Random numbers with a seed: the same numbers on every machine. */
struct replay_rng {
	uint64_t state;
};

static inline uint64_t replay_rng_next(struct replay_rng *rng)
{
	rng->state += 0x9e3779b97f4a7c15u;
	return replay_mix(rng->state);
}

/* In [0, 1). */
static inline double replay_rng_unit(struct replay_rng *rng)
{
	return (double)(replay_rng_next(rng) >> 11) * 0x1p-53;
}

/* In [0, n); n > 0.  The bias of the multiplication is below 2^-32 for the small n used here. */
static inline uint32_t replay_rng_below(struct replay_rng *rng, uint32_t n)
{
	return (uint32_t)(((replay_rng_next(rng) >> 32) * n) >> 32);
}
