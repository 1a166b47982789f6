/*
 * exposition.c - see exposition.h.
 */
#include "tests/e2e/exposition.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

struct family {
	char name[128], type[16];
	bool helped, typed;
};

struct parser {
	struct exposition e;
	struct family *families;
	size_t n_families;
	bool openmetrics, ended;
	long double bucket; /* of the last _bucket line */
	char bucket_series[256];
};

static bool ends_with(const char *s, size_t len, const char *tail)
{
	size_t n = strlen(tail);

	return len > n && memcmp(s + len - n, tail, n) == 0;
}

/* The family that was named last, begun anew when the name is a new one. */
static struct family *family_of(struct parser *p, const char *name, size_t len)
{
	struct family *f;

	ck_assert_uint_gt(len, 0);
	ck_assert_uint_lt(len, sizeof(f->name));
	ck_assert_msg(strspn(name, "abcdefghijklmnopqrstuvwxyz_0123456789") == len, "name: %s",
		      name);
	if (p->n_families > 0) {
		f = &p->families[p->n_families - 1];
		if (strlen(f->name) == len && memcmp(f->name, name, len) == 0)
			return f;
	}
	/* ck_assert writes to a pipe, also when all is well: only a find is worth that. */
	for (size_t i = 0; i < p->n_families; i++)
		if (strlen(p->families[i].name) == len &&
		    memcmp(p->families[i].name, name, len) == 0)
			ck_abort_msg("the family comes twice: %s", name);
	p->families = realloc(p->families, (p->n_families + 1) * sizeof(*f));
	ck_assert_ptr_nonnull(p->families);
	f = &p->families[p->n_families++];
	*f = (struct family){ 0 };
	memcpy(f->name, name, len);
	return f;
}

static void comment_parse(struct parser *p, const char *line)
{
	const char *name = line + 7, *rest;
	struct family *f;

	if (strcmp(line, "# EOF") == 0) {
		ck_assert(p->openmetrics);
		p->ended = true;
		return;
	}
	ck_assert_msg(strncmp(line, "# HELP ", 7) == 0 || strncmp(line, "# TYPE ", 7) == 0, "%s",
		      line);
	rest = strchr(name, ' ');
	ck_assert_msg(rest && rest[1], "%s", line);
	f = family_of(p, name, (size_t)(rest - name));
	if (line[2] == 'H') {
		ck_assert_msg(!f->helped && !f->typed, "HELP comes first and once: %s", line);
		f->helped = true;
		return;
	}
	ck_assert_msg(f->helped && !f->typed, "TYPE comes once, behind HELP: %s", line);
	f->typed = true;
	ck_assert_uint_lt(strlen(rest + 1), sizeof(f->type));
	snprintf(f->type, sizeof(f->type), "%s", rest + 1);
	if (strcmp(f->type, "counter") == 0)
		ck_assert_msg(ends_with(f->name, strlen(f->name), "_total") == !p->openmetrics,
			      "counter %s", f->name);
	else
		ck_assert_msg(!ends_with(f->name, strlen(f->name), "_total"), "%s %s", f->type,
			      f->name);
}

/* Buckets of one series rise up to +Inf, which _count repeats. */
static void bucket_check(struct parser *p, const char *series, size_t name_len, long double value)
{
	const char *le = strstr(series, "le=\"");
	size_t before = le ? (size_t)(le - series) : 0;

	ck_assert_msg(le != NULL, "a bucket without le: %s", series);
	ck_assert_uint_lt(before, sizeof(p->bucket_series));
	if (strlen(p->bucket_series) == before && memcmp(p->bucket_series, series, before) == 0)
		ck_assert_msg(value >= p->bucket, "buckets fall: %s", series);
	snprintf(p->bucket_series, sizeof(p->bucket_series), "%.*s", (int)before, series);
	p->bucket = value;
}

static void sample_belongs(struct parser *p, const char *series, size_t name_len, long double value)
{
	const struct family *f;
	size_t len = name_len;

	ck_assert_msg(p->n_families > 0, "%s: no HELP, no TYPE", series);
	f = &p->families[p->n_families - 1];
	ck_assert_msg(f->helped && f->typed, "%s: no HELP or no TYPE", series);
	if (strcmp(f->type, "histogram") == 0) {
		if (ends_with(series, len, "_bucket")) {
			len -= 7;
			bucket_check(p, series, name_len, value);
		} else if (ends_with(series, len, "_sum")) {
			len -= 4;
			ck_assert_msg(value >= 0, "%s", series);
		} else {
			ck_assert_msg(ends_with(series, len, "_count"), "%s", series);
			ck_assert_msg(value == p->bucket, "%s is not its last bucket", series);
			len -= 6;
		}
	} else if (strcmp(f->type, "counter") == 0) {
		ck_assert_msg(ends_with(series, len, "_total"), "%s", series);
		ck_assert_msg(value >= 0, "%s", series);
		len -= p->openmetrics ? 6 : 0;
	} else {
		ck_assert_str_eq(f->type, "gauge");
	}
	ck_assert_msg(strlen(f->name) == len && memcmp(f->name, series, len) == 0,
		      "%s stands under %s", series, f->name);
}

