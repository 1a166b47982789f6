/*
 * options.c - see options.h.
 */
#include "clients/llama/options.h"

#include "clients/llama/say.h"

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum option_type {
	TYPE_TEXT,
	TYPE_NUMBER, /* min..max */
	TYPE_FACTOR, /* a finite decimal number */
	TYPE_MS,     /* min..max in ms; a number with ms or s behind it */
	TYPE_FLAG
};

struct option {
	const char *section; /* printed before it in --help; NULL: the one before goes on */
	const char *name;
	const char *value; /* how --help names it */
	enum option_type type;
	size_t offset;
	const char *text; /* the default as it would be written; NULL: none */
	uint64_t min, max;
	const char *help;
};

#define MAX_SALT     126 /* with a request's 128 and a length it is prefixd's 255 */
#define HELP_COLUMNS 80
#define AT(member)   offsetof(struct options, member)

static const struct option table[] = {
	{ "model", "model", "FILE", TYPE_TEXT, AT(model), NULL, 0, 0,
	  "the model, in GGUF; has to be given" },
	{ NULL, "model-name", "NAME", TYPE_TEXT, AT(model_name), NULL, 0, 0,
	  "its name in /v1/models and in prefixd (default: the file's, without folder and .gguf); "
	  "workers share blocks only under the same name" },
	{ NULL, "lora", "FILE", TYPE_TEXT, AT(lora), NULL, 0, 0,
	  "an adapter in GGUF, applied to every request" },
	{ NULL, "lora-scale", "X", TYPE_FACTOR, AT(lora_scale), "1", 0, 0,
	  "how strongly it is applied" },
	{ NULL, "libraries", "DIR", TYPE_TEXT, AT(libraries), NULL, 0, 0,
	  "load back ends of libggml from there (default: those the program is linked with)" },
	{ "serving", "listen", "ADDRESS", TYPE_TEXT, AT(listen), "127.0.0.1:8080", 0, 0,
	  "where to serve: 127.0.0.1:PORT, [::1]:PORT or unix:PATH; port 0 takes a free one, which "
	  "the first line on standard output names" },
	{ NULL, "slots", "N", TYPE_NUMBER, AT(slots), "4", 1, 256,
	  "requests that are served at a time, each with K/V of its own" },
	{ NULL, "queue", "N", TYPE_NUMBER, AT(queue), "64", 0, 100000,
	  "requests that may wait for a slot; more are refused with status 429" },
	{ NULL, "connections", "N", TYPE_NUMBER, AT(connections), "256", 1, 4096,
	  "connections at a time; more wait to be accepted" },
	{ NULL, "max-body", "BYTES", TYPE_NUMBER, AT(max_body), "8388608", 1024, 1u << 30,
	  "longest body of a request; longer ones are refused with status 413" },
	{ "decoding", "ctx", "N", TYPE_NUMBER, AT(ctx), "4096", 16, 1u << 24,
	  "tokens of prompt and answer together, for each slot" },
	{ NULL, "threads", "N", TYPE_NUMBER, AT(threads), NULL, 1, 512,
	  "threads that compute (default: as many as there are processors)" },
	{ NULL, "chunk", "N", TYPE_NUMBER, AT(chunk), "256", 1, 8192,
	  "tokens of a prompt that are computed in one step; between steps the other slots have "
	  "theirs" },
	{ NULL, "type-k", "TYPE", TYPE_TEXT, AT(type_k), "f16", 0, 0,
	  "how K is stored: f16, bf16, f32, q8_0, q5_1, q5_0, q4_1 or q4_0" },
	{ NULL, "type-v", "TYPE", TYPE_TEXT, AT(type_v), "f16", 0, 0, "how V is stored" },
	{ "prefixd", "socket", "PATH", TYPE_TEXT, AT(socket), NULL, 0, 0,
	  "the daemon's worker socket; off: work without it (default: $PREFIXD_SOCKET, else "
	  "/run/prefixd/prefixd.sock or $XDG_RUNTIME_DIR/prefixd.sock)" },
	{ NULL, "tenant", "NAME", TYPE_TEXT, AT(tenant), NULL, 0, 0,
	  "tenant to ask as (default: the daemon's first)" },
	{ NULL, "salt", "TEXT", TYPE_TEXT, AT(salt), NULL, 0, 0,
	  "share blocks only with workers that have the same; everyone on this machine can read it "
	  "in the list of processes" },
	{ NULL, "block-tokens", "N", TYPE_NUMBER, AT(block_tokens), "16", 1, 4096,
	  "tokens in a block" },
	{ NULL, "cache-deadline", "TIME", TYPE_MS, AT(cache_deadline), "250ms", 1, 60000,
	  "how long one call of the daemon may take before the worker computes instead" },
	{ NULL, "cache-load", "TIME", TYPE_MS, AT(cache_load), "2s", 0, 600000,
	  "how long blocks from lower tiers may be waited for" },
	{ NULL, "cache-wait", "TIME", TYPE_MS, AT(cache_wait), "2s", 0, 600000,
	  "how long blocks that another request is computing, here or at another worker, may be "
	  "waited for" },
	{ "and", "version", NULL, TYPE_FLAG, AT(version), NULL, 0, 0, "print the version" },
	{ NULL, "help", NULL, TYPE_FLAG, AT(help), NULL, 0, 0, "print this" },
};

