/*
 * fake_redis.h - something that speaks Redis' protocol as the test tells it to.
 *
 * A thread that listens on a unix socket and serves all who come.  It answers each command with
 * what a Redis without any keys would answer, unless the test has put something else in its place:
 * any bytes, nothing at all, or the end of the connection.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fake_redis; /* opaque */

enum fake_way {
	FAKE_USUAL,
	FAKE_BYTES, /* these, and go on */
	FAKE_STALL, /* nothing; what follows on this connection is not even read */
	FAKE_MUTE,  /* nothing; go on with the next command */
	FAKE_ONCE,  /* these bytes now, nothing from then on */
	FAKE_CLOSE, /* these bytes, then close */
};

struct fake_redis *fake_new(void);
void fake_free(struct fake_redis *f);
const char *fake_url(const struct fake_redis *f);
/* How a command (its first word, in capitals) is answered from now on; the bytes are copied. */
void fake_answer(struct fake_redis *f, const char *command, enum fake_way way, const void *bytes,
		 size_t len);
#define fake_says(f, command, text) fake_answer(f, command, FAKE_BYTES, text, sizeof(text) - 1)
/* Splits every answer into pieces of that many bytes, each written by itself; 0: whole. */
void fake_split(struct fake_redis *f, size_t piece);
/* Closes all connections; `refuse`: and new ones at once. */
void fake_hang_up(struct fake_redis *f, bool refuse);
uint64_t fake_count(struct fake_redis *f, const char *command);
uint64_t fake_connections(struct fake_redis *f);
