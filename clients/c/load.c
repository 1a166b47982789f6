/*
 * load.c - blocks below the pool: the end of a load, and PREFETCH.
 *
 * MATCH and EXTEND with PROMOTE begin a load (prompt.c); its end comes as an EVENT with their seq,
 * whatever else is asked meanwhile.  When pfx_load_wait's deadline passes first nothing has
 * changed: the load goes on, and its end is kept when it comes.
 */
#include "clients/c/internal.h"

int pfx_load_wait(pfx_namespace *ns, uint64_t lease, uint32_t deadline_ms, pfx_load_result *ret)
{
	struct pfx_client *c = ns ? ns->client : NULL;
	struct pfx_lease *l;
	int r = pfx_begin(c, deadline_ms);

	if (r)
		return r;
	if (!ret || !pfx_struct_ok(ret))
		return pfx_fail(c, PFX_ARGUMENT, "ret or its struct_size is missing");
	r = pfx_lease_use(c, ns, lease, false, &l);
	if (r)
		return r;
	if (!l->load_seq)
		return pfx_fail(c, PFX_WRONG_STATE, "no load runs for lease %#llx",
				(unsigned long long)lease);
	r = pfx_event_of_load(c, lease);
	if (r)
		return pfx_lease_gone(c, r);
	l = pfx_lease_find(c, lease);
	l->load_seq = 0;
	pfx_struct_out(ret, &l->load, sizeof(l->load));
	return 0;
}

/* Return: as pfx_request. */
static int prefetch_once(struct pfx_namespace *ns, const pfx_prompt *p, uint32_t load_ms,
			 pfx_prefetch_result *out)
{
	struct pfx_client *c = ns->client;
	uint32_t n = radix_min_u32(p->n_keys, pfx_prompt_keys_per_frame(ns, p));
	struct proto_prefetch_req req = {
		.has = PROTO_HAS_ALL,
		.ns = ns->info.id,
		.tenant = p->tenant,
		.salt = { p->salt, p->salt_len },
		.op_id = pfx_op_id(c),
		.deadline_us = load_ms < UINT32_MAX / 1000 ? load_ms * 1000 : UINT32_MAX,
		.n_tokens = p->n_tokens,
		.keys = { n ? p->keys : "", n * ns->info.key_len },
	};
	struct proto_prefetch_rep rep;
	struct pfx_frame f;
	const char *bad;
	int r = pfx_request(c, PROTO_OP_PREFETCH, &req, &f);

	if (r)
		return r;
	if (proto_prefetch_rep_decode(f.body, f.h.len, &rep, &bad))
		return pfx_bad_reply(c, PROTO_OP_PREFETCH, bad);
	out->n_device = rep.n_device;
	out->n_host = rep.n_host;
	out->n_redis = rep.n_redis;
	return 0;
}

int pfx_prefetch(pfx_namespace *ns, const pfx_prompt *prompt, uint32_t load_ms,
		 pfx_prefetch_result *ret)
{
	struct pfx_client *c = ns ? ns->client : NULL;
	pfx_prefetch_result out = { .struct_size = sizeof(out) };
	pfx_prompt p;
	int r = pfx_begin(c, 0);

	if (r)
		return r;
	if (!prompt || (ret && !pfx_struct_ok(ret)))
		return pfx_fail(c, PFX_ARGUMENT, "prompt or a struct_size is missing");
	r = pfx_prompt_take(ns, prompt, &p, NULL);
	if (r)
		return r;
	if (p.deadline_ms)
		r = pfx_begin(c, p.deadline_ms);
	for (int round = 0; r == 0; round++) {
		r = pfx_ready(c, ns);
		if (r)
			return r;
		r = prefetch_once(ns, &p, load_ms, &out);
		if (r != PFX_LOST || round)
			break;
		r = 0; /* it changes nothing that a second one would not: ask anew */
	}
	if (r == 0 && ret)
		pfx_struct_out(ret, &out, sizeof(out));
	return pfx_gone(c, r);
}
