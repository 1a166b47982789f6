/*
 * carrier_code.c - see carrier_code.h.
 */
#include "daemon/carrier_code.h"

#include "daemon/carrier_internal.h"
#include "daemon/redis_sum.h"
#include "daemon/stripe_sum.h"

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

/* What comes up will not be what was committed.  False: nor is it what was sealed. */
static bool check(struct prefixd_carrier_message *m)
{
	const uint8_t *cold = cold_end(m);
	uint8_t now[PREFIXD_COLD_SEAL];

	m->lossy = true;
	if (m->from != PREFIXD_PLACE_HOST) /* the redis helper has checked its values */
		return true;
	seal(m, cold, now);
	if (memcmp(now, cold + prefixd_pool_cold_bytes(m->pool), sizeof(now)) == 0)
		return true;
	m->result = PREFIXD_MOVE_CORRUPT;
	return false;
}

static void decode(struct prefixd_coder *k, struct prefixd_carrier_message *m,
		   const struct prefixd_pieces *p)
{
	const struct prefixd_pool *pool = m->pool;
	const uint64_t step = prefixd_cold_bytes(&pool->cold, pool->info.slot_bytes);
	const uint8_t *cold = cold_end(m);

	for (uint32_t i = 0; i < pool->n_ranks; i++)
		prefixd_cold_decode(&pool->cold, cold + i * step, p->v[i]);
	m->result = PREFIXD_MOVE_OK;
	prefixd_carrier_add(&k->decoded, 1);
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
	else if (check(m))
		decode(k, m, &p);
	finish(k, m, 0);
}

/* ---- where it does not ----------------------------------------------------------------------- */

/* To be done by the processor, and next, as it has waited already. */
static void try_by_cpu(struct prefixd_coder *k, struct prefixd_carrier_message *m)
{
	m->by_cpu = true;
	radix_list_add_head(m->urgent ? &k->urgent : &k->others, &m->message.link);
}

/* The device summed each rank's piece.  False: it is not the block that is known. */
static bool summed_as_known(const struct prefixd_coding *c)
{
	uint8_t sums[PREFIXD_RANKS_MAX][16], sum[16];

	for (uint32_t i = 0; i < c->n_jobs; i++)
		prefixd_sum_kernel(c->jobs[i].sum, sums[i]);
	prefixd_stripe_sum((const uint8_t(*)[16])sums, c->n_jobs, sum);
	return memcmp(sum, c->m->checksum, sizeof(sum)) == 0;
}

/* The device has encoded it, or found that it cannot be.  False: it has to be tried otherwise. */
static bool encoded(struct prefixd_coder *k, const struct prefixd_coding *c)
{
	struct prefixd_carrier_message *m = c->m;
	uint8_t *cold = cold_end(m);
	bool uncodable = false;

	m->summed = false;
	if (c->jobs[0].want_sum && !summed_as_known(c)) {
		m->result = PREFIXD_MOVE_CORRUPT;
		return true;
	}
	for (uint32_t i = 0; i < c->n_jobs; i++)
		uncodable = uncodable || c->jobs[i].uncodable;
	if (uncodable && m->to != PREFIXD_PLACE_HOST)
		return false;
	m->coded = !uncodable;
	m->result = uncodable ? PREFIXD_MOVE_RAW : PREFIXD_MOVE_OK;
	if (uncodable) {
		prefixd_carrier_add(&k->uncodable, 1);
		return true;
	}
	if (m->to == PREFIXD_PLACE_HOST)
		seal(m, cold, cold + prefixd_pool_cold_bytes(m->pool));
	prefixd_carrier_add(&k->coded, 1);
	prefixd_carrier_add(&k->saved_bytes,
			    m->pool->block_bytes - prefixd_pool_cold_bytes(m->pool));
	prefixd_carrier_add(&k->by_device, 1);
	return true;
}

