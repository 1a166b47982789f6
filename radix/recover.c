/*
 * recover.c - an index out of a store.  See recover.h and recover_internal.h.
 *
 *   1. Every entry by itself: does it agree with its check, is its root there, may its key lie
 *      where it says, which copies does it have.
 *   2. What hangs below what; then the members and the tree, in recover_tree.c.
 *   3. The slots: members', those that somebody may still use, and free ones.
 *   4. Nothing can fail any more: entries that are no members become FREE, words that were damaged
 *      or are not true any more are written anew.
 */
#include "radix/recover_internal.h"

enum {
	SCAN_AHEAD = 12
};

/* Beyond this no tick and no generation ever comes. */
#define NUMBER_MAX (UINT64_C(1) << 62)

const char *radix_damage_to_string(enum radix_damage d)
{
	static const char *const names[] = {
#define X(sym, text) [RADIX_DAMAGE_##sym] = (text),
		RADIX_DAMAGES(X)
#undef X
	};

	return (unsigned)d < radix_array_size(names) ? names[d] : "?";
}

/* ---- 1. every entry by itself ---------------------------------------------------------------- */

/* Its device slot; RADIX_NONE; RADIX_HOLLOW.  *ret_whole: the word says so, and truly. */
static uint32_t device_of(const struct radix_index *ix, uint32_t entry, bool *ret_whole)
{
	const struct radix_entry *e = &ix->table.v[entry];
	uint32_t slot = radix_entry_slot(e);
	uint64_t generation = slot < ix->slots.n ? ix->slots.generation[slot] : 0;

	*ret_whole = (slot < ix->slots.n || slot == RADIX_NONE ||
		      (slot == RADIX_HOLLOW && ix->roots[e->root].config.window)) &&
		     e->device == radix_table_device(&ix->table, entry, slot, generation);
	return *ret_whole ? slot : RADIX_NONE;
}

static uint32_t host_of(const struct radix_index *ix, uint32_t entry, bool *ret_whole)
{
	const struct radix_entry *e = &ix->table.v[entry];
	uint32_t slot = radix_entry_host(e);

	*ret_whole = (slot < ix->host.n || slot == RADIX_NONE) &&
		     e->host == radix_table_host(&ix->table, entry, slot);
	return *ret_whole ? slot : RADIX_NONE;
}

/* A slot that two entries claim is neither's: one of them is wrong. */
static uint16_t claim(struct radix_recovery *rc, struct radix_slots *s, uint32_t slot,
		      uint32_t entry, uint16_t flag)
{
	if (slot == RADIX_NONE)
		return 0;
	if (s->entry[slot] == RADIX_NONE) {
		s->entry[slot] = entry;
		return flag;
	}
	rc->flags[s->entry[slot]] &= (uint16_t)~flag;
	rc->flags[s->entry[slot]] |= RADIX_R_MEND;
	return RADIX_R_MEND;
}

static uint16_t copies_of(struct radix_recovery *rc, uint32_t entry)
{
	struct radix_index *ix = rc->ix;
	const struct radix_entry *e = &ix->table.v[entry];
	bool device, host;
	uint32_t slot = device_of(ix, entry, &device);
	uint16_t f;

	if (slot == RADIX_HOLLOW) { /* what else it had went before */
		bool none = host_of(ix, entry, &host) == RADIX_NONE && host &&
			    e->redis == RADIX_REDIS_NO;

		return (uint16_t)(RADIX_R_DEVICE | RADIX_R_HOLLOW | (none ? 0 : RADIX_R_MEND));
	}
	f = claim(rc, &ix->slots, slot, entry, RADIX_R_DEVICE);
	f |= claim(rc, &ix->host, host_of(ix, entry, &host), entry, RADIX_R_HOST);
	if (e->redis == RADIX_REDIS_YES && ix->redis)
		f |= RADIX_R_REDIS;
	/* A commit that was cut short: if its copy counts, the host's is of other bytes. */
	if (radix_checksum_below(e))
		f = (uint16_t)((f & RADIX_R_DEVICE ? f & ~RADIX_R_HOST : f) | RADIX_R_MEND);
	if (!device || !host || (e->redis != RADIX_REDIS_NO && !(f & RADIX_R_REDIS)))
		f |= RADIX_R_MEND;
	return f;
}

static bool root_agrees(const struct radix_index *ix, const struct radix_entry *e)
{
	const struct radix_root *r;

	if (e->root >= ix->n_roots)
		return false;
	r = &ix->roots[e->root];
	return r->live && r->check == e->root_check && r->g.key_len == e->key_len &&
	       r->config.ns == e->ns && r->config.tenant == e->tenant;
}

