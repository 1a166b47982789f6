/*
 * admin_status.c - the whole state of the daemon as numbers, and the few that a watcher wants.
 */
#include "daemon/admin_internal.h"

#include "daemon/below.h"
#include "daemon/restore.h"

#include <unistd.h>

#define PUT(r, obj, info, name) prefixd_admin_put_u64(r, obj, #name, (info)->name)

struct sums {
	uint64_t n_slots, n_host;
	uint64_t slots[RADIX_SLOT_N_STATES], host[RADIX_SLOT_N_STATES];
	uint64_t removed[RADIX_N_TIERS][RADIX_REMOVE_N_REASONS];
	uint64_t moved[RADIX_N_TIERS][RADIX_N_TIERS];
	uint64_t blocks[RADIX_N_TIERS], bytes[RADIX_N_TIERS], n_bonus;
	uint64_t pool_bytes, generation_bytes, index_bytes, table_bytes, key_bytes;
};

static void slots_put(struct prefixd_admin_reply *r, json_t *obj, const char *name,
		      const uint64_t *slots)
{
	json_t *j = prefixd_admin_object(r, obj, name);

	for (int i = 0; i < RADIX_SLOT_N_STATES; i++)
		prefixd_admin_put_u64(r, j, radix_slot_state_to_string((enum radix_slot_state)i),
				      slots[i]);
}

static void removed_put(struct prefixd_admin_reply *r, json_t *obj, const char *name,
			const uint64_t *removed)
{
	json_t *j = prefixd_admin_object(r, obj, name);

	for (int i = 0; i < RADIX_REMOVE_N_REASONS; i++)
		prefixd_admin_put_u64(r, j,
				      radix_remove_reason_to_string((enum radix_remove_reason)i),
				      removed[i]);
}

/* Of a block where it lies, without what is beside it there. */
static uint64_t block_bytes(const struct prefixd_pool *pool, const struct prefixd_group_info *info,
			    int tier)
{
	if (!pool)
		return info->slot_bytes;
	return tier == RADIX_TIER_DEVICE ? pool->block_bytes : prefixd_pool_cold_bytes(pool);
}

static void sums_add(struct prefixd_server *s, const struct prefixd_group_info *info,
		     const struct radix_stats *st, struct sums *sums)
{
	const struct prefixd_pool *pool = prefixd_pools_get(&s->pools, info->id);

	sums->n_slots += st->n_slots;
	sums->n_host += st->n_host;
	sums->n_bonus += st->n_bonus;
	for (int i = 0; i < RADIX_SLOT_N_STATES; i++) {
		sums->slots[i] += st->slots[i];
		sums->host[i] += st->host[i];
	}
	for (int t = 0; t < RADIX_N_TIERS; t++) {
		sums->blocks[t] += st->tier[t];
		sums->bytes[t] += st->tier[t] * block_bytes(pool, info, t);
		for (int i = 0; i < RADIX_REMOVE_N_REASONS; i++)
			sums->removed[t][i] += st->removed_from[t][i];
		for (int to = 0; to < RADIX_N_TIERS; to++)
			sums->moved[t][to] += st->moved[t][to];
	}
	if (pool) {
		sums->pool_bytes += prefixd_pool_bytes(pool);
		sums->generation_bytes += pool->generations.len;
	}
	sums->index_bytes += st->index_bytes;
	sums->table_bytes += st->table_bytes;
	sums->key_bytes += st->key_bytes;
}

/* Where the slots of each rank lie. */
static void ranks_put(struct prefixd_server *s, struct prefixd_admin_reply *r, json_t *group,
		      const struct prefixd_pool *pool)
{
	const struct gpu_ops *ops = s->pools.ops; /* a rank's device may be closed */
	json_t *list = prefixd_admin_array(r, group, "ranks");

	for (uint32_t i = 0; pool && i < pool->n_ranks; i++) {
		const struct prefixd_rank *rank = &pool->ranks[i];
		json_t *j = json_object();
		char text[GPU_ID_TEXT];

		gpu_id_print(rank->info.device_id, text);
		prefixd_admin_put_text(r, j, "device",
				       ops->kind == GPU_KIND_CUDA ? text : ops->name);
		prefixd_admin_put_u64(r, j, "pool_bytes", rank->info.len);
		prefixd_admin_append(r, list, j);
	}
}

