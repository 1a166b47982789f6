/*
 * engine_note.c - what the engine writes down, and when.
 *
 * What it guarantees.  Before a step hands out the reply that tells a client of something, the
 * ledger has it: a namespace, a root, a lease, and behind which block it holds.  Nothing that a
 * record names is free for others before the record has gone, or says otherwise; a block that is
 * being committed is held before it is a member.  Places are taken before anything took effect, so
 * that writing never fails.
 *
 * What it relies on.  ledger.c.  A lease's place in the ledger is its place in the engine's table,
 * and the owner of its slots in the block table.
 *
 * A commit, seen from the lease's record, whose halves say A (counts) and B:
 *
 *     A = behind n blocks      B is written: behind the entry that radix_commit() will take
 *     B counts                 no such member: whoever reads it goes by A
 *     radix_commit()           the member is there: B is true
 *
 * When it became no new member after all, A counts again before the place is written anew.
 */
#include "daemon/engine_internal.h"
#include "radix/crash.h"

#include <stdio.h>

static const struct radix_member none = { .entry = RADIX_NONE };

static bool writes(const struct prefixd_engine *e)
{
	return e->ledger.store != NULL;
}

/* ---- tenants, groups, namespaces, roots ------------------------------------------------------ */

int prefixd_note_tenants_room(struct prefixd_engine *e, uint32_t n)
{
	for (uint32_t i = 0; writes(e) && i < n; i++)
		if (prefixd_ledger_room(&e->ledger, PREFIXD_LEDGER_TENANT, i) < 0)
			return -ENOMEM;
	return 0;
}

void prefixd_note_tenants(struct prefixd_engine *e, uint32_t from)
{
	for (uint32_t i = from; writes(e) && i < e->n_tenants; i++) {
		struct prefixd_tenant_record *r = prefixd_ledger_at(&e->ledger,
								    PREFIXD_LEDGER_TENANT, i);

		/* One that is there already is not touched: it must count all the time. */
		if (prefixd_ledger_is(&e->ledger, PREFIXD_LEDGER_TENANT, i) &&
		    strncmp(r->name, e->tenants[i].name, sizeof(r->name)) == 0)
			continue;
		radix_retract(&r->word, 0);
		memset(r->name, 0, sizeof(r->name));
		memcpy(r->name, e->tenants[i].name, strnlen(e->tenants[i].name, sizeof(r->name)));
		prefixd_ledger_sign(&e->ledger, PREFIXD_LEDGER_TENANT, i);
	}
}

int prefixd_note_group_room(struct prefixd_engine *e, uint32_t id, const struct prefixd_cold *cold)
{
	int r = 0;

	if (writes(e))
		r = prefixd_ledger_room(&e->ledger, PREFIXD_LEDGER_GROUP, id);
	if (writes(e) && r == 0 && cold->codec != GPU_CODEC_NONE)
		r = prefixd_ledger_room(&e->ledger, PREFIXD_LEDGER_COLD, id);
	return r;
}

/* Left by a group that is gone, it says nothing: its own group does not ask for one. */
static void note_cold(struct prefixd_engine *e, const struct prefixd_group *g)
{
	struct prefixd_cold_record *r = prefixd_ledger_at(&e->ledger, PREFIXD_LEDGER_COLD, g->id);

	radix_assert(r); /* room was made */
	radix_retract(&r->word, 0);
	r->cold = g->cold;
	r->pad = 0;
	prefixd_ledger_sign(&e->ledger, PREFIXD_LEDGER_COLD, g->id);
}

/*
 * On which GPUs it lies, for a life that may find them in another order, or not at all.  False: on
 * none, or there is no room to say so: then who takes it up cannot tell, as in older ledgers.
 */
static bool note_devices(struct prefixd_engine *e, const struct prefixd_group *g)
{
	struct prefixd_devices_record *r;

	if (g->device != PROTO_DEVICE_CUDA ||
	    prefixd_ledger_room(&e->ledger, PREFIXD_LEDGER_DEVICES, g->id) < 0)
		return false;
	r = prefixd_ledger_at(&e->ledger, PREFIXD_LEDGER_DEVICES, g->id);
	radix_retract(&r->word, 0);
	memset(r->ids, 0, sizeof(r->ids));
	memcpy(r->ids, g->device_ids, g->n_ranks * sizeof(r->ids[0]));
	prefixd_ledger_sign(&e->ledger, PREFIXD_LEDGER_DEVICES, g->id);
	return true;
}

