/*
 * tiers.c - see tiers.h.
 */
#include "daemon/tiers.h"

#include "daemon/budget.h"
#include "daemon/log.h"
#include "daemon/tiers_internal.h"

#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>

#define SILENT_NS     UINT64_C(10000000000) /* then a helper is not well */
#define LATER_AT_ONCE 64u

/* ---- answers without a helper ---------------------------------------------------------------- */

void prefixd_later(struct prefixd_server *s, struct prefixd_later l)
{
	struct prefixd_tiers *t = s->tiers;

	if (t->n_later == t->cap_later) {
		uint32_t cap = t->cap_later ? 2 * t->cap_later : 256;
		struct prefixd_later *v = reallocarray(t->later, cap, sizeof(*v));

		if (!v) { /* the move stays under way, and its slots with it */
			prefixd_error("no memory for an answer to the engine; a block stays under "
				      "way");
			return;
		}
		t->later = v;
		t->cap_later = cap;
	}
	t->later[t->n_later++] = l;
	event_active(t->later_ev, EV_TIMEOUT, 0);
}

void prefixd_later_moved(struct prefixd_server *s, uint32_t id, enum prefixd_move_result result)
{
	prefixd_later(s, (struct prefixd_later){
				 .type = PREFIXD_EVENT_MOVED, .id = id, .result = result });
}

static void later_tell(struct prefixd_server *s, const struct prefixd_later *l)
{
	struct prefixd_event event = { .type = l->type };

	if (l->type == PREFIXD_EVENT_MOVED) {
		event.u.moved.id = l->id;
		event.u.moved.result = l->result;
	} else if (l->type == PREFIXD_EVENT_LOOKED) {
		event.u.looked.id = l->id;
	} else if (l->type == PREFIXD_EVENT_VERIFIED) {
		event.u.verified.id = l->id;
	} else if (l->type == PREFIXD_EVENT_DESK_FAILED) {
		event.u.desk.id = l->id;
		event.u.desk.why = "the daemon has no memory to ask for a desk";
	} else if (l->type == PREFIXD_EVENT_TAKEN) {
		event.u.taken.desk = l->id;
		event.u.taken.place = l->group;
		event.u.taken.result = l->result;
	} else if (l->type == PREFIXD_EVENT_PROCESS_GONE) {
		prefixd_client_gone(s, l->id);
		return;
	} else {
		event.u.pool.group = l->group;
		event.u.pool.why = "the daemon has no memory to ask for the pool";
	}
	prefixd_server_step(s, &event);
}

