/*
 * engine_ops.c - the memory of operation ids: a request that is sent twice takes effect once.
 *
 * What it guarantees.  The reply of a request that carried an operation id and succeeded is kept
 * for limits.op_id_ns, or until limits.op_ids later ones came.  Within that, the same request is
 * answered with the same body, and nothing but the counter op_replays changes.  The same id with
 * another operation or body is refused.  Refusals are not kept: they changed nothing, so deciding
 * again is the better answer to a retry.
 *
 * Memory.  Reply bodies lie in one ring of bytes per session, which grows by doubling to at most
 * twice max_frame, so that any single reply fits.  Where a new reply finds no room the oldest go.
 * Room for the reply is made before the request takes effect; when it cannot be had the request is
 * refused, so that no effect is ever forgotten.
 *
 * What it relies on.  XXH3-128 over the body tells two requests apart.  It is not a secret's guard:
 * a client that made two of its own bodies collide would get its own older answer.
 */
#include "daemon/engine_internal.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#define RING_MIN 8192u

static struct prefixd_op *op_at(const struct prefixd_ops *ops, uint32_t i)
{
	return &ops->v[(ops->head + i) & (ops->cap - 1)];
}

/* Keyed: a client chooses its ids, and must not choose the length of our chains. */
static uint32_t bucket_of(const struct prefixd_ops *ops, const struct proto_id *id)
{
	return (uint32_t)XXH3_64bits_withSeed(id->b, sizeof(id->b), ops->seed) & (ops->cap - 1);
}

static void unlink_oldest(struct prefixd_ops *ops)
{
	struct prefixd_op *op = op_at(ops, 0);
	uint32_t *at = &ops->buckets[bucket_of(ops, &op->id)];

	while (*at != ops->head)
		at = &ops->v[*at].next;
	*at = op->next;
	ops->head = (ops->head + 1) & (ops->cap - 1);
	ops->n--;
	/* The next entry's body is the oldest byte now. */
	ops->ring_tail = ops->n ? op_at(ops, 0)->off : ops->ring_head;
}

static void expire(struct prefixd_engine *e, struct prefixd_ops *ops)
{
	while (ops->n && (ops->n > e->config.limits.op_ids ||
			  e->now_ns - op_at(ops, 0)->at_ns > e->config.limits.op_id_ns))
		unlink_oldest(ops);
}

static struct prefixd_op *find(const struct prefixd_ops *ops, const struct proto_id *id)
{
	if (!ops->n)
		return NULL;
	for (uint32_t i = ops->buckets[bucket_of(ops, id)]; i != RADIX_NONE; i = ops->v[i].next)
		if (proto_id_equal(&ops->v[i].id, id))
			return &ops->v[i];
	return NULL;
}

bool prefixd_op_replayed(struct prefixd_engine *e, struct prefixd_request *rq,
			 const struct proto_id *id)
{
	struct prefixd_ops *ops = &rq->s->ops;
	struct prefixd_reply rp;
	struct prefixd_op *op;
	XXH128_hash_t h;

	if (proto_id_is_zero(id) || rq->shared)
		return false;
	h = XXH3_128bits(rq->body, rq->h->len);
	rq->body_hash[0] = h.low64;
	rq->body_hash[1] = h.high64;
	expire(e, ops);
	op = find(ops, id);
	if (!op)
		return false;
	if (op->op != rq->h->op || op->body_hash[0] != h.low64 || op->body_hash[1] != h.high64) {
		prefixd_refuse(
			e, rq, PROTO_STATUS_OP_ID_REUSED, "op_id",
			"this operation id was used for another request; take a fresh one for "
			"each request, and the same one only to repeat it");
		return true;
	}
	e->counters.op_replays++;
	e->counters.requests--; /* the dispatcher counted it; a replay changes nothing else */
	rq->s->n_requests--;
	prefixd_reply_begin(e, &rp, 0);
	memcpy(rp.w.p + rp.w.len, ops->ring + op->off, op->len);
	rp.w.len += op->len;
	prefixd_reply_send(e, rq, &rp);
	return true;
}

/* ---- keeping --------------------------------------------------------------------------------- */

static int table_room(struct prefixd_engine *e, struct prefixd_ops *ops)
{
	uint32_t cap = 16;

	if (ops->v)
		return 0;
	while (cap < e->config.limits.op_ids)
		cap *= 2;
	ops->v = prefixd_take0(e->alloc, cap * sizeof(*ops->v));
	ops->buckets = radix_take(e->alloc, cap * sizeof(*ops->buckets));
	if (!ops->v || !ops->buckets) {
		radix_give(e->alloc, ops->v, cap * sizeof(*ops->v));
		radix_give(e->alloc, ops->buckets, cap * sizeof(*ops->buckets));
		ops->v = NULL;
		ops->buckets = NULL;
		return -ENOMEM;
	}
	memset(ops->buckets, 0xff, cap * sizeof(*ops->buckets));
	ops->cap = cap;
	ops->seed = e->config.secret[1];
	return 0;
}

