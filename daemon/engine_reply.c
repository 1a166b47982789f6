/*
 * engine_reply.c - what a step hands out: actions, and the frames they point to.
 *
 * What it guarantees.  A frame is written once, in the engine's own buffer, and runs of slots are
 * written straight into it.  Actions that must not be lost (SEND, CLOSE, FORGET, POOL_*, EXIT) do
 * find room, because room for them is made before anything takes effect; POISON and LOG are dropped
 * when memory for them cannot be had: they help people and tests, nothing depends on them.
 *
 * What it relies on.  A step emits at most one frame of up to max_frame bytes, plus one OPEN reply
 * for each waiting OPEN, one EVENT for each WAIT and a small frame for each RESERVE that waits and
 * each load; prefixd_out_reserve() was called for those when they began.  Whoever may send more
 * (a RESERVE that waited is granted) looks at prefixd_out_left() first and waits for another step.
 */
#include "daemon/engine_internal.h"

#include <stdarg.h>
#include <stdio.h>

#define ACTIONS_KEPT 16u /* places that POISON and LOG leave for the others */

void *prefixd_grow(const struct radix_alloc *a, void *old, size_t old_len, size_t new_len)
{
	void *p = radix_take(a, new_len);

	if (!p)
		return NULL;
	if (old_len)
		memcpy(p, old, old_len);
	radix_give(a, old, old_len);
	return p;
}

static int grow_actions(struct prefixd_engine *e, uint32_t n)
{
	uint32_t cap = e->actions_cap ? e->actions_cap : 64;
	struct prefixd_action *v;

	while (cap - e->n_actions < n)
		cap *= 2;
	if (cap == e->actions_cap)
		return 0;
	v = prefixd_grow(e->alloc, e->actions, e->actions_cap * sizeof(*v), cap * sizeof(*v));
	if (!v)
		return -ENOMEM;
	e->actions = v;
	e->actions_cap = cap;
	return 0;
}

int prefixd_actions_room(struct prefixd_engine *e, uint32_t n)
{
	return grow_actions(e, n + ACTIONS_KEPT + 2 * e->n_waiting + e->n_waits + e->n_later);
}

size_t prefixd_out_total(uint32_t max_frame, uint32_t waits, uint32_t later)
{
	return max_frame + PREFIXD_OUT_SLACK + (size_t)waits * PREFIXD_EVENT_ROOM +
	       (size_t)later * PREFIXD_LATER_ROOM;
}

size_t prefixd_out_left(const struct prefixd_engine *e)
{
	size_t kept = e->out_len + (size_t)e->n_waits * PREFIXD_EVENT_ROOM +
		      (size_t)e->n_later * PREFIXD_LATER_ROOM;

	return kept < e->out_cap ? e->out_cap - kept : 0;
}

int prefixd_later_room(struct prefixd_engine *e)
{
	uint32_t cap = e->later_cap ? 2 * e->later_cap : 64;

	if (e->n_later < e->later_cap)
		return 0;
	if (prefixd_out_reserve(e, prefixd_out_total(e->config.limits.max_frame, e->waits_cap, cap),
				64 + e->waits_cap + cap) < 0)
		return -ENOMEM;
	e->later_cap = cap;
	return 0;
}

int prefixd_out_reserve(struct prefixd_engine *e, size_t bytes, uint32_t n)
{
	uint8_t *out;

	radix_assert(e->out_len == 0);
	if (grow_actions(e, n + ACTIONS_KEPT) < 0)
		return -ENOMEM;
	if (bytes <= e->out_cap)
		return 0;
	out = radix_take(e->alloc, bytes);
	if (!out)
		return -ENOMEM;
	radix_give(e->alloc, e->out, e->out_cap);
	e->out = out;
	e->out_cap = bytes;
	return 0;
}

struct prefixd_action *prefixd_act(struct prefixd_engine *e, enum prefixd_action_type type,
				   uint32_t session)
{
	struct prefixd_action *a;

	radix_assert(e->n_actions < e->actions_cap);
	a = &e->actions[e->n_actions++];
	memset(a, 0, sizeof(*a));
	a->type = type;
	a->session = session;
	a->group = RADIX_NONE;
	return a;
}

