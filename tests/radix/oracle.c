/*
 * oracle.c - see oracle.h.  Slow on purpose.
 */
#include "tests/radix/oracle.h"

#include <stdlib.h>

void oracle_init(struct oracle *o, uint32_t n_slots, uint32_t key_len)
{
	*o = (struct oracle){ .n_slots = n_slots, .key_len = key_len };
	o->slots = calloc(n_slots, sizeof(*o->slots));
	radix_assert(o->slots);
	for (uint32_t i = 0; i < n_slots; i++)
		o->slots[i].state = RADIX_SLOT_FREE;
}

void oracle_deinit(struct oracle *o)
{
	for (uint32_t i = 0; i < o->n_slots; i++)
		free(o->slots[i].key);
	free(o->slots);
	*o = (struct oracle){ 0 };
}

static bool is_member(const struct oracle *o, uint32_t i)
{
	return o->slots[i].state == RADIX_SLOT_READY;
}

uint32_t oracle_count(const struct oracle *o, enum radix_slot_state s)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < o->n_slots; i++)
		n += o->slots[i].state == s;
	return n;
}

bool oracle_is_leaf(const struct oracle *o, int slot)
{
	for (uint32_t i = 0; i < o->n_slots; i++)
		if (is_member(o, i) && o->slots[i].parent == slot)
			return false;
	return true;
}

int oracle_child(const struct oracle *o, uint32_t root, int parent, const void *key)
{
	for (uint32_t i = 0; i < o->n_slots; i++) {
		const struct oracle_slot *s = &o->slots[i];

		if (is_member(o, i) && s->root == root && s->parent == parent &&
		    memcmp(s->key, key, o->key_len) == 0)
			return (int)i;
	}
	return ORACLE_NONE;
}

int oracle_find(const struct oracle *o, uint32_t root, const void *key)
{
	for (uint32_t i = 0; i < o->n_slots; i++) {
		const struct oracle_slot *s = &o->slots[i];

		if (is_member(o, i) && s->root == root && memcmp(s->key, key, o->key_len) == 0)
			return (int)i;
	}
	return ORACLE_NONE;
}

int oracle_match(const struct oracle *o, uint32_t root, int from, const void *keys, uint32_t n_keys,
		 uint32_t *ret_n)
{
	const uint8_t *k = keys;
	uint32_t n = 0;

	while (n < n_keys) {
		int child = oracle_child(o, root, from, k + (size_t)n * o->key_len);

		if (child == ORACLE_NONE)
			break;
		from = child;
		n++;
	}
	*ret_n = n;
	return from;
}

uint32_t oracle_depth(const struct oracle *o, int slot, int *ret_start)
{
	uint32_t depth = 0;

	for (; slot >= 0; slot = o->slots[slot].parent)
		depth++;
	*ret_start = slot;
	return depth;
}

void oracle_pin(struct oracle *o, int slot)
{
	radix_assert(o->n_pins < ORACLE_MAX_PINS);
	o->pins[o->n_pins++] = slot;
}

void oracle_unpin(struct oracle *o, int slot)
{
	for (uint32_t i = 0; i < o->n_pins; i++) {
		if (o->pins[i] != slot)
			continue;
		o->pins[i] = o->pins[--o->n_pins];
		return;
	}
	radix_assert(false);
}

bool oracle_pinned(const struct oracle *o, int slot)
{
	for (uint32_t i = 0; i < o->n_pins; i++)
		for (int p = o->pins[i]; p >= 0; p = o->slots[p].parent)
			if (p == slot)
				return true;
	return false;
}

void oracle_touch(struct oracle *o, int slot, uint64_t tick)
{
	for (; slot >= 0; slot = o->slots[slot].parent)
		o->slots[slot].tick = tick;
}

void oracle_commit(struct oracle *o, uint32_t slot, uint32_t root, int parent, const void *key,
		   uint64_t tick)
{
	struct oracle_slot *s = &o->slots[slot];

	radix_assert(s->state == RADIX_SLOT_RESERVED);
	s->state = RADIX_SLOT_READY;
	s->owner = 0;
	s->root = root;
	s->parent = parent;
	s->tick = tick;
	s->key = malloc(o->key_len);
	radix_assert(s->key);
	memcpy(s->key, key, o->key_len);
}

bool oracle_is_circle(const struct oracle *o, int slot, int parent)
{
	for (; parent >= 0; parent = o->slots[parent].parent)
		if (parent == slot)
			return true;
	return false;
}

static void remove_member(struct oracle *o, int slot)
{
	struct oracle_slot *s = &o->slots[slot];

	free(s->key);
	s->key = NULL;
	s->state = RADIX_SLOT_FREE;
}

/* root: RADIX_NONE for any. */
static int victim(const struct oracle *o, uint32_t root)
{
	int best = ORACLE_NONE;

	for (uint32_t i = 0; i < o->n_slots; i++) {
		if (!is_member(o, i) || (root != RADIX_NONE && o->slots[i].root != root))
			continue;
		if (best != ORACLE_NONE && o->slots[i].tick >= o->slots[best].tick)
			continue;
		if (oracle_is_leaf(o, (int)i) && !oracle_pinned(o, (int)i))
			best = (int)i;
	}
	return best;
}

uint32_t oracle_evict(struct oracle *o, uint32_t n)
{
	uint32_t done = 0;

	while (done < n) {
		int v = victim(o, RADIX_NONE);

		if (v == ORACLE_NONE)
			break;
		remove_member(o, v);
		done++;
	}
	return done;
}

uint32_t oracle_flush(struct oracle *o, uint32_t root)
{
	uint32_t done = 0;

	for (;;) {
		int v = victim(o, root);

		if (v == ORACLE_NONE)
			return done;
		remove_member(o, v);
		done++;
	}
}
