/*
 * index.c - one pool group's index: making it, its roots, its slots.  See index.h.
 */
#include "radix/internal.h"
#include "radix/recover.h"

const char *radix_slot_state_to_string(enum radix_slot_state s)
{
	static const char *const names[] = {
#define X(sym, text) [RADIX_SLOT_##sym] = (text),
		RADIX_SLOT_STATES(X)
#undef X
	};

	return (unsigned)s < radix_array_size(names) ? names[s] : "?";
}

const char *radix_remove_reason_to_string(enum radix_remove_reason r)
{
	static const char *const names[] = {
#define X(sym, text) [RADIX_REMOVE_##sym] = (text),
		RADIX_REMOVE_REASONS(X)
#undef X
	};

	return (unsigned)r < radix_array_size(names) ? names[r] : "?";
}

int radix_where_reserve(struct radix_index *ix)
{
	size_t size = ix->table.n * sizeof(uint32_t);

	if (!ix->where_node)
		ix->where_node = radix_take(ix->alloc, size);
	if (!ix->where_idx)
		ix->where_idx = radix_take(ix->alloc, size);
	return ix->where_node && ix->where_idx ? 0 : -ENOMEM;
}

static int ghost_init(struct radix_index *ix, uint32_t n)
{
	if (!n)
		return 0;
	ix->fingerprint = radix_take(ix->alloc, ix->table.n * sizeof(*ix->fingerprint));
	return ix->fingerprint ? radix_ghost_init(&ix->ghost, ix->alloc, n) : -ENOMEM;
}

/* What only an index with lower tiers has. */
static int tiers_init(struct radix_index *ix, const struct radix_index_config *config)
{
	ix->redis = config->redis;
	ix->redis_budget = config->n_entries - config->n_slots - config->n_host;
	if (!config->n_host && !config->redis)
		return 0;
	ix->nodes.tiers = true;
	if (radix_where_reserve(ix) < 0 || radix_slots_count_reads(&ix->slots) < 0 ||
	    ghost_init(ix, config->n_ghosts) < 0)
		return -ENOMEM;
	if (!config->n_host)
		return 0;
	if (radix_slots_init(&ix->host, ix->alloc, config->n_host, NULL, NULL) < 0 ||
	    radix_slots_count_reads(&ix->host) < 0 ||
	    radix_bonus_init(&ix->bonus, ix->alloc, config->n_host) < 0)
		return -ENOMEM;
	return 0;
}

/* Tables that grow begin with room for these. */
static uint32_t members_expected(const struct radix_index_config *config)
{
	return config->redis ? config->n_entries : config->n_slots + config->n_host;
}

int radix_index_make(struct radix_index **ret_ix, const struct radix_index_config *config, bool old)
{
	const struct radix_alloc *alloc = config->alloc;
	struct radix_index *ix;
	int r;

	if (!config->n_slots || config->n_entries >= RADIX_REF_HOLLOW ||
	    config->n_entries < (uint64_t)config->n_slots + config->n_host)
		return -EINVAL;
	ix = radix_take(alloc, sizeof(*ix));
	if (!ix)
		return -ENOMEM;
	*ix = (struct radix_index){
		.alloc = alloc,
		.secret = { config->secret[0], config->secret[1] },
		.coded = config->coded,
		.queue = { .alloc = alloc },
		.lower = { { .alloc = alloc, .tier = RADIX_TIER_HOST },
			   { .alloc = alloc, .tier = RADIX_TIER_REDIS } },
		.windows = { .alloc = alloc, .tier = RADIX_QUEUE_WINDOWS },
		.free_root = RADIX_NONE,
		.reap_root = RADIX_NONE,
	};
	ix->n_expected = members_expected(config);
	radix_slab_init(&ix->slab, alloc);
	radix_nodes_init(&ix->nodes, alloc);
	r = radix_ground_init(&ix->ground, config);
	if (r < 0)
		goto fail;
	radix_table_init(&ix->table, &ix->ground);
	r = (old ? radix_slots_init_old : radix_slots_init)(&ix->slots, alloc, config->n_slots,
							    config->generations, &ix->ground);
	if (r < 0 || radix_map_init(&ix->children, alloc, members_expected(config) / 4) < 0 ||
	    tiers_init(ix, config) < 0) {
		r = -ENOMEM;
		goto fail;
	}
	*ret_ix = ix;
	return 0;
fail:
	radix_index_free(ix);
	return r;
}

