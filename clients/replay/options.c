/*
 * options.c - the table of options and the two ways to set them.
 *
 * Each option remembers whether the command line set it; the file is read afterwards and leaves
 * those alone.  What cannot be right is refused with the reason, never corrected silently.
 */
#include "clients/replay/options.h"

#include "clients/replay/util.h"
#include "clients/replay/workload.h"

#include <errno.h>
#include <ini.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum option_type {
	TYPE_STRING,
	TYPE_NUMBER, /* min..max */
	TYPE_CHOICE, /* words separated by '|'; the value is the word's position */
	TYPE_FLAG
};

struct option {
	const char *name;
	enum option_type type;
	size_t offset;
	const char *text; /* default; choices: all words, the default first */
	uint64_t min, max;
	const char *value; /* how --help names it */
	const char *help;
};

#define HELP_COLUMNS 80

#define AT(member) offsetof(struct replay_options, member)

static const struct option table[] = {
	{ "socket", TYPE_STRING, AT(socket), NULL, 0, 0, "PATH",
	  "the daemon's worker socket (default: $PREFIXD_SOCKET, else "
	  "/run/prefixd/prefixd.sock or $XDG_RUNTIME_DIR/prefixd.sock)" },
	{ "admin-socket", TYPE_STRING, AT(admin_socket), NULL, 0, 0, "PATH",
	  "ask the daemon there what it moved between its tiers meanwhile" },
	{ "trace", TYPE_STRING, AT(trace), NULL, 0, 0, "FILE",
	  "replay this file of JSON lines, zstd-compressed or plain" },
	{ "workload", TYPE_STRING, AT(workload), NULL, 0, 0, "chat|rag|agent",
	  "or replay requests made from --seed" },
	{ "seed", TYPE_NUMBER, AT(seed), "1", 0, UINT64_MAX, "N",
	  "of the workload, and of the names that blocks get in digest mode" },
	{ "requests", TYPE_NUMBER, AT(requests), "0", 0, 100000000, "N",
	  "how many requests a workload has (0: the kind's own number)" },
	{ "limit", TYPE_NUMBER, AT(limit), "0", 0, UINT64_MAX, "N",
	  "only the first N requests (0: all)" },
	{ "block-tokens", TYPE_NUMBER, AT(block_tokens), "512", 1, 65536, "N",
	  "tokens in a block; a trace of block ids has its own, fixed number" },
	{ "block-bytes", TYPE_NUMBER, AT(block_bytes), "4096", 1, 1u << 30, "N",
	  "bytes that a block takes in the pool, a number without unit" },
	{ "workers", TYPE_NUMBER, AT(workers), "1", 1, REPLAY_MAX_WORKERS, "N",
	  "worker processes" },
	{ "order", TYPE_CHOICE, AT(order), "trace|concurrent", 0, 0, NULL,
	  "trace: one request after the other, each on the next worker; concurrent: each worker "
	  "takes "
	  "the next request as soon as it is free" },
	{ "single-flight", TYPE_CHOICE, AT(single_flight), "on|off", 0, 0, NULL,
	  "in concurrent order, wait for what another worker computes, or compute it too" },
	{ "promote", TYPE_CHOICE, AT(promote), "on|off", 0, 0, NULL,
	  "have blocks of lower tiers brought up and wait for them, or compute them" },
	{ "load-ms", TYPE_NUMBER, AT(load_ms), "10000", 1, 3600000, "N",
	  "how long bringing up the blocks of one request may take" },
	{ "key-mode", TYPE_CHOICE, AT(key_mode), "auto|digest|tokens", 0, 0, NULL,
	  "what blocks are named by: digests, or token ids (made up where a trace has none); auto: "
	  "tokens for a trace that has them, else digests" },
	{ "verify", TYPE_CHOICE, AT(verify), "all|none", 0, 0, NULL,
	  "compare every byte of every hit block with what it has to be, or none" },
	{ "model", TYPE_STRING, AT(model), NULL, 0, 0, "NAME",
	  "model name of the namespace (default: the trace's or workload's name)" },
	{ "tenant", TYPE_STRING, AT(tenant), NULL, 0, 0, "NAME",
	  "tenant to ask as (default: the first one)" },
	{ "deadline-ms", TYPE_NUMBER, AT(deadline_ms), "120000", 1, 86400000, "N",
	  "how long one call may take; the first one waits for the pool to be made" },
	{ "progress", TYPE_CHOICE, AT(progress), "auto|off", 0, 0, NULL,
	  "auto: a progress bar and the table at the end, where stderr is a terminal" },
	{ "json", TYPE_STRING, AT(json), NULL, 0, 0, "-|FILE", "write the results as JSON" },
	{ "hits", TYPE_STRING, AT(hits), NULL, 0, 0, "FILE",
	  "write the number of hit blocks of each request, one a line" },
	{ "characteristics", TYPE_FLAG, AT(characteristics), NULL, 0, 0, NULL,
	  "no replay: print the shape of the trace or workload, and what an unbounded cache "
	  "reaches" },
	{ "capacity", TYPE_STRING, AT(capacity), NULL, 0, 0, "N[,N...]",
	  "with --characteristics: also what exact leaf LRU reaches with N blocks" },
	{ "config", TYPE_STRING, AT(config), NULL, 0, 0, "FILE",
	  "read options from FILE, lines of `name = value`" },
	{ "version", TYPE_FLAG, AT(version), NULL, 0, 0, NULL, "print the version" },
	{ "help", TYPE_FLAG, AT(help), NULL, 0, 0, NULL, "print this" },
};

