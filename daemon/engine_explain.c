/*
 * engine_explain.c - EXPLAIN: why a prompt is not served further, to the token.
 *
 * What it guarantees.  Nothing is pinned, counted or written.  A worker learns about its own tenant
 * and namespaces only, and of the tokens only its own; the stored token is shown to peers of the
 * admin socket.
 *
 * What it relies on.  radix_closest() looks at a bounded number of stored continuations, so the
 * "first differing token" is that of the closest one among the most recent.
 */
#include "daemon/engine_windows.h"

#include <stdio.h>

struct finding {
	uint32_t n_blocks; /* in all tiers */
	uint32_t n_host;   /* of those, in host memory; in Redis */
	uint32_t n_redis;
	uint32_t same; /* tokens of the next block that agree with a stored one */
	bool below;    /* something hangs below the place where the match ended */
	const uint8_t *own;
	uint32_t n_own;        /* tokens at `own`: a whole block, or the tail */
	const uint8_t *stored; /* the closest stored block, or NULL */
	uint32_t n_pending;    /* further blocks that a lease computes now */
};

static void find(const struct prefixd_engine *e, const struct prefixd_root *root,
		 struct proto_span keys, uint32_t n_keys, struct proto_span tail, bool whole,
		 struct finding *f)
{
	const struct prefixd_namespace *ns = root->ns;
	const struct radix_index *ix = ns->group->index;
	struct radix_place from = radix_place_root(root->index_root), donor;
	struct radix_match m;
	const void *stored = NULL;
	uint32_t same = 0, slot;

	radix_match_window(ix, &from, keys.p, n_keys, whole, NULL, &m);
	f->n_blocks = m.n_blocks;
	f->n_host = m.n_host;
	f->n_redis = m.n_blocks - m.n_device - m.n_host;
	f->below = m.diverged;
	if (m.n_blocks < n_keys) {
		struct prefixd_spot spot = { .root = root, .at = m.end, .depth = m.n_blocks };

		f->own = (const uint8_t *)keys.p + (size_t)m.n_blocks * ns->key_len;
		f->n_own = ns->block_tokens;
		spot.keys = f->own;
		spot.n_keys = n_keys - m.n_blocks;
		f->n_pending = prefixd_pending_count(e, &spot);
		if (radix_closest(ix, &m.end, f->own, ns->key_len, &stored, &same) == 0) {
			f->below = true;
			f->stored = ns->token_bytes ? stored : NULL;
			f->same = ns->token_bytes ? radix_min_u32(same / 4, ns->block_tokens) : 0;
		}
	} else if (tail.n) {
		f->own = tail.p;
		f->n_own = tail.n / 4;
		radix_partial(ix, &m.end, tail.p, f->n_own, &donor, &slot, &f->same);
		if (radix_closest(ix, &m.end, tail.p, tail.n, &stored, &same) == 0)
			f->below = true;
	}
}

static uint32_t token_at(const uint8_t *p, uint32_t i)
{
	uint32_t t;

	memcpy(&t, p + (size_t)i * 4, 4);
	return t;
}

static enum proto_reason judge_here(const struct prefixd_root *root, const struct finding *f,
				    const struct proto_explain_rep *rep, uint32_t n_keys,
				    uint64_t n_tokens)
{
	if (rep->matched_tokens >= n_tokens)
		return PROTO_REASON_NONE;
	if (f->n_blocks == n_keys)
		return PROTO_REASON_BELOW_BLOCK; /* the rest is shorter than a block */
	if (f->n_pending)
		return PROTO_REASON_PENDING;
	if (!f->below)
		return root && root->busy_depth == f->n_blocks ? PROTO_REASON_NO_ROOM
							       : PROTO_REASON_NEVER_SEEN;
	if (f->n_blocks > 0)
		return PROTO_REASON_DIVERGED;
	/* Nothing was served: is what is shared shorter than a block, or is nothing shared? */
	return f->same > 0 && f->same < root->ns->block_tokens ? PROTO_REASON_BELOW_BLOCK
	       : f->same > 0                                   ? PROTO_REASON_DIVERGED
							       : PROTO_REASON_NEVER_SEEN;
}

static enum proto_reason judge(const struct prefixd_engine *e, const struct prefixd_namespace *ns,
			       const struct prefixd_root *root, const struct finding *f,
			       const struct proto_explain_rep *rep, uint32_t n_keys,
			       uint64_t n_tokens)
{
	enum proto_reason r = judge_here(root, f, rep, n_keys, n_tokens);

	if (e->config.redis && !e->redis_up &&
	    (r == PROTO_REASON_NEVER_SEEN || r == PROTO_REASON_DIVERGED))
		return PROTO_REASON_TIER_DOWN;
	return r == PROTO_REASON_NEVER_SEEN && ns->seed_mismatch ? PROTO_REASON_SEED_MISMATCH : r;
}

