/*
 * lease.c - handles of leases.
 *
 * The caller holds handles {generation, place}, not the daemon's ids: when a connection ends every
 * lease of it becomes lost, so a lease of an earlier life is unknown here; no daemon is asked, who
 * could have given the same number to somebody else.  A lost lease keeps its entry until its holder
 * releases it: he may still read its blocks, which the daemon keeps until it hears otherwise.
 *
 * Doubt.  If RESERVE, EXTEND or COMMIT lost its reply to a deadline, the daemon may have moved the
 * lease's cursor without us: a later COMMIT could then publish slots that nobody filled.  Such a
 * lease may only be released.
 *
 * Loads.  The end of a load is told by an EVENT that may come between any two replies; it is kept
 * with its lease until pfx_load_wait asks for it.
 */
#include "clients/c/internal.h"

#include <stdlib.h>

int pfx_lease_add(struct pfx_client *c, struct pfx_namespace *ns, uint64_t wire, uint64_t n_keys,
		  uint64_t *ret_handle)
{
	struct pfx_leases *t = &c->leases;
	struct pfx_lease *l;
	uint32_t idx;

	if (!t->free) {
		uint32_t cap = t->cap ? 2 * t->cap : 16;
		struct pfx_lease *v;

		if (t->n == t->cap) {
			v = realloc(t->v, cap * sizeof(*v));
			if (!v)
				return PFX_NO_MEMORY;
			t->v = v;
			t->cap = cap;
		}
		t->v[t->n] = (struct pfx_lease){ .gen = t->first_gen };
		t->free = ++t->n;
	}
	idx = t->free - 1;
	l = &t->v[idx];
	t->free = l->next;
	*l = (struct pfx_lease){
		.wire = wire, .n_keys = n_keys, .ns = ns, .gen = l->gen, .used = true
	};
	*ret_handle = (uint64_t)l->gen << 32 | (idx + 1);
	return 0;
}

static struct pfx_lease *entry_of(struct pfx_client *c, uint64_t handle)
{
	uint32_t idx = (uint32_t)handle - 1; /* handle 0 wraps, and is out of range */
	struct pfx_lease *l;

	if (idx >= c->leases.n)
		return NULL;
	l = &c->leases.v[idx];
	return l->used && l->gen == (uint32_t)(handle >> 32) ? l : NULL;
}

struct pfx_lease *pfx_lease_find(struct pfx_client *c, uint64_t handle)
{
	struct pfx_lease *l = entry_of(c, handle);

	return l && !l->lost ? l : NULL;
}

void pfx_lease_remove(struct pfx_client *c, struct pfx_lease *lease)
{
	uint32_t idx = (uint32_t)(lease - c->leases.v);

	*lease = (struct pfx_lease){ .gen = lease->gen + 1, .next = c->leases.free };
	c->leases.free = idx + 1;
}

void pfx_lease_lose_all(struct pfx_client *c)
{
	for (uint32_t i = 0; i < c->leases.n; i++) {
		struct pfx_lease *l = &c->leases.v[i];

		c->leases.n_lost += l->used && !l->lost;
		l->lost = l->used;
	}
}

bool pfx_lease_forget(struct pfx_client *c, uint64_t handle)
{
	struct pfx_lease *l = entry_of(c, handle);

	if (!l || !l->lost)
		return false;
	pfx_lease_remove(c, l);
	c->leases.n_lost--;
	return true;
}

void pfx_lease_forget_all(struct pfx_client *c)
{
	for (uint32_t i = 0; c->leases.n_lost && i < c->leases.n; i++) {
		if (c->leases.v[i].lost) {
			pfx_lease_remove(c, &c->leases.v[i]);
			c->leases.n_lost--;
		}
	}
}

bool pfx_lease_unsettled(const struct pfx_client *c)
{
	/* A doubtful one may be revoked, and the answer that said so lost. */
	for (uint32_t i = 0; i < c->leases.n; i++) {
		const struct pfx_lease *l = &c->leases.v[i];

		if (l->used && (l->lost || l->revoked || l->doubtful))
			return true;
	}
	return false;
}

bool pfx_lease_any(const struct pfx_client *c)
{
	for (uint32_t i = 0; i < c->leases.n; i++)
		if (c->leases.v[i].used)
			return true;
	return false;
}

void pfx_lease_deinit(struct pfx_client *c)
{
	free(c->leases.v);
	c->leases = (struct pfx_leases){ 0 };
}

void pfx_lease_loading(struct pfx_lease *l, uint64_t seq)
{
	/*
	 * A lease has one load at a time, and EVENTs come in order: one that has not ended by now
	 * runs still, and the daemon began no other.
	 */
	if (l->load_seq && !l->load_ended)
		return;
	l->load_seq = seq;
	l->load_ended = false;
}

void pfx_lease_loaded(struct pfx_client *c, uint64_t seq, const struct proto_event *event)
{
	for (uint32_t i = 0; i < c->leases.n; i++) {
		struct pfx_lease *l = &c->leases.v[i];

		if (!l->used || l->load_seq != seq || l->wire != event->lease)
			continue;
		l->load_ended = true;
		l->load = (pfx_load_result){ sizeof(l->load), event->n, event->reason };
		return;
	}
}

int pfx_lease_use(struct pfx_client *c, const struct pfx_namespace *ns, uint64_t handle,
		  bool release, struct pfx_lease **ret_lease)
{
	struct pfx_lease *l = pfx_lease_find(c, handle);

	if (!l)
		return pfx_fail(c, PFX_UNKNOWN_LEASE,
				"lease %#llx was released, or its connection has ended",
				(unsigned long long)handle);
	if (l->ns != ns)
		return pfx_fail(c, PFX_ARGUMENT, "lease %#llx is of another namespace",
				(unsigned long long)handle);
	if (l->doubtful && !release)
		return pfx_fail(c, PFX_WRONG_STATE,
				"an earlier call on lease %#llx lost its reply: release it",
				(unsigned long long)handle);
	*ret_lease = l;
	return 0;
}

void pfx_lease_failed(struct pfx_client *c, uint64_t handle, int r, bool changed)
{
	struct pfx_lease *l = pfx_lease_find(c, handle);

	if (!l) /* the connection was dropped, and all leases with it */
		return;
	if (r == PFX_UNKNOWN_LEASE && l->revoked)
		return; /* the daemon says REVOKED once; it is the caller who is done with it */
	if (r == PFX_UNKNOWN_LEASE)
		pfx_lease_remove(c, l);
	else if (r == PFX_REVOKED || r == PFX_DEVICE_LOST)
		l->revoked = true;
	else if (changed || c->in_doubt)
		l->doubtful = true;
}
