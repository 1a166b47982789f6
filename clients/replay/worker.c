/*
 * worker.c - one worker process: what an engine would do, with f(namespace, path) for K and V.
 *
 * For each of its requests:
 *
 *     MATCH    -> compare every byte of every hit block with f
 *     WAIT     -> while another worker computes what is missing; EXTEND, and compare again
 *     RESERVE  -> write f into the slots;  COMMIT;  again while fewer were granted than wanted
 *     RELEASE  -> compare the daemon's account of the request with what MATCH said
 *
 * A call that fails is counted and ends the request: the worker goes on with the next one, as an
 * engine would compute.  BUSY is no failure: the request goes on with what it has.
 */
#include "clients/replay/run.h"

#include "clients/c/prefixd.h"
#include "clients/replay/content.h"
#include "clients/replay/util.h"

#define XXH_INLINE_ALL
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <xxhash.h>

struct worker {
	const struct replay_job *job;
	const struct replay_options *options;
	const struct replay_trace *trace;
	struct replay_stats *stats;
	enum replay_key_mode key_mode;
	pfx_client *client;
	pfx_namespace *ns;
	uint32_t tenant;
	uint32_t key_len;
	uint8_t *keys; /* of the running request, where they have to be made */
	size_t keys_cap;
	uint64_t *paths; /* of the running request, by position */
	size_t paths_cap;
	uint64_t gone_since_ns; /* 0: the daemon answered last time */
};

/*
 * While the daemon is away an engine would compute, which takes time.  So does a request here, or
 * all that are left would be over before a restarted daemon can answer.
 */
