/*
 * client.h - a client of version 1 of the protocol, as it was when that was the newest one.
 *
 * Frozen: see README.md of the folder above.  It shares no code with the project, so that it cannot
 * change with it.  A call returns the status of the reply, V1_CLOSED or V1_WRONG; `why` then says
 * what was wrong.  Nothing here waits longer than 20 seconds.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	V1_CLOSED = -1, /* the daemon ended the connection, or there is none */
	V1_WRONG = -2,  /* it sent something that version 1 does not have */
};

#define V1_RUNS 64u

struct v1_run {
	uint32_t start, len;
};

struct v1 {
	int fd; /* -1: not connected */
	uint64_t seq;
	uint8_t instance[16];
	uint8_t boot[16]; /* of the last reply */
	uint8_t said[16]; /* of HELLO's reply: all later ones have it */
	bool greeted;
	uint32_t session, max_frame, max_keys;
	char tenant[64]; /* name of tenant 0 */

	/* the last frame */
	uint16_t op, status;
	uint64_t got_seq;
	uint8_t *body;
	uint32_t len;
	int fds[4];
	uint32_t n_fds;
	char error_field[65];
	char why[160];
};

struct v1_ns {
	uint32_t id, flags, key_len, block_tokens, group, n_slots;
	uint64_t block_bytes, slot_stride, pool_len;
	uint8_t digest[32];
	uint8_t *pool;
	const uint64_t *generations;
};

struct v1_match {
	uint64_t lease, miss_token, reuse;
	uint8_t root[16];
	uint32_t n_device, n_host, n_redis, n_pending, tail_tokens, tail_slot, load_us;
	uint8_t advice, reason, more;
	struct v1_run runs[V1_RUNS];
	uint32_t n_runs;
};

struct v1_slots {      /* of RESERVE's reply and of COMMIT's */
	uint32_t a, b; /* RESERVE: granted, first.  COMMIT: stored, duplicate */
	uint64_t reuse;
	struct v1_run runs[V1_RUNS];
	uint32_t n_runs;
};

struct v1_wait {
	uint64_t lease;
	uint8_t state;
	uint32_t n, leader_us;
};

int v1_connect(struct v1 *c, const char *path, const uint8_t instance[16]);
void v1_close(struct v1 *c);
/* Any frame as it is, and the next one that comes, whatever it is. */
int v1_send(struct v1 *c, const void *frame, size_t len);
int v1_receive(struct v1 *c);

int v1_hello(struct v1 *c);
int v1_ping(struct v1 *c);
/* A namespace of token keys, 4 tokens in a block, mapped read-write. */
int v1_open(struct v1 *c, const char *model, uint64_t block_bytes, struct v1_ns *ret);
void v1_unmap(struct v1_ns *ns);
int v1_match(struct v1 *c, const struct v1_ns *ns, const uint32_t *tokens, uint32_t n_blocks,
	     uint32_t flags, struct v1_match *ret);
int v1_extend(struct v1 *c, uint64_t lease, struct v1_match *ret);
int v1_reserve(struct v1 *c, uint64_t lease, uint32_t n, struct v1_slots *ret);
int v1_commit(struct v1 *c, uint64_t lease, uint32_t n, struct v1_slots *ret);
/* Queried, then hits on the device, host, Redis, pending, then misses. */
int v1_release(struct v1 *c, uint64_t lease, uint64_t ret_tokens[6]);
int v1_wait(struct v1 *c, uint64_t lease, struct v1_wait *ret);
/* The EVENT that the WAIT before it was promised. */
int v1_event(struct v1 *c, struct v1_wait *ret);
int v1_quiesced(struct v1 *c, const uint8_t boot[16], uint32_t *ret_leases, uint32_t *ret_slots);
/* Slot number i of the runs; UINT32_MAX: there are not so many. */
uint32_t v1_slot(const struct v1_run *runs, uint32_t n_runs, uint32_t i);
bool v1_stale(const struct v1_ns *ns, uint32_t slot, uint64_t reuse);
