/*
 * random_flight.c - the random workers' single flight: WAIT, LEAD and EVENTs against the model.
 */
#include "tests/engine/random_internal.h"

static uint32_t ready(void *ctx, struct flight_lease *f)
{
	int blocks[UNIVERSE_MAX];

	return random_expect(ctx, radix_container_of(f, struct lease, f), blocks);
}

void random_flight_init(struct run *r)
{
	r->flight.ready = ready;
	r->flight.ctx = r;
	r->flight.now = r->w.now_ns;
	r->flight.pending_ns = r->w.config.engine.limits.pending_ns;
	for (uint32_t i = 0; i < N_SESSIONS; i++)
		for (uint32_t k = 0; k < N_LEASES; k++)
			r->flight.all[r->flight.n++] = &r->sessions[i].leases[k].f;
}

void random_flight_sync(struct lease *l)
{
	l->f.used = true;
	l->f.island = l->island;
	l->f.root = l->p.root;
	l->f.key_len = universe_key_len(l->p.root);
	l->f.keys = (const uint8_t(*)[MODEL_KEY])l->p.keys + l->p.skip;
	l->f.given = l->given;
	l->f.depth = l->n_path;
	l->f.reserved = l->n_res;
}

void random_flight_matched(struct run *r, struct lease *l, const struct proto_match_rep *rep,
			   uint32_t flags)
{
	uint32_t want = 0;

	random_flight_sync(l);
	if (l->n_res) {
		l->f.rest |= l->f.leads && (flags & PROTO_MATCH_LEAD);
	} else {
		want = flight_pending(&r->flight, &l->f);
		if ((flags & PROTO_MATCH_LEAD) && !want && l->n_path < l->given && !l->f.leads)
			flight_lead(&r->flight, &l->f, true);
		flight_changed(&l->f);
	}
	if (rep->n_pending != want)
		world_fail(&r->w, "%u blocks are pending, the model has %u", rep->n_pending, want);
	if (want)
		world_check(&r->w,
			    rep->reason == PROTO_REASON_PENDING || rep->miss_token >= l->n_tokens);
	else if (!l->n_res)
		world_check(&r->w, rep->reason != PROTO_REASON_PENDING);
}

/* Each of the engine's EVENTs is one of the model's, and the other way round. */
void random_flight_check(struct run *r)
{
	struct flight *f = &r->flight;
	struct proto_event e;
	uint64_t seq;

	for (uint32_t i = 0; i < N_SESSIONS; i++) {
		struct session *s = &r->sessions[i];

		while (s->c && world_event(s->c, &seq, &e)) {
			struct lease *l = NULL;
			uint32_t k = 0;

			for (uint32_t j = 0; j < N_LEASES; j++)
				if ((s->leases[j].used || s->leases[j].revoked) &&
				    s->leases[j].id == e.lease)
					l = &s->leases[j];
			while (l && k < f->n_events &&
			       (f->events[k].lease != &l->f || f->events[k].seq != seq))
				k++;
			if (!l || k == f->n_events || f->events[k].state != e.state)
				world_fail(&r->w, "session %u got an EVENT that the model lacks",
					   s->c->session);
			if (e.state == PROTO_WAIT_READY)
				world_check(&r->w, e.n >= 1 && e.n <= ready(r, &l->f));
			f->events[k] = f->events[--f->n_events];
		}
	}
	if (f->n_events)
		world_fail(&r->w, "%u EVENTs did not come", f->n_events);
	r->result.n_ready = f->n_ready;
	r->result.n_lead = f->n_lead;
	r->result.n_deadline = f->n_deadline;
	r->result.n_late = f->n_late;
}

void random_wait(struct run *r, struct session *s, struct lease *l)
{
	struct proto_wait_req m = { .lease = l->id, .deadline_us = test_rng_below(&r->w.rng, 800) };
	struct proto_wait_rep rep;
	uint32_t state, n;
	int status = world_wait(s->c, &m, &rep);

	if (l->n_res) {
		world_check(&r->w, status == PROTO_STATUS_WRONG_STATE);
		return;
	}
	world_check(&r->w, status == PROTO_STATUS_OK);
	state = flight_wait(&r->flight, &l->f, s->c->h.seq, m.deadline_us, &n);
	if (rep.state != state || rep.n != n)
		world_fail(&r->w, "WAIT is answered %s, %u; the model says %s, %u",
			   proto_wait_state_to_string(rep.state), rep.n,
			   proto_wait_state_to_string((uint8_t)state), n);
	r->result.n_waits += state == PROTO_WAIT_WAITING;
}
