/*
 * request.c - one request and its reply.
 *
 * What it guarantees.  Replies are recognised by seq, and so are EVENTs, which the daemon sends
 * unasked.  One that comes after its call gave up is skipped, and what it gave is given back: a
 * lease is released with the next request, descriptors are closed.  The end of a load is kept with
 * its lease.  A reply that is not the
 * protocol, or names another life of the daemon, ends the connection; nothing of it is believed.
 *
 * What it relies on.  wire.c: a frame interrupted by a deadline goes on at the next call.
 */
#include "clients/c/internal.h"

#include <stdlib.h>
#include <unistd.h>

static void encode_body(struct proto_writer *w, uint16_t op, uint16_t version, const void *msg)
{
	switch (op) {
	case PROTO_OP_HELLO:
		proto_hello_req_encode(w, msg);
		break;
	case PROTO_OP_OPEN: {
		const struct pfx_namespace *ns = msg; /* encoded once, by pfx_open */
		uint32_t n = version < 3 ? ns->open_body_len_2 : ns->open_body_len;

		if (w->len <= w->cap && n <= w->cap - w->len)
			memcpy(w->p + w->len, ns->open_body, n);
		w->len += n;
		break;
	}
	case PROTO_OP_MATCH:
		proto_match_req_encode(w, msg);
		break;
	case PROTO_OP_EXTEND:
		proto_extend_req_encode(w, msg);
		break;
	case PROTO_OP_RESERVE:
		proto_reserve_req_encode(w, msg);
		break;
	case PROTO_OP_COMMIT:
		proto_commit_req_encode_as(w, version, msg);
		break;
	case PROTO_OP_RELEASE:
		proto_release_req_encode_as(w, version, msg);
		break;
	case PROTO_OP_PROBE:
		proto_probe_req_encode(w, msg);
		break;
	case PROTO_OP_EXPLAIN:
		proto_explain_req_encode(w, msg);
		break;
	case PROTO_OP_REPORT:
		proto_report_req_encode(w, msg);
		break;
	case PROTO_OP_SUBSCRIBE:
		proto_subscribe_req_encode(w, msg);
		break;
	case PROTO_OP_QUIESCED:
		proto_quiesced_req_encode_as(w, version, msg);
		break;
	case PROTO_OP_WAIT:
		proto_wait_req_encode(w, msg);
		break;
	case PROTO_OP_PREFETCH:
		proto_prefetch_req_encode(w, msg);
		break;
	case PROTO_OP_PING:
		proto_empty_encode(w, msg);
		break;
	case PROTO_OP_ADMIN:
		proto_admin_encode(w, msg);
		break;
	default:
		radix_assert(false);
	}
}

/* Appends a frame to tx.  Return: 0, PFX_NO_MEMORY, PFX_LIMIT, PFX_ARGUMENT. */
static int append(struct pfx_client *c, uint16_t op, uint64_t seq, const void *msg)
{
	struct proto_header h = { .version = c->wire.version, .op = op, .seq = seq };
	size_t room = 4096;

	if (c->connected)
		h.boot = c->boot;
	for (;;) {
		struct proto_writer w = { 0 };
		size_t start;
		int r = pfx_wire_reserve(&c->wire, room);

		if (r)
			return pfx_fail(c, r, "no memory for a request of %zu bytes", room);
		w.p = c->wire.tx + c->wire.tx_len;
		w.cap = c->wire.tx_cap - c->wire.tx_len;
		start = proto_frame_begin(&w);
		encode_body(&w, op, c->wire.version, msg);
		r = proto_frame_end(&w, start, &h);
		if (r == -EMSGSIZE)
			return pfx_fail(c, PFX_ARGUMENT, "%s: %s is too long or has a byte 0",
					proto_op_to_string(op),
					w.bad_field ? w.bad_field : "the request");
		if (w.len > c->wire.max_frame)
			return pfx_fail(c, PFX_LIMIT,
					"%s of %zu bytes; the daemon takes frames of %u",
					proto_op_to_string(op), w.len, c->wire.max_frame);
		if (r == 0) {
			c->wire.tx_len += w.len;
			return 0;
		}
		room = w.len;
	}
}

void pfx_orphan(struct pfx_client *c, uint64_t wire_lease)
{
	if (c->n_orphans == c->orphans_cap) {
		uint32_t cap = c->orphans_cap ? 2 * c->orphans_cap : 8;
		uint64_t *v = realloc(c->orphans, cap * sizeof(*v));

		if (!v) {
			pfx_drop(c); /* the only other way not to hold what nobody knows of */
			return;
		}
		c->orphans = v;
		c->orphans_cap = cap;
	}
	c->orphans[c->n_orphans++] = wire_lease;
}

struct proto_quiesced_req pfx_quiesced_req(const struct pfx_client *c)
{
	struct proto_quiesced_req req = { .instance = c->instance };

	/* Without a life it is of all of them.  Version 1 knows no such word, and no old lives. */
	if (c->wire.version < 2)
		req.old_boot = c->boot;
	return req;
}

