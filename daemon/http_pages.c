/*
 * http_pages.c - what monitors may read: /metrics, /healthz, /readyz.
 *
 * A scrape looks at counters that are kept anyway; it walks pools, roots, sessions and leases,
 * never the tree.
 */
#include "daemon/server_internal.h"
#include "radix/windows.h"

#include "daemon/below.h"
#include "daemon/http.h"
#include "daemon/log.h"
#include "daemon/restore.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

/* ---- the snapshot ---------------------------------------------------------------------------- */

static void slots_gather(struct prefixd_snapshot *snap, enum radix_tier tier,
			 const uint64_t slots[RADIX_SLOT_N_STATES], uint64_t n, uint64_t stride)
{
	snap->capacity_slots[tier] += n;
	snap->capacity_bytes[tier] += n * stride;
	for (int i = 0; i < RADIX_SLOT_N_STATES; i++) {
		snap->slots[tier][i] += slots[i];
		snap->slot_bytes[tier][i] += slots[i] * stride;
	}
}

/* `cold`: below the device. */
static void tiers_gather(struct prefixd_snapshot *snap, const struct radix_stats *st,
			 uint64_t device, uint64_t cold)
{
	for (int t = 0; t < RADIX_N_TIERS; t++) {
		uint64_t stride = t == RADIX_TIER_DEVICE ? device : cold;

		snap->tier_blocks[t] += st->tier[t];
		for (int i = 0; i < RADIX_REMOVE_N_REASONS; i++) {
			snap->removed[t][i] += st->removed_from[t][i];
			snap->removed_bytes[t] += st->removed_from[t][i] * stride;
		}
		for (int to = 0; to < RADIX_N_TIERS; to++) {
			snap->moved[t][to] += st->moved[t][to];
			snap->moved_bytes[t][to] += st->moved[t][to] * stride;
		}
	}
	snap->host_bonus += st->n_bonus;
}

static void groups_gather(const struct prefixd_server *s, struct prefixd_snapshot *snap)
{
	struct prefixd_group_info info;
	uint32_t it = 0;

	while (prefixd_engine_next_group(s->engine, &it, &info)) {
		const struct prefixd_pool *pool = prefixd_pools_get(&s->pools, info.id);
		const uint64_t ranks = pool ? pool->n_ranks : 1;
		struct radix_window_stats windows;
		const uint64_t cold = prefixd_cold_stride(info.cold, info.slot_bytes,
							  (uint32_t)ranks);
		struct radix_stats st;

		radix_index_stats(info.index, &st);
		uint64_t pinned = prefixd_engine_pinned(s->engine, info.id);

		snap->pinned_blocks += pinned;
		snap->pinned_bytes += pinned * ranks * info.slot_bytes;
		snap->kept_slots += prefixd_engine_kept(s->engine, info.id);
		snap->pools++;
		snap->pool_ranks += ranks;
		slots_gather(snap, RADIX_TIER_DEVICE, st.slots, st.n_slots,
			     ranks * info.slot_stride);
		slots_gather(snap, RADIX_TIER_HOST, st.host, st.n_host, cold);
		tiers_gather(snap, &st, ranks * info.slot_stride, cold);
		radix_window_stats(info.index, &windows);
		snap->hollow += windows.n_hollow;
		snap->hollowed += windows.hollowed_total;
		snap->blocks += st.n_blocks;
		snap->nodes += st.n_nodes;
		snap->roots += st.n_roots;
		snap->pins += st.n_pins;
		snap->collisions += st.verify_mismatch;
		snap->tree_bytes += st.index_bytes;
		snap->table_bytes += st.table_bytes;
		snap->key_bytes += st.key_bytes;
	}
}

/* Redis, and the threads that work for the loop. */
static void below_gather(struct prefixd_server *s, uint64_t now, struct prefixd_snapshot *snap)
{
	struct prefixd_helper_info copy, redis;

	if (prefixd_server_redis(s, &snap->redis)) {
		snap->redis_up = snap->redis.connected &&
				 snap->redis.breaker == PREFIXD_BREAKER_CLOSED;
		snap->redis_breaker[snap->redis.breaker] = 1;
	}
	prefixd_server_carrier(s, &snap->carrier);
	snap->device_lost = snap->carrier.lost;
	prefixd_server_helpers(s, now, &copy, &redis);
	snap->copy_waiting = copy.waiting;
	snap->parked_frames = s->parking.n_frames;
	snap->copy_beat_age_ns = copy.beat_age_ns;
	snap->redis_waiting = redis.waiting;
	snap->redis_beat_age_ns = redis.beat_age_ns;
}

static void sessions_gather(const struct prefixd_server *s, uint64_t now,
			    struct prefixd_snapshot *snap)
{
	struct prefixd_session_info session;
	struct prefixd_lease_info lease;
	uint64_t it64 = 0;
	uint32_t it = 0;

	while (prefixd_engine_next_session(s->engine, &it, now, &session)) {
		if (session.orphan)
			snap->sessions_orphaned++;
		else
			snap->sessions_connected++;
	}
	while (prefixd_engine_next_lease(s->engine, &it64, now, &lease)) {
		snap->leases++;
		snap->orphan_leases += lease.orphan;
		snap->reserved_slots += lease.n_reserved;
		if (lease.age_ns > snap->lease_age_max_ns)
			snap->lease_age_max_ns = lease.age_ns;
	}
}

