/*
 * engine_restore.c - RESTORE: what the ledger says becomes tenants, groups, namespaces, and
 * sessions that left their leases behind.
 *
 * What it guarantees.  Tenants keep their numbers, groups their numbers and sizes, namespaces their
 * numbers and epochs.  Whoever held leases is an orphan, watched, until his process is gone or says
 * QUIESCED; his leases stand at their old places.  A record that is damaged, or names something
 * that is not there, costs itself and what hangs on it.  Without memory for all of it nothing is
 * taken up: memory that others may still use is then let go of as a whole, and never reused.
 *
 * What it relies on.  It is the first step.  Each group's memory is asked for by POOL_ADOPT; until
 * it is there (engine_adopt.c) the group is CREATING and its leases are KEPT, with nothing but a
 * name.
 */
#include "daemon/engine_internal.h"

static const struct prefixd_ledger *ledger(const struct prefixd_engine *e)
{
	return &e->ledger;
}

/* ---- tenants --------------------------------------------------------------------------------- */

/* Those of the ledger first, by number; then those of the configuration that it does not name. */
static int take_tenants(struct prefixd_engine *e)
{
	const struct prefixd_ledger_array *a = &e->ledger.arrays[PREFIXD_LEDGER_TENANT];
	struct prefixd_tenant *config = e->tenants, *v;
	uint32_t n_config = e->n_tenants, cap, n = 0;

	for (uint32_t i = 0; i < a->n; i++)
		if (prefixd_ledger_is(ledger(e), PREFIXD_LEDGER_TENANT, i))
			n = i + 1;
	cap = n + n_config;
	if (prefixd_note_tenants_room(e, cap) < 0)
		return -ENOMEM;
	v = prefixd_take0(e->alloc, cap * sizeof(*v));
	if (!v)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++) {
		const struct prefixd_tenant_record *r = prefixd_ledger_at(ledger(e),
									  PREFIXD_LEDGER_TENANT, i);

		/* A damaged one keeps its number, without a name that anybody could have. */
		if (prefixd_ledger_is(ledger(e), PREFIXD_LEDGER_TENANT, i))
			memcpy(v[i].name, r->name, sizeof(v[i].name) - 1);
	}
	for (uint32_t i = 0; i < n_config; i++) {
		uint32_t at = 0;

		while (at < n && strncmp(v[at].name, config[i].name, PREFIXD_TENANT_NAME_MAX) != 0)
			at++;
		v[at] = config[i];
		n += at == n;
	}
	e->tenants = v;
	e->n_tenants = n;
	radix_give(e->alloc, config, e->tenants_cap * sizeof(*config));
	e->tenants_cap = cap;
	prefixd_note_tenants(e, 0);
	return 0;
}

/* ---- groups, namespaces ---------------------------------------------------------------------- */

static int groups_room(struct prefixd_engine *e, uint32_t id)
{
	void *v;

	if (id < e->groups_cap)
		return 0;
	v = prefixd_take0(e->alloc, (id + 2) * sizeof(struct prefixd_group *));
	if (!v)
		return -ENOMEM;
	memcpy(v, e->groups, e->groups_cap * sizeof(struct prefixd_group *));
	radix_give(e->alloc, e->groups, (e->groups_cap + 1) * sizeof(struct prefixd_group *));
	e->groups = v;
	e->groups_cap = id + 1;
	return 0;
}

/*
 * How the group's blocks lie below the device.  False: it should be said, and is not: then nothing
 * of the group can be read.
 */
static bool take_cold(struct prefixd_engine *e, const struct prefixd_group_record *r, uint32_t id,
		      struct prefixd_cold *ret)
{
	const struct prefixd_cold_record *c;

	memset(ret, 0, sizeof(*ret));
	if (!(r->tiers & PREFIXD_GROUP_COLD))
		return true;
	if (id >= e->ledger.arrays[PREFIXD_LEDGER_COLD].n ||
	    !prefixd_ledger_is(ledger(e), PREFIXD_LEDGER_COLD, id))
		return false;
	c = prefixd_ledger_at(ledger(e), PREFIXD_LEDGER_COLD, id);
	*ret = c->cold;
	return ret->codec != GPU_CODEC_NONE && prefixd_cold_ok(ret, r->slot_bytes);
}

/* On which GPUs it lies is said, where it should be; else nobody could take the right memory. */
static bool devices_said(struct prefixd_engine *e, const struct prefixd_group_record *r,
			 uint32_t id)
{
	return !(r->tiers & PREFIXD_GROUP_DEVICES) ||
	       (id < e->ledger.arrays[PREFIXD_LEDGER_DEVICES].n &&
		prefixd_ledger_is(ledger(e), PREFIXD_LEDGER_DEVICES, id));
}

