/*
 * helper.h - a thread that works for the loop, and the two rings between them.
 *
 *     loop  --- requests (ring, eventfd) --->  helper
 *     loop  <-- answers  (ring, eventfd) ----  helper
 *
 * What it guarantees.  Messages go and come in order, each exactly once, and are the loop's memory:
 * allocated and freed there.  A helper never touches the engine's state; a message says all that it
 * needs.  Sending never blocks and never fails: what does not fit into the ring waits in a list of
 * the sender's and follows as the ring empties.  Neither side holds a lock while it works.
 *
 * What it relies on.  One thread on each side.
 */
#pragma once

#include "radix/base.h"
#include "radix/list.h"

struct prefixd_helper;

/* Every message begins with this. */
struct prefixd_message {
	struct radix_list link; /* the sender's, while the ring is full */
	uint32_t kind;          /* the users' own */
};

struct prefixd_helper_config {
	const char *name; /* of the thread, at most 15 characters */
	uint32_t ring;    /* places of each ring; a power of two; 0: 1024 */
	/* On the helper's thread.  Its own loop: returns when prefixd_helper_stopping() is true. */
	void (*run)(struct prefixd_helper *h, void *ctx);
	void *ctx;
};

/*
 * run() may begin before this returns: it has its own pointer to the helper.  Return: 0; negative
 * errno with nothing left behind.
 */
radix_nodiscard int prefixd_helper_start(struct prefixd_helper **ret_h,
					 const struct prefixd_helper_config *config);
/*
 * A helper whose run() returned though nobody stopped it: runs it anew, on a thread of its own.
 * What waits in the rings waits on; what run() had taken is its context's affair.  Return: 0;
 * negative errno, it may be tried again.
 */
radix_nodiscard int prefixd_helper_restart(struct prefixd_helper *h);
/*
 * Wakes the helper, waits for its end and frees it.  Messages that are left go to `drop` (may be
 * NULL).  Accepts NULL.
 */
void prefixd_helper_stop(struct prefixd_helper *h, void (*drop)(struct prefixd_message *m));

/* ---- on the loop's thread */

void prefixd_helper_send(struct prefixd_helper *h, struct prefixd_message *m);
/* Readable while answers wait, when the helper has ended, and now and then for nothing. */
int prefixd_helper_answer_fd(const struct prefixd_helper *h);
/* The oldest answer; NULL: none (and the descriptor is quiet again). */
struct prefixd_message *prefixd_helper_receive(struct prefixd_helper *h);
/* Requests sent that the helper has not taken yet. */
uint32_t prefixd_helper_waiting(const struct prefixd_helper *h);
/* When the helper last said that it is alive, CLOCK_MONOTONIC ns. */
uint64_t prefixd_helper_beat(const struct prefixd_helper *h);
/* run() has returned; the answers' descriptor became readable when it did. */
bool prefixd_helper_ended(const struct prefixd_helper *h);
uint32_t prefixd_helper_restarts(const struct prefixd_helper *h);
const char *prefixd_helper_name(const struct prefixd_helper *h);

/* ---- on the helper's thread */

/* Readable while requests wait or the end is near, and now and then for nothing. */
int prefixd_helper_request_fd(const struct prefixd_helper *h);
/* The oldest request; NULL: none (and the descriptor is quiet again, unless the end is near). */
struct prefixd_message *prefixd_helper_take(struct prefixd_helper *h);
void prefixd_helper_answer(struct prefixd_helper *h, struct prefixd_message *m);
bool prefixd_helper_stopping(const struct prefixd_helper *h);
void prefixd_helper_alive(struct prefixd_helper *h, uint64_t now_ns);
