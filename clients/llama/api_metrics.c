/*
 * api_metrics.c - the page for Prometheus.
 */
#include "clients/llama/api_internal.h"

#include "clients/llama/engine.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define PREFIX "prefixd_llama_"

struct metric {
	const char *name, *type, *help;
	const char *labels; /* with braces; "" */
	uint64_t value;
};

static void print(FILE *out, const struct metric *metrics, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		/* Rows of one name with other labels share their head. */
		if (metrics[i].help)
			fprintf(out, "# HELP " PREFIX "%s %s\n# TYPE " PREFIX "%s %s\n",
				metrics[i].name, metrics[i].help, metrics[i].name, metrics[i].type);
		fprintf(out, PREFIX "%s%s %" PRIu64 "\n", metrics[i].name, metrics[i].labels,
			metrics[i].value);
	}
}

char *api_metrics(const struct api *api, size_t *ret_len)
{
	struct engine_stats s = { 0 };
	char *text = NULL;
	FILE *out = open_memstream(&text, ret_len);

	if (!out)
		return NULL;
	if (api->engine)
		engine_get_stats(api->engine, &s);
	{
		const struct metric metrics[] = {
			{ "ready", "gauge", "1: requests are served.", "",
			  api->state == API_READY },
			{ "http_requests_total", "counter", "HTTP requests of all kinds.", "",
			  api->n_requests },
			{ "http_errors_total", "counter", "Of them answered with 4xx or 5xx.", "",
			  api->n_errors },
			{ "requests_total", "counter", "Completions and chats that ended.",
			  "{finish=\"stop\"}", s.finished[ENGINE_FINISH_STOP] },
			{ "requests_total", NULL, NULL, "{finish=\"length\"}",
			  s.finished[ENGINE_FINISH_LENGTH] },
			{ "requests_total", NULL, NULL, "{finish=\"abort\"}",
			  s.finished[ENGINE_FINISH_ABORT] },
			{ "requests_total", NULL, NULL, "{finish=\"error\"}",
			  s.finished[ENGINE_FINISH_ERROR] },
			{ "requests_refused_total", "counter",
			  "Refused with 429: the queue was full.", "", s.refused },
			{ "slots", "gauge", "Requests that can be served at a time.", "",
			  s.n_slots },
			{ "slots_busy", "gauge", "Requests that are being served.", "", s.n_busy },
			{ "queue", "gauge", "Requests that wait for a slot.", "", s.n_waiting },
			{ "prompt_tokens_total", "counter", "Tokens of prompts taken in.", "",
			  s.prompt_tokens },
			{ "cached_tokens_total", "counter",
			  "Of them those that prefixd had, so that no prefill was needed.", "",
			  s.cached_tokens },
			{ "prefill_tokens_total", "counter", "Prompt tokens computed.", "",
			  s.prefill_tokens },
			{ "prefill_steps_total", "counter", "Pieces that they were computed in.",
			  "", s.prefill_steps },
			{ "completion_tokens_total", "counter", "Tokens generated.", "",
			  s.completion_tokens },
			{ "cache_enabled", "gauge", "1: the worker stores its K/V in prefixd.", "",
			  s.cache_on },
			{ "cache_stored_blocks_total", "counter", "Blocks stored in prefixd.", "",
			  s.cache.stored_blocks },
			{ "cache_duplicate_blocks_total", "counter",
			  "Blocks that another worker had stored first.", "",
			  s.cache.duplicate_blocks },
			{ "cache_failures_total", "counter",
			  "Calls of prefixd that did not do what was asked.", "",
			  s.cache.failures },
			{ "cache_waited_requests_total", "counter",
			  "Requests that waited for blocks from lower tiers or other workers.", "",
			  s.cache.waited },
			{ "cache_import_microseconds_total", "counter",
			  "Time spent taking blocks in.", "", s.cache.import_us },
			{ "cache_export_microseconds_total", "counter",
			  "Time spent copying blocks out.", "", s.cache.export_us },
			{ "cache_daemon_microseconds_total", "counter",
			  "Time spent in calls of prefixd.", "", s.cache.daemon_us },
		};

		print(out, metrics, sizeof(metrics) / sizeof(metrics[0]));
	}
	if (fclose(out) != 0) {
		free(text);
		return NULL;
	}
	return text;
}