/* Something that changes while it is a member has to be written anew. */
static bool needs_mending(const struct radix_recovery *rc, uint32_t entry)
{
	const struct radix_entry *e = &rc->ix->table.v[entry];

	return e->use >> 1 > rc->max_tick || e->moving ||
	       (e->checksum_kind &&
		e->checksum_check != radix_table_checksum_check(&rc->ix->table, entry));
}

static int entry_check(struct radix_recovery *rc, uint32_t entry)
{
	struct radix_index *ix = rc->ix;
	const struct radix_entry *e = &ix->table.v[entry];
	int r;

	rc->flags[entry] = 0;
	if (e->state == RADIX_ENTRY_FREE)
		return 0;
	if (!radix_cells_possible(&ix->table.cells, e->key, e->key_len)) {
		radix_r_lose(rc, RADIX_DAMAGE_KEY);
		return 0;
	}
	if (e->state != RADIX_ENTRY_READY ||
	    e->check != radix_table_check_at(e, entry, radix_cells_old(&ix->table.cells, e->key))) {
		radix_r_lose(rc, RADIX_DAMAGE_CHECK);
		return 0;
	}
	if (!root_agrees(ix, e)) {
		radix_r_lose(rc, RADIX_DAMAGE_ROOT);
		return 0;
	}
	r = radix_cells_adopt(&ix->table.cells, e->key, e->key_len);
	if (r < 0)
		return r;
	if (r) {
		radix_r_lose(rc, RADIX_DAMAGE_KEY);
		return 0;
	}
	rc->flags[entry] = copies_of(rc, entry) | RADIX_R_WHOLE;
	if (needs_mending(rc, entry))
		rc->flags[entry] |= RADIX_R_MEND;
	return 0;
}

static int entries_check(struct radix_recovery *rc)
{
	const struct radix_table *t = &rc->ix->table;

	for (uint32_t i = 0; i < rc->n; i++) {
		if (i + SCAN_AHEAD < rc->n) {
			const struct radix_entry *e = &t->v[i + SCAN_AHEAD];

			if (radix_cells_possible(&t->cells, e->key, e->key_len))
				__builtin_prefetch(radix_cells_old(&t->cells, e->key));
		}
		if (entry_check(rc, i) < 0)
			return -ENOMEM;
	}
	return 0;
}

/* ---- 2. what hangs below what ---------------------------------------------------------------- */

static void not_whole(struct radix_recovery *rc, uint32_t entry, enum radix_damage d)
{
	rc->flags[entry] &= (uint16_t)~RADIX_R_WHOLE;
	radix_cells_give(&rc->ix->table.cells, rc->ix->table.v[entry].key);
	radix_r_lose(rc, d);
}

static void list_push(struct radix_recovery *rc, uint32_t *list, uint32_t entry)
{
	rc->next[entry] = *list;
	*list = entry;
}

static void hang(struct radix_recovery *rc, uint32_t entry)
{
	struct radix_index *ix = rc->ix;
	const struct radix_entry *v = ix->table.v;
	uint32_t parent = radix_entry_parent(&v[entry]);
	bool digest = radix_r_digest(rc, entry);

	rc->parent[entry] = RADIX_NONE;
	if (parent == RADIX_NONE &&
	    v[entry].parent == radix_table_parent(&ix->table, entry, RADIX_NONE, false)) {
		list_push(rc, &rc->prompts, entry);
		return;
	}
	if (parent < rc->n && parent != entry && rc->flags[parent] & RADIX_R_WHOLE &&
	    v[parent].root == v[entry].root &&
	    v[entry].parent == radix_table_parent(&ix->table, entry, parent, false)) {
		rc->parent[entry] = parent;
		list_push(rc, &rc->first[parent], entry);
		return;
	}
	if (digest) { /* it is an island, or what it hung below is not there any more */
		list_push(rc, &rc->islands, entry);
		return;
	}
	if (parent < rc->n &&
	    v[entry].parent == radix_table_parent(&ix->table, entry, parent, false))
		not_whole(rc, entry, RADIX_DAMAGE_ORPHAN);
	else
		not_whole(rc, entry, RADIX_DAMAGE_PARENT);
}

