/*
 * table.c - numbers and tables for people.
 *
 * What it guarantees.  No line of a table is longer than 80 columns while its columns set right
 * fit; text is cut, numbers never.  Output is plain: no colours, no control characters, so that it
 * reads the same on a terminal, in a pipe and in a ticket.
 */
#include "clients/ctl/ctl.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define LABEL 12

static char *ring_next(void)
{
	static char ring[32][224];
	static uint32_t at;

	return ring[at++ % 32];
}

const char *ctl_format(const char *format, ...)
{
	char *s = ring_next();
	va_list ap;

	va_start(ap, format);
	(void)vsnprintf(s, 224, format, ap); /* cut when longer */
	va_end(ap);
	return s;
}

const char *ctl_bytes(uint64_t n)
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB" };
	double v = (double)n;
	uint32_t u = 0;

	while (v >= 1024 && u < 5) {
		v /= 1024;
		u++;
	}
	if (u == 0)
		return ctl_format("%llu B", (unsigned long long)n);
	return ctl_format(v < 10 ? "%.2f %s" : "%.1f %s", v, units[u]);
}

const char *ctl_count(uint64_t n)
{
	char digits[24];
	char *s = ring_next(), *p = s;
	int len = snprintf(digits, sizeof(digits), "%llu", (unsigned long long)n);

	for (int i = 0; i < len; i++) {
		if (i && (len - i) % 3 == 0)
			*p++ = ',';
		*p++ = digits[i];
	}
	*p = 0;
	return s;
}

const char *ctl_brief(uint64_t n)
{
	static const char units[] = " kMGTPE";
	double v = (double)n;
	int u = 0;

	while (v >= 99999.5 || (u && v >= 999.5)) {
		v /= 1000;
		u++;
	}
	return u ? ctl_format(v < 99.95 ? "%.1f%c" : "%.0f%c", v, units[u]) : ctl_format("%.0f", v);
}

const char *ctl_percent(double ratio)
{
	return isfinite(ratio) ? ctl_format("%.1f %%", 100 * ratio) : "-";
}

const char *ctl_age(double seconds)
{
	uint64_t s = seconds > 0 ? (uint64_t)seconds : 0;

	if (seconds < 10)
		return ctl_format("%.1fs", seconds > 0 ? seconds : 0.0);
	if (s < 60)
		return ctl_format("%llus", (unsigned long long)s);
	if (s < 3600)
		return ctl_format("%llum %02llus", (unsigned long long)s / 60,
				  (unsigned long long)s % 60);
	if (s < 86400)
		return ctl_format("%lluh %02llum", (unsigned long long)s / 3600,
				  (unsigned long long)s / 60 % 60);
	return ctl_format("%llud %02lluh", (unsigned long long)s / 86400,
			  (unsigned long long)s / 3600 % 24);
}

const char *ctl_clean(const char *text)
{
	char *s = ring_next();
	size_t n = 0;

	for (; text && text[n] && n < 200; n++)
		s[n] = (unsigned char)text[n] < 0x20 || text[n] == 0x7f ? '?' : text[n];
	s[n] = 0;
	return s;
}

/* ---- members of replies ---------------------------------------------------------------------- */

uint64_t ctl_u64(const json_t *object, const char *name)
{
	json_int_t v = json_integer_value(json_object_get(object, name));

	return v > 0 ? (uint64_t)v : 0;
}

double ctl_real(const json_t *object, const char *name)
{
	const json_t *v = json_object_get(object, name);

	return json_is_number(v) ? json_number_value(v) : (double)NAN;
}

const char *ctl_str(const json_t *object, const char *name)
{
	const char *s = json_string_value(json_object_get(object, name));

	return s ? ctl_clean(s) : "";
}

bool ctl_bool(const json_t *object, const char *name)
{
	return json_is_true(json_object_get(object, name));
}

/* ---- tables ---------------------------------------------------------------------------------- */

void ctl_table_init(struct ctl_table *t, const char *const titles[], uint32_t n)
{
	memset(t, 0, sizeof(*t));
	t->n_columns = n < CTL_TABLE_COLUMNS ? n : CTL_TABLE_COLUMNS;
	memcpy(t->titles, titles, t->n_columns * sizeof(*titles));
}

