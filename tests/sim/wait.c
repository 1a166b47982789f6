/*
 * wait.c - single flight, as the workers see it: nobody is told to compute what another one was
 * told to compute and still may, and whoever waits hears of it in time.
 */
#include "tests/sim/sim_internal.h"

#include <errno.h>

/* In one operation several are told, and in which order is not known any more. */
static bool leads(const struct sim *s, const struct sim_lease *l)
{
	return l->used && l->lead_op < s->op && l->lead_path && l->lead_due > s->w.now_ns;
}

void sim_leads(struct sim *s, struct sim_lease *l, uint32_t at, uint64_t ns)
{
	l->lead_path = at < l->given ? sim_path(&l->p, l->epoch, l->p.skip + at) : 0;
	l->lead_due = s->op_began_ns + ns;
	l->lead_op = s->op;
	l->led = true;
}

/*
 * The daemon says: block `at` is this lease's to compute, and nobody else's for so long.  Two
 * islands are known to be one by their first key only.
 */
static void told_to_lead(struct sim *s, struct sim_lease *l, uint32_t at, uint64_t ns)
{
	uint64_t path;

	world_check(&s->w, at <= l->given && (at < l->given || l->led));
	if (at == l->given)
		return; /* others did it meanwhile, all of it */
	path = sim_path(&l->p, l->epoch, l->p.skip + at);
	s->result->leads++;
	for (uint32_t i = 0; i < SIM_SESSIONS && !l->led; i++) {
		for (uint32_t k = 0; k < SIM_LEASES && s->sessions[i].c; k++) {
			const struct sim_lease *o = &s->sessions[i].leases[k];

			if (o == l || !leads(s, o) || o->lead_path != path ||
			    o->island != l->island || o->p.skip != l->p.skip)
				continue;
			world_fail(&s->w,
				   "lease %llu is told to compute block %u, which lease %llu "
				   "computes",
				   (unsigned long long)l->id, at, (unsigned long long)o->id);
		}
	}
	sim_leads(s, l, at, ns);
}

void sim_lead_matched(struct sim *s, struct sim_lease *l, const struct proto_match_rep *rep,
		      uint32_t flags)
{
	uint32_t at = l->n_path + rep->n_host + rep->n_redis;
	uint64_t before = l->lead_due;

	/* Who leads already goes on, and for no longer than was said. */
	if (l->lead_path && l->lead_due > s->w.now_ns) {
		l->lead_path = at < l->given ? sim_path(&l->p, l->epoch, l->p.skip + at) : 0;
		return;
	}
	l->lead_path = 0;
	if (!(flags & PROTO_MATCH_LEAD) || rep->n_pending || at >= l->given || s->draining ||
	    l->epoch != s->epochs[universe_roots[l->p.root].ns])
		return;
	told_to_lead(s, l, at, s->w.config.engine.limits.pending_ns);
	if (before > s->w.now_ns) /* it may have led all the time */
		l->lead_due = before;
}

/* A WAIT came to an end. */
void sim_wait_ended(struct sim *s, struct sim_lease *l, const struct proto_event *e)
{
	world_check(&s->w, e->state != PROTO_WAIT_WAITING && e->state != PROTO_WAIT_LOADED);
	world_check(&s->w, (e->state == PROTO_WAIT_READY) <= (e->n > 0));
	world_check(&s->w, e->n <= l->given - l->n_path);
	s->result->waits++;
	l->waiting = 0;
	if (l->lost) {
		world_check(&s->w, e->state == PROTO_WAIT_FAILED);
		return;
	}
	if (e->state == PROTO_WAIT_LEAD)
		told_to_lead(s, l, l->n_path + e->n, 1000ull * e->leader_us);
}

void sim_wait(struct sim *s, struct sim_session *se, struct sim_lease *l)
{
	struct proto_wait_req m = { .lease = l->id, .deadline_us = sim_below(s, 800) };
	struct proto_wait_rep rep;
	int status;

	if (l->n_res || l->reserving)
		return;
	l->waiting = 0;
	s->evicts = false;
	status = world_wait(se->c, &m, &rep);
	if (sim_over(s, se, l, status))
		return;
	world_check(&s->w, status == PROTO_STATUS_OK);
	if (rep.state == PROTO_WAIT_WAITING) {
		l->waiting = se->c->seq;
		l->wait_due = m.deadline_us ? s->w.now_ns + 1000ull * m.deadline_us : UINT64_MAX;
	} else if (rep.state == PROTO_WAIT_LEAD) {
		told_to_lead(s, l, l->n_path + rep.n, 1000ull * rep.leader_us);
	}
}

/* After all EVENTs were heard. */
void sim_waits_check(struct sim *s)
{
	for (uint32_t i = 0; i < SIM_SESSIONS; i++)
		for (uint32_t k = 0; k < SIM_LEASES && s->sessions[i].c; k++) {
			const struct sim_lease *l = &s->sessions[i].leases[k];

			if (l->used && l->waiting && l->wait_due <= s->w.now_ns)
				world_fail(&s->w, "lease %llu waits beyond its deadline",
					   (unsigned long long)l->id);
		}
}
