/*
 * engine.c - the step: events in, actions out; creation, time, tenants.
 *
 * What it guarantees.  Every FRAME of a session that can still be answered gets exactly one reply,
 * or waits for its pool and then gets one.  What an operation may do in a session's state stands in
 * one table.  Room for the largest reply and for the actions of a step is made beforehand, so that
 * no answer is lost for want of memory.
 *
 * What it relies on.  Events as engine.h describes them; see there.
 */
#include "daemon/engine_internal.h"

void prefixd_engine_config_init(struct prefixd_engine_config *config)
{
	memset(config, 0, sizeof(*config));
	config->limits.max_frame = PROTO_MAX_FRAME_DEFAULT;
	config->limits.max_keys = 65536;
	config->limits.max_sessions = 1024;
	config->limits.max_sessions_per_process = 64;
	config->limits.max_namespaces = 64;
	config->limits.max_leases = 4096;
	config->limits.max_groups = 16;
	config->limits.op_ids = 1024;
	config->limits.op_id_ns = 60ull * 1000 * 1000 * 1000;
	config->limits.pending_ns = 10ull * 1000 * 1000 * 1000;
	config->limits.reserve_ns = 2ull * 1000 * 1000 * 1000;
	config->limits.prefill_ns_per_token = 50000;
	config->pool_bytes = 1ull << 30;
	config->lease_key_bytes = 1ull << 30;
	config->watches_processes = true;
	config->version = "";
	config->event_ring = 65536;
}

/* ---- tenants --------------------------------------------------------------------------------- */

static struct prefixd_tenant *tenant_find(struct prefixd_engine *e, const char *name)
{
	for (uint32_t i = 0; i < e->n_tenants; i++)
		if (strncmp(e->tenants[i].name, name, PREFIXD_TENANT_NAME_MAX) == 0)
			return &e->tenants[i];
	return NULL;
}

/*
 * Takes over a list of tenants.  A name keeps its number for as long as the engine lives, because
 * roots carry the number; a name that is not in the list any more keeps it too, and nobody may use
 * it.  Return: 0, -ENOMEM (nothing changed).
 */
static int tenants_set(struct prefixd_engine *e, const struct prefixd_tenant *v, uint32_t n)
{
	uint32_t cap = e->n_tenants + n, had = e->n_tenants;

	if (cap > e->tenants_cap) {
		void *t = prefixd_grow(e->alloc, e->tenants, e->tenants_cap * sizeof(*e->tenants),
				       cap * sizeof(*e->tenants));

		if (!t)
			return -ENOMEM;
		e->tenants = t;
		e->tenants_cap = cap;
	}
	/* What an earlier life wrote is not overwritten before it was read. */
	if (!e->ledger.found && prefixd_note_tenants_room(e, cap) < 0)
		return -ENOMEM;
	for (uint32_t i = 0; i < e->n_tenants; i++) {
		e->tenants[i].any_uid = false;
		e->tenants[i].n_uids = 0;
	}
	for (uint32_t i = 0; i < n; i++) {
		struct prefixd_tenant *t = tenant_find(e, v[i].name);

		if (!t)
			t = &e->tenants[e->n_tenants++];
		*t = v[i];
		t->name[PREFIXD_TENANT_NAME_MAX - 1] = '\0';
		t->n_uids = radix_min_u32(t->n_uids, radix_array_size(t->uids));
	}
	if (!e->ledger.found)
		prefixd_note_tenants(e, had);
	return 0;
}

/* ---- life ------------------------------------------------------------------------------------ */

static void measure_replies(struct prefixd_engine *e)
{
	struct proto_match_rep match = { 0 };
	struct proto_reserve_rep reserve = { 0 };
	struct proto_commit_rep commit = { 0 };
	struct proto_writer w = { 0 };

	proto_match_rep_encode_as(&w, 2, &match); /* the runs are its last field, up to 2 */
	e->match_fixed = (uint32_t)w.len;
	w.len = 0;
	proto_reserve_rep_encode(&w, &reserve);
	e->reserve_fixed = (uint32_t)w.len;
	w.len = 0;
	proto_commit_rep_encode(&w, &commit);
	e->commit_fixed = (uint32_t)w.len;
}

