/*
 * log.c - records of what became a member and what went.  See log.h.
 *
 * What it guarantees.  Nothing is allocated and nothing fails.  A record is made while the entry is
 * whole: after it was published, before it is taken back.
 */
#include "radix/internal.h"

static uint8_t name_of(const struct radix_index *ix, uint32_t entry, bool digest, uint32_t tag,
		       uint8_t *ret_id)
{
	const struct radix_entry *e = &ix->table.v[entry];

	if (digest) {
		memcpy(ret_id, radix_table_key(&ix->table, entry), e->key_len);
		return (uint8_t)e->key_len;
	}
	memcpy(ret_id, &tag, sizeof(tag));
	memcpy(ret_id + 4, &entry, sizeof(entry));
	memcpy(ret_id + 8, &e->generation, sizeof(e->generation));
	return 16;
}

static struct radix_change *record(const struct radix_index *ix, struct radix_log *log,
				   uint32_t tag, enum radix_change_kind kind, uint32_t entry)
{
	const struct radix_entry *e = &ix->table.v[entry];
	const struct radix_root *root = &ix->roots[e->root];
	struct radix_change *c = radix_log_add(log);

	c->kind = (uint8_t)kind;
	c->ns = e->ns;
	c->tenant = e->tenant;
	c->position = RADIX_NONE;
	c->n_tokens = e->n_tokens;
	c->slot = radix_entry_slot(e) == RADIX_HOLLOW ? RADIX_NONE : radix_entry_slot(e);
	c->tier = (uint8_t)radix_tier_of(e);
	memcpy(c->root, root->config.name, sizeof(c->root));
	c->id_len = name_of(ix, entry, root->config.mode == RADIX_KEYS_DIGEST, tag, c->id);
	return c;
}

static void stored(const struct radix_index *ix, struct radix_log *log, uint32_t tag,
		   uint32_t entry, uint32_t position)
{
	struct radix_change *c = record(ix, log, tag, RADIX_CHANGE_STORED, entry);
	const struct radix_entry *e = &ix->table.v[entry];
	uint32_t parent = radix_entry_parent(e);
	bool digest = ix->roots[e->root].config.mode == RADIX_KEYS_DIGEST;

	if (!digest)
		c->position = position; /* an island's distance from the start is not known */
	if (parent != RADIX_NONE)
		c->parent_len = name_of(ix, parent, digest, tag, c->parent);
}

void radix_log_stored(const struct radix_index *ix, uint32_t entry, uint32_t position)
{
	stored(ix, ix->log, ix->log_tag, entry, position);
}

void radix_log_removed(const struct radix_index *ix, uint32_t entry,
		       enum radix_remove_reason reason)
{
	record(ix, ix->log, ix->log_tag, RADIX_CHANGE_REMOVED, entry)->reason = (uint8_t)reason;
}

void radix_log_moved(const struct radix_index *ix, uint32_t entry, enum radix_tier from)
{
	record(ix, ix->log, ix->log_tag, RADIX_CHANGE_MOVED, entry)->from_tier = (uint8_t)from;
}

void radix_index_log(struct radix_index *ix, struct radix_log *log, uint32_t tag)
{
	ix->log = log;
	ix->log_tag = tag;
}

/* Depth-first without a stack: down to the first child, else on to a sibling of it or above. */
static void members_below(const struct radix_index *ix, uint32_t first, struct radix_log *log,
			  uint32_t tag)
{
	uint32_t node = first, depth = 0;

	while (node != RADIX_NONE) {
		const struct radix_node *n = radix_node(ix, node);

		for (uint32_t i = 0; i < n->n_blocks; i++)
			stored(ix, log, tag, radix_entry_at(ix, node, i), depth + i);
		if (n->first_child != RADIX_NONE) {
			depth += n->n_blocks;
			node = n->first_child;
			continue;
		}
		while (n->next_sib == RADIX_NONE) {
			if (n->flags & RADIX_NODE_F_ISLAND || n->parent == RADIX_NODE_NONE)
				return;
			n = radix_node(ix, n->parent);
			depth -= n->n_blocks;
		}
		node = n->next_sib;
	}
}

void radix_log_members(const struct radix_index *ix, uint32_t root, struct radix_log *log,
		       uint32_t tag)
{
	members_below(ix, ix->roots[root].first_child, log, tag);
	members_below(ix, ix->roots[root].first_island, log, tag);
}
