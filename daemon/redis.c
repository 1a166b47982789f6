/*
 * redis.c - start and stop, messages, statistics; redis_internal.h says where the rest is.
 */
#include "daemon/redis_internal.h"

#include "daemon/helper.h"
#include "daemon/log.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

uint64_t prefixd_redis_now(void)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_MONOTONIC, &ts); /* cannot fail for this clock */
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void *heap_take(void *ctx, size_t size)
{
	return aligned_alloc(64, (size + 63) & ~(size_t)63);
}

static void heap_give(void *ctx, void *ptr, size_t size)
{
	free(ptr);
}

static const struct radix_alloc heap = { .take = heap_take, .give = heap_give };

/* ---- start and stop -------------------------------------------------------------------------- */

void prefixd_redis_config_init(struct prefixd_redis_config *config)
{
	*config = (struct prefixd_redis_config){
		.ttl_ns = 24ull * 3600 * 1000000000,
		.deadline_ns = 1000000000,
		.connect_ns = 1000000000,
		.backoff_min_ns = 100000000,
		.backoff_max_ns = 30000000000,
		.in_flight_bytes = 32ull << 20,
		.batch = 64,
		.breaker_failures = 5,
		.max_block_bytes = 64ull << 20,
		.seed = 1,
	};
}

static void run(struct prefixd_helper *h, void *ctx)
{
	struct prefixd_redis *r = ctx;

	r->helper = h;
	prefixd_link_start(r);
	/* Ends when it is told to; should it fail, everybody is answered and it is run again. */
	(void)event_base_dispatch(r->base);
	prefixd_link_stop(r);
}

static struct prefixd_redis *redis_free(struct prefixd_redis *r)
{
	if (!r)
		return NULL;
	prefixd_link_deinit(r);
	prefixd_replies_free(r->replies);
	prefixd_names_free(r->names);
	free(r->epochs);
	sodium_memzero(&r->cipher, sizeof(r->cipher));
	sodium_memzero(&r->config, sizeof(r->config));
	free(r);
	return NULL;
}

static int config_check(const struct prefixd_redis_config *c, char *why, size_t why_len)
{
	const char *bad = NULL;

	if (!c->deadline_ns || !c->connect_ns)
		bad = "deadlines are not 0";
	else if (!c->backoff_min_ns || c->backoff_max_ns < c->backoff_min_ns)
		bad = "the most back-off is at least the least, and that is not 0";
	else if (!c->batch || !c->breaker_failures || !c->max_block_bytes)
		bad = "batch, failures and block size are at least 1";
	else if (c->max_block_bytes > 256ull << 20)
		bad = "a block has at most 256 MiB: Redis stores no string above 512";
	else if (c->user[0] && !c->password[0])
		bad = "a user needs a password";
	if (bad) {
		snprintf(why, why_len, "redis: %s", bad);
		return -EINVAL;
	}
	return 0;
}

static int redis_init(struct prefixd_redis *r, char *why, size_t why_len)
{
	struct radix_list *lists[] = { &r->urgent, &r->waiting, &r->writing, &r->awaiting,
				       &r->answers };
	struct prefixd_helper_config helper = { .name = "redis", .run = run, .ctx = r };
	int ret = prefixd_redis_resolve(r, why, why_len);

	if (ret < 0)
		return ret;
	for (size_t i = 0; i < radix_array_size(lists); i++)
		radix_list_init(lists[i]);
	ret = prefixd_names_new(&r->names, &heap, r->config.naming_key);
	if (ret == 0)
		ret = prefixd_replies_new(&r->replies,
					  r->config.max_block_bytes + RADIX_KEY_MAX +
						  PREFIXD_VALUE_OVERHEAD,
					  prefixd_line_reply, r);
	if (ret == 0)
		ret = prefixd_link_init(r);
	if (ret == 0)
		ret = prefixd_helper_start(&r->handle, &helper);
	if (ret < 0)
		snprintf(why, why_len, "redis: cannot start: %s", strerror(-ret));
	return ret;
}

int prefixd_redis_start(struct prefixd_redis **ret_r, const struct prefixd_redis_config *config,
			char *why, size_t why_len)
{
	struct prefixd_redis *r;
	int ret = config_check(config, why, why_len);

	if (ret < 0)
		return ret;
	r = sodium_init() < 0 ? NULL : calloc(1, sizeof(*r));
	if (!r) {
		snprintf(why, why_len, "redis: cannot start: %s", strerror(ENOMEM));
		return -ENOMEM;
	}
	r->fd = -1;
	r->config = *config;
	prefixd_value_cipher_init(&r->cipher, config->naming_key, config->encrypt);
	ret = redis_init(r, why, why_len);
	if (ret < 0) {
		redis_free(r);
		return ret;
	}
	*ret_r = r;
	return 0;
}

static void drop(struct prefixd_message *m)
{
	prefixd_redis_message_free(radix_container_of(m, struct prefixd_redis_message, message));
}

void prefixd_redis_stop(struct prefixd_redis *r)
{
	if (!r)
		return;
	prefixd_helper_stop(r->handle, drop);
	redis_free(r);
}

struct prefixd_helper *prefixd_redis_helper(const struct prefixd_redis *r)
{
	return r->handle;
}