int prefixd_engine_new(struct prefixd_engine **ret_engine,
		       const struct prefixd_engine_config *config)
{
	const struct radix_alloc *a = config->alloc;
	struct prefixd_engine *e = prefixd_take0(a, sizeof(*e));
	uint64_t serial;

	if (!e)
		return -ENOMEM;
	e->alloc = a;
	e->config = *config;
	e->config.tenants = NULL; /* the engine's own copy counts */
	e->next_ns = 1;
	/* Ids of one life should not look like those of the last one. */
	memcpy(&serial, config->boot.b, sizeof(serial));
	e->next_serial = 1 + (serial & 0xffffffffff);
	radix_list_init(&e->free_leases);
	radix_list_init(&e->quarantine);
	radix_list_init(&e->aging);
	radix_list_init(&e->stripes_open);
	radix_list_init(&e->stripes_due);
	radix_list_init(&e->decisions_over);
	radix_list_init(&e->lead_due);
	radix_list_init(&e->changed);
	radix_list_init(&e->unled);
	radix_list_init(&e->stirred);
	radix_list_init(&e->loads_due);
	radix_list_init(&e->loads_stuck);
	radix_list_init(&e->loads_stirred);
	radix_list_init(&e->seeks);
	radix_list_init(&e->desks_left);
	e->free_move = RADIX_NONE;
	e->check_again_ns = UINT64_MAX;
	prefixd_events_init(e);
	measure_replies(e);
	e->groups_cap = config->limits.max_groups;
	e->groups = prefixd_take0(a, (e->groups_cap + 1) * sizeof(struct prefixd_group *));
	if (config->ledger &&
	    prefixd_ledger_init(&e->ledger, a, config->ledger, config->naming_key) < 0) {
		prefixd_engine_free(e);
		return -ENOMEM;
	}
	if (config->ledger && !e->ledger.found)
		prefixd_ledger_life(&e->ledger, &config->boot);
	if (!e->groups || tenants_set(e, config->tenants, config->n_tenants) < 0 ||
	    prefixd_out_reserve(e, config->limits.max_frame + PREFIXD_OUT_SLACK, 64) < 0) {
		prefixd_engine_free(e);
		return -ENOMEM;
	}
	*ret_engine = e;
	return 0;
}

struct prefixd_engine *prefixd_engine_free(struct prefixd_engine *e)
{
	const struct radix_alloc *a;

	if (!e)
		return NULL;
	a = e->alloc;
	/* What is written down stays, for the next life. */
	if (e->ledger.alloc)
		prefixd_ledger_deinit(&e->ledger);
	/* The index goes as a whole, so nothing is taken apart one by one. */
	while (e->sessions.n)
		prefixd_session_free(
			e, radix_container_of(e->sessions.v[0], struct prefixd_session, item));
	prefixd_desks_deinit(e);
	for (uint32_t i = 0; i < e->roots.n; i++) {
		struct prefixd_root *r = radix_container_of(e->roots.v[i], struct prefixd_root,
							    item);

		prefixd_namespace_unref(e, r->ns);
		radix_give(a, r, sizeof(*r) + r->salt_len);
	}
	while (e->namespaces.n) /* those whose epoch was raised stay till now */
		prefixd_namespace_unref(
			e, radix_container_of(e->namespaces.v[0], struct prefixd_namespace, item));
	prefixd_leases_deinit(e);
	prefixd_decisions_deinit(e);
	prefixd_moves_deinit(e);
	prefixd_seeks_deinit(e);
	prefixd_names_deinit(e);
	prefixd_events_deinit(e);
	for (uint32_t i = 0; i < e->n_groups; i++)
		if (e->groups[i])
			prefixd_group_free(e, e->groups[i]);
	prefixd_set_deinit(a, &e->sessions);
	prefixd_set_deinit(a, &e->roots);
	prefixd_set_deinit(a, &e->namespaces);
	radix_give(a, e->groups, (e->groups_cap + 1) * sizeof(struct prefixd_group *));
	radix_give(a, e->tenants, e->tenants_cap * sizeof(*e->tenants));
	radix_give(a, e->checks, PREFIXD_CHECKS * sizeof(*e->checks));
	radix_give(a, e->actions, e->actions_cap * sizeof(*e->actions));
	radix_give(a, e->waits, e->waits_cap * sizeof(struct prefixd_lease *));
	radix_give(a, e->out, e->out_cap);
	radix_give(a, e, sizeof(*e));
	return NULL;
}