static int take_groups(struct prefixd_engine *e)
{
	for (uint32_t i = 0; i < e->ledger.arrays[PREFIXD_LEDGER_GROUP].n; i++) {
		const struct prefixd_group_record *r = prefixd_ledger_at(ledger(e),
									 PREFIXD_LEDGER_GROUP, i);
		struct prefixd_cold cold;
		struct prefixd_group *g;

		if (!prefixd_ledger_is(ledger(e), PREFIXD_LEDGER_GROUP, i))
			continue;
		if (!take_cold(e, r, i, &cold) || !devices_said(e, r, i)) {
			radix_retract(
				(uint64_t *)prefixd_ledger_at(ledger(e), PREFIXD_LEDGER_GROUP, i),
				0);
			continue;
		}
		if (groups_room(e, i) < 0)
			return -ENOMEM;
		g = prefixd_group_make(e, i, r->n_slots, r->n_host, r->slot_bytes,
				       r->n_ranks ? r->n_ranks : 1);
		if (!g)
			return -ENOMEM;
		g->n_entries = r->n_entries;
		g->cold = cold;
		g->pool = r->pool;
		g->kept = g->noted = g->adopting = true;
		prefixd_group_add(e, g, prefixd_group_bytes(g->n_slots, g->slot_bytes, g->n_ranks));
		e->n_adopting++;
		e->restored.n_groups++;
	}
	return 0;
}

/* The texts, one behind the other; false: they are not five. */
static bool texts_set(struct prefixd_namespace *ns)
{
	const char **to[] = { &ns->model, &ns->revision, &ns->dtype, &ns->adapter, &ns->engine };
	const char *p = ns->text, *end = ns->text + ns->text_len;

	for (uint32_t i = 0; i < radix_array_size(to); i++) {
		size_t n = strnlen(p, (size_t)(end - p));

		if (p + n == end)
			return false;
		*to[i] = p;
		p += n + 1;
	}
	return p == end;
}

static int take_ns(struct prefixd_engine *e, const struct prefixd_ns_record *r, uint32_t place)
{
	struct prefixd_group *g = r->group < e->n_groups ? e->groups[r->group] : NULL;
	struct prefixd_namespace *ns;
	uint64_t hash;

	if (!g || g->slot_bytes != r->slot_bytes || g->n_ranks != (r->n_ranks ? r->n_ranks : 1u) ||
	    prefixd_namespace_find(e, r->digest)) {
		prefixd_ledger_put(&e->ledger, PREFIXD_LEDGER_NS, place);
		return 0;
	}
	if (prefixd_set_room(e->alloc, &e->namespaces) < 0)
		return -ENOMEM;
	ns = prefixd_take0(e->alloc, sizeof(*ns));
	if (!ns)
		return -ENOMEM;
	ns->text_len = r->text_len;
	ns->text = radix_take(e->alloc, ns->text_len);
	if (!ns->text) {
		radix_give(e->alloc, ns, sizeof(*ns));
		return -ENOMEM;
	}
	memcpy(ns->text, r->text, ns->text_len);
	radix_assert(texts_set(ns)); /* the record agreed with its check */
	ns->record = place;
	ns->id = r->id;
	ns->group = g;
	ns->mode = r->mode & 0xff;
	ns->block_tokens = r->block_tokens;
	ns->key_len = r->key_len;
	ns->token_bytes = r->token_bytes;
	ns->extra = r->extra;
	ns->window = r->mode >> 8;
	g->windowed = g->windowed || ns->window; /* should it have to be made anew */
	ns->tenant = RADIX_NONE;
	memcpy(ns->digest, r->digest, sizeof(ns->digest));
	memcpy(ns->family, r->family, sizeof(ns->family));
	prefixd_ledger_epoch_get(r, &ns->epoch.n, &ns->epoch.nonce);
	ns->kept = ns->to_ask = true;
	ns->refs = 1u + (ns->epoch.n || ns->epoch.nonce);
	memcpy(&hash, ns->digest, sizeof(hash));
	prefixd_set_add(&e->namespaces, &ns->item, hash);
	e->key_max = ns->key_len > e->key_max ? ns->key_len : e->key_max;
	e->next_ns = ns->id >= e->next_ns ? ns->id + 1 : e->next_ns;
	e->restored.n_namespaces++;
	return 0;
}

