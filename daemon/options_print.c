/*
 * options_print.c - the options table as --help and as a configuration file.
 */
#include "daemon/options_internal.h"

#define COLUMNS    80
#define LINE_VALUE 120 /* bytes of a value in one line; inih takes 198 in all */
#define LINE_USERS 6

const char *prefixd_options_show(const struct prefixd_options *o, enum prefixd_option_id id)
{
	return o->values[id].text;
}

void prefixd_tenant_print(const struct prefixd_tenant *t, char *out, size_t out_len)
{
	size_t n = 0;

	if (t->any_uid) {
		snprintf(out, out_len, "any");
		return;
	}
	out[0] = '\0';
	for (uint32_t i = 0; i < t->n_uids && n < out_len; i++)
		n += (size_t)snprintf(out + n, out_len - n, "%suid:%u", i ? "," : "", t->uids[i]);
}

static void section_print(const char *last, const char *section, FILE *f)
{
	if (!last || strcmp(last, section) != 0)
		fprintf(f, "%s[%s]\n", last ? "\n" : "", section);
}

/* So that the file's reader gives the same text back: see options_file.c. */
static void value_print(const char *name, const char *text, FILE *f)
{
	size_t len = strlen(text);
	bool blanks = len > 0 &&
		      (strchr(" \t\v\f\r", text[0]) || strchr(" \t\v\f\r", text[len - 1]));

	if (len <= LINE_VALUE && !blanks && text[0] != '"') {
		fprintf(f, "%s = %s\n", name, text);
		return;
	}
	fprintf(f, "%s = \"%.*s\"\n", name, LINE_VALUE, text);
	for (; len > LINE_VALUE; len = strlen(text)) {
		text += LINE_VALUE;
		fprintf(f, "%s+ = \"%.*s\"\n", name, LINE_VALUE, text);
	}
}

/* A name that comes again adds users. */
static void tenant_lines_print(const struct prefixd_tenant *t, FILE *f)
{
	struct prefixd_tenant part = *t;
	char who[16 * LINE_USERS];

	for (uint32_t i = 0; i == 0 || (!t->any_uid && i < t->n_uids); i += LINE_USERS) {
		part.n_uids = t->n_uids - i < LINE_USERS ? t->n_uids - i : LINE_USERS;
		memcpy(part.uids, t->uids + i, part.n_uids * sizeof(part.uids[0]));
		prefixd_tenant_print(&part, who, sizeof(who));
		fprintf(f, "%s = %s\n", t->name, who);
	}
}

void prefixd_options_print(const struct prefixd_options *o, FILE *f)
{
	const char *section = NULL;

	for (size_t i = 0; i < PREFIXD_N_OPTIONS; i++) {
		const struct prefixd_option *opt = &prefixd_options_table[i];

		section_print(section, opt->section, f);
		section = opt->section;
		if (i == PREFIXD_OPTION_config) { /* cannot be in a file; said as a comment */
			if (o->config[0])
				fprintf(f, "# read from %s\n", o->config);
			continue;
		}
		fprintf(f, "# %s\n", o->values[i].where);
		if (opt->type != PREFIXD_TENANT)
			value_print(opt->name, prefixd_options_show(o, (enum prefixd_option_id)i),
				    f);
		for (uint32_t t = 0; opt->type == PREFIXD_TENANT && t < o->n_tenants; t++)
			tenant_lines_print(&o->tenants[t], f);
	}
}

/* Words of `text`, lines broken at COLUMNS, each line indented. */
static void wrapped_print(const char *text, int indent, FILE *f)
{
	int col = 0;

	while (*(text += strspn(text, " "))) {
		int n = (int)strcspn(text, " ");

		if (col > 0 && col + 1 + n > COLUMNS) {
			fputc('\n', f);
			col = 0;
		}
		if (col == 0)
			col = fprintf(f, "%*s%.*s", indent, "", n, text);
		else
			col += fprintf(f, " %.*s", n, text);
		text += n;
	}
	fputc('\n', f);
}

void prefixd_options_help(FILE *f)
{
	const char *section = NULL;

	fputs("usage: prefixd [--name value]...\n\n", f);
	wrapped_print(
		"Keeps the K/V blocks of shared prompt prefixes for all inference workers of "
		"this machine. Every option may also be a key of the configuration file, in "
		"the section named here, or an environment variable: --pool-blocks is "
		"PREFIXD_POOL_BLOCKS. Flags beat the environment, which beats the file. Sizes "
		"are written 8GiB, times 30s or 500ms.",
		0, f);
	fputs("\n  --check-config          check all settings and leave\n"
	      "  --print-config          print the settings in force, as a file, and leave\n"
	      "  -h, --help              this text\n"
	      "  -V, --version           the version\n",
	      f);
	for (size_t i = 0; i < PREFIXD_N_OPTIONS; i++) {
		const struct prefixd_option *opt = &prefixd_options_table[i];
		char text[512];

		if (!section || strcmp(section, opt->section) != 0)
			fprintf(f, "\n[%s]\n", opt->section);
		section = opt->section;
		fprintf(f, "  --%s %s\n", opt->name, opt->hint);
		snprintf(text, sizeof(text), "%s (default: %s%s)", opt->help,
			 opt->def[0] ? opt->def : "empty",
			 opt->flags & PREFIXD_OPT_RELOAD ? "; SIGHUP applies it" : "");
		wrapped_print(text, 6, f);
	}
}