int radix_index_new(struct radix_index **ret_ix, const struct radix_index_config *config)
{
	struct radix_store_info info;
	struct radix_index *ix;
	int r;

	if (config->store && radix_store_look(config->store, NULL, &info) != RADIX_STORE_EMPTY)
		return -EINVAL;
	r = radix_index_make(&ix, config, false);
	if (r < 0)
		return r;
	radix_head_write(ix->ground.head, config);
	*ret_ix = ix;
	return 0;
}

struct radix_index *radix_index_free(struct radix_index *ix)
{
	if (!ix)
		return NULL;
	radix_slots_deinit(&ix->slots);
	radix_cuts_free(ix);
	radix_give(ix->alloc, ix->where_node, ix->table.n * sizeof(uint32_t));
	radix_give(ix->alloc, ix->where_idx, ix->table.n * sizeof(uint32_t));
	radix_give(ix->alloc, ix->fingerprint, ix->table.n * sizeof(*ix->fingerprint));
	radix_table_deinit(&ix->table);
	radix_ground_deinit(&ix->ground);
	radix_map_deinit(&ix->children);
	radix_map_deinit(&ix->digests);
	radix_queue_deinit(&ix->queue);
	radix_queue_deinit(&ix->lower[0]);
	radix_queue_deinit(&ix->lower[1]);
	radix_queue_deinit(&ix->windows);
	radix_slots_deinit(&ix->host);
	radix_bonus_deinit(&ix->bonus);
	radix_ghost_deinit(&ix->ghost);
	radix_nodes_deinit(&ix->nodes);
	radix_slab_deinit(&ix->slab);
	radix_give(ix->alloc, ix->roots, ix->cap_roots * sizeof(*ix->roots));
	radix_give(ix->alloc, ix, sizeof(*ix));
	return NULL;
}

/* ---- roots ----------------------------------------------------------------------------------- */

static int roots_reserve(struct radix_index *ix)
{
	uint32_t cap = ix->cap_roots ? ix->cap_roots * 2 : 16;
	struct radix_root *roots;

	if (ix->free_root != RADIX_NONE || ix->n_roots < ix->cap_roots)
		return 0;
	roots = radix_take(ix->alloc, cap * sizeof(*roots));
	if (!roots)
		return -ENOMEM;
	if (ix->n_roots)
		memcpy(roots, ix->roots, ix->n_roots * sizeof(*roots));
	radix_give(ix->alloc, ix->roots, ix->cap_roots * sizeof(*ix->roots));
	ix->roots = roots;
	ix->cap_roots = cap;
	return 0;
}

/* What only digest mode needs, with the first root of that mode. */
int radix_digests_reserve(struct radix_index *ix)
{
	if (radix_where_reserve(ix) < 0)
		return -ENOMEM;
	if (!ix->digests.slots)
		return radix_map_init(&ix->digests, ix->alloc, (uint64_t)ix->n_expected * 2);
	return 0;
}

bool radix_root_config_ok(const struct radix_root_config *config)
{
	return config->key_len && config->key_len <= RADIX_KEY_MAX &&
	       config->token_bytes <= config->key_len &&
	       (config->mode != RADIX_KEYS_DIGEST || config->key_len <= RADIX_DIGEST_MAX);
}

static uint64_t root_check(const struct radix_root_config *c)
{
	struct {
		uint32_t mode, key_len, block_tokens, token_bytes, ns, tenant;
		uint8_t name[16];
	} fields = {
		.mode = c->mode,
		.key_len = c->key_len,
		.block_tokens = c->block_tokens,
		.token_bytes = c->token_bytes,
		.ns = c->ns,
		.tenant = c->tenant,
	};

	memcpy(fields.name, c->name, sizeof(fields.name));
	return radix_hash(&fields, sizeof(fields), 0);
}

void radix_root_init(struct radix_index *ix, uint32_t i, const struct radix_root_config *config)
{
	ix->root_serial++;
	ix->roots[i] = (struct radix_root){
		.config = *config,
		.g = radix_geometry_of(config->key_len),
		.chain = radix_hash(&ix->root_serial, sizeof(ix->root_serial), ix->secret[1]),
		.check = root_check(config),
		.refs = 1,
		.first_child = RADIX_NONE,
		.first_island = RADIX_NONE,
		.next = RADIX_NONE,
		.live = true,
	};
	ix->live_roots++;
}