#define GONE_PAUSE_NS 2000000
#define GONE_END_NS   10000000000u /* away for so long: the replay ends */

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Keeps the first sentence of all workers; later ones are only counted. */
static void note(struct worker *w, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void note(struct worker *w, const char *format, ...)
{
	struct replay_shared *shared = w->job->shared;
	va_list args;

	if (atomic_exchange(&shared->error_taken, true))
		return;
	va_start(args, format);
	(void)vsnprintf(shared->error, sizeof(shared->error), format, args);
	va_end(args);
}

static void fail(struct worker *w, size_t request, const char *what, int status)
{
	w->stats->errors++;
	note(w, "request %zu: %s: %s: %s", request, what, pfx_status_to_string(status),
	     pfx_error(w->client));
}

/* A call ended with `status`: whether the daemon is there, and the pause when it is not. */
static void watch_daemon(struct worker *w, int status)
{
	const struct timespec pause = { 0, GONE_PAUSE_NS };

	if (status != PFX_GONE) {
		w->gone_since_ns = 0;
		return;
	}
	if (!w->gone_since_ns)
		w->gone_since_ns = now_ns();
	if (now_ns() - w->gone_since_ns > GONE_END_NS)
		atomic_store(&w->job->shared->stop, true);
	(void)nanosleep(&pause, NULL); /* cut short by a signal: no harm */
}

/* ---- keys and paths -------------------------------------------------------------------------- */

/* Token ids made up for a block that has none: the name in the first two, noise behind it. */
static void make_tokens(uint64_t name, uint32_t *tokens, uint32_t n)
{
	tokens[0] = (uint32_t)name;
	for (uint32_t i = 1; i < n; i++)
		tokens[i] = (uint32_t)(replay_mix(name + i) >> 32);
	if (n > 1)
		tokens[1] = (uint32_t)(name >> 32);
}

static const void *make_keys(struct worker *w, const struct replay_request *r)
{
	const uint32_t *blocks = replay_trace_blocks(w->trace, r);

	if (w->key_mode == REPLAY_KEYS_TOKENS && w->trace->has_tokens)
		return w->trace->tokens + r->first_token;
	w->keys = replay_grow(w->keys, &w->keys_cap, (size_t)r->n_blocks * w->key_len, 1);
	for (uint32_t i = 0; i < r->n_blocks; i++) {
		uint8_t *key = w->keys + (size_t)i * w->key_len;

		if (w->key_mode == REPLAY_KEYS_DIGEST)
			memcpy(key, w->job->digests[blocks[i]], 16);
		else
			make_tokens(w->trace->names[blocks[i]], (void *)key,
				    w->trace->block_tokens);
	}
	return w->keys;
}

static void make_paths(struct worker *w, const uint8_t *keys, uint32_t n, const uint8_t root[16])
{
	pfx_namespace_info info = { .struct_size = sizeof(info) };
	uint64_t path;

	/* Asked for each time: after a restart of the daemon the namespace is a new one. */
	(void)pfx_namespace_get(w->ns, &info); /* fails for NULL only */
	path = replay_path_root(info.digest, root);
	w->paths = replay_grow(w->paths, &w->paths_cap, n, sizeof(*w->paths));
	for (uint32_t i = 0; i < n; i++) {
		path = replay_path_step(path, keys + (size_t)i * w->key_len, w->key_len);
		w->paths[i] = path;
	}
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static void check_slot(struct worker *w, size_t request, uint32_t position, uint32_t slot,
		       uint64_t reuse)
{
	size_t len = w->options->block_bytes;
	const void *block = pfx_slot(w->ns, slot);
	size_t same;

	if (!block || pfx_slot_stale(w->ns, slot, reuse)) {
		w->stats->errors++;
		note(w, "request %zu: block %u: slot %u %s", request, position, slot,
		     block ? "was reused under the lease" : "is outside the pool");
		return;
	}
	same = replay_content_check(block, len, w->paths[position]);
	w->stats->blocks_verified++;
	w->stats->bytes_read += len;
	if (same != len) {
		w->stats->blocks_corrupt++;
		note(w, "request %zu: block %u in slot %u differs from byte %zu on", request,
		     position, slot, same);
	}
}

/* Return: blocks that the runs name; the first is block `from` of the prompt. */
static uint32_t check_runs(struct worker *w, size_t request, const pfx_match_result *m,
			   uint32_t from)
{
	uint32_t position = 0;

	for (uint32_t i = 0; i < m->n_runs; i++)
		for (uint32_t k = 0; k < m->runs[i].len && position < m->n_device; k++) {
			if (w->options->verify == REPLAY_VERIFY_ALL)
				check_slot(w, request, from + position, m->runs[i].start + k,
					   m->reuse);
			position++;
		}
	return position;
}

/* Return: blocks written; fewer than granted when a slot is not where it can be. */
static uint32_t fill_runs(struct worker *w, const pfx_reserve_result *res)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < res->n_runs; i++)
		for (uint32_t k = 0; k < res->runs[i].len && n < res->n; k++) {
			void *block = pfx_slot(w->ns, res->runs[i].start + k);

			if (!block)
				return n;
			replay_content_fill(block, w->options->block_bytes,
					    w->paths[res->first + n]);
			n++;
		}
	return n;
}

/* The blocks that became usable behind the first `hit`.  Return: how many; negative: it failed. */
static int64_t extend(struct worker *w, size_t request, const pfx_prompt *prompt,
		      pfx_match_result *m, uint32_t hit)
{
	pfx_prompt rest = *prompt;
	uint64_t lease = m->lease;
	int r;

	rest.keys = NULL;
	rest.n_keys = 0;
	r = pfx_extend(w->ns, lease, &rest, m);
	if (r != PFX_OK) {
		fail(w, request, "extend", r);
		return -1;
	}
	if (m->n_device > prompt->n_keys - hit || check_runs(w, request, m, hit) != m->n_device) {
		w->stats->errors++;
		note(w, "request %zu: extend names other than the %u blocks that it counts",
		     request, m->n_device);
		return -1;
	}
	w->stats->pending_blocks += m->n_device;
	return m->n_device;
}

/*
 * While others compute what comes next, waits for them.  Return: blocks that are usable in the end;
 * negative: a call failed.
 */
