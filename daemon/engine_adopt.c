/*
 * engine_adopt.c - a group's memory of an earlier life is there, or is not.
 *
 * What it guarantees.  The index is what the block table says; roots have their old numbers.  Each
 * lease of the group pins what it pinned, and its slots are its own: nothing that an orphan may
 * still read or write is given to others before he is gone, or says QUIESCED.  Slots of blocks that
 * could not be taken are kept back as long as any lease of an earlier life holds something of the
 * group. Without the memory, or without memory for the index, the group is gone as a whole, and
 * OPEN makes it anew.
 *
 * What it relies on.  engine_restore.c made the group, its namespaces and its leases, which may
 * have ended since.
 */
#include "daemon/engine_internal.h"

/* ---- roots ----------------------------------------------------------------------------------- */

struct roots {
	struct radix_recover_root *v;
	uint32_t n, cap;
};

static struct prefixd_namespace *ns_of(const struct prefixd_engine *e,
				       const struct prefixd_group *g,
				       const struct prefixd_root_record *r)
{
	struct prefixd_namespace *ns = prefixd_namespace_find(e, r->digest);

	return ns && ns->group == g && ns->id == r->ns && ns->epoch.n == r->epoch_n &&
			       ns->epoch.nonce == r->epoch_nonce && r->tenant < e->n_tenants
		       ? ns
		       : NULL;
}

static struct prefixd_root *root_in(const struct roots *roots, uint32_t i)
{
	return (struct prefixd_root *)(uintptr_t)roots->v[i].config.user;
}

static void roots_deinit(struct prefixd_engine *e, struct roots *roots)
{
	radix_give(e->alloc, roots->v, roots->cap * sizeof(*roots->v));
	*roots = (struct roots){ 0 };
}

static void roots_drop(struct prefixd_engine *e, struct roots *roots)
{
	for (uint32_t i = 0; i < roots->n; i++)
		prefixd_root_free(e, root_in(roots, i));
	roots_deinit(e, roots);
}

/* By its number in the index; NULL. */
static struct prefixd_root *root_find(const struct roots *roots, uint32_t number)
{
	uint32_t low = 0, n = roots->n;

	while (n > 0) {
		uint32_t mid = low + n / 2;

		if (roots->v[mid].root == number)
			return root_in(roots, mid);
		if (roots->v[mid].root < number)
			low = mid + 1;
		n = roots->v[mid].root < number ? n - n / 2 - 1 : n / 2;
	}
	return NULL;
}

static void sift(struct radix_recover_root *v, uint32_t i, uint32_t n)
{
	for (uint32_t child; (child = 2 * i + 1) < n; i = child) {
		struct radix_recover_root x = v[i];

		child += child + 1 < n && v[child].root < v[child + 1].root;
		if (v[child].root <= x.root)
			return;
		v[i] = v[child];
		v[child] = x;
	}
}

static void sort(struct radix_recover_root *v, uint32_t n)
{
	for (uint32_t i = n / 2; i-- > 0;)
		sift(v, i, n);
	while (n > 1) {
		struct radix_recover_root x = v[0];

		v[0] = v[--n];
		v[n] = x;
		sift(v, 0, n);
	}
}

/* One number, one root: of two records with the same number neither can be trusted. */
static void drop_doubles(struct prefixd_engine *e, struct roots *roots)
{
	uint32_t kept = 0;

	for (uint32_t i = 0, k; i < roots->n; i = k) {
		for (k = i + 1; k < roots->n && roots->v[k].root == roots->v[i].root; k++)
			continue;
		if (k == i + 1) {
			roots->v[kept++] = roots->v[i];
			continue;
		}
		for (uint32_t j = i; j < k; j++)
			prefixd_root_free(e, root_in(roots, j));
	}
	roots->n = kept;
}

