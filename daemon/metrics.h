/*
 * metrics.h - what the daemon tells about itself, declared once.
 *
 * One table (metrics_table.c) holds every metric: name, type, labels, help and where its value lies
 * in a snapshot.  The text that is scraped and the reference in README.md both come from it.
 *
 * What it guarantees.  Every label value is there from the first scrape on, at 0.  The set of
 * series is fixed when the daemon is built: nothing that a peer says becomes a label.  No token
 * id, salt or digest is a value or a label.  Looked-up tokens are hits by tier plus misses by
 * reason, in every scrape.  Measuring costs one reading of the clock per request and one per turn
 * of the loop.
 *
 * What it relies on.  One thread; a snapshot is filled and written in the same turn.
 */
#pragma once

#include "daemon/carrier.h"
#include "daemon/engine.h"
#include "daemon/reasons.h"
#include "daemon/redis.h"
#include "daemon/restore.h"

/* Upper bounds of the buckets, in nanoseconds, and how a scrape spells them in seconds. */
#define PREFIXD_BUCKETS(X)   \
	X(50000, "5e-05")    \
	X(100000, "0.0001")  \
	X(250000, "0.00025") \
	X(500000, "0.0005")  \
	X(1000000, "0.001")  \
	X(2500000, "0.0025") \
	X(5000000, "0.005")  \
	X(10000000, "0.01")  \
	X(25000000, "0.025") \
	X(50000000, "0.05")  \
	X(100000000, "0.1")  \
	X(250000000, "0.25") \
	X(500000000, "0.5")  \
	X(1000000000, "1.0") \
	X(2500000000, "2.5") \
	X(5000000000, "5.0") \
	X(10000000000, "10.0")

enum {
#define X(ns, text) PREFIXD_BUCKET_##ns,
	PREFIXD_BUCKETS(X)
#undef X
	PREFIXD_N_BUCKETS
};

enum prefixd_metric_op {
#define X(code, sym, name) PREFIXD_METRIC_OP_##sym,
	PROTO_OPS(X)
#undef X
	PREFIXD_METRIC_OP_other, /* a number that is no operation */
	PREFIXD_METRIC_N_OPS
};

/* A value belongs to the first bucket whose bound it does not exceed; the last one has no bound. */
struct prefixd_histogram {
	uint64_t n[PREFIXD_N_BUCKETS + 1];
	uint64_t sum_ns, max_ns;
};

/* What the loop measures while it runs. */
struct prefixd_measures {
	struct prefixd_histogram request[PREFIXD_METRIC_N_OPS];
	struct prefixd_histogram turn;
	struct prefixd_histogram turn_cpu; /* of it, the processor time of the loop's thread */
	/* blocks carried from one tier to another: what the carrying alone took */
	struct prefixd_histogram transfer[RADIX_N_TIERS][RADIX_N_TIERS];
	/* connections, counted where they end or are turned away; what the engine turns away is in
	 * its counters, refused_... */
	uint64_t closed[PREFIXD_CLOSED_N];
	uint64_t rejected_no_descriptor, rejected_no_memory;
};

void prefixd_histogram_add(struct prefixd_histogram *h, uint64_t ns);
/* What the share `p` of the values does not exceed, ns, up to a bucket's width; 0: no values. */
double prefixd_histogram_at(const struct prefixd_histogram *h, double p);
/* One request of operation number `op`, as its header has it. */
void prefixd_measure_request(struct prefixd_measures *m, uint16_t op, uint64_t ns);

/* Everything that one scrape tells; times in nanoseconds, sizes in bytes. */
struct prefixd_snapshot {
	const char *version, *device;
	struct prefixd_measures measures;
	struct prefixd_counters counters;

	/* by enum radix_tier; pools are of the first two */
	uint64_t slots[2][RADIX_SLOT_N_STATES], slot_bytes[2][RADIX_SLOT_N_STATES];
	uint64_t capacity_slots[2], capacity_bytes[2];
	uint64_t removed[RADIX_N_TIERS][RADIX_REMOVE_N_REASONS], removed_bytes[RADIX_N_TIERS];
	uint64_t moved[RADIX_N_TIERS][RADIX_N_TIERS], moved_bytes[RADIX_N_TIERS][RADIX_N_TIERS];
	uint64_t tier_blocks[RADIX_N_TIERS];
	uint64_t pools, pool_ranks, devices, host_bonus;
	uint64_t blocks, nodes, roots, pins, collisions;
	uint64_t hollow, hollowed; /* blocks without a slot, outside of all windows */
	uint64_t tree_bytes, table_bytes, key_bytes, heap_bytes;

	uint64_t sessions_connected, sessions_orphaned;
	uint64_t leases, orphan_leases, lease_age_max_ns;
	uint64_t pinned_blocks, pinned_bytes, reserved_slots;
	uint64_t kept_slots, pool_over;
	uint64_t parked_frames;

	struct prefixd_redis_stats redis; /* zeroes without one */
	uint64_t redis_up, redis_breaker[3];
	struct prefixd_carrier_stats carrier;
	uint64_t device_lost;
	uint64_t copy_waiting, redis_waiting; /* requests of the helpers */
	uint64_t copy_beat_age_ns, redis_beat_age_ns;

	struct prefixd_restored restored;              /* zeroes where nothing was left */
	uint64_t restored_good, restore_ns, keeper[4]; /* by enum prefixd_keeper */

	uint64_t draining, started_ns; /* of the wall clock */
	uint64_t reload_ok, reload_ns; /* of the wall clock; the start counts as the first */
	uint64_t log_lines[4];         /* by enum prefixd_log_level */

	uint64_t cpu_ns, resident_bytes, virtual_bytes, open_fds, max_fds;
	uint64_t scrape_ns;
};

enum prefixd_exposition {
	PREFIXD_TEXT_0_0_4,
	PREFIXD_OPENMETRICS_1_0_0
};

/* What an Accept header asks for; NULL: none was sent. */
enum prefixd_exposition prefixd_exposition_choose(const char *accept);
const char *prefixd_exposition_content_type(enum prefixd_exposition how);

/*
 * The snapshot as text.  Return: 0 with *ret_text (ends with a 0, for free()) and its length;
 * -ENOMEM.
 */
radix_nodiscard int prefixd_metrics_write(const struct prefixd_snapshot *s,
					  enum prefixd_exposition how, char **ret_text,
					  size_t *ret_len);
/* The table as README.md has it.  Return: 0 with *ret_text, for free(); -ENOMEM. */
radix_nodiscard int prefixd_metrics_reference(char **ret_text);
