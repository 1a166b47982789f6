/*
 * worker.c - one worker process: it connects, opens its namespace, and takes requests in order or
 * as they come until none is left.
 */
#include "clients/replay/worker.h"

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

uint64_t replay_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void note(struct replay_worker *w, const char *format, va_list args)
	__attribute__((format(printf, 2, 0)));

/* Keeps the first sentence of all workers; later ones are only counted. */
static void note(struct replay_worker *w, const char *format, va_list args)
{
	struct replay_shared *shared = w->job->shared;

	if (!atomic_exchange(&shared->error_taken, true))
		(void)vsnprintf(shared->error, sizeof(shared->error), format, args);
}

void replay_note(struct replay_worker *w, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	note(w, format, args);
	va_end(args);
}

void replay_error(struct replay_worker *w, const char *format, ...)
{
	va_list args;

	w->stats->errors++;
	va_start(args, format);
	note(w, format, args);
	va_end(args);
}

void replay_fail(struct replay_worker *w, size_t request, const char *what, int status)
{
	replay_error(w, "request %zu: %s: %s: %s", request, what, pfx_status_to_string(status),
		     pfx_error(w->client));
}

/* ---- the process ----------------------------------------------------------------------------- */

static int open_namespace(struct replay_worker *w)
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

static int connect_and_open(struct replay_worker *w)
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
		replay_error(w, "%s: %s: %s%s", what, pfx_status_to_string(r), pfx_error(w->client),
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

static void run_in_trace_order(struct replay_worker *w)
{
	struct replay_shared *shared = w->job->shared;
	uint64_t n = w->options->workers;

	for (size_t i = w->job->worker; i < w->trace->n_requests; i += n) {
		while (sem_wait(&shared->baton[w->job->worker]) != 0)
			; /* interrupted by a signal */
		if (!atomic_load(&shared->stop))
			replay_serve(w, i);
		sem_post(&shared->baton[(w->job->worker + 1) % n]);
		if (atomic_load(&shared->stop))
			return;
	}
}

static void run_concurrently(struct replay_worker *w)
{
	struct replay_shared *shared = w->job->shared;
	size_t i;

	while (sem_wait(&shared->baton[w->job->worker]) != 0)
		;
	while (!atomic_load(&shared->stop) &&
	       (i = (size_t)atomic_fetch_add(&shared->next, 1)) < w->trace->n_requests)
		replay_serve(w, i);
}

int replay_worker_main(const struct replay_job *job)
{
	struct replay_worker w = {
		.job = job,
		.options = job->options,
		.trace = job->trace,
		.stats = &job->shared->workers[job->worker],
		.key_mode = replay_key_mode_of(job->options, job->trace),
		.mover = replay_mover_new(),
	};
	struct rusage usage;
	int r = w.mover ? connect_and_open(&w) : -ENOMEM;

	if (!w.mover)
		replay_error(&w, "no memory for a worker");
	if (r == 0) {
		sem_post(&job->shared->ready);
		if (job->options->order == REPLAY_ORDER_TRACE)
			run_in_trace_order(&w);
		else
			run_concurrently(&w);
	}
	w.stats->end_ns = replay_now_ns();
	if (getrusage(RUSAGE_SELF, &usage) == 0)
		w.stats->rss_kib = (uint64_t)usage.ru_maxrss;
	replay_mover_free(w.mover);
	pfx_close(w.client);
	free(w.keys);
	free(w.paths);
	return r < 0;
}