/* The group's roots, as its records say.  Records of roots that cannot be are freed. */
static int roots_read(struct prefixd_engine *e, const struct prefixd_group *g, struct roots *ret)
{
	const struct prefixd_ledger_array *a = &e->ledger.arrays[PREFIXD_LEDGER_ROOT];
	struct roots roots = { 0 };

	for (uint32_t i = 0; i < a->n; i++) {
		const struct prefixd_root_record *r = prefixd_ledger_at(&e->ledger,
									PREFIXD_LEDGER_ROOT, i);

		roots.cap += r && r->word && r->group == g->id;
	}
	roots.v = radix_take(e->alloc, (roots.cap + 1) * sizeof(*roots.v));
	roots.cap++;
	if (!roots.v)
		return -ENOMEM;
	for (uint32_t i = 0; i < a->n; i++) {
		const struct prefixd_root_record *r = prefixd_ledger_at(&e->ledger,
									PREFIXD_LEDGER_ROOT, i);
		struct radix_recover_root *to = &roots.v[roots.n];
		struct prefixd_namespace *ns;

		if (!r || !r->word || r->group != g->id)
			continue;
		ns = ns_of(e, g, r);
		if (!ns) {
			prefixd_ledger_put(&e->ledger, PREFIXD_LEDGER_ROOT, i);
			continue;
		}
		if (!prefixd_root_again(e, ns, r, i, &to->config)) {
			roots_drop(e, &roots);
			return -ENOMEM;
		}
		to->root = r->root;
		roots.n++;
	}
	sort(roots.v, roots.n);
	drop_doubles(e, &roots);
	*ret = roots;
	return 0;
}

/* ---- leases ---------------------------------------------------------------------------------- */

struct holder {
	const struct prefixd_engine *e;
	const struct prefixd_group *g;
};

static bool holds(void *ctx, uint32_t owner)
{
	const struct holder *h = ctx;
	const struct prefixd_lease *l = owner < h->e->n_leases ? h->e->leases[owner] : NULL;

	/* Slots reserved for a desk only the daemon wrote to, which was another one. */
	return l && prefixd_is_kept(h->g, l) && !(l->session && l->session->staged);
}

/* Each lease lists the slots that are its own: counted, then listed.  Return: 0, -ENOMEM. */
static int list_slots(struct prefixd_engine *e, const struct prefixd_group *g)
{
	const struct radix_index *ix = g->index;

	for (uint32_t pass = 0; pass < 2; pass++) {
		for (uint32_t i = 0; i < g->n_slots; i++) {
			struct prefixd_lease *l;

			if (radix_slot_state(ix, i) != RADIX_SLOT_OWN)
				continue;
			l = e->leases[radix_slot_owner(ix, i)];
			if (pass)
				l->slots[l->n_own++] = i;
			else
				l->slots_cap++;
		}
		for (uint32_t i = 0; pass == 0 && i < e->n_leases; i++) {
			struct prefixd_lease *l = e->leases[i];

			if (!prefixd_is_kept(g, l) || !l->slots_cap)
				continue;
			l->slots = radix_take(e->alloc, l->slots_cap * sizeof(*l->slots));
			if (l->slots)
				continue;
			for (; i < e->n_leases; i++)
				if (prefixd_is_kept(g, e->leases[i]))
					e->leases[i]->slots_cap = 0;
			return -ENOMEM;
		}
	}
	return 0;
}

/* It is active, and holds what leads to a place, and to another one if that is not NULL. */
static void lease_stand(struct prefixd_engine *e, struct prefixd_lease *l,
			struct prefixd_root *root, const struct radix_place *at,
			const struct radix_place *beside)
{
	struct radix_index *ix = l->group->index;

	l->state = PREFIXD_LEASE_ACTIVE;
	l->root = root;
	radix_root_ref(ix, root->index_root);
	root->n_leases++;
	radix_pin_take(ix, &l->pin, at);
	if (beside)
		radix_pin_take(ix, &l->donor, beside);
	l->donor_held = beside != NULL;
	l->n_path = l->n_given = l->n_device = at->depth;
	l->hit_told = true;
	e->n_active++;
	e->n_restored++;
	if (l->session->copies && !l->stripe)
		radix_list_add_tail(&e->aging, &l->aging);
	prefixd_fence_left(l);
}

/*
 * Damage cut its path more than once: a record has two places, so that what is before the others is
 * held by a lease of its own, which ends as this one does.  There is room for it.
 */
static void lease_beside(struct prefixd_engine *e, const struct prefixd_lease *l,
			 struct prefixd_session *s, struct prefixd_root *root,
			 const struct radix_place *at)
{
	struct prefixd_lease *b = prefixd_lease_new(e);

	radix_assert(b);
	prefixd_lease_of_earlier(b, s, l->group,
				 e->next_serial++ << PREFIXD_LEASE_IDX_BITS | b->idx, e->now_ns);
	lease_stand(e, b, root, at, NULL);
	prefixd_note_lease(e, b);
}

