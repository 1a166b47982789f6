/*
 * ideal.c - see ideal.h.
 */
#include "tests/sim/ideal.h"

#include <stdlib.h>
#include <string.h>

#define ANY UINT32_MAX

static uint32_t home(const struct ideal *d, uint64_t path)
{
	uint64_t h = path * 0x9e3779b97f4a7c15u;

	return (uint32_t)(h >> 32) & (d->cap - 1);
}

static struct ideal_block *at(const struct ideal *d, uint64_t path)
{
	for (uint32_t i = home(d, path);; i = (i + 1) & (d->cap - 1))
		if (d->v[i].path == 0 || d->v[i].path == path)
			return &d->v[i];
}

void ideal_init(struct ideal *d, uint32_t max_blocks)
{
	memset(d, 0, sizeof(*d));
	d->max = max_blocks;
	d->cap = 64;
	while (d->cap < 4 * (max_blocks + 1))
		d->cap *= 2;
	d->v = calloc(d->cap, sizeof(*d->v));
	if (!d->v)
		abort();
}

void ideal_deinit(struct ideal *d)
{
	free(d->v);
	memset(d, 0, sizeof(*d));
}

bool ideal_has(const struct ideal *d, uint64_t path)
{
	return at(d, path)->path == path;
}

/* What stands behind it and would not be found any more moves up. */
static void drop(struct ideal *d, struct ideal_block *b)
{
	uint32_t hole = (uint32_t)(b - d->v);
	struct ideal_block *up = b->parent ? at(d, b->parent) : NULL;

	if (up && up->path)
		up->n_children--;
	d->n--;
	for (uint32_t i = (hole + 1) & (d->cap - 1); d->v[i].path; i = (i + 1) & (d->cap - 1)) {
		uint32_t want = home(d, d->v[i].path);

		if (((i - want) & (d->cap - 1)) < ((i - hole) & (d->cap - 1)))
			continue;
		d->v[hole] = d->v[i];
		hole = i;
	}
	memset(&d->v[hole], 0, sizeof(d->v[hole]));
}

static bool drop_oldest(struct ideal *d, uint32_t group)
{
	struct ideal_block *oldest = NULL;

	for (uint32_t i = 0; i < d->cap; i++) {
		struct ideal_block *b = &d->v[i];

		if (b->path && b->n_children == 0 && (group == ANY || b->group == group) &&
		    (!oldest || b->used < oldest->used))
			oldest = b;
	}
	if (oldest)
		drop(d, oldest);
	return oldest != NULL;
}

/* False: all that is there is one path, which is the newcomer's own. */
static bool make_room(struct ideal *d)
{
	while (d->n >= d->max)
		if (!drop_oldest(d, ANY))
			return false;
	return true;
}

void ideal_evict(struct ideal *d, uint32_t group, uint32_t n)
{
	while (n-- && drop_oldest(d, group))
		continue;
}

/* Whole paths go, so that nothing is left whose parent went. */
void ideal_flush(struct ideal *d, uint32_t ns)
{
	struct ideal old = *d;

	d->v = calloc(d->cap, sizeof(*d->v));
	if (!d->v)
		abort();
	d->n = 0;
	for (uint32_t i = 0; i < old.cap; i++) {
		if (old.v[i].path == 0 || old.v[i].ns == ns)
			continue;
		*at(d, old.v[i].path) = old.v[i];
		d->n++;
	}
	free(old.v);
}

void ideal_add(struct ideal *d, uint64_t path, uint64_t parent, uint32_t group, uint32_t ns)
{
	if (ideal_has(d, path)) {
		ideal_touch(d, path);
		return;
	}
	if (parent && !ideal_has(d, parent))
		return;
	/* The parent must not be the one that goes. */
	if (parent)
		at(d, parent)->n_children++;
	if (!make_room(d)) {
		at(d, parent)->n_children--;
		return;
	}
	*at(d, path) = (struct ideal_block){
		.path = path, .parent = parent, .used = ++d->tick, .group = group, .ns = ns
	};
	d->n++;
}

void ideal_touch(struct ideal *d, uint64_t path)
{
	struct ideal_block *b = at(d, path);

	if (b->path)
		b->used = ++d->tick;
}