int radix_root_new(struct radix_index *ix, const struct radix_root_config *config,
		   uint32_t *ret_root)
{
	uint32_t i;

	if (!radix_root_config_ok(config))
		return -EINVAL;
	if (roots_reserve(ix) < 0 || (config->window && radix_win_enable(ix) < 0) ||
	    (config->mode == RADIX_KEYS_DIGEST && radix_digests_reserve(ix) < 0))
		return -ENOMEM;
	i = ix->free_root;
	if (i != RADIX_NONE)
		ix->free_root = ix->roots[i].next;
	else
		i = ix->n_roots++;
	radix_root_init(ix, i, config);
	*ret_root = i;
	return 0;
}

static void root_free(struct radix_index *ix, uint32_t root)
{
	struct radix_root *r = &ix->roots[root];

	r->live = false;
	r->next = ix->free_root;
	ix->free_root = root;
	ix->live_roots--;
}

void radix_root_ref(struct radix_index *ix, uint32_t root)
{
	ix->roots[root].refs++;
}

bool radix_root_unref(struct radix_index *ix, uint32_t root)
{
	struct radix_root *r = &ix->roots[root];

	radix_assert(r->live && r->refs);
	if (--r->refs || r->n_blocks || r->reaping)
		return false;
	root_free(ix, root);
	return true;
}

/* Called where a root may have lost its last block or pin: radix_root_reap() will name it. */
void radix_root_settle(struct radix_index *ix, uint32_t root)
{
	struct radix_root *r = &ix->roots[root];

	if (r->refs || r->n_blocks || r->reaping)
		return;
	r->reaping = true;
	r->next = ix->reap_root;
	ix->reap_root = root;
}

uint32_t radix_root_reap(struct radix_index *ix, uint64_t *ret_user)
{
	while (ix->reap_root != RADIX_NONE) {
		uint32_t root = ix->reap_root;
		struct radix_root *r = &ix->roots[root];

		ix->reap_root = r->next;
		r->reaping = false;
		if (r->refs || r->n_blocks) /* it came back to life meanwhile */
			continue;
		*ret_user = r->config.user;
		root_free(ix, root);
		return root;
	}
	return RADIX_NONE;
}

uint64_t radix_root_user(const struct radix_index *ix, uint32_t root)
{
	return ix->roots[root].config.user;
}

uint64_t radix_root_n_blocks(const struct radix_index *ix, uint32_t root)
{
	return ix->roots[root].n_blocks;
}

/* ---- slots ----------------------------------------------------------------------------------- */

uint32_t radix_leaves_evict(struct radix_index *ix, uint32_t want, enum radix_remove_reason reason)
{
	uint32_t done = 0;

	while (done < want && ix->queue.n) {
		struct radix_queue_item top = ix->queue.v[0];
		const struct radix_node *n = radix_node(ix, top.node);
		uint32_t run, room;
		uint64_t tick = radix_edge_tail_tick(&ix->slab, n, &run);

		for (uint32_t i = 1; i < 3 && i < ix->queue.n; i++) {
			const struct radix_node *next = radix_node(ix, ix->queue.v[i].node);

			__builtin_prefetch(next, 1); /* one of these is probably the next victim */
			__builtin_prefetch((const uint8_t *)next + 64, 1);
		}
		if (tick != top.tick) {
			radix_queue_update(&ix->queue, &ix->nodes, top.node, tick);
			continue;
		}
		if (radix_win_dead(ix, top.node)) {
			radix_win_sweep(ix);
			continue;
		}
		room = n->n_blocks - radix_pinned_to(n);
		if (!room) { /* set aside; the pin's end queues it again */
			radix_queue_remove(&ix->queue, &ix->nodes, top.node);
			continue;
		}
		run = radix_min_u32(radix_min_u32(run, room), want - done);
		run = radix_win_full(ix, top.node, run);
		radix_tail_remove(ix, top.node, run, reason);
		done += run;
	}
	return done;
}