/* Of one that ranks share, each rank has one. */
static void leases_beside(struct prefixd_engine *e, const struct prefixd_lease *l,
			  struct prefixd_root *root, const struct radix_place *at)
{
	if (!l->stripe) {
		lease_beside(e, l, l->session, root, at);
		return;
	}
	for (uint32_t i = 0; i < l->stripe->n_ranks; i++) {
		const struct prefixd_lease *seat = l->stripe->seats[i].lease;

		if (seat && seat->session)
			lease_beside(e, l, seat->session, root, at);
	}
}

/* What it holds of its path is pinned, as it was. */
static void lease_again(struct prefixd_engine *e, struct prefixd_lease *l,
			struct prefixd_root *root, const struct radix_place *places, uint32_t n,
			bool other)
{
	for (uint32_t i = 2; i < n; i++)
		leases_beside(e, l, root, &places[i]);
	lease_stand(e, l, root, &places[0], n > 1 ? &places[1] : NULL);
	prefixd_note_lease_again(e, l, other);
}

/* Its slots, if there are any, are kept from use until its session ends. */
static void lease_slots_only(struct prefixd_engine *e, struct prefixd_lease *l)
{
	for (uint32_t i = 0; i < l->n_own; i++) {
		int r = radix_slot_discard(l->group->index, l->idx, l->slots[i], true);

		radix_assert(r == 0);
	}
	l->state = PREFIXD_LEASE_REVOKED;
	prefixd_note_lease_again(e, l, false);
}

/* Ends a lease that is REVOKED, and its session with the last one. */
static void lease_end(struct prefixd_engine *e, struct prefixd_lease *l)
{
	struct prefixd_session *s = l->session;

	(void)prefixd_lease_unquarantine(e, l);
	if (s && radix_list_empty(&s->leases))
		prefixd_session_die(e, s, PREFIXD_END_DIED);
}

/* Lease i of the group.  Return: how many places it holds; 0: it has none, or none any more. */
static uint32_t places_of(const struct prefixd_group *g, const struct prefixd_lease *l,
			  const struct roots *roots, const struct prefixd_stands *stands,
			  uint32_t i, struct prefixd_root **ret_root, bool *ret_other)
{
	struct prefixd_lease_half half[2];
	struct prefixd_lease_name name;
	bool damaged, is = prefixd_ledger_lease_read(l->record, l->idx, &name, half, &damaged);

	radix_assert(is); /* RESTORE has read it */
	*ret_root = l->over ? NULL : root_find(roots, name.root);
	return *ret_root ? prefixd_stand_places(stands, i, g->index, name.root,
						(*ret_root)->ns->mode == RADIX_KEYS_DIGEST, half,
						ret_other)
			 : 0;
}

/* For those that lease_beside() makes.  Return: 0, -ENOMEM. */
static int leases_room(struct prefixd_engine *e, const struct prefixd_group *g,
		       const struct roots *roots, const struct prefixd_stands *stands)
{
	uint32_t n = 0, more = 0;

	for (uint32_t i = 0; i < e->n_leases; i++) {
		struct prefixd_root *root;
		uint32_t places;
		bool other;

		if (!prefixd_is_kept(g, e->leases[i]))
			continue;
		places = places_of(g, e->leases[i], roots, stands, n++, &root, &other);
		if (places > 2)
			more += (places - 2) *
				(e->leases[i]->stripe ? e->leases[i]->stripe->n_ranks : 1);
	}
	return more && !prefixd_lease_at(e, e->n_leases + more - 1) ? -ENOMEM : 0;
}

static void lease_take(struct prefixd_engine *e, struct prefixd_group *g, struct prefixd_lease *l,
		       const struct roots *roots, const struct prefixd_stands *stands, uint32_t i)
{
	struct prefixd_root *root;
	bool other;
	uint32_t n = places_of(g, l, roots, stands, i, &root, &other);

	if (n) {
		lease_again(e, l, root, stands->places, n, other);
		if (l->stripe)
			prefixd_stripe_adopted(e, l);
		return;
	}
	lease_slots_only(e, l);
	if (l->stripe)
		prefixd_stripe_adopted(e, l);
	else if (l->over && l->how == PREFIXD_END_DIED && e->config.grace_ns &&
		 (l->n_own || g->n_lost)) {
		l->state = PREFIXD_LEASE_QUARANTINE;
		l->due_ns = e->now_ns + e->config.grace_ns;
		radix_list_add_tail(&e->quarantine, &l->link);
	} else if (l->over || (l->n_own == 0 && g->n_lost == 0)) {
		lease_end(e, l);
	}
}

