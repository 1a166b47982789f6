/*
 * test_metrics.c - the table of metrics as text: buckets, formats, negotiation, and that the
 * reference in daemon/README.md ($PREFIXD_README) is the table's.
 *
 * With the argument "reference" it prints what belongs between the marks there.
 */
#include "daemon/metrics.h"

#include "tests/e2e/exposition.h"
#include "tests/lib/run.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#define BEGIN_MARK "<!-- metrics: begin -->\n"
#define END_MARK   "<!-- metrics: end -->\n"

static struct prefixd_snapshot snap = { .version = "1.2.3", .device = "host" };

static struct exposition text_of(enum prefixd_exposition how)
{
	char *text;
	size_t len;

	ck_assert_int_eq(prefixd_metrics_write(&snap, how, &text, &len), 0);
	ck_assert_uint_eq(strlen(text), len);
	return exposition_parse(text, how == PREFIXD_OPENMETRICS_1_0_0);
}

START_TEST(an_empty_snapshot_is_complete)
{
	struct exposition a = text_of(PREFIXD_TEXT_0_0_4), b = text_of(PREFIXD_OPENMETRICS_1_0_0);
	char build[96];

	ck_assert_uint_gt(a.n, 17 * 20); /* buckets, sum and count of each operation alone */
	ck_assert_uint_eq(a.n, b.n);
	for (size_t i = 0; i < a.n; i++)
		if (strcmp(a.v[i].series, b.v[i].series) != 0)
			ck_abort_msg("%s is %s in the other form", a.v[i].series, b.v[i].series);
	/* Every label value is there before anything has happened. */
	ck_assert(exposition_get(&a, "prefixd_miss_tokens_total{reason=\"no_room\"}") == 0);
	ck_assert(exposition_get(
			  &a, "prefixd_evicted_blocks_total{tier=\"device\",reason=\"quota\"}") ==
		  0);
	ck_assert(exposition_get(&a, "prefixd_demoted_blocks_total{from=\"host\",to=\"redis\"}") ==
		  0);
	ck_assert(exposition_get(&a, "prefixd_redis_bad_payload_total{reason=\"checksum\"}") == 0);
	ck_assert(exposition_get(&a, "prefixd_request_duration_seconds_count{op=\"probe\"}") == 0);
	snprintf(build, sizeof(build),
		 "prefixd_build_info{version=\"1.2.3\",protocol=\"%u\",device=\"host\"}",
		 PROTO_VERSION);
	ck_assert(exposition_get(&a, build) == 1);
	exposition_free(&a);
	exposition_free(&b);
}
END_TEST

/* A bound belongs to its bucket; what is longer than all counts under +Inf alone. */
START_TEST(buckets_have_their_bounds)
{
	static const uint64_t values[] = { 0, 50000, 50001, 1000000000, 10000000000, 10000000001 };
	struct exposition e;

	snap = (struct prefixd_snapshot){ .version = "1", .device = "x" };
	for (size_t i = 0; i < radix_array_size(values); i++)
		prefixd_measure_request(&snap.measures, PROTO_OP_MATCH, values[i]);
	prefixd_measure_request(&snap.measures, 999, 1);
	e = text_of(PREFIXD_TEXT_0_0_4);
#define DURATION "prefixd_request_duration_seconds"
	ck_assert(exposition_get(&e, DURATION "_bucket{op=\"match\",le=\"5e-05\"}") == 2);
	ck_assert(exposition_get(&e, DURATION "_bucket{op=\"match\",le=\"0.0001\"}") == 3);
	ck_assert(exposition_get(&e, DURATION "_bucket{op=\"match\",le=\"0.5\"}") == 3);
	ck_assert(exposition_get(&e, DURATION "_bucket{op=\"match\",le=\"1.0\"}") == 4);
	ck_assert(exposition_get(&e, DURATION "_bucket{op=\"match\",le=\"10.0\"}") == 5);
	ck_assert(exposition_get(&e, DURATION "_bucket{op=\"match\",le=\"+Inf\"}") == 6);
	ck_assert(exposition_get(&e, DURATION "_count{op=\"match\"}") == 6);
	ck_assert_ldouble_eq_tol(exposition_get(&e, DURATION "_sum{op=\"match\"}"), 21.000100002L,
				 1e-9L);
	ck_assert(exposition_get(&e, DURATION "_count{op=\"other\"}") == 1);
	ck_assert(exposition_get(&e, DURATION "_count{op=\"ping\"}") == 0);
	exposition_free(&e);
}
END_TEST

/* A quantile is its bucket's bound, but never above the greatest value. */
START_TEST(quantiles)
{
	struct prefixd_histogram h = { .sum_ns = 0 };

	ck_assert(prefixd_histogram_at(&h, 0.5) == 0);
	for (int i = 0; i < 98; i++)
		prefixd_histogram_add(&h, 60000);
	prefixd_histogram_add(&h, 3000000);
	prefixd_histogram_add(&h, 20000000000);
	ck_assert(prefixd_histogram_at(&h, 0.5) == 100000);
	ck_assert(prefixd_histogram_at(&h, 0.98) == 100000);
	ck_assert(prefixd_histogram_at(&h, 0.99) == 5000000);
	ck_assert(prefixd_histogram_at(&h, 1) == 20000000000);
	ck_assert_uint_eq(h.max_ns, 20000000000);
}
END_TEST

