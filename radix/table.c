/*
 * table.c - see table.h.
 */
#include "radix/table.h"

#include "radix/crash.h"
#include "radix/windows.h"

void radix_table_init(struct radix_table *t, const struct radix_ground *ground)
{
	*t = (struct radix_table){
		.head = ground->head,
		.v = ground->entries,
		.n = ground->n_entries,
		.first_free = RADIX_NONE,
	};
	radix_cells_init(&t->cells, ground);
}

void radix_table_deinit(struct radix_table *t)
{
	radix_cells_deinit(&t->cells);
	*t = (struct radix_table){ 0 };
}

/* Everything that identifies the block: whose it is, what it is, where its key lies. */
uint64_t radix_table_check_at(const struct radix_entry *e, uint32_t entry, const void *key)
{
	struct {
		uint64_t generation, root_check, key, key_hash;
		uint32_t entry, root, ns, tenant, key_len, n_tokens;
	} fields = {
		.generation = e->generation,
		.root_check = e->root_check,
		.key = e->key,
		.key_hash = radix_hash(key, e->key_len, 0),
		.entry = entry,
		.root = e->root,
		.ns = e->ns,
		.tenant = e->tenant,
		.key_len = e->key_len,
		.n_tokens = e->n_tokens,
	};

	return radix_hash(&fields, sizeof(fields), 0);
}

uint64_t radix_table_check(const struct radix_table *t, uint32_t entry)
{
	return radix_table_check_at(&t->v[entry], entry, radix_table_key(t, entry));
}

uint64_t radix_table_checksum_check(const struct radix_table *t, uint32_t entry)
{
	const struct radix_entry *e = &t->v[entry];
	uint64_t half[2], h;

	memcpy(half, e->checksum, sizeof(half));
	h = radix_fold(e->generation ^ RADIX_WORD_PARENT,
		       (uint64_t)entry << 8 | radix_checksum_kind(e));
	return radix_fold(radix_fold(h, half[0]), half[1]);
}

/* Number of an entry that is free, with the generation that it had; RADIX_NONE. */
static uint32_t free_entry(struct radix_table *t, uint64_t *ret_generation)
{
	uint32_t id = t->first_free;

	if (id != RADIX_NONE) {
		t->first_free = t->v[id].next_free;
		*ret_generation = t->v[id].generation;
		return id;
	}
	if (t->n_used == t->n)
		return RADIX_NONE;
	id = t->n_used++;
	radix_pair_set(&t->head->n_used, t->n_used);
	*ret_generation = 0;
	return id;
}

uint32_t radix_table_add(struct radix_table *t, const struct radix_entry_init *init,
			 const struct radix_block *block, uint32_t key_len)
{
	uint64_t cell = radix_cells_take(&t->cells, key_len);
	struct radix_entry *e;
	uint64_t generation, base;
	uint32_t id;

	if (cell == RADIX_CELL_NONE)
		return RADIX_NONE;
	id = free_entry(t, &generation);
	if (id == RADIX_NONE) {
		radix_cells_give(&t->cells, cell);
		return RADIX_NONE;
	}
	radix_crash_point("table_add_number");
	e = &t->v[id];
	base = radix_word_base(id, generation + 1);
	e->generation = generation + 1;
	e->parent = radix_word(base, RADIX_WORD_PARENT, init->parent,
			       radix_table_start(t, init->parent, init->island));
	e->device = radix_word(base, RADIX_WORD_DEVICE, init->slot, init->slot_generation);
	e->exact = init->slot == RADIX_NONE ? 0 : radix_exact_mark(e->device);
	e->host = radix_word(base, RADIX_WORD_HOST, RADIX_NONE, 0);
	e->key = cell;
	e->use = init->tick << 1;
	e->state = RADIX_ENTRY_FREE;
	e->next_free = RADIX_NONE;
	e->root = init->root;
	e->root_check = init->root_check;
	e->key_len = key_len;
	e->ns = init->ns;
	e->tenant = init->tenant;
	e->n_tokens = block->n_tokens;
	e->redis = init->slot == RADIX_NONE ? RADIX_REDIS_YES : RADIX_REDIS_NO;
	e->checksum_kind = block->checksum_kind;
	e->moving = 0;
	e->turn = 0;
	if (block->checksum_kind) {
		memcpy(e->checksum, block->checksum, sizeof(e->checksum));
		e->checksum_check = radix_table_checksum_check(t, id);
	}
	radix_crash_point("table_add_fields");
	memcpy(radix_cells_at(&t->cells, cell), block->key, key_len);
	e->check = radix_table_check_at(e, id, block->key); /* which is at hand, unlike the cell */
	radix_crash_point("table_add_checked");
	radix_publish(&e->state, RADIX_ENTRY_READY);
	radix_crash_point("table_add_published");
	t->n_ready++;
	t->key_bytes += key_len;
	return id;
}