void prefixd_poison(struct prefixd_engine *e, uint32_t group, uint32_t slot)
{
	struct prefixd_action *last = e->n_actions ? &e->actions[e->n_actions - 1] : NULL;

	if (prefixd_group_lost(e->groups[group]))
		return; /* there is nothing to be filled */
	if (last && last->type == PREFIXD_ACTION_POISON && last->group == group &&
	    last->u.poison.start + last->u.poison.len == slot) {
		last->u.poison.len++;
		return;
	}
	if (prefixd_actions_room(e, 1) < 0)
		return;
	last = prefixd_act(e, PREFIXD_ACTION_POISON, RADIX_NONE);
	last->group = group;
	last->u.poison = (struct radix_run){ .start = slot, .len = 1 };
}

void prefixd_log(struct prefixd_engine *e, enum prefixd_log_level level, const char *fmt, ...)
{
	size_t left = sizeof(e->log_text) - e->log_len;
	char *text = e->log_text + e->log_len;
	struct prefixd_action *a;
	va_list ap;
	int n;

	if (prefixd_actions_room(e, 1) < 0)
		return;
	va_start(ap, fmt);
	n = vsnprintf(text, left, fmt, ap);
	va_end(ap);
	if (n < 0 || (size_t)n >= left)
		return;
	e->log_len += (size_t)n + 1;
	a = prefixd_act(e, PREFIXD_ACTION_LOG, RADIX_NONE);
	a->u.log.level = level;
	a->u.log.text = text;
}

void prefixd_reply_begin(struct prefixd_engine *e, struct prefixd_reply *rp, uint32_t fixed)
{
	/* Runs are pairs of u32: begin the frame where they come to lie on a multiple of 4. */
	size_t base = ((e->out_len + PROTO_HEADER_LEN + fixed + 3) & ~(size_t)3) -
		      PROTO_HEADER_LEN - fixed;
	size_t cap = e->out_cap - base;

	radix_assert(base <= e->out_cap);
	rp->base = base;
	rp->w = (struct proto_writer){ .p = e->out + base, .cap = cap };
	rp->start = proto_frame_begin(&rp->w);
}

struct radix_runs prefixd_reply_runs(struct prefixd_engine *e, const struct prefixd_reply *rp,
				     uint32_t fixed, uint32_t tail, uint32_t want)
{
	size_t at = PROTO_HEADER_LEN + fixed;
	size_t room = e->config.limits.max_frame - at - tail;
	struct radix_runs runs = { 0 };

	room = radix_min_u64(room, rp->w.cap - at - tail) / sizeof(struct radix_run);
	runs.v = (struct radix_run *)(void *)(rp->w.p + at);
	runs.cap = (uint32_t)radix_min_u64(room, want);
	return runs;
}

void prefixd_reply_add_runs(struct prefixd_reply *rp, uint32_t n)
{
	/* RUNS is the last field: its count is the last word that was written. */
	memcpy(rp->w.p + rp->w.len - sizeof(n), &n, sizeof(n));
	rp->w.len += (size_t)n * sizeof(struct radix_run);
}

void prefixd_reply_add_lossy(struct prefixd_reply *rp, const struct proto_match_rep *rep)
{
	const uint32_t v[] = { rep->n_lossy, rep->first_lossy };

	memcpy(rp->w.p + rp->w.len, v, sizeof(v));
	rp->w.len += sizeof(v);
}

static struct prefixd_action *finish(struct prefixd_engine *e, struct prefixd_request *rq,
				     struct prefixd_reply *rp, enum proto_status status)
{
	struct proto_header h = {
		.version = rq->s->version,
		.op = rq->h->op,
		.status = (uint16_t)status,
		.seq = rq->h->seq,
		.boot = e->config.boot,
	};
	struct prefixd_action *a;
	size_t body = rp->start + PROTO_HEADER_LEN;
	int r = proto_frame_end(&rp->w, rp->start, &h);

	/* Every reply's size is bounded by max_frame, which the buffer holds. */
	radix_assert(r == 0 && proto_writer_ok(&rp->w));
	if (rq->shared) {
		prefixd_call_answered(e, rq, status, rp->w.p + body, (uint32_t)(rp->w.len - body));
		return NULL;
	}
	a = prefixd_act(e, PREFIXD_ACTION_SEND, rq->s->number);
	a->u.send.bytes = e->out + rp->base;
	a->u.send.len = rp->w.len;
	e->out_len = rp->base + rp->w.len;
	rq->n_replies++;
	return a;
}

