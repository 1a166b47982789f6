/*
 * stats.h - what a worker counts, and what a whole replay comes to.
 *
 * Each worker writes its own object in memory that is shared with the coordinator; nobody else
 * writes it.  The coordinator reads it whole after the worker's end; while the replay runs it looks
 * at single counters for the progress bar, where a number that is one request old does no harm.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define REPLAY_OPS(X)       \
	X(MATCH, match)     \
	X(LOAD, load)       \
	X(WAIT, wait)       \
	X(RESERVE, reserve) \
	X(COMMIT, commit)   \
	X(RELEASE, release)

enum replay_op {
#define X(sym, name) REPLAY_OP_##sym,
	REPLAY_OPS(X)
#undef X
	REPLAY_N_OPS
};

const char *replay_op_to_string(enum replay_op op);

/*
 * Times by their logarithm, each power of two cut into 64 steps: a percentile read from it is at
 * most 1.6 % off.
 */
#define REPLAY_LATENCY_STEPS   64u
#define REPLAY_LATENCY_BUCKETS (REPLAY_LATENCY_STEPS * 40u) /* up to 2^45 ns: ten hours */

struct replay_latency {
	uint32_t buckets[REPLAY_LATENCY_BUCKETS];
	uint64_t n;
};

void replay_latency_add(struct replay_latency *latency, uint64_t ns);
void replay_latency_merge(struct replay_latency *to, const struct replay_latency *from);
/* p in (0, 1]; microseconds; 0 when nothing was timed. */
double replay_latency_at(const struct replay_latency *latency, double p);

#define REPLAY_COUNTERS(X)                                                    \
	X(requests)                                                           \
	X(hit_requests)                                                       \
	X(queried_tokens)                                                     \
	X(hit_device_tokens)                                                  \
	X(hit_host_tokens)                                                    \
	X(hit_redis_tokens)                                                   \
	X(hit_pending_tokens) /* told by RELEASE; not part of hits */         \
	X(hit_blocks)         /* of all tiers; the next three add up to it */ \
	X(hit_device_blocks)  /* told by MATCH */                             \
	X(hit_host_blocks)    /* brought up from host memory */               \
	X(hit_redis_blocks)   /* brought up from Redis */                     \
	X(below_blocks)       /* in lower tiers, told by MATCH */             \
	X(pending_blocks)     /* found by EXTEND, after a wait */             \
	X(blocks_committed)                                                   \
	X(blocks_duplicate)                                                   \
	X(blocks_verified)                                                    \
	X(blocks_corrupt)                                                     \
	X(errors)                                                             \
	X(loads)          /* that were waited for */                          \
	X(loads_cut)      /* fewer blocks came than there were */             \
	X(loads_late)     /* no end in time */                                \
	X(loads_declined) /* the daemon advised to compute */                 \
	X(waits_ready)    /* the blocks came */                               \
	X(waits_lead)     /* it was this worker's turn */                     \
	X(waits_failed)   /* neither, or not in time */                       \
	X(busy)           /* RESERVE answered BUSY */                         \
	X(bytes_read)     /* of blocks, to compare them */                    \
	X(bytes_written)  /* of blocks */

#define REPLAY_N_REASONS 16u /* codes of the protocol's reasons are below */

struct replay_stats {
#define X(name) uint64_t name;
	REPLAY_COUNTERS(X)
#undef X
	uint64_t cut_by[REPLAY_N_REASONS]; /* loads that were cut, by the reason told */
	struct replay_latency latency[REPLAY_N_OPS];
	uint64_t end_ns;  /* CLOCK_MONOTONIC when the worker had no more to do */
	uint64_t rss_kib; /* largest resident size, the pool included */
};

void replay_stats_merge(struct replay_stats *to, const struct replay_stats *from);
