/*
 * main.c - prefixd-replay: options, a trace, a replay, a report.
 *
 * Exit status: 0 good, 1 something was corrupt or failed, 2 wrong option, file or trace.
 */
#include "clients/c/prefixd.h"
#include "clients/replay/characteristics.h"
#include "clients/replay/options.h"
#include "clients/replay/report.h"
#include "clients/replay/run.h"
#include "clients/replay/util.h"
#include "clients/replay/workload.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
	EXIT_GOOD = 0,
	EXIT_BAD = 1,
	EXIT_USAGE = 2
};

/* n 0: the kind's own number of requests. */
static struct replay_trace *make_workload(const struct replay_options *options, uint64_t n)
{
#define X(sym, low)                                                                         \
	if (strcmp(options->workload, #low) == 0)                                           \
		return replay_workload_new(REPLAY_WORKLOAD_##sym, options->seed, (size_t)n, \
					   (uint32_t)options->block_tokens);
	REPLAY_WORKLOADS(X)
#undef X
	return NULL; /* the options know the same names */
}

static int get_trace(const struct replay_options *options, struct replay_trace **ret_trace)
{
	struct replay_trace *trace;

	if (options->trace)
		return replay_trace_load(options->trace, (uint32_t)options->block_tokens,
					 (size_t)options->limit, ret_trace);
	trace = make_workload(options, options->requests);
	if (trace && options->limit && options->limit < trace->n_requests) {
		/* A shorter workload is the beginning of a longer one. */
		replay_trace_free(trace);
		trace = make_workload(options, options->limit);
	}
	if (!trace)
		return -EINVAL;
	*ret_trace = trace;
	return 0;
}

/* Whether this trace can be replayed with these keys. */
static int check_trace(const struct replay_options *options, const struct replay_trace *trace)
{
	if (trace->n_requests >= UINT32_MAX) {
		replay_say("more than %u requests", UINT32_MAX);
		return -EINVAL;
	}
	if (trace->n_conflicts && replay_key_mode_of(options, trace) == REPLAY_KEYS_DIGEST) {
		replay_say(
			"%s: %zu times an id stands below another id than at first, so equal ids "
			"are not equal prefixes here; --key-mode tokens replays it",
			options->trace, trace->n_conflicts);
		return -EINVAL;
	}
	return 0;
}

static void print_characteristics(const struct replay_options *options,
				  const struct replay_trace *trace)
{
	bool json = options->json && strcmp(options->json, "-") == 0;

	if (json)
		replay_characteristics_print_json(stdout, trace, options->capacities,
						  options->n_capacities);
	else
		replay_characteristics_print(stdout, trace, options->capacities,
					     options->n_capacities);
}

static int replay(const struct replay_options *options, const struct replay_trace *trace)
{
	struct replay_result result;
	struct replay_report report;
	bool json_on_stdout = options->json && strcmp(options->json, "-") == 0;
	int r = check_trace(options, trace);

	if (r < 0)
		return EXIT_USAGE;
	r = replay_run(options, trace, &result);
	if (r < 0)
		return EXIT_BAD;
	replay_report_init(&report, options, trace, &result);
	if (options->json)
		r = replay_report_write_json(&report, options->json);
	if (!result.sum.requests)
		; /* it never began; the message below says why */
	else if (!json_on_stdout)
		replay_report_print(&report, stdout);
	else if (options->progress == REPLAY_PROGRESS_AUTO && isatty(STDERR_FILENO))
		replay_report_print(&report, stderr);
	if (!replay_report_is_good(&report) && result.error[0])
		replay_say("%s", result.error);
	return r == 0 && replay_report_is_good(&report) ? EXIT_GOOD : EXIT_BAD;
}

int main(int argc, char *argv[])
{
	struct replay_options options;
	struct replay_trace *trace = NULL;
	int status = EXIT_GOOD;

	replay_options_init(&options);
	if (replay_options_parse(&options, argc, argv) < 0) {
		status = EXIT_USAGE;
	} else if (options.help) {
		replay_options_help();
	} else if (options.version) {
		printf("prefixd-replay %s\n", pfx_version());
	} else if (get_trace(&options, &trace) < 0) {
		status = EXIT_USAGE;
	} else if (options.characteristics) {
		print_characteristics(&options, trace);
	} else {
		status = replay(&options, trace);
	}
	replay_trace_free(trace);
	replay_options_deinit(&options);
	return status;
}
