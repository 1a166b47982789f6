/*
 * engine_look.c - what the admin socket and the tests may see of the engine; nothing changes here.
 */
#include "daemon/engine_internal.h"
#include "radix/windows.h"

void prefixd_engine_counters(const struct prefixd_engine *e, struct prefixd_counters *ret)
{
	*ret = e->counters;
}

bool prefixd_engine_draining(const struct prefixd_engine *e)
{
	return e->draining;
}

bool prefixd_engine_next_group(const struct prefixd_engine *e, uint32_t *it,
			       struct prefixd_group_info *ret)
{
	while (*it < e->n_groups) {
		const struct prefixd_group *g = e->groups[(*it)++];

		if (!g || g->state == PREFIXD_GROUP_CREATING)
			continue;
		*ret = (struct prefixd_group_info){
			.id = g->id,
			.n_ranks = g->n_ranks,
			.n_slots = g->n_slots,
			.slot_bytes = g->slot_bytes,
			.slot_stride = g->slot_stride,
			.cold = &g->cold,
			.index = g->index,
			.lost = prefixd_group_lost(g),
		};
		return true;
	}
	return false;
}

bool prefixd_engine_next_namespace(const struct prefixd_engine *e, uint32_t *it,
				   struct prefixd_namespace_info *ret)
{
	const struct prefixd_namespace *ns;

	if (*it >= e->namespaces.n)
		return false;
	ns = radix_container_of(e->namespaces.v[(*it)++], struct prefixd_namespace, item);
	*ret = (struct prefixd_namespace_info){
		.id = ns->id,
		.group = ns->group->id,
		.model = ns->model,
		.revision = ns->revision,
		.dtype = ns->dtype,
		.adapter = ns->adapter,
		.engine = ns->engine,
		.mode = ns->mode,
		.block_tokens = ns->block_tokens,
		.key_len = ns->key_len,
		.n_sessions = ns->n_sessions,
		.cold = &ns->group->cold,
	};
	memcpy(ret->digest, ns->digest, sizeof(ret->digest));
	for (uint32_t i = 0; i < e->roots.n; i++) {
		const struct prefixd_root *r = radix_container_of(e->roots.v[i],
								  struct prefixd_root, item);

		if (r->ns == ns)
			ret->n_blocks += radix_root_n_blocks(ns->group->index, r->index_root);
	}
	return true;
}

bool prefixd_engine_next_session(const struct prefixd_engine *e, uint32_t *it, uint64_t now_ns,
				 struct prefixd_session_info *ret)
{
	const struct prefixd_session *s;

	if (*it >= e->sessions.n)
		return false;
	s = radix_container_of(e->sessions.v[(*it)++], struct prefixd_session, item);
	*ret = (struct prefixd_session_info){
		.session = s->number,
		.pid = s->peer.pid,
		.uid = s->peer.uid,
		.name = s->name,
		.orphan = s->state == PREFIXD_SESSION_ORPHAN,
		.age_ns = now_ns > s->begun_ns ? now_ns - s->begun_ns : 0,
		.n_leases = s->n_leases,
		.n_namespaces = s->n_ns,
		.requests = s->n_requests,
		.ttft_us = s->ttft_us,
		.tpot_us = s->tpot_us,
		.input_tokens = s->input_tokens,
		.running = s->running,
		.waiting = s->waiting,
	};
	return true;
}

const char *prefixd_stand_to_string(enum prefixd_stand stand)
{
	static const char *const texts[] = {
#define X(sym, text) [PREFIXD_STAND_##sym] = (text),
		PREFIXD_STANDS(X)
#undef X
	};

	return stand < radix_array_size(texts) ? texts[stand] : "unknown";
}

static enum prefixd_stand stand_of(const struct prefixd_lease *l)
{
	if (l->state == PREFIXD_LEASE_QUARANTINE)
		return PREFIXD_STAND_QUARANTINED;
	if (l->state == PREFIXD_LEASE_REVOKED)
		return PREFIXD_STAND_REVOKED;
	return l->session && l->session->state == PREFIXD_SESSION_ORPHAN ? PREFIXD_STAND_ORPHAN
									 : PREFIXD_STAND_LIVE;
}

/* Where the prompt of an active lease lives, and how it begins. */
static void tell_path(const struct prefixd_engine *e, const struct prefixd_lease *l,
		      struct prefixd_lease_info *ret)
{
	const struct prefixd_root *root = l->root;
	const struct prefixd_field f[] = { { 1, root->salt, root->salt_len } };
	const struct prefixd_field head[] = { { 1, l->head, l->head_len } };