static void entries_hang(struct radix_recovery *rc)
{
	for (uint32_t i = 0; i < rc->n; i++) {
		rc->first[i] = RADIX_NONE;
		if (rc->flags[i] & RADIX_R_WHOLE && !(rc->flags[i] & RADIX_R_COPIES))
			not_whole(rc, i, RADIX_DAMAGE_COPY);
	}
	for (uint32_t i = rc->n; i-- > 0;) { /* lists come out in order */
		if (rc->flags[i] & RADIX_R_WHOLE)
			hang(rc, i);
	}
}

/* Whole, but nothing that is a member leads there. */
static void entries_lost(struct radix_recovery *rc)
{
	for (uint32_t i = 0; i < rc->n; i++) {
		if ((rc->flags[i] & (RADIX_R_WHOLE | RADIX_R_MEMBER)) == RADIX_R_WHOLE)
			not_whole(rc, i, RADIX_DAMAGE_ORPHAN);
	}
}

/* ---- 3. slots -------------------------------------------------------------------------------- */

static bool is_member(const struct radix_recovery *rc, uint32_t entry, uint16_t copy)
{
	const uint16_t want = RADIX_R_MEMBER | copy;

	return entry != RADIX_NONE && (rc->flags[entry] & want) == want;
}

/* A slot that no member has: FREE, or who may still use it. */
static enum radix_slot_state state_now(struct radix_recovery *rc, uint32_t slot,
				       uint32_t *ret_owner)
{
	const struct radix_recover_config *c = rc->config;
	enum radix_slot_state state;
	uint32_t owner;
	bool lost = true;

	if (radix_slot_word_read(slot, rc->ix->slots.kept[slot], &state, &owner)) {
		*ret_owner = owner;
		if (state == RADIX_SLOT_FREE)
			return RADIX_SLOT_FREE;
		lost = state == RADIX_SLOT_READY || state == RADIX_SLOT_LEAVING ||
		       owner == RADIX_OWNER_LOST;
		if (!lost && owner != RADIX_OWNER_DAEMON && c->holds && c->holds(c->ctx, owner)) {
			rc->r.n_kept++;
			return RADIX_SLOT_OWN;
		}
	}
	if (lost && c->keep_lost) {
		*ret_owner = RADIX_OWNER_LOST;
		rc->r.n_quarantined++;
		return RADIX_SLOT_QUARANTINED;
	}
	rc->r.n_freed++;
	*ret_owner = 0;
	return RADIX_SLOT_FREE;
}

static void slot_write(struct radix_slots *s, uint32_t slot)
{
	uint64_t word = radix_slot_word(slot, s->state[slot], s->owner[slot]);

	if (s->kept[slot] != word && (s->kept[slot] || s->state[slot] != RADIX_SLOT_FREE))
		radix_retract(&s->kept[slot], word);
}

static void slot_settle(struct radix_recovery *rc, uint32_t slot)
{
	struct radix_slots *s = &rc->ix->slots;
	uint32_t entry = s->entry[slot], owner = 0;
	enum radix_slot_state state = RADIX_SLOT_READY;

	if (is_member(rc, entry, RADIX_R_DEVICE)) {
		enum radix_slot_state was;

		if (!radix_slot_word_read(slot, s->kept[slot], &was, &owner))
			owner = 0;
	} else {
		entry = RADIX_NONE;
		state = state_now(rc, slot, &owner);
	}
	radix_slots_adopt(s, slot, state, owner, entry);
	if (s->generation[slot] > NUMBER_MAX || (state == RADIX_SLOT_FREE && s->generation[slot])) {
		radix_pair_set(s->latest, ++s->reuse);
		radix_retract(&s->generation[slot], s->reuse);
	}
	slot_write(s, slot);
	radix_crash_point("recover_slot");
}

static void slots_settle(struct radix_recovery *rc)
{
	struct radix_index *ix = rc->ix;
	struct radix_slots *s = &ix->slots;
	uint64_t latest = 0;

	s->reuse = radix_pair_get(s->latest, NUMBER_MAX);
	for (uint32_t i = 0; i < s->n; i++) {
		if (s->generation[i] > latest && s->generation[i] <= NUMBER_MAX) {
			latest = s->generation[i];
			s->next = i + 1 < s->n ? i + 1 : 0;
		}
	}
	if (latest > s->reuse)
		s->reuse = latest;
	radix_pair_set(s->latest, s->reuse);
	for (uint32_t i = 0; i < s->n; i++)
		slot_settle(rc, i);
	for (uint32_t i = 0; i < ix->host.n; i++) {
		if (is_member(rc, ix->host.entry[i], RADIX_R_HOST))
			radix_slots_claim(&ix->host, i, ix->host.entry[i]);
		else
			ix->host.entry[i] = RADIX_NONE;
	}
}