#define N_OPTIONS replay_array_size(table)

struct parser {
	struct replay_options *options;
	bool set[N_OPTIONS]; /* by the command line */
	const char *where;   /* "the command line", or the file's name */
	int r;
};

static void *member(struct replay_options *options, const struct option *option)
{
	return (char *)options + option->offset;
}

void replay_options_init(struct replay_options *options)
{
	*options = (struct replay_options){ 0 };
	for (size_t i = 0; i < N_OPTIONS; i++)
		if (table[i].type == TYPE_NUMBER)
			*(uint64_t *)member(options, &table[i]) = strtoull(table[i].text, NULL, 10);
}

void replay_options_deinit(struct replay_options *options)
{
	for (size_t i = 0; i < N_OPTIONS; i++)
		if (table[i].type == TYPE_STRING)
			free(*(char **)member(options, &table[i]));
	*options = (struct replay_options){ 0 };
}

/* Edits (insert, delete, replace) that make a of b; long words count as far apart. */
static size_t distance(const char *a, const char *b)
{
	size_t row[32];
	size_t n = strlen(b);

	if (n >= replay_array_size(row))
		return SIZE_MAX;
	for (size_t k = 0; k <= n; k++)
		row[k] = k;
	for (size_t i = 0; a[i]; i++) {
		size_t diagonal = row[0];

		row[0] = i + 1;
		for (size_t k = 1; k <= n; k++) {
			size_t best = diagonal + (a[i] != b[k - 1]);

			diagonal = row[k];
			best = best < row[k] + 1 ? best : row[k] + 1;
			row[k] = best < row[k - 1] + 1 ? best : row[k - 1] + 1;
		}
	}
	return row[n];
}

static const struct option *find(const struct parser *p, const char *name)
{
	const struct option *nearest = NULL;
	size_t least = 3; /* two edits off is a slip of the fingers; more is another word */

	for (size_t i = 0; i < N_OPTIONS; i++) {
		size_t d = distance(name, table[i].name);

		if (d == 0)
			return &table[i];
		if (d < least) {
			least = d;
			nearest = &table[i];
		}
	}
	if (nearest)
		replay_say("%s: unknown option `%s`; did you mean `%s`?", p->where, name,
			   nearest->name);
	else
		replay_say("%s: unknown option `%s`; --help lists them", p->where, name);
	return NULL;
}

