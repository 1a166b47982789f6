/*
 * engine_counters.h - all that the engine counts, and what each number means; part of engine.h.
 *
 * They begin at 0 and only grow.  Sums that hold between them are invariants of the engine.
 */
#pragma once

#include <stdint.h>

#define PREFIXD_COUNTERS(X)                                                            \
	X(requests, "frames that were answered, replays apart")                        \
	X(errors, "frames answered with an error")                                     \
	X(lookups, "leases begun")                                                     \
	X(queried_tokens, "tokens asked for by leases that ended")                     \
	X(hit_device_tokens, "tokens served from the device pool")                     \
	X(hit_host_tokens, "tokens served from host memory")                           \
	X(hit_redis_tokens, "tokens served from Redis")                                \
	X(hit_pending_tokens, "tokens that another worker committed during the lease") \
	X(hit_tail_tokens, "of the device hits, tokens of partly matching blocks")     \
	X(miss_tokens, "tokens not served")                                            \
	X(queried_blocks, "whole blocks asked for by leases that ended")               \
	X(lookup_device_blocks, "of these, served on the device")                      \
	X(lookup_host_blocks, "of these, served from host memory")                     \
	X(lookup_redis_blocks, "of these, served from Redis")                          \
	X(lookup_miss_blocks, "of these, not served")                                  \
	X(lookups_full, "leases that ended with every token served")                   \
	X(lookups_partial, "leases that ended with some tokens served")                \
	X(lookups_miss, "leases that ended with no token served")                      \
	X(miss_never_seen, "tokens missed: nothing like it was ever stored")           \
	X(miss_diverged, "tokens missed: another continuation is stored")              \
	X(miss_below_block, "tokens missed: rest shorter than a block")                \
	X(miss_no_room, "tokens missed: no slot could be reserved")                    \
	X(miss_pending, "tokens missed: another lease was computing them")             \
	X(miss_seed_mismatch, "tokens missed: never seen, and the hash seed differs")  \
	X(miss_declined, "tokens missed: they lay in a lower tier and were computed")  \
	X(miss_tier_lost, "tokens missed: a lower tier had listed and lost them")      \
	X(miss_tier_down, "tokens missed: a lower tier did not answer")                \
	X(miss_corrupt, "tokens missed: what a lower tier had was not the block")      \
	X(reserved_blocks, "slots granted")                                            \
	X(reserve_busy, "RESERVE answered BUSY")                                       \
	X(committed_blocks, "blocks that became READY")                                \
	X(taken_blocks, "blocks copied from desks into the pool, and committed")       \
	X(take_corrupt, "blocks of desks that were not what their checksum says")      \
	X(take_failed, "blocks of desks that could not be copied")                     \
	X(duplicate_blocks, "commits where another was faster")                        \
	X(attached_blocks, "commits onto a member without device copy")                \
	X(discarded_blocks, "reserved slots given back unfilled")                      \
	X(quarantined_blocks, "slots that waited for the end of a process")            \
	X(leases_released, "leases ended by RELEASE")                                  \
	X(leases_died, "leases ended by the end of their process")                     \
	X(leases_quiesced, "orphaned leases ended by QUIESCED")                        \
	X(leases_revoked, "leases taken back")                                         \
	X(stripes_broken, "leases that ranks share, broken by the end of one")         \
	X(times_over, "times that more than half of a pool was kept from use")         \
	X(pools_lost, "pools whose device was lost")                                   \
	X(refused_lost, "requests refused: the device of their pool is lost")          \
	X(unknown_lease, "calls on a lease that is not there")                         \
	X(waits, "WAITs that had to wait")                                             \
	X(waits_ready, "waits that ended with the blocks there")                       \
	X(waits_lead, "waits that ended with the lead")                                \
	X(leaders_late, "leaders that were not waited for any longer")                 \
	X(op_replays, "requests answered from the memory of operation ids")            \
	X(seed_mismatch, "namespaces opened with another hash seed")                   \
	X(self_test_failed, "clients refused for a wrong self-test")                   \
	X(forbidden, "requests for a tenant that the peer may not name")               \
	X(sessions_opened, "sessions begun")                                           \
	X(sessions_orphaned, "sockets that ended before their process")                \
	X(refused_sessions, "clients refused: as many are connected as may be")        \
	X(refused_process, "clients refused: too many of one process")                 \
	X(refused_user, "clients refused: too many of one user")                       \
	X(refused_forbidden, "clients refused: their user may name no tenant")         \
	X(refused_version, "clients refused: they speak other versions")               \
	X(refused_draining, "clients refused: the daemon was stopping")                \
	X(refused_orphans, "MATCHes refused: their process left too much behind")      \
	X(events_emitted, "events sent to subscribers")                                \
	X(events_dropped, "events that subscribers were too slow or too late for")     \
	X(resyncs, "subscribers told that they lost events")                           \
	X(bytes_copied, "payload bytes that the daemon copied")                        \
	X(deferred_reserves, "RESERVEs that waited for blocks to move down")           \
	X(reserve_deadline, "of those, the ones that waited until their deadline")     \
	X(dropped_blocks, "blocks dropped for room because the tier below took none")  \
	X(unused_blocks, "blocks dropped for room because they were never hit again")  \
	X(moves_failed, "moves between tiers that did not end well")                   \
	X(corrupt_blocks, "blocks whose bytes were found wrong")                       \
	X(uncodable_blocks, "blocks that no codec takes, on their way to the host")    \
	X(lossy_blocks, "blocks told to leases that a codec has changed, or would")    \
	X(exact_ends, "MATCHes and EXTENDs that EXACT ended before such a block")      \
	X(loads, "loads begun by PROMOTE")                                             \
	X(loads_cut, "of those, loads that ended with fewer blocks than they wanted")  \
	X(loaded_blocks, "blocks that loads waited for and got")                       \
	X(load_declined_slow, "blocks not loaded because computing them is faster")    \
	X(prefetches, "loads begun by PREFETCH")                                       \
	X(looks, "questions to Redis whether it has blocks that the index lacks")      \
	X(looks_skipped, "such questions not asked: too many at a time")               \
	X(found_blocks, "blocks that Redis was found to have")                         \
	X(invalidations, "epochs that were raised or seen to be higher")

struct prefixd_counters {
#define X(name, help) uint64_t name;
	PREFIXD_COUNTERS(X)
#undef X
};
