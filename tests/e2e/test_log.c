/*
 * test_log.c - the log's rate limit, levels and texts, in this process.
 */
#include "daemon/log.h"
#include "tests/lib/run.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

struct log_text {
	char text[8192];
	size_t len;
	uint64_t now_ns;
	uint32_t n_lines;
};

static void log_write(void *ctx, const char *line, size_t len)
{
	struct log_text *t = ctx;

	ck_assert_uint_lt(t->len + len, sizeof(t->text));
	memcpy(t->text + t->len, line, len);
	t->len += len;
	t->text[t->len] = '\0';
	t->n_lines++;
}

static uint64_t log_clock(void *ctx)
{
	const struct log_text *t = ctx;

	return t->now_ns;
}

static void say_often(uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		prefixd_warn("one site, line %u", i);
}

START_TEST(log_rate_limit)
{
	struct log_text t = { .now_ns = 1 };
	const struct prefixd_log_sink sink = { .write = log_write, .now_ns = log_clock, .ctx = &t };

	prefixd_log_set_sink(&sink);
	say_often(100);
	ck_assert_uint_eq(t.n_lines, PREFIXD_LOG_BURST);
	prefixd_warn("another site"); /* has a limit of its own */
	ck_assert_uint_eq(t.n_lines, PREFIXD_LOG_BURST + 1);
	t.now_ns += PREFIXD_LOG_WINDOW_NS;
	t.len = 0;
	say_often(1);
	ck_assert_str_eq(t.text, "<4>90 lines like the next were left out\n<4>one site, line 0\n");
	prefixd_log_set_sink(NULL);
}
END_TEST

START_TEST(log_levels_and_text)
{
	struct log_text t = { .now_ns = 1 };
	const struct prefixd_log_sink sink = { .write = log_write, .now_ns = log_clock, .ctx = &t };
	char big[4096];

	prefixd_log_set_sink(&sink);
	prefixd_log_set_level(PREFIXD_LOG_WARN);
	prefixd_info("not to be seen");
	prefixd_error("a peer's name: %s", "x\n<0>forged\x1b[2J");
	ck_assert_str_eq(t.text, "<3>a peer's name: x?<0>forged?[2J\n");
	t.len = 0;
	memset(big, 'a', sizeof(big) - 1);
	big[sizeof(big) - 1] = '\0';
	prefixd_error("%s", big);
	ck_assert_uint_eq(t.len, 1024);
	ck_assert_int_eq(t.text[t.len - 1], '\n');
	t.len = t.n_lines = 0;
	for (unsigned i = 0; i < 30; i++) { /* the engine's lines: one site by its words */
		char line[64];

		snprintf(line, sizeof(line), "session %u did something", i);
		prefixd_log_text(PREFIXD_LOG_WARN, line);
	}
	ck_assert_uint_eq(t.n_lines, PREFIXD_LOG_BURST);
	prefixd_log_set_sink(NULL);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("log");
	TCase *tc;

	tc = tcase_create("log");
	tcase_add_test(tc, log_rate_limit);
	tcase_add_test(tc, log_levels_and_text);
	suite_add_tcase(s, tc);
	return test_run(s);
}
