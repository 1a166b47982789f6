/*
 * options.h - every setting of the daemon, declared once.
 *
 * The table below is the only place that knows an option: flag, environment variable, key of the
 * configuration file, --help, --print-config, the admin socket's `config` and the struct that the
 * daemon reads all come from it.  Defaults are text and take the same way as an operator's text.
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

#include <stdio.h>

#define PREFIXD_AUTO        UINT64_MAX /* the value "auto" of a COUNT or SIZE */
#define PREFIXD_TENANTS_MAX 256
#define PREFIXD_WHY_LEN     512

/* How a value is written, and so what its field holds. */
enum prefixd_option_type {
	PREFIXD_TEXT,   /* const char * */
	PREFIXD_COUNT,  /* a plain number */
	PREFIXD_SIZE,   /* bytes: 4096, 64KiB, 8GiB */
	PREFIXD_TIME,   /* nanoseconds: 500ms, 30s, 2h; 0 needs no unit */
	PREFIXD_MODE,   /* octal file mode */
	PREFIXD_CHOICE, /* position in `hint`, words parted by | */
	PREFIXD_TENANT, /* NAME=any or NAME=uid:N[,uid:N]; repeatable */
};

enum {
	PREFIXD_OPT_RELOAD = 1, /* SIGHUP applies it; others need a restart */
	PREFIXD_OPT_SECRET = 2, /* shown as *** */
	PREFIXD_OPT_AUTO = 4,   /* "auto" is a value too */
	PREFIXD_OPT_LATER = 8,  /* only "" or 0 are accepted in this version */
	PREFIXD_OPT_HTTP = 16,  /* a TEXT that daemon/http.h checks */
};

/*
 * X(field, C type, "flag and key", "section", type, "default", min, max, flags, "hint", "help")
 */
