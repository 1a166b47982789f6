/*
 * engine_look.c - what the admin socket and the tests may see of the engine; nothing changes here.
 */
#include "daemon/engine_internal.h"

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

		if (!g || g->state != PREFIXD_GROUP_READY)
			continue;
		*ret = (struct prefixd_group_info){
			.id = g->id,
			.n_slots = g->n_slots,
			.slot_bytes = g->slot_bytes,
			.slot_stride = g->slot_stride,
			.index = g->index,
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

bool prefixd_engine_next_lease(const struct prefixd_engine *e, uint64_t *it, uint64_t now_ns,
			       struct prefixd_lease_info *ret)
{
	while (*it < e->n_leases) {
		const struct prefixd_lease *l = e->leases[(*it)++];

		if (l->state != PREFIXD_LEASE_ACTIVE)
			continue;
		*ret = (struct prefixd_lease_info){
			.id = l->id,
			.session = l->session->number,
			.pid = l->pid,
			.uid = l->uid,
			.tenant = l->root->tenant,
			.ns = l->root->ns->id,
			.orphan = l->session->state == PREFIXD_SESSION_ORPHAN,
			.age_ns = now_ns > l->begun_ns ? now_ns - l->begun_ns : 0,
			.n_blocks = l->n_path,
			.n_reserved = l->n_reserved,
		};
		return true;
	}
	return false;
}
