/*
 * engine_epoch.c - INVALIDATE: nothing that was committed before is served any more.
 *
 * What it guarantees.  A namespace has an epoch, which is part of its roots and of the names that
 * its blocks have across machines.  From the step that raises it on, no MATCH, EXTEND, PROBE or
 * EXPLAIN finds a block of an older epoch, in whatever tier.  Leases keep what they were told until
 * they end; a root of an older epoch goes with the last of them.
 *
 * What it relies on.  A root that is detached is found by nobody: the map of roots passes it over.
 * Epochs are compared by n, then by nonce, so that two that were raised at once are one order
 * everywhere.  A namespace whose epoch is not the first one stays for the engine's life: opened
 * again, it must not begin with the epoch whose values Redis may still have.
 */
#include "daemon/engine_internal.h"

static bool newer(struct prefixd_epoch a, struct prefixd_epoch than)
{
	return a.n > than.n || (a.n == than.n && a.nonce > than.nonce);
}

static void say(struct prefixd_engine *e, const struct prefixd_namespace *ns, bool raised)
{
	struct prefixd_action *a = prefixd_act(e, PREFIXD_ACTION_EPOCH, RADIX_NONE);

	a->group = ns->group->id;
	memcpy(a->u.epoch.digest, ns->digest, sizeof(ns->digest));
	a->u.epoch.epoch = ns->epoch;
	a->u.epoch.raised = raised;
}

/* Without Redis too: a later life may have one, and what is committed now must not look older. */
void prefixd_epoch_ask(struct prefixd_engine *e, const struct prefixd_namespace *ns)
{
	say(e, ns, false);
}

void prefixd_root_left(struct prefixd_engine *e, struct prefixd_root *root)
{
	struct prefixd_group *g = root->ns->group;

	(void)e;
	if (!root->detached || root->n_leases || root->n_holds)
		return;
	g->reap = true;
	(void)radix_flush_root(g->index, root->index_root, RADIX_REMOVE_FLUSH);
}

/* Nobody is told to wait for what will not be found. */
static void stop_leases(struct prefixd_engine *e, const struct prefixd_root *root)
{
	for (uint32_t i = 0; i < e->n_leases && root->n_leases; i++) {
		struct prefixd_lease *l = e->leases[i];

		if (l->state != PREFIXD_LEASE_ACTIVE || l->root != root)
			continue;
		prefixd_pending_resign(e, l);
		prefixd_wait_end(e, l, PROTO_WAIT_FAILED, 0);
	}
}

/* Sets the epoch and takes away what is older.  Returns how many blocks went. */
static uint64_t set(struct prefixd_engine *e, struct prefixd_namespace *ns,
		    struct prefixd_epoch epoch)
{
	uint64_t n = 0;

	if (ns->epoch.n == 0 && ns->epoch.nonce == 0)
		ns->refs++; /* it stays: see above */
	ns->epoch = epoch;
	prefixd_note_epoch(e, ns);
	e->counters.invalidations++;
	prefixd_events_mute(e, true);
	for (uint32_t i = 0; i < e->roots.n; i++) {
		struct prefixd_root *r = radix_container_of(e->roots.v[i], struct prefixd_root,
							    item);

		if (r->ns != ns || r->detached)
			continue;
		r->detached = true;
		ns->group->reap = true;
		stop_leases(e, r);
		prefixd_loads_cut(e, r);
		n += radix_flush_root(ns->group->index, r->index_root, RADIX_REMOVE_FLUSH);
	}
	prefixd_events_mute(e, false);
	prefixd_events_cleared(e, ns->id);
	prefixd_room_stir(e, ns->group);
	return n;
}

void prefixd_invalidate(struct prefixd_engine *e, struct prefixd_event *event)
{
	event->ret_n = 0;
	for (uint32_t i = 0; i < e->namespaces.n; i++) {
		struct prefixd_namespace *ns = radix_container_of(e->namespaces.v[i],
								  struct prefixd_namespace, item);

		if (ns->id != event->u.invalidate.ns)
			continue;
		event->ret_n =
			set(e, ns,
			    (struct prefixd_epoch){ ns->epoch.n + 1, event->u.invalidate.nonce });
		say(e, ns, true);
		return;
	}
}

void prefixd_epoch_seen(struct prefixd_engine *e, const struct prefixd_event *event)
{
	struct prefixd_namespace *ns = prefixd_namespace_find(e, event->u.epoch.digest);

	if (ns && newer(event->u.epoch.epoch, ns->epoch)) /* its pool may still be made */
		(void)set(e, ns, event->u.epoch.epoch);
}