/* ---- frames ---------------------------------------------------------------------------------- */

/* Who answers each operation; others are UNKNOWN_OP, and before HELLO all but it are NO_HELLO. */
static const struct op_rule {
	prefixd_handler *handler; /* NULL: this daemon cannot do it */
	const char *without;      /* why not, and what to do instead */
} op_rules[] = {
	[PROTO_OP_HELLO] = { prefixd_op_hello, NULL },
	[PROTO_OP_OPEN] = { prefixd_op_open, NULL },
	[PROTO_OP_MATCH] = { prefixd_op_match, NULL },
	[PROTO_OP_EXTEND] = { prefixd_op_extend, NULL },
	[PROTO_OP_RESERVE] = { prefixd_op_reserve, NULL },
	[PROTO_OP_COMMIT] = { prefixd_op_commit, NULL },
	[PROTO_OP_RELEASE] = { prefixd_op_release, NULL },
	[PROTO_OP_WAIT] = { prefixd_op_wait, NULL },
	[PROTO_OP_PREFETCH] = { prefixd_op_prefetch, NULL },
	[PROTO_OP_PROBE] = { prefixd_op_probe, NULL },
	[PROTO_OP_EXPLAIN] = { prefixd_op_explain, NULL },
	[PROTO_OP_REPORT] = { prefixd_op_report, NULL },
	[PROTO_OP_SUBSCRIBE] = { prefixd_op_subscribe, NULL },
	[PROTO_OP_QUIESCED] = { prefixd_op_quiesced, NULL },
	[PROTO_OP_PING] = { prefixd_op_ping, NULL },
};

static void dispatch(struct prefixd_engine *e, struct prefixd_request *rq)
{
	uint16_t op = rq->h->op;
	const struct op_rule *rule = op < radix_array_size(op_rules) ? &op_rules[op] : NULL;

	if (!rule || (!rule->handler && !rule->without)) {
		prefixd_refuse(e, rq, PROTO_STATUS_UNKNOWN_OP, NULL,
			       "operation %u is not one of this socket's; see HELLO's version", op);
		return;
	}
	if (!rule->handler) {
		prefixd_refuse(e, rq, PROTO_STATUS_UNSUPPORTED, NULL, "%s", rule->without);
		return;
	}
	if (op == PROTO_OP_HELLO && rq->s->state != PREFIXD_SESSION_FRESH) {
		prefixd_refuse(e, rq, PROTO_STATUS_WRONG_STATE, NULL,
			       "HELLO was said already; it comes once, first");
		return;
	}
	if (rq->s->rank != RADIX_NONE && prefixd_stripe_request(e, rq))
		return;
	rule->handler(e, rq);
}

static void on_frame(struct prefixd_engine *e, struct prefixd_session *s,
		     const struct prefixd_event *event)
{
	struct prefixd_request rq = {
		.s = s,
		.h = event->u.frame.header,
		.body = event->u.frame.body,
	};

	if (s->state == PREFIXD_SESSION_ORPHAN)
		return; /* read before the socket closed; nobody listens any more */
	e->counters.requests++;
	s->n_requests++;
	if (rq.h->version != s->version) {
		prefixd_refuse(e, &rq, PROTO_STATUS_VERSION, NULL,
			       "a frame of version %u; %u was agreed on by HELLO, which itself is "
			       "always of version %u",
			       rq.h->version, s->version, PROTO_VERSION_HELLO);
		prefixd_session_close(e, s);
	} else if (s->state == PREFIXD_SESSION_FRESH && rq.h->op != PROTO_OP_HELLO &&
		   !(s->peer.admin && rq.h->op == PROTO_OP_PING)) {
		prefixd_refuse(e, &rq, PROTO_STATUS_NO_HELLO, NULL,
			       "the first frame of a connection is HELLO");
		prefixd_session_close(e, s);
	} else if (s->state == PREFIXD_SESSION_FRESH && rq.h->len > PROTO_MAX_HELLO) {
		prefixd_refuse(e, &rq, PROTO_STATUS_TOO_LARGE, NULL,
			       "a frame before the end of HELLO has at most %u bytes",
			       PROTO_MAX_HELLO);
		prefixd_session_close(e, s);
	} else {
		dispatch(e, &rq);
	}
	radix_assert(rq.n_replies == (rq.deferred ? 0 : 1));
}

