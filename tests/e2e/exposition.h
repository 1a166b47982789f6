/*
 * exposition.h - reads what a scrape returned, and fails the running test on anything that is not
 * in the format: a sample without HELP and TYPE before it, a series or a family twice, a family in
 * pieces, a counter that does not end in _total, a gauge that does, buckets that fall.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct exposition_sample {
	const char *series; /* name and labels, as written */
	long double value;
};

struct exposition {
	char *text;
	struct exposition_sample *v;
	size_t n;
};

/* Takes text (from malloc) over. */
struct exposition exposition_parse(char *text, bool openmetrics);
/* /metrics of who listens there. HTTP/1.0 ends with the connection. */
struct exposition exposition_scrape(const char *unix_path);
void exposition_free(struct exposition *e);
/* The value of a series; the test fails when there is none. */
long double exposition_get(const struct exposition *e, const char *series);
/* The sum over all series of a name, whatever their labels; at least one exists. */
long double exposition_sum(const struct exposition *e, const char *name);
