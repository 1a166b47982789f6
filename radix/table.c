#include "radix/table.h"

#include "radix/hash.h"

int radix_table_init(struct radix_table *t, const struct radix_alloc *alloc, uint32_t n)
{
	*t = (struct radix_table){ .alloc = alloc, .n = n, .first_free = RADIX_NONE };
	radix_slab_init(&t->cells, alloc);
	t->v = radix_take(alloc, n * sizeof(*t->v));
	return t->v ? 0 : -ENOMEM;
}

void radix_table_deinit(struct radix_table *t)
{
	if (!t->alloc)
		return;
	radix_give(t->alloc, t->v, t->n * sizeof(*t->v));
	radix_slab_deinit(&t->cells);
	*t = (struct radix_table){ 0 };
}

/*
 * Everything that identifies the block: whose it is, where it hangs, what it is, how to check it.
 */
uint64_t radix_table_check(const struct radix_table *t, uint32_t entry)
{
	const struct radix_entry *e = &t->v[entry];
	struct {
		uint64_t generation, parent, key_hash;
		uint32_t root, ns, tenant, key_len, n_tokens, checksum_kind;
		uint8_t checksum[16];
	} fields = {
		.generation = e->generation,
		.parent = e->parent,
		.key_hash = radix_hash(radix_table_key(t, entry), e->key_len, 0),
		.root = e->root,
		.ns = e->ns,
		.tenant = e->tenant,
		.key_len = e->key_len,
		.n_tokens = e->n_tokens,
		.checksum_kind = e->checksum_kind,
	};

	memcpy(fields.checksum, e->checksum, sizeof(fields.checksum));
	return radix_hash(&fields, sizeof(fields), 0);
}

static uint64_t parent_word(const struct radix_table *t, uint32_t parent)
{
	uint64_t word = (uint64_t)parent << 32;

	return parent == RADIX_NONE ? word : word | (uint32_t)t->v[parent].generation;
}

uint32_t radix_table_add(struct radix_table *t, const struct radix_entry_init *init,
			 const struct radix_block *block, uint32_t key_len)
{
	uint64_t cell = radix_slab_take(&t->cells, key_len);
	struct radix_entry *e;
	uint64_t generation = 0;
	uint32_t id;

	if (!cell)
		return RADIX_NONE;
	if (t->first_free != RADIX_NONE) {
		id = t->first_free;
		t->first_free = t->v[id].next_free;
		generation = t->v[id].generation;
	} else if (t->n_used < t->n) {
		id = t->n_used++;
	} else {
		radix_slab_give(&t->cells, cell, key_len);
		return RADIX_NONE;
	}
	e = &t->v[id];
	*e = (struct radix_entry){
		.generation = generation + 1,
		.parent = parent_word(t, init->parent),
		.key = cell,
		.last_use = init->tick,
		.root = init->root,
		.ns = init->ns,
		.tenant = init->tenant,
		.key_len = key_len,
		.n_tokens = block->n_tokens,
		.slot = init->slot,
		.host_slot = RADIX_NONE,
		.redis = init->slot == RADIX_NONE,
		.next_free = RADIX_NONE,
		.state = RADIX_ENTRY_FREE,
		.checksum_kind = block->checksum_kind,
	};
	memcpy(e->checksum, block->checksum, sizeof(e->checksum));
	memcpy(radix_slab_at(&t->cells, cell), block->key, key_len);
	e->check = radix_table_check(t, id);
	__atomic_store_n(&e->state, RADIX_ENTRY_READY, __ATOMIC_RELEASE);
	t->n_ready++;
	t->key_bytes += key_len;
	return id;
}

void radix_table_remove(struct radix_table *t, uint32_t entry)
{
	struct radix_entry *e = &t->v[entry];

	__atomic_store_n(&e->state, RADIX_ENTRY_FREE, __ATOMIC_RELEASE);
	e->generation++;
	radix_slab_give(&t->cells, e->key, e->key_len);
	t->key_bytes -= e->key_len;
	e->key = 0;
	e->slot = RADIX_NONE;
	e->host_slot = RADIX_NONE;
	e->redis = 0;
	e->moving = 0;
	e->next_free = t->first_free;
	t->first_free = entry;
	t->n_ready--;
}

void radix_table_reparent(struct radix_table *t, uint32_t entry, uint32_t parent)
{
	struct radix_entry *e = &t->v[entry];

	__atomic_store_n(&e->parent, parent_word(t, parent), __ATOMIC_RELEASE);
	e->check = radix_table_check(t, entry);
}