static int set_number(const struct parser *p, const struct option *option, const char *value)
{
	char *end;
	unsigned long long n;

	errno = 0;
	n = strtoull(value, &end, 10);
	if (value[0] < '0' || value[0] > '9' || *end || errno || n < option->min ||
	    n > option->max) {
		replay_say("%s: %s has to be a number from %llu to %llu, not `%s`", p->where,
			   option->name, (unsigned long long)option->min,
			   (unsigned long long)option->max, value);
		return -EINVAL;
	}
	*(uint64_t *)member(p->options, option) = n;
	return 0;
}

static int set_choice(const struct parser *p, const struct option *option, const char *value)
{
	const char *word = option->text;

	for (uint64_t i = 0;; i++) {
		size_t len = strcspn(word, "|");

		if (strlen(value) == len && memcmp(word, value, len) == 0) {
			*(uint64_t *)member(p->options, option) = i;
			return 0;
		}
		if (!word[len])
			break;
		word += len + 1;
	}
	replay_say("%s: %s has to be one of %s, not `%s`", p->where, option->name, option->text,
		   value);
	return -EINVAL;
}

/* value NULL: none was given, right for a flag only. */
static int set(const struct parser *p, const struct option *option, const char *value)
{
	char **string = member(p->options, option);
	bool *flag = member(p->options, option);

	if (option->type == TYPE_FLAG) {
		if (value && strcmp(value, "true") != 0 && strcmp(value, "false") != 0) {
			replay_say("%s: %s is true or false, not `%s`", p->where, option->name,
				   value);
			return -EINVAL;
		}
		*flag = !value || strcmp(value, "true") == 0;
		return 0;
	}
	if (!value || !*value) {
		replay_say("%s: %s needs a value", p->where, option->name);
		return -EINVAL;
	}
	if (option->type == TYPE_NUMBER)
		return set_number(p, option, value);
	if (option->type == TYPE_CHOICE)
		return set_choice(p, option, value);
	free(*string);
	*string = strdup(value);
	return *string ? 0 : -ENOMEM;
}

static int parse_line(struct parser *p, int argc, char *const argv[])
{
	for (int i = 1; i < argc; i++) {
		const struct option *option;
		const char *value;
		char name[64];
		int r;

		if (strncmp(argv[i], "--", 2) != 0) {
			replay_say("`%s` is no option; options begin with --", argv[i]);
			return -EINVAL;
		}
		value = strchr(argv[i], '=');
		(void)snprintf(name, sizeof(name), "%.*s", (int)(value ? value - argv[i] - 2 : 63),
			       argv[i] + 2);
		option = find(p, name);
		if (!option)
			return -EINVAL;
		if (value)
			value++;
		else if (option->type != TYPE_FLAG && i + 1 < argc)
			value = argv[++i];
		r = set(p, option, value);
		if (r < 0)
			return r;
		p->set[option - table] = true;
	}
	return 0;
}

/* One line of the file; inih wants 1 for "go on". */
static int take_pair(void *ctx, const char *section, const char *name, const char *value)
{
	struct parser *p = ctx;
	const struct option *option;

	if (p->r < 0)
		return 1;
	if (*section && strcmp(section, "replay") != 0) {
		replay_say("%s: unknown section [%s]; options stand in [replay] or before any",
			   p->where, section);
		p->r = -EINVAL;
		return 1;
	}
	option = find(p, name);
	if (!option || strcmp(name, "config") == 0) {
		if (option)
			replay_say("%s: a file cannot name another one", p->where);
		p->r = -EINVAL;
	} else if (!p->set[option - table]) {
		p->r = set(p, option, value);
	}
	return 1;
}