static void labels_check(const char *series, const char *labels)
{
	if (*labels == '\0')
		return;
	ck_assert_msg(labels[strlen(labels) - 1] == '}' && !strchr(labels, ' '), "%s", series);
	labels++;
	do {
		size_t n = strspn(labels, "abcdefghijklmnopqrstuvwxyz_");

		ck_assert_msg(n > 0 && labels[n] == '=' && labels[n + 1] == '"', "%s", series);
		labels += n + 2;
		labels += strcspn(labels, "\"\\\n");
		ck_assert_msg(*labels == '"', "%s", series);
		labels++;
	} while (*labels++ == ',');
	ck_assert_msg(labels[-1] == '}' && *labels == '\0', "%s", series);
}

static void sample_parse(struct parser *p, char *line)
{
	char *space = strrchr(line, ' '), *end;
	size_t name_len = strcspn(line, "{ ");
	long double value;

	ck_assert_msg(space != NULL && !p->ended, "%s", line);
	*space = '\0';
	value = strtold(space + 1, &end);
	ck_assert_msg(end > space + 1 && *end == '\0', "%s: no number", line);
	labels_check(line, line + name_len);
	sample_belongs(p, line, name_len, value);
	for (size_t i = 0; i < p->e.n; i++)
		if (strcmp(p->e.v[i].series, line) == 0)
			ck_abort_msg("twice: %s", line);
	p->e.v = realloc(p->e.v, (p->e.n + 1) * sizeof(p->e.v[0]));
	ck_assert_ptr_nonnull(p->e.v);
	p->e.v[p->e.n++] = (struct exposition_sample){ .series = line, .value = value };
}

struct exposition exposition_parse(char *text, bool openmetrics)
{
	struct parser p = { .e = { .text = text }, .openmetrics = openmetrics };

	for (char *line = text, *next; *line; line = next) {
		next = strchr(line, '\n');
		ck_assert_msg(next != NULL, "the last line has no end: %s", line);
		*next++ = '\0';
		if (line[0] == '#')
			comment_parse(&p, line);
		else
			sample_parse(&p, line);
	}
	ck_assert(p.ended == openmetrics);
	free(p.families);
	return p.e;
}

struct exposition exposition_scrape(const char *path)
{
	static const char request[] = "GET /metrics HTTP/1.0\r\n\r\n";
	static char text[1 << 20];
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	size_t n = 0;
	ssize_t r;
	char *body;

	(void)snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", path);
	ck_assert_int_eq(connect(fd, (const struct sockaddr *)&sa, sizeof(sa)), 0);
	ck_assert_int_eq(write(fd, request, sizeof(request) - 1), sizeof(request) - 1);
	while ((r = read(fd, text + n, sizeof(text) - 1 - n)) > 0)
		n += (size_t)r;
	close(fd);
	text[n] = 0;
	body = strstr(text, "\r\n\r\n");
	ck_assert_ptr_nonnull(body);
	return exposition_parse(strdup(body + 4), false);
}

void exposition_free(struct exposition *e)
{
	free(e->text);
	free(e->v);
	*e = (struct exposition){ 0 };
}

long double exposition_get(const struct exposition *e, const char *series)
{
	for (size_t i = 0; i < e->n; i++)
		if (strcmp(e->v[i].series, series) == 0)
			return e->v[i].value;
	ck_abort_msg("no series %s", series);
	return 0;
}

long double exposition_sum(const struct exposition *e, const char *name)
{
	long double sum = 0;
	size_t n = 0;

	for (size_t i = 0; i < e->n; i++) {
		size_t len = strcspn(e->v[i].series, "{");

		if (strlen(name) != len || memcmp(e->v[i].series, name, len) != 0)
			continue;
		sum += e->v[i].value;
		n++;
	}
	ck_assert_msg(n > 0, "no series of %s", name);
	return sum;
}
