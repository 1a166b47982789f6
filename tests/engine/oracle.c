/*
 * oracle.c - see oracle.h.
 */
#include "tests/engine/oracle.h"

#include <stdlib.h>
#include <string.h>

static struct oracle_block *at(const struct oracle *o, uint64_t path)
{
	uint64_t i = path * 0x9e3779b97f4a7c15u;

	for (i ^= i >> 29;; i++) {
		struct oracle_block *b = &o->v[i & (o->cap - 1)];

		if (b->path == 0 || b->path == path)
			return b;
	}
}

void oracle_deinit(struct oracle *o)
{
	free(o->v);
	memset(o, 0, sizeof(*o));
}

static void grow(struct oracle *o)
{
	struct oracle old = *o;

	o->cap = old.cap ? 2 * old.cap : 1024;
	o->v = calloc(o->cap, sizeof(*o->v));
	if (!o->v)
		abort();
	for (uint32_t i = 0; i < old.cap; i++)
		if (old.v[i].path)
			*at(o, old.v[i].path) = old.v[i];
	free(old.v);
}

void oracle_maybe(struct oracle *o, uint64_t path, uint32_t root)
{
	struct oracle_block *b;

	if (2 * o->n >= o->cap)
		grow(o);
	b = at(o, path);
	if (b->path)
		return;
	o->n++;
	*b = (struct oracle_block){ .path = path, .root = root };
}

void oracle_add(struct oracle *o, uint64_t path, uint32_t root)
{
	oracle_maybe(o, path, root);
	at(o, path)->must = true;
}

bool oracle_may(const struct oracle *o, uint64_t path)
{
	return o->cap && at(o, path)->path == path;
}

bool oracle_must(const struct oracle *o, uint64_t path)
{
	return o->cap && at(o, path)->path == path && at(o, path)->must;
}

void oracle_doubt(struct oracle *o, uint32_t root)
{
	for (uint32_t i = 0; i < o->cap; i++)
		if (root == UINT32_MAX || o->v[i].root == root)
			o->v[i].must = false;
}
