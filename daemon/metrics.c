/*
 * metrics.c - measuring, and the table of metrics as text; see metrics.h.
 */
#include "daemon/metrics.h"

#include "daemon/metrics_table.h"

#include <stdio.h>
#include <stdlib.h>

static const char *const type_names[] = {
	[PREFIXD_COUNTER] = "counter",
	[PREFIXD_GAUGE] = "gauge",
	[PREFIXD_HISTOGRAM] = "histogram",
};

/* ---- measuring ------------------------------------------------------------------------------- */

static const struct {
	uint64_t ns;
	const char *text;
} buckets[PREFIXD_N_BUCKETS] = {
#define X(ns_, text_) { ns_, text_ },
	PREFIXD_BUCKETS(X)
#undef X
};

/* Most requests take a few microseconds, so the first comparison decides. */
void prefixd_histogram_add(struct prefixd_histogram *h, uint64_t ns)
{
	size_t i = 0;

	while (i < PREFIXD_N_BUCKETS && ns > buckets[i].ns)
		i++;
	h->n[i]++;
	h->sum_ns += ns;
	if (ns > h->max_ns)
		h->max_ns = ns;
}

double prefixd_histogram_at(const struct prefixd_histogram *h, double p)
{
	uint64_t n = 0, seen = 0;
	size_t i = 0;

	for (size_t k = 0; k <= PREFIXD_N_BUCKETS; k++)
		n += h->n[k];
	if (n == 0)
		return 0;
	while (i < PREFIXD_N_BUCKETS && (double)(seen += h->n[i]) < p * (double)n)
		i++;
	if (i == PREFIXD_N_BUCKETS || buckets[i].ns > h->max_ns)
		return (double)h->max_ns;
	return (double)buckets[i].ns;
}

void prefixd_measure_request(struct prefixd_measures *m, uint16_t op, uint64_t ns)
{
	enum prefixd_metric_op i = PREFIXD_METRIC_OP_other;

	switch (op) {
#define X(code, sym, name)                   \
	case code:                           \
		i = PREFIXD_METRIC_OP_##sym; \
		break;
		PROTO_OPS(X)
#undef X
	default:
		break;
	}
	prefixd_histogram_add(&m->request[i], ns);
}

/* ---- text ------------------------------------------------------------------------------------ */

struct writer {
	FILE *f;
	const struct prefixd_snapshot *s;
	enum prefixd_exposition how;
};

static const void *series_field(const struct writer *w, const struct prefixd_series *v)
{
	return (const char *)w->s + v->offset;
}

/* {a="b",c="d"}, without braces when there is nothing to say. */
static void labels_write(const struct writer *w, const struct prefixd_family *m,
			 const struct prefixd_series *v, const char *le)
{
	const char *open = "{";

	if (m->label) {
		fprintf(w->f, "%s%s=\"%s\"", open, m->label, v->value);
		open = ",";
	}
	if (m->label2)
		fprintf(w->f, ",%s=\"%s\"", m->label2, v->value2);
	if (le) {
		fprintf(w->f, "%sle=\"%s\"", open, le);
		open = ",";
	}
	if (*open == ',')
		fputc('}', w->f);
}

static void number_write(const struct writer *w, enum prefixd_metric_unit unit, uint64_t v)
{
	if (unit == PREFIXD_SECONDS)
		fprintf(w->f, " %llu.%09llu\n", (unsigned long long)(v / 1000000000u),
			(unsigned long long)(v % 1000000000u));
	else
		fprintf(w->f, " %llu\n", (unsigned long long)v);
}

static void histogram_write(const struct writer *w, const struct prefixd_family *m,
			    const struct prefixd_series *v)
{
	const struct prefixd_histogram *h = series_field(w, v);
	uint64_t n = 0;

	for (size_t i = 0; i <= PREFIXD_N_BUCKETS; i++) {
		n += h->n[i];
		fprintf(w->f, "%s_bucket", m->name);
		labels_write(w, m, v, i < PREFIXD_N_BUCKETS ? buckets[i].text : "+Inf");
		number_write(w, PREFIXD_PLAIN, n);
	}
	fprintf(w->f, "%s_sum", m->name);
	labels_write(w, m, v, NULL);
	number_write(w, PREFIXD_SECONDS, h->sum_ns);
	fprintf(w->f, "%s_count", m->name);
	labels_write(w, m, v, NULL);
	number_write(w, PREFIXD_PLAIN, n);
}

/* OpenMetrics names a counter's family without its _total. */
static int family_name_len(const struct prefixd_family *m, enum prefixd_exposition how)
{
	size_t len = strlen(m->name);

	if (how == PREFIXD_OPENMETRICS_1_0_0 && m->type == PREFIXD_COUNTER)
		len -= strlen("_total");
	return (int)len;
}

