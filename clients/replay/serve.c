/*
 * serve.c - one request: what an engine would do, with f(namespace, path) for K and V.
 *
 *     MATCH    -> compare every byte of every hit block with f
 *     the end of the load, where lower tiers have what comes next; EXTEND, and compare again
 *     WAIT     -> while another worker computes what is missing; EXTEND, and compare again
 *     RESERVE  -> write f into the slots;  COMMIT;  again while fewer were granted than wanted
 *     RELEASE  -> compare the daemon's account of the request with what was seen of it
 *
 * What a load did not bring, and what the daemon advises not to load, is computed.
 *
 * A call that fails is counted and ends the request: the worker goes on with the next one, as an
 * engine would compute.  BUSY is no failure: the request goes on with what it has.
 */
#include "clients/c/prefixd_load.h"
#include "clients/replay/util.h"
#include "clients/replay/worker.h"

#include <stdlib.h>
#include <time.h>

/*
 * While the daemon is away an engine would compute, which takes time.  So does a request here, or
 * all that are left would be over before a restarted daemon can answer.
 */
#define GONE_PAUSE_NS 2000000
#define GONE_END_NS   10000000000u /* away for so long: the replay ends */

/* Where a hit block was when the daemon told of it. */
enum place {
	DEVICE,
	HOST,
	REDIS,
	PENDING, /* another worker committed it meanwhile */
	N_PLACES
};

/* The running request. */
struct serving {
	size_t request;
	const struct replay_request *r;
	uint64_t lease;
	pfx_prompt prompt;
	pfx_match_result m; /* the last answer */
	uint32_t hit;       /* leading blocks that are usable */
	bool cut;           /* blocks that were told in lower tiers did not come */
	/* Where host and Redis blocks end on the path, as the last answer told. */
	uint32_t host_end, redis_end;
	uint32_t blocks[N_PLACES];
	uint64_t asked[N_PLACES]; /* tokens of them, as the daemon counts */
	uint64_t saved[N_PLACES]; /* and as the trace does */
};

/* A call ended with `status`: whether the daemon is there, and the pause when it is not. */
static void watch_daemon(struct replay_worker *w, int status)
{
	const struct timespec pause = { 0, GONE_PAUSE_NS };

	if (status != PFX_GONE) {
		w->gone_since_ns = 0;
		return;
	}
	if (!w->gone_since_ns)
		w->gone_since_ns = replay_now_ns();
	if (replay_now_ns() - w->gone_since_ns > GONE_END_NS)
		atomic_store(&w->job->shared->stop, true);
	(void)nanosleep(&pause, NULL); /* cut short by a signal: no harm */
}

/* ---- what an answer gave --------------------------------------------------------------------- */

static void count(struct replay_worker *w, struct serving *v, enum place place, uint32_t end)
{
	uint64_t block = w->trace->block_tokens;

	if (end <= v->hit)
		return;
	v->blocks[place] += end - v->hit;
	v->asked[place] += replay_min(end * block, v->prompt.n_tokens) -
			   replay_min(v->hit * block, v->prompt.n_tokens);
	v->saved[place] += replay_trace_covered(w->trace, v->r, end) -
			   replay_trace_covered(w->trace, v->r, v->hit);
	v->hit = end;
}

/* The blocks that v->m added, the first of them MATCH's.  Return: false after an error. */
static bool take_answer(struct replay_worker *w, struct serving *v, const char *what, bool match)
{
	const pfx_match_result *m = &v->m;
	uint32_t end = v->hit + m->n_device;

	if (m->n_device > v->prompt.n_keys - v->hit ||
	    replay_runs_check(w, v->request, m, v->hit) != m->n_device) {
		replay_error(w, "request %zu: %s names other than the %u blocks that it counts",
			     v->request, what, m->n_device);
		return false;
	}
	if (match) {
		count(w, v, DEVICE, end);
	} else {
		count(w, v, HOST, end < v->host_end ? end : v->host_end);
		count(w, v, REDIS, end < v->redis_end ? end : v->redis_end);
		count(w, v, PENDING, end);
	}
	v->host_end = v->hit + m->n_host;
	v->redis_end = v->host_end + m->n_redis;
	return true;
}

/* Takes what became usable since.  Return: false after an error. */
static bool extend(struct replay_worker *w, struct serving *v, bool promote)
{
	pfx_prompt rest = v->prompt;
	int r;

	rest.keys = NULL;
	rest.n_keys = 0;
	if (!promote)
		rest.flags &= ~(uint32_t)PFX_MATCH_PROMOTE;
	r = pfx_extend(w->ns, v->lease, &rest, &v->m);
	if (r == PFX_OK)
		return take_answer(w, v, "extend", false);
	replay_fail(w, v->request, "extend", r);
	return false;
}

/* ---- waiting --------------------------------------------------------------------------------- */

enum waited {
	GO_ON,   /* there may be more to wait for */
	COMPUTE, /* what is left */
	FAILED
};