/* Of those that differ in the seed alone the oldest is what the others are measured by. */
static void mark_seeds(struct prefixd_engine *e)
{
	for (uint32_t i = 0; i < e->namespaces.n; i++) {
		struct prefixd_namespace *a = radix_container_of(e->namespaces.v[i],
								 struct prefixd_namespace, item);

		for (uint32_t k = 0; k < e->namespaces.n && a->mode == RADIX_KEYS_DIGEST; k++) {
			const struct prefixd_namespace *b = radix_container_of(
				e->namespaces.v[k], struct prefixd_namespace, item);

			if (b->id < a->id && memcmp(a->family, b->family, 32) == 0)
				a->seed_mismatch = true;
		}
	}
}

static int take_namespaces(struct prefixd_engine *e)
{
	for (uint32_t i = 0; i < e->ledger.arrays[PREFIXD_LEDGER_NS].n; i++)
		if (prefixd_ledger_is(ledger(e), PREFIXD_LEDGER_NS, i) &&
		    take_ns(e, prefixd_ledger_at(ledger(e), PREFIXD_LEDGER_NS, i), i) < 0)
			return -ENOMEM;
	mark_seeds(e);
	return 0;
}

/* ---- sessions, leases ------------------------------------------------------------------------ */

struct take {
	struct prefixd_session **of; /* by the place of their record; NULL: none yet */
	uint32_t n_places;
	uint32_t first, n; /* numbers given to them */
};

