/*
 * near.c - what is close to a block that is not there: partial tails and explanations.
 *
 * Both look at the next block of the edge, or at the newest children of the branch, at most
 * CANDIDATES of them: a node may have thousands of children, and an answer that is good enough now
 * beats the best one later.
 */
#include "radix/internal.h"

enum {
	CANDIDATES = 16
};

struct near {
	struct radix_place place; /* behind the candidate block */
	const uint8_t *key;
	uint32_t slot;
	uint32_t same; /* leading bytes that agree */
};

static uint32_t same_bytes(const uint8_t *a, const uint8_t *b, uint32_t n)
{
	uint32_t i = 0;

	while (i < n && a[i] == b[i])
		i++;
	return i;
}

static void consider(const struct radix_index *ix, const struct radix_place *at, uint32_t node,
		     uint32_t idx, const uint8_t *want, uint32_t len, bool device,
		     struct near *best)
{
	const struct radix_node *n = radix_node(ix, node);
	struct radix_geometry g = ix->roots[at->root].g;
	const uint8_t *key = radix_edge_key(n, g, idx);
	uint32_t same = same_bytes(key, want, len);

	if (best->key && same <= best->same)
		return;
	if (device && radix_device_slot(ix, node, idx) >= RADIX_HOLLOW)
		return;
	best->key = key;
	best->same = same;
	best->slot = radix_device_slot(ix, node, idx);
	best->place = (struct radix_place){
		.root = at->root, .node = node, .idx = idx + 1, .depth = at->depth + 1
	};
}

/* device: only blocks with a device copy. */
static struct near nearest(const struct radix_index *ix, const struct radix_place *at,
			   const void *want, uint32_t len, bool device)
{
	struct near best = { 0 };
	uint32_t child;

	if (radix_place_is_edge(at)) {
		const struct radix_node *n = radix_node(ix, at->node);

		if (at->idx < n->n_blocks) {
			consider(ix, at, at->node, at->idx, want, len, device, &best);
			return best;
		}
		child = n->first_child;
	} else {
		child = at->node == RADIX_NODE_NONE ? ix->roots[at->root].first_child : RADIX_NONE;
	}
	for (uint32_t i = 0; i < CANDIDATES && child != RADIX_NONE; i++) {
		consider(ix, at, child, 0, want, len, device, &best);
		child = radix_node(ix, child)->next_sib;
	}
	return best;
}

void radix_partial(const struct radix_index *ix, const struct radix_place *at, const void *tail,
		   uint32_t n_tokens, struct radix_place *ret_donor, uint32_t *ret_slot,
		   uint32_t *ret_tokens)
{
	const struct radix_root *root = &ix->roots[at->root];
	struct near best;

	*ret_tokens = 0;
	if (root->config.mode != RADIX_KEYS_TOKENS || !n_tokens ||
	    n_tokens >= root->config.block_tokens || !root->config.token_bytes)
		return;
	best = nearest(ix, at, tail, n_tokens * 4, true);
	if (!best.key || best.same < 4)
		return;
	*ret_donor = best.place;
	*ret_slot = best.slot;
	*ret_tokens = best.same / 4;
}

int radix_closest(const struct radix_index *ix, const struct radix_place *at, const void *key,
		  uint32_t len, const void **ret_stored, uint32_t *ret_same)
{
	struct near best;

	radix_assert(len <= ix->roots[at->root].g.key_len);
	best = nearest(ix, at, key, len, false);

	if (!best.key)
		return RADIX_E_NOTFOUND;
	*ret_stored = best.key;
	*ret_same = best.same;
	return 0;
}
