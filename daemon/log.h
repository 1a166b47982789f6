/*
 * log.h - the daemon's log: one line per fact on standard error.
 *
 * What it guarantees.  A message site that repeats itself is cut to 10 lines in 5 seconds; the next
 * line of the same site tells how many were left out.  Lines are at most 1,024 bytes and free of
 * control characters, so that a peer's text cannot forge a line.  The log never stops the daemon:
 * a line that cannot be written at once (nobody reads, no room) is lost and counted, and the next
 * one that can be written is preceded by one that says how many were lost.
 *
 * What it relies on.  One thread.  Whoever logs keeps token ids and salts out.
 */
#pragma once

#include "daemon/engine.h"

#define PREFIXD_LOG_BURST     10u
#define PREFIXD_LOG_WINDOW_NS (5ull * 1000000000ull)

/* State of one site; zero-initialised. */
struct prefixd_log_site {
	uint64_t window_ns; /* when the current window began */
	uint32_t n;         /* lines written in it */
	uint32_t suppressed;
	bool begun;
};

/* Replaces the destination and the clock; for tests.  NULL puts the real ones back. */
struct prefixd_log_sink {
	void (*write)(void *ctx, const char *line, size_t len); /* with its newline */
	uint64_t (*now_ns)(void *ctx);
	void *ctx;
};

void prefixd_log_set_sink(const struct prefixd_log_sink *sink);
void prefixd_log_set_level(enum prefixd_log_level level);
enum prefixd_log_level prefixd_log_get_level(void);
const char *prefixd_log_level_to_string(enum prefixd_log_level level);
/* Return: 0, -EINVAL for a name that is no level. */
radix_nodiscard int prefixd_log_level_parse(const char *text, enum prefixd_log_level *ret_level);
/* Lines written at a level since the start, suppressed ones not counted. */
uint64_t prefixd_log_count(enum prefixd_log_level level);
/* Lines that could not be written. */
uint64_t prefixd_log_lost(void);

__attribute__((format(printf, 3, 4))) void prefixd_log_at(struct prefixd_log_site *site,
							  enum prefixd_log_level level,
							  const char *format, ...);
/* A finished line from elsewhere (the engine, libevent): its site is found by its words. */
void prefixd_log_text(enum prefixd_log_level level, const char *text);

#define prefixd_log_line(level, ...)                          \
	do {                                                  \
		static struct prefixd_log_site site_;         \
		prefixd_log_at(&site_, (level), __VA_ARGS__); \
	} while (0)
#define prefixd_error(...) prefixd_log_line(PREFIXD_LOG_ERROR, __VA_ARGS__)
#define prefixd_warn(...)  prefixd_log_line(PREFIXD_LOG_WARN, __VA_ARGS__)
#define prefixd_info(...)  prefixd_log_line(PREFIXD_LOG_INFO, __VA_ARGS__)
#define prefixd_debug(...) prefixd_log_line(PREFIXD_LOG_DEBUG, __VA_ARGS__)