	ret->tenant = root->tenant;
	ret->ns = root->ns->id;
	ret->model = root->ns->model;
	ret->salted = root->salt_len > 0;
	if (ret->salted)
		prefixd_name_digest(e, "prefixd salt", f, 1, ret->salt_digest,
				    sizeof(ret->salt_digest));
	ret->island = l->island;
	ret->mode = root->ns->mode;
	ret->headed = l->head_len > 0;
	if (ret->headed)
		prefixd_name_digest(e, "prefixd head", head, 1, ret->head_digest,
				    sizeof(ret->head_digest));
}

/* What it keeps of its path: through a window the last blocks, else all that have a slot. */
static uint64_t kept_of_path(const struct prefixd_lease *l)
{
	if (l->window)
		return radix_min_u32(l->n_path, l->root->ns->window);
	return l->root->ns->window ? radix_paths_held(l->group->index, &l->pin.at, 1) : l->n_path;
}

static void tell_lease(const struct prefixd_engine *e, const struct prefixd_lease *l,
		       uint64_t now_ns, struct prefixd_lease_info *ret)
{
	*ret = (struct prefixd_lease_info){
		.id = l->id,
		.session = l->session ? l->session->number : RADIX_NONE,
		.pid = l->pid,
		.uid = l->uid,
		.name = l->session ? l->session->name : "",
		.stand = stand_of(l),
		.earlier = l->restored,
		.age_ns = now_ns > l->begun_ns ? now_ns - l->begun_ns : 0,
		.group = l->group->id,
		.slot_bytes = l->group->slot_bytes,
		.n_own = l->n_own,
		.n_reserved = l->n_reserved,
		.own = l->slots,
		.reserved = l->slots ? l->slots + l->res_head : NULL,
		.n_ranks = l->stripe ? l->stripe->n_ranks : 1,
		.stripe = l->stripe,
		.ns = RADIX_NONE,
		.model = "",
	};
	ret->orphan = ret->stand == PREFIXD_STAND_ORPHAN;
	if (l->state != PREFIXD_LEASE_ACTIVE)
		return;
	ret->n_blocks = kept_of_path(l);
	tell_path(e, l, ret);
}

struct prefixd_rank_info prefixd_engine_rank(const struct prefixd_lease_info *lease, uint32_t i)
{
	const struct prefixd_seat *seat = &lease->stripe->seats[i];

	radix_assert(i < lease->n_ranks);
	return (struct prefixd_rank_info){
		.rank = i,
		.came = seat->came,
		.over = seat->came && !seat->lease,
		.pid = seat->lease ? seat->lease->pid : 0,
		.n_committed = seat->n_committed,
	};
}

bool prefixd_engine_next_lease(const struct prefixd_engine *e, uint64_t *it, uint64_t now_ns,
			       struct prefixd_lease_info *ret)
{
	while (*it < e->n_leases) {
		const struct prefixd_lease *l = e->leases[(*it)++];

		if (l->state != PREFIXD_LEASE_ACTIVE)
			continue;
		tell_lease(e, l, now_ns, ret);
		return true;
	}
	return false;
}

bool prefixd_engine_next_ended(const struct prefixd_engine *e, uint64_t *it, uint64_t now_ns,
			       struct prefixd_lease_info *ret)
{
	while (*it < e->n_leases) {
		const struct prefixd_lease *l = e->leases[(*it)++];

		if ((l->state != PREFIXD_LEASE_REVOKED && l->state != PREFIXD_LEASE_QUARANTINE) ||
		    l->n_own == 0)
			continue;
		tell_lease(e, l, now_ns, ret);
		return true;
	}
	return false;
}

uint64_t prefixd_engine_pinned(const struct prefixd_engine *e, uint32_t group)
{
	const struct prefixd_group *g = group < e->n_groups ? e->groups[group] : NULL;
	struct prefixd_holds h = prefixd_holds_begin(e);
	uint64_t slots = 0;

	if (!g || g->state != PREFIXD_GROUP_READY)
		return 0;
	for (uint32_t i = 0; i < e->n_leases; i++) {
		const struct prefixd_lease *l = e->leases[i];

		if (l->state != PREFIXD_LEASE_ACTIVE || l->group != g)
			continue;
		slots += l->n_own + l->n_reserved;
		prefixd_holds_add(&h, l);
	}
	return prefixd_holds_end(&h, g) - slots;
}
