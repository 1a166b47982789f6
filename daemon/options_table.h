/*
 * options_table.h - the options: one row each, from which all else about them is made.
 *
 * Flag, environment variable, key of the configuration file, --help, --print-config, the admin
 * socket's `config` and the field that the daemon reads (options.h).
 */
#pragma once

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
	X(device, const char *, "device", "memory", PREFIXD_TEXT, "auto", 0, 700,                  \
	  PREFIXD_OPT_DEVICE, "auto|host|sim|cuda|cuda:UUID,...",                                  \
	  "where the blocks lie: host memory shared with workers, a simulated device, or GPUs, "   \
	  "all of them or those listed, of which the first has the blocks of workers without "     \
	  "stripes, and that of number R the pieces of rank R; auto: all GPUs where there are "    \
	  "any and each can be used, else host memory")                                            \
	X(pool_blocks, uint64_t, "pool-blocks", "memory", PREFIXD_COUNT, "auto", 1, 0xfffffffe,    \
	  PREFIXD_OPT_AUTO, "N",                                                                   \
	  "slots of each pool (one pool per block size); auto: as many as pool-bytes holds")       \
	X(pool_bytes, uint64_t, "pool-bytes", "memory", PREFIXD_SIZE, "auto", 4096, 1ull << 50,    \
	  PREFIXD_OPT_AUTO, "SIZE",                                                                \
	  "limit of all pools together; auto: none with pool-blocks, else 1GiB")                   \
	X(huge_pages, uint64_t, "huge-pages", "memory", PREFIXD_CHOICE, "auto", 0, 0, 0,           \
	  "auto|off", "use huge pages for index and host tier where the kernel grants them")       \
	X(lock_memory, uint64_t, "lock-memory", "memory", PREFIXD_CHOICE, "no", 0, 0, 0, "no|yes", \
	  "keep pools and host tier in memory, never in swap: needs RLIMIT_MEMLOCK or "            \
	  "CAP_IPC_LOCK")                                                                          \
	X(host_blocks, uint64_t, "host-blocks", "memory", PREFIXD_COUNT, "auto", 0, 0xfffffffe,    \
	  PREFIXD_OPT_AUTO, "N",                                                                   \
	  "slots of the host tier below each pool; 0: none; auto: as many as host-bytes holds")    \
	X(host_bytes, uint64_t, "host-bytes", "memory", PREFIXD_SIZE, "auto", 4096, 1ull << 50,    \
	  PREFIXD_OPT_AUTO, "SIZE",                                                                \
	  "limit of all host tiers together, with what the index takes for them; auto: none "      \
	  "with host-blocks, else no host tier")                                                   \
	X(write, uint64_t, "write", "memory", PREFIXD_CHOICE, "back", 0, 0, 0,                     \
	  "back|through|second-use",                                                               \
	  "when blocks are copied to the tier below: when their slot is wanted, when they are "    \
	  "committed, or when their slot is wanted and they were hit again")                       \
	X(cold_codec, uint64_t, "cold-codec", "memory", PREFIXD_CHOICE, "none", 0, 0, 0,           \
	  "none|int8|fp8",                                                                         \
	  "how blocks are coded below the device where a worker leaves that open and they can be") \
	X(pool_write, uint64_t, "pool-write", "memory", PREFIXD_CHOICE, "direct", 0, 0, 0,         \
	  "direct|staged",                                                                         \
	  "how workers write blocks: into the pool, or into memory of their own, from which the "  \
	  "daemon copies at commit; the pool is read-only for them then")                          \
	X(write_blocks, uint64_t, "write-blocks", "memory", PREFIXD_COUNT, "64", 1, 65536, 0, "N", \
	  "with pool-write staged: blocks that a session may have reserved, for each size of "     \
	  "block, which is the memory that it writes in")                                          \
	X(write_bytes, uint64_t, "write-bytes", "memory", PREFIXD_SIZE, "auto", 4096, 1ull << 50,  \
	  PREFIXD_OPT_AUTO, "SIZE",                                                                \
	  "limit of that memory of all sessions together; auto: a quarter of what pool-bytes "     \
	  "allows, none where that has no limit")                                                  \
	X(watermark, uint64_t, "watermark", "memory", PREFIXD_RANGE, "auto", 0, 50,                \
	  PREFIXD_OPT_AUTO, "LOW:HIGH",                                                            \
	  "percent of a tier's slots kept free ahead of demand: below LOW, blocks move down "      \
	  "until HIGH are free; one number is both; 0: move on demand; auto: 1:2 with a tier "     \
	  "below, else 0")                                                                         \
	X(move_window, uint64_t, "move-window", "memory", PREFIXD_COUNT, "256", 1, 65536, 0, "N",  \
	  "blocks that move at a time, for each pool and direction")                               \
	X(policy, uint64_t, "policy", "memory", PREFIXD_CHOICE, "lru", 0, 0, 0, "lru",             \
	  "which unpinned block goes first")                                                       \
	X(redis, const char *, "redis", "redis", PREFIXD_TEXT, "", 0, 255, PREFIXD_OPT_REDIS,      \
	  "URL", "Redis below the host tier: unix:/path or tcp:host:port; empty: none")            \
	X(redis_user, const char *, "redis-user", "redis", PREFIXD_TEXT, "", 0, 63, 0, "NAME",     \
	  "ACL user of Redis; empty: the default user")                                            \
	X(redis_password_file, const char *, "redis-password-file", "redis", PREFIXD_TEXT, "", 0,  \
	  4095, 0, "FILE",                                                                         \
	  "file of this user, mode 0600, whose first line is the password; empty: none")           \
	X(redis_ttl, uint64_t, "redis-ttl", "redis", PREFIXD_TIME, "0", 0,                         \
	  365ull * 86400u * 1000000000u, 0, "TIME",                                                \
	  "how long Redis keeps a block that nobody stores again; 0: until it needs the room")     \
	X(redis_timeout, uint64_t, "redis-timeout", "redis", PREFIXD_TIME, "200ms", 1000000,       \
	  60ull * 1000000000u, 0, "TIME", "longest that one operation may take")                   \
	X(redis_encrypt, uint64_t, "redis-encrypt", "redis", PREFIXD_CHOICE, "no", 0, 0, 0,        \
	  "no|yes", "encrypt blocks in Redis, by a key made of the naming key")                    \
	X(redis_in_flight, uint64_t, "redis-in-flight", "redis", PREFIXD_SIZE, "64MiB", 1u << 16,  \
	  1ull << 36, 0, "SIZE", "blocks under way to and from Redis at a time")                   \
	X(index_blocks, uint64_t, "index-blocks", "redis", PREFIXD_COUNT, "auto", 0, 0xfffffffe,   \
	  PREFIXD_OPT_AUTO, "N",                                                                   \
	  "blocks of each pool that the index knows to be in Redis alone; auto: 1048576 with "     \
	  "redis, else 0")                                                                         \
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
	X(reserve_wait, uint64_t, "reserve-wait", "limits", PREFIXD_TIME, "2s", 0,                 \
	  3600ull * 1000000000u, PREFIXD_OPT_RELOAD, "TIME",                                       \
	  "how long a RESERVE that names no deadline waits for blocks to move down; then they "    \
	  "are dropped")                                                                           \
	X(prefill_rate, uint64_t, "prefill-rate", "limits", PREFIXD_COUNT, "20000", 1, 1000000000, \
	  PREFIXD_OPT_RELOAD, "N",                                                                 \
	  "tokens per second that a worker computes: loading is advised against where it takes "   \
	  "longer")                                                                                \
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
	X(keep, uint64_t, "keep", "daemon", PREFIXD_CHOICE, "auto", 0, 0, 0,                       \
	  "auto|holder|systemd|none",                                                              \
	  "who keeps pools, host tiers and index when the daemon ends or is killed: a process of " \
	  "its own (prefixd-holder), the descriptor store of systemd, or nobody; auto: systemd "   \
	  "where it offers a store, else a holder")                                                \
	X(hold_timeout, uint64_t, "hold-timeout", "daemon", PREFIXD_TIME, "60s", 0,                \
	  30ull * 86400u * 1000000000u, 0, "TIME",                                                 \
	  "how long a holder keeps the memory without a daemon")                                   \
	X(holder_program, const char *, "holder-program", "daemon", PREFIXD_TEXT, "auto", 0, 4095, \
	  0, "FILE", "prefixd-holder; auto: beside this program")                                  \
	X(recover_verify, uint64_t, "recover-verify", "daemon", PREFIXD_CHOICE, "background", 0,   \
	  0, 0, "background|full|off",                                                             \
	  "when blocks of an earlier life are compared with their checksums: soon, before any of " \
	  "them is served, or only when they are copied")                                          \
	X(naming_key_file, const char *, "naming-key-file", "daemon", PREFIXD_TEXT, "auto", 0,     \
	  4095, 0, "FILE",                                                                         \
	  "key of the names that blocks have across machines, 64 hex digits, mode 0600; auto: "    \
	  "made beside the admin socket")