static int parse_file(struct parser *p)
{
	int r;

	p->where = p->options->config;
	r = ini_parse(p->options->config, take_pair, p);
	if (r == -1) {
		replay_say("cannot read %s: %s", p->options->config, strerror(errno));
		return -EINVAL;
	}
	if (p->r == 0 && r > 0) {
		replay_say("%s:%d: not a line of the form `name = value`", p->options->config, r);
		return -EINVAL;
	}
	return p->r;
}

static int parse_capacities(struct replay_options *options)
{
	const char *s = options->capacity;

	while (s && *s) {
		char *end;
		unsigned long long n = strtoull(s, &end, 10);

		if (end == s || n == 0 || (*end && *end != ',') ||
		    options->n_capacities == REPLAY_MAX_CAPACITIES) {
			replay_say(
				"capacity has to be up to %d numbers from 1 on, with commas, not "
				"`%s`",
				REPLAY_MAX_CAPACITIES, options->capacity);
			return -EINVAL;
		}
		options->capacities[options->n_capacities++] = n;
		s = *end ? end + 1 : end;
	}
	return 0;
}

/* What no single option can say. */
static int check(const struct replay_options *options)
{
	bool known = false;

	if (!options->trace == !options->workload) {
		replay_say("give either --trace FILE or --workload chat|rag|agent");
		return -EINVAL;
	}
#define X(sym, low) known = known || (options->workload && strcmp(options->workload, #low) == 0);
	REPLAY_WORKLOADS(X)
#undef X
	if (options->workload && !known) {
		replay_say("workload has to be one of chat|rag|agent, not `%s`", options->workload);
		return -EINVAL;
	}
	if (options->trace && options->requests) {
		replay_say("requests is for workloads; a trace is cut with limit");
		return -EINVAL;
	}
	if (options->capacity && !options->characteristics) {
		replay_say("capacity goes with characteristics; a replay has the daemon's pool");
		return -EINVAL;
	}
	return 0;
}

int replay_options_parse(struct replay_options *options, int argc, char *const argv[])
{
	struct parser p = { .options = options, .where = "command line" };
	int r = parse_line(&p, argc, argv);

	if (r == 0 && options->config)
		r = parse_file(&p);
	if (r < 0 || options->help || options->version)
		return r;
	r = parse_capacities(options);
	return r < 0 ? r : check(options);
}

/* Words up to the last column of a terminal, indented; *column moves on. */
static void print_wrapped(const char *text, size_t *column)
{
	while (*text) {
		size_t len = strcspn(text, " ");

		if (*column + len + 1 > HELP_COLUMNS) {
			printf("\n       ");
			*column = 7;
		}
		printf(" %.*s", (int)len, text);
		*column += len + 1;
		text += len + (text[len] == ' ');
	}
}

void replay_options_help(void)
{
	printf("prefixd-replay: replay requests against prefixd, check every byte of each hit\n\n"
	       "  prefixd-replay --socket PATH (--trace FILE | --workload KIND) [options]\n"
	       "  prefixd-replay --characteristics (--trace FILE | --workload KIND)\n\n");
	for (size_t i = 0; i < N_OPTIONS; i++) {
		const struct option *o = &table[i];
		const char *value = o->type == TYPE_CHOICE ? o->text : o->value;
		size_t column = HELP_COLUMNS;
		char text[64] = "";

		printf("  --%s%s%s", o->name, value ? " " : "", value ? value : "");
		print_wrapped(o->help, &column);
		if ((o->type == TYPE_NUMBER && strcmp(o->text, "0") != 0) || o->type == TYPE_CHOICE)
			(void)snprintf(text, sizeof(text), "(default %.*s)",
				       (int)strcspn(o->text, "|"), o->text);
		print_wrapped(text, &column);
		printf("\n");
	}
	printf("\nEvery option may also stand in the file of --config.\n"
	       "Exit status: 0 when nothing was corrupt and no call failed, 1 otherwise, 2 for a\n"
	       "wrong option, file or trace.\n");
}
