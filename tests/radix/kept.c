/*
 * kept.c - see kept.h.
 */
#include "tests/radix/kept.h"

#include <check.h>
#include <stdlib.h>
#include <sys/mman.h>

enum {
	STEP = 4096
};

static int commit(struct radix_store *s, uint64_t len)
{
	if (len > s->len)
		return -ENOMEM;
	if (len > s->committed)
		s->committed = (len + STEP - 1) / STEP * STEP;
	return 0;
}

void kept_init(struct kept *k, const struct radix_index_config *numbers)
{
	*k = (struct kept){ .config = *numbers, .n_generations = numbers->n_slots };
	k->store.len = (radix_store_len(numbers) + STEP - 1) / STEP * STEP;
	k->store.base = mmap(NULL, k->store.len, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	ck_assert(k->store.base != MAP_FAILED);
	k->store.commit = commit;
	k->generations = calloc(k->n_generations, sizeof(uint64_t));
	ck_assert_ptr_nonnull(k->generations);
	k->config.generations = k->generations;
	k->config.store = &k->store;
}

void kept_restore(struct kept *to, const struct kept *from)
{
	if (to->store.committed > from->store.committed)
		memset((char *)to->store.base + from->store.committed, 0,
		       to->store.committed - from->store.committed);
	memcpy(to->store.base, from->store.base, from->store.committed);
	to->store.committed = from->store.committed;
	memcpy(to->generations, from->generations, from->n_generations * sizeof(uint64_t));
}

void kept_copy(struct kept *to, const struct kept *from)
{
	kept_init(to, &from->config);
	kept_restore(to, from);
}

void kept_deinit(struct kept *k)
{
	(void)munmap(k->store.base, k->store.len);
	free(k->generations);
	*k = (struct kept){ 0 };
}
