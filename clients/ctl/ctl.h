/*
 * ctl.h - what the files of prefixctl share.
 *
 *     main.c     commands, arguments, exit codes
 *     request.c  arguments -> the JSON request
 *     table.c    numbers and tables for people, at most 80 columns wide
 *     show.c     replies for people: status, stat
 *     lists.c    replies for people: the other commands
 *     watch.c    the stream of events
 *     holder.c   who keeps the memory of a daemon that is gone
 *
 * Text that came from the daemon may hold names that a worker chose: it goes to a terminal only
 * through ctl_clean().
 */
#pragma once

#include "clients/c/prefixd.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum ctl_exit {
	CTL_OK = 0,
	CTL_ERROR = 1,       /* the daemon refused, or something here went wrong */
	CTL_USAGE = 2,       /* the command line is wrong */
	CTL_UNREACHABLE = 3, /* no daemon answers */
	CTL_FINDINGS = 4     /* it answered, and what it found is bad */
};

/* symbol, name, short name or 0, value's name or NULL, help */
#define CTL_OPTIONS(X)                                                                          \
	X(FORCE, "force", 0, NULL, "although a daemon is served")                               \
	X(ADMIN_SOCKET, "admin-socket", 0, "PATH", "the daemon's admin socket; see below")      \
	X(JSON, "json", 0, NULL, "print the daemon's JSON")                                     \
	X(TIMEOUT, "timeout", 0, "TIME", "wait at most so long for an answer (10)")             \
	X(YES, "yes", 'y', NULL, "do it without asking")                                        \
	X(INTERVAL, "interval", 'i', "TIME", "one line per interval")                           \
	X(COUNT, "count", 'n', "N", "stop after N lines")                                       \
	X(GROUP, "group", 0, "N", "only this pool group")                                       \
	X(NAMESPACE, "namespace", 0, "N|MODEL", "by number, or by model where only one has it") \
	X(ALL, "all", 0, NULL, "every namespace")                                               \
	X(LINES, "lines", 0, "N", "at most N lines (200)")                                      \
	X(OLDER, "older", 0, "TIME", "only those held so long: 30s, 5m, 1h")                    \
	X(SORT, "sort", 0, "age|size", "which come first (age)")                                \
	X(TENANT, "tenant", 0, "NAME", "tenant (the first one)")                                \
	X(SALT, "salt", 0, "TEXT", "salt (none)")                                               \
	X(SALT_HEX, "salt-hex", 0, "HEX", "salt, as hex")                                       \
	X(TOKENS, "tokens", 0, "N,N,...", "token ids of the prompt, or")                        \
	X(TOKENS_FILE, "tokens-file", 0, "FILE", "the same from a file (-: stdin), or")         \
	X(DIGESTS_FILE, "digests-file", 0, "FILE", "its block digests in hex; - is stdin")      \
	X(BLOCKS, "blocks", 0, "N", "how many blocks")

enum ctl_option {
#define X(sym, name, letter, value, help) CTL_OPT_##sym,
	CTL_OPTIONS(X)
#undef X
	CTL_N_OPTIONS
};

struct ctl;

struct ctl_command {
	const char *name;
	const char *op;      /* of the request; NULL: handled here */
	const char *operand; /* name of the optional operand, or NULL */
	uint32_t options;    /* bits of enum ctl_option beside the general ones */
	bool changes;        /* wants --yes, or a person who says so */
	const char *help;
	enum ctl_exit (*show)(const struct ctl *ctl, const json_t *reply); /* NULL: "ok" */
};

struct ctl {
	const struct ctl_command *command;
	const char *values[CTL_N_OPTIONS]; /* NULL: not given; "" for flags */
	const char *operand;
	pfx_client *client;
};

/* ---- main.c ---------------------------------------------------------------------------------- */

/* The daemon's admin socket, malloc()ed; NULL without memory. */
char *ctl_socket_path(const char *given);
/* --timeout, or 10 seconds; false with a message. */
bool ctl_timeout(const struct ctl *ctl, uint32_t *ret_ms);
void ctl_print_json(const json_t *reply);

