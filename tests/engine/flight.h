/*
 * flight.h - single flight, the slow and obvious way: who computes what, who waits for whom.
 *
 * Leases are compared whole, from the first key on, with every other lease; after each step every
 * wait is looked at again.  The engine must tell the same waiters the same things at the same time.
 */
#pragma once

#include "tests/engine/model.h"

#define FLIGHT_LEASES 64
#define FLIGHT_EVENTS 64

struct flight_lease {
	bool used;
	bool island;
	uint32_t root;
	uint32_t key_len;
	const uint8_t (*keys)[MODEL_KEY]; /* from the first one given on */
	uint32_t given, depth,
		reserved; /* keys given, of those on the path, of the rest reserved */
	/* the model's own */
	bool leads, rest;
	uint64_t lead_serial, lead_due;
	struct flight_lease *waits_on; /* NULL: does not wait */
	uint64_t wait_serial, wait_due, wait_seq;
	uint32_t until;
	bool unled;
};

struct flight_event {
	const struct flight_lease *lease;
	uint64_t seq;
	uint32_t state; /* enum proto_wait_state */
};

struct flight {
	struct flight_lease *all[FLIGHT_LEASES];
	uint32_t n;
	uint64_t now, pending_ns, serial;
	/* Blocks behind the lease's path that are there. */
	uint32_t (*ready)(void *ctx, struct flight_lease *l);
	void *ctx;
	struct flight_event events[FLIGHT_EVENTS]; /* to be seen since the test looked last */
	uint32_t n_events;
	uint64_t n_ready, n_lead, n_deadline, n_late;
};

/* Keys behind the lease's path that others compute. */
uint32_t flight_pending(const struct flight *f, const struct flight_lease *l);
void flight_lead(struct flight *f, struct flight_lease *l, bool rest);
/* Path, keys or reservations of the lease are others now. */
void flight_changed(struct flight_lease *l);
/* The lease ends, or its socket. */
void flight_over(struct flight_lease *l);
void flight_stop(struct flight_lease *l);
/* It is taken back: if it waits, it is told so. */
void flight_fail(struct flight *f, struct flight_lease *l);
/* WAIT; returns the state, and the number that the reply has. */
uint32_t flight_wait(struct flight *f, struct flight_lease *l, uint64_t seq, uint32_t deadline_us,
		     uint32_t *ret_n);
/* The end of a step. */
void flight_settle(struct flight *f);
/* The clock goes on to `now`, deadline by deadline. */
void flight_time(struct flight *f, uint64_t now);