void prefixd_note_group(struct prefixd_engine *e, struct prefixd_group *g)
{
	struct prefixd_group_record *r;
	bool devices;

	if (!writes(e))
		return;
	devices = note_devices(e, g);
	if (g->cold.codec != GPU_CODEC_NONE)
		note_cold(e, g);
	r = prefixd_ledger_at(&e->ledger, PREFIXD_LEDGER_GROUP, g->id);
	r->slot_bytes = g->slot_bytes;
	r->n_slots = g->n_slots;
	r->n_host = g->n_host;
	r->n_entries = g->n_entries;
	r->tiers = (uint16_t)((e->config.redis ? PREFIXD_GROUP_REDIS : 0) |
			      (g->cold.codec != GPU_CODEC_NONE ? PREFIXD_GROUP_COLD : 0) |
			      (devices ? PREFIXD_GROUP_DEVICES : 0));
	r->n_ranks = (uint16_t)(g->n_ranks > 1 ? g->n_ranks : 0);
	r->pool = g->pool;
	prefixd_ledger_sign(&e->ledger, PREFIXD_LEDGER_GROUP, g->id);
	g->noted = true;
}

void prefixd_note_group_gone(struct prefixd_engine *e, struct prefixd_group *g)
{
	struct prefixd_group_record *r;

	if (!writes(e) || !g->noted)
		return;
	r = prefixd_ledger_at(&e->ledger, PREFIXD_LEDGER_GROUP, g->id);
	radix_retract(&r->word, 0);
	g->noted = false;
}

int prefixd_note_ns_room(struct prefixd_engine *e, uint32_t *ret_record)
{
	*ret_record = RADIX_NONE;
	if (!writes(e))
		return 0;
	return prefixd_ledger_take(&e->ledger, PREFIXD_LEDGER_NS, ret_record);
}

void prefixd_note_ns(struct prefixd_engine *e, const struct prefixd_namespace *ns)
{
	struct prefixd_ns_record *r;

	_Static_assert(PREFIXD_NS_TEXT_MAX >= 255 * 3 + 32 + 64 + 5, "OPEN's texts fit");
	if (!writes(e))
		return;
	r = prefixd_ledger_at(&e->ledger, PREFIXD_LEDGER_NS, ns->record);
	radix_assert(r); /* taken before */
	memset(r->text, 0, sizeof(r->text));
	memset(r->epoch, 0, sizeof(r->epoch));
	r->slot_bytes = ns->group->slot_bytes;
	r->id = ns->id;
	r->group = ns->group->id;
	r->mode = (uint32_t)ns->mode | ns->window << 8;
	r->block_tokens = ns->block_tokens;
	r->key_len = ns->key_len;
	r->token_bytes = ns->token_bytes;
	r->extra = ns->extra;
	r->n_ranks = (uint16_t)(ns->group->n_ranks > 1 ? ns->group->n_ranks : 0);
	r->text_len = (uint32_t)ns->text_len;
	memcpy(r->digest, ns->digest, sizeof(r->digest));
	memcpy(r->family, ns->family, sizeof(r->family));
	memcpy(r->text, ns->text, ns->text_len);
	prefixd_ledger_epoch_set(r, ns->epoch.n, ns->epoch.nonce);
	prefixd_ledger_sign(&e->ledger, PREFIXD_LEDGER_NS, ns->record);
}

void prefixd_note_ns_again(struct prefixd_engine *e, struct prefixd_namespace *ns, uint32_t record)
{
	uint32_t was = ns->record;

	ns->record = record;
	prefixd_note_ns(e, ns);
	/* Of two with one digest the next life takes up one: a kill here costs nothing. */
	prefixd_note_ns_gone(e, was);
}

void prefixd_note_ns_gone(struct prefixd_engine *e, uint32_t record)
{
	if (writes(e) && record != RADIX_NONE)
		prefixd_ledger_put(&e->ledger, PREFIXD_LEDGER_NS, record);
}

void prefixd_note_epoch(struct prefixd_engine *e, const struct prefixd_namespace *ns)
{
	if (writes(e))
		prefixd_ledger_epoch_set(
			prefixd_ledger_at(&e->ledger, PREFIXD_LEDGER_NS, ns->record), ns->epoch.n,
			ns->epoch.nonce);
}

int prefixd_note_root_room(struct prefixd_engine *e, struct prefixd_root *r)
{
	r->record = RADIX_NONE;
	return writes(e) ? prefixd_ledger_take(&e->ledger, PREFIXD_LEDGER_ROOT, &r->record) : 0;
}

