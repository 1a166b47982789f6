/*
 * carrier_code.c - see carrier_code.h.
 */
#include "daemon/carrier_code.h"

#include "daemon/carrier_internal.h"
#include "daemon/redis_sum.h"

#define CODE_BYTES (UINT64_C(4) << 20) /* of a call: about a millisecond */

void prefixd_coder_init(struct prefixd_coder *k,
			void (*answer)(void *ctx, struct prefixd_carrier_message *m, int error),
			void *ctx)
{
	k->answer = answer;
	k->ctx = ctx;
	radix_list_init(&k->urgent);
	radix_list_init(&k->others);
}

bool prefixd_coder_takes(const struct prefixd_carrier_message *m)
{
	if (m->message.kind != PREFIXD_CARRIER_COPY || m->pool->cold.codec == GPU_CODEC_NONE)
		return false;
	if (m->from == PREFIXD_PLACE_DEVICE)
		return true;
	/* A value that could not be coded goes up like any other block. */
	return m->to == PREFIXD_PLACE_DEVICE && (m->from == PREFIXD_PLACE_HOST || m->coded);
}

void prefixd_coder_add(struct prefixd_coder *k, struct prefixd_carrier_message *m)
{
	radix_list_add_tail(m->urgent ? &k->urgent : &k->others, &m->message.link);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static bool goes_down(const struct prefixd_carrier_message *m)
{
	return m->from == PREFIXD_PLACE_DEVICE;
}

static uint8_t *cold_end(const struct prefixd_carrier_message *m)
{
	enum prefixd_place place = goes_down(m) ? m->to : m->from;
	uint32_t slot = goes_down(m) ? m->dst : m->src;

	return place == PREFIXD_PLACE_HOST ? prefixd_pool_host(m->pool, slot)
					   : prefixd_pool_stage(m->pool, slot);
}

/* The seal of what lies in a host slot, as this member's. */
static void seal(const struct prefixd_carrier_message *m, const uint8_t *cold,
		 uint8_t out[PREFIXD_COLD_SEAL])
{
	uint8_t sum[16];

	prefixd_sum(cold, prefixd_pool_cold_bytes(m->pool), sum);
	prefixd_cold_seal(sum, m->entry, m->generation, out);
}

/* Into `cold`, piece behind piece; as it is if a piece of it cannot be coded: false. */
static bool encode_pieces(const struct prefixd_pool *pool, const struct prefixd_pieces *p,
			  uint8_t *cold)
{
	const uint64_t step = prefixd_cold_bytes(&pool->cold, pool->info.slot_bytes);

	for (uint32_t i = 0; i < pool->n_ranks; i++)
		if (!prefixd_cold_encode(&pool->cold, p->v[i], cold + i * step))
			return false;
	return true;
}

static void encode(struct prefixd_coder *k, struct prefixd_carrier_message *m,
		   const struct prefixd_pieces *p)
{
	const struct prefixd_pool *pool = m->pool;
	const uint64_t len = pool->info.slot_bytes;
	uint8_t *cold = cold_end(m);

	if (!prefixd_carrier_sum_take(m, p, false)) {
		m->result = PREFIXD_MOVE_CORRUPT;
		return;
	}
	m->coded = encode_pieces(pool, p, cold);
	if (m->coded) {
		prefixd_carrier_add(&k->coded, 1);
		prefixd_carrier_add(&k->saved_bytes,
				    pool->block_bytes - prefixd_pool_cold_bytes(pool));
	} else {
		prefixd_carrier_add(&k->uncodable, 1);
	}
	if (!m->coded && m->to == PREFIXD_PLACE_HOST) {
		m->result = PREFIXD_MOVE_RAW;
		return;
	}
	for (uint32_t i = 0; !m->coded && i < pool->n_ranks; i++)
		memcpy(cold + i * len, p->v[i], len);
	if (m->to == PREFIXD_PLACE_HOST)
		seal(m, cold, cold + prefixd_pool_cold_bytes(pool));
	m->result = PREFIXD_MOVE_OK;
}

/* False: what lies below is not what was sealed. */
static bool decode(struct prefixd_coder *k, struct prefixd_carrier_message *m,
		   const struct prefixd_pieces *p)
{
	const struct prefixd_pool *pool = m->pool;
	const uint64_t step = prefixd_cold_bytes(&pool->cold, pool->info.slot_bytes);
	const uint8_t *cold = cold_end(m);
	uint8_t now[PREFIXD_COLD_SEAL];

	m->lossy = true;
	if (m->from == PREFIXD_PLACE_HOST) { /* the redis helper has checked its values */
		seal(m, cold, now);
		if (memcmp(now, cold + prefixd_pool_cold_bytes(pool), sizeof(now)) != 0) {
			m->result = PREFIXD_MOVE_CORRUPT;
			return false;
		}
	}
	for (uint32_t i = 0; i < pool->n_ranks; i++)
		prefixd_cold_decode(&pool->cold, cold + i * step, p->v[i]);
	m->result = PREFIXD_MOVE_OK;
	prefixd_carrier_add(&k->decoded, 1);
	return true;
}

static void finish(struct prefixd_coder *k, struct prefixd_carrier_message *m, int error)
{
	m->ns = prefixd_carrier_clock() - m->begun_ns;
	k->answer(k->ctx, m, error);
}

/* ---- where the CPU reaches the slots --------------------------------------------------------- */

static void code_here(struct prefixd_coder *k, struct prefixd_carrier_message *m)
{
	struct prefixd_pieces p;

	radix_list_remove(&m->message.link);
	m->begun_ns = prefixd_carrier_clock();
	for (uint32_t i = 0; i < m->pool->n_ranks; i++)
		p.v[i] = prefixd_pool_slot(m->pool, i, goes_down(m) ? m->src : m->dst);
	if (goes_down(m))
		encode(k, m, &p);
	else
		(void)decode(k, m, &p); /* the message says it */
	finish(k, m, 0);
}

/* ---- where it does not ----------------------------------------------------------------------- */

static struct prefixd_pieces scratch_pieces(const struct prefixd_pool *pool, uint32_t scratch)
{
	uint8_t *at = prefixd_pool_scratch(pool, scratch);
	struct prefixd_pieces p;

	for (uint32_t i = 0; i < pool->n_ranks; i++)
		p.v[i] = at + i * pool->info.slot_bytes;
	return p;
}

/* Its place is free, and so is its scratch memory. */
static void coding_end(struct prefixd_coder *k, struct prefixd_coding *c)
{
	struct prefixd_carrier_message *m = c->m;
	struct prefixd_pieces p = scratch_pieces(m->pool, c->scratch);

	if (c->status == 0 && goes_down(m))
		encode(k, m, &p);
	m->pool->scratch_used &= ~(UINT64_C(1) << c->scratch);
	c->m = NULL;
	k->n_flying--;
	finish(k, m, c->status);
}

static void scratch_done(struct gpu_job *job, int status)
{
	struct prefixd_coding *c = job->ctx;
	struct prefixd_coder *k = c->coder;

	k->full = false;
	c->n_ended++;
	if (status < 0 && c->status == 0)
		c->status = status;
	if (c->n_ended == c->n_sent && (c->n_sent == c->n_jobs || c->status < 0))
		coding_end(k, c);
}

/* Hands over what is left of it.  False: a device is full. */
static bool coding_send(struct prefixd_coder *k, struct prefixd_coding *c)
{
	while (c->n_sent < c->n_jobs && c->status == 0) {
		struct gpu *gpu = c->m->pool->ranks[c->n_sent].gpu;
		int r = gpu->ops->submit(gpu, &c->jobs[c->n_sent]);

		if (r == -EAGAIN) {
			k->full = true;
			return false;
		}
		if (r < 0)
			c->status = r;
		else
			c->n_sent++;
	}
	if (c->status < 0 && c->n_ended == c->n_sent)
		coding_end(k, c);
	return true;
}

static void coding_begin(struct prefixd_coder *k, struct prefixd_coding *c, uint32_t scratch,
			 struct prefixd_carrier_message *m)
{
	const struct prefixd_pool *pool = m->pool;
	const bool down = goes_down(m);
	struct prefixd_pieces p = scratch_pieces(pool, scratch);

	*c = (struct prefixd_coding){
		.coder = k, .m = m, .scratch = scratch, .n_jobs = pool->n_ranks
	};
	for (uint32_t i = 0; i < pool->n_ranks; i++) {
		const struct prefixd_rank *of = &pool->ranks[i];
		uint64_t slot = of->gpu->ops->slot_addr(of->pool, down ? m->src : m->dst);
		uint64_t there = (uintptr_t)p.v[i];

		c->jobs[i] = (struct gpu_job){
			.dst = down ? there : slot,
			.src = down ? slot : there,
			.len = pool->info.slot_bytes,
			.done = scratch_done,
			.ctx = c,
			.urgent = m->urgent,
		};
	}
	m->pool->scratch_used |= UINT64_C(1) << scratch;
	k->n_flying++;
}

/* False: there is no room at a device, or in scratch memory. */
static bool code_there(struct prefixd_coder *k, struct prefixd_carrier_message *m)
{
	uint64_t unused = ((UINT64_C(1) << m->pool->n_scratch) - 1) & ~m->pool->scratch_used;
	struct prefixd_coding *c = NULL;
	struct prefixd_pieces p;
	uint32_t scratch;

	for (uint32_t i = 0; i < PREFIXD_CODINGS && !c; i++)
		if (!k->codings[i].m)
			c = &k->codings[i];
	if (!c || !unused)
		return false;
	scratch = (uint32_t)__builtin_ctzll(unused);
	p = scratch_pieces(m->pool, scratch);
	radix_list_remove(&m->message.link);
	m->begun_ns = prefixd_carrier_clock();
	if (!goes_down(m) && !decode(k, m, &p)) {
		finish(k, m, 0);
		return true;
	}
	coding_begin(k, c, scratch, m);
	return coding_send(k, c);
}

/* Those of which a full device did not take all.  False: it is full still. */
static bool send_rest(struct prefixd_coder *k)
{
	for (uint32_t i = 0; i < PREFIXD_CODINGS; i++) {
		struct prefixd_coding *c = &k->codings[i];

		if (c->m && c->n_sent < c->n_jobs && c->status == 0 && !coding_send(k, c))
			return false;
	}
	return true;
}

void prefixd_coder_give_up(struct prefixd_coder *k)
{
	for (uint32_t i = 0; i < PREFIXD_CODINGS; i++) {
		struct prefixd_coding *c = &k->codings[i];

		if (!c->m || c->n_sent == c->n_jobs)
			continue;
		c->status = c->status < 0 ? c->status : -ENODEV;
		if (c->n_ended == c->n_sent)
			coding_end(k, c);
	}
}

bool prefixd_coder_some(struct prefixd_coder *k)
{
	uint64_t bytes = 0;

	k->full = false;
	if (!send_rest(k))
		return false;
	while (bytes < CODE_BYTES) {
		struct radix_list *list = radix_list_empty(&k->urgent) ? &k->others : &k->urgent;
		struct prefixd_carrier_message *m;
		uint64_t len;

		if (radix_list_empty(list))
			break;
		m = prefixd_carrier_message_of(list->next);
		len = m->pool->block_bytes; /* it may be gone once it is answered */
		if (prefixd_pool_slot(m->pool, 0, 0))
			code_here(k, m);
		else if (!code_there(k, m))
			break;
		bytes += len;
	}
	return bytes > 0;
}