static void group_put(struct prefixd_server *s, struct prefixd_admin_reply *r, json_t *j,
		      const struct prefixd_group_info *info, const struct radix_stats *st)
{
	const struct prefixd_pool *pool = prefixd_pools_get(&s->pools, info->id);

	PUT(r, j, info, id);
	PUT(r, j, info, n_slots);
	PUT(r, j, info, slot_bytes);
	PUT(r, j, info, slot_stride);
	prefixd_admin_put_text(r, j, "cold_codec", prefixd_cold_codec_to_string(info->cold->codec));
	prefixd_admin_put_u64(r, j, "cold_bytes", prefixd_cold_bytes(info->cold, info->slot_bytes));
	prefixd_admin_put_u64(r, j, "pool_bytes", pool ? prefixd_pool_bytes(pool) : 0);
	prefixd_admin_put_u64(r, j, "page_bytes", pool ? pool->info.page_bytes : 0);
	prefixd_admin_put_bool(r, j, "huge", pool && pool->info.huge);
	ranks_put(s, r, j, pool);
	slots_put(r, j, "slots", st->slots);
	prefixd_admin_put_u64(r, j, "n_host", st->n_host);
	slots_put(r, j, "host", st->host);
	prefixd_admin_put_u64(r, j, "blocks", st->n_blocks);
	prefixd_admin_put_u64(r, j, "nodes", st->n_nodes);
	prefixd_admin_put_u64(r, j, "roots", st->n_roots);
	prefixd_admin_put_u64(r, j, "islands", st->n_islands);
	prefixd_admin_put_u64(r, j, "pins", st->n_pins);
	PUT(r, j, st, index_bytes);
	PUT(r, j, st, table_bytes);
	PUT(r, j, st, key_bytes);
	prefixd_admin_put_u64(r, j, "stored", st->stored_total);
	prefixd_admin_put_u64(r, j, "duplicates", st->duplicate_total);
	removed_put(r, j, "removed", st->removed);
	PUT(r, j, st, reuse_counter);
	PUT(r, j, st, verify_mismatch);
}

static void groups_put(struct prefixd_server *s, struct prefixd_admin_reply *r, struct sums *sums)
{
	json_t *list = prefixd_admin_array(r, r->root, "groups");
	struct prefixd_group_info info;
	uint32_t it = 0;

	while (prefixd_engine_next_group(s->engine, &it, &info)) {
		struct radix_stats st;
		json_t *j = json_object();

		radix_index_stats(info.index, &st);
		sums_add(s, &info, &st, sums);
		group_put(s, r, j, &info, &st);
		prefixd_admin_append(r, list, j);
	}
}

static void namespaces_put(struct prefixd_server *s, struct prefixd_admin_reply *r)
{
	json_t *list = prefixd_admin_array(r, r->root, "namespaces");
	struct prefixd_namespace_info info;
	uint32_t it = 0;

	while (prefixd_engine_next_namespace(s->engine, &it, &info)) {
		char exact[4 * PREFIXD_COLD_LAYERS_MAX];
		json_t *j = json_object();

		PUT(r, j, &info, id);
		PUT(r, j, &info, group);
		prefixd_admin_put_hex(r, j, "digest", info.digest, sizeof(info.digest));
		prefixd_admin_put_text(r, j, "model", info.model);
		prefixd_admin_put_text(r, j, "revision", info.revision);
		prefixd_admin_put_text(r, j, "dtype", info.dtype);
		prefixd_admin_put_text(r, j, "adapter", info.adapter);
		prefixd_admin_put_text(r, j, "engine", info.engine);
		prefixd_admin_put_text(r, j, "key_mode",
				       info.mode == RADIX_KEYS_TOKENS ? "tokens" : "digest");
		PUT(r, j, &info, block_tokens);
		PUT(r, j, &info, key_len);
		prefixd_admin_put_text(r, j, "cold_codec",
				       prefixd_cold_codec_to_string(info.cold->codec));
		prefixd_admin_put_text(r, j, "exact_layers",
				       prefixd_cold_layers_print(info.cold, exact, sizeof(exact)));
		prefixd_admin_put_u64(r, j, "sessions", info.n_sessions);
		prefixd_admin_put_u64(r, j, "blocks", info.n_blocks);
		prefixd_admin_append(r, list, j);
	}
}