/* ---- holder.c -------------------------------------------------------------------------------- */

enum ctl_exit ctl_holder(const struct ctl *ctl);

/* ---- request.c ------------------------------------------------------------------------------- */

/* The request of a command; NULL with a message on stderr. */
json_t *ctl_request_new(const struct ctl *ctl);
/* A number out of text, all of it.  Return: false when it is none or above max. */
bool ctl_parse_u64(const char *text, uint64_t max, uint64_t *ret_n);
bool ctl_parse_seconds(const char *text, double *ret_s);

/* ---- table.c --------------------------------------------------------------------------------- */

#define CTL_COLUMNS 80

/* Texts for people live in a ring of buffers: valid until 32 further ones were made. */
const char *ctl_bytes(uint64_t n);       /* "4.0 GiB" */
const char *ctl_count(uint64_t n);       /* "1,048,576" */
const char *ctl_brief(uint64_t n);       /* "357k": for columns, at most 5 characters or so */
const char *ctl_percent(double ratio);   /* "61.3 %" */
const char *ctl_age(double seconds);     /* "3h 12m" */
const char *ctl_clean(const char *text); /* control characters as '?', at most 200 bytes */
const char *ctl_format(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Members of a reply; 0, "" or NULL-free defaults when they are missing. */
uint64_t ctl_u64(const json_t *object, const char *name);
double ctl_real(const json_t *object, const char *name);
const char *ctl_str(const json_t *object, const char *name); /* cleaned */
bool ctl_bool(const json_t *object, const char *name);

enum {
	CTL_TABLE_COLUMNS = 12
};

/* Columns named "<NAME" are set left, others right; the widest left one gives way to 80 columns. */
struct ctl_table {
	uint32_t n_columns, n_rows, cap;
	const char *titles[CTL_TABLE_COLUMNS];
	char *(*rows)[CTL_TABLE_COLUMNS];
};

void ctl_table_init(struct ctl_table *t, const char *const titles[], uint32_t n);
void ctl_table_row(struct ctl_table *t, const char *const cells[]);
/* Prints it behind `heading` (nothing at all when it has no rows) and frees it. */
void ctl_table_print(struct ctl_table *t, const char *heading);
/* "name n, name n": the members of an object that are not 0, wrapped behind a label. */
void ctl_print_members(const char *label, const json_t *object);
/* A label of fixed width, then text. */
void ctl_line(const char *label, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- show.c, lists.c ------------------------------------------------------------------------- */

enum ctl_exit ctl_show_ping(const struct ctl *ctl, const json_t *reply);
enum ctl_exit ctl_show_status(const struct ctl *ctl, const json_t *reply);
void ctl_show_stat_title(void);
void ctl_show_stat_line(const json_t *before, const json_t *now);
enum ctl_exit ctl_show_tree(const struct ctl *ctl, const json_t *reply);
enum ctl_exit ctl_show_pins(const struct ctl *ctl, const json_t *reply);
enum ctl_exit ctl_show_explain(const struct ctl *ctl, const json_t *reply);
enum ctl_exit ctl_show_evict(const struct ctl *ctl, const json_t *reply);
enum ctl_exit ctl_show_flush(const struct ctl *ctl, const json_t *reply);
enum ctl_exit ctl_show_invalidate(const struct ctl *ctl, const json_t *reply);
enum ctl_exit ctl_show_audit(const struct ctl *ctl, const json_t *reply);
enum ctl_exit ctl_show_config(const struct ctl *ctl, const json_t *reply);
enum ctl_exit ctl_show_level(const struct ctl *ctl, const json_t *reply);
enum ctl_exit ctl_show_drain(const struct ctl *ctl, const json_t *reply);

/* ---- watch.c --------------------------------------------------------------------------------- */

/* Subscribes on ctl->client and prints until there is enough, or the daemon is gone. */
enum ctl_exit ctl_watch(struct ctl *ctl);