static bool runs_push(struct radix_runs *runs, uint32_t slot)
{
	struct radix_run *last = runs->n ? &runs->v[runs->n - 1] : NULL;

	if (last && last->start + last->len == slot) {
		last->len++;
		return true;
	}
	if (runs->n == runs->cap) {
		runs->full = true;
		return false;
	}
	runs->v[runs->n++] = (struct radix_run){ .start = slot, .len = 1 };
	return true;
}

void radix_reserve(struct radix_index *ix, uint32_t owner, uint32_t want, struct radix_runs *runs,
		   uint32_t *ret_granted)
{
	uint64_t free = ix->slots.count[RADIX_SLOT_FREE];
	uint32_t granted = 0;

	if (free < want) {
		struct radix_room room;

		radix_make_room(ix, RADIX_TIER_DEVICE, want - (uint32_t)free, 0, NULL, 0, &room);
	}
	while (granted < want) {
		uint32_t slot = radix_slots_take(&ix->slots, owner);

		if (slot == RADIX_NONE)
			break;
		if (!runs_push(runs, slot)) {
			radix_slots_free(&ix->slots, slot);
			break;
		}
		granted++;
	}
	*ret_granted = granted;
}

int radix_slot_discard(struct radix_index *ix, uint32_t owner, uint32_t slot, bool quarantine)
{
	enum radix_slot_state state;

	if (slot >= ix->slots.n || ix->slots.owner[slot] != owner)
		return RADIX_E_STATE;
	state = ix->slots.state[slot];
	if (state != RADIX_SLOT_RESERVED && state != RADIX_SLOT_OWN)
		return RADIX_E_STATE;
	if (quarantine)
		radix_slots_set(&ix->slots, slot, RADIX_SLOT_QUARANTINED);
	else
		radix_slots_free(&ix->slots, slot);
	return 0;
}

int radix_quarantine_end(struct radix_index *ix, uint32_t slot)
{
	if (slot >= ix->slots.n || ix->slots.state[slot] != RADIX_SLOT_QUARANTINED)
		return RADIX_E_STATE;
	if (ix->slots.reads && ix->slots.reads[slot])
		return RADIX_E_STATE; /* a member's that went; the end of the move frees it */
	radix_slots_free(&ix->slots, slot);
	return 0;
}

uint32_t radix_owner_next(const struct radix_index *ix, uint32_t owner, uint32_t *it)
{
	const struct radix_slots *s = &ix->slots;

	for (; *it < s->n; ++*it) {
		if (s->owner[*it] == owner &&
		    (s->state[*it] == RADIX_SLOT_RESERVED || s->state[*it] == RADIX_SLOT_OWN))
			return (*it)++;
	}
	return RADIX_NONE;
}

uint32_t radix_owner_discard(struct radix_index *ix, uint32_t owner)
{
	struct radix_slots *s = &ix->slots;
	uint32_t n = 0;

	for (uint32_t i = 0; i < s->n; i++) {
		bool his = s->state[i] == RADIX_SLOT_RESERVED || s->state[i] == RADIX_SLOT_OWN ||
			   s->state[i] == RADIX_SLOT_QUARANTINED;

		if (s->owner[i] != owner || !his || (s->reads && s->reads[i]))
			continue;
		radix_slots_free(s, i);
		n++;
	}
	return n;
}

uint64_t radix_reuse_counter(const struct radix_index *ix)
{
	return ix->slots.reuse;
}

uint64_t radix_slot_generation(const struct radix_index *ix, uint32_t slot)
{
	return ix->slots.generation[slot];
}

enum radix_slot_state radix_slot_state(const struct radix_index *ix, uint32_t slot)
{
	return ix->slots.state[slot];
}

/* ---- removing -------------------------------------------------------------------------------- */

uint32_t radix_evict(struct radix_index *ix, uint32_t n, enum radix_remove_reason reason)
{
	return radix_has_tiers(ix) ? radix_tiers_evict(ix, n, reason)
				   : radix_leaves_evict(ix, n, reason);
}

