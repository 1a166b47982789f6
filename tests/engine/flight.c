/*
 * flight.c - see flight.h.
 */
#include "tests/engine/flight.h"

#include <stdlib.h>
#include <string.h>

#include "proto/messages.h"

static uint32_t cover(const struct flight_lease *l)
{
	return l->rest ? l->given - l->depth : l->reserved;
}

/* Keys of l from position `at` on that o computes. */
static uint32_t common(const struct flight *f, const struct flight_lease *o,
		       const struct flight_lease *l, uint32_t at)
{
	uint32_t end = o->depth + cover(o), n = 0;

	if (o == l || !o->used || !o->leads || o->lead_due <= f->now || o->root != l->root ||
	    o->island != l->island || o->depth > at || end <= at)
		return 0;
	for (uint32_t i = 0; i < at; i++)
		if (memcmp(o->keys[i], l->keys[i], l->key_len) != 0)
			return 0;
	/* Two islands can be told to be the same by their first key only. */
	if (l->island && memcmp(o->keys[0], l->keys[0], l->key_len) != 0)
		return 0;
	while (at + n < end && at + n < l->given &&
	       memcmp(o->keys[at + n], l->keys[at + n], l->key_len) == 0)
		n++;
	return n;
}

uint32_t flight_pending(const struct flight *f, const struct flight_lease *l)
{
	uint32_t most = 0;

	for (uint32_t i = 0; i < f->n; i++) {
		uint32_t n = common(f, f->all[i], l, l->depth);

		most = n > most ? n : most;
	}
	return most;
}

void flight_lead(struct flight *f, struct flight_lease *l, bool rest)
{
	if (!l->leads)
		l->lead_serial = ++f->serial;
	l->leads = true;
	l->rest = rest;
	l->lead_due = f->now + f->pending_ns;
}

void flight_changed(struct flight_lease *l)
{
	if (l->leads && cover(l) == 0)
		l->leads = l->rest = false;
}

void flight_stop(struct flight_lease *l)
{
	l->waits_on = NULL;
	l->unled = false;
}

void flight_over(struct flight_lease *l)
{
	l->leads = l->rest = false;
	flight_stop(l);
}

static void tell(struct flight *f, struct flight_lease *l, uint32_t state)
{
	if (f->n_events == FLIGHT_EVENTS)
		abort();
	f->events[f->n_events++] =
		(struct flight_event){ .lease = l, .seq = l->wait_seq, .state = state };
	f->n_ready += state == PROTO_WAIT_READY;
	f->n_lead += state == PROTO_WAIT_LEAD;
	f->n_deadline += state == PROTO_WAIT_DEADLINE;
	flight_stop(l);
}

void flight_fail(struct flight *f, struct flight_lease *l)
{
	if (l->waits_on || l->unled)
		tell(f, l, PROTO_WAIT_FAILED);
	flight_over(l);
}

static uint32_t judge(struct flight *f, struct flight_lease *l, uint32_t *ret_ready)
{
	uint32_t ready = f->ready(f->ctx, l);
	struct flight_lease *first = NULL;

	*ret_ready = ready;
	if (l->depth + ready >= l->until)
		return PROTO_WAIT_READY;
	for (uint32_t i = 0; i < f->n; i++)
		if (common(f, f->all[i], l, l->depth + ready) &&
		    (!first || f->all[i]->lead_serial < first->lead_serial))
			first = f->all[i];
	if (!first) {
		flight_lead(f, l, true);
		return PROTO_WAIT_LEAD;
	}
	l->until = l->depth + ready + common(f, first, l, l->depth + ready);
	l->waits_on = first;
	l->unled = false;
	return PROTO_WAIT_WAITING;
}

uint32_t flight_wait(struct flight *f, struct flight_lease *l, uint64_t seq, uint32_t deadline_us,
		     uint32_t *ret_n)
{
	uint32_t state = PROTO_WAIT_LEAD;

	flight_stop(l);
	if (l->leads) {
		*ret_n = f->ready(f->ctx, l);
		return state;
	}
	l->until = l->given;
	state = judge(f, l, ret_n);
	if (state == PROTO_WAIT_WAITING) {
		*ret_n = l->until - l->depth;
		l->wait_serial = ++f->serial;
		l->wait_seq = seq;
		l->wait_due = deadline_us ? f->now + 1000ull * deadline_us : UINT64_MAX;
	}
	return state;
}

void flight_settle(struct flight *f)
{
	for (uint32_t i = 0; i < f->n; i++) {
		struct flight_lease *l = f->all[i];
		const struct flight_lease *o = l->waits_on;

		if (!o)
			continue;
		if (o->used && o->depth >= l->until)
			tell(f, l, PROTO_WAIT_READY);
		else if (!o->used || !o->leads || o->depth + cover(o) < l->until)
			l->unled = true;
	}
	for (;;) {
		struct flight_lease *oldest = NULL;
		uint32_t state, ready;

		for (uint32_t i = 0; i < f->n; i++)
			if (f->all[i]->unled &&
			    (!oldest || f->all[i]->wait_serial < oldest->wait_serial))
				oldest = f->all[i];
		if (!oldest)
			break;
		state = judge(f, oldest, &ready);
		if (state != PROTO_WAIT_WAITING)
			tell(f, oldest, state);
	}
}

void flight_time(struct flight *f, uint64_t now)
{
	for (;;) {
		uint64_t due = UINT64_MAX;

		for (uint32_t i = 0; i < f->n; i++) {
			const struct flight_lease *l = f->all[i];

			if (l->leads && l->lead_due < due)
				due = l->lead_due;
			if (l->waits_on && l->wait_due < due)
				due = l->wait_due;
		}
		if (due > now)
			break;
		f->now = due;
		for (uint32_t i = 0; i < f->n; i++) {
			struct flight_lease *l = f->all[i];

			if (l->leads && l->lead_due <= due) {
				l->leads = l->rest = false;
				f->n_late++;
			}
			if (l->waits_on && l->wait_due <= due)
				tell(f, l, PROTO_WAIT_DEADLINE);
		}
		flight_settle(f);
	}
	f->now = now;
}