/* A larger ring with the kept bodies one after the other. */
static int ring_grow(struct prefixd_engine *e, struct prefixd_ops *ops, uint32_t len)
{
	uint8_t *ring = radix_take(e->alloc, len);
	uint32_t at = 0;

	if (!ring)
		return -ENOMEM;
	for (uint32_t i = 0; i < ops->n; i++) {
		struct prefixd_op *op = op_at(ops, i);

		memcpy(ring + at, ops->ring + op->off, op->len);
		op->off = at;
		at += op->len;
	}
	radix_give(e->alloc, ops->ring, ops->ring_len);
	ops->ring = ring;
	ops->ring_len = len;
	ops->ring_tail = 0;
	ops->ring_head = at;
	return 0;
}

static uint32_t ring_most(const struct prefixd_engine *e)
{
	return 2 * e->config.limits.max_frame;
}

int prefixd_op_prepare(struct prefixd_engine *e, struct prefixd_request *rq,
		       const struct proto_id *id, uint32_t max_len)
{
	struct prefixd_ops *ops = &rq->s->ops;
	uint32_t len = ops->ring_len ? ops->ring_len : RING_MIN;

	if (rq->shared)
		return prefixd_call_room(e, rq, id, max_len);
	if (proto_id_is_zero(id) || e->config.limits.op_ids == 0)
		return 0;
	if (table_room(e, ops) < 0)
		return -ENOMEM;
	max_len = radix_min_u32(max_len, e->config.limits.max_frame);
	/* Twice the body: a place in one piece exists in the ring, whatever its fill. */
	while (len < 2 * (uint64_t)max_len)
		len *= 2;
	if (len != ops->ring_len && ring_grow(e, ops, len) < 0)
		return -ENOMEM;
	rq->keep = true;
	rq->op_id = *id;
	return 0;
}

/*
 * A place of `len` bytes in one piece.  The used part is [tail, head), or wraps around the end.
 * Returns false when it does not fit beside what is kept.
 */
static bool ring_place(struct prefixd_ops *ops, uint32_t len, uint32_t *ret_off)
{
	uint32_t head = ops->ring_head, tail = ops->ring_tail;

	if (ops->n == 0) {
		ops->ring_tail = 0;
		*ret_off = 0;
		return len < ops->ring_len;
	}
	if (head > tail || (head == tail && len == 0)) {
		if (ops->ring_len - head > len) {
			*ret_off = head;
			return true;
		}
		*ret_off = 0;
		return tail > len;
	}
	*ret_off = head;
	return head < tail && tail - head > len;
}

void prefixd_op_keep(struct prefixd_engine *e, struct prefixd_request *rq, const uint8_t *body,
		     uint32_t len)
{
	struct prefixd_ops *ops = &rq->s->ops;
	struct prefixd_op *op;
	uint32_t off = 0, *bucket;

	expire(e, ops);
	if (ops->n >= radix_min_u32(e->config.limits.op_ids, ops->cap))
		unlink_oldest(ops);
	while (!ring_place(ops, len, &off)) {
		/* Rather more room than fewer answers, up to the limit. */
		if ((uint64_t)ops->ring_len * 2 <= ring_most(e) &&
		    ring_grow(e, ops, ops->ring_len * 2) == 0)
			continue;
		radix_assert(ops->n > 0); /* prepare() saw to it that an empty ring is enough */
		unlink_oldest(ops);
	}
	op = op_at(ops, ops->n);
	op->id = rq->op_id;
	op->op = rq->h->op;
	op->body_hash[0] = rq->body_hash[0];
	op->body_hash[1] = rq->body_hash[1];
	op->at_ns = e->now_ns;
	op->off = off;
	op->len = len;
	memcpy(ops->ring + off, body, len);
	ops->ring_head = off + len;
	bucket = &ops->buckets[bucket_of(ops, &op->id)];
	op->next = *bucket;
	*bucket = (ops->head + ops->n) & (ops->cap - 1);
	ops->n++;
	rq->keep = false;
}

void prefixd_ops_deinit(struct prefixd_engine *e, struct prefixd_ops *ops)
{
	radix_give(e->alloc, ops->v, ops->cap * sizeof(*ops->v));
	radix_give(e->alloc, ops->buckets, ops->cap * sizeof(*ops->buckets));
	radix_give(e->alloc, ops->ring, ops->ring_len);
	memset(ops, 0, sizeof(*ops));
}

const char *prefixd_ops_verify(const struct prefixd_engine *e, const struct prefixd_ops *ops)
{
	uint64_t bytes = 0;

	if (ops->n > ops->cap)
		return "more operation ids than places";
	if (ops->ring_len > RING_MIN && ops->ring_len > 2ull * ring_most(e))
		return "the ring of replies outgrew its limit";
	for (uint32_t i = 0; i < ops->n; i++) {
		const struct prefixd_op *op = op_at(ops, i);

		if ((uint64_t)op->off + op->len > ops->ring_len)
			return "a kept reply lies outside the ring";
		if (find(ops, &op->id) != op)
			return "a kept operation id is not found";
		bytes += op->len;
	}
	return bytes <= ops->ring_len ? NULL : "kept replies overlap";
}