static void family_write(const struct writer *w, const struct prefixd_family *m)
{
	int len = family_name_len(m, w->how);

	fprintf(w->f, "# HELP %.*s %s\n# TYPE %.*s %s\n", len, m->name, m->help, len, m->name,
		type_names[m->type]);
	for (size_t i = 0; i < m->n_series; i++) {
		const struct prefixd_series *v = &m->series[i];
		uint64_t number;

		if (m->type == PREFIXD_HISTOGRAM) {
			histogram_write(w, m, v);
			continue;
		}
		memcpy(&number, series_field(w, v), sizeof(number));
		fputs(m->name, w->f);
		labels_write(w, m, v, NULL);
		number_write(w, m->unit, number);
	}
}

/* The one whose labels are texts of the build. */
#define BUILD_HELP "1; what runs here."

static void build_write(const struct writer *w)
{
	fprintf(w->f,
		"# HELP prefixd_build_info " BUILD_HELP "\n# TYPE prefixd_build_info gauge\n"
		"prefixd_build_info{version=\"%s\",protocol=\"%u\",device=\"%s\"} 1\n",
		w->s->version, PROTO_VERSION, w->s->device);
}

static int text_close(FILE *f, char **text)
{
	bool failed = ferror(f) != 0;

	if (fclose(f) == 0 && !failed)
		return 0;
	free(*text);
	return -ENOMEM;
}

int prefixd_metrics_write(const struct prefixd_snapshot *s, enum prefixd_exposition how,
			  char **ret_text, size_t *ret_len)
{
	char *text = NULL;
	size_t len = 0;
	struct writer w = { .f = open_memstream(&text, &len), .s = s, .how = how };
	int r;

	if (!w.f)
		return -ENOMEM;
	build_write(&w);
	for (size_t i = 0; i < prefixd_n_metric_families; i++)
		family_write(&w, &prefixd_metric_families[i]);
	if (how == PREFIXD_OPENMETRICS_1_0_0)
		fputs("# EOF\n", w.f);
	r = text_close(w.f, &text);
	if (r < 0)
		return r;
	*ret_text = text;
	*ret_len = len;
	return 0;
}

static const char *value_at(const struct prefixd_family *m, size_t i, bool second)
{
	return second ? m->series[i].value2 : m->series[i].value;
}

/* A label and its values, each once. */
static void values_write(FILE *f, const struct prefixd_family *m, bool second)
{
	const char *label = second ? m->label2 : m->label;

	if (!label)
		return;
	fprintf(f, "%s`%s`:", second ? "; " : "", label);
	for (size_t i = 0; i < m->n_series; i++) {
		const char *value = value_at(m, i, second);
		size_t k = 0;

		while (k < i && strcmp(value_at(m, k, second), value) != 0)
			k++;
		if (k == i)
			fprintf(f, "%s %s", i ? "," : "", value);
	}
}

int prefixd_metrics_reference(char **ret_text)
{
	char *text = NULL;
	size_t len = 0;
	FILE *f = open_memstream(&text, &len);
	int r;

	if (!f)
		return -ENOMEM;
	fputs("| metric | type | labels | what |\n|---|---|---|---|\n", f);
	fputs("| `prefixd_build_info` | gauge | `version`, `protocol`, `device` | " BUILD_HELP
	      " |\n",
	      f);
	for (size_t i = 0; i < prefixd_n_metric_families; i++) {
		const struct prefixd_family *m = &prefixd_metric_families[i];

		fprintf(f, "| `%s` | %s | ", m->name, type_names[m->type]);
		values_write(f, m, false);
		values_write(f, m, true);
		fprintf(f, " | %s |\n", m->help);
	}
	r = text_close(f, &text);
	if (r == 0)
		*ret_text = text;
	return r;
}

/* ---- negotiation ----------------------------------------------------------------------------- */

enum prefixd_exposition prefixd_exposition_choose(const char *accept)
{
	static const char type[] = "application/openmetrics-text";

	/* A list of types with weights; who names this one reads it, unless he says 0.0.1 alone. */
	for (const char *p = accept; p && (p = strcasestr(p, type)) != NULL; p += strlen(type)) {
		size_t len = strcspn(p, ",");
		const char *version = memmem(p, len, "version=", 8);

		if (!version || strncmp(version + 8, "1.0.0", 5) == 0 ||
		    strncmp(version + 8, "\"1.0.0\"", 7) == 0)
			return PREFIXD_OPENMETRICS_1_0_0;
	}
	return PREFIXD_TEXT_0_0_4;
}

const char *prefixd_exposition_content_type(enum prefixd_exposition how)
{
	return how == PREFIXD_OPENMETRICS_1_0_0
		       ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
		       : "text/plain; version=0.0.4; charset=utf-8";
}
