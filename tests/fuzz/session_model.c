/*
 * session_model.c - see session_model.h.
 */
#include "tests/fuzz/session_model.h"

int model_child(const struct model *m, uint32_t root, int parent, const uint8_t *key,
		uint32_t key_len)
{
	for (uint32_t i = 0; i < m->n_slots; i++) {
		const struct model_block *b = &m->blocks[i];

		if (b->used && b->placed && b->root == root && b->parent == parent &&
		    memcmp(b->key, key, key_len) == 0)
			return (int)i;
	}
	return MODEL_NONE;
}

uint32_t model_walk(const struct model *m, uint32_t root, int from, const uint8_t *keys, uint32_t n,
		    uint32_t key_len, uint32_t *ret_slots)
{
	uint32_t i;

	for (i = 0; i < n; i++) {
		from = model_child(m, root, from, keys + (size_t)i * key_len, key_len);
		if (from == MODEL_NONE)
			break;
		ret_slots[i] = (uint32_t)from;
	}
	return i;
}

bool model_store(struct model *m, uint32_t slot, const struct model_block *block)
{
	if (slot >= m->n_slots || m->blocks[slot].used)
		return false;
	m->blocks[slot] = *block;
	return true;
}

bool model_sync(struct model *m, const struct radix_index *ix)
{
	for (uint32_t i = 0; i < m->n_slots; i++)
		if (radix_slot_state(ix, i) != RADIX_SLOT_READY)
			m->blocks[i].used = false;
	for (uint32_t i = 0; i < m->n_slots; i++) {
		const struct model_block *b = &m->blocks[i];

		if (b->used && b->parent != MODEL_NONE && !m->blocks[b->parent].used)
			return false;
	}
	return true;
}

bool model_holds(const struct model *m, int at)
{
	for (; at != MODEL_NONE; at = m->blocks[at].parent)
		if (!m->blocks[at].used)
			return false;
	return true;
}