static int say(char *out, size_t len, const struct prefixd_namespace *ns, const struct finding *f,
	       const struct proto_explain_rep *rep, uint64_t n_tokens)
{
	unsigned long long matched = rep->matched_tokens, pos = rep->position, n = n_tokens,
			   lost = rep->lost_tokens;

	switch ((enum proto_reason)rep->reason) {
	case PROTO_REASON_NONE:
		return snprintf(out, len, "all %llu tokens are served", n);
	case PROTO_REASON_BELOW_BLOCK:
		return snprintf(
			out, len,
			"%llu of %llu tokens are served; the next %llu are %s, which is less "
			"than a block of %u tokens",
			matched, n, lost,
			f->n_own == ns->block_tokens ? "shared with a stored prompt"
						     : "the end of the prompt",
			ns->block_tokens);
	case PROTO_REASON_DIVERGED:
		if (f->same >= ns->block_tokens)
			return snprintf(out, len,
					"%llu of %llu tokens are served; the next block has the "
					"tokens of a stored one but another content digest",
					matched, n);
		return snprintf(out, len,
				"%llu of %llu tokens are served; every stored continuation differs "
				"at token %llu or before",
				matched, n, pos);
	case PROTO_REASON_NO_ROOM:
		return snprintf(
			out, len,
			"%llu of %llu tokens are served; the pool had no room when the rest "
			"was computed last",
			matched, n);
	case PROTO_REASON_SEED_MISMATCH:
		return snprintf(
			out, len,
			"%llu of %llu tokens are served; the namespace is open with another "
			"hash seed too, and what is stored there cannot be found from here: "
			"give all workers one seed",
			matched, n);
	case PROTO_REASON_DECLINED:
		return snprintf(out, len,
				"%llu of %llu tokens are served; the rest lay in a lower tier and "
				"was computed all the same",
				matched, n);
	case PROTO_REASON_PENDING:
		return snprintf(out, len,
				"%llu of %llu tokens are served; the next %llu are being computed "
				"by another lease now",
				matched, n, lost);
	case PROTO_REASON_TIER_DOWN:
		return snprintf(out, len,
				"%llu of %llu tokens are served; Redis, which may have more, does "
				"not answer",
				matched, n);
	case PROTO_REASON_NEVER_SEEN:
	case PROTO_REASON_EVICTED:
	case PROTO_REASON_NAMESPACE:
	case PROTO_REASON_TIER_LOST:
	case PROTO_REASON_QUOTA:
	case PROTO_REASON_CORRUPT:
		break;
	}
	return snprintf(
		out, len,
		"%llu of %llu tokens are served; nothing that goes on like this prompt from "
		"token %llu is stored in this namespace, tenant and salt",
		matched, n, matched);
}

static void explain(struct prefixd_engine *e, struct prefixd_request *rq,
		    const struct proto_explain_req *m, const struct prefixd_root_name *name,
		    uint32_t n_keys)
{
	const struct prefixd_root *root = prefixd_root_find(e, name);
	const struct prefixd_namespace *ns = name->ns;
	struct proto_explain_rep rep = { 0 };
	struct prefixd_reply rp;
	struct finding f = { 0 };
	char text[512];
	int n;

	if (root)
		find(e, root, m->keys, n_keys, m->tail, !prefixd_windowed(rq->s, ns), &f);
	rep.matched_tokens = radix_min_u64((uint64_t)f.n_blocks * ns->block_tokens, m->n_tokens);
	if (f.n_pending)
		f.same = 0; /* it is the same all the way; only not there yet */
	rep.position = radix_min_u64(rep.matched_tokens + f.same, m->n_tokens);
	rep.reason = (uint8_t)judge(e, ns, root, &f, &rep, n_keys, m->n_tokens);
	if (rep.reason == PROTO_REASON_BELOW_BLOCK)
		rep.lost_tokens = f.n_blocks == n_keys ? m->n_tokens - rep.matched_tokens : f.same;
	else
		rep.lost_tokens = m->n_tokens - rep.position;
	if (rep.reason == PROTO_REASON_PENDING)
		rep.lost_tokens = radix_min_u64(rep.lost_tokens,
						(uint64_t)f.n_pending * ns->block_tokens);
	if (f.own && ns->token_bytes && f.same < f.n_own && !f.n_pending) {
		rep.own_token = token_at(f.own, f.same);
		rep.has_tokens = 1;
		if (f.stored && rq->s->peer.admin) {
			rep.stored_token = token_at(f.stored, f.same);
			rep.has_tokens = 3;
		}
	}
	n = say(text, sizeof(text), ns, &f, &rep, m->n_tokens);
	if (n > 0 && (size_t)n < sizeof(text) && f.n_host + f.n_redis)
		n += snprintf(text + n, sizeof(text) - (size_t)n,
			      "; of its %u blocks %u lie in host memory and %u in Redis, to be "
			      "loaded",
			      f.n_blocks, f.n_host, f.n_redis);
	rep.text.p = text;
	rep.text.n = n < 0 ? 0 : radix_min_u32((uint32_t)n, sizeof(text) - 1);
	prefixd_reply_begin(e, &rp, 0);
	proto_explain_rep_encode(&rp.w, &rep);
	prefixd_reply_send(e, rq, &rp);
}

void prefixd_op_explain(struct prefixd_engine *e, struct prefixd_request *rq)
{
	struct prefixd_root_name name;
	struct proto_explain_req m;
	const char *bad;
	uint32_t n_keys, n_tail;

	if (proto_explain_req_decode(rq->body, rq->h->len, &m, &bad)) {
		prefixd_refuse_body(e, rq, bad);
		return;
	}
	if (prefixd_root_name_check(e, rq, m.has, m.ns, m.tenant, m.salt, &name) &&
	    prefixd_keys_check(e, rq, name.ns, m.keys, &n_keys) &&
	    prefixd_tail_check(e, rq, name.ns, m.tail, &n_tail) &&
	    prefixd_tokens_check(e, rq, name.ns, n_keys, n_tail, m.n_tokens))
		explain(e, rq, &m, &name, n_keys);
}
