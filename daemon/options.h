/*
 * options.h - every setting of the daemon, declared once.
 *
 * The table (options_table.h) is the only place that knows an option: flag, environment variable,
 * key of the configuration file, --help, --print-config, the admin socket's `config` and the struct
 * that the daemon reads all come from it.  Defaults are text and take the same way as an operator's
 * text.
 *
 * What it guarantees.  A flag beats the environment, which beats the file, which beats the default.
 * Every value of every source is checked, also one that is overridden.  Nothing unknown is skipped:
 * unknown flags, keys and sections are refused with their place and, where one is near, a name that
 * exists.  A failed load leaves nothing behind.
 *
 * What it relies on.  argv and the environment stay unchanged (a reload reads them again).
 */
#pragma once

#include "daemon/engine.h"
#include "daemon/options_table.h"

#include <stdio.h>

#define PREFIXD_AUTO        UINT64_MAX /* the value "auto" of a COUNT, SIZE or RANGE */
#define PREFIXD_TENANTS_MAX 256
#define PREFIXD_WHY_LEN     512

/* How a value is written, and so what its field holds. */
enum prefixd_option_type {
	PREFIXD_TEXT,   /* const char * */
	PREFIXD_COUNT,  /* a plain number */
	PREFIXD_SIZE,   /* bytes: 4096, 64KiB, 8GiB */
	PREFIXD_TIME,   /* nanoseconds: 500ms, 30s, 2h; 0 needs no unit */
	PREFIXD_MODE,   /* octal file mode */
	PREFIXD_RANGE,  /* LOW:HIGH or one number: LOW | HIGH << 32 */
	PREFIXD_CHOICE, /* position in `hint`, words parted by | */
	PREFIXD_TENANT, /* NAME=any or NAME=uid:N[,uid:N]; repeatable */
};

enum {
	PREFIXD_OPT_RELOAD = 1,  /* SIGHUP applies it; others need a restart */
	PREFIXD_OPT_AUTO = 2,    /* "auto" is a value too */
	PREFIXD_OPT_HTTP = 4,    /* a TEXT that daemon/http.h checks */
	PREFIXD_OPT_REDIS = 8,   /* a TEXT that daemon/redis.h checks */
	PREFIXD_OPT_DEVICE = 16, /* a TEXT that names a back end of gpu/ */
};

enum prefixd_option_id {
#define X(field, ...) PREFIXD_OPTION_##field,
	PREFIXD_OPTIONS(X)
#undef X
	PREFIXD_N_OPTIONS
};

struct prefixd_option {
	const char *name;
	const char *section;
	enum prefixd_option_type type;
	const char *def;
	uint64_t min, max; /* TEXT: max is the longest length */
	unsigned flags;
	const char *hint;
	const char *help;
	size_t offset; /* of its field in struct prefixd_options */
};

extern const struct prefixd_option prefixd_options_table[PREFIXD_N_OPTIONS];

/* Where a value came from; a later one beats an earlier one. */
enum prefixd_source {
	PREFIXD_FROM_DEFAULT,
	PREFIXD_FROM_FILE,
	PREFIXD_FROM_ENV,
	PREFIXD_FROM_FLAG
};

enum prefixd_command {
	PREFIXD_RUN,
	PREFIXD_CHECK_CONFIG,
	PREFIXD_PRINT_CONFIG,
	PREFIXD_HELP,
	PREFIXD_VERSION
};

struct prefixd_options {
#define X(field, ctype, ...) ctype field;
	PREFIXD_OPTIONS(X)
#undef X
	struct {
		char *text;
		enum prefixd_source source;
		char *where; /* "default", "FILE:LINE", "environment NAME", "flag --NAME" */
	} values[PREFIXD_N_OPTIONS];
	struct prefixd_tenant tenants[PREFIXD_TENANTS_MAX];
	uint32_t n_tenants;
	enum prefixd_command command;
	char unknown_env[64]; /* a PREFIXD_ variable that means nothing; empty: none */
};

/*
 * Reads all sources.  Return: 0; -EINVAL with a sentence in `why` (what, where, and what would be
 * right); -ENOMEM.  Free with prefixd_options_free().
 */
radix_nodiscard int prefixd_options_load(struct prefixd_options **ret_options, int argc,
					 char *const *argv, char *const *envp, char *why,
					 size_t why_len);
struct prefixd_options *prefixd_options_free(struct prefixd_options *o);

/* The text that is in force; no secret is an option. */
const char *prefixd_options_show(const struct prefixd_options *o, enum prefixd_option_id id);
/* "any" or "uid:1,uid:2" */
void prefixd_tenant_print(const struct prefixd_tenant *t, char *out, size_t out_len);
/* A configuration file that says what is in force, with where each value came from. */
void prefixd_options_print(const struct prefixd_options *o, FILE *f);
void prefixd_options_help(FILE *f);
/* What "auto" stands for, of the options below the pools. */
uint32_t prefixd_options_host_blocks(const struct prefixd_options *o);
uint32_t prefixd_options_index_blocks(const struct prefixd_options *o);
void prefixd_options_watermark(const struct prefixd_options *o, uint32_t *ret_low,
			       uint32_t *ret_high);
/* Workers write in memory of their own, and the daemon copies (pool-write). */
bool prefixd_options_staged(const struct prefixd_options *o);
/* Is there a tier below the pools? */
bool prefixd_options_tiers(const struct prefixd_options *o);
void prefixd_options_limits(const struct prefixd_options *o, struct prefixd_limits *ret_limits);