void prefixd_note_root(struct prefixd_engine *e, const struct prefixd_root *root)
{
	struct prefixd_root_record *r;

	if (!writes(e))
		return;
	r = prefixd_ledger_at(&e->ledger, PREFIXD_LEDGER_ROOT, root->record);
	r->epoch_n = root->ns->epoch.n;
	r->epoch_nonce = root->ns->epoch.nonce;
	r->root = root->index_root;
	r->group = root->ns->group->id;
	r->ns = root->ns->id;
	r->tenant = root->tenant;
	memcpy(r->digest, root->ns->digest, sizeof(r->digest));
	r->salt_len = root->salt_len;
	memset(r->salt, 0, sizeof(r->salt));
	if (root->salt_len)
		memcpy(r->salt, root->salt, root->salt_len);
	prefixd_ledger_sign(&e->ledger, PREFIXD_LEDGER_ROOT, root->record);
}

void prefixd_note_root_gone(struct prefixd_engine *e, const struct prefixd_root *r)
{
	if (writes(e) && r->record != RADIX_NONE)
		prefixd_ledger_put(&e->ledger, PREFIXD_LEDGER_ROOT, r->record);
}

/* ---- sessions -------------------------------------------------------------------------------- */

static struct prefixd_session_record *session_record(const struct prefixd_engine *e, uint32_t place)
{
	return prefixd_ledger_at(&e->ledger, PREFIXD_LEDGER_SESSION, place);
}

int prefixd_note_session(struct prefixd_engine *e, struct prefixd_session *s)
{
	struct prefixd_session_record *r;

	if (!writes(e) || s->record != RADIX_NONE)
		return 0;
	if (prefixd_ledger_take(&e->ledger, PREFIXD_LEDGER_SESSION, &s->record) < 0)
		return -ENOMEM;
	r = session_record(e, s->record);
	r->boot = s->boot;
	r->instance = s->instance;
	r->start_time = s->peer.start_time;
	r->number = s->number;
	r->pid = s->peer.pid;
	r->uid = s->peer.uid;
	r->gid = s->peer.gid;
	r->copies = s->copies;
	r->staged = s->staged;
	memset(r->name, 0, sizeof(r->name));
	memcpy(r->name, s->name, strnlen(s->name, sizeof(r->name)));
	r->users = 1;
	prefixd_ledger_sign(&e->ledger, PREFIXD_LEDGER_SESSION, s->record);
	return 0;
}

/* Leases that wait for their end's grace may outlive the session; its record stays as long. */
static void session_unuse(struct prefixd_engine *e, uint32_t place)
{
	struct prefixd_session_record *r = session_record(e, place);

	if (--r->users == 0)
		prefixd_ledger_put(&e->ledger, PREFIXD_LEDGER_SESSION, place);
}

void prefixd_note_session_gone(struct prefixd_engine *e, const struct prefixd_session *s)
{
	if (writes(e) && s->record != RADIX_NONE)
		session_unuse(e, s->record);
}

/* ---- leases ---------------------------------------------------------------------------------- */

static struct radix_member last_of(const struct radix_index *ix, const struct radix_place *at)
{
	struct radix_member m;

	return radix_path_members(ix, at, 1, &m) ? m : none;
}

static struct radix_member pin_of(const struct prefixd_lease *l)
{
	return l->state == PREFIXD_LEASE_ACTIVE ? last_of(l->group->index, &l->pin.at) : none;
}

static struct radix_member donor_of(const struct prefixd_lease *l)
{
	return l->donor_held ? last_of(l->group->index, &l->donor.at) : none;
}

int prefixd_note_lease_room(struct prefixd_engine *e, struct prefixd_lease *l)
{
	if (!writes(e))
		return 0;
	if (prefixd_ledger_room(&e->ledger, PREFIXD_LEDGER_LEASE, l->idx) < 0)
		return -ENOMEM;
	l->record = prefixd_ledger_at(&e->ledger, PREFIXD_LEDGER_LEASE, l->idx);
	return 0;
}

void prefixd_note_lease(struct prefixd_engine *e, const struct prefixd_lease *l)
{
	struct prefixd_session_record *s;
	struct prefixd_lease_name name;

	if (!writes(e))
		return;
	name = (struct prefixd_lease_name){
		.id = l->id,
		.idx = l->idx,
		.session = RADIX_NONE,
		.group = l->group->id,
		.root = l->root ? l->root->index_root : RADIX_NONE,
	};
	if (l->stripe) {
		name.n_ranks = l->stripe->n_ranks;
		name.rank = l->seat ? l->rank : RADIX_NONE;
		name.shared = l->seat ? l->stripe->lease->id : 0;
		name.decision = l->seat ? name.decision : l->stripe->decision->id;
	}
	if (!prefixd_is_shared(l)) {
		s = session_record(e, l->session->record);
		s->users++;
		name.session = l->session->record;
		name.session_check = (uint32_t)s->word;
	}
	prefixd_ledger_lease_begin(l->record, &name, pin_of(l), donor_of(l));
}