void prefixd_redis_stats(const struct prefixd_redis *r, struct prefixd_redis_stats *ret)
{
	const struct prefixd_redis_counts *c = &r->counts;
	uint64_t policy[4];

	memset(ret, 0, sizeof(*ret));
#define X(name) ret->name = atomic_load_explicit(&c->name, memory_order_relaxed);
	PREFIXD_REDIS_COUNTS(X)
#undef X
	for (int i = 0; i < PREFIXD_REDIS_N_ERRORS; i++)
		ret->errors[i] = atomic_load_explicit(&c->errors[i], memory_order_relaxed);
	for (int i = 0; i < PREFIXD_REDIS_N_BAD; i++)
		ret->bad_values[i] = atomic_load_explicit(&c->bad_values[i], memory_order_relaxed);
	ret->breaker = (enum prefixd_breaker_state)atomic_load_explicit(&c->breaker,
									memory_order_relaxed);
	ret->connected = atomic_load_explicit(&c->connected, memory_order_relaxed);
	for (int i = 0; i < 4; i++)
		policy[i] = atomic_load_explicit(&c->policy[i], memory_order_relaxed);
	memcpy(ret->policy, policy, sizeof(ret->policy));
	ret->policy[sizeof(ret->policy) - 1] = 0;
}

/* ---- messages -------------------------------------------------------------------------------- */

static const struct prefixd_names *names_of(const struct prefixd_action *action)
{
	if (action->type == PREFIXD_ACTION_NAMES)
		return &action->u.names;
	return action->type == PREFIXD_ACTION_LOOK ? &action->u.look.names : NULL;
}

static void message_fill(struct prefixd_redis_message *m, const struct prefixd_action *action,
			 void *block, uint64_t block_bytes)
{
	const struct prefixd_names *names = names_of(action);
	uint8_t *p = m->data;

	if (names) {
		size_t n = names->entries ? names->n * sizeof(uint32_t) : 0;

		m->message.kind = action->type == PREFIXD_ACTION_NAMES ? PREFIXD_REDIS_NAMES
								       : PREFIXD_REDIS_LOOK;
		m->names = *names;
		if (n)
			memcpy(p, names->entries, n);
		m->names.entries = n ? (const uint32_t *)(const void *)p : NULL;
		if (names->n && names->key_len)
			memcpy(p + n, names->keys, (size_t)names->n * names->key_len);
		m->names.keys = p + n;
		if (action->type == PREFIXD_ACTION_LOOK) {
			m->look_id = action->u.look.id;
			m->deadline_ns = action->u.look.deadline_ns;
		}
	} else if (action->type == PREFIXD_ACTION_EPOCH) {
		m->message.kind = PREFIXD_REDIS_EPOCH;
		memcpy(m->ns_digest, action->u.epoch.digest, 32);
		m->epoch = action->u.epoch.epoch;
		m->raised = action->u.epoch.raised;
	} else {
		m->message.kind = action->type == PREFIXD_ACTION_STORE ? PREFIXD_REDIS_STORE
								       : PREFIXD_REDIS_FETCH;
		m->carry = action->u.carry;
		if (m->carry.key_len)
			memcpy(p, action->u.carry.key, m->carry.key_len);
		m->carry.key = p;
		m->block = block;
		m->block_bytes = block_bytes;
	}
}

struct prefixd_redis_message *prefixd_redis_message_new(const struct prefixd_action *action,
							void *block, uint64_t block_bytes)
{
	const struct prefixd_names *names = names_of(action);
	struct prefixd_redis_message *m;
	size_t more = 0;

	if (names)
		more = (size_t)names->n * (sizeof(uint32_t) + names->key_len);
	else if (action->type == PREFIXD_ACTION_STORE || action->type == PREFIXD_ACTION_FETCH)
		more = action->u.carry.key_len;
	else
		radix_assert(action->type == PREFIXD_ACTION_EPOCH);
	m = calloc(1, sizeof(*m) + more);
	if (!m)
		return NULL;
	m->group = action->group;
	message_fill(m, action, block, block_bytes);
	return m;
}

void prefixd_redis_message_free(struct prefixd_redis_message *m)
{
	free(m);
}

/* The thread does not log; what it has to say comes with STATE. */
static void log_lines(const char *text)
{
	while (text[0] == '<') {
		const char *end = strchr(text, '\n');
		char line[400];

		snprintf(line, sizeof(line), "%.*s", (int)(end - text - 2), text + 2);
		prefixd_log_text((enum prefixd_log_level)(text[1] - '0'), line);
		text = end + 1;
	}
}

bool prefixd_redis_event(const struct prefixd_redis_message *m, struct prefixd_event *ret_event)
{
	struct prefixd_event e = { .type = PREFIXD_EVENT_MOVED };

	switch (m->message.kind) {
	case PREFIXD_REDIS_STORE:
	case PREFIXD_REDIS_FETCH:
		e.u.moved.id = m->carry.id;
		e.u.moved.result = m->result;
		e.u.moved.ns = m->ns;
		/* A checksum is told of blocks as they are on the device. */
		e.u.moved.summed = m->result == PREFIXD_MOVE_OK && !m->coded;
		e.u.moved.lossy = m->coded;
		memcpy(e.u.moved.checksum, m->checksum, sizeof(e.u.moved.checksum));
		break;
	case PREFIXD_REDIS_LOOK:
		e.type = PREFIXD_EVENT_LOOKED;
		e.u.looked.id = m->look_id;
		e.u.looked.n = m->n;
		break;
	case PREFIXD_REDIS_STATE:
		log_lines((const char *)m->data);
		e.type = PREFIXD_EVENT_REDIS_STATE;
		e.u.redis_up = m->up;
		break;
	case PREFIXD_REDIS_EPOCH_SEEN:
		e.type = PREFIXD_EVENT_EPOCH_SEEN;
		memcpy(e.u.epoch.digest, m->ns_digest, sizeof(e.u.epoch.digest));
		e.u.epoch.epoch = m->epoch;
		break;
	default:
		return false;
	}
	*ret_event = e;
	return true;
}