#define PREFIXD_OPTIONS(X)                                                                         \
	X(socket, const char *, "socket", "sockets", PREFIXD_TEXT, "auto", 0, 107, 0, "PATH",      \
	  "socket for workers; auto: /run/prefixd/prefixd.sock as root, else "                     \
	  "$XDG_RUNTIME_DIR/prefixd.sock")                                                         \
	X(admin_socket, const char *, "admin-socket", "sockets", PREFIXD_TEXT, "auto", 0, 107, 0,  \
	  "PATH", "socket for prefixctl, mode 0600; auto: the workers' with -admin before .sock")  \
	X(socket_mode, uint64_t, "socket-mode", "sockets", PREFIXD_MODE, "0660", 0, 0777, 0,       \
	  "MODE", "mode of the workers' socket: who may write it may connect")                     \
	X(http, const char *, "http", "sockets", PREFIXD_TEXT, "", 0, 255, PREFIXD_OPT_HTTP,       \
	  "ADDRESS",                                                                               \
	  "where to serve /metrics, /healthz and /readyz: unix://PATH (with the mode of "          \
	  "socket-mode), 127.0.0.1:PORT or [::1]:PORT; empty: nowhere")                            \
	X(device, uint64_t, "device", "memory", PREFIXD_CHOICE, "auto", 0, 0, 0,                   \
	  "auto|host|sim|cuda",                                                                    \
	  "where the blocks lie: host memory shared with workers, or a simulated device; "         \
	  "auto takes host, cuda is not in this version")                                          \
	X(pool_blocks, uint64_t, "pool-blocks", "memory", PREFIXD_COUNT, "auto", 1, 0xfffffffe,    \
	  PREFIXD_OPT_AUTO, "N",                                                                   \
	  "slots of each pool (one pool per block size); auto: as many as pool-bytes holds")       \
	X(pool_bytes, uint64_t, "pool-bytes", "memory", PREFIXD_SIZE, "auto", 4096, 1ull << 50,    \
	  PREFIXD_OPT_AUTO, "SIZE",                                                                \
	  "limit of all pools together; auto: none with pool-blocks, else 1GiB")                   \
	X(huge_pages, uint64_t, "huge-pages", "memory", PREFIXD_CHOICE, "auto", 0, 0, 0,           \
	  "auto|off", "use huge pages for the index where the kernel grants them")                 \
	X(host_blocks, uint64_t, "host-blocks", "memory", PREFIXD_COUNT, "0", 0, 0,                \
	  PREFIXD_OPT_LATER, "N",                                                                  \
	  "slots of the host tier below the pool; 0: off; not in this "                            \
	  "version")                                                                               \
	X(redis, const char *, "redis", "memory", PREFIXD_TEXT, "", 0, 255,                        \
	  PREFIXD_OPT_LATER | PREFIXD_OPT_SECRET, "URL",                                           \
	  "Redis below the host tier; empty: off; not in this version")                            \
	X(watermark, uint64_t, "watermark", "memory", PREFIXD_COUNT, "0", 0, 0, PREFIXD_OPT_LATER, \
	  "PERCENT",                                                                               \
	  "free slots kept ahead of demand; 0: evict on demand; more is not in this version")      \
	X(policy, uint64_t, "policy", "memory", PREFIXD_CHOICE, "lru", 0, 0, 0, "lru",             \
	  "which unpinned block goes first")                                                       \
	X(max_frame, uint64_t, "max-frame", "limits", PREFIXD_SIZE, "1MiB", 64u << 10,             \
	  PROTO_MAX_FRAME_LIMIT, 0, "SIZE", "longest frame, header included")                      \
	X(max_keys, uint64_t, "max-keys", "limits", PREFIXD_COUNT, "65536", 64, 1u << 22,          \
	  PREFIXD_OPT_RELOAD, "N", "most block keys in one request")                               \
	X(max_sessions, uint64_t, "max-sessions", "limits", PREFIXD_COUNT, "256", 1, 65536,        \
	  PREFIXD_OPT_RELOAD, "N", "most sessions at a time")                                      \
	X(max_sessions_per_process, uint64_t, "max-sessions-per-process", "limits", PREFIXD_COUNT, \
	  "64", 0, 65536, PREFIXD_OPT_RELOAD, "N",                                                 \
	  "most connections of one process, and most sessions that it may leave behind holding "   \
	  "blocks; 0: no limit")                                                                   \
	X(max_sessions_per_user, uint64_t, "max-sessions-per-user", "limits", PREFIXD_COUNT, "0",  \
	  0, 65536, PREFIXD_OPT_RELOAD, "N", "most sessions of one user; 0: no limit")             \
	X(max_namespaces, uint64_t, "max-namespaces", "limits", PREFIXD_COUNT, "64", 1, 65536,     \
	  PREFIXD_OPT_RELOAD, "N", "most namespaces that one session may open")                    \
	X(max_leases, uint64_t, "max-leases", "limits", PREFIXD_COUNT, "4096", 1, 1u << 24,        \
	  PREFIXD_OPT_RELOAD, "N", "most leases that one session may hold")                        \
	X(max_groups, uint64_t, "max-groups", "limits", PREFIXD_COUNT, "16", 1, 1024, 0, "N",      \
	  "most pools: one for each size of block")                                                \
	X(op_ids, uint64_t, "op-ids", "limits", PREFIXD_COUNT, "1024", 0, 1u << 20,                \
	  PREFIXD_OPT_RELOAD, "N",                                                                 \
	  "operation ids remembered per session, so that retries are "                             \
	  "harmless")                                                                              \
	X(op_id_age, uint64_t, "op-id-age", "limits", PREFIXD_TIME, "60s", 0,                      \
	  86400ull * 1000000000u, PREFIXD_OPT_RELOAD, "TIME", "how long they are remembered")      \
	X(lease_max_age, uint64_t, "lease-max-age", "limits", PREFIXD_TIME, "0", 0,                \
	  365ull * 86400u * 1000000000u, PREFIXD_OPT_RELOAD, "TIME",                               \
	  "take back older leases of sessions that copy blocks out; 0: never")                     \
	X(pending_deadline, uint64_t, "pending-deadline", "limits", PREFIXD_TIME, "10s", 0,        \
	  3600ull * 1000000000u, PREFIXD_OPT_RELOAD, "TIME",                                       \
	  "how long others wait for a worker that computes what they need; 0: not at all")         \
	X(max_pins_share, uint64_t, "max-pins-share", "limits", PREFIXD_COUNT, "0", 0, 100,        \
	  PREFIXD_OPT_RELOAD, "PERCENT",                                                           \
	  "share of a pool that one session may hold while others ask; 0: no limit")               \
	X(max_reserved, uint64_t, "max-reserved", "limits", PREFIXD_COUNT, "0", 0, 1u << 31,       \
	  PREFIXD_OPT_RELOAD, "N",                                                                 \
	  "most blocks that one session may have reserved and not committed; 0: no limit")         \
	X(event_ring, uint64_t, "event-ring", "limits", PREFIXD_COUNT, "65536", 0, 1u << 24, 0,    \
	  "N",                                                                                     \
	  "events kept for subscribers, taken with the first of them; who falls further behind "   \
	  "is told to begin anew; 0: none may subscribe")                                          \
	X(hello_timeout, uint64_t, "hello-timeout", "limits", PREFIXD_TIME, "5s", 1000000,         \
	  3600ull * 1000000000u, PREFIXD_OPT_RELOAD, "TIME",                                       \
	  "how long a new connection may stay silent")                                             \
	X(slow_reader_timeout, uint64_t, "slow-reader-timeout", "limits", PREFIXD_TIME, "10s",     \
	  1000000, 3600ull * 1000000000u, PREFIXD_OPT_RELOAD, "TIME",                              \
	  "how long a client may leave more than 1 MiB of replies unread")                         \
	X(tenant, const char *, "tenant", "tenants", PREFIXD_TENANT, "default=any", 0, 0,          \
	  PREFIXD_OPT_RELOAD, "NAME=WHO",                                                          \
	  "who may name a tenant: any, or uid:N[,uid:N]; may be given again; in the file "         \
	  "NAME = WHO in section [tenants]")                                                       \
	X(config, const char *, "config", "daemon", PREFIXD_TEXT, "", 0, 4095, 0, "FILE",          \
	  "configuration file: sections and keys as printed by --print-config")                    \
	X(log_level, uint64_t, "log-level", "daemon", PREFIXD_CHOICE, "info", 0, 0,                \
	  PREFIXD_OPT_RELOAD, "error|warn|info|debug", "what the log tells")                       \
	X(drain_timeout, uint64_t, "drain-timeout", "daemon", PREFIXD_TIME, "10s", 0,              \
	  86400ull * 1000000000u, PREFIXD_OPT_RELOAD, "TIME",                                      \
	  "how long SIGTERM waits for leases to end")                                              \
	X(naming_key_file, const char *, "naming-key-file", "daemon", PREFIXD_TEXT, "auto", 0,     \
	  4095, 0, "FILE",                                                                         \
	  "key of the names that blocks have across machines, 64 hex digits, mode 0600; auto: "    \
	  "made beside the admin socket")

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

/* Value for people: secrets masked. */
const char *prefixd_options_show(const struct prefixd_options *o, enum prefixd_option_id id);
/* "any" or "uid:1,uid:2" */
void prefixd_tenant_print(const struct prefixd_tenant *t, char *out, size_t out_len);
/* A configuration file that says what is in force, with where each value came from. */
void prefixd_options_print(const struct prefixd_options *o, FILE *f);
void prefixd_options_help(FILE *f);
void prefixd_options_limits(const struct prefixd_options *o, struct prefixd_limits *ret_limits);
