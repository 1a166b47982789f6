/*
 * fake.h - a daemon that does what a test says, right or wrong, in a thread of the test's process.
 *
 * A test gives a function that serves: it accepts, receives frames and sends what it likes, split
 * and timed as it likes.  Expectations of that function are noted, not asserted, since Check cannot
 * fail from another thread; fake_stop() fails the test with the first one that did not hold.
 */
#pragma once

#include "gpu/gpu.h"
#include "proto/codec.h"

#include <pthread.h>
#include <stdatomic.h>

struct fake {
	char dir[64], path[96];
	int listen_fd, fd;
	pthread_t thread;
	bool running;
	void (*serve)(struct fake *f);
	char why[256]; /* the first expectation that did not hold; empty: none */

	/* what HELLO and OPEN tell */
	struct proto_id boot;
	uint16_t speaks;         /* the newest version; 0: PROTO_VERSION */
	struct proto_id pool_id; /* what OPEN names the pool */
	uint32_t opened_flags;
	uint32_t n_words;   /* that come with OPEN's reply, in the generations' memory */
	uint32_t n_orphans; /* and the life of the last of them */
	struct proto_id orphans_boot;
	uint32_t max_frame, max_keys;
	uint32_t n_slots, block_tokens, block_bytes;
	bool split;             /* every reply in single bytes */
	bool ended;             /* set by the test: what waits for it may return */
	const char *admin_json; /* the answer to every ADMIN */

	/* the last frame received */
	struct proto_header h;
	uint8_t body[1 << 20];
	uint16_t version;         /* agreed on this connection */
	struct proto_id quiesced; /* old_boot of the last QUIESCED */

	struct gpu_shm pool, generations;
	atomic_uint n_accepted, step;
};

void fake_start(struct fake *f, void (*serve)(struct fake *f));
/* Ends the connection, waits for the thread, fails the test if an expectation did not hold. */
void fake_stop(struct fake *f);
/* The next step of a test that both sides walk through: wait until the other side has set it. */
void fake_step_set(struct fake *f, unsigned step);
void fake_step_wait(struct fake *f, unsigned step);

/* For the serving function; false once anything went wrong or the test is over. */
bool fake_expect(struct fake *f, bool ok, const char *what);
bool fake_accept(struct fake *f);
bool fake_receive(struct fake *f);            /* any frame */
bool fake_receive_op(struct fake *f, int op); /* this one is expected */
bool fake_send(struct fake *f, const void *p, size_t n, const int *fds, uint32_t n_fds);

/* A reply to the last frame, encoded by the caller between the two. */
struct fake_reply {
	uint8_t bytes[1 << 16];
	struct proto_writer w;
	struct proto_header h;
};
struct proto_writer *fake_reply_begin(struct fake *f, struct fake_reply *r);
/* Closes the frame without sending it: r->bytes[0..r->w.len). */
bool fake_reply_end(struct fake *f, struct fake_reply *r);
bool fake_reply_send(struct fake *f, struct fake_reply *r);

/* Whole exchanges: receive, and answer well. */
bool fake_hello(struct fake *f);        /* accept, then HELLO */
bool fake_answer_hello(struct fake *f); /* HELLO was received already */
bool fake_open(struct fake *f);
bool fake_answer_open(struct fake *f); /* OPEN was received already */
bool fake_ping(struct fake *f);
/* The answer to a received MATCH or EXTEND: n_device blocks in one run from `start`. */
bool fake_answer_match(struct fake *f, uint64_t lease, uint32_t start, uint32_t n_device, int more);
bool fake_answer_error(struct fake *f, int status, const char *field, const char *text,
		       uint32_t retry_after_us);
bool fake_answer_release(struct fake *f);
/* Answers everything well until the connection ends: PING, OPEN, MATCH (2 blocks), RELEASE ... */
void fake_serve_well(struct fake *f);
