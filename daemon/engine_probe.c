/*
 * engine_probe.c - PROBE and PREFETCH: what is there, without a lease.
 *
 * What it guarantees.  PROBE pins nothing and writes nothing.  PREFETCH is answered in the step
 * that reads it, with what is there then.  What it sets going comes after everybody who waits for
 * slots, and is let go before anybody goes without.
 *
 * What it relies on.  Loads and seeks hold pins of their own.
 */
#include "daemon/engine_windows.h"

/* ---- PROBE ----------------------------------------------------------------------------------- */

static void probe_bits(const struct radix_index *ix, const struct prefixd_root *root,
		       struct proto_span keys, uint32_t n_keys, const struct radix_match *m,
		       uint8_t *bits)
{
	uint32_t key_len = root->ns->key_len;

	memset(bits, 0, (n_keys + 7) / 8);
	for (uint32_t i = 0; i < n_keys; i++) {
		const uint8_t *key = (const uint8_t *)keys.p + (size_t)i * key_len;
		struct radix_place at;
		bool rooted, is = i < m->n_blocks;

		/* Token keys name a block only below their prefix; a digest names it alone. */
		if (!is && root->ns->mode == RADIX_KEYS_DIGEST)
			is = radix_find_digest(ix, root->index_root, key, &at, &rooted) == 0;
		if (is)
			bits[i / 8] = (uint8_t)(bits[i / 8] | 1u << (i % 8));
	}
}

static void probe(struct prefixd_engine *e, struct prefixd_request *rq,
		  const struct proto_probe_req *m, const struct prefixd_root_name *name,
		  uint32_t n_keys)
{
	const struct prefixd_root *root = prefixd_root_find(e, name);
	struct proto_probe_rep rep = { 0 };
	struct radix_match found = { 0 };
	struct prefixd_reply rp;
	uint8_t *bits;

	if (root) {
		const struct radix_index *ix = name->ns->group->index;
		struct radix_place from = radix_place_root(root->index_root);

		radix_match_window(ix, &from, m->keys.p, n_keys, !prefixd_windowed(rq->s, name->ns),
				   NULL, &found);
		rep.root = root->id;
	} else {
		prefixd_root_id(e, name, &rep.root);
	}
	rep.n_device = found.n_device;
	rep.n_host = found.n_host;
	rep.n_redis = found.n_blocks - found.n_device - found.n_host;
	prefixd_reply_begin(e, &rp, 0);
	if (m->flags & PROTO_PROBE_BITMAP) {
		/* Made at the far end of the buffer; the encoder copies it to its place. */
		rep.bitmap.n = (n_keys + 7) / 8;
		bits = e->out + e->out_cap - rep.bitmap.n;
		rep.bitmap.p = bits;
		if (root)
			probe_bits(name->ns->group->index, root, m->keys, n_keys, &found, bits);
		else
			memset(bits, 0, rep.bitmap.n);
	}
	proto_probe_rep_encode(&rp.w, &rep);
	prefixd_reply_send(e, rq, &rp);
}

void prefixd_op_probe(struct prefixd_engine *e, struct prefixd_request *rq)
{
	struct prefixd_root_name name;
	struct proto_probe_req m;
	const char *bad;
	uint32_t n_keys;

	if (proto_probe_req_decode(rq->body, rq->h->len, &m, &bad)) {
		prefixd_refuse_body(e, rq, bad);
		return;
	}
	if (!prefixd_root_name_check(e, rq, m.has, m.ns, m.tenant, m.salt, &name) ||
	    !prefixd_keys_check(e, rq, name.ns, m.keys, &n_keys) ||
	    !prefixd_tokens_check(e, rq, name.ns, n_keys, 0, m.n_tokens))
		return;
	if (m.flags & ~(uint32_t)PROTO_PROBE_BITMAP) {
		prefixd_refuse(e, rq, PROTO_STATUS_BAD_BODY, "flags", "bit 1 (BITMAP) is known");
		return;
	}
	if (!prefixd_lost_refuse(e, rq, name.ns->group))
		probe(e, rq, &m, &name, n_keys);
}

/* ---- PREFETCH -------------------------------------------------------------------------------- */

/* What lies lower comes up; Redis is asked for the rest.  After the reply. */
static void set_going(struct prefixd_engine *e, struct prefixd_root *root,
		      const struct proto_prefetch_req *m, uint32_t n_keys,
		      const struct radix_match *found)
{
	const struct prefixd_namespace *ns = root->ns;
	uint64_t due = prefixd_load_due(e, m->deadline_us);

	radix_touch(ns->group->index, &found->end, prefixd_tick(e));
	if (found->n_blocks > found->n_device)
		(void)prefixd_load_ahead(e, root, &found->device_end, &found->end, due);
	if (found->n_blocks < n_keys)
		prefixd_seek(e, root, &found->end,
			     (const uint8_t *)m->keys.p + (size_t)found->n_blocks * ns->key_len,
			     n_keys - found->n_blocks, &found->device_end, due);
}

static void prefetch(struct prefixd_engine *e, struct prefixd_request *rq,
		     const struct proto_prefetch_req *m, const struct prefixd_root_name *name,
		     uint32_t n_keys)
{
	struct radix_index *ix = name->ns->group->index;
	struct proto_prefetch_rep rep = { 0 };
	struct prefixd_reply rp;
	struct prefixd_root *root;
	struct radix_match found;
	struct radix_place from;

	if (prefixd_op_prepare(e, rq, &m->op_id, 64) < 0 || prefixd_root_get(e, name, &root) < 0) {
		prefixd_refuse_memory(e, rq);
		return;
	}
	from = radix_place_root(root->index_root);
	radix_match_window(ix, &from, m->keys.p, n_keys, !prefixd_windowed(rq->s, name->ns), NULL,
			   &found);
	rep.root = root->id;
	rep.n_device = found.n_device;
	rep.n_host = found.n_host;
	rep.n_redis = found.n_blocks - found.n_device - found.n_host;
	prefixd_reply_begin(e, &rp, 0);
	proto_prefetch_rep_encode(&rp.w, &rep);
	prefixd_reply_send(e, rq, &rp);
	set_going(e, root, m, n_keys, &found);
	prefixd_root_put(e, root);
}

void prefixd_op_prefetch(struct prefixd_engine *e, struct prefixd_request *rq)
{
	struct prefixd_root_name name;
	struct proto_prefetch_req m;
	const char *bad;
	uint32_t n_keys;

	if (!e->config.host_blocks && !e->config.host_bytes && !e->config.redis) {
		prefixd_refuse(e, rq, PROTO_STATUS_UNSUPPORTED, NULL,
			       "this daemon was started without a lower tier; there is nothing to "
			       "fetch from");
		return;
	}
	if (proto_prefetch_req_decode(rq->body, rq->h->len, &m, &bad)) {
		prefixd_refuse_body(e, rq, bad);
		return;
	}
	if (prefixd_op_replayed(e, rq, &m.op_id))
		return;
	if (e->draining) {
		prefixd_refuse(e, rq, PROTO_STATUS_DRAINING, NULL, "the daemon is stopping");
		return;
	}
	if (prefixd_root_name_check(e, rq, m.has, m.ns, m.tenant, m.salt, &name) &&
	    prefixd_keys_check(e, rq, name.ns, m.keys, &n_keys) &&
	    prefixd_tokens_check(e, rq, name.ns, n_keys, 0, m.n_tokens) &&
	    !prefixd_lost_refuse(e, rq, name.ns->group))
		prefetch(e, rq, &m, &name, n_keys);
}