static void on_later(evutil_socket_t fd, short what, void *ctx)
{
	struct prefixd_server *s = ctx;
	struct prefixd_tiers *t = s->tiers;
	uint32_t n = radix_min_u32(t->n_later, LATER_AT_ONCE);
	struct prefixd_later now[LATER_AT_ONCE];

	(void)prefixd_server_mark(s);
	/* A step may add more: these are out of the way first. */
	memcpy(now, t->later, n * sizeof(now[0]));
	memmove(t->later, t->later + n, (t->n_later - n) * sizeof(now[0]));
	t->n_later -= n;
	for (uint32_t i = 0; i < n; i++)
		later_tell(s, &now[i]);
	if (t->n_later > 0)
		event_active(t->later_ev, EV_TIMEOUT, 0);
	prefixd_server_settle(s);
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* The table holds them writable; only their memory is written, by the helpers. */
struct prefixd_pool *prefixd_pool_of(struct prefixd_server *s, uint32_t group)
{
	radix_assert(group < s->pools.n && s->pools.v[group]); /* the engine names what is READY */
	return s->pools.v[group];
}

static enum prefixd_place place_of(enum radix_tier tier)
{
	return tier == RADIX_TIER_DEVICE ? PREFIXD_PLACE_DEVICE : PREFIXD_PLACE_HOST;
}

static void act_copy(struct prefixd_server *s, const struct prefixd_action *a)
{
	struct prefixd_carrier_message *m = calloc(1, sizeof(*m));
	const struct prefixd_carry *c = &a->u.carry;

	if (!m) {
		prefixd_later_moved(s, c->id, PREFIXD_MOVE_FAILED);
		return;
	}
	m->message.kind = PREFIXD_CARRIER_COPY;
	m->id = c->id;
	m->pool = prefixd_pool_of(s, a->group);
	m->from = place_of(c->from);
	m->to = place_of(c->to);
	m->src = c->src;
	m->dst = c->dst;
	m->urgent = c->urgent;
	m->checksum_kind = c->checksum_kind;
	memcpy(m->checksum, c->checksum, sizeof(m->checksum));
	m->entry = c->entry;
	m->generation = c->generation;
	prefixd_carrier_send(s->tiers->carrier, m);
}

/* ---- epochs ---------------------------------------------------------------------------------- */

static void epochs_save(struct prefixd_server *s)
{
	struct prefixd_epochs *e = &s->tiers->epochs;
	int r = prefixd_epochs_save(e);

	if (r < 0)
		prefixd_error("cannot keep the epochs in %s: %s; until that works a restart may "
			      "serve what was invalidated",
			      e->path, strerror(-r));
}

/*
 * Raised here: kept before whoever asked is answered.  Else the engine begins to use a namespace;
 * if a life before this one knew a later epoch, the engine hears of it before anybody can ask.
 */
static void act_epoch(struct prefixd_server *s, const struct prefixd_action *a)
{
	struct prefixd_tiers *t = s->tiers;
	const struct prefixd_epoch_entry *have;

	if (prefixd_epochs_set(&t->epochs, a->u.epoch.digest, &a->u.epoch.epoch) < 0)
		prefixd_error("no memory to keep an epoch");
	if (a->u.epoch.raised)
		epochs_save(s);
	have = prefixd_epochs_find(&t->epochs, a->u.epoch.digest);
	if (have && prefixd_epoch_after(&have->epoch, &a->u.epoch.epoch)) {
		t->seen = *have;
		t->has_seen = true; /* a step begins with one namespace at most */
	}
	prefixd_act_tell(s, a);
}

void prefixd_tiers_save(struct prefixd_server *s)
{
	if (s->tiers && s->tiers->epochs.path && s->tiers->epochs.dirty)
		epochs_save(s);
}

void prefixd_tiers_after(struct prefixd_server *s)
{
	struct prefixd_event event = { .type = PREFIXD_EVENT_EPOCH_SEEN };
	struct prefixd_tiers *t = s->tiers;

	if (!t || !t->has_seen)
		return;
	t->has_seen = false;
	memcpy(event.u.epoch.digest, t->seen.digest, sizeof(event.u.epoch.digest));
	event.u.epoch.epoch = t->seen.epoch;
	prefixd_server_step(s, &event);
}

/* ---- verifying ------------------------------------------------------------------------------- */

static void act_verify(struct prefixd_server *s, const struct prefixd_action *a)
{
	const size_t len = a->u.verify.n * sizeof(struct radix_sum);
	struct prefixd_carrier_message *m = calloc(1, sizeof(*m) + len);

	if (m) {
		m->message.kind = PREFIXD_CARRIER_VERIFY;
		m->id = a->u.verify.id;
		m->pool = prefixd_pool_of(s, a->group);
		m->sums = memcpy(m + 1, a->u.verify.v, len);
		m->n_sums = a->u.verify.n;
	}
	if (m)
		prefixd_carrier_send(s->tiers->carrier, m);
	else
		prefixd_later(s, (struct prefixd_later){ .type = PREFIXD_EVENT_VERIFIED,
							 .id = a->u.verify.id });
}

/* ---- what the helpers say -------------------------------------------------------------------- */

void prefixd_tiers_moved(struct prefixd_server *s, enum radix_tier from, enum radix_tier to,
			 struct prefixd_event *event)
{
	if (event->u.moved.result == PREFIXD_MOVE_OK)
		prefixd_histogram_add(&s->measures.transfer[from][to], event->u.moved.ns);
	prefixd_server_step(s, event);
}

static enum radix_tier tier_of(enum prefixd_place place)
{
	return place == PREFIXD_PLACE_DEVICE ? RADIX_TIER_DEVICE : RADIX_TIER_HOST;
}

static void copied(struct prefixd_server *s, const struct prefixd_carrier_message *m)
{
	struct prefixd_event event = { .type = PREFIXD_EVENT_MOVED };

	event.u.moved.id = m->id;
	event.u.moved.result = m->result;
	event.u.moved.ns = m->ns;
	event.u.moved.summed = m->summed;
	event.u.moved.lossy = m->lossy;
	memcpy(event.u.moved.checksum, m->checksum, sizeof(event.u.moved.checksum));
	prefixd_tiers_moved(s, tier_of(m->from), tier_of(m->to), &event);
}

static void verified(struct prefixd_server *s, const struct prefixd_carrier_message *m)
{
	struct prefixd_event event = { .type = PREFIXD_EVENT_VERIFIED };

	event.u.verified.id = m->id;
	event.u.verified.bad = m->bad;
	event.u.verified.done = m->done;
	prefixd_server_step(s, &event);
}

static void carrier_answer(struct prefixd_server *s, struct prefixd_carrier_message *m)
{
	switch ((enum prefixd_carrier_op)m->message.kind) {
	case PREFIXD_CARRIER_COPY:
		if (m->ctx)
			prefixd_stage_copied(s, m);
		else
			copied(s, m);
		return;
	case PREFIXD_CARRIER_POOL_NEW:
		prefixd_pool_made(s, m);
		return;
	case PREFIXD_CARRIER_POOL_AGAIN:
		prefixd_device_made(s, m);
		return;
	case PREFIXD_CARRIER_WATCH:
		prefixd_device_lost(s, m);
		return;
	case PREFIXD_CARRIER_VERIFY:
		verified(s, m);
		return;
	case PREFIXD_CARRIER_TAKE:
		prefixd_desk_taken(s, m);
		return;
	case PREFIXD_CARRIER_DESK_NEW:
		prefixd_desk_made(s, m);
		return;
	case PREFIXD_CARRIER_DESK_FREE:
	case PREFIXD_CARRIER_POOL_FREE:
	case PREFIXD_CARRIER_N_OPS:
		return;
	}
}

static void on_carrier(evutil_socket_t fd, short what, void *ctx)
{
	struct prefixd_carrier_message *m;
	struct prefixd_server *s = ctx;
	uint64_t began = prefixd_server_mark(s);

	for (uint32_t i = 0; prefixd_answers_fit(i, began); i++) {
		m = prefixd_carrier_receive(s->tiers->carrier);
		if (!m)
			break;
		carrier_answer(s, m);
		prefixd_carrier_message_free(m);
	}
	prefixd_server_settle(s);
}

/* ---- once a second --------------------------------------------------------------------------- */

static void helper_watch(struct prefixd_helper *h, struct prefixd_watched *w, uint64_t now,
			 bool busy)
{
	uint64_t beat = prefixd_helper_beat(h);
	int r;

	if (prefixd_helper_ended(h)) {
		r = prefixd_helper_restart(h);
		w->since_ns = now;
		if (r == 0)
			prefixd_error("the thread %s had ended; it runs again, %u times by now",
				      prefixd_helper_name(h), prefixd_helper_restarts(h));
		else
			prefixd_error("the thread %s has ended and cannot be started: %s",
				      prefixd_helper_name(h), strerror(-r));
		return;
	}
	if (beat < w->since_ns)
		beat = w->since_ns;
	if (!busy && now > beat + SILENT_NS && !w->silent) {
		w->silent = true;
		prefixd_error("the thread %s has not been heard of for %llu s; %u requests wait",
			      prefixd_helper_name(h),
			      (unsigned long long)((now - beat) / 1000000000u),
			      prefixd_helper_waiting(h));
	} else if (now <= beat + SILENT_NS && w->silent) {
		w->silent = false;
		prefixd_warn("the thread %s is heard of again", prefixd_helper_name(h));
	}
}

static void on_tick(evutil_socket_t fd, short what, void *ctx)
{
	struct prefixd_server *s = ctx;
	struct prefixd_tiers *t = s->tiers;
	uint64_t now = prefixd_server_mark(s);
	struct prefixd_carrier_stats st;

	prefixd_carrier_stats(t->carrier, &st);
	helper_watch(prefixd_carrier_helper(t->carrier), &t->watch_copy, now, st.making);
	if (t->redis)
		helper_watch(prefixd_redis_helper(t->redis), &t->watch_redis, now, false);
	if (st.ops[PREFIXD_CARRIER_COPY].failed > t->n_failed) {
		prefixd_error(
			"%llu copies failed, the last one with: %s%s",
			(unsigned long long)(st.ops[PREFIXD_CARRIER_COPY].failed - t->n_failed),
			strerror(-st.ops[PREFIXD_CARRIER_COPY].last_error),
			st.lost ? "; the device is lost" : "");
		t->n_failed = st.ops[PREFIXD_CARRIER_COPY].failed;
	}
	if (!t->watching && !s->pools.lost)
		prefixd_device_watch(s);
	if (t->epochs.dirty)
		epochs_save(s);
}

/* ---- actions --------------------------------------------------------------------------------- */

void prefixd_tiers_act(struct prefixd_server *s, const struct prefixd_action *a)
{
	switch ((int)a->type) { /* the others are the server's own */
	case PREFIXD_ACTION_POOL_CREATE:
	case PREFIXD_ACTION_POOL_ADOPT:
		prefixd_act_pool_make(s, a);
		return;
	case PREFIXD_ACTION_POOL_DESTROY:
		prefixd_act_pool_destroy(s, a);
		return;
	case PREFIXD_ACTION_VERIFY:
		act_verify(s, a);
		return;
	case PREFIXD_ACTION_COPY:
		act_copy(s, a);
		return;
	case PREFIXD_ACTION_DESK_CREATE:
	case PREFIXD_ACTION_DESK_DESTROY:
	case PREFIXD_ACTION_TAKE:
		prefixd_act_desk(s, a);
		return;
	case PREFIXD_ACTION_STORE:
	case PREFIXD_ACTION_FETCH:
		prefixd_act_carry(s, a);
		return;
	case PREFIXD_ACTION_LOOK:
		prefixd_act_look(s, a);
		return;
	case PREFIXD_ACTION_NAMES:
		prefixd_act_tell(s, a);
		return;
	case PREFIXD_ACTION_EPOCH:
		act_epoch(s, a);
		return;
	default:
		return;
	}
}

bool prefixd_tiers_making(const struct prefixd_server *s)
{
	return s->tiers && s->tiers->n_making > 0;
}

/* ---- settings -------------------------------------------------------------------------------- */

void prefixd_tiers_config(const struct prefixd_options *o, struct prefixd_engine_config *config)
{
	config->host_blocks = prefixd_options_host_blocks(o);
	config->host_bytes = prefixd_budget_host(o);
	config->redis = o->redis[0] != '\0';
	config->index_blocks = prefixd_options_index_blocks(o);
	config->write = (enum prefixd_write_policy)o->write;
	config->staged = prefixd_options_staged(o);
	config->write_blocks = (uint32_t)o->write_blocks;
	config->write_bytes = prefixd_budget_desks(o);
	prefixd_options_watermark(o, &config->watermark_low, &config->watermark_high);
	config->move_window = (uint32_t)o->move_window;
	config->cold_codec = (uint32_t)o->cold_codec;
}

/* ---- start and stop -------------------------------------------------------------------------- */

static int listen_to(struct prefixd_server *s, struct prefixd_helper *h, event_callback_fn call,
		     struct event **ret_ev)
{
	*ret_ev = event_new(s->base, prefixd_helper_answer_fd(h), EV_READ | EV_PERSIST, call, s);
	return *ret_ev && event_add(*ret_ev, NULL) == 0 ? 0 : -ENOMEM;
}

int prefixd_tiers_start(struct prefixd_server *s, char *why, size_t why_len)
{
	const struct prefixd_carrier_config config = { .devices = &s->pools.devices,
						       .device = s->pools.device };
	const struct timeval second = { .tv_sec = 1 };
	struct prefixd_tiers *t = calloc(1, sizeof(*t));
	int r = -ENOMEM;

	snprintf(why, why_len, "cannot start the helpers: out of memory");
	if (!t)
		return r;
	s->tiers = t;
	radix_list_init(&t->staged);
	radix_list_init(&t->unstaged);
	t->watch_copy.since_ns = t->watch_redis.since_ns = prefixd_now_ns();
	t->later_ev = event_new(s->base, -1, 0, on_later, s);
	t->tick_ev = event_new(s->base, -1, EV_PERSIST, on_tick, s);
	if (!t->later_ev || !t->tick_ev || event_add(t->tick_ev, &second) < 0)
		return r;
	r = prefixd_carrier_start(&t->carrier, &config);
	if (r == 0)
		r = listen_to(s, prefixd_carrier_helper(t->carrier), on_carrier, &t->carrier_ev);
	if (r < 0) {
		snprintf(why, why_len, "cannot start the thread copy: %s", strerror(-r));
		return r;
	}
	prefixd_device_watch(s);
	if (!s->options->redis[0])
		return 0;
	r = prefixd_redis_begin(&t->redis, s->options, why, why_len);
	if (r == 0)
		r = listen_to(s, prefixd_redis_helper(t->redis), prefixd_on_redis, &t->redis_ev);
	return r;
}

int prefixd_tiers_restore(struct prefixd_server *s, char *why, size_t why_len)
{
	struct prefixd_epochs *e = &s->tiers->epochs;
	char *path = prefixd_epochs_path(s->options);
	int r = -ENOMEM;

	snprintf(why, why_len, "out of memory");
	if (path)
		r = prefixd_epochs_load(e, path, why, why_len);
	free(path);
	return r;
}

static void event_end(struct event **ev)
{
	if (*ev)
		event_free(*ev);
	*ev = NULL;
}

void prefixd_tiers_stop(struct prefixd_server *s)
{
	struct prefixd_tiers *t = s->tiers;

	if (!t)
		return;
	event_end(&t->carrier_ev);
	event_end(&t->redis_ev);
	event_end(&t->later_ev);
	event_end(&t->tick_ev);
	/* Redis first: what it sends lies in pools, and what the carrier fills goes to it. */
	prefixd_redis_stop(t->redis);
	t->redis = NULL;
	prefixd_carrier_stop(t->carrier);
	if (t->carrier) /* it may have opened them again since the loop last heard */
		s->pools.devices = prefixd_carrier_devices(t->carrier);
	if (t->epochs.path)
		epochs_save(s);
}

void prefixd_tiers_free(struct prefixd_server *s)
{
	struct prefixd_tiers *t = s->tiers;

	if (!t)
		return;
	prefixd_tiers_stop(s);
	t->carrier = prefixd_carrier_free(t->carrier);
	prefixd_staged_drop(&t->staged);
	prefixd_staged_drop(&t->unstaged);
	prefixd_epochs_deinit(&t->epochs);
	free(t->later);
	free(t);
	s->tiers = NULL;
}

const struct prefixd_carrier *prefixd_tiers_carrier(const struct prefixd_server *s)
{
	return s->tiers ? s->tiers->carrier : NULL;
}

const struct prefixd_redis *prefixd_tiers_redis(const struct prefixd_server *s)
{
	return s->tiers ? s->tiers->redis : NULL;
}