/* The end of the load that runs. */
static enum waited wait_for_load(struct replay_worker *w, struct serving *v)
{
	pfx_load_result load = { .struct_size = sizeof(load) };
	uint32_t below = v->m.n_host + v->m.n_redis;
	uint64_t begin = replay_now_ns();
	int r = pfx_load_wait(w->ns, v->lease, 0, &load);

	replay_latency_add(&w->stats->latency[REPLAY_OP_LOAD], replay_now_ns() - begin);
	w->stats->loads++;
	if (r == PFX_DEADLINE) {
		w->stats->loads_late++;
		return COMPUTE; /* in doubt a worker computes */
	}
	if (r != PFX_OK) {
		replay_fail(w, v->request, "load_wait", r);
		return FAILED;
	}
	if (load.reason || load.n < below) {
		w->stats->loads_cut++;
		v->cut = true;
	}
	if (load.reason > 0 && load.reason < (int)REPLAY_N_REASONS)
		w->stats->cut_by[load.reason]++;
	if (load.n == 0)
		return COMPUTE;
	if (!extend(w, v, load.reason == 0))
		return FAILED;
	return load.reason == 0 ? GO_ON : COMPUTE;
}

/* Others compute what comes next. */
static enum waited wait_for_others(struct replay_worker *w, struct serving *v)
{
	pfx_wait_result wait = { .struct_size = sizeof(wait) };
	uint64_t begin = replay_now_ns();
	int r = pfx_wait(w->ns, v->lease, 0, &wait);
	bool lead;

	replay_latency_add(&w->stats->latency[REPLAY_OP_WAIT], replay_now_ns() - begin);
	if (r == PFX_DEADLINE || (r == PFX_OK && wait.state == PFX_WAIT_FAILED)) {
		w->stats->waits_failed++;
		return COMPUTE;
	}
	if (r != PFX_OK) {
		replay_fail(w, v->request, "wait", r);
		return FAILED;
	}
	lead = wait.state == PFX_WAIT_LEAD;
	w->stats->waits_lead += lead;
	w->stats->waits_ready += !lead;
	if (wait.n == 0)
		return COMPUTE;
	if (!extend(w, v, true))
		return FAILED;
	return lead ? COMPUTE : GO_ON;
}

/*
 * Everything that can be had without computing it.  Each round takes at least one block, or is the
 * last.  Return: false after an error.
 */
static bool gather(struct replay_worker *w, struct serving *v)
{
	enum waited r = GO_ON;

	while (r == GO_ON) {
		if (v->m.loading)
			r = wait_for_load(w, v);
		else if (v->m.n_host + v->m.n_redis > 0)
			r = COMPUTE;
		else if (replay_single_flight(w->options) && v->m.n_pending)
			r = wait_for_others(w, v);
		else
			return true;
	}
	if (v->m.advice == 1 && v->m.n_host + v->m.n_redis > 0)
		w->stats->loads_declined++;
	return r != FAILED;
}

/* ---- storing --------------------------------------------------------------------------------- */

/* Writes what the request needs beyond its hits, as far as there is room. */
static void store_rest(struct replay_worker *w, const struct serving *v)
{
	struct replay_stats *stats = w->stats;
	uint32_t at = v->hit, n = v->prompt.n_keys;

	while (at < n) {
		pfx_reserve_result res = { .struct_size = sizeof(res) };
		pfx_commit_result done = { .struct_size = sizeof(done) };
		uint64_t begin = replay_now_ns();
		int r = pfx_reserve(w->ns, v->lease, n - at, 0, &res);

		replay_latency_add(&stats->latency[REPLAY_OP_RESERVE], replay_now_ns() - begin);
		if (r == PFX_BUSY) {
			stats->busy++;
			return;
		}
		if (r != PFX_OK) {
			replay_fail(w, v->request, "reserve", r);
			return;
		}
		if (res.n == 0 || res.first < at || res.first > n || res.n > n - res.first ||
		    replay_runs_fill(w, &res) != res.n) {
			replay_error(
				w,
				"request %zu: reserve answered %u blocks from %u on; asked for %u "
				"from "
				"%u on",
				v->request, res.n, res.first, n - at, at);
			return;
		}
		stats->bytes_written += res.n * w->options->block_bytes;
		begin = replay_now_ns();
		r = pfx_commit(w->ns, v->lease, res.n, NULL, 0, 0, &done);
		replay_latency_add(&stats->latency[REPLAY_OP_COMMIT], replay_now_ns() - begin);
		if (r != PFX_OK) {
			replay_fail(w, v->request, "commit", r);
			return;
		}
		stats->blocks_committed += done.n_stored;
		stats->blocks_duplicate += done.n_duplicate;
		at = res.first + res.n;
	}
}

/* ---- a request ------------------------------------------------------------------------------- */