/* ---- the group ------------------------------------------------------------------------------- */

/* What the group's namespaces held for it is over; those that nothing is left of go. */
static void namespaces_settle(struct prefixd_engine *e, const struct prefixd_group *g)
{
	for (uint32_t i = e->namespaces.n; i-- > 0;) {
		struct prefixd_namespace *ns = radix_container_of(e->namespaces.v[i],
								  struct prefixd_namespace, item);

		if (ns->group != g || !ns->kept)
			continue;
		ns->kept = false;
		prefixd_namespace_unref(e, ns);
	}
}

static void add_up(struct radix_recovered *sum, const struct radix_recovered *r)
{
	sum->n_taken += r->n_taken;
	sum->n_lost += r->n_lost;
	for (uint32_t i = 0; i < RADIX_N_DAMAGES; i++)
		sum->damaged[i] += r->damaged[i];
	sum->n_copies_lost += r->n_copies_lost;
	sum->n_sums_lost += r->n_sums_lost;
	sum->n_islands += r->n_islands;
	sum->n_kept += r->n_kept;
	sum->n_quarantined += r->n_quarantined;
	sum->n_freed += r->n_freed;
	sum->tick = r->tick > sum->tick ? r->tick : sum->tick;
}

void prefixd_adopt_done(struct prefixd_engine *e)
{
	const struct prefixd_restored *r = &e->restored;

	for (uint32_t i = 0; i < e->n_groups; i++)
		if (e->groups[i] &&
		    (e->groups[i]->adopting ||
		     (e->groups[i]->checking && e->config.verify == PREFIXD_VERIFY_FULL)))
			return;
	if (e->restored.done)
		return;
	e->restored.done = true;
	if (r->n_groups)
		prefixd_log(e,
			    r->n_groups_lost || r->index.n_lost ? PREFIXD_LOG_WARN
								: PREFIXD_LOG_INFO,
			    "took up %llu blocks of an earlier life in %u of %u pools, lost %llu; "
			    "%u sessions that are not there any more hold %u leases",
			    (unsigned long long)r->index.n_taken, r->n_groups - r->n_groups_lost,
			    r->n_groups, (unsigned long long)r->index.n_lost, r->n_sessions,
			    r->n_leases);
}

/* Nothing of it is left but OPENs that wait, if any. */
static void group_lost(struct prefixd_engine *e, struct prefixd_group *g, const char *why)
{
	prefixd_log(e, PREFIXD_LOG_WARN,
		    "pool %u of %u blocks of %llu bytes, of an earlier life, is lost: %s", g->id,
		    g->n_slots, (unsigned long long)g->slot_bytes, why);
	e->restored.n_groups_lost++;
	e->n_adopting--;
	g->adopting = g->kept = false;
	g->n_lost = 0;
	prefixd_note_group_gone(e, g);
	for (uint32_t i = 0; i < e->n_leases; i++) {
		struct prefixd_lease *l = e->leases[i];

		if (!prefixd_is_kept(g, l))
			continue;
		l->n_own = 0;
		if (l->stripe)
			prefixd_stripe_unadopted(e, l);
		else
			lease_end(e, l);
	}
	for (uint32_t i = 0; i < e->ledger.arrays[PREFIXD_LEDGER_ROOT].n; i++) {
		const struct prefixd_root_record *r = prefixd_ledger_at(&e->ledger,
									PREFIXD_LEDGER_ROOT, i);

		if (r && r->word && r->group == g->id)
			prefixd_ledger_put(&e->ledger, PREFIXD_LEDGER_ROOT, i);
	}
	namespaces_settle(e, g);
}

void prefixd_adopt_failed(struct prefixd_engine *e, struct prefixd_group *g, const char *why)
{
	group_lost(e, g, why);
	if (radix_list_empty(&g->waiting)) {
		prefixd_group_free(e, g);
	} else { /* somebody wants it: it is made anew, of the same size */
		g->n_entries = 0;
		prefixd_group_create(e, g);
	}
	prefixd_adopt_done(e);
}