void radix_table_remove(struct radix_table *t, uint32_t entry, uint32_t key_len)
{
	struct radix_entry *e = &t->v[entry];

	radix_retract(&e->state, RADIX_ENTRY_FREE);
	radix_crash_point("table_removed");
	e->generation++;
	radix_cells_give(&t->cells, e->key);
	t->key_bytes -= key_len;
	e->next_free = t->first_free;
	t->first_free = entry;
	t->n_ready--;
}

/* The mark first: without its word it says nothing, and the word is never without it. */
void radix_table_device_set(struct radix_table *t, uint32_t entry, uint32_t slot,
			    uint64_t slot_generation, bool exact)
{
	uint64_t word = radix_table_device(t, entry, slot, slot_generation);

	radix_retract(&t->v[entry].exact, exact ? radix_exact_mark(word) : 0);
	radix_crash_point("table_exact_set");
	radix_publish(&t->v[entry].device, word);
	radix_crash_point("table_device_set");
}

void radix_table_device_clear(struct radix_table *t, uint32_t entry)
{
	radix_retract(&t->v[entry].device, radix_table_device(t, entry, RADIX_NONE, 0));
	radix_crash_point("table_device_cleared");
}

void radix_table_hollow(struct radix_table *t, uint32_t entry)
{
	radix_retract(&t->v[entry].device, radix_table_device(t, entry, RADIX_HOLLOW, 0));
	radix_crash_point("table_hollow");
}

void radix_table_host_set(struct radix_table *t, uint32_t entry, uint32_t host_slot)
{
	radix_publish(&t->v[entry].host, radix_table_host(t, entry, host_slot));
	radix_crash_point("table_host_set");
}

void radix_table_host_clear(struct radix_table *t, uint32_t entry)
{
	radix_retract(&t->v[entry].host, radix_table_host(t, entry, RADIX_NONE));
	radix_crash_point("table_host_cleared");
}

void radix_table_redis_set(struct radix_table *t, uint32_t entry, bool there)
{
	radix_retract(&t->v[entry].redis, there ? RADIX_REDIS_YES : RADIX_REDIS_NO);
	radix_crash_point("table_redis_set");
}

void radix_table_reparent(struct radix_table *t, uint32_t entry, uint32_t parent, bool island)
{
	radix_publish(&t->v[entry].parent, radix_table_parent(t, entry, parent, island));
	radix_crash_point("table_reparented");
}

/* Unknown while it changes: half of an old one and half of a new one would be damage. */
void radix_table_checksum(struct radix_table *t, uint32_t entry, uint8_t kind,
			  const uint8_t *checksum)
{
	struct radix_entry *e = &t->v[entry];

	radix_retract(&e->checksum_kind, 0);
	radix_retract(&e->checksum_check, 0); /* one flipped bit does not bring it back */
	radix_crash_point("table_checksum_unknown");
	if (!kind)
		return;
	memcpy(e->checksum, checksum, sizeof(e->checksum));
	radix_publish(&e->checksum_kind, kind); /* the check says whether this is all */
	radix_publish(&e->checksum_check, radix_table_checksum_check(t, entry));
	radix_crash_point("table_checksum_known");
}

void radix_table_checksum_below(struct radix_table *t, uint32_t entry)
{
	struct radix_entry *e = &t->v[entry];

	radix_retract(&e->checksum_kind, (uint8_t)(e->checksum_kind | RADIX_CHECKSUM_BELOW));
	radix_crash_point("table_checksum_below");
}
