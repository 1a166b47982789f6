/*
 * heap.c - see heap.h.
 *
 * Each block lies between a header of one line, which holds its size, and a guard of one line; both
 * are checked when it comes back.  Relies on aligned_alloc() only, so that ASan and valgrind see
 * every block as one of their own.
 */
#include "tests/lib/heap.h"

#include <stdio.h>
#include <stdlib.h>

#define LINE       64u
#define MAGIC_LIVE 0x6c6976652d6d656du
#define MAGIC_GONE 0x676f6e652d6d656du
#define JUNK       0xa5
#define POISON     0xdb
#define GUARD      0x5c

struct head {
	_Alignas(64) uint64_t magic;
	uint64_t size;
	struct test_heap *heap;
	struct head *prev, *next; /* of the heap's live blocks */
};

_Static_assert(sizeof(struct head) == LINE, "the block behind the header stays aligned");

static void breach(const char *what)
{
	fprintf(stderr, "test heap: %s\n", what);
	abort();
}

static size_t round_up(size_t n)
{
	return (n + LINE - 1) / LINE * LINE;
}

static void *heap_take(void *ctx, size_t size)
{
	struct test_heap *h = ctx;
	struct head *head;
	uint8_t *body;

	h->n_takes++;
	if (size == 0)
		breach("a block of 0 bytes was asked for");
	if (h->fail_countdown && --h->fail_countdown == 0) {
		h->n_failed++;
		return NULL;
	}
	if (h->max_bytes && h->live_bytes + size > h->max_bytes) {
		h->n_failed++;
		return NULL;
	}
	head = aligned_alloc(LINE, LINE + round_up(size) + LINE);
	if (!head)
		return NULL;
	body = (uint8_t *)(head + 1);
	*head = (struct head){ .magic = MAGIC_LIVE, .size = size, .heap = h, .next = h->live };
	if (head->next)
		head->next->prev = head;
	h->live = head;
	if (!h->quick)
		memset(body, JUNK, size);
	memset(body + size, GUARD, round_up(size) - size + LINE);
	h->live_blocks++;
	h->live_bytes += size;
	if (h->live_bytes > h->peak_bytes)
		h->peak_bytes = h->live_bytes;
	return body;
}

static void heap_give(void *ctx, void *ptr, size_t size)
{
	struct test_heap *h = ctx;
	struct head *head;
	uint8_t *body = ptr;

	if (!ptr)
		return;
	h->n_gives++;
	head = (struct head *)ptr - 1;
	if (head->magic == MAGIC_GONE)
		breach("a block was given back twice");
	if (head->magic != MAGIC_LIVE)
		breach("a pointer was given back that is no block, or its header was overwritten");
	if (head->heap != h)
		breach("a block was given back to another heap");
	if (head->size != size)
		breach("a block was given back with a size other than asked for");
	for (size_t i = size; i < round_up(size) + LINE; i++)
		if (body[i] != GUARD)
			breach("somebody wrote behind a block");
	head->magic = MAGIC_GONE;
	*(head->prev ? &head->prev->next : (struct head **)&h->live) = head->next;
	if (head->next)
		head->next->prev = head->prev;
	if (!h->quick)
		memset(body, POISON, size);
	h->live_blocks--;
	h->live_bytes -= size;
	free(head);
}

void test_heap_init(struct test_heap *h)
{
	*h = (struct test_heap){ .alloc = { .take = heap_take, .give = heap_give, .ctx = h } };
}

void test_heap_fail_at(struct test_heap *h, uint64_t n)
{
	h->fail_countdown = n;
}

void test_heap_drop(struct test_heap *h)
{
	while (h->live) {
		struct head *head = h->live;

		heap_give(h, head + 1, head->size);
	}
}