/* What the daemon settled has to add up, and to be what its answers announced. */
static void check_account(struct replay_worker *w, const struct serving *v,
			  const pfx_release_result *rel)
{
	uint64_t asked = v->prompt.n_tokens;
	uint64_t hits = rel->hit_device_tokens + rel->hit_host_tokens + rel->hit_redis_tokens +
			rel->hit_pending_tokens;
	/* What Redis lost and another worker committed instead came from that worker. */
	bool tiers = v->cut || (rel->hit_host_tokens == v->asked[HOST] &&
				rel->hit_redis_tokens == v->asked[REDIS]);

	if (rel->queried_tokens == asked && hits + rel->miss_tokens == asked &&
	    rel->hit_device_tokens == v->asked[DEVICE] && tiers &&
	    hits >= v->asked[DEVICE] + v->asked[HOST] + v->asked[REDIS] + v->asked[PENDING])
		return;
	replay_error(w,
		     "request %zu: release accounts for %llu tokens (hits %llu device, %llu host, "
		     "%llu redis, %llu pending, %llu missed); asked for %llu, hit %llu, %llu, "
		     "%llu, %llu",
		     v->request, (unsigned long long)rel->queried_tokens,
		     (unsigned long long)rel->hit_device_tokens,
		     (unsigned long long)rel->hit_host_tokens,
		     (unsigned long long)rel->hit_redis_tokens,
		     (unsigned long long)rel->hit_pending_tokens,
		     (unsigned long long)rel->miss_tokens, (unsigned long long)asked,
		     (unsigned long long)v->asked[DEVICE], (unsigned long long)v->asked[HOST],
		     (unsigned long long)v->asked[REDIS], (unsigned long long)v->asked[PENDING]);
}

static void count_hits(struct replay_worker *w, const struct serving *v)
{
	struct replay_stats *stats = w->stats;
	uint32_t blocks = v->blocks[DEVICE] + v->blocks[HOST] + v->blocks[REDIS];

	stats->hit_device_tokens += v->saved[DEVICE];
	stats->hit_host_tokens += v->saved[HOST];
	stats->hit_redis_tokens += v->saved[REDIS];
	stats->hit_device_blocks += v->blocks[DEVICE];
	stats->hit_host_blocks += v->blocks[HOST];
	stats->hit_redis_blocks += v->blocks[REDIS];
	stats->hit_requests += blocks > 0;
	stats->hit_blocks += blocks;
	stats->pending_blocks += v->blocks[PENDING];
	if (w->job->hits)
		w->job->hits[v->request] = blocks;
}

static void prompt_init(struct replay_worker *w, struct serving *v)
{
	uint64_t block = w->trace->block_tokens;

	v->prompt = (pfx_prompt){
		.struct_size = sizeof(v->prompt),
		.tenant = w->tenant,
		.salt = "",
		.keys = replay_keys_of(w, v->r),
		.n_keys = v->r->n_blocks,
		.n_tokens = v->r->input_tokens,
		.load_ms = (uint32_t)w->options->load_ms,
		.flags = PFX_MATCH_NO_TAIL,
	};
	if (w->options->promote == REPLAY_PROMOTE_ON)
		v->prompt.flags |= PFX_MATCH_PROMOTE;
	if (replay_single_flight(w->options))
		v->prompt.flags |= PFX_MATCH_LEAD;
	/* Made-up keys cover whole blocks, also the last one that the prompt fills in part. */
	if (w->key_mode == REPLAY_KEYS_TOKENS && v->prompt.n_tokens < v->r->n_blocks * block)
		v->prompt.n_tokens = v->r->n_blocks * block;
}

void replay_serve(struct replay_worker *w, size_t request)
{
	struct serving v = { .request = request,
			     .r = &w->trace->requests[request],
			     .m = { .struct_size = sizeof(v.m) } };
	pfx_release_result rel = { .struct_size = sizeof(rel) };
	uint64_t begin;
	int status;

	prompt_init(w, &v);
	w->stats->requests++;
	w->stats->queried_tokens += v.r->input_tokens;
	begin = replay_now_ns();
	status = pfx_match(w->ns, &v.prompt, &v.m);
	replay_latency_add(&w->stats->latency[REPLAY_OP_MATCH], replay_now_ns() - begin);
	watch_daemon(w, status);
	if (status != PFX_OK) {
		replay_fail(w, request, "match", status);
		return;
	}
	replay_paths_make(w, v.prompt.keys, v.r->n_blocks, v.m.root);
	v.lease = v.m.lease;
	w->stats->below_blocks += v.m.n_host + v.m.n_redis;
	if (take_answer(w, &v, "match", true) && gather(w, &v))
		store_rest(w, &v);
	count_hits(w, &v);
	begin = replay_now_ns();
	status = pfx_release(w->ns, v.lease, 0, 0, 0, &rel);
	replay_latency_add(&w->stats->latency[REPLAY_OP_RELEASE], replay_now_ns() - begin);
	if (status != PFX_OK) {
		replay_fail(w, request, "release", status);
		return;
	}
	w->stats->hit_pending_tokens += rel.hit_pending_tokens;
	check_account(w, &v, &rel);
}
