/*
 * wait.c - WAIT: blocked until another worker's blocks are there, up to the call's deadline.
 *
 * The daemon answers WAIT at once and sends one EVENT later.  When the deadline passes first, the
 * lease is as it was: the EVENT, should it come, is skipped by its seq, and whatever the caller
 * does with the lease next ends the wait on the daemon's side.  So no lease is left in doubt.
 */
#include "clients/c/internal.h"

const char *pfx_wait_state_to_string(int state)
{
	return state >= 0 && state <= UINT8_MAX ? proto_wait_state_to_string((uint8_t)state) : "?";
}

/* Return: as pfx_request. */
static int take_event(struct pfx_client *c, uint64_t wire_lease, pfx_wait_result *out)
{
	struct proto_event event;
	struct pfx_frame f;
	const char *bad;
	int r = pfx_event(c, &f);

	if (r)
		return r;
	if (f.h.status != PROTO_STATUS_OK ||
	    proto_event_decode(f.body, f.h.len, &event, &bad) != 0 || event.lease != wire_lease)
		return pfx_bad_reply(c, PROTO_OP_EVENT, "lease or body");
	switch (event.state) {
	case PROTO_WAIT_READY:
	case PROTO_WAIT_LEAD:
	case PROTO_WAIT_FAILED:
		break;
	case PROTO_WAIT_DEADLINE:
		return pfx_fail(c, PFX_DEADLINE, "WAIT: not there before the deadline");
	default:
		return pfx_bad_reply(c, PROTO_OP_EVENT, "state");
	}
	out->state = event.state;
	out->n = event.n;
	out->leader_us = event.leader_us;
	return 0;
}

static int wait_once(struct pfx_client *c, uint64_t wire_lease, pfx_wait_result *out)
{
	struct proto_wait_req req = { .lease = wire_lease, .deadline_us = pfx_deadline_us(c) };
	struct proto_wait_rep rep;
	struct pfx_frame f;
	const char *bad;
	int r = pfx_request(c, PROTO_OP_WAIT, &req, &f);

	if (r)
		return r;
	if (proto_wait_rep_decode(f.body, f.h.len, &rep, &bad))
		return pfx_bad_reply(c, PROTO_OP_WAIT, bad);
	switch (rep.state) {
	case PROTO_WAIT_WAITING:
		return take_event(c, wire_lease, out);
	case PROTO_WAIT_READY:
	case PROTO_WAIT_LEAD:
	case PROTO_WAIT_FAILED:
		break;
	default:
		return pfx_bad_reply(c, PROTO_OP_WAIT, "state");
	}
	out->state = rep.state;
	out->n = rep.n;
	out->leader_us = rep.leader_us;
	return 0;
}

int pfx_wait(pfx_namespace *ns, uint64_t lease, uint32_t deadline_ms, pfx_wait_result *ret)
{
	struct pfx_client *c = ns ? ns->client : NULL;
	pfx_wait_result out = { .struct_size = sizeof(out) };
	struct pfx_lease *l;
	int r = pfx_begin(c, deadline_ms);

	if (r)
		return r;
	if (!ret || !pfx_struct_ok(ret))
		return pfx_fail(c, PFX_ARGUMENT, "ret or its struct_size is missing");
	r = pfx_lease_use(c, ns, lease, false, &l);
	if (r)
		return r;
	r = wait_once(c, l->wire, &out);
	c->in_doubt = false; /* whether it arrived or not, the lease's path is what it was */
	if (r) {
		pfx_lease_failed(c, lease, r, false);
		return pfx_lease_gone(c, r);
	}
	pfx_struct_out(ret, &out, sizeof(out));
	return 0;
}
