/*
 * events.c - SUBSCRIBE, and the events that follow.
 *
 * What it guarantees.  Events come in the order of their numbers, each once.  A frame that is not
 * of the stream ends the connection, but for LOST, which belongs to no request.
 *
 * What it relies on.  The last frame stays in the wire's buffer until the next is received, and a
 * client that subscribed receives nothing but here.
 */
#include "clients/c/prefixd_events.h"

#include "clients/c/internal.h"

int pfx_subscribe(pfx_client *c, pfx_namespace *ns, uint64_t from, const uint8_t life[16],
		  uint32_t deadline_ms, uint64_t *ret_last)
{
	struct proto_subscribe_req req = { .from = from };
	struct proto_subscribe_rep rep;
	struct pfx_frame f;
	const char *bad;
	int r = pfx_begin(c, deadline_ms);

	if (r)
		return r;
	if ((from != 0) != (life != NULL) || (ns && ns->client != c))
		return pfx_fail(c, PFX_ARGUMENT,
				"from and life go together, and ns is one of this client's");
	r = pfx_ready(c, ns);
	if (r)
		return r;
	if (ns)
		req.ns = ns->info.id;
	if (life)
		memcpy(req.life.b, life, sizeof(req.life.b));
	r = pfx_request(c, PROTO_OP_SUBSCRIBE, &req, &f);
	if (r)
		return pfx_gone(c, r);
	if (proto_subscribe_rep_decode(f.body, f.h.len, &rep, &bad))
		return pfx_bad_reply(c, PROTO_OP_SUBSCRIBE, bad);
	c->stream_seq = f.h.seq;
	c->stream = (struct proto_span){ NULL, 0 };
	if (ret_last)
		*ret_last = rep.last;
	return 0;
}

/* Waits for a frame of events.  Return: 0, or a public status. */
static int next_frame(struct pfx_client *c)
{
	struct proto_changes m;
	struct pfx_frame f;
	const char *bad;
	int r;

	do {
		r = pfx_wire_receive(&c->wire, c->call_deadline_ns, &f);
	} while (r == 0 && pfx_hears_of_loss(c, &f));
	if (r == PFX_DEADLINE)
		return pfx_fail(c, r, "no event came before the deadline");
	if (r) {
		const char *why = r == PFX_NO_MEMORY ? "no memory for a frame" : c->wire.why;

		pfx_drop(c);
		return pfx_fail(c, pfx_gone(c, r), "the stream of events ended: %s", why);
	}
	if (f.h.op != PROTO_OP_CHANGES || f.h.seq != c->stream_seq ||
	    f.h.status != PROTO_STATUS_OK || !proto_id_equal(&f.h.boot, &c->boot))
		return pfx_bad_reply(c, PROTO_OP_CHANGES, "not a frame of this stream");
	if (proto_changes_decode(f.body, f.h.len, &m, &bad))
		return pfx_bad_reply(c, PROTO_OP_CHANGES, bad);
	c->stream = m.events;
	return 0;
}

static void copy_name(struct proto_span name, uint8_t ret[PROTO_DIGEST_MAX], uint32_t *ret_len)
{
	*ret_len = name.n;
	if (name.n)
		memcpy(ret, name.p, name.n);
}

int pfx_next_event(pfx_client *c, uint32_t deadline_ms, pfx_change *ret)
{
	struct proto_change m;
	pfx_change e;
	int r = pfx_begin(c, deadline_ms);

	if (r)
		return r;
	if (!ret || !pfx_struct_ok(ret))
		return pfx_fail(c, PFX_ARGUMENT, "ret is NULL, or its struct_size is 0");
	if (!c->stream_seq)
		return pfx_fail(c, PFX_WRONG_STATE, "this client has not subscribed");
	for (;;) {
		r = proto_change_next(&c->stream, &m);
		if (r == 0)
			break;
		if (r == PROTO_E_BAD)
			return pfx_bad_reply(c, PROTO_OP_CHANGES, "events");
		r = next_frame(c);
		if (r)
			return r;
	}
	memset(&e, 0, sizeof(e));
	e.kind = m.kind;
	e.tier = m.tier;
	e.from_tier = m.from_tier;
	e.reason = m.reason;
	e.number = m.number;
	e.ns = m.ns;
	e.tenant = m.tenant;
	memcpy(e.root, m.root.b, sizeof(e.root));
	copy_name(m.block, e.block, &e.block_len);
	copy_name(m.parent, e.parent, &e.parent_len);
	e.position = m.position;
	e.n_tokens = m.n_tokens;
	e.slot = m.slot;
	e.revision = m.revision;
	pfx_struct_out(ret, &e, sizeof(e));
	return 0;
}

const char *pfx_change_to_string(int kind)
{
	return kind < 0 || kind > UINT8_MAX ? "?" : proto_change_to_string((uint8_t)kind);
}

const char *pfx_removal_to_string(int reason)
{
	return reason < 0 || reason > UINT8_MAX ? "?" : proto_removal_to_string((uint8_t)reason);
}

const char *pfx_tier_to_string(int tier)
{
	return tier >= 0 && tier <= UINT8_MAX ? proto_tier_to_string((uint8_t)tier) : "?";
}