struct prefixd_action *prefixd_reply_send(struct prefixd_engine *e, struct prefixd_request *rq,
					  struct prefixd_reply *rp)
{
	struct prefixd_action *a = finish(e, rq, rp, PROTO_STATUS_OK);

	if (a && rq->keep)
		prefixd_op_keep(e, rq, a->u.send.bytes + PROTO_HEADER_LEN,
				(uint32_t)(a->u.send.len - PROTO_HEADER_LEN));
	return a;
}

void prefixd_reply_send_status(struct prefixd_engine *e, struct prefixd_request *rq,
			       struct prefixd_reply *rp, enum proto_status status)
{
	if (status == PROTO_STATUS_OK)
		prefixd_reply_send(e, rq, rp);
	else
		finish(e, rq, rp, status);
}

void prefixd_say(struct prefixd_engine *e, struct prefixd_request *rq, enum proto_status status,
		 const struct proto_error *err)
{
	struct prefixd_reply rp;

	prefixd_reply_begin(e, &rp, 0);
	proto_error_encode(&rp.w, err);
	finish(e, rq, &rp, status);
}

void prefixd_refuse_as(struct prefixd_engine *e, struct prefixd_request *rq,
		       enum proto_status status, const struct proto_error *err)
{
	prefixd_say(e, rq, status, err);
	e->counters.errors++;
}

void prefixd_refuse(struct prefixd_engine *e, struct prefixd_request *rq, enum proto_status status,
		    const char *field, const char *fmt, ...)
{
	struct proto_error err = { 0 };
	char text[512];
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	err.text.p = text;
	err.text.n = n < 0 ? 0 : radix_min_u32((uint32_t)n, sizeof(text) - 1);
	if (field) {
		err.field.p = field;
		err.field.n = (uint32_t)strlen(field);
	}
	prefixd_refuse_as(e, rq, status, &err);
}

void prefixd_refuse_busy(struct prefixd_engine *e, struct prefixd_request *rq,
			 uint32_t retry_after_us, const char *text)
{
	struct proto_error err = {
		.text = { .p = text, .n = (uint32_t)strlen(text) },
		.retry_after_us = retry_after_us,
	};

	prefixd_refuse_as(e, rq, PROTO_STATUS_BUSY, &err);
}

void prefixd_refuse_memory(struct prefixd_engine *e, struct prefixd_request *rq)
{
	prefixd_refuse(e, rq, PROTO_STATUS_NO_MEMORY, NULL,
		       "the daemon has no memory for this request; nothing was changed");
}

void prefixd_refuse_graft(struct prefixd_engine *e, struct prefixd_request *rq, int r)
{
	prefixd_refuse(e, rq, PROTO_STATUS_CONFLICT, "parent",
		       r == RADIX_E_CIRCLE
			       ? "the parent hangs below the first key itself, which would make a "
				 "circle; go on without 'parent'"
			       : "the first key already hangs below another parent; go on without "
				 "'parent'");
}

const char *prefixd_commit_stop_to_string(int r)
{
	if (r < 0)
		return "found no memory";
	if (r == RADIX_E_REFUSED)
		return "hangs below one without a copy on the device, or a changed copy of it is "
		       "held";
	return r == RADIX_E_CIRCLE ? "is stored already, above the lease's own place"
				   : "is stored already, below another parent";
}

bool prefixd_word_check(struct prefixd_engine *e, struct prefixd_request *rq, uint32_t word)
{
	if (word <= rq->s->n_words)
		return true;
	prefixd_refuse(e, rq, PROTO_STATUS_BAD_BODY, "word",
		       "'word' is %u, and this session has %u words; OPEN with WORDS gives them",
		       word, rq->s->n_words);
	return false;
}

void prefixd_refuse_body(struct prefixd_engine *e, struct prefixd_request *rq, const char *field)
{
	prefixd_refuse(
		e, rq, PROTO_STATUS_BAD_BODY, field,
		"the body does not decode: field '%s' is cut off, too long, or wrong; see the "
		"message tables of protocol version %u",
		field ? field : "", rq->s->version);
}