/* Requests of the session that wait for a word. */
static uint32_t parked(const struct prefixd_server *s, uint32_t session)
{
	const struct prefixd_client *c = session < s->n_clients ? s->clients[session] : NULL;

	return c ? c->words.n_frames : 0;
}

/* The sessions, and how many leases they hold together. */
static uint64_t sessions_put(struct prefixd_server *s, struct prefixd_admin_reply *r)
{
	json_t *list = prefixd_admin_array(r, r->root, "sessions");
	struct prefixd_session_info info;
	uint64_t leases = 0;
	uint32_t it = 0;

	while (prefixd_engine_next_session(s->engine, &it, prefixd_now_ns(), &info)) {
		json_t *j = json_object();

		leases += info.n_leases;
		PUT(r, j, &info, session);
		PUT(r, j, &info, pid);
		PUT(r, j, &info, uid);
		prefixd_admin_put_text(r, j, "name", info.name);
		prefixd_admin_put_bool(r, j, "orphan", info.orphan);
		prefixd_admin_put_real(r, j, "age_s", (double)info.age_ns / 1e9);
		prefixd_admin_put_u64(r, j, "leases", info.n_leases);
		prefixd_admin_put_u64(r, j, "namespaces", info.n_namespaces);
		PUT(r, j, &info, requests);
		PUT(r, j, &info, ttft_us);
		PUT(r, j, &info, tpot_us);
		PUT(r, j, &info, input_tokens);
		PUT(r, j, &info, running);
		PUT(r, j, &info, waiting);
		prefixd_admin_put_u64(r, j, "parked", parked(s, info.session));
		prefixd_admin_append(r, list, j);
	}
	return leases;
}

static void ratio_put(struct prefixd_admin_reply *r, const char *name, uint64_t part,
		      uint64_t whole)
{
	if (whole == 0)
		prefixd_admin_put(r, r->root, name, json_null());
	else
		prefixd_admin_put_real(r, r->root, name, (double)part / (double)whole);
}

static uint64_t hit_tokens(const struct prefixd_counters *c)
{
	return c->hit_device_tokens + c->hit_host_tokens + c->hit_redis_tokens +
	       c->hit_pending_tokens;
}

static void counters_put(struct prefixd_admin_reply *r, const struct prefixd_counters *c)
{
	json_t *j = prefixd_admin_object(r, r->root, "counters");

#define X(name_, help_) prefixd_admin_put_u64(r, j, #name_, c->name_);
	PREFIXD_COUNTERS(X)
#undef X
	ratio_put(r, "token_hit_ratio", hit_tokens(c), c->queried_tokens);
	ratio_put(r, "request_hit_ratio", c->lookups_full + c->lookups_partial,
		  c->lookups_full + c->lookups_partial + c->lookups_miss);
}

static const char *tier_name(int t)
{
	return radix_tier_to_string((enum radix_tier)t);
}

/* What lies where, and what moved between: by from and to, as {"device": {"host": 12}}. */
static void moved_put(struct prefixd_admin_reply *r, const char *name, const struct sums *sums,
		      bool down)
{
	json_t *all = prefixd_admin_object(r, r->root, name);

	for (int from = 0; from < RADIX_N_TIERS; from++) {
		json_t *j = NULL;

		for (int to = 0; to < RADIX_N_TIERS; to++) {
			/* What goes up goes to the device. */
			if (down ? to <= from : to != RADIX_TIER_DEVICE || from == to)
				continue;
			if (!j)
				j = prefixd_admin_object(r, all, tier_name(from));
			prefixd_admin_put_u64(r, j, tier_name(to), sums->moved[from][to]);
		}
	}
}