static int take_session(struct prefixd_engine *e, struct take *t, uint32_t place)
{
	struct prefixd_session_record *r = prefixd_ledger_at(ledger(e), PREFIXD_LEDGER_SESSION,
							     place);
	struct prefixd_session *s;

	if (prefixd_set_room(e->alloc, &e->sessions) < 0)
		return -ENOMEM;
	s = prefixd_take0(e->alloc, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->state = PREFIXD_SESSION_ORPHAN;
	s->number = t->first + t->n++;
	s->record = place;
	s->rank = RADIX_NONE;
	s->peer = (struct prefixd_peer){
		.pid = r->pid, .uid = r->uid, .gid = r->gid, .start_time = r->start_time
	};
	s->copies = r->copies;
	s->staged = r->staged;
	s->version = PROTO_VERSION_HELLO;
	s->instance = r->instance;
	s->boot = r->boot;
	memcpy(s->name, r->name, strnlen(r->name, sizeof(r->name)));
	s->begun_ns = e->now_ns;
	radix_list_init(&s->leases);
	radix_list_init(&s->desks);
	prefixd_set_add(&e->sessions, &s->item, s->number);
	e->n_orphans++;
	r->users = 1;
	t->of[place] = s;
	return 0;
}

void prefixd_lease_of_earlier(struct prefixd_lease *l, struct prefixd_session *s,
			      struct prefixd_group *g, uint64_t id, uint64_t now_ns)
{
	l->restored = true;
	l->id = id;
	l->session = s;
	l->group = g;
	l->begun_ns = now_ns;
	l->uid = s->peer.uid;
	l->pid = s->peer.pid;
	l->instance = s->instance;
	l->boot = s->boot;
	radix_list_add_tail(&s->leases, &l->link);
	s->n_leases++;
	g->n_restored++;
}

static int take_lease(struct prefixd_engine *e, struct take *t,
		      const struct prefixd_lease_name *name)
{
	struct prefixd_group *g = e->groups[name->group];
	struct prefixd_lease *l = e->leases[name->idx];
	struct prefixd_session_record *r;
	struct prefixd_session *s;
	int ret = name->n_ranks ? prefixd_seat_again(e, name) : 0;

	if (ret)
		return ret;
	if (!t->of[name->session] && take_session(e, t, name->session) < 0)
		return -ENOMEM;
	s = t->of[name->session];
	r = prefixd_ledger_at(ledger(e), PREFIXD_LEDGER_SESSION, name->session);
	r->users++;
	radix_list_remove(&l->link); /* it was free */
	l->state = PREFIXD_LEASE_KEPT;
	prefixd_lease_of_earlier(l, s, g, name->id, e->now_ns);
	if (l->seat)
		prefixd_stripe_speaks(l->stripe, s);
	e->restored.n_leases++;
	return 0;
}

static bool session_is_whole(const struct prefixd_engine *e, const struct prefixd_lease_name *name)
{
	const uint64_t *session = prefixd_ledger_at(ledger(e), PREFIXD_LEDGER_SESSION,
						    name->session);

	return session && prefixd_ledger_is(ledger(e), PREFIXD_LEDGER_SESSION, name->session) &&
	       (uint32_t)*session == name->session_check;
}

/* Does what the record names exist? */
static bool is_whole(const struct prefixd_engine *e, const struct prefixd_lease_name *name)
{
	if (name->group >= e->n_groups || !e->groups[name->group])
		return false;
	if (name->n_ranks == 0 || name->rank != RADIX_NONE)
		return session_is_whole(e, name);
	return name->session == RADIX_NONE;
}

static uint32_t leases_used(const struct prefixd_engine *e)
{
	uint32_t n = e->ledger.arrays[PREFIXD_LEDGER_LEASE].n;

	for (; n > 0; n--) {
		const struct prefixd_lease_record *r =
			prefixd_ledger_at(ledger(e), PREFIXD_LEDGER_LEASE, n - 1);

		if (r && r->word)
			break;
	}
	return radix_min_u32(n, 1u << PREFIXD_LEASE_IDX_BITS);
}

/* Those that ranks share come first, so that their seats find them. */
static int take_leases(struct prefixd_engine *e, struct take *t, bool shared)
{
	uint32_t n = leases_used(e);

	for (uint32_t i = 0; i < n; i++) {
		struct prefixd_lease_record *r = prefixd_ledger_at(ledger(e), PREFIXD_LEDGER_LEASE,
								   i);
		struct prefixd_lease_half half[2];
		struct prefixd_lease_name name;
		bool damaged;
		int ret;

		if (!prefixd_lease_at(e, i))
			return -ENOMEM;
		if (!r || !r->word)
			continue;
		/* Where processes are not watched, a lease ends with its socket. */
		if (!prefixd_ledger_lease_read(r, i, &name, half, &damaged) ||
		    !e->config.watches_processes || !is_whole(e, &name)) {
			prefixd_ledger_lease_end(r);
			continue;
		}
		if (shared != (name.n_ranks && name.rank == RADIX_NONE))
			continue;
		ret = shared ? prefixd_stripe_again(e, &name) : take_lease(e, t, &name);
		if (ret < 0)
			return -ENOMEM;
		if (ret)
			prefixd_ledger_lease_end(r);
	}
	return 0;
}

static int take_sessions(struct prefixd_engine *e, struct take *t)
{
	int r;

	t->n_places = e->ledger.arrays[PREFIXD_LEDGER_SESSION].n;
	t->of = prefixd_take0(e->alloc, (t->n_places + 1) * sizeof(struct prefixd_session *));
	if (!t->of)
		return -ENOMEM;
	r = take_leases(e, t, true);
	if (r == 0)
		r = take_leases(e, t, false);
	if (r == 0)
		prefixd_stripes_lonely(e);
	for (uint32_t i = 0; r == 0 && i < t->n_places; i++)
		if (!t->of[i] && prefixd_ledger_is(ledger(e), PREFIXD_LEDGER_SESSION, i))
			prefixd_ledger_put(&e->ledger, PREFIXD_LEDGER_SESSION, i);
	radix_give(e->alloc, t->of, (t->n_places + 1) * sizeof(struct prefixd_session *));
	e->restored.n_sessions = t->n;
	return r;
}

/* ---- the step -------------------------------------------------------------------------------- */

/* Takes back all that was taken up; nothing was emitted yet. */
static void give_up(struct prefixd_engine *e)
{
	prefixd_ledger_wipe(&e->ledger);
	prefixd_stripes_give_up(e);
	for (uint32_t i = 0; i < e->n_leases; i++) {
		struct prefixd_lease *l = e->leases[i];

		if (l->state != PREFIXD_LEASE_KEPT)
			continue;
		l->session->n_leases--;
		prefixd_lease_put_away(e, l);
	}
	for (uint32_t i = e->sessions.n; i-- > 0;) {
		struct prefixd_session *s = radix_container_of(e->sessions.v[i],
							       struct prefixd_session, item);

		s->record = RADIX_NONE;
		prefixd_session_free(e, s);
	}
	while (e->namespaces.n) {
		struct prefixd_namespace *ns = radix_container_of(e->namespaces.v[0],
								  struct prefixd_namespace, item);

		ns->record = RADIX_NONE;
		ns->refs = 1;
		prefixd_namespace_unref(e, ns);
	}
	for (uint32_t i = 0; i < e->n_groups; i++)
		if (e->groups[i]) {
			e->groups[i]->noted = false;
			prefixd_group_free(e, e->groups[i]);
		}
	e->n_groups = e->n_adopting = 0;
	e->restored = (struct prefixd_restored){ 0 };
}

static void emit(struct prefixd_engine *e)
{
	for (uint32_t i = 0; i < e->sessions.n; i++) {
		const struct prefixd_session *s = radix_container_of(e->sessions.v[i],
								     struct prefixd_session, item);
		struct prefixd_action *a = prefixd_act(e, PREFIXD_ACTION_WATCH, s->number);

		a->u.watch.pid = s->peer.pid;
		a->u.watch.start_time = s->peer.start_time;
	}
	for (uint32_t i = 0; i < e->n_groups; i++) {
		const struct prefixd_group *g = e->groups[i];
		struct radix_index_config config;
		struct prefixd_action *a;

		if (!g)
			continue;
		config = prefixd_group_config(e, g);
		a = prefixd_act(e, PREFIXD_ACTION_POOL_ADOPT, RADIX_NONE);
		a->group = i;
		a->u.pool.n_ranks = g->n_ranks;
		a->u.pool.n_slots = g->n_slots;
		a->u.pool.n_host = g->n_host;
		a->u.pool.slot_bytes = g->slot_bytes;
		a->u.pool.cold = g->cold;
		a->u.pool.table_len = radix_store_len(&config);
	}
}

/*
 * Roots of a pool that is not there.  A life that lost it may have been killed before it came to
 * that; the next pool of this number must not be believed to have them.
 */
static void drop_roots(struct prefixd_engine *e)
{
	for (uint32_t i = 0; i < e->ledger.arrays[PREFIXD_LEDGER_ROOT].n; i++) {
		const struct prefixd_root_record *r = prefixd_ledger_at(ledger(e),
									PREFIXD_LEDGER_ROOT, i);

		if (r && r->word && (r->group >= e->n_groups || !e->groups[r->group]))
			prefixd_ledger_put(&e->ledger, PREFIXD_LEDGER_ROOT, i);
	}
}

static int take_all(struct prefixd_engine *e, struct take *t)
{
	if (take_groups(e) < 0 || take_namespaces(e) < 0 || take_sessions(e, t) < 0)
		return -ENOMEM;
	if (e->config.verify != PREFIXD_VERIFY_OFF && e->n_adopting) {
		e->checks = prefixd_take0(e->alloc, PREFIXD_CHECKS * sizeof(*e->checks));
		if (!e->checks)
			return -ENOMEM;
	}
	drop_roots(e);
	/* Each orphan is watched now and forgotten later, a step that ends all of them at most. */
	return prefixd_out_reserve(e, 0, 64 + e->sessions.n + e->n_groups);
}

/* Nothing of an earlier life is left. */
static void write_tenants(struct prefixd_engine *e)
{
	if (prefixd_note_tenants_room(e, e->n_tenants) == 0)
		prefixd_note_tenants(e, 0);
	else
		prefixd_log(e, PREFIXD_LOG_ERROR,
			    "no memory to write down the tenants: what is stored is lost with this "
			    "life");
}

void prefixd_restore(struct prefixd_engine *e, struct prefixd_event *event)
{
	struct take t = { .first = event->u.restore.first_session };

	event->ret_n = 0;
	if (!e->ledger.found) {
		prefixd_adopt_done(e);
		return;
	}
	e->ledger.found = false;
	if (take_tenants(e) < 0 || take_all(e, &t) < 0) {
		give_up(e);
		prefixd_log(e, PREFIXD_LOG_ERROR,
			    "no memory to take up what an earlier life left: beginning anew");
		write_tenants(e);
	}
	prefixd_ledger_collect(&e->ledger);
	prefixd_ledger_life(&e->ledger, &e->config.boot);
	event->ret_n = e->sessions.n;
	emit(e);
	if (e->n_adopting == 0)
		prefixd_adopt_done(e);
}

void prefixd_restore_not(struct prefixd_engine *e)
{
	prefixd_ledger_wipe(&e->ledger);
	prefixd_ledger_life(&e->ledger, &e->config.boot);
	e->restored.done = true;
	write_tenants(e);
}

void prefixd_kept_finish(struct prefixd_engine *e, struct prefixd_lease *l,
			 enum prefixd_lease_end how)
{
	radix_list_remove(&l->link);
	l->session->n_leases--;
	l->session = NULL;
	l->over = true;
	l->how = how;
	if (l->seat)
		prefixd_seat_kept_over(e, l);
}

void prefixd_restored_over(struct prefixd_engine *e, struct prefixd_lease *l)
{
	struct prefixd_group *g = l->group;

	radix_assert(g->n_restored > 0);
	if (--g->n_restored > 0 || g->n_lost == 0)
		return;
	(void)radix_owner_discard(g->index, RADIX_OWNER_LOST);
	g->n_lost = 0;
	prefixd_fence_stir(g);
	prefixd_room_stir(e, g);
}

void prefixd_engine_restored(const struct prefixd_engine *e, struct prefixd_restored *ret)
{
	*ret = e->restored;
}
