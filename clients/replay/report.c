/*
 * report.c - JSON and the table at the end.
 *
 * Ratios are over all tokens or requests of the replay, cold start included.
 */
#include "clients/replay/report.h"

#include "clients/c/prefixd.h"
#include "clients/replay/util.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define JSON_DIGITS 10 /* significant, of real numbers */

void replay_report_init(struct replay_report *report, const struct replay_options *options,
			const struct replay_trace *trace, const struct replay_result *result)
{
	*report = (struct replay_report){
		.options = options,
		.trace = trace,
		.result = result,
	};
	replay_lru_run(trace, 0, NULL, &report->unbounded);
	if (result->pool_slots)
		replay_lru_run(trace, result->pool_slots, NULL, &report->leaf_lru);
}

bool replay_report_is_good(const struct replay_report *report)
{
	const struct replay_result *result = report->result;

	return result->sum.blocks_corrupt == 0 && result->sum.errors == 0 && result->n_died == 0 &&
	       result->sum.requests == report->trace->n_requests;
}

static double ratio(uint64_t part, uint64_t whole)
{
	return whole ? (double)part / (double)whole : 0.0;
}

static uint64_t hit_tokens(const struct replay_stats *s)
{
	return s->hit_device_tokens + s->hit_host_tokens + s->hit_redis_tokens;
}

static json_t *latency_json(const struct replay_stats *s)
{
	json_t *all = json_object();

	for (int op = 0; op < REPLAY_N_OPS; op++)
		json_object_set_new(all, replay_op_to_string((enum replay_op)op),
				    json_pack("{s:f, s:f, s:I}", "p50",
					      replay_latency_at(&s->latency[op], 0.50), "p99",
					      replay_latency_at(&s->latency[op], 0.99), "n",
					      (json_int_t)s->latency[op].n));
	return all;
}

/* By from and to, what is not 0; as {"device": {"host": 12}}. */
static json_t *moves_json(const uint64_t moves[REPLAY_N_TIERS][REPLAY_N_TIERS])
{
	json_t *all = json_object();

	for (int from = 0; from < REPLAY_N_TIERS; from++) {
		json_t *by_to = json_object();

		for (int to = 0; to < REPLAY_N_TIERS; to++)
			if (moves[from][to])
				json_object_set_new(by_to,
						    replay_tier_to_string((enum replay_tier)to),
						    json_integer((json_int_t)moves[from][to]));
		if (json_object_size(by_to))
			json_object_set(all, replay_tier_to_string((enum replay_tier)from), by_to);
		json_decref(by_to);
	}
	return all;
}

static void tiers_json(const struct replay_report *report, json_t *all)
{
	const struct replay_result *result = report->result;
	const struct replay_stats *s = &result->sum;
	json_t *cut = json_object();

	json_object_set_new(all, "hit_tokens",
			    json_pack("{s:I, s:I, s:I}", "device", (json_int_t)s->hit_device_tokens,
				      "host", (json_int_t)s->hit_host_tokens, "redis",
				      (json_int_t)s->hit_redis_tokens));
	json_object_set_new(all, "hit_blocks_by_tier",
			    json_pack("{s:I, s:I, s:I}", "device", (json_int_t)s->hit_device_blocks,
				      "host", (json_int_t)s->hit_host_blocks, "redis",
				      (json_int_t)s->hit_redis_blocks));
	for (int i = 0; i < (int)REPLAY_N_REASONS; i++)
		if (s->cut_by[i])
			json_object_set_new(cut, pfx_reason_to_string(i),
					    json_integer((json_int_t)s->cut_by[i]));
	json_object_set_new(all, "loads_cut_by_reason", cut);
	if (result->moves_known) {
		json_object_set_new(all, "demoted_blocks", moves_json(result->moves.demoted));
		json_object_set_new(all, "promoted_blocks", moves_json(result->moves.promoted));
	}
}

