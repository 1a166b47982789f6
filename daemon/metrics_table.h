/*
 * metrics_table.h - how the table of metrics is made; only metrics.c and its table include it.
 *
 * A family is a metric's name; a series of it is one combination of its labels' values, and says
 * where in the snapshot its value lies.
 */
#pragma once

#include "daemon/metrics.h"

enum prefixd_metric_type {
	PREFIXD_COUNTER,
	PREFIXD_GAUGE,
	PREFIXD_HISTOGRAM
};

enum prefixd_metric_unit {
	PREFIXD_PLAIN,
	PREFIXD_SECONDS /* the field has nanoseconds */
};

struct prefixd_series {
	const char *value;  /* of the family's label; NULL where it has none */
	const char *value2; /* of its second label */
	size_t offset;      /* in struct prefixd_snapshot, of a uint64_t or a prefixd_histogram */
};

struct prefixd_family {
	const char *name;
	enum prefixd_metric_type type;
	enum prefixd_metric_unit unit;
	const char *label, *label2; /* NULL: none */
	const struct prefixd_series *series;
	size_t n_series;
	const char *help;
};

extern const struct prefixd_family prefixd_metric_families[];
extern const size_t prefixd_n_metric_families;