static int64_t wait_for_others(struct worker *w, size_t request, const pfx_prompt *prompt,
			       pfx_match_result *m)
{
	uint32_t hit = m->n_device;
	bool lead = false;

	while (m->n_pending && !lead) {
		pfx_wait_result wait = { .struct_size = sizeof(wait) };
		uint64_t begin = now_ns();
		int r = pfx_wait(w->ns, m->lease, 0, &wait);
		int64_t more;

		replay_latency_add(&w->stats->latency[REPLAY_OP_WAIT], now_ns() - begin);
		if (r == PFX_DEADLINE || (r == PFX_OK && wait.state == PFX_WAIT_FAILED)) {
			w->stats->waits_failed++;
			return hit; /* in doubt a worker computes */
		}
		if (r != PFX_OK) {
			fail(w, request, "wait", r);
			return -1;
		}
		lead = wait.state == PFX_WAIT_LEAD;
		w->stats->waits_lead += lead;
		w->stats->waits_ready += !lead;
		if (wait.n == 0)
			break;
		more = extend(w, request, prompt, m, hit);
		if (more < 0)
			return more;
		hit += (uint32_t)more;
	}
	return hit;
}

/* Writes what the request needs beyond its hits, as far as there is room. */
static void store_rest(struct worker *w, size_t request, uint64_t lease, uint32_t hit, uint32_t n)
{
	struct replay_stats *stats = w->stats;
	uint32_t at = hit;

	while (at < n) {
		pfx_reserve_result res = { .struct_size = sizeof(res) };
		pfx_commit_result done = { .struct_size = sizeof(done) };
		uint64_t begin = now_ns();
		int r = pfx_reserve(w->ns, lease, n - at, 0, &res);

		replay_latency_add(&stats->latency[REPLAY_OP_RESERVE], now_ns() - begin);
		if (r == PFX_BUSY) {
			stats->busy++;
			return;
		}
		if (r != PFX_OK) {
			fail(w, request, "reserve", r);
			return;
		}
		if (res.n == 0 || res.first < at || res.first > n || res.n > n - res.first ||
		    fill_runs(w, &res) != res.n) {
			stats->errors++;
			note(w,
			     "request %zu: reserve answered %u blocks from %u on; asked for %u "
			     "from "
			     "%u on",
			     request, res.n, res.first, n - at, at);
			return;
		}
		stats->bytes_written += res.n * w->options->block_bytes;
		begin = now_ns();
		r = pfx_commit(w->ns, lease, res.n, NULL, 0, 0, &done);
		replay_latency_add(&stats->latency[REPLAY_OP_COMMIT], now_ns() - begin);
		if (r != PFX_OK) {
			fail(w, request, "commit", r);
			return;
		}
		stats->blocks_committed += done.n_stored;
		stats->blocks_duplicate += done.n_duplicate;
		at = res.first + res.n;
	}
}

/* ---- a request ------------------------------------------------------------------------------- */

/* What the daemon settled has to add up, and to be what MATCH announced. */
static void check_account(struct worker *w, size_t request, const pfx_release_result *rel,
			  uint64_t asked, uint64_t hit_device)
{
	uint64_t hits = rel->hit_device_tokens + rel->hit_host_tokens + rel->hit_redis_tokens +
			rel->hit_pending_tokens;

	if (rel->queried_tokens == asked && hits + rel->miss_tokens == asked &&
	    rel->hit_device_tokens == hit_device)
		return;
	w->stats->errors++;
	note(w,
	     "request %zu: release accounts for %llu tokens (%llu hits, %llu of the device, %llu "
	     "missed); asked for %llu, hit %llu",
	     request, (unsigned long long)rel->queried_tokens, (unsigned long long)hits,
	     (unsigned long long)rel->hit_device_tokens, (unsigned long long)rel->miss_tokens,
	     (unsigned long long)asked, (unsigned long long)hit_device);
}

