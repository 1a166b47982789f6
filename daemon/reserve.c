/*
 * reserve.c - see reserve.h.
 *
 * Two kinds of pieces, with a bit for each: most of what libevent asks for fits into the small
 * ones; the large ones take a read's worth of a buffer.  Nothing larger is served.
 */
#include "daemon/reserve.h"

#include <event2/event.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define N_WORDS 4

struct pieces {
	unsigned char *bytes;
	size_t size; /* of a piece */
	unsigned n;
	uint64_t used[N_WORDS];
};

static _Alignas(64) unsigned char small_bytes[256 * 512], large_bytes[32 * 8448];
static struct pieces all[] = {
	{ .bytes = small_bytes, .size = 512, .n = 256 },
	{ .bytes = large_bytes, .size = 8448, .n = 32 },
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* helpers have loops of their own */

#define N_KINDS (sizeof(all) / sizeof(all[0]))

static void *piece_take(size_t n)
{
	void *found = NULL;

	pthread_mutex_lock(&lock);
	for (size_t k = 0; k < N_KINDS && !found; k++) {
		struct pieces *p = &all[k];

		for (unsigned i = 0; n <= p->size && i < p->n && !found; i++) {
			if (p->used[i / 64] >> (i % 64) & 1)
				continue;
			p->used[i / 64] |= 1ull << (i % 64);
			found = p->bytes + i * p->size;
		}
	}
	pthread_mutex_unlock(&lock);
	return found;
}

/* The kind that p is a piece of; NULL: it is malloc()'s. */
static struct pieces *piece_of(const void *p)
{
	uintptr_t at = (uintptr_t)p;

	for (size_t k = 0; k < N_KINDS; k++)
		if (at >= (uintptr_t)all[k].bytes &&
		    at < (uintptr_t)all[k].bytes + all[k].n * all[k].size)
			return &all[k];
	return NULL;
}

static void piece_give(struct pieces *p, const void *piece)
{
	size_t i = ((uintptr_t)piece - (uintptr_t)p->bytes) / p->size;

	pthread_mutex_lock(&lock);
	p->used[i / 64] &= ~(1ull << (i % 64));
	pthread_mutex_unlock(&lock);
}

void *prefixd_reserve_malloc(size_t n)
{
	void *p = malloc(n);

	return p ? p : piece_take(n);
}

void prefixd_reserve_free(void *p)
{
	struct pieces *from = piece_of(p);

	if (from)
		piece_give(from, p);
	else
		free(p);
}

void *prefixd_reserve_realloc(void *old, size_t n)
{
	struct pieces *from = old ? piece_of(old) : NULL;
	void *p = from ? malloc(n) : realloc(old, n);
	size_t have;

	if (p && !from)
		return p;
	if (n == 0 && !from)
		return NULL; /* realloc() has freed it */
	if (!p)
		p = piece_take(n);
	if (!p || !old)
		return p;
	have = from ? from->size : malloc_usable_size(old);
	memcpy(p, old, have < n ? have : n);
	prefixd_reserve_free(old);
	return p;
}

unsigned prefixd_reserve_in_use(void)
{
	unsigned n = 0;

	pthread_mutex_lock(&lock);
	for (size_t k = 0; k < N_KINDS; k++)
		for (size_t i = 0; i < N_WORDS; i++)
			n += (unsigned)__builtin_popcountll(all[k].used[i]);
	pthread_mutex_unlock(&lock);
	return n;
}

void prefixd_reserve_install(void)
{
	event_set_mem_functions(prefixd_reserve_malloc, prefixd_reserve_realloc,
				prefixd_reserve_free);
}
