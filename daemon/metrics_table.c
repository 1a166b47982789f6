/*
 * metrics_table.c - every metric, once.
 *
 * A family is a row of the table; a series of it is a row of its `series`, which says where in the
 * snapshot the value lies.  A new metric is a new field of the snapshot and a row here; the scrape,
 * its help and the reference follow.
 *
 * Names: prefixd_<thing>_<unit>, seconds and bytes, counters end in _total, gauges never do.  Rates
 * and ratios are left to whoever reads: there is a numerator and a denominator for each.
 */
#include "daemon/metrics_table.h"

#include <stddef.h>

/* ---- the table ------------------------------------------------------------------------------- */

#define AT(field)    offsetof(struct prefixd_snapshot, field)
#define LIST(...)    ((const struct prefixd_series[]){ __VA_ARGS__ })
#define COUNT(...)   (sizeof(LIST(__VA_ARGS__)) / sizeof(struct prefixd_series))
#define MANY(...)    .series = LIST(__VA_ARGS__), .n_series = COUNT(__VA_ARGS__)
#define ONE(field)   MANY({ NULL, NULL, AT(field) })
#define TABLE(array) .series = array, .n_series = radix_array_size(array)

#define DEVICE RADIX_TIER_DEVICE
#define HOST   RADIX_TIER_HOST
#define REDIS  RADIX_TIER_REDIS
#define TIERS(field)                                                                   \
	MANY({ "device", NULL, AT(field[DEVICE]) }, { "host", NULL, AT(field[HOST]) }, \
	     { "redis", NULL, AT(field[REDIS]) })
#define POOLS(field) MANY({ "device", NULL, AT(field[DEVICE]) }, { "host", NULL, AT(field[HOST]) })
#define DOWN(field)                                           \
	MANY({ "device", "host", AT(field[DEVICE][HOST]) },   \
	     { "device", "redis", AT(field[DEVICE][REDIS]) }, \
	     { "host", "redis", AT(field[HOST][REDIS]) })
#define UP(field)                                           \
	MANY({ "host", "device", AT(field[HOST][DEVICE]) }, \
	     { "redis", "device", AT(field[REDIS][DEVICE]) })

static const struct prefixd_series transfers[] = {
	{ "device", "host", AT(measures.transfer[DEVICE][HOST]) },
	{ "device", "redis", AT(measures.transfer[DEVICE][REDIS]) },
	{ "host", "redis", AT(measures.transfer[HOST][REDIS]) },
	{ "host", "device", AT(measures.transfer[HOST][DEVICE]) },
	{ "redis", "device", AT(measures.transfer[REDIS][DEVICE]) },
};

static const struct prefixd_series slot_states[] = {
#define X(sym, text) { "device", text, AT(slots[DEVICE][RADIX_SLOT_##sym]) },
	RADIX_SLOT_STATES(X)
#undef X
#define X(sym, text) { "host", text, AT(slots[HOST][RADIX_SLOT_##sym]) },
		RADIX_SLOT_STATES(X)
#undef X
};

static const struct prefixd_series slot_state_bytes[] = {
#define X(sym, text) { "device", text, AT(slot_bytes[DEVICE][RADIX_SLOT_##sym]) },
	RADIX_SLOT_STATES(X)
#undef X
#define X(sym, text) { "host", text, AT(slot_bytes[HOST][RADIX_SLOT_##sym]) },
		RADIX_SLOT_STATES(X)
#undef X
};

static const struct prefixd_series remove_reasons[] = {
#define X(sym, text) { "device", text, AT(removed[DEVICE][RADIX_REMOVE_##sym]) },
	RADIX_REMOVE_REASONS(X)
#undef X
#define X(sym, text) { "host", text, AT(removed[HOST][RADIX_REMOVE_##sym]) },
		RADIX_REMOVE_REASONS(X)
#undef X
#define X(sym, text) { "redis", text, AT(removed[REDIS][RADIX_REMOVE_##sym]) },
			RADIX_REMOVE_REASONS(X)
#undef X
};

static const struct prefixd_series redis_errors[] = {
#define X(sym, text) { text, NULL, AT(redis.errors[PREFIXD_REDIS_ERROR_##sym]) },
	PREFIXD_REDIS_ERRORS(X)
#undef X
};

static const struct prefixd_series redis_bad_values[] = {
#define X(sym, text) { text, NULL, AT(redis.bad_values[PREFIXD_REDIS_BAD_##sym]) },
	PREFIXD_REDIS_BAD_REASONS(X)
#undef X
};

