/*
 * model.c - see model.h.  Nothing here is clever, on purpose.
 */
#include "tests/engine/model.h"

#include <stdlib.h>
#include <string.h>

void model_init(struct model *m, uint32_t n_slots)
{
	memset(m, 0, sizeof(*m));
	m->n_slots = n_slots;
	for (uint32_t i = 0; i < MODEL_HOLDS; i++)
		m->holds[i] = MODEL_NOBODY;
}

uint32_t model_n_blocks(const struct model *m)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < m->n_slots; i++)
		n += m->blocks[i].used;
	return n;
}

int model_child(const struct model *m, uint32_t root, int parent, const uint8_t *key)
{
	for (uint32_t i = 0; i < m->n_slots; i++) {
		const struct model_block *b = &m->blocks[i];

		if (b->used && b->root == root && b->parent == parent && !b->island &&
		    memcmp(b->key, key, m->key_len[root]) == 0)
			return (int)i;
	}
	return MODEL_NOBODY;
}

int model_find(const struct model *m, uint32_t root, const uint8_t *key)
{
	for (uint32_t i = 0; i < m->n_slots; i++) {
		const struct model_block *b = &m->blocks[i];

		if (b->used && b->root == root && memcmp(b->key, key, m->key_len[root]) == 0)
			return (int)i;
	}
	return MODEL_NOBODY;
}

uint32_t model_partial(const struct model *m, uint32_t root, int parent, const uint8_t *tokens,
		       uint32_t n_tokens)
{
	uint32_t best = 0;

	for (uint32_t i = 0; i < m->n_slots; i++) {
		const struct model_block *b = &m->blocks[i];
		uint32_t n = 0;

		if (!b->used || b->root != root || b->parent != parent || b->island)
			continue;
		while (n < n_tokens && memcmp(b->key + 4 * n, tokens + 4 * n, 4) == 0)
			n++;
		best = n > best ? n : best;
	}
	return best;
}

int model_hold(struct model *m, int block)
{
	for (int i = 0; i < MODEL_HOLDS; i++) {
		if (m->holds[i] != MODEL_NOBODY)
			continue;
		m->holds[i] = block;
		return i;
	}
	abort();
}

void model_drop(struct model *m, int hold)
{
	if (hold != MODEL_NOBODY)
		m->holds[hold] = MODEL_NOBODY;
}

void model_touch(struct model *m, int block)
{
	m->tick++;
	for (; block != MODEL_NOBODY; block = m->blocks[block].parent)
		m->blocks[block].tick = m->tick;
}

static void mark_held(const struct model *m, bool held[MODEL_SLOTS])
{
	memset(held, 0, MODEL_SLOTS * sizeof(held[0]));
	for (uint32_t i = 0; i < MODEL_HOLDS; i++)
		for (int b = m->holds[i]; b != MODEL_NOBODY; b = m->blocks[b].parent)
			held[b] = true;
}

/* The coldest block that nobody holds and nothing hangs below; root: of this one only. */
static int victim(const struct model *m, int root)
{
	bool held[MODEL_SLOTS], parent[MODEL_SLOTS] = { false };
	int best = MODEL_NOBODY;

	mark_held(m, held);
	for (uint32_t i = 0; i < m->n_slots; i++)
		if (m->blocks[i].used && m->blocks[i].parent != MODEL_NOBODY)
			parent[m->blocks[i].parent] = true;
	for (uint32_t i = 0; i < m->n_slots; i++) {
		const struct model_block *b = &m->blocks[i];

		if (!b->used || held[i] || parent[i] || (root >= 0 && b->root != (uint32_t)root))
			continue;
		if (best == MODEL_NOBODY || b->tick < m->blocks[best].tick)
			best = (int)i;
	}
	return best;
}

uint32_t model_evict(struct model *m, uint32_t n)
{
	uint32_t done = 0;
	int v;

	while (done < n && (v = victim(m, -1)) != MODEL_NOBODY) {
		m->blocks[v].used = false;
		done++;
	}
	return done;
}

uint32_t model_flush(struct model *m, uint32_t root)
{
	uint32_t done = 0;
	int v;

	while ((v = victim(m, (int)root)) != MODEL_NOBODY) {
		m->blocks[v].used = false;
		done++;
	}
	return done;
}

uint32_t model_reserve(struct model *m, uint32_t want)
{
	uint32_t n_free = m->n_slots - m->n_taken - model_n_blocks(m);
	uint32_t got = want <= n_free ? want : n_free + model_evict(m, want - n_free);

	m->n_taken += got;
	return got;
}

void model_commit(struct model *m, uint32_t slot, uint32_t root, int parent, bool island,
		  const uint8_t *key)
{
	struct model_block *b = &m->blocks[slot];

	if (b->used)
		abort();
	b->used = true;
	b->island = island;
	b->parent = parent;
	b->root = root;
	memcpy(b->key, key, m->key_len[root]);
	b->tick = ++m->tick;
	m->n_taken--;
}
