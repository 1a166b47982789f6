/*
 * progress.c - the progress bar.
 *
 * Reads the workers' counters while they write them: each is one aligned 64-bit number, so what is
 * seen is some recent value of it.
 */
#include "clients/replay/progress.h"

#include <stdio.h>

#define BAR 28

static uint64_t peek(const uint64_t *counter)
{
	return __atomic_load_n(counter, __ATOMIC_RELAXED);
}

void replay_progress_draw(const struct replay_shared *shared, const struct replay_options *options,
			  size_t n_requests, double elapsed_s)
{
	static const char full[] = "############################";
	uint64_t done = 0, queried = 0, hit = 0, read = 0, bad = 0;
	int filled;

	for (uint64_t i = 0; i < options->workers; i++) {
		const struct replay_stats *s = &shared->workers[i];

		done += peek(&s->requests);
		queried += peek(&s->queried_tokens);
		hit += peek(&s->hit_device_tokens) + peek(&s->hit_host_tokens) +
		       peek(&s->hit_redis_tokens);
		read += peek(&s->bytes_read);
		bad += peek(&s->blocks_corrupt) + peek(&s->errors);
	}
	filled = (int)(done * BAR / n_requests);
	fprintf(stderr,
		"\r[%.*s%*s] %3d%%  %llu/%zu requests  %.0f/s  token hits %.1f%%  "
		"%.1f GB compared  "
		"%llu wrong \033[K",
		filled, full, BAR - filled, "", (int)(done * 100 / n_requests),
		(unsigned long long)done, n_requests,
		elapsed_s > 0 ? (double)done / elapsed_s : 0.0,
		queried ? 100.0 * (double)hit / (double)queried : 0.0, (double)read * 1e-9,
		(unsigned long long)bad);
	fflush(stderr);
}

void replay_progress_clear(void)
{
	fputs("\r\033[K", stderr);
	fflush(stderr);
}