/* Its place is free, and so is its scratch memory. */
static void coding_end(struct prefixd_coder *k, struct prefixd_coding *c)
{
	struct prefixd_carrier_message *m = c->m;
	bool over = true;

	if (c->scratch != PREFIXD_NO_SCRATCH) {
		struct prefixd_pieces p =
			prefixd_pieces_at(m->pool, prefixd_pool_scratch(m->pool, c->scratch));

		if (c->status == 0 && goes_down(m))
			encode(k, m, &p);
		m->pool->scratch_used &= ~(UINT64_C(1) << c->scratch);
	} else if (c->status == -ENOMEM) {
		over = false;
	} else if (c->status == 0 && goes_down(m)) {
		over = encoded(k, c);
	} else if (c->status == 0) {
		m->result = PREFIXD_MOVE_OK;
		prefixd_carrier_add(&k->decoded, 1);
		prefixd_carrier_add(&k->by_device, 1);
	}
	c->m = NULL;
	k->n_flying--;
	if (over)
		finish(k, m, c->status);
	else
		try_by_cpu(k, m);
}

static void coding_done(struct gpu_job *job, int status)
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

/* The same jobs either way: what differs is what lies at the other end. */
static void coding_begin(struct prefixd_coder *k, struct prefixd_coding *c, uint32_t scratch,
			 struct prefixd_carrier_message *m)
{
	const struct prefixd_pool *pool = m->pool;
	const bool down = goes_down(m), there = scratch != PREFIXD_NO_SCRATCH;
	const uint64_t step = there ? pool->info.slot_bytes
				    : prefixd_cold_bytes(&pool->cold, pool->info.slot_bytes);
	uint8_t *at = there ? prefixd_pool_scratch(pool, scratch) : cold_end(m);

	*c = (struct prefixd_coding){
		.coder = k, .m = m, .scratch = scratch, .n_jobs = pool->n_ranks
	};
	for (uint32_t i = 0; i < pool->n_ranks; i++) {
		const struct prefixd_rank *of = &pool->ranks[i];
		uint64_t slot = of->gpu->ops->slot_addr(of->pool, down ? m->src : m->dst);
		uint64_t other = (uintptr_t)at + i * step;

		c->jobs[i] = (struct gpu_job){
			.dst = down ? other : slot,
			.src = down ? slot : other,
			.len = pool->info.slot_bytes,
			.done = coding_done,
			.ctx = c,
			.urgent = m->urgent,
			.coded = there ? NULL : &pool->coded,
			.want_sum = !there && down && m->checksum_kind == PROTO_CHECKSUM_KERNEL,
		};
	}
	if (there)
		m->pool->scratch_used |= UINT64_C(1) << scratch;
	k->n_flying++;
}

static bool devices_code(const struct prefixd_carrier_message *m)
{
	if (m->by_cpu || (goes_down(m) && m->checksum_kind == PROTO_CHECKSUM_XXH3_128))
		return false;
	for (uint32_t i = 0; i < m->pool->n_ranks; i++) {
		const struct gpu *gpu = m->pool->ranks[i].gpu;

		if (!gpu->ops->codes(gpu))
			return false;
	}
	return true;
}

/* False: there is no room at a device, or in scratch memory. */
static bool code_there(struct prefixd_coder *k, struct prefixd_carrier_message *m)
{
	uint64_t unused = ((UINT64_C(1) << m->pool->n_scratch) - 1) & ~m->pool->scratch_used;
	const bool by_device = devices_code(m);
	struct prefixd_coding *c = NULL;
	uint32_t scratch = PREFIXD_NO_SCRATCH;

	for (uint32_t i = 0; i < PREFIXD_CODINGS && !c; i++)
		if (!k->codings[i].m)
			c = &k->codings[i];
	if (!c || (!by_device && !unused))
		return false;
	radix_list_remove(&m->message.link);
	m->begun_ns = prefixd_carrier_clock();
	if (!by_device)
		scratch = (uint32_t)__builtin_ctzll(unused);
	if (!goes_down(m) && !check(m)) {
		finish(k, m, 0);
		return true;
	}
	if (!goes_down(m) && !by_device) {
		struct prefixd_pieces p = prefixd_pieces_at(m->pool,
							    prefixd_pool_scratch(m->pool, scratch));

		decode(k, m, &p);
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