static bool same(struct radix_member a, struct radix_member b)
{
	return a.entry == b.entry && (a.entry == RADIX_NONE || a.generation == b.generation);
}

void prefixd_note_lease_moved(struct prefixd_engine *e, const struct prefixd_lease *l)
{
	struct radix_member pin, donor, was_pin, was_donor;

	if (!writes(e))
		return;
	pin = pin_of(l);
	donor = donor_of(l);
	prefixd_ledger_lease_place(l->record, &was_pin, &was_donor);
	if (!same(pin, was_pin) || !same(donor, was_donor))
		prefixd_ledger_lease_move(l->record, pin, donor);
}

void prefixd_note_lease_again(struct prefixd_engine *e, const struct prefixd_lease *l, bool other)
{
	struct radix_member pin = pin_of(l), donor = donor_of(l);

	if (!writes(e))
		return;
	if (other)
		prefixd_ledger_lease_back(l->record);
	prefixd_ledger_lease_move(l->record, pin, donor);
	prefixd_ledger_lease_move(l->record, pin, donor);
}

void prefixd_note_lease_over(struct prefixd_engine *e, const struct prefixd_lease *l)
{
	if (!writes(e) || !l->record->word)
		return;
	prefixd_ledger_lease_end(l->record);
	if (l->record->session != RADIX_NONE)
		session_unuse(e, l->record->session);
}

/* ---- commits --------------------------------------------------------------------------------- */

/* The member that the block will be, if it is one already and lies lower, or is hollow: it gets a
 * device copy, which must not go again before the lease has it. */
static struct radix_member lower_member(const struct prefixd_lease *l, const void *key)
{
	const struct radix_index *ix = l->group->index;
	struct radix_place from = l->pin.at;
	struct radix_match m;
	bool rooted;

	radix_match(ix, &from, key, 1, NULL, &m);
	if (m.n_blocks == 0 && l->root->ns->mode == RADIX_KEYS_DIGEST &&
	    radix_find_digest(ix, l->root->index_root, key, &from, &rooted) == 0)
		radix_match(ix, &from, key, 1, NULL, &m);
	return m.n_blocks ? last_of(ix, &m.end) : none;
}

void prefixd_note_commit(struct prefixd_engine *e, const struct prefixd_lease *l, const void *key)
{
	struct radix_member next = none;

	if (!writes(e))
		return;
	if (prefixd_tiered(e, l->group) || l->root->ns->window)
		next = lower_member(l, key);
	if (next.entry == RADIX_NONE)
		next = radix_next_member(l->group->index);
	prefixd_ledger_lease_move(l->record, next, donor_of(l));
}

void prefixd_note_committed(struct prefixd_engine *e, const struct prefixd_lease *l, bool stored)
{
	struct radix_member pin, donor;

	if (!writes(e) || stored)
		return;
	prefixd_ledger_lease_place(l->record, &pin, &donor);
	if (same(pin, pin_of(l)))
		return; /* a member that lay lower: it was foreseen too */
	prefixd_ledger_lease_back(l->record);
	prefixd_note_lease_moved(e, l);
}

/* ---- invariants ------------------------------------------------------------------------------ */

static const char *lease_wrong(const struct prefixd_engine *e, const struct prefixd_lease *l)
{
	struct radix_member pin, donor;
	struct prefixd_lease_half half[2];
	struct prefixd_lease_name name;
	enum radix_tier tier;
	bool damaged;

	if (l->state == PREFIXD_LEASE_FREE)
		return l->record->word ? "a free lease has a record" : NULL;
	/* Of an earlier life, it is mended when its group is there. */
	if (!prefixd_ledger_lease_read(l->record, l->idx, &name, half, &damaged) ||
	    (!half[0].check && l->state != PREFIXD_LEASE_KEPT))
		return "its record is not whole";
	if (name.id != l->id || name.group != l->group->id ||
	    (l->root && name.root != l->root->index_root) ||
	    (name.session == RADIX_NONE) != prefixd_is_shared(l))
		return "its record is another's";
	if (!prefixd_is_shared(l) &&
	    (!prefixd_ledger_is(&e->ledger, PREFIXD_LEDGER_SESSION, name.session) ||
	     name.session_check != (uint32_t)session_record(e, name.session)->word ||
	     (l->session && name.session != l->session->record)))
		return "its record is another's";
	if (l->state == PREFIXD_LEASE_KEPT)
		return NULL;
	prefixd_ledger_lease_place(l->record, &pin, &donor);
	/* What lies lower may be lost although it is pinned: then nobody reads it either. */
	if ((!same(donor, donor_of(l)) && radix_member_tier(l->group->index, donor, &tier) == 0) ||
	    (!same(pin, pin_of(l)) && radix_member_tier(l->group->index, pin, &tier) == 0))
		return "it does not stand where its record says";
	return NULL;
}