/* Where the device was lost before the daemon ended there is none. */
static bool any_device_copy(const struct radix_index *ix)
{
	struct radix_stats st;

	radix_index_stats(ix, &st);
	return st.slots[RADIX_SLOT_READY] + st.slots[RADIX_SLOT_LEAVING] > 0;
}

/* Return: 0, or a sentence. */
static const char *index_again(struct prefixd_engine *e, struct prefixd_group *g,
			       const struct prefixd_event *event, struct roots *ret_roots,
			       struct prefixd_stands *ret_stands)
{
	struct radix_index_config config = prefixd_group_config(e, g);
	struct holder h = { e, g };
	struct radix_recover_config recover = {
		.holds = holds,
		.ctx = &h,
		.keep_lost = g->n_restored > 0,
	};
	struct radix_store_info info;
	struct radix_recovered rec;
	struct prefixd_stands stands = { 0 };
	struct roots roots;
	int r;

	config.generations = event->u.pool.generations;
	config.store = event->u.pool.table;
	if (!config.store || radix_store_look(config.store, &config, &info) != RADIX_STORE_INDEX)
		return "its block table is not there, or cannot be read";
	if (prefixd_names_adopted(e, g) < 0 || roots_read(e, g, &roots) < 0)
		return "there is no memory for its roots";
	r = prefixd_stands_read(e, g, &stands);
	recover.roots = roots.v;
	recover.n_roots = roots.n;
	recover.stands = stands.v;
	recover.n_stands = stands.n;
	if (r == 0)
		r = radix_index_recover(&g->index, &config, &recover, &rec);
	if (r == 0 && event->u.pool.fresh && any_device_copy(g->index)) {
		g->index = radix_index_free(g->index);
		r = -ENOENT;
	}
	if (r == 0 && (prefixd_stands_recovered(e, g->index, &stands) < 0 ||
		       leases_room(e, g, &roots, &stands) < 0 || list_slots(e, g) < 0)) {
		g->index = radix_index_free(g->index);
		r = -ENOMEM;
	}
	if (r < 0) {
		prefixd_stands_deinit(e, &stands);
		roots_drop(e, &roots);
		return r == -ENOENT ? "its slots were not kept"
				    : "there is no memory for its index";
	}
	e->restored.n_roots += roots.n;
	g->n_lost = rec.n_quarantined;
	e->tick = rec.tick > e->tick ? rec.tick : e->tick;
	add_up(&e->restored.index, &rec);
	*ret_roots = roots;
	*ret_stands = stands;
	return NULL;
}

/* Whoever mapped the memory of the earlier life is to see that this is another one. */
static void rename_group(struct prefixd_engine *e, struct prefixd_group *g)
{
	prefixd_note_group_gone(e, g);
	prefixd_group_name(e, g);
	prefixd_note_group(e, g);
	g->renewed = true;
}

void prefixd_adopt_ready(struct prefixd_engine *e, struct prefixd_group *g,
			 const struct prefixd_event *event)
{
	struct prefixd_stands stands;
	struct roots roots;
	const char *why = index_again(e, g, event, &roots, &stands);
	uint32_t n = 0;

	if (why) {
		prefixd_act(e, PREFIXD_ACTION_POOL_DESTROY, RADIX_NONE)->group = g->id;
		group_lost(e, g, why);
		prefixd_group_refuse(e, g, why);
		prefixd_adopt_done(e);
		return;
	}
	for (uint32_t i = 0; i < e->n_leases; i++)
		if (prefixd_is_kept(g, e->leases[i]))
			lease_take(e, g, e->leases[i], &roots, &stands, n++);
	prefixd_stands_deinit(e, &stands);
	for (uint32_t i = 0; i < roots.n; i++) /* each came with a reference */
		if (radix_root_unref(g->index, roots.v[i].root))
			prefixd_root_free(e, root_in(&roots, i));
	roots_deinit(e, &roots);
	radix_recover_end(g->index);
	prefixd_group_memory(g, event);
	if (event->u.pool.fresh)
		rename_group(e, g);
	g->adopting = false;
	e->n_adopting--;
	g->reap = true;
	prefixd_roots_reap(e);
	namespaces_settle(e, g);
	if (e->config.verify != PREFIXD_VERIFY_OFF)
		prefixd_checks_begin(e, g);
	if (!g->checking || e->config.verify != PREFIXD_VERIFY_FULL)
		prefixd_group_open(e, g);
	prefixd_adopt_done(e);
}