static void on_frame_bad(struct prefixd_engine *e, struct prefixd_session *s,
			 const struct prefixd_event *event)
{
	struct prefixd_request rq = { .s = s, .h = event->u.bad.header };
	enum proto_status status = event->u.bad.status;

	if (s->state == PREFIXD_SESSION_ORPHAN)
		return;
	e->counters.requests++;
	s->n_requests++;
	prefixd_refuse(
		e, &rq, status, NULL,
		"header: magic %08x, version %u, %u bytes, flags %u; right are %08x, %u, at "
		"most %u, 0",
		rq.h->magic, rq.h->version, rq.h->len, rq.h->flags, PROTO_MAGIC, s->version,
		(s->state == PREFIXD_SESSION_FRESH ? PROTO_MAX_HELLO : e->config.limits.max_frame) -
			PROTO_HEADER_LEN);
	prefixd_session_close(e, s);
}

/* ---- time, draining, admin ------------------------------------------------------------------- */

static void on_time(struct prefixd_engine *e)
{
	uint64_t max_age = e->config.limits.lease_max_age_ns;

	prefixd_lost_time(e);
	while (!radix_list_empty(&e->quarantine)) {
		struct prefixd_lease *l = radix_list_first(&e->quarantine, struct prefixd_lease,
							   link);

		if (l->due_ns > e->now_ns)
			break;
		(void)prefixd_lease_unquarantine(e, l);
	}
	while (max_age && !radix_list_empty(&e->aging)) {
		struct prefixd_lease *l = radix_list_first(&e->aging, struct prefixd_lease, aging);

		if (e->now_ns - l->begun_ns < max_age)
			break;
		prefixd_session_revoke(e, l);
	}
	prefixd_stripes_time(e, false);
	prefixd_pending_time(e);
	prefixd_room_time(e);
	prefixd_loads_time(e);
}

uint64_t prefixd_engine_deadline(const struct prefixd_engine *e)
{
	uint64_t due = prefixd_pending_deadline(e), max_age = e->config.limits.lease_max_age_ns;

	if (!radix_list_empty(&e->quarantine))
		due = radix_min_u64(
			due, radix_list_first(&e->quarantine, struct prefixd_lease, link)->due_ns);
	if (!radix_list_empty(&e->aging) && max_age)
		due = radix_min_u64(
			due, radix_list_first(&e->aging, struct prefixd_lease, aging)->begun_ns +
				     max_age);
	if (e->draining && !e->exited && e->drain_deadline_ns)
		due = radix_min_u64(due, e->drain_deadline_ns);
	due = radix_min_u64(due, e->check_again_ns);
	due = radix_min_u64(due, prefixd_stripes_deadline(e));
	due = radix_min_u64(due, prefixd_calls_deadline(e));
	due = radix_min_u64(due, prefixd_fence_deadline(e));
	due = radix_min_u64(due, prefixd_room_deadline(e));
	due = radix_min_u64(due, prefixd_loads_deadline(e));
	due = radix_min_u64(due, prefixd_lost_deadline(e));
	return radix_min_u64(due, e->events.due_ns);
}

/* Whoever waits for slots gets what there is. */
static void on_drain(struct prefixd_engine *e, uint64_t deadline_ns)
{
	e->draining = true;
	e->drain_deadline_ns = deadline_ns;
	prefixd_stripes_time(e, true);
	for (uint32_t i = 0; i < e->n_groups; i++)
		if (e->groups[i])
			prefixd_room_stir(e, e->groups[i]);
}

