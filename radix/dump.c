/*
 * dump.c - the tree as text, a line per edge, without a stack: down to the first child, along the
 * siblings, up by the parent.
 */
#include "radix/internal.h"
#include "radix/text.h"

static void indent(struct radix_text *t, uint32_t level)
{
	if (level > 20) {
		radix_text(t, "... ");
		radix_text_u64(t, level);
		radix_text(t, " levels down ");
		return;
	}
	for (uint32_t i = 0; i < level; i++)
		radix_text(t, i + 1 < level ? "|  " : "+--");
}

/* Where its copies are: slots, or how many blocks have their highest copy in which tier. */
static void copies(const struct radix_index *ix, uint32_t node, struct radix_text *t)
{
	const struct radix_node *n = radix_node(ix, node);
	uint32_t device = n->n_blocks;

	if (radix_has_tiers(ix)) {
		const struct radix_low *low = radix_low(ix, node);

		device = low->end[RADIX_TIER_DEVICE];
		if (low->end[RADIX_TIER_HOST] > device) {
			radix_text(t, ", host ");
			radix_text_u64(t, low->end[RADIX_TIER_HOST] - device);
		}
		if (n->n_blocks > low->end[RADIX_TIER_HOST]) {
			radix_text(t, ", redis ");
			radix_text_u64(t, n->n_blocks - low->end[RADIX_TIER_HOST]);
		}
	}
	if (!device)
		return;
	radix_text(t, ", slots ");
	radix_text_u64(t, radix_device_slot(ix, node, 0));
	radix_text(t, "..");
	radix_text_u64(t, radix_device_slot(ix, node, device - 1));
}

static void edge_line(const struct radix_index *ix, uint32_t node, uint32_t level,
		      struct radix_text *t)
{
	const struct radix_node *n = radix_node(ix, node);
	const struct radix_list *it;
	uint32_t run, pins = 0;

	radix_list_foreach(it, &n->pins)
		pins++;
	indent(t, level);
	radix_text(t, n->flags & RADIX_NODE_F_ISLAND ? "island " : "edge ");
	radix_text_u64(t, n->n_blocks);
	radix_text(t, " blocks");
	copies(ix, node, t);
	if (n->n_child) {
		radix_text(t, ", children ");
		radix_text_u64(t, n->n_child);
	}
	if (pins) {
		radix_text(t, ", pins ");
		radix_text_u64(t, pins);
		radix_text(t, " to ");
		radix_text_u64(t, radix_pinned_to(n));
	}
	radix_text(t, ", used ");
	radix_text_u64(t, radix_edge_tick_at(&ix->slab, n, 0));
	if (n->n_steps > 1) {
		radix_text(t, "..");
		radix_text_u64(t, radix_edge_tail_tick(&ix->slab, n, &run));
	}
}

struct dump {
	const struct radix_index *ix;
	uint32_t left;
	void (*line)(void *ctx, const char *text);
	void *ctx;
};

static bool say(struct dump *d, const char *text)
{
	if (!d->left)
		return false;
	if (--d->left == 0)
		text = "... cut here";
	d->line(d->ctx, text);
	return d->left > 0;
}

static bool dump_list(struct dump *d, uint32_t first)
{
	uint32_t node = first, level = 1;

	while (node != RADIX_NONE) {
		const struct radix_node *n = radix_node(d->ix, node);
		char buffer[320];
		struct radix_text t = { .p = buffer, .cap = sizeof(buffer) };

		edge_line(d->ix, node, level, &t);
		if (!say(d, buffer))
			return false;
		if (n->first_child != RADIX_NONE) {
			node = n->first_child;
			level++;
			continue;
		}
		while (n->next_sib == RADIX_NONE && level > 1) {
			n = radix_node(d->ix, n->parent);
			level--;
		}
		node = n->next_sib;
	}
	return true;
}

static void root_line(const struct radix_root *r, uint32_t number, struct radix_text *t)
{
	radix_text(t, "root ");
	radix_text_u64(t, number);
	radix_text(t, ": namespace ");
	radix_text_u64(t, r->config.ns);
	radix_text(t, ", tenant ");
	radix_text_u64(t, r->config.tenant);
	radix_text(t, r->config.mode == RADIX_KEYS_DIGEST ? ", digests of " : ", tokens, keys of ");
	radix_text_u64(t, r->g.key_len);
	radix_text(t, " bytes, blocks ");
	radix_text_u64(t, r->n_blocks);
	if (r->n_islands) {
		radix_text(t, ", islands ");
		radix_text_u64(t, r->n_islands);
	}
}

void radix_dump(const struct radix_index *ix, uint32_t root, uint32_t max_lines,
		void (*line)(void *ctx, const char *text), void *ctx)
{
	struct dump d = { .ix = ix, .left = max_lines, .line = line, .ctx = ctx };

	for (uint32_t i = 0; i < ix->n_roots; i++) {
		const struct radix_root *r = &ix->roots[i];
		char buffer[200];
		struct radix_text t = { .p = buffer, .cap = sizeof(buffer) };

		if (!r->live || (root != RADIX_NONE && root != i))
			continue;
		root_line(r, i, &t);
		if (!say(&d, buffer) || !dump_list(&d, r->first_child) ||
		    !dump_list(&d, r->first_island))
			return;
	}
}
