/*
 * options_file.c - the options table as read from a configuration file.
 *
 * What it guarantees.  Whatever --print-config writes is read as the same values.  A file that is
 * not whole, or not a text, is refused with its line.
 *
 * Values.  Blanks around a value do not belong to it, unless it stands in quotation marks: the
 * first and the last one are taken away, what is between them counts as it is.  A value that is
 * longer than a line may be goes on under the same name with a plus sign:
 *
 *     naming-key-file = "/a/long/path/that "
 *     naming-key-file+ = "goes on"
 */
#include "daemon/options_internal.h"

#include <ini.h>
#include <stdarg.h>
#include <stdlib.h>

struct file_reader {
	struct prefixd_options *o;
	FILE *f;
	const char *path;
	int line;
	int seen[PREFIXD_N_OPTIONS]; /* line of the first value */
	int r;
	char *why;
	size_t why_len;
	const struct prefixd_option *opt; /* whose value `text` is so far; NULL: none */
	int opt_line;
	char text[4200]; /* more than any value may have */
};

__attribute__((format(printf, 3, 4))) static int refuse(struct file_reader *fr, int line,
							const char *format, ...)
{
	va_list ap;
	int n = snprintf(fr->why, fr->why_len, "%s:%d: ", fr->path, line);

	va_start(ap, format);
	if (n > 0 && (size_t)n < fr->why_len)
		vsnprintf(fr->why + n, fr->why_len - (size_t)n, format, ap);
	va_end(ap);
	fr->r = -EINVAL;
	return fr->r;
}

/* The rest of a line that did not fit. */
static void line_skip(FILE *f)
{
	int c;

	do
		c = fgetc(f);
	while (c != EOF && c != '\n');
}

/* inih's source of lines: counts them, and refuses one that inih would cut. */
static char *file_line(char *str, int num, void *stream)
{
	struct file_reader *fr = stream;
	size_t len;

	if (fr->r < 0)
		return NULL;
	memset(str, 1, (size_t)num); /* so that the last byte 0 is the one that ends the line */
	if (!fgets(str, num, fr->f))
		return NULL;
	fr->line++;
	len = strlen(str);
	if (memrchr(str, '\0', (size_t)num) != str + len) {
		refuse(fr, fr->line, "has a byte 0; is it a text file, and whole?");
		return NULL;
	}
	if (len + 1 < (size_t)num || str[len - 1] == '\n')
		return str;
	if (strchr("#;", str[strspn(str, " \t")])) {
		line_skip(fr->f); /* a comment may be as long as it likes */
		return str;
	}
	refuse(fr, fr->line, "longer than %d bytes; a value goes on under its name with a +",
	       num - 2);
	return NULL;
}

static void file_unknown(struct file_reader *fr, const char *name)
{
	const char *near = prefixd_suggest_option(name);

	if (near)
		refuse(fr, fr->line, "no such key: %s; did you mean %s in [%s]?", name, near,
		       prefixd_option_find(near)->section);
	else
		refuse(fr, fr->line, "no such key: %s", name);
}

/* The value that was read is whole. */
static void value_end(struct file_reader *fr)
{
	const struct prefixd_option *opt = fr->opt;
	char where[4200];

	fr->opt = NULL;
	if (!opt || fr->r < 0)
		return;
	snprintf(where, sizeof(where), "%s:%d", fr->path, fr->opt_line);
	fr->r = prefixd_option_set(fr->o, opt, fr->text, PREFIXD_FROM_FILE, where, fr->why,
				   fr->why_len);
}

/* Adds a line's part of a value, without its quotation marks. */
static void value_add(struct file_reader *fr, const char *part)
{
	size_t have = strlen(fr->text), n = strlen(part);

	if (part[0] == '"') {
		if (n < 2 || part[n - 1] != '"') {
			refuse(fr, fr->line, "a quotation mark begins the value and none ends it");
			return;
		}
		part++;
		n -= 2;
	}
	if (have + n >= sizeof(fr->text)) {
		refuse(fr, fr->line, "longer than any value may be");
		return;
	}
	memcpy(fr->text + have, part, n);
	fr->text[have + n] = '\0';
}

static void file_tenant(struct file_reader *fr, const char *name, const char *who)
{
	char where[4200], both[512];

	value_end(fr);
	if (fr->r < 0)
		return;
	snprintf(where, sizeof(where), "%s:%d", fr->path, fr->line);
	snprintf(both, sizeof(both), "%s=%s", name, who);
	fr->r = prefixd_option_set(fr->o, &prefixd_options_table[PREFIXD_OPTION_tenant], both,
				   PREFIXD_FROM_FILE, where, fr->why, fr->why_len);
}

static void file_more(struct file_reader *fr, const char *name, size_t len, const char *value)
{
	if (!fr->opt || strlen(fr->opt->name) != len || strncmp(fr->opt->name, name, len) != 0)
		refuse(fr, fr->line, "%s goes on with a value that does not stand before it", name);
	else
		value_add(fr, value);
}

static void file_value(struct file_reader *fr, const char *section, const char *name,
		       const char *value)
{
	const struct prefixd_option *opt = prefixd_option_find(name);
	size_t id;

	if (!opt || opt->type == PREFIXD_TENANT) {
		file_unknown(fr, name);
		return;
	}
	id = (size_t)(opt - prefixd_options_table);
	if (section[0] && strcmp(section, opt->section) != 0)
		refuse(fr, fr->line, "%s belongs in section [%s], not [%s]", name, opt->section,
		       section);
	else if (id == PREFIXD_OPTION_config)
		refuse(fr, fr->line, "config cannot be set in the file itself");
	else if (fr->seen[id])
		refuse(fr, fr->line, "%s is set twice, first in line %d", name, fr->seen[id]);
	if (fr->r < 0)
		return;
	fr->seen[id] = fr->opt_line = fr->line;
	fr->opt = opt;
	fr->text[0] = '\0';
	value_add(fr, value);
}

/* Return: nonzero goes on, as inih wants it. */
static int file_key(void *ctx, const char *section, const char *name, const char *value)
{
	struct file_reader *fr = ctx;
	size_t len = strlen(name);

	if (fr->r < 0)
		return 0;
	if (strcmp(section, "tenants") == 0) {
		file_tenant(fr, name, value);
	} else if (len > 0 && name[len - 1] == '+') {
		file_more(fr, name, len - 1, value);
	} else {
		value_end(fr);
		if (fr->r == 0)
			file_value(fr, section, name, value);
	}
	return fr->r == 0;
}

int prefixd_options_file(struct prefixd_options *o, const char *path, char *why, size_t why_len)
{
	struct file_reader *fr = calloc(1, sizeof(*fr));
	int r;

	if (!fr)
		return -ENOMEM;
	fr->o = o;
	fr->path = path;
	fr->why = why;
	fr->why_len = why_len;
	fr->f = fopen(path, "re");
	if (!fr->f) {
		snprintf(why, why_len, "config: cannot read %s: %s", path, strerror(errno));
		free(fr);
		return -EINVAL;
	}
	ini_allow_multiline = false; /* an indented key is a key, not more of the last value */
	r = ini_parse_stream(file_line, fr, file_key, fr);
	value_end(fr);
	if (fr->r == 0 && ferror(fr->f)) {
		snprintf(why, why_len, "config: cannot read %s: %s", path, strerror(errno));
		fr->r = -EINVAL;
	}
	fclose(fr->f);
	if (fr->r == 0 && r != 0)
		refuse(fr, r, "not a [section], a key = value or a # comment");
	r = fr->r;
	free(fr);
	return r;
}