static void drain_check(struct prefixd_engine *e)
{
	if (!e->draining || e->exited)
		return;
	/* Nothing more begins to move, but what is on its way down arrives. */
	if ((e->n_active == 0 && !prefixd_moves_down(e)) ||
	    (e->drain_deadline_ns && e->now_ns >= e->drain_deadline_ns)) {
		e->exited = true;
		prefixd_act(e, PREFIXD_ACTION_EXIT, RADIX_NONE);
	}
}

static void on_evict(struct prefixd_engine *e, struct prefixd_event *event)
{
	uint32_t group = event->u.admin.group;
	struct prefixd_group *g = group < e->n_groups ? e->groups[group] : NULL;

	event->ret_n = 0;
	if (!g || !g->index)
		return;
	g->reap = true;
	prefixd_room_stir(e, g);
	event->ret_n = radix_evict(g->index, (uint32_t)radix_min_u64(event->u.admin.n, UINT32_MAX),
				   RADIX_REMOVE_EVICT);
}

static void on_flush(struct prefixd_engine *e, struct prefixd_event *event)
{
	event->ret_n = 0;
	prefixd_events_mute(e, true);
	for (uint32_t i = 0; i < e->roots.n; i++) {
		struct prefixd_root *r = radix_container_of(e->roots.v[i], struct prefixd_root,
							    item);

		if (event->u.admin.ns != RADIX_NONE && r->ns->id != event->u.admin.ns)
			continue;
		r->ns->group->reap = true;
		prefixd_room_stir(e, r->ns->group);
		event->ret_n += radix_flush_root(r->ns->group->index, r->index_root,
						 RADIX_REMOVE_FLUSH);
	}
	prefixd_events_mute(e, false);
	prefixd_events_cleared(e, event->u.admin.ns);
}

static void on_reload(struct prefixd_engine *e, const struct prefixd_event *event)
{
	const struct prefixd_limits *lim = event->u.reload.limits;

	if (lim &&
	    prefixd_out_reserve(e, prefixd_out_total(lim->max_frame, e->waits_cap, e->later_cap),
				64 + e->waits_cap + e->later_cap) == 0) {
		e->config.limits = *lim;
	} else if (lim) {
		prefixd_log(e, PREFIXD_LOG_ERROR,
			    "reload: no memory for frames of %u bytes, keeping "
			    "the old limits",
			    lim->max_frame);
	}
	if (event->u.reload.tenants &&
	    tenants_set(e, event->u.reload.tenants, event->u.reload.n_tenants) < 0)
		prefixd_log(e, PREFIXD_LOG_ERROR,
			    "reload: no memory for the tenants, keeping the "
			    "old ones");
}

/* ---- the step -------------------------------------------------------------------------------- */

static void session_event(struct prefixd_engine *e, const struct prefixd_event *event)
{
	struct prefixd_session *s = prefixd_session_find(e, event->session);

	if (!s)
		return; /* forgotten, with something of it still under way */
	switch (event->type) {
	case PREFIXD_EVENT_FRAME:
		on_frame(e, s, event);
		break;
	case PREFIXD_EVENT_FRAME_BAD:
		on_frame_bad(e, s, event);
		break;
	case PREFIXD_EVENT_SESSION_EOF:
		prefixd_session_eof(e, s);
		break;
	case PREFIXD_EVENT_PROCESS_GONE:
		prefixd_session_gone(e, s);
		break;
	case PREFIXD_EVENT_SUBSCRIBER_READY:
		prefixd_events_ready(e, s);
		break;
	case PREFIXD_EVENT_SESSION_OPENED:
	case PREFIXD_EVENT_POOL_READY:
	case PREFIXD_EVENT_POOL_FAILED:
	case PREFIXD_EVENT_TIMER:
	case PREFIXD_EVENT_DRAIN:
	case PREFIXD_EVENT_ADMIN_EVICT:
	case PREFIXD_EVENT_ADMIN_FLUSH:
	case PREFIXD_EVENT_RELOAD:
	case PREFIXD_EVENT_MOVED:
	case PREFIXD_EVENT_LOOKED:
	case PREFIXD_EVENT_REDIS_STATE:
	case PREFIXD_EVENT_EPOCH_SEEN:
	case PREFIXD_EVENT_ADMIN_INVALIDATE:
	case PREFIXD_EVENT_RESTORE:
	case PREFIXD_EVENT_VERIFIED:
	case PREFIXD_EVENT_POOL_LOST:
	case PREFIXD_EVENT_DESK_READY:
	case PREFIXD_EVENT_DESK_FAILED:
	case PREFIXD_EVENT_TAKEN:
		break;
	}
}