void pfx_quiesce(struct pfx_client *c)
{
	if (!c->n_left_behind || pfx_lease_unsettled(c))
		return;
	c->quiesce_due = true;
	pfx_orphans_flush(c);
}

/* QUIESCED, and RELEASE of every orphan, go out in front; replies are skipped like late ones. */
static int append_orphans(struct pfx_client *c)
{
	if (c->quiesce_due && c->connected) {
		struct proto_quiesced_req req = pfx_quiesced_req(c);
		int r = append(c, PROTO_OP_QUIESCED, ++c->seq, &req);

		if (r)
			return r;
		c->quiesce_due = false;
		c->n_left_behind = 0;
	}
	while (c->n_orphans) {
		struct proto_release_req req = { .op_id = pfx_op_id(c),
						 .lease = c->orphans[c->n_orphans - 1] };
		int r = append(c, PROTO_OP_RELEASE, ++c->seq, &req);

		if (r)
			return r;
		c->n_orphans--;
	}
	return 0;
}

void pfx_orphans_flush(struct pfx_client *c)
{
	int r;

	if (!c->connected || (c->wire.tx_off < c->wire.tx_len && pfx_wire_flush(&c->wire, 0)))
		return;
	r = append_orphans(c);
	if (r == 0)
		r = pfx_wire_flush(&c->wire, 0);
	/* What did not go now goes with the next request; it also notices a broken connection. */
	(void)r;
}

/* Keeps the end of a load for who will ask, gives back what a reply gave that nobody waits for. */
static void skip_late(struct pfx_client *c, const struct pfx_frame *f)
{
	struct proto_match_rep match;
	struct proto_event event;
	struct proto_open_rep open;
	int fds[PFX_MAX_FDS];
	const char *bad;

	if (f->h.status != PROTO_STATUS_OK)
		return;
	if (f->h.op == PROTO_OP_EVENT && proto_event_decode(f->body, f->h.len, &event, &bad) == 0 &&
	    (event.state == PROTO_WAIT_LOADED || event.state == PROTO_WAIT_FAILED))
		pfx_lease_loaded(c, f->h.seq, &event);
	if (f->h.op == PROTO_OP_MATCH &&
	    proto_match_rep_decode_as(f->h.version, f->body, f->h.len, &match, &bad) == 0 &&
	    match.lease)
		pfx_orphan(c, match.lease);
	if (f->h.op == PROTO_OP_OPEN &&
	    proto_open_rep_decode_as(f->h.version, f->body, f->h.len, &open, &bad) == 0 &&
	    pfx_wire_take_fds(&c->wire, pfx_open_fds(&open), fds)) {
		for (uint32_t i = 0; i < pfx_open_fds(&open); i++)
			close(fds[i]);
	}
}

int pfx_bad_reply(struct pfx_client *c, uint16_t op, const char *field)
{
	pfx_drop(c);
	return pfx_fail(c, PFX_PROTOCOL, "the reply to %s does not decode: %s",
			proto_op_to_string(op), field);
}

/* A reply with an error status.  Return: the status as the caller sees it. */
static int take_error(struct pfx_client *c, const struct pfx_frame *f)
{
	const char *op = proto_op_to_string(f->h.op);
	struct proto_error e;
	const char *bad;

	if (proto_error_decode(f->body, f->h.len, &e, &bad))
		return pfx_bad_reply(c, f->h.op, bad);
	c->retry_after_us = e.retry_after_us;
	(void)pfx_fail(c, 0, "%s: %s%.*s%s%.*s", op,
		       e.field.n ? "" : proto_status_to_string(f->h.status), (int)e.field.n,
		       e.field.n ? (const char *)e.field.p : "", ": ", (int)e.text.n,
		       e.text.n ? (const char *)e.text.p : "");
	switch (f->h.status) {
	case PROTO_STATUS_BAD_FRAME:
	case PROTO_STATUS_VERSION:
	case PROTO_STATUS_TOO_LARGE:
	case PROTO_STATUS_NO_HELLO:
		pfx_drop(c); /* the daemon closes now */
		return PFX_PROTOCOL;
	case PROTO_STATUS_SELF_TEST:
		pfx_drop(c);
		return PFX_SELF_TEST;
	case PROTO_STATUS_UNKNOWN_NAMESPACE:
		/* Its pool was lost, and made again, while the request was on its way. */
		return c->heard_of_loss ? PFX_DEVICE_LOST : PFX_UNKNOWN_NAMESPACE;
	default:
		return f->h.status < PFX_GONE ? f->h.status : PFX_PROTOCOL;
	}
}

/* What a failure below means for the connection, and its text. */
static int broken(struct pfx_client *c, uint16_t op, int r)
{
	const char *name = proto_op_to_string(op);

	switch (r) {
	case PFX_DEADLINE:
		return pfx_fail(c, r, "%s: no answer before the deadline", name);
	case PFX_NO_MEMORY:
		pfx_drop(c); /* in the middle of a frame that can not be kept */
		return pfx_fail(c, r, "%s: no memory for the reply", name);
	case PFX_PROTOCOL:
		pfx_drop(c);
		return pfx_fail(c, r, "%s: the daemon sent %s", name, c->wire.why);
	default:
		pfx_drop(c);
		return pfx_fail(c, r, "%s: %s", name, c->wire.why);
	}
}