/* ---- 4. what the store says ------------------------------------------------------------------ */

static void entry_mend(struct radix_recovery *rc, uint32_t entry)
{
	struct radix_table *t = &rc->ix->table;
	struct radix_entry *e = &t->v[entry];
	uint16_t f = rc->flags[entry];
	const uint64_t no_device = radix_table_device(t, entry, RADIX_NONE, 0);
	const uint64_t no_host = radix_table_host(t, entry, RADIX_NONE);

	if (!(f & RADIX_R_DEVICE) && e->device != no_device) {
		radix_retract(&e->device, no_device);
		rc->r.n_copies_lost++;
	}
	if (!(f & RADIX_R_HOST) && e->host != no_host) {
		radix_retract(&e->host, no_host);
		rc->r.n_copies_lost += !radix_checksum_below(e);
	}
	if (!(f & RADIX_R_REDIS) && e->redis != RADIX_REDIS_NO) {
		radix_retract(&e->redis, RADIX_REDIS_NO);
		rc->r.n_copies_lost++;
	}
	if (e->checksum_kind && e->checksum_check != radix_table_checksum_check(t, entry)) {
		radix_table_checksum(t, entry, 0, NULL);
		rc->r.n_sums_lost++;
	}
	if (radix_checksum_below(e) && f & RADIX_R_DEVICE)
		radix_table_checksum(t, entry, 0, NULL);
	else if (radix_checksum_below(e))
		radix_publish(&e->checksum_kind, radix_checksum_kind(e));
	if (e->use >> 1 > rc->max_tick)
		e->use = 0;
	e->moving = 0;
	radix_crash_point("recover_mended");
}

static void entry_free(struct radix_table *t, uint32_t entry)
{
	struct radix_entry *e = &t->v[entry];

	if (e->state != RADIX_ENTRY_FREE) {
		radix_retract(&e->state, RADIX_ENTRY_FREE);
		radix_crash_point("recover_freed");
		e->generation++;
	}
	e->next_free = t->first_free;
	t->first_free = entry;
}

static void entries_settle(struct radix_recovery *rc)
{
	struct radix_index *ix = rc->ix;
	struct radix_table *t = &ix->table;

	for (uint32_t i = rc->n; i-- > 0;) {
		if (!(rc->flags[i] & RADIX_R_MEMBER)) {
			entry_free(t, i);
			continue;
		}
		t->key_bytes += t->v[i].key_len;
		if (rc->flags[i] & RADIX_R_MEND)
			entry_mend(rc, i);
		if (rc->flags[i] & RADIX_R_ISLAND &&
		    t->v[i].parent != radix_table_parent(t, i, RADIX_NONE, true)) {
			radix_table_reparent(t, i, RADIX_NONE, true);
			rc->r.n_islands++;
		}
	}
	t->n_used = rc->n;
	t->n_ready = rc->n_order;
	radix_pair_set(&t->head->n_used, t->n_used);
}

/* Members that lie in Redis only beyond those that the table has room for: the coldest. */
static void budget(struct radix_recovery *rc)
{
	uint64_t before = rc->ix->table.n_ready;

	if (!radix_has_tiers(rc->ix))
		return;
	radix_low_budget(rc->ix);
	rc->r.damaged[RADIX_DAMAGE_ROOM] = before - rc->ix->table.n_ready;
	rc->r.n_lost += rc->r.damaged[RADIX_DAMAGE_ROOM];
}

static void settle(struct radix_recovery *rc)
{
	struct radix_index *ix = rc->ix;
	const struct radix_pair *tick = &ix->ground.head->tick;

	if (tick->v == ~tick->inverse && rc->max_tick > rc->r.tick)
		rc->r.tick = rc->max_tick; /* used by what is not there any more */
	ix->now = rc->r.tick;
	radix_pair_set(&ix->ground.head->tick, ix->now);
	radix_publish(&ix->ground.head->redis, ix->redis ? RADIX_REDIS_YES : RADIX_REDIS_NO);
	entries_settle(rc);
	slots_settle(rc);
	ix->restored_total = rc->n_order;
	ix->placing = true;
	radix_r_bonuses(rc);
	budget(rc);
}

/* ---- the whole ------------------------------------------------------------------------------- */