/* Children before their edge, by a mark instead of a stack; a finished edge may be gone. */
static void flush_list(struct radix_index *ix, uint32_t first, enum radix_remove_reason reason,
		       uint64_t *removed)
{
	uint32_t node = first;

	while (node != RADIX_NONE) {
		struct radix_node *n = radix_node(ix, node);
		uint32_t up, next, room;

		if (n->first_child != RADIX_NONE && !n->mark) {
			n->mark = 1; /* its children first, then itself */
			node = n->first_child;
			continue;
		}
		n->mark = 0;
		up = n->flags & RADIX_NODE_F_ISLAND ? RADIX_NODE_NONE : n->parent;
		next = n->next_sib;
		room = n->n_child ? 0 : n->n_blocks - radix_pinned_to(n);
		if (room) {
			radix_tail_remove(ix, node, room, reason);
			*removed += room;
		}
		node = next != RADIX_NONE ? next : up;
	}
}

uint64_t radix_flush_root(struct radix_index *ix, uint32_t root, enum radix_remove_reason reason)
{
	uint64_t removed = 0;

	ix->no_merge = true;
	flush_list(ix, ix->roots[root].first_child, reason, &removed);
	flush_list(ix, ix->roots[root].first_island, reason, &removed);
	ix->no_merge = false;
	return removed;
}

/* ---- statistics ------------------------------------------------------------------------------ */

void radix_index_stats(const struct radix_index *ix, struct radix_stats *ret_stats)
{
	struct radix_stats s = {
		.n_slots = ix->slots.n,
		.removed_total = ix->removed_total,
		.stored_total = ix->stored_total,
		.duplicate_total = ix->duplicate_total,
		.attached_total = ix->attached_total,
		.found_total = ix->found_total,
		.restored_total = ix->restored_total,
		.n_blocks = ix->table.n_ready,
		.n_nodes = ix->nodes.n_live,
		.n_roots = ix->live_roots,
		.n_pins = ix->n_pins,
		.table_bytes = (uint64_t)ix->table.n * sizeof(struct radix_entry),
		.key_bytes = ix->table.key_bytes,
		.reuse_counter = ix->slots.reuse,
		.verify_mismatch = ix->children.mismatch + ix->digests.mismatch,
	};
	uint64_t tree = ix->slab.live_bytes;

	memcpy(s.slots, ix->slots.count, sizeof(s.slots));
	memcpy(s.removed, ix->removed, sizeof(s.removed));
	if (radix_has_tiers(ix)) {
		s.n_host = ix->host.n;
		s.n_bonus = ix->bonus.count;
		memcpy(s.tier, ix->tier, sizeof(s.tier));
		memcpy(s.host, ix->host.count, sizeof(s.host));
		memcpy(s.moved, ix->moved, sizeof(s.moved));
		memcpy(s.removed_from, ix->removed_from, sizeof(s.removed_from));
	} else {
		s.tier[RADIX_TIER_DEVICE] = ix->table.n_ready;
		memcpy(s.removed_from[RADIX_TIER_DEVICE], ix->removed, sizeof(s.removed));
	}
	/* edges hold a second copy of each key, which is not counted here */
	s.index_bytes = (tree > s.key_bytes ? tree - s.key_bytes : 0) +
			(uint64_t)ix->nodes.n_live * sizeof(struct radix_node) +
			(ix->children.mask + 1) * sizeof(uint64_t) +
			(uint64_t)ix->queue.cap * sizeof(struct radix_queue_item);
	if (radix_has_tiers(ix))
		s.index_bytes += (uint64_t)ix->nodes.n_live * sizeof(struct radix_low) +
				 ((uint64_t)ix->lower[0].cap + ix->lower[1].cap) *
					 sizeof(struct radix_queue_item);
	if (ix->nodes.windows)
		s.index_bytes += (uint64_t)ix->nodes.n_live * sizeof(struct radix_win) +
				 (uint64_t)ix->windows.cap * sizeof(struct radix_queue_item);
	s.tier[RADIX_TIER_DEVICE] -= ix->n_hollow;
	s.index_bytes += radix_ghost_bytes(&ix->ghost);
	if (ix->fingerprint)
		s.index_bytes += (uint64_t)ix->table.n * sizeof(*ix->fingerprint);
	if (ix->digests.slots)
		s.index_bytes += (ix->digests.mask + 1) * sizeof(uint64_t);
	if (ix->where_node)
		s.index_bytes += (uint64_t)ix->table.n * 2 * sizeof(uint32_t);
	for (uint32_t i = 0; i < ix->n_roots; i++)
		s.n_islands += ix->roots[i].live ? ix->roots[i].n_islands : 0;
	*ret_stats = s;
}