/* A program that prints and ends: without memory it says so and ends. */
static void *need(void *p)
{
	if (!p) {
		fputs("prefixctl: no memory\n", stderr);
		abort();
	}
	return p;
}

void ctl_table_row(struct ctl_table *t, const char *const cells[])
{
	if (t->n_rows == t->cap) {
		t->cap = t->cap ? 2 * t->cap : 16;
		t->rows = need(realloc(t->rows, t->cap * sizeof(*t->rows)));
	}
	for (uint32_t i = 0; i < t->n_columns; i++)
		t->rows[t->n_rows][i] = need(strdup(cells[i]));
	t->n_rows++;
}

static bool is_left(const char *title)
{
	return title[0] == '<';
}

static void print_cell(const char *text, size_t width, bool left, bool last)
{
	size_t n = strlen(text);

	if (left && n > width)
		printf("%.*s~", (int)width - 1, text);
	else if (left && last)
		printf("%s", text); /* no blanks at the end of a line */
	else
		printf(left ? "%-*s" : "%*s", (int)width, text);
	fputs(last ? "\n" : "  ", stdout);
}

void ctl_table_print(struct ctl_table *t, const char *heading)
{
	size_t width[CTL_TABLE_COLUMNS] = { 0 }, total = 0;

	for (uint32_t i = 0; i < t->n_columns; i++) {
		width[i] = strlen(t->titles[i]) - is_left(t->titles[i]);
		for (uint32_t row = 0; row < t->n_rows; row++) {
			size_t n = strlen(t->rows[row][i]);

			width[i] = n > width[i] ? n : width[i];
		}
		total += width[i] + (i ? 2 : 0);
	}
	while (total > CTL_COLUMNS) {
		uint32_t widest = CTL_TABLE_COLUMNS;

		for (uint32_t i = 0; i < t->n_columns; i++)
			if (is_left(t->titles[i]) && width[i] > 8 &&
			    (widest == CTL_TABLE_COLUMNS || width[i] > width[widest]))
				widest = i;
		if (widest == CTL_TABLE_COLUMNS)
			break;
		width[widest]--;
		total--;
	}
	if (t->n_rows && heading)
		printf("\n%s\n", heading);
	for (uint32_t i = 0; t->n_rows && i < t->n_columns; i++) {
		bool left = is_left(t->titles[i]);

		print_cell(t->titles[i] + left, width[i], left, i + 1 == t->n_columns);
	}
	for (uint32_t row = 0; row < t->n_rows; row++) {
		for (uint32_t i = 0; i < t->n_columns; i++) {
			print_cell(t->rows[row][i], width[i], is_left(t->titles[i]),
				   i + 1 == t->n_columns);
			free(t->rows[row][i]);
		}
	}
	free(t->rows);
	memset(t, 0, sizeof(*t));
}

void ctl_line(const char *label, const char *format, ...)
{
	va_list ap;

	printf("%-*s", LABEL, label);
	va_start(ap, format);
	(void)vprintf(format, ap);
	va_end(ap);
	putchar('\n');
}

void ctl_print_members(const char *label, const json_t *object)
{
	size_t column = LABEL;
	const char *name;
	json_t *value;
	bool any = false;

	printf("%-*s", LABEL, label);
	json_object_foreach((json_t *)(uintptr_t)object, name, value)
	{
		const char *item;

		if (json_integer_value(value) <= 0)
			continue;
		item = ctl_format("%s %s", ctl_clean(name),
				  ctl_count((uint64_t)json_integer_value(value)));
		if (any) {
			fputs(",", stdout);
			column++;
			if (column + 1 + strlen(item) >= CTL_COLUMNS) {
				printf("\n%*s", LABEL, "");
				column = LABEL;
			} else {
				putchar(' ');
				column++;
			}
		}
		fputs(item, stdout);
		column += strlen(item);
		any = true;
	}
	puts(any ? "" : "none");
}