/* Moves between tiers have their two labels. */
START_TEST(moves_by_from_and_to)
{
	struct exposition e;

	snap = (struct prefixd_snapshot){ .version = "1", .device = "x" };
	snap.moved[RADIX_TIER_HOST][RADIX_TIER_DEVICE] = 7;
	snap.moved[RADIX_TIER_DEVICE][RADIX_TIER_REDIS] = 9;
	prefixd_histogram_add(&snap.measures.transfer[RADIX_TIER_HOST][RADIX_TIER_REDIS], 2000000);
	e = text_of(PREFIXD_TEXT_0_0_4);
	ck_assert(exposition_get(
			  &e, "prefixd_promoted_blocks_total{from=\"host\",to=\"device\"}") == 7);
	ck_assert(exposition_get(
			  &e, "prefixd_demoted_blocks_total{from=\"device\",to=\"redis\"}") == 9);
	ck_assert(exposition_sum(&e, "prefixd_promoted_blocks_total") == 7);
#define TRANSFER "prefixd_transfer_duration_seconds"
	ck_assert(exposition_get(&e, TRANSFER "_bucket{from=\"host\",to=\"redis\",le=\"0.001\"}") ==
		  0);
	ck_assert(exposition_get(&e, TRANSFER
				 "_bucket{from=\"host\",to=\"redis\",le=\"0.0025\"}") == 1);
	ck_assert_ldouble_eq_tol(exposition_get(&e, TRANSFER "_sum{from=\"host\",to=\"redis\"}"),
				 0.002L, 1e-9L);
	ck_assert(exposition_get(&e, TRANSFER "_count{from=\"redis\",to=\"device\"}") == 0);
	ck_assert(exposition_sum(&e, TRANSFER "_count") == 1);
	exposition_free(&e);
}
END_TEST

/* The spelling of each bound is its number. */
START_TEST(bounds_are_spelled_right)
{
#define X(ns, text) ck_assert_double_eq_tol(strtod(text, NULL) * 1e9, (double)(ns), 1e-3);
	PREFIXD_BUCKETS(X)
#undef X
}
END_TEST

static const struct {
	const char *accept;
	enum prefixd_exposition how;
} accepts[] = {
	{ NULL, PREFIXD_TEXT_0_0_4 },
	{ "", PREFIXD_TEXT_0_0_4 },
	{ "*/*", PREFIXD_TEXT_0_0_4 },
	{ "text/plain;version=0.0.4", PREFIXD_TEXT_0_0_4 },
	{ "application/openmetrics-text", PREFIXD_OPENMETRICS_1_0_0 },
	{ "Application/OpenMetrics-Text; version=1.0.0", PREFIXD_OPENMETRICS_1_0_0 },
	{ "application/openmetrics-text; version=\"1.0.0\"", PREFIXD_OPENMETRICS_1_0_0 },
	{ "application/openmetrics-text;version=0.0.1,text/plain;version=0.0.4",
	  PREFIXD_TEXT_0_0_4 },
	{ "application/openmetrics-text;version=0.0.1, text/plain;version=1.0.0",
	  PREFIXD_TEXT_0_0_4 },
	{ "application/openmetrics-text;version=0.0.1,application/openmetrics-text;version=1.0.0",
	  PREFIXD_OPENMETRICS_1_0_0 },
	{ "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;"
	  "version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
	  PREFIXD_OPENMETRICS_1_0_0 },
};

START_TEST(accept_decides)
{
	ck_assert_msg(prefixd_exposition_choose(accepts[_i].accept) == accepts[_i].how, "%s",
		      accepts[_i].accept);
}
END_TEST

START_TEST(the_reference_is_the_tables)
{
	const char *path = getenv("PREFIXD_README");
	char *want, *have, *begin, *end;
	size_t len;
	FILE *f;

	ck_assert_ptr_nonnull(path);
	f = fopen(path, "re");
	ck_assert_ptr_nonnull(f);
	have = calloc(1, 1 << 20);
	ck_assert_ptr_nonnull(have);
	len = fread(have, 1, (1 << 20) - 1, f);
	fclose(f);
	ck_assert_uint_lt(len, (1 << 20) - 1);
	ck_assert_int_eq(prefixd_metrics_reference(&want), 0);
	begin = strstr(have, BEGIN_MARK);
	end = strstr(have, END_MARK);
	ck_assert(begin && end && begin < end);
	begin += strlen(BEGIN_MARK);
	*end = '\0';
	ck_assert_msg(
		strcmp(begin, want) == 0,
		"daemon/README.md differs from the table; `test_metrics reference` prints it");
	free(have);
	free(want);
}
END_TEST

int main(int argc, char **argv)
{
	Suite *s = suite_create("metrics");
	TCase *tc = tcase_create("metrics");
	char *text;

	if (argc > 1 && strcmp(argv[1], "reference") == 0) {
		if (prefixd_metrics_reference(&text) < 0)
			return EXIT_FAILURE;
		fputs(text, stdout);
		free(text);
		return EXIT_SUCCESS;
	}
	tcase_add_test(tc, an_empty_snapshot_is_complete);
	tcase_add_test(tc, buckets_have_their_bounds);
	tcase_add_test(tc, quantiles);
	tcase_add_test(tc, moves_by_from_and_to);
	tcase_add_test(tc, bounds_are_spelled_right);
	tcase_add_loop_test(tc, accept_decides, 0, radix_array_size(accepts));
	tcase_add_test(tc, the_reference_is_the_tables);
	suite_add_tcase(s, tc);
	return test_run(s);
}