static const struct prefixd_series copy_operations[] = {
#define X(sym, text)                                                   \
	{ text, "done", AT(carrier.ops[PREFIXD_CARRIER_##sym].done) }, \
		{ text, "failed", AT(carrier.ops[PREFIXD_CARRIER_##sym].failed) },
	PREFIXD_CARRIER_OPS(X)
#undef X
};

static const struct prefixd_series copy_errors[] = {
#define X(sym, text) { text, NULL, AT(carrier.errors[PREFIXD_COPY_ERROR_##sym]) },
	PREFIXD_COPY_ERRORS(X)
#undef X
};

static const struct prefixd_series keepers[] = {
	{ "holder", NULL, AT(keeper[PREFIXD_KEEPER_HOLDER]) },
	{ "systemd", NULL, AT(keeper[PREFIXD_KEEPER_SYSTEMD]) },
	{ "none", NULL, AT(keeper[PREFIXD_KEEPER_NONE]) },
};

static const struct prefixd_series damages[] = {
#define X(sym, text) { text, NULL, AT(restored.index.damaged[RADIX_DAMAGE_##sym]) },
	RADIX_DAMAGES(X)
#undef X
};

static const struct prefixd_series breaker_states[] = {
#define X(sym, text) { text, NULL, AT(redis_breaker[PREFIXD_BREAKER_##sym]) },
	PREFIXD_BREAKER_STATES(X)
#undef X
};

static const struct prefixd_series closed_reasons[] = {
#define X(sym, label, text) { label, NULL, AT(measures.closed[PREFIXD_CLOSED_##sym]) },
	PREFIXD_CLOSED(X)
#undef X
};

static const struct prefixd_series operations[] = {
#define X(code, sym, name) { #name, NULL, AT(measures.request[PREFIXD_METRIC_OP_##sym]) },
	PROTO_OPS(X)
#undef X
		{ "other", NULL, AT(measures.request[PREFIXD_METRIC_OP_other]) },
};

const struct prefixd_family prefixd_metric_families[] = {
	/* ---- use: everything here is counted when a lease ends ---- */
	{ "prefixd_lookups_total", PREFIXD_COUNTER, .label = "result",
	  MANY({ "full", NULL, AT(counters.lookups_full) },
	       { "partial", NULL, AT(counters.lookups_partial) },
	       { "miss", NULL, AT(counters.lookups_miss) }),
	  .help = "Leases that ended, by how many of their tokens were served: all, some, none." },
	{ "prefixd_lookup_tokens_total", PREFIXD_COUNTER, ONE(counters.queried_tokens),
	  .help = "Tokens that leases which ended had asked for: prefixd_hit_tokens_total plus "
		  "prefixd_miss_tokens_total." },
	{ "prefixd_lookup_blocks_total", PREFIXD_COUNTER, .label = "tier",
	  MANY({ "device", NULL, AT(counters.lookup_device_blocks) },
	       { "host", NULL, AT(counters.lookup_host_blocks) },
	       { "redis", NULL, AT(counters.lookup_redis_blocks) },
	       { "miss", NULL, AT(counters.lookup_miss_blocks) }),
	  .help = "Whole blocks that leases which ended had asked for, by the tier that they were "
		  "served from; device: those too that another worker committed meanwhile." },
	/* Each tier that can serve is a row: the sum above is checked by a test. */
	{ "prefixd_hit_tokens_total", PREFIXD_COUNTER, .label = "tier",
	  MANY({ "device", NULL, AT(counters.hit_device_tokens) },
	       { "host", NULL, AT(counters.hit_host_tokens) },
	       { "redis", NULL, AT(counters.hit_redis_tokens) },
	       { "pending", NULL, AT(counters.hit_pending_tokens) }),
	  .help = "Tokens served, by where they were when the daemon told of them; pending: "
		  "another worker committed them while the lease lasted." },
	{ "prefixd_hit_tail_tokens_total", PREFIXD_COUNTER, ONE(counters.hit_tail_tokens),
	  .help = "Of the hits on the device, tokens of blocks that match in part." },
	{ "prefixd_miss_tokens_total", PREFIXD_COUNTER, .label = "reason",
	  MANY({ "never_seen", NULL, AT(counters.miss_never_seen) },
	       { "diverged", NULL, AT(counters.miss_diverged) },
	       { "below_block", NULL, AT(counters.miss_below_block) },
	       { "no_room", NULL, AT(counters.miss_no_room) },
	       { "pending", NULL, AT(counters.miss_pending) },
	       { "seed_mismatch", NULL, AT(counters.miss_seed_mismatch) },
	       { "declined", NULL, AT(counters.miss_declined) },
	       { "tier_lost", NULL, AT(counters.miss_tier_lost) },
	       { "tier_down", NULL, AT(counters.miss_tier_down) },
	       { "corrupt", NULL, AT(counters.miss_corrupt) }),
	  .help = "Tokens not served: nothing like it was stored, something else follows there, "
		  "the rest is shorter than a block, no slot was to be had, another worker was "
		  "computing it, the worker hashes with another seed, it lay in a lower tier and "
		  "was computed all the same, a lower tier had lost it, did not answer, or had "
		  "something else." },
	{ "prefixd_waits_total", PREFIXD_COUNTER, ONE(counters.waits),
	  .help = "WAITs that had to wait for another worker." },
	{ "prefixd_waits_ended_total", PREFIXD_COUNTER, .label = "state",
	  MANY({ "ready", NULL, AT(counters.waits_ready) },
	       { "lead", NULL, AT(counters.waits_lead) }),
	  .help = "Of those, the ones that ended with the blocks there, or with the lead." },
	{ "prefixd_leaders_late_total", PREFIXD_COUNTER, ONE(counters.leaders_late),
	  .help = "Workers that took longer than pending-deadline to compute what they had said." },
	/* ---- store ---- */
	{ "prefixd_reserved_blocks_total", PREFIXD_COUNTER, ONE(counters.reserved_blocks),
	  .help = "Slots granted to workers." },
	{ "prefixd_reserve_busy_total", PREFIXD_COUNTER, ONE(counters.reserve_busy),
	  .help = "RESERVE requests answered BUSY." },
	{ "prefixd_commits_total", PREFIXD_COUNTER, ONE(counters.committed_blocks),
	  .help = "Blocks that became ready to be read." },
	{ "prefixd_duplicate_stores_total", PREFIXD_COUNTER, ONE(counters.duplicate_blocks),
	  .help = "Commits of blocks that another worker had committed before." },
	{ "prefixd_attached_stores_total", PREFIXD_COUNTER, ONE(counters.attached_blocks),
	  .help = "Commits of blocks that were known, without a copy on the device." },
	{ "prefixd_taken_blocks_total", PREFIXD_COUNTER, ONE(counters.taken_blocks),
	  .help = "Blocks copied into the pool for workers that may not write there, and "
		  "committed (pool-write staged)." },
	{ "prefixd_take_corrupt_total", PREFIXD_COUNTER, ONE(counters.take_corrupt),
	  .help = "Blocks that were not what their worker's checksum says when they arrived." },
	{ "prefixd_take_failed_total", PREFIXD_COUNTER, ONE(counters.take_failed),
	  .help = "Blocks that could not be copied." },
	{ "prefixd_discards_total", PREFIXD_COUNTER, ONE(counters.discarded_blocks),
	  .help = "Reserved slots given back without a commit." },
	{ "prefixd_quarantined_blocks_total", PREFIXD_COUNTER, ONE(counters.quarantined_blocks),
	  .help = "Slots kept back because a process that could still write them had ended." },
	{ "prefixd_copied_bytes_total", PREFIXD_COUNTER, ONE(counters.bytes_copied),
	  .help = "Payload that the daemon itself copied." },
	/* ---- eviction ---- */
	{ "prefixd_evicted_blocks_total", PREFIXD_COUNTER, .label = "tier", .label2 = "reason",
	  TABLE(remove_reasons),
	  .help = "Blocks that left the daemon, by the tier they were in: for room, by a flush, by "
		  "the operator's evict, found corrupt, over a quota, lost by Redis, for room that "
		  "the tier below could not give in time, with the device." },
	{ "prefixd_evicted_bytes_total", PREFIXD_COUNTER, .label = "tier", TIERS(removed_bytes),
	  .help = "Memory of the blocks that left." },
	{ "prefixd_dropped_blocks_total", PREFIXD_COUNTER, ONE(counters.dropped_blocks),
	  .help = "Blocks that left for room because the tier below took none in time." },
	{ "prefixd_unused_blocks_total", PREFIXD_COUNTER, ONE(counters.unused_blocks),
	  .help = "Blocks that left for room because they were never hit again (second-use)." },
	/* ---- moves between tiers ---- */
	{ "prefixd_demoted_blocks_total", PREFIXD_COUNTER, .label = "from", .label2 = "to",
	  DOWN(moved), .help = "Blocks copied to a lower tier." },
	{ "prefixd_demoted_bytes_total", PREFIXD_COUNTER, .label = "from", .label2 = "to",
	  DOWN(moved_bytes), .help = "Payload of them." },
	{ "prefixd_promoted_blocks_total", PREFIXD_COUNTER, .label = "from", .label2 = "to",
	  UP(moved), .help = "Blocks brought up to the device." },
	{ "prefixd_promoted_bytes_total", PREFIXD_COUNTER, .label = "from", .label2 = "to",
	  UP(moved_bytes), .help = "Payload of them." },
	{ "prefixd_transfer_duration_seconds", PREFIXD_HISTOGRAM, .label = "from", .label2 = "to",
	  TABLE(transfers),
	  .help = "Time that carrying a block took that arrived, from the moment its carrier began "
		  "on: its wait in line before is not in it." },
	{ "prefixd_moves_failed_total", PREFIXD_COUNTER, ONE(counters.moves_failed),
	  .help = "Moves between tiers that did not end well." },
	{ "prefixd_corrupt_blocks_total", PREFIXD_COUNTER, ONE(counters.corrupt_blocks),
	  .help = "Blocks whose bytes were found wrong; none was served." },
	{ "prefixd_lossy_blocks_total", PREFIXD_COUNTER, ONE(counters.lossy_blocks),
	  .help = "Blocks told to leases that a cold codec has changed, or would on their way "
		  "up." },
	{ "prefixd_exact_ends_total", PREFIXD_COUNTER, ONE(counters.exact_ends),
	  .help = "MATCHes and EXTENDs with EXACT that ended before such a block." },
	{ "prefixd_uncodable_blocks_total", PREFIXD_COUNTER, ONE(counters.uncodable_blocks),
	  .help = "Blocks that no cold codec takes and that the host tier has no room for." },
	{ "prefixd_loads_total", PREFIXD_COUNTER, .label = "by",
	  MANY({ "match", NULL, AT(counters.loads) },
	       { "prefetch", NULL, AT(counters.prefetches) }),
	  .help = "Loads begun: for a worker that waits, or ahead of one." },
	{ "prefixd_loads_cut_total", PREFIXD_COUNTER, ONE(counters.loads_cut),
	  .help = "Loads that ended with fewer blocks than they wanted." },
	{ "prefixd_loaded_blocks_total", PREFIXD_COUNTER, ONE(counters.loaded_blocks),
	  .help = "Blocks that loads waited for and got." },
	{ "prefixd_unprofitable_load_blocks_total", PREFIXD_COUNTER,
	  ONE(counters.load_declined_slow),
	  .help = "Blocks not loaded because computing them is faster." },
	{ "prefixd_deferred_reserves_total", PREFIXD_COUNTER, ONE(counters.deferred_reserves),
	  .help = "RESERVE requests that waited for blocks to move down." },
	{ "prefixd_deferred_reserves_late_total", PREFIXD_COUNTER, ONE(counters.reserve_deadline),
	  .help = "Of those, the ones that waited until their deadline." },
	{ "prefixd_invalidations_total", PREFIXD_COUNTER, ONE(counters.invalidations),
	  .help = "Epochs of namespaces that were raised, here or elsewhere." },
	/* ---- Redis ---- */
	{ "prefixd_redis_up", PREFIXD_GAUGE, ONE(redis_up),
	  .help = "1 while connected with a closed breaker; 0 also where there is no Redis." },
	{ "prefixd_redis_breaker_state", PREFIXD_GAUGE, .label = "state", TABLE(breaker_states),
	  .help = "1 for the state that the breaker is in, 0 for the others." },
	{ "prefixd_redis_breaker_changes_total", PREFIXD_COUNTER, .label = "to",
	  MANY({ "open", NULL, AT(redis.breaker_opened) },
	       { "closed", NULL, AT(redis.breaker_closed) }),
	  .help = "Times that the breaker opened, and closed again." },
	{ "prefixd_redis_connects_total", PREFIXD_COUNTER, ONE(redis.connects),
	  .help = "Connections made, the first one included." },
	{ "prefixd_redis_commands_total", PREFIXD_COUNTER, ONE(redis.commands),
	  .help = "Commands sent." },
	{ "prefixd_redis_round_trips_total", PREFIXD_COUNTER, ONE(redis.round_trips),
	  .help = "Batches of commands written and answered." },
	{ "prefixd_redis_errors_total", PREFIXD_COUNTER, .label = "kind", TABLE(redis_errors),
	  .help = "Commands that failed, by why." },
	{ "prefixd_redis_bad_payload_total", PREFIXD_COUNTER, .label = "reason",
	  TABLE(redis_bad_values),
	  .help = "Values in Redis that were not the block that was asked for; none was served." },
	{ "prefixd_redis_values_total", PREFIXD_COUNTER, .label = "what",
	  MANY({ "stored", NULL, AT(redis.stored) }, { "fetched", NULL, AT(redis.fetched) },
	       { "lost", NULL, AT(redis.lost) }, { "unlinked", NULL, AT(redis.unlinked) }),
	  .help = "Values stored, fetched, not there when asked for, and taken away as bad." },
	{ "prefixd_redis_payload_bytes_total", PREFIXD_COUNTER, .label = "direction",
	  MANY({ "out", NULL, AT(redis.bytes_out) }, { "in", NULL, AT(redis.bytes_in) }),
	  .help = "Bytes of values, to Redis and from it." },
	{ "prefixd_redis_looks_total", PREFIXD_COUNTER, .label = "result",
	  MANY({ "asked", NULL, AT(counters.looks) },
	       { "skipped", NULL, AT(counters.looks_skipped) }),
	  .help = "Times that Redis was asked for blocks that the index does not know, or was "
		  "not, since too many such questions were open." },
	{ "prefixd_redis_found_blocks_total", PREFIXD_COUNTER, ONE(counters.found_blocks),
	  .help = "Blocks that it was found to have." },
	{ "prefixd_redis_inflight_commands", PREFIXD_GAUGE, ONE(redis.in_flight),
	  .help = "Commands sent and not answered." },
	{ "prefixd_redis_inflight_bytes", PREFIXD_GAUGE, ONE(redis.in_flight_bytes),
	  .help = "Payload of them." },
	{ "prefixd_redis_latency_seconds", PREFIXD_GAUGE, PREFIXD_SECONDS, ONE(redis.latency_ns),
	  .help = "Moving average of the time that a command takes." },
	/* ---- helpers ---- */
	{ "prefixd_queue_depth", PREFIXD_GAUGE, .label = "queue",
	  MANY({ "copy", NULL, AT(copy_waiting) }, { "redis", NULL, AT(redis_waiting) },
	       { "redis_commands", NULL, AT(redis.queued) }),
	  .help = "Work that waits: for the thread that copies, for the one that speaks to Redis, "
		  "and in it for earlier commands." },
	{ "prefixd_parked_frames", PREFIXD_GAUGE, ONE(parked_frames),
	  .help = "Requests that wait for a word of their worker's stream, and those behind "
		  "them." },
	{ "prefixd_helper_heartbeat_age_seconds", PREFIXD_GAUGE, PREFIXD_SECONDS, .label = "helper",
	  MANY({ "copy", NULL, AT(copy_beat_age_ns) }, { "redis", NULL, AT(redis_beat_age_ns) }),
	  .help = "Since the thread last said that it is alive; 0 where there is none." },
	{ "prefixd_copy_operations_total", PREFIXD_COUNTER, .label = "op", .label2 = "result",
	  TABLE(copy_operations),
	  .help = "What the thread that copies was asked for: blocks between device and host "
		  "memory, memory of pools made and given back." },
	{ "prefixd_copy_jobs_total", PREFIXD_COUNTER, ONE(carrier.jobs),
	  .help = "Copies handed to the device: runs of blocks, not blocks." },
	{ "prefixd_copy_bytes_total", PREFIXD_COUNTER, ONE(carrier.bytes),
	  .help = "Payload of them." },
	{ "prefixd_copy_corrupt_total", PREFIXD_COUNTER, ONE(carrier.corrupt),
	  .help = "Blocks whose checksum was wrong when they were copied." },
	{ "prefixd_coded_blocks_total", PREFIXD_COUNTER, .label = "result",
	  MANY({ "coded", NULL, AT(carrier.coded) }, { "decoded", NULL, AT(carrier.decoded) },
	       { "raw", NULL, AT(carrier.uncodable) }),
	  .help = "Blocks that were coded on their way down, decoded on their way up, or found not "
		  "to be codable." },
	{ "prefixd_coded_by_device_total", PREFIXD_COUNTER, ONE(carrier.coded_by_device),
	  .help = "Of the coded and decoded ones, those that a GPU's kernels did." },
	{ "prefixd_coded_saved_bytes_total", PREFIXD_COUNTER, ONE(carrier.saved_bytes),
	  .help = "What the coded ones were shorter than they are on the device." },
	{ "prefixd_copy_errors_total", PREFIXD_COUNTER, .label = "error", TABLE(copy_errors),
	  .help = "Blocks that could not be copied: the copy failed, the device is lost, the "
		  "driver had no memory or would not do it, other bytes arrived, something else." },
	{ "prefixd_device_lost", PREFIXD_GAUGE, ONE(device_lost),
	  .help = "1 while the device is lost; /readyz and the log say by what." },
	{ "prefixd_device_losses_total", PREFIXD_COUNTER, ONE(carrier.losses),
	  .help = "Times that it was lost." },
	{ "prefixd_device_opened_again_total", PREFIXD_COUNTER, ONE(carrier.opened),
	  .help = "Times that it was opened again." },
	/* ---- space ---- */
	{ "prefixd_pools", PREFIXD_GAUGE, ONE(pools),
	  .help = "Pools: one for each size of block." },
	{ "prefixd_pool_ranks", PREFIXD_GAUGE, ONE(pool_ranks),
	  .help = "Ranks of all pools, each with slots of its own: 1 for a pool without stripes." },
	{ "prefixd_devices", PREFIXD_GAUGE, ONE(devices), .help = "Devices that pools lie on." },
	{ "prefixd_pool_slots", PREFIXD_GAUGE, .label = "tier", .label2 = "state",
	  TABLE(slot_states), .help = "Slots by state, over all pools." },
	{ "prefixd_pool_capacity_slots", PREFIXD_GAUGE, .label = "tier", POOLS(capacity_slots),
	  .help = "Slots of all pools: the sum of prefixd_pool_slots." },
	{ "prefixd_pool_bytes", PREFIXD_GAUGE, .label = "tier", .label2 = "state",
	  TABLE(slot_state_bytes), .help = "Memory of the slots by state." },
	{ "prefixd_pool_capacity_bytes", PREFIXD_GAUGE, .label = "tier", POOLS(capacity_bytes),
	  .help = "Memory of all pools: the sum of prefixd_pool_bytes." },
	{ "prefixd_tier_blocks", PREFIXD_GAUGE, .label = "tier", TIERS(tier_blocks),
	  .help = "Blocks by the highest tier that has them: with prefixd_hollow_blocks the "
		  "sum is prefixd_blocks." },
	{ "prefixd_host_second_copies", PREFIXD_GAUGE, ONE(host_bonus),
	  .help = "Host slots whose block is on the device too." },
	{ "prefixd_blocks", PREFIXD_GAUGE, ONE(blocks), .help = "Blocks that the index knows." },
	{ "prefixd_hollow_blocks", PREFIXD_GAUGE, ONE(hollow),
	  .help = "Blocks outside of all windows that gave their slots back and are still known." },
	{ "prefixd_hollowed_blocks_total", PREFIXD_COUNTER, ONE(hollowed),
	  .help = "Slots that were freed since no window had their blocks any more." },
	{ "prefixd_radix_nodes", PREFIXD_GAUGE, ONE(nodes), .help = "Nodes of the index." },
	{ "prefixd_radix_roots", PREFIXD_GAUGE, ONE(roots),
	  .help = "Trees of the index: one for each namespace, tenant and salt in use." },
	{ "prefixd_index_bytes", PREFIXD_GAUGE, .label = "part",
	  MANY({ "tree", NULL, AT(tree_bytes) }, { "table", NULL, AT(table_bytes) },
	       { "keys", NULL, AT(key_bytes) }),
	  .help = "Memory of the index: its tree, its table of blocks, the keys of the blocks." },
	{ "prefixd_heap_bytes", PREFIXD_GAUGE, ONE(heap_bytes),
	  .help = "Memory that the deciding part of the daemon holds, the index included." },
	{ "prefixd_key_mismatches_total", PREFIXD_COUNTER, ONE(collisions),
	  .help = "Lookups whose address agreed and whose key did not; each was caught." },
	/* ---- subscribers ---- */
	{ "prefixd_events_emitted_total", PREFIXD_COUNTER, ONE(counters.events_emitted),
	  .help = "Events sent to subscribers." },
	{ "prefixd_events_dropped_total", PREFIXD_COUNTER, ONE(counters.events_dropped),
	  .help = "Events that subscribers were too slow or too late for." },
	{ "prefixd_resyncs_total", PREFIXD_COUNTER, ONE(counters.resyncs),
	  .help = "Times that a subscriber was told that it lost events." },
	/* ---- what an earlier life left ---- */
	{ "prefixd_keeper", PREFIXD_GAUGE, .label = "state", TABLE(keepers),
	  .help = "1 for who keeps the memory beyond this process, 0 for the others." },
	{ "prefixd_restore_duration_seconds", PREFIXD_GAUGE, PREFIXD_SECONDS, ONE(restore_ns),
	  .help = "From the start to the moment when all that an earlier life left was back; 0: it "
		  "left nothing, or that goes on." },
	{ "prefixd_restored_pools", PREFIXD_GAUGE, .label = "result",
	  MANY({ "back", NULL, AT(restored.n_groups) },
	       { "lost", NULL, AT(restored.n_groups_lost) }),
	  .help = "Pools that came back at the start, and that could not." },
	{ "prefixd_restored_blocks", PREFIXD_GAUGE, ONE(restored.index.n_taken),
	  .help = "Blocks that came back." },
	{ "prefixd_restore_lost_blocks_total", PREFIXD_COUNTER, .label = "reason", TABLE(damages),
	  .help = "Blocks that did not: their entry, root, key, copy or parent was damaged, what "
		  "they hung below was lost, only Redis has them and the index has no room." },
	{ "prefixd_restored_leases", PREFIXD_GAUGE, ONE(restored.n_leases),
	  .help = "Leases that processes held which may still read." },
	{ "prefixd_restore_verified_blocks_total", PREFIXD_COUNTER, .label = "result",
	  MANY({ "good", NULL, AT(restored_good) }, { "corrupt", NULL, AT(restored.n_corrupt) }),
	  .help = "Blocks of them that were compared with their checksums (recover-verify)." },
	/* ---- sessions and leases ---- */
	{ "prefixd_sessions", PREFIXD_GAUGE, .label = "state",
	  MANY({ "connected", NULL, AT(sessions_connected) },
	       { "orphaned", NULL, AT(sessions_orphaned) }),
	  .help = "Sessions, prefixctl's too; orphaned: the socket ended, the process lives." },
	{ "prefixd_sessions_opened_total", PREFIXD_COUNTER, ONE(counters.sessions_opened),
	  .help = "Sessions begun." },
	{ "prefixd_sessions_orphaned_total", PREFIXD_COUNTER, ONE(counters.sessions_orphaned),
	  .help = "Sessions whose socket ended before their process." },
	{ "prefixd_leases", PREFIXD_GAUGE, ONE(leases), .help = "Leases that are held now." },
	{ "prefixd_leases_begun_total", PREFIXD_COUNTER, ONE(counters.lookups),
	  .help = "Leases begun by MATCH." },
	{ "prefixd_leases_ended_total", PREFIXD_COUNTER, .label = "reason",
	  MANY({ "released", NULL, AT(counters.leases_released) },
	       { "died", NULL, AT(counters.leases_died) },
	       { "quiesced", NULL, AT(counters.leases_quiesced) },
	       { "revoked", NULL, AT(counters.leases_revoked) }),
	  .help = "Leases ended: by RELEASE, by the end of their process, by QUIESCED of an "
		  "orphan, taken back." },
	{ "prefixd_stripes_broken_total", PREFIXD_COUNTER, ONE(counters.stripes_broken),
	  .help = "Leases that ranks share and one of them broke: it ended before its RELEASE." },
	{ "prefixd_pins", PREFIXD_GAUGE, ONE(pins),
	  .help = "Blocks that leases keep from leaving, counted once per lease." },
	{ "prefixd_pin_age_max_seconds", PREFIXD_GAUGE, PREFIXD_SECONDS, ONE(lease_age_max_ns),
	  .help = "Age of the oldest lease; 0 without leases." },
	{ "prefixd_orphan_leases", PREFIXD_GAUGE, ONE(orphan_leases),
	  .help = "Of the leases, those whose socket ended while their process lives." },
	{ "prefixd_pinned_blocks", PREFIXD_GAUGE, ONE(pinned_blocks),
	  .help = "Blocks on the device that at least one lease keeps from leaving." },
	{ "prefixd_pinned_bytes", PREFIXD_GAUGE, ONE(pinned_bytes), .help = "Memory of them." },
	{ "prefixd_reserved_slots", PREFIXD_GAUGE, ONE(reserved_slots),
	  .help = "Slots that leases have reserved and not committed." },
	{ "prefixd_kept_slots", PREFIXD_GAUGE, ONE(kept_slots),
	  .help = "Slots that nobody can have since who held them left: quarantined ones, and what "
		  "leases hold whose socket ended while their process lives." },
	{ "prefixd_pools_over_half", PREFIXD_GAUGE, ONE(pool_over),
	  .help = "1 while these are more than half of a pool; /readyz and the log say whose." },
	{ "prefixd_pool_over_half_total", PREFIXD_COUNTER, ONE(counters.times_over),
	  .help = "Times that they became more than half of a pool." },
	{ "prefixd_pools_lost_total", PREFIXD_COUNTER, ONE(counters.pools_lost),
	  .help = "Pools whose device was lost, with what was on it alone." },
	{ "prefixd_refused_lost_total", PREFIXD_COUNTER, ONE(counters.refused_lost),
	  .help = "Requests refused because their pool has lost its device, and its memory." },
	{ "prefixd_pin_errors_total", PREFIXD_COUNTER, .label = "kind",
	  MANY({ "unknown_lease", NULL, AT(counters.unknown_lease) }),
	  .help = "Requests that name a lease which is not there." },
	/* ---- requests and time ---- */
	{ "prefixd_requests_total", PREFIXD_COUNTER, ONE(counters.requests),
	  .help = "Requests of workers that were answered, replays apart." },
	{ "prefixd_request_errors_total", PREFIXD_COUNTER, ONE(counters.errors),
	  .help = "Requests answered with an error." },
	{ "prefixd_request_replays_total", PREFIXD_COUNTER, ONE(counters.op_replays),
	  .help = "Requests answered from the memory of operation ids." },
	{ "prefixd_requests_refused_total", PREFIXD_COUNTER, .label = "reason",
	  MANY({ "forbidden", NULL, AT(counters.forbidden) },
	       { "self_test", NULL, AT(counters.self_test_failed) }),
	  .help = "Requests for tenants that the peer may not name; wrong self-tests." },
	{ "prefixd_request_duration_seconds", PREFIXD_HISTOGRAM, .label = "op", TABLE(operations),
	  .help = "Time that deciding a request took, until its reply was queued." },
	{ "prefixd_loop_iteration_seconds", PREFIXD_HISTOGRAM, ONE(measures.turn),
	  .help = "Time that one turn of the loop kept others waiting, from the first event that "
		  "was decided to the next wait." },
	{ "prefixd_loop_cpu_seconds", PREFIXD_HISTOGRAM, ONE(measures.turn_cpu),
	  .help = "Processor time of one turn of the loop." },
	/* ---- health ---- */
	{ "prefixd_draining", PREFIXD_GAUGE, ONE(draining),
	  .help = "1 from the signal or request to stop on: no new work is taken." },
	{ "prefixd_start_time_seconds", PREFIXD_GAUGE, PREFIXD_SECONDS, ONE(started_ns),
	  .help = "When the daemon started, since 1970." },
	{ "prefixd_config_last_reload_successful", PREFIXD_GAUGE, ONE(reload_ok),
	  .help = "1 if the last reading of the configuration was taken over; the start is one." },
	{ "prefixd_config_last_reload_success_timestamp_seconds", PREFIXD_GAUGE, PREFIXD_SECONDS,
	  ONE(reload_ns), .help = "When the configuration was last taken over, since 1970." },
	{ "prefixd_namespace_seed_mismatch_total", PREFIXD_COUNTER, ONE(counters.seed_mismatch),
	  .help = "Namespaces opened by workers that hash with different seeds." },
	{ "prefixd_log_messages_total", PREFIXD_COUNTER, .label = "level",
	  MANY({ "error", NULL, AT(log_lines[PREFIXD_LOG_ERROR]) },
	       { "warn", NULL, AT(log_lines[PREFIXD_LOG_WARN]) },
	       { "info", NULL, AT(log_lines[PREFIXD_LOG_INFO]) },
	       { "debug", NULL, AT(log_lines[PREFIXD_LOG_DEBUG]) }),
	  .help = "Lines written to the log." },
	{ "process_cpu_seconds_total", PREFIXD_COUNTER, PREFIXD_SECONDS, ONE(cpu_ns),
	  .help = "Processor time, user and system." },
	{ "process_resident_memory_bytes", PREFIXD_GAUGE, ONE(resident_bytes),
	  .help = "Resident memory, pages of the pools included." },
	{ "process_virtual_memory_bytes", PREFIXD_GAUGE, ONE(virtual_bytes),
	  .help = "Virtual memory." },
	{ "process_open_fds", PREFIXD_GAUGE, ONE(open_fds), .help = "Open descriptors." },
	{ "process_max_fds", PREFIXD_GAUGE, ONE(max_fds),
	  .help = "Most descriptors that may be open." },
	{ "process_start_time_seconds", PREFIXD_GAUGE, PREFIXD_SECONDS, ONE(started_ns),
	  .help = "When the process started, since 1970." },
	/* ---- connections ---- */
	{ "prefixd_connections_closed_total", PREFIXD_COUNTER, .label = "reason",
	  TABLE(closed_reasons), .help = "Connections that ended, by why." },
	{ "prefixd_connections_rejected_total", PREFIXD_COUNTER, .label = "reason",
	  MANY({ "no_descriptor", NULL, AT(measures.rejected_no_descriptor) },
	       { "no_memory", NULL, AT(measures.rejected_no_memory) },
	       { "max_sessions", NULL, AT(counters.refused_sessions) },
	       { "max_sessions_per_process", NULL, AT(counters.refused_process) },
	       { "max_sessions_per_user", NULL, AT(counters.refused_user) },
	       { "forbidden", NULL, AT(counters.refused_forbidden) },
	       { "version", NULL, AT(counters.refused_version) },
	       { "self_test", NULL, AT(counters.self_test_failed) },
	       { "draining", NULL, AT(counters.refused_draining) }),
	  .help = "Connections that got no session: closed at once, or told so in answer to "
		  "HELLO." },
	{ "prefixd_matches_rejected_total", PREFIXD_COUNTER, .label = "reason",
	  MANY({ "orphans", NULL, AT(counters.refused_orphans) }),
	  .help = "MATCH requests of processes that left too many sessions behind." },
	{ "prefixd_scrape_duration_seconds", PREFIXD_GAUGE, PREFIXD_SECONDS, ONE(scrape_ns),
	  .help = "How long collecting the values of this scrape took." },
};

const size_t prefixd_n_metric_families = radix_array_size(prefixd_metric_families);