static json_t *report_json(const struct replay_report *report)
{
	const struct replay_result *result = report->result;
	const struct replay_stats *s = &result->sum;
	json_t *all = json_object();

	json_object_set_new(all, "source", json_string(report->trace->name));
	json_object_set_new(all, "workers", json_integer((json_int_t)report->options->workers));
	json_object_set_new(
		all, "order",
		json_string(report->options->order == REPLAY_ORDER_TRACE ? "trace" : "concurrent"));
	tiers_json(report, all);
	json_object_set_new(all, "token_hit_ratio",
			    json_real(ratio(hit_tokens(s), s->queried_tokens)));
	json_object_set_new(
		all, "token_hit_ratio_with_pending",
		json_real(ratio(hit_tokens(s) + s->hit_pending_tokens, s->queried_tokens)));
	json_object_set_new(all, "single_flight",
			    json_boolean(replay_single_flight(report->options)));
	json_object_set_new(all, "request_hit_ratio",
			    json_real(ratio(s->hit_requests, s->requests)));
	json_object_set_new(
		all, "unbounded_token_hit_ratio",
		json_real(ratio(report->unbounded.hit_tokens, report->unbounded.queried_tokens)));
	json_object_set_new(
		all, "leaf_lru_token_hit_ratio",
		json_real(ratio(report->leaf_lru.hit_tokens, report->leaf_lru.queried_tokens)));
	json_object_set_new(all, "latency_us", latency_json(s));
	json_object_set_new(all, "elapsed_s", json_real(result->elapsed_s));
	json_object_set_new(all, "pool_blocks", json_integer((json_int_t)result->pool_slots));
	json_object_set_new(all, "workers_died", json_integer((json_int_t)result->n_died));
#define X(name)                                                                   \
	if (strncmp(#name, "hit_", 4) != 0 || strcmp(#name, "hit_blocks") == 0 || \
	    strcmp(#name, "hit_pending_tokens") == 0)                             \
		json_object_set_new(all, #name, json_integer((json_int_t)s->name));
	REPLAY_COUNTERS(X)
#undef X
	if (result->error[0])
		json_object_set_new(all, "first_error", json_string(result->error));
	return all;
}

int replay_report_write_json(const struct replay_report *report, const char *path)
{
	bool to_stdout = strcmp(path, "-") == 0;
	FILE *file = to_stdout ? stdout : fopen(path, "we");
	json_t *all;
	int r = 0;

	if (!file) {
		replay_say("cannot write %s: %s", path, strerror(errno));
		return -EIO;
	}
	all = report_json(report);
	if (json_dumpf(all, file, JSON_INDENT(2) | JSON_REAL_PRECISION(JSON_DIGITS)) != 0 ||
	    fputc('\n', file) == EOF)
		r = -EIO;
	json_decref(all);
	if ((to_stdout ? fflush(file) : fclose(file)) != 0)
		r = -EIO;
	if (r < 0)
		replay_say("cannot write %s", path);
	return r;
}

/* ---- for people ------------------------------------------------------------------------------ */

/* "12,345,678"; the buffer is the caller's. */
static const char *grouped(uint64_t n, char buf[32])
{
	char digits[24];
	int len = snprintf(digits, sizeof(digits), "%" PRIu64, n);
	char *out = buf;

	for (int i = 0; i < len; i++) {
		if (i && (len - i) % 3 == 0)
			*out++ = ',';
		*out++ = digits[i];
	}
	*out = '\0';
	return buf;
}

static void print_hits(const struct replay_report *report, FILE *out)
{
	const struct replay_stats *s = &report->result->sum;
	char a[32], b[32];

	fprintf(out, "  token hit ratio       %6.2f %%   an unbounded cache reaches %.2f %%",
		100 * ratio(hit_tokens(s), s->queried_tokens),
		100 * ratio(report->unbounded.hit_tokens, report->unbounded.queried_tokens));
	if (report->result->pool_slots)
		fprintf(out, ", exact LRU of this size %.2f %%",
			100 * ratio(report->leaf_lru.hit_tokens, report->leaf_lru.queried_tokens));
	fprintf(out, "\n  requests with a hit   %6.2f %%\n",
		100 * ratio(s->hit_requests, s->requests));
	fprintf(out, "  prefill saved         %s of %s tokens\n",
		grouped(hit_tokens(s) + s->hit_pending_tokens, a), grouped(s->queried_tokens, b));
	if (replay_single_flight(report->options))
		fprintf(out,
			"  of these, waited for  %s tokens; %" PRIu64 " waits, %" PRIu64
			" took the lead, %" PRIu64 " in vain\n",
			grouped(s->hit_pending_tokens, a),
			s->waits_ready + s->waits_lead + s->waits_failed, s->waits_lead,
			s->waits_failed);
}

/* One line of moves, where there were any. */
static void print_moves(const struct replay_report *report, const char *label,
			const uint64_t moves[REPLAY_N_TIERS][REPLAY_N_TIERS], FILE *out)
{
	double requests = (double)report->result->sum.requests;
	bool any = false;
	char a[32];

	for (int from = 0; from < REPLAY_N_TIERS; from++)
		for (int to = 0; to < REPLAY_N_TIERS; to++) {
			if (!moves[from][to])
				continue;
			fprintf(out, "%s%s -> %s %s (%.1f a request)", any ? ", " : label,
				replay_tier_to_string((enum replay_tier)from),
				replay_tier_to_string((enum replay_tier)to),
				grouped(moves[from][to], a), (double)moves[from][to] / requests);
			any = true;
		}
	if (any)
		fprintf(out, "\n");
}

/* Nothing of it is said of a daemon that has one tier. */
static void print_tiers(const struct replay_report *report, FILE *out)
{
	const struct replay_result *result = report->result;
	const struct replay_stats *s = &result->sum;
	char a[32], b[32], c[32];

	if (s->below_blocks) {
		fprintf(out,
			"  hits by tier          %.2f %% device, %.2f %% host, %.2f %% redis\n",
			100 * ratio(s->hit_device_tokens, s->queried_tokens),
			100 * ratio(s->hit_host_tokens, s->queried_tokens),
			100 * ratio(s->hit_redis_tokens, s->queried_tokens));
		fprintf(out,
			"  blocks brought up     %s from host memory, %s from redis, of %s told\n",
			grouped(s->hit_host_blocks, a), grouped(s->hit_redis_blocks, b),
			grouped(s->below_blocks, c));
		fprintf(out,
			"  loads                 %s; fewer came than told: %s, late: %s, advised "
			"against: %" PRIu64 "\n",
			grouped(s->loads, a), grouped(s->loads_cut, b), grouped(s->loads_late, c),
			s->loads_declined);
	}
	if (result->moves_known && s->requests) {
		print_moves(report, "  blocks moved down     ", result->moves.demoted, out);
		print_moves(report, "  blocks moved up       ", result->moves.promoted, out);
	}
}

static void print_blocks(const struct replay_report *report, FILE *out)
{
	const struct replay_stats *s = &report->result->sum;
	char a[32], b[32], c[32], d[32];

	fprintf(out, "  blocks hit            %s, of which %s compared byte for byte (%.2f GB)\n",
		grouped(s->hit_blocks + s->pending_blocks, a), grouped(s->blocks_verified, b),
		(double)s->bytes_read * 1e-9);
	fprintf(out,
		"  blocks stored         %s (%.2f GB); stored by two at once: %s; no room: %s "
		"times\n",
		grouped(s->blocks_committed, a), (double)s->bytes_written * 1e-9,
		grouped(s->blocks_duplicate, c), grouped(s->busy, d));
}

static void print_latencies(const struct replay_report *report, FILE *out)
{
	const struct replay_stats *s = &report->result->sum;
	static const double p[] = { 0.50, 0.99 };

	fprintf(out, "  microseconds a call ");
	for (int op = 0; op < REPLAY_N_OPS; op++)
		fprintf(out, "%11s", replay_op_to_string((enum replay_op)op));
	fprintf(out, "\n");
	for (size_t i = 0; i < replay_array_size(p); i++) {
		fprintf(out, "    p%-2.0f               ", p[i] * 100);
		for (int op = 0; op < REPLAY_N_OPS; op++)
			fprintf(out, "%11.1f", replay_latency_at(&s->latency[op], p[i]));
		fprintf(out, "\n");
	}
}

static void print_verdict(const struct replay_report *report, FILE *out)
{
	const struct replay_result *result = report->result;

	if (replay_report_is_good(report)) {
		fprintf(out, "  result                good: %s\n",
			report->options->verify == REPLAY_VERIFY_ALL
				? "every byte was what it has to be, no call failed"
				: "no call failed; contents were not compared");
		return;
	}
	fprintf(out,
		"  result                BAD: %" PRIu64 " corrupt blocks, %" PRIu64
		" errors, %u workers died, %" PRIu64 " of %zu requests%s\n",
		result->sum.blocks_corrupt, result->sum.errors, result->n_died,
		result->sum.requests, report->trace->n_requests,
		result->interrupted ? " (interrupted)" : "");
	if (result->error[0])
		fprintf(out, "  first error           %s\n", result->error);
}

void replay_report_print(const struct replay_report *report, FILE *out)
{
	const struct replay_result *result = report->result;
	const struct replay_stats *s = &result->sum;
	char a[32], b[32];

	fprintf(out, "\n  %s: %s requests, %" PRIu64 " worker%s, %s\n\n", report->trace->name,
		grouped(s->requests, a), report->options->workers,
		report->options->workers == 1 ? "" : "s",
		report->options->order == REPLAY_ORDER_TRACE ? "one request after the other"
							     : "side by side");
	print_hits(report, out);
	print_tiers(report, out);
	print_blocks(report, out);
	print_latencies(report, out);
	fprintf(out,
		"  memory                pool %s blocks x %" PRIu64
		" bytes = %.0f MiB; largest worker %.0f MiB, pool included\n",
		grouped(result->pool_slots, b), result->pool_stride,
		(double)result->pool_slots * (double)result->pool_stride / 1048576.0,
		(double)s->rss_kib / 1024.0);
	fprintf(out, "  time                  %.2f s, %.0f requests/s\n", result->elapsed_s,
		result->elapsed_s > 0 ? (double)s->requests / result->elapsed_s : 0.0);
	print_verdict(report, out);
	fprintf(out, "\n");
}