static void tiers_put(struct prefixd_admin_reply *r, const struct prefixd_counters *c,
		      const struct sums *sums)
{
	const uint64_t hits[RADIX_N_TIERS] = { c->hit_device_tokens, c->hit_host_tokens,
					       c->hit_redis_tokens };
	json_t *all = prefixd_admin_object(r, r->root, "tiers");
	json_t *removed = prefixd_admin_object(r, r->root, "removed_blocks");

	for (int t = 0; t < RADIX_N_TIERS; t++) {
		json_t *j = prefixd_admin_object(r, all, tier_name(t));

		prefixd_admin_put_u64(r, j, "blocks", sums->blocks[t]);
		prefixd_admin_put_u64(r, j, "bytes", sums->bytes[t]);
		prefixd_admin_put_u64(r, j, "hit_tokens", hits[t]);
		removed_put(r, removed, tier_name(t), sums->removed[t]);
	}
	moved_put(r, "demoted_blocks", sums, true);
	moved_put(r, "promoted_blocks", sums, false);
}

static void host_put(struct prefixd_admin_reply *r, const struct sums *sums)
{
	json_t *j = prefixd_admin_object(r, r->root, "host");

	prefixd_admin_put_u64(r, j, "n_slots", sums->n_host);
	slots_put(r, j, "slots", sums->host);
	prefixd_admin_put_u64(r, j, "second_copies", sums->n_bonus);
}

static const char *breaker_name(enum prefixd_breaker_state state)
{
	static const char *const names[] = {
#define X(sym, text) [PREFIXD_BREAKER_##sym] = (text),
		PREFIXD_BREAKER_STATES(X)
#undef X
	};

	return state < radix_array_size(names) ? names[state] : "?";
}

static void redis_put(struct prefixd_server *s, struct prefixd_admin_reply *r)
{
	json_t *all = prefixd_admin_object(r, r->root, "redis"), *j;
	struct prefixd_redis_stats st;
	bool there = prefixd_server_redis(s, &st);

	prefixd_admin_put_bool(r, all, "configured", there);
	prefixd_admin_put_text(r, all, "breaker", breaker_name(st.breaker));
	prefixd_admin_put_bool(r, all, "connected", st.connected);
	PUT(r, all, &st, round_trips);
	PUT(r, all, &st, commands);
	PUT(r, all, &st, stored);
	PUT(r, all, &st, fetched);
	PUT(r, all, &st, lost);
	PUT(r, all, &st, looks);
	PUT(r, all, &st, looks_present);
	PUT(r, all, &st, unlinked);
	PUT(r, all, &st, bytes_out);
	PUT(r, all, &st, bytes_in);
	PUT(r, all, &st, in_flight);
	PUT(r, all, &st, in_flight_bytes);
	PUT(r, all, &st, queued);
	PUT(r, all, &st, connects);
	PUT(r, all, &st, breaker_opened);
	PUT(r, all, &st, breaker_closed);
	prefixd_admin_put_real(r, all, "latency_us", (double)st.latency_ns / 1e3);
	prefixd_admin_put_text(r, all, "policy", st.policy);
	j = prefixd_admin_object(r, all, "bad_values");
#define X(sym, text) prefixd_admin_put_u64(r, j, text, st.bad_values[PREFIXD_REDIS_BAD_##sym]);
	PREFIXD_REDIS_BAD_REASONS(X)
#undef X
	j = prefixd_admin_object(r, all, "errors");
#define X(sym, text) prefixd_admin_put_u64(r, j, text, st.errors[PREFIXD_REDIS_ERROR_##sym]);
	PREFIXD_REDIS_ERRORS(X)
#undef X
}