#define N_OPTIONS (sizeof(table) / sizeof(table[0]))

static void *member(struct options *options, const struct option *option)
{
	return (char *)options + option->offset;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Decimal digits only.  Return: 0; -EINVAL. */
static int number_parse(const char *text, size_t len, uint64_t *ret)
{
	uint64_t n = 0;

	if (!len || len > 18)
		return -EINVAL;
	for (size_t i = 0; i < len; i++) {
		if (text[i] < '0' || text[i] > '9')
			return -EINVAL;
		n = n * 10 + (uint64_t)(text[i] - '0');
	}
	*ret = n;
	return 0;
}

static int set_number(struct options *options, const struct option *option, const char *value)
{
	uint64_t n;

	if (number_parse(value, strlen(value), &n) < 0 || n < option->min || n > option->max) {
		say("--%s has to be a number from %llu to %llu, not `%s`", option->name,
		    (unsigned long long)option->min, (unsigned long long)option->max, value);
		return -EINVAL;
	}
	*(uint64_t *)member(options, option) = n;
	return 0;
}

static int set_ms(struct options *options, const struct option *option, const char *value)
{
	size_t digits = strspn(value, "0123456789");
	uint64_t n, unit = strcmp(value + digits, "ms") == 0  ? 1
			   : strcmp(value + digits, "s") == 0 ? 1000
							      : 0;

	if (!unit || number_parse(value, digits, &n) < 0 || n > option->max / unit ||
	    n * unit < option->min) {
		say("--%s has to be a time from %llums to %llus, such as 500ms or 2s, not `%s`",
		    option->name, (unsigned long long)option->min,
		    (unsigned long long)option->max / 1000, value);
		return -EINVAL;
	}
	*(uint64_t *)member(options, option) = n * unit;
	return 0;
}

static int set_factor(struct options *options, const struct option *option, const char *value)
{
	char *end;
	double x = strtod(value, &end);

	if (end == value || *end || !isfinite(x)) {
		say("--%s has to be a number such as 0.5, not `%s`", option->name, value);
		return -EINVAL;
	}
	*(double *)member(options, option) = x;
	return 0;
}

static int set(struct options *options, const struct option *option, const char *value)
{
	switch (option->type) {
	case TYPE_NUMBER:
		return set_number(options, option, value);
	case TYPE_MS:
		return set_ms(options, option, value);
	case TYPE_FACTOR:
		return set_factor(options, option, value);
	case TYPE_FLAG:
		*(bool *)member(options, option) = true;
		return 0;
	case TYPE_TEXT:
	default:
		if (!*value) {
			say("--%s is empty", option->name);
			return -EINVAL;
		}
		*(const char **)member(options, option) = value;
		return 0;
	}
}

/* ---- the command line ------------------------------------------------------------------------ */

/* `name` ends at `len`: it may be followed by =VALUE. */
static const struct option *find(const char *name, size_t len)
{
	for (size_t i = 0; i < N_OPTIONS; i++)
		if (strlen(table[i].name) == len && memcmp(table[i].name, name, len) == 0)
			return &table[i];
	return NULL;
}

static int parse_one(struct options *options, int argc, char **argv, int *at)
{
	const char *arg = argv[*at], *name = arg + 2, *value = "";
	const struct option *option;
	size_t len;

	if (strcmp(arg, "-h") == 0)
		name = "help";
	else if (strcmp(arg, "-V") == 0)
		name = "version";
	else if (strncmp(arg, "--", 2) != 0) {
		say("`%s` is not an option; --help lists them", arg);
		return -EINVAL;
	}
	len = strcspn(name, "=");
	option = find(name, len);
	if (!option) {
		say("unknown option `%s`; --help lists them", arg);
		return -EINVAL;
	}
	if (option->type == TYPE_FLAG && name[len] == '=') {
		say("--%s takes no value", option->name);
		return -EINVAL;
	}
	if (option->type != TYPE_FLAG && name[len] == '=') {
		value = name + len + 1;
	} else if (option->type != TYPE_FLAG) {
		if (*at + 1 >= argc) {
			say("--%s needs a value: %s", option->name, option->value);
			return -EINVAL;
		}
		value = argv[++*at];
	}
	return set(options, option, value);
}

/* The processors this process may run on, as far as --threads can name them. */
static uint64_t processors(void)
{
	cpu_set_t set;
	int n = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;

	return n > 512 ? 512 : (uint64_t)n;
}

int options_parse(struct options *ret, int argc, char **argv)
{
	*ret = (struct options){ .threads = processors() };
	for (size_t i = 0; i < N_OPTIONS; i++)
		if (table[i].text && set(ret, &table[i], table[i].text) < 0)
			return -EINVAL;
	for (int i = 1; i < argc; i++)
		if (parse_one(ret, argc, argv, &i) < 0)
			return -EINVAL;
	if (ret->help || ret->version)
		return 0;
	if (!ret->model) {
		say("--model is missing; --help tells more");
		return -EINVAL;
	}
	if (ret->salt && strlen(ret->salt) > MAX_SALT) {
		say("--salt has %zu bytes, more than %d", strlen(ret->salt), MAX_SALT);
		return -EINVAL;
	}
	if (ret->chunk > ret->ctx)
		ret->chunk = ret->ctx; /* no prompt is longer */
	if (ret->block_tokens >= ret->ctx) {
		say("--block-tokens (%llu) has to be less than --ctx (%llu)",
		    (unsigned long long)ret->block_tokens, (unsigned long long)ret->ctx);
		return -EINVAL;
	}
	return 0;
}

/* ---- help ------------------------------------------------------------------------------------ */

/* Prints text in lines of HELP_COLUMNS with an indent. */
static void print_wrapped(const char *text, size_t indent)
{
	size_t column = indent;

	printf("%*s", (int)indent, "");
	while (*text) {
		size_t len = strcspn(text, " ");

		if (column > indent && column + 1 + len > HELP_COLUMNS) {
			printf("\n%*s", (int)indent, "");
			column = indent;
		} else if (column > indent) {
			putchar(' ');
			column++;
		}
		(void)fwrite(text, 1, len, stdout);
		column += len;
		text += len;
		text += strspn(text, " ");
	}
	putchar('\n');
}

void options_print_help(void)
{
	printf("usage: prefixd-llama --model FILE [--name value]...\n\n");
	print_wrapped(
		"Serves a model of llama.cpp as OpenAI does (/v1/completions and "
		"/v1/chat/completions) and keeps the K/V of prompts in prefixd, where the other "
		"workers of this machine find it. Whatever prefixd does or does not do, requests "
		"are answered: in doubt the worker computes.",
		0);
	for (size_t i = 0; i < N_OPTIONS; i++) {
		char help[512];

		if (table[i].section)
			printf("\n[%s]\n", table[i].section);
		printf("  --%s%s%s\n", table[i].name, table[i].value ? " " : "",
		       table[i].value ? table[i].value : "");
		if (table[i].text)
			snprintf(help, sizeof(help), "%s (default: %s)", table[i].help,
				 table[i].text);
		else
			snprintf(help, sizeof(help), "%s", table[i].help);
		print_wrapped(help, 6);
	}
	printf("\n");
	print_wrapped(
		"SIGTERM and SIGINT: no new requests; running ones have 4 seconds to end. A "
		"second one ends them at once. Exit status: 0 after a signal, 1 when it could "
		"not serve, 2 for a wrong command line.",
		0);
}