static const char *session_wrong(const struct prefixd_engine *e, const struct prefixd_session *s)
{
	const struct prefixd_session_record *r;
	uint64_t users = 1;

	if (s->record == RADIX_NONE)
		return s->n_leases ? "a session has leases and no record" : NULL;
	r = session_record(e, s->record);
	for (uint32_t i = 0; i < e->n_leases; i++)
		users += e->leases[i]->state != PREFIXD_LEASE_FREE &&
			 e->leases[i]->record->session == s->record;
	if (!prefixd_ledger_is(&e->ledger, PREFIXD_LEDGER_SESSION, s->record) ||
	    r->pid != s->peer.pid || !proto_id_equal(&r->boot, &s->boot) ||
	    !proto_id_equal(&r->instance, &s->instance))
		return "a session has another's record";
	return r->users == users ? NULL : "a session's record has another number of users";
}

static bool ns_agrees(const struct prefixd_engine *e, const struct prefixd_namespace *ns)
{
	const struct prefixd_ns_record *r = prefixd_ledger_at(&e->ledger, PREFIXD_LEDGER_NS,
							      ns->record);
	uint64_t n, nonce;

	if (!prefixd_ledger_is(&e->ledger, PREFIXD_LEDGER_NS, ns->record))
		return false;
	prefixd_ledger_epoch_get(r, &n, &nonce);
	return r->id == ns->id && r->group == ns->group->id && n == ns->epoch.n &&
	       nonce == ns->epoch.nonce && memcmp(r->digest, ns->digest, 32) == 0;
}

static bool root_agrees(const struct prefixd_engine *e, const struct prefixd_root *root)
{
	const struct prefixd_root_record *r = prefixd_ledger_at(&e->ledger, PREFIXD_LEDGER_ROOT,
								root->record);

	return prefixd_ledger_is(&e->ledger, PREFIXD_LEDGER_ROOT, root->record) &&
	       r->root == root->index_root && r->ns == root->ns->id && r->tenant == root->tenant &&
	       r->salt_len == root->salt_len &&
	       (r->salt_len == 0 || memcmp(r->salt, root->salt, r->salt_len) == 0);
}

int prefixd_note_verify(const struct prefixd_engine *e, char *why, size_t why_len)
{
	const char *text = NULL;

	if (!writes(e) || e->ledger.found)
		return 0;
	for (uint32_t i = 0; i < e->n_leases; i++) {
		text = lease_wrong(e, e->leases[i]);
		if (text) {
			snprintf(why, why_len, "lease %u: %s", i, text);
			return 23;
		}
	}
	for (uint32_t i = 0; i < e->sessions.n && !text; i++)
		text = session_wrong(
			e, radix_container_of(e->sessions.v[i], struct prefixd_session, item));
	for (uint32_t i = 0; i < e->namespaces.n && !text; i++)
		if (!ns_agrees(e, radix_container_of(e->namespaces.v[i], struct prefixd_namespace,
						     item)))
			text = "a namespace does not agree with its record";
	for (uint32_t i = 0; i < e->roots.n && !text; i++)
		if (!root_agrees(e, radix_container_of(e->roots.v[i], struct prefixd_root, item)))
			text = "a root does not agree with its record";
	for (uint32_t i = 0; i < e->n_tenants && !text; i++)
		if (!prefixd_ledger_is(&e->ledger, PREFIXD_LEDGER_TENANT, i))
			text = "a tenant has no record";
	for (uint32_t i = 0; i < e->n_groups && !text; i++)
		if (e->groups[i] &&
		    e->groups[i]->noted != prefixd_ledger_is(&e->ledger, PREFIXD_LEDGER_GROUP, i))
			text = "a pool does not agree with its record";
	if (!text)
		return 0;
	snprintf(why, why_len, "the ledger: %s", text);
	return 23;
}