static void histogram_put(struct prefixd_admin_reply *r, json_t *obj, const char *name,
			  const struct prefixd_histogram *h)
{
	json_t *j = prefixd_admin_object(r, obj, name);
	uint64_t n = 0;

	for (size_t i = 0; i <= PREFIXD_N_BUCKETS; i++)
		n += h->n[i];
	prefixd_admin_put_u64(r, j, "n", n);
	prefixd_admin_put_real(r, j, "mean_us", n ? (double)h->sum_ns / (double)n / 1e3 : 0);
	prefixd_admin_put_real(r, j, "p50_us", prefixd_histogram_at(h, 0.5) / 1e3);
	prefixd_admin_put_real(r, j, "p99_us", prefixd_histogram_at(h, 0.99) / 1e3);
	prefixd_admin_put_real(r, j, "p999_us", prefixd_histogram_at(h, 0.999) / 1e3);
	prefixd_admin_put_real(r, j, "max_us", (double)h->max_ns / 1e3);
}

/* How long turns of the loop kept others waiting, and how much of that they computed. */
static void loop_put(struct prefixd_server *s, struct prefixd_admin_reply *r)
{
	json_t *j = prefixd_admin_object(r, r->root, "loop");

	histogram_put(r, j, "turns", &s->measures.turn);
	histogram_put(r, j, "cpu", &s->measures.turn_cpu);
}

static void helper_put(struct prefixd_admin_reply *r, json_t *obj, const char *name,
		       const struct prefixd_helper_info *info)
{
	json_t *j = prefixd_admin_object(r, obj, name);

	prefixd_admin_put_u64(r, j, "waiting", info->waiting);
	prefixd_admin_put_real(r, j, "heartbeat_age_s", (double)info->beat_age_ns / 1e9);
}

static void helpers_put(struct prefixd_server *s, struct prefixd_admin_reply *r)
{
	json_t *all = prefixd_admin_object(r, r->root, "helpers");
	struct prefixd_helper_info copy, redis;

	prefixd_server_helpers(s, prefixd_now_ns(), &copy, &redis);
	helper_put(r, all, "copy", &copy);
	helper_put(r, all, "redis", &redis);
}

/* Who keeps the memory, and what came back of what an earlier life left. */
static void restore_put(struct prefixd_server *s, struct prefixd_admin_reply *r)
{
	json_t *j = prefixd_admin_object(r, r->root, "keeper"), *lost;
	struct prefixd_restore_info info;
	const struct prefixd_restored *got = &info.restored;

	prefixd_restore_info(s, &info);
	prefixd_admin_put_text(r, j, "state", prefixd_keeper_to_string(info.keeper));
	prefixd_admin_put_text(r, j, "asked", s->options->values[PREFIXD_OPTION_keep].text);
	j = prefixd_admin_object(r, r->root, "restore");
	prefixd_admin_put_bool(r, j, "found", info.state);
	prefixd_admin_put_bool(r, j, "done", info.ns > 0);
	prefixd_admin_put_real(r, j, "seconds", (double)info.ns / 1e9);
	prefixd_admin_put_u64(r, j, "pools", got->n_groups);
	prefixd_admin_put_u64(r, j, "pools_lost", got->n_groups_lost);
	prefixd_admin_put_u64(r, j, "namespaces", got->n_namespaces);
	prefixd_admin_put_u64(r, j, "roots", got->n_roots);
	prefixd_admin_put_u64(r, j, "blocks", got->index.n_taken);
	prefixd_admin_put_u64(r, j, "leases", got->n_leases);
	prefixd_admin_put_u64(r, j, "sessions", got->n_sessions);
	prefixd_admin_put_u64(r, j, "copies_lost", got->index.n_copies_lost);
	prefixd_admin_put_u64(r, j, "checksums_lost", got->index.n_sums_lost);
	prefixd_admin_put_u64(r, j, "verified", got->n_verified);
	prefixd_admin_put_u64(r, j, "corrupt", got->n_corrupt);
	lost = prefixd_admin_object(r, j, "lost_blocks");
#define X(sym, text) prefixd_admin_put_u64(r, lost, text, got->index.damaged[RADIX_DAMAGE_##sym]);
	RADIX_DAMAGES(X)
#undef X
}

void prefixd_admin_status(struct prefixd_server *s, const json_t *args,
			  struct prefixd_admin_reply *r)
{
	struct prefixd_counters counters;
	struct sums sums = { 0 };
	json_t *j;