static int send_request(struct pfx_client *c, uint16_t op, const void *msg)
{
	size_t start;
	/* What an earlier deadline left unsent goes first, so that tx holds one frame at most. */
	int r = pfx_wire_flush(&c->wire, c->call_deadline_ns);

	if (r)
		return broken(c, op, r);
	r = append_orphans(c);
	if (r)
		return r;
	start = c->wire.tx_len;
	r = append(c, op, ++c->seq, msg);
	if (r)
		return r;
	r = pfx_wire_flush(&c->wire, c->call_deadline_ns);
	c->in_doubt = true;
	if (r == PFX_DEADLINE && c->wire.tx_off <= start) {
		c->wire.tx_len = start; /* none of it has gone: it never will */
		c->in_doubt = false;
	}
	return r ? broken(c, op, r) : 0;
}

bool pfx_hears_of_loss(struct pfx_client *c, const struct pfx_frame *f)
{
	if (f->h.op != PROTO_OP_LOST || f->h.status != PROTO_STATUS_DEVICE_LOST ||
	    f->h.version < 3 || !proto_id_equal(&f->h.boot, &c->boot))
		return false;
	pfx_group_lost(c, f->h.seq);
	c->heard_of_loss = true;
	return true;
}

/*
 * The next frame, if it is of this life of the daemon.  LOST is heard in between: it belongs to no
 * call.  Return: as pfx_request.
 */
static int receive_any(struct pfx_client *c, uint16_t asked, struct pfx_frame *ret_frame)
{
	int r;

	do {
		r = pfx_wire_receive(&c->wire, c->call_deadline_ns, ret_frame);
	} while (r == 0 && pfx_hears_of_loss(c, ret_frame));
	if (r)
		return broken(c, asked, r);
	if (asked != PROTO_OP_HELLO && !proto_id_equal(&ret_frame->h.boot, &c->boot)) {
		c->wire.why = "the reply is of another life of the daemon";
		return broken(c, asked, PFX_LOST);
	}
	return 0;
}

/* What came is not what was waited for.  Return: as pfx_request. */
static int pass_by(struct pfx_client *c, uint16_t asked, const struct pfx_frame *f, uint64_t newest)
{
	if (f->h.seq > newest) {
		c->wire.why = "a reply that was not asked for";
		return broken(c, asked, PFX_PROTOCOL);
	}
	skip_late(c, f);
	if (c->wire.fd < 0)
		return pfx_fail(c, PFX_NO_MEMORY, "no memory to remember a late lease");
	return 0;
}

/*
 * The frame `op` of the last request; what comes before it was for calls that gave up, or ends a
 * load.  An EVENT of an ended wait has an older seq, like a late reply.  Return: as pfx_request;
 * `asked` names the call.
 */
static int receive_frame(struct pfx_client *c, uint16_t asked, uint16_t op,
			 struct pfx_frame *ret_frame)
{
	for (;;) {
		int r = receive_any(c, asked, ret_frame);

		if (r || (ret_frame->h.seq == c->seq && ret_frame->h.op == op))
			return r;
		r = pass_by(c, asked, ret_frame, c->seq - 1);
		if (r)
			return r;
	}
}

int pfx_request(struct pfx_client *c, uint16_t op, const void *msg, struct pfx_frame *ret_frame)
{
	struct pfx_frame f;
	int r;

	c->in_doubt = c->heard_of_loss = false;
	if (c->stream_seq)
		return pfx_fail(c, PFX_WRONG_STATE,
				"%s: this client has subscribed and hears events only",
				proto_op_to_string(op));
	r = send_request(c, op, msg);
	if (r == 0)
		r = receive_frame(c, op, op, &f);
	if (r)
		return r;
	c->in_doubt = false;
	if (f.h.status != PROTO_STATUS_OK)
		return take_error(c, &f);
	*ret_frame = f;
	return 0;
}

int pfx_event(struct pfx_client *c, struct pfx_frame *ret_frame)
{
	return receive_frame(c, PROTO_OP_WAIT, PROTO_OP_EVENT, ret_frame);
}

int pfx_event_of_load(struct pfx_client *c, uint64_t handle)
{
	c->in_doubt = false;
	for (;;) {
		struct pfx_lease *l = pfx_lease_find(c, handle);
		struct pfx_frame f;
		int r;

		radix_assert(l); /* the caller's, and nothing here removes one without an error */
		if (l->load_ended)
			return 0;
		r = receive_any(c, PROTO_OP_EVENT, &f);
		if (r == 0)
			r = pass_by(c, PROTO_OP_EVENT, &f, c->seq);
		if (r)
			return r;
	}
}