static int roots_install(struct radix_index *ix, const struct radix_recover_config *c)
{
	uint32_t n = c->n_roots ? c->roots[c->n_roots - 1].root + 1 : 0, k = c->n_roots;

	if (!n)
		return 0;
	ix->roots = radix_take(ix->alloc, n * sizeof(*ix->roots));
	if (!ix->roots)
		return -ENOMEM;
	ix->cap_roots = n;
	ix->n_roots = n;
	for (uint32_t i = n; i-- > 0;) {
		if (!k || c->roots[k - 1].root != i) {
			ix->roots[i] = (struct radix_root){ .next = ix->free_root };
			ix->free_root = i;
			continue;
		}
		k--;
		radix_root_init(ix, i, &c->roots[k].config);
		if (c->roots[k].config.window && radix_win_enable(ix) < 0)
			return -ENOMEM;
		if (c->roots[k].config.mode == RADIX_KEYS_DIGEST && radix_digests_reserve(ix) < 0)
			return -ENOMEM;
	}
	return 0;
}

static bool config_ok(const struct radix_index_config *config,
		      const struct radix_recover_config *recover)
{
	struct radix_store_info info;

	if (!config->store || !config->generations ||
	    radix_store_look(config->store, config, &info) != RADIX_STORE_INDEX)
		return false;
	for (uint32_t i = 0; i < recover->n_roots; i++) {
		if (!radix_root_config_ok(&recover->roots[i].config) ||
		    recover->roots[i].root >= RADIX_NODE_ISLAND ||
		    (i && recover->roots[i].root <= recover->roots[i - 1].root))
			return false;
	}
	return true;
}

static void recovery_deinit(struct radix_recovery *rc)
{
	const struct radix_alloc *a = rc->ix->alloc;
	size_t n = rc->n ? rc->n : 1;

	radix_give(a, rc->flags, n * sizeof(*rc->flags));
	radix_give(a, rc->parent, n * sizeof(*rc->parent));
	radix_give(a, rc->first, n * sizeof(*rc->first));
	radix_give(a, rc->next, n * sizeof(*rc->next));
	radix_give(a, rc->order, n * sizeof(*rc->order));
	radix_give(a, rc->use, n * sizeof(*rc->use));
}

static int recovery_init(struct radix_recovery *rc)
{
	struct radix_index *ix = rc->ix;
	const struct radix_head *h = ix->ground.head;
	const struct radix_alloc *a = ix->alloc;
	size_t n;

	rc->n = (uint32_t)radix_pair_get(&h->n_used, ix->table.n);
	rc->max_tick = radix_pair_get(&h->tick, NUMBER_MAX);
	rc->prompts = RADIX_NONE;
	rc->islands = RADIX_NONE;
	n = rc->n ? rc->n : 1;
	rc->flags = radix_take(a, n * sizeof(*rc->flags));
	rc->parent = radix_take(a, n * sizeof(*rc->parent));
	rc->first = radix_take(a, n * sizeof(*rc->first));
	rc->next = radix_take(a, n * sizeof(*rc->next));
	rc->order = radix_take(a, n * sizeof(*rc->order));
	rc->use = radix_take(a, n * sizeof(*rc->use));
	if (!rc->flags || !rc->parent || !rc->first || !rc->next || !rc->order || !rc->use)
		return -ENOMEM;
	memset(ix->slots.entry, 0xff, ix->slots.n * sizeof(*ix->slots.entry));
	return radix_where_reserve(ix);
}

static int recover(struct radix_recovery *rc)
{
	int r = roots_install(rc->ix, rc->config);

	if (r == 0)
		r = recovery_init(rc);
	if (r == 0)
		r = entries_check(rc);
	if (r < 0)
		return r;
	entries_hang(rc);
	radix_r_members(rc);
	entries_lost(rc);
	r = radix_r_tree(rc);
	if (r == 0)
		r = radix_r_stands(rc);
	if (r < 0)
		return r;
	settle(rc);
	return 0;
}

int radix_index_recover(struct radix_index **ret_ix, const struct radix_index_config *config,
			const struct radix_recover_config *recover_config,
			struct radix_recovered *ret)
{
	struct radix_recovery rc = { .config = recover_config };
	int r;

	if (!config_ok(config, recover_config))
		return -EINVAL;
	r = radix_index_make(&rc.ix, config, true);
	if (r < 0)
		return r;
	r = recover(&rc);
	recovery_deinit(&rc);
	if (r < 0) {
		radix_index_free(rc.ix);
		return r;
	}
	rc.r.n_taken = rc.ix->table.n_ready;
	*ret_ix = rc.ix;
	*ret = rc.r;
	return 0;
}