static void count_hits(struct worker *w, const struct replay_request *r, const pfx_match_result *m)
{
	struct replay_stats *stats = w->stats;
	uint64_t device = replay_trace_covered(w->trace, r, m->n_device);
	uint64_t host = replay_trace_covered(w->trace, r, (uint64_t)m->n_device + m->n_host);
	uint64_t redis = replay_trace_covered(w->trace, r,
					      (uint64_t)m->n_device + m->n_host + m->n_redis);

	stats->hit_device_tokens += device;
	stats->hit_host_tokens += host - device;
	stats->hit_redis_tokens += redis - host;
	stats->hit_requests += redis > 0;
	stats->hit_blocks += m->n_device;
}

static void serve(struct worker *w, size_t i)
{
	const struct replay_request *r = &w->trace->requests[i];
	const void *keys = make_keys(w, r);
	pfx_match_result m = { .struct_size = sizeof(m) };
	pfx_release_result rel = { .struct_size = sizeof(rel) };
	pfx_prompt prompt = {
		.struct_size = sizeof(prompt),
		.tenant = w->tenant,
		.salt = "",
		.keys = keys,
		.n_keys = r->n_blocks,
		.n_tokens = r->input_tokens,
		.flags = PFX_MATCH_NO_TAIL |
			 (replay_single_flight(w->options) ? PFX_MATCH_LEAD : 0u),
	};
	uint64_t begin, device_tokens, lease;
	int64_t hit;
	int status;

	/* Made-up keys cover whole blocks, also the last one that the prompt fills in part. */
	if (w->key_mode == REPLAY_KEYS_TOKENS &&
	    prompt.n_tokens < (uint64_t)r->n_blocks * w->trace->block_tokens)
		prompt.n_tokens = (uint64_t)r->n_blocks * w->trace->block_tokens;
	w->stats->requests++;
	w->stats->queried_tokens += r->input_tokens;
	begin = now_ns();
	status = pfx_match(w->ns, &prompt, &m);
	replay_latency_add(&w->stats->latency[REPLAY_OP_MATCH], now_ns() - begin);
	watch_daemon(w, status);
	if (status != PFX_OK) {
		fail(w, i, "match", status);
		return;
	}
	make_paths(w, keys, r->n_blocks, m.root);
	device_tokens = replay_min((uint64_t)m.n_device * w->trace->block_tokens, prompt.n_tokens);
	lease = m.lease;
	count_hits(w, r, &m);
	if (w->job->hits)
		w->job->hits[i] = m.n_device;
	if (m.n_device > r->n_blocks || check_runs(w, i, &m, 0) != m.n_device) {
		w->stats->errors++;
		note(w, "request %zu: match names other than the %u blocks that it counts", i,
		     m.n_device);
	} else {
		hit = m.n_device;
		if (replay_single_flight(w->options))
			hit = wait_for_others(w, i, &prompt, &m);
		if (hit >= 0)
			store_rest(w, i, lease, (uint32_t)hit, r->n_blocks);
	}
	begin = now_ns();
	status = pfx_release(w->ns, lease, 0, 0, 0, &rel);
	replay_latency_add(&w->stats->latency[REPLAY_OP_RELEASE], now_ns() - begin);
	if (status != PFX_OK) {
		fail(w, i, "release", status);
		return;
	}
	w->stats->hit_pending_tokens += rel.hit_pending_tokens;
	check_account(w, i, &rel, prompt.n_tokens, device_tokens);
}

/* ---- the process ----------------------------------------------------------------------------- */

