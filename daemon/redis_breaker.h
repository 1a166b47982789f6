/*
 * redis_breaker.h - when to talk to Redis, and when to leave it alone.
 *
 *            N failures in a row, a stall, the connection lost
 *      CLOSED ------------------------------------------------> OPEN
 *        ^                                                     |    ^
 *        | the probe was answered          the wait has passed |    | the probe failed
 *        +------------------------- HALF_OPEN <----------------+----+
 *
 * A wait is between half and all of the back-off, by chance, so that daemons that lost the same
 * Redis do not come back at the same moment; the back-off doubles from the least to the most.  It
 * begins at the least again only after the breaker was closed for ten times the least: a Redis that
 * comes and goes is not asked more often than one that stays away.
 *
 * What it guarantees.  Pure: time comes with the calls.  The same seed gives the same waits.
 */
#pragma once

#include "daemon/redis.h"

struct prefixd_breaker {
	enum prefixd_breaker_state state;
	uint32_t limit; /* failures in a row that open it */
	uint32_t failures;
	uint64_t min_ns, max_ns, backoff_ns;
	uint64_t closed_ns; /* since when it is closed */
	uint64_t retry_ns;  /* OPEN: when the next probe is due */
	uint64_t seed;
};

/* OPEN, and the first probe is due at once. */
void prefixd_breaker_init(struct prefixd_breaker *b, const struct prefixd_redis_config *config);
/* CLOSED or HALF_OPEN: to OPEN.  Return: true when it was CLOSED. */
bool prefixd_breaker_open(struct prefixd_breaker *b, uint64_t now_ns);
/* A command failed.  Return: true when it is time to call prefixd_breaker_open(). */
bool prefixd_breaker_failed(struct prefixd_breaker *b);
void prefixd_breaker_worked(struct prefixd_breaker *b);
/* OPEN and the wait has passed: to HALF_OPEN, true. */
bool prefixd_breaker_probe(struct prefixd_breaker *b, uint64_t now_ns);
/* HALF_OPEN: the probe was answered. */
void prefixd_breaker_close(struct prefixd_breaker *b, uint64_t now_ns);

/* The next wait of a back-off: doubles *backoff_ns up to max, answers half to all of it. */
uint64_t prefixd_backoff(uint64_t *backoff_ns, uint64_t min_ns, uint64_t max_ns, uint64_t *seed);