struct prefixd_actions prefixd_engine_step(struct prefixd_engine *e, struct prefixd_event *event,
					   uint64_t now_ns)
{
	e->now_ns = now_ns > e->now_ns ? now_ns : e->now_ns;
	e->n_actions = 0;
	e->out_len = 0;
	e->log_len = 0;
	prefixd_room_begin(e);
	if (radix_unlikely(e->ledger.found) && event->type != PREFIXD_EVENT_RESTORE)
		prefixd_restore_not(e);
	switch (event->type) {
	case PREFIXD_EVENT_SESSION_OPENED:
		prefixd_session_opened(e, event->session, &event->u.peer);
		break;
	case PREFIXD_EVENT_FRAME:
	case PREFIXD_EVENT_FRAME_BAD:
	case PREFIXD_EVENT_SESSION_EOF:
	case PREFIXD_EVENT_PROCESS_GONE:
	case PREFIXD_EVENT_SUBSCRIBER_READY:
		session_event(e, event);
		break;
	case PREFIXD_EVENT_POOL_READY:
		prefixd_pool_ready(e, event);
		break;
	case PREFIXD_EVENT_POOL_FAILED:
		prefixd_pool_failed(e, event);
		break;
	case PREFIXD_EVENT_TIMER:
		on_time(e);
		break;
	case PREFIXD_EVENT_DRAIN:
		on_drain(e, event->u.drain.deadline_ns);
		break;
	case PREFIXD_EVENT_ADMIN_EVICT:
		on_evict(e, event);
		break;
	case PREFIXD_EVENT_ADMIN_FLUSH:
		on_flush(e, event);
		break;
	case PREFIXD_EVENT_RELOAD:
		on_reload(e, event);
		break;
	case PREFIXD_EVENT_MOVED:
		prefixd_moved(e, event);
		break;
	case PREFIXD_EVENT_REDIS_STATE:
		prefixd_redis_state(e, event->u.redis_up);
		break;
	case PREFIXD_EVENT_LOOKED:
		prefixd_looked(e, event);
		break;
	case PREFIXD_EVENT_EPOCH_SEEN:
		prefixd_epoch_seen(e, event);
		break;
	case PREFIXD_EVENT_ADMIN_INVALIDATE:
		prefixd_invalidate(e, event);
		break;
	case PREFIXD_EVENT_RESTORE:
		prefixd_restore(e, event);
		break;
	case PREFIXD_EVENT_VERIFIED:
		prefixd_verified(e, event);
		break;
	case PREFIXD_EVENT_POOL_LOST:
		prefixd_pool_lost(e, event->u.pool.group);
		break;
	case PREFIXD_EVENT_DESK_READY:
		prefixd_desk_ready(e, event);
		break;
	case PREFIXD_EVENT_DESK_FAILED:
		prefixd_desk_failed(e, event->u.desk.id, event->u.desk.why);
		break;
	case PREFIXD_EVENT_TAKEN:
		prefixd_taken(e, event);
		break;
	}
	do { /* who is given slots may go on or end, and what ends gives others room */
		prefixd_loads_settle(e);
		prefixd_room_settle(e);
	} while (!radix_list_empty(&e->loads_stirred));
	prefixd_pending_settle(e);
	prefixd_calls_settle(e);
	prefixd_lost_settle(e);
	prefixd_roots_reap(e);
	prefixd_checks_settle(e);
	prefixd_fence_settle(e);
	prefixd_moves_settle(e);
	prefixd_desks_settle(e);
	if (event->type == PREFIXD_EVENT_TIMER)
		prefixd_events_send(e); /* last: it takes the room that is left */
	prefixd_events_settle(e);
	drain_check(e);
	return (struct prefixd_actions){ .v = e->actions, .n = e->n_actions };
}