/* Fields of /proc/self/statm are pages; what cannot be read stays 0. */
static void memory_gather(struct prefixd_snapshot *snap)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
	char text[256], *end;
	ssize_t n;

	if (fd < 0)
		return;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (n <= 0)
		return;
	text[n] = '\0';
	snap->virtual_bytes = strtoull(text, &end, 10) * page;
	snap->resident_bytes = strtoull(end, NULL, 10) * page;
}

static uint64_t open_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	uint64_t n = 0;

	if (!dir)
		return 0;
	for (struct dirent *e = readdir(dir); e; e = readdir(dir))
		n += e->d_name[0] != '.';
	closedir(dir);
	return n - 1; /* the directory's own */
}

static uint64_t time_ns(const struct timeval *tv)
{
	return (uint64_t)tv->tv_sec * 1000000000u + (uint64_t)tv->tv_usec * 1000u;
}

static void process_gather(struct prefixd_snapshot *snap)
{
	struct rusage usage = { 0 };
	struct rlimit limit = { 0 };

	(void)getrusage(RUSAGE_SELF, &usage); /* cannot fail for these arguments */
	snap->cpu_ns = time_ns(&usage.ru_utime) + time_ns(&usage.ru_stime);
	(void)getrlimit(RLIMIT_NOFILE, &limit); /* likewise */
	snap->max_fds = limit.rlim_cur;
	snap->open_fds = open_fds();
	memory_gather(snap);
}

static void restore_gather(const struct prefixd_server *s, struct prefixd_snapshot *snap)
{
	struct prefixd_restore_info info;

	prefixd_restore_info(s, &info);
	snap->keeper[info.keeper] = 1;
	snap->restore_ns = info.ns;
	snap->restored = info.restored;
	snap->restored_good = info.restored.n_verified - info.restored.n_corrupt;
}

static void snapshot_gather(struct prefixd_server *s, uint64_t now, struct prefixd_snapshot *snap)
{
	*snap = (struct prefixd_snapshot){
		.version = prefixd_version(),
		.device = s->pools.ops->name,
		.devices = s->pools.devices.n,
		.measures = s->measures,
		.heap_bytes = s->memory.bytes,
		.pool_over = prefixd_engine_over(s->engine, NULL, 0),
		.draining = s->draining,
		.started_ns = s->started_wall_ns,
		.reload_ok = !s->reload_failed,
		.reload_ns = s->reload_wall_ns,
	};
	prefixd_engine_counters(s->engine, &snap->counters);
	for (int i = 0; i <= PREFIXD_LOG_DEBUG; i++)
		snap->log_lines[i] = prefixd_log_count((enum prefixd_log_level)i);
	groups_gather(s, snap);
	below_gather(s, now, snap);
	sessions_gather(s, now, snap);
	restore_gather(s, snap);
	process_gather(snap);
	snap->scrape_ns = prefixd_now_ns() - now;
}

/* ---- pages ----------------------------------------------------------------------------------- */

static void metrics_page(struct prefixd_server *s, const char *accept,
			 struct prefixd_http_reply *ret)
{
	enum prefixd_exposition how = prefixd_exposition_choose(accept);
	struct prefixd_snapshot snap;

	snapshot_gather(s, prefixd_server_mark(s), &snap);
	*ret = (struct prefixd_http_reply){ .status = 200,
					    .type = prefixd_exposition_content_type(how) };
	if (prefixd_metrics_write(&snap, how, &ret->body, &ret->len) < 0)
		prefixd_error("http: no memory for a scrape");
}

static void sentence_page(int status, const char *text, struct prefixd_http_reply *ret)
{
	*ret = (struct prefixd_http_reply){ .status = status,
					    .type = "text/plain; charset=utf-8",
					    .body = strdup(text),
					    .len = strlen(text) };
}

static void ready_page(struct prefixd_server *s, struct prefixd_http_reply *ret)
{
	char whose[1024], text[sizeof(whose) + 16];

	if (s->draining) {
		sentence_page(503, "draining: workers can no longer connect, leases may end\n",
			      ret);
	} else if (prefixd_server_device_lost(s, whose, sizeof(whose)) ||
		   prefixd_engine_over(s->engine, whose, sizeof(whose))) {
		snprintf(text, sizeof(text), "degraded: %s\n", whose);
		sentence_page(503, text, ret);
	} else {
		sentence_page(200, "ok\n", ret);
	}
}

static bool page_get(void *ctx, const char *path, const char *accept,
		     struct prefixd_http_reply *ret)
{
	struct prefixd_server *s = ctx;

	if (strcmp(path, "/metrics") == 0)
		metrics_page(s, accept, ret);
	else if (strcmp(path, "/healthz") == 0) /* an answer shows that the loop turns */
		sentence_page(200, "ok\n", ret);
	else if (strcmp(path, "/readyz") == 0)
		ready_page(s, ret);
	else
		return false;
	return true;
}

int prefixd_pages_start(struct prefixd_server *s, char *why, size_t why_len)
{
	const char *address = s->options->http;
	int r;

	if (!address[0])
		return 0;
	r = prefixd_http_new(&s->http, s->base, address, (mode_t)s->options->socket_mode, page_get,
			     s, why, why_len);
	if (r == 0)
		prefixd_info("http: serving /metrics, /healthz and /readyz at %s",
			     prefixd_http_where(s->http));
	return r;
}
