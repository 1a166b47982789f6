/*
 * redis_breaker.c - see redis_breaker.h.
 */
#include "daemon/redis_breaker.h"

/* xorshift64 (Marsaglia): spreads waits, nothing more. */
static uint64_t jitter(uint64_t *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 7;
	*seed ^= *seed << 17;
	return *seed;
}

uint64_t prefixd_backoff(uint64_t *backoff_ns, uint64_t min_ns, uint64_t max_ns, uint64_t *seed)
{
	uint64_t half;

	if (!*backoff_ns)
		*backoff_ns = min_ns;
	else
		*backoff_ns = *backoff_ns > max_ns / 2 ? max_ns : *backoff_ns * 2;
	half = *backoff_ns / 2;
	return half + jitter(seed) % (*backoff_ns - half + 1);
}

void prefixd_breaker_init(struct prefixd_breaker *b, const struct prefixd_redis_config *config)
{
	*b = (struct prefixd_breaker){
		.state = PREFIXD_BREAKER_OPEN,
		.limit = config->breaker_failures,
		.min_ns = config->backoff_min_ns,
		.max_ns = config->backoff_max_ns,
		.seed = config->seed | 1, /* xorshift stays at 0 */
	};
}

bool prefixd_breaker_open(struct prefixd_breaker *b, uint64_t now_ns)
{
	bool was_closed = b->state == PREFIXD_BREAKER_CLOSED;

	radix_assert(b->state != PREFIXD_BREAKER_OPEN);
	if (was_closed && now_ns - b->closed_ns >= 10 * b->min_ns)
		b->backoff_ns = 0;
	b->state = PREFIXD_BREAKER_OPEN;
	b->failures = 0;
	b->retry_ns = now_ns + prefixd_backoff(&b->backoff_ns, b->min_ns, b->max_ns, &b->seed);
	return was_closed;
}

bool prefixd_breaker_failed(struct prefixd_breaker *b)
{
	return b->state == PREFIXD_BREAKER_CLOSED && ++b->failures >= b->limit;
}

void prefixd_breaker_worked(struct prefixd_breaker *b)
{
	b->failures = 0;
}

bool prefixd_breaker_probe(struct prefixd_breaker *b, uint64_t now_ns)
{
	if (b->state != PREFIXD_BREAKER_OPEN || now_ns < b->retry_ns)
		return false;
	b->state = PREFIXD_BREAKER_HALF_OPEN;
	return true;
}

void prefixd_breaker_close(struct prefixd_breaker *b, uint64_t now_ns)
{
	radix_assert(b->state == PREFIXD_BREAKER_HALF_OPEN);
	b->state = PREFIXD_BREAKER_CLOSED;
	b->closed_ns = now_ns;
	b->failures = 0;
}