	prefixd_admin_put_text(r, r->root, "version", prefixd_version());
	prefixd_admin_put_hex(r, r->root, "boot", &s->boot, sizeof(s->boot));
	prefixd_admin_put_u64(r, r->root, "pid", (uint64_t)getpid());
	prefixd_admin_put_real(r, r->root, "uptime_s",
			       (double)(prefixd_now_ns() - s->started_ns) / 1e9);
	prefixd_admin_put_bool(r, r->root, "draining", s->draining);
	prefixd_admin_put_text(r, r->root, "device", s->pools.ops->name);
	j = prefixd_admin_object(r, r->root, "sockets");
	prefixd_admin_put_text(r, j, "worker", s->options->socket);
	prefixd_admin_put_text(r, j, "admin", s->options->admin_socket);
	groups_put(s, r, &sums);
	slots_put(r, r->root, "slots", sums.slots);
	PUT(r, r->root, &sums, n_slots);
	j = prefixd_admin_object(r, r->root, "memory");
	PUT(r, j, &sums, pool_bytes);
	PUT(r, j, &sums, generation_bytes);
	PUT(r, j, &sums, index_bytes);
	PUT(r, j, &sums, table_bytes);
	PUT(r, j, &sums, key_bytes);
	prefixd_admin_put_u64(r, j, "heap_bytes", s->memory.bytes);
	namespaces_put(s, r);
	prefixd_admin_put_u64(r, r->root, "leases", sessions_put(s, r));
	prefixd_engine_counters(s->engine, &counters);
	counters_put(r, &counters);
	tiers_put(r, &counters, &sums);
	host_put(r, &sums);
	redis_put(s, r);
	loop_put(s, r);
	helpers_put(s, r);
	restore_put(s, r);
}

static uint64_t moves_sum(const struct sums *sums, bool down)
{
	uint64_t n = 0;

	for (int from = 0; from < RADIX_N_TIERS; from++)
		for (int to = 0; to < RADIX_N_TIERS; to++)
			if (down ? to > from : to < from)
				n += sums->moved[from][to];
	return n;
}

void prefixd_admin_stat(struct prefixd_server *s, const json_t *args, struct prefixd_admin_reply *r)
{
	struct prefixd_counters c;
	struct prefixd_group_info group;
	struct prefixd_session_info session;
	struct sums sums = { 0 };
	uint64_t leases = 0, sessions = 0, removed = 0;
	uint32_t it = 0;

	while (prefixd_engine_next_group(s->engine, &it, &group)) {
		struct radix_stats st;

		radix_index_stats(group.index, &st);
		removed += st.removed_total;
		sums_add(s, &group, &st, &sums);
	}
	it = 0;
	while (prefixd_engine_next_session(s->engine, &it, prefixd_now_ns(), &session)) {
		sessions++;
		leases += session.n_leases;
	}
	prefixd_engine_counters(s->engine, &c);
	prefixd_admin_put_real(r, r->root, "time_s", (double)prefixd_now_ns() / 1e9);
	PUT(r, r->root, &c, requests);
	PUT(r, r->root, &c, errors);
	PUT(r, r->root, &c, lookups);
	PUT(r, r->root, &c, queried_tokens);
	prefixd_admin_put_u64(r, r->root, "hit_tokens", hit_tokens(&c));
	ratio_put(r, "token_hit_ratio", hit_tokens(&c), c.queried_tokens);
	PUT(r, r->root, &c, committed_blocks);
	prefixd_admin_put_u64(r, r->root, "removed_blocks", removed);
	prefixd_admin_put_u64(r, r->root, "demoted_blocks", moves_sum(&sums, true));
	prefixd_admin_put_u64(r, r->root, "promoted_blocks", moves_sum(&sums, false));
	PUT(r, r->root, &c, reserve_busy);
	slots_put(r, r->root, "slots", sums.slots);
	PUT(r, r->root, &sums, n_slots);
	prefixd_admin_put_u64(r, r->root, "leases", leases);
	prefixd_admin_put_u64(r, r->root, "sessions", sessions);
	prefixd_admin_put_u64(r, r->root, "parked", s->parking.n_frames);
}