static int open_namespace(struct worker *w)
{
	XXH128_canonical_t probe;
	char revision[32];
	pfx_namespace_options ns = {
		.struct_size = sizeof(ns),
		.flags = PFX_NS_OPAQUE,
		.model = w->options->model ? w->options->model : w->trace->name,
		.revision = revision,
		.dtype = "uint8",
		.layers = 1,
		.kv_heads = 1,
		.head_dim = 1,
		.block_tokens = w->trace->block_tokens,
		.block_bytes = w->options->block_bytes,
		.layout = "opaque",
		.tp_size = 1,
		.engine = "prefixd-replay 1",
		.map = 1,
	};

	/* Another seed means other names for the same blocks: another namespace, not a mismatch. */
	(void)snprintf(revision, sizeof(revision), "seed %llu",
		       (unsigned long long)w->options->seed);
	if (w->key_mode == REPLAY_KEYS_DIGEST) {
		XXH128_canonicalFromHash(&probe,
					 XXH3_128bits_withSeed("canonical", 9, w->options->seed));
		ns.key_mode = PFX_KEYS_DIGEST;
		ns.digest_len = 16;
		ns.seed_probe = &probe;
		ns.seed_probe_len = sizeof(probe);
	} else {
		ns.key_mode = PFX_KEYS_TOKENS;
	}
	return pfx_open(w->client, &ns, &w->ns);
}

static int connect_and_open(struct worker *w)
{
	pfx_connect_options options = {
		.struct_size = sizeof(options),
		.socket = w->options->socket,
		.name = "prefixd-replay",
		.deadline_ms = (uint32_t)w->options->deadline_ms,
	};
	struct replay_shared *shared = w->job->shared;
	pfx_namespace_info info = { .struct_size = sizeof(info) };
	const char *what = "connect";
	int r = pfx_connect(&options, &w->client);

	if (r == PFX_OK && w->options->tenant) {
		what = "tenant";
		r = pfx_tenant(w->client, w->options->tenant, &w->tenant);
	}
	if (r == PFX_OK) {
		what = "open";
		r = open_namespace(w);
	}
	if (r == PFX_OK)
		r = pfx_namespace_get(w->ns, &info);
	if (r != PFX_OK) {
		w->stats->errors++;
		note(w, "%s: %s: %s%s", what, pfx_status_to_string(r), pfx_error(w->client),
		     r == PFX_GONE ? " (--socket names another)" : "");
		return -EIO;
	}
	w->key_len = info.key_len;
	if (!atomic_exchange(&shared->pool_taken, true)) {
		shared->pool_slots = info.n_slots;
		shared->pool_stride = info.slot_stride;
	}
	return 0;
}

static void run_in_trace_order(struct worker *w)
{
	struct replay_shared *shared = w->job->shared;
	uint64_t n = w->options->workers;

	for (size_t i = w->job->worker; i < w->trace->n_requests; i += n) {
		while (sem_wait(&shared->baton[w->job->worker]) != 0)
			; /* interrupted by a signal */
		if (!atomic_load(&shared->stop))
			serve(w, i);
		sem_post(&shared->baton[(w->job->worker + 1) % n]);
		if (atomic_load(&shared->stop))
			return;
	}
}

static void run_concurrently(struct worker *w)
{
	struct replay_shared *shared = w->job->shared;
	size_t i;

	while (sem_wait(&shared->baton[w->job->worker]) != 0)
		;
	while (!atomic_load(&shared->stop) &&
	       (i = (size_t)atomic_fetch_add(&shared->next, 1)) < w->trace->n_requests)
		serve(w, i);
}

int replay_worker_main(const struct replay_job *job)
{
	struct worker w = {
		.job = job,
		.options = job->options,
		.trace = job->trace,
		.stats = &job->shared->workers[job->worker],
		.key_mode = replay_key_mode_of(job->options, job->trace),
	};
	struct rusage usage;
	int r = connect_and_open(&w);

	if (r == 0) {
		sem_post(&job->shared->ready);
		if (job->options->order == REPLAY_ORDER_TRACE)
			run_in_trace_order(&w);
		else
			run_concurrently(&w);
	}
	w.stats->end_ns = now_ns();
	if (getrusage(RUSAGE_SELF, &usage) == 0)
		w.stats->rss_kib = (uint64_t)usage.ru_maxrss;
	pfx_close(w.client);
	free(w.keys);
	free(w.paths);
	return r < 0;
}
