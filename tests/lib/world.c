/*
 * world.c - the simulated world: events, actions, the clock, the device.  Workers: world_client.c.
 */
#include "tests/lib/world.h"

#include <check.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/lib/world_internal.h"

enum {
	TAIL_LINES = 40, /* of the transcript, when a check fails */
};

void world_note(struct world *w, const char *fmt, ...)
{
	va_list ap;
	int n;

	if (!w->config.record)
		return;
	if (w->log_cap - w->log_len < 8192) {
		w->log_cap = w->log_cap ? 2 * w->log_cap : 65536;
		w->log = realloc(w->log, w->log_cap);
		ck_assert_ptr_nonnull(w->log);
	}
	va_start(ap, fmt);
	n = vsnprintf(w->log + w->log_len, w->log_cap - w->log_len, fmt, ap);
	va_end(ap);
	ck_assert(n >= 0 && (size_t)n < w->log_cap - w->log_len);
	w->log_len += (size_t)n;
}

/* The last lines of the transcript. */
static const char *tail_of_log(const struct world *w)
{
	size_t at = w->log_len;

	for (uint32_t n = 0; at > 0; at--)
		if (w->log[at - 1] == '\n' && n++ == TAIL_LINES)
			break;
	return w->log + at;
}

void world_fail(struct world *w, const char *fmt, ...)
{
	const char *want = getenv("WORLD_TRANSCRIPT");
	bool all = want && strcmp(want, "all") == 0;
	char text[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (w->log_len)
		fprintf(stderr, "%s\n", all ? w->log : tail_of_log(w));
	fprintf(stderr, "seed %llu, step %llu: %s\n", (unsigned long long)w->config.seed,
		(unsigned long long)w->n_steps, text);
	ck_abort_msg("seed %llu, step %llu: %s", (unsigned long long)w->config.seed,
		     (unsigned long long)w->n_steps, text);
	abort();
}

/* ---- life ------------------------------------------------------------------------------------ */

void world_config_init(struct world_config *config)
{
	memset(config, 0, sizeof(*config));
	prefixd_engine_config_init(&config->engine);
	config->engine.pool_blocks = 64;
	config->engine.limits.max_frame = 65536;
	config->engine.limits.max_keys = 2048;
	config->engine.version = "prefixd test";
	config->seed = 1;
}

int world_init(struct world *w, const struct world_config *config)
{
	struct prefixd_engine_config *e;
	char why[256];
	int r;

	memset(w, 0, sizeof(*w));
	w->config = *config;
	if (getenv("WORLD_TRANSCRIPT")) /* to look into a failure */
		w->config.record = true;
	if (getenv("WORLD_KEEP")) /* any test, with a ledger */
		w->config.keep = true;
	w->rng = config->seed;
	w->now_ns = 1000000000;
	test_heap_init(&w->heap);
	w->heap.quick = config->no_verify;
	memcpy(w->tenants[0].name, "red", 4);
	w->tenants[0].uids[0] = 1000;
	w->tenants[0].n_uids = 1;
	memcpy(w->tenants[1].name, "blue", 5);
	w->tenants[1].uids[0] = 2000;
	w->tenants[1].n_uids = 1;
	e = &w->config.engine;
	e->alloc = &w->heap.alloc;
	e->boot.b[15] = 0xb0; /* lease ids count from 1 then, which reads well */
	e->secret[0] = 0x0123456789abcdefu;
	e->secret[1] = 0xfedcba9876543210u;
	memset(e->naming_key, 7, sizeof(e->naming_key));
	if (!e->tenants) {
		e->tenants = w->tenants;
		e->n_tenants = 2;
	}
	ck_assert_int_eq(gpu_open("sim", &config->sim, &w->gpu, why, sizeof(why)), 0);
	for (uint32_t i = 0; i < WORLD_CLIENTS; i++) {
		w->clients[i].w = w;
		w->clients[i].session = i;
	}
	world_tiers_init(w);
	world_life_init(w);
	r = prefixd_engine_new(&w->engine, e);
	if (r == 0)
		world_tiers_begin(w);
	return r;
}

void world_deinit(struct world *w)
{
	w->engine = prefixd_engine_free(w->engine);
	world_tiers_deinit(w);
	world_desks_drop(w);
	for (uint32_t i = 0; i < WORLD_GROUPS; i++) {
		if (!w->pools[i].pool)
			continue;
		w->gpu->ops->pool_free(w->gpu, w->pools[i].pool);
		free(w->pools[i].generations);
	}
	for (uint32_t i = 0; i < WORLD_CLIENTS; i++) {
		free(w->clients[i].body);
		free(w->clients[i].changes);
		world_client_late_drop(&w->clients[i]);
	}
	world_life_deinit(w);
	gpu_close(w->gpu);
	free(w->log);
	ck_assert_uint_eq(w->heap.live_blocks, 0);
}

/* ---- actions --------------------------------------------------------------------------------- */

/* A frame of the stream is no reply: its events are kept until the test takes them. */
static void act_stream(struct world *w, struct world_client *c, const struct prefixd_action *a)
{
	const uint8_t *body = a->u.send.bytes + PROTO_HEADER_LEN;
	struct proto_changes m;
	enum proto_status status;
	struct proto_header h;
	const char *bad;

	world_check(w, !c->ready_due);
	world_check(w, proto_header_decode(a->u.send.bytes, a->u.send.len,
					   w->config.engine.limits.max_frame, &h, &status) == 0);
	world_check(w, h.op == PROTO_OP_CHANGES);
	world_check(w, h.len + PROTO_HEADER_LEN == a->u.send.len && h.status == PROTO_STATUS_OK);
	world_check(w, memcmp(&h.boot, &w->config.engine.boot, sizeof(h.boot)) == 0);
	world_check(w, proto_changes_decode(body, h.len, &m, &bad) == 0 && m.n > 0);
	if (c->changes_cap - c->changes_len < m.events.n) {
		c->changes_cap = 2 * c->changes_cap + m.events.n;
		c->changes = realloc(c->changes, c->changes_cap);
		world_check(w, c->changes);
	}
	memcpy(c->changes + c->changes_len, m.events.p, m.events.n);
	c->changes_len += m.events.n;
	c->changes_seq = h.seq;
	c->ready_due = true;
	world_note(w, "%4u < CHANGES %u events\n", c->session, m.n);
}

static void act_send(struct world *w, const struct prefixd_action *a)
{
	struct world_client *c = &w->clients[a->session];
	enum proto_status status;
	struct proto_header h;

	world_check(w, a->session < WORLD_CLIENTS && c->used && c->open && !c->closed);
	if (a->u.send.tell_ready) {
		act_stream(w, c, a);
		return;
	}
	world_check(w, proto_header_decode(a->u.send.bytes, a->u.send.len,
					   w->config.engine.limits.max_frame, &h, &status) == 0);
	world_check(w, h.len + PROTO_HEADER_LEN == a->u.send.len);
	if (h.op == PROTO_OP_EVENT && h.status == PROTO_STATUS_OK) {
		world_client_event(c, &h, a->u.send.bytes + PROTO_HEADER_LEN);
		return;
	}
	if (h.op == PROTO_OP_LOST && h.status == PROTO_STATUS_DEVICE_LOST) {
		world_client_lost(c, &h, a->u.send.bytes + PROTO_HEADER_LEN);
		return;
	}
	if (world_client_late(c, &h, a->u.send.bytes + PROTO_HEADER_LEN))
		return;
	c->h = h;
	if (c->h.len > c->body_cap) {
		c->body_cap = c->h.len + 4096;
		c->body = realloc(c->body, c->body_cap);
		world_check(w, c->body);
	}
	if (c->h.len)
		memcpy(c->body, a->u.send.bytes + PROTO_HEADER_LEN, c->h.len);
	c->with_fds = a->u.send.with_fds;
	if (c->with_fds)
		c->fds_rank = a->u.send.rank;
	c->with_words = a->u.send.with_words;
	c->read_only = a->u.send.read_only;
	if (h.op == PROTO_OP_OPEN && h.status == PROTO_STATUS_OK) {
		c->with_desk = a->u.send.with_desk;
		c->desk = a->u.send.desk;
	}
	c->n_replies++;
	world_client_got(c);
}

static void act_pool(struct world *w, const struct prefixd_action *a)
{
	world_check(w, w->n_wanted < WORLD_GROUPS && a->group < WORLD_GROUPS);
	w->wanted[w->n_wanted].group = a->group;
	w->wanted[w->n_wanted].n_slots = a->u.pool.n_slots;
	w->wanted[w->n_wanted].n_host = a->u.pool.n_host;
	w->wanted[w->n_wanted].table_len = a->u.pool.table_len;
	w->wanted[w->n_wanted].adopt = a->type == PREFIXD_ACTION_POOL_ADOPT;
	w->wanted[w->n_wanted].coded = a->u.pool.cold.codec != GPU_CODEC_NONE;
	w->wanted[w->n_wanted].n_ranks = a->u.pool.n_ranks;
	w->wanted[w->n_wanted++].slot_bytes = a->u.pool.slot_bytes * a->u.pool.n_ranks;
	world_note(w, "       pool %u of %u x %llu bytes wanted%s\n", a->group, a->u.pool.n_slots,
		   (unsigned long long)a->u.pool.slot_bytes,
		   a->type == PREFIXD_ACTION_POOL_ADOPT ? " back" : "");
}

void world_pool_drop(struct world *w, uint32_t group)
{
	struct world_pool *p = &w->pools[group];

	world_check(w, p->pool);
	w->gpu->ops->pool_free(w->gpu, p->pool);
	free(p->generations);
	world_store_free(&p->table);
	memset(p, 0, sizeof(*p));
}

static void act(struct world *w, const struct prefixd_action *a)
{
	struct world_client *c = a->session < WORLD_CLIENTS ? &w->clients[a->session] : NULL;

	switch (a->type) {
	case PREFIXD_ACTION_SEND:
		act_send(w, a);
		break;
	case PREFIXD_ACTION_CLOSE:
		world_check(w, c && c->used && !c->closed);
		c->closed = true;
		world_note(w, "%4u   closed\n", c->session);
		break;
	case PREFIXD_ACTION_FORGET:
		if (world_life_forget(w, a->session)) {
			world_note(w, "%4u   forgotten\n", a->session);
			break;
		}
		world_check(w, c && c->used);
		c->used = false;
		c->open = false;
		world_client_late_drop(c);
		world_note(w, "%4u   forgotten\n", c->session);
		break;
	case PREFIXD_ACTION_POOL_CREATE:
	case PREFIXD_ACTION_POOL_ADOPT:
		act_pool(w, a);
		break;
	case PREFIXD_ACTION_POOL_DESTROY:
		world_pool_drop(w, a->group);
		break;
	case PREFIXD_ACTION_POISON:
		for (uint32_t i = 0; i < a->u.poison.len; i++) {
			world_tiers_given(w, a->group, a->u.poison.start + i, "freed");
			gpu_poison_slot(w->gpu, w->pools[a->group].pool, a->u.poison.start + i);
		}
		w->n_poisoned += a->u.poison.len;
		world_note(w, "       freed slots %u+%u of pool %u\n", a->u.poison.start,
			   a->u.poison.len, a->group);
		break;
	case PREFIXD_ACTION_LOG:
		world_note(w, "       log: %s\n", a->u.log.text);
		break;
	case PREFIXD_ACTION_COPY:
	case PREFIXD_ACTION_STORE:
	case PREFIXD_ACTION_FETCH:
	case PREFIXD_ACTION_NAMES:
	case PREFIXD_ACTION_LOOK:
	case PREFIXD_ACTION_EPOCH:
		world_tiers_act(w, a);
		break;
	case PREFIXD_ACTION_WATCH:
		world_life_watch(w, a);
		break;
	case PREFIXD_ACTION_VERIFY:
		world_life_verify(w, a);
		break;
	case PREFIXD_ACTION_DESK_CREATE:
	case PREFIXD_ACTION_DESK_DESTROY:
	case PREFIXD_ACTION_TAKE:
		world_desk_act(w, a);
		break;
	case PREFIXD_ACTION_EXIT:
		w->n_exits++;
		w->life.exited = true;
		world_note(w, "       exit\n");
		break;
	}
}

/* Whose frame of events has left may have the next one. */
static void tell_ready(struct world *w)
{
	uint64_t ret_n = w->ret_n; /* of the step before */

	for (uint32_t i = 0; i < WORLD_CLIENTS; i++) {
		struct world_client *c = &w->clients[i];
		struct prefixd_event event = { .type = PREFIXD_EVENT_SUBSCRIBER_READY,
					       .session = i };

		if (!c->ready_due || c->slow)
			continue;
		c->ready_due = false;
		if (c->used && c->open && !c->closed)
			world_step(w, &event);
	}
	w->ret_n = ret_n;
}

/* The step, and what it wants done.  False: the daemon was killed meanwhile. */
static bool killable_step(struct world *w, struct prefixd_event *event)
{
	struct prefixd_actions actions;

	if (setjmp(w->life.env)) {
		world_life_died(w);
		return false;
	}
	world_life_step_begins(w);
	actions = prefixd_engine_step(w->engine, event, w->now_ns);
	for (uint32_t i = 0; i < actions.n; i++) {
		world_life_point("world_act");
		act(w, &actions.v[i]);
	}
	world_life_step_ends(w);
	return true;
}

void world_step(struct world *w, struct prefixd_event *event)
{
	char why[256];
	int r;

	if (!w->engine)
		return; /* the daemon is down */
	w->n_steps++;
	if (!killable_step(w, event))
		return;
	world_tiers_tell(w);
	if (!w->engine)
		return;
	w->ret_n = event->ret_n;
	world_tiers_verify(w);
	if (!w->config.no_verify) {
		r = prefixd_engine_verify(w->engine, why, sizeof(why));
		if (r)
			world_fail(w, "invariant %d: %s", r, why);
	}
	if (w->n_wanted && !w->config.hold_pools && !w->life.holding)
		world_pool_answer(w, true);
	world_desks_deliver(w);
	tell_ready(w);
}

static void pool_poison(struct world *w, struct world_pool *p)
{
	for (uint32_t i = 0; i < p->n_slots; i++)
		gpu_poison_slot(w->gpu, p->pool, i);
}

void world_pool_lost(struct world *w, uint32_t group)
{
	struct prefixd_event event = { .type = PREFIXD_EVENT_POOL_LOST };

	event.u.pool.group = group;
	if (w->pools[group].pool) {
		world_note(w, "       the device of pool %u is lost\n", group);
		w->pools[group].lost = true;
		pool_poison(w, &w->pools[group]);
		world_tiers_lost(w, group);
	}
	world_step(w, &event);
}

/* The slots alone are made anew.  Nothing may be under way from or to the old ones. */
static bool pool_again(struct world *w, struct world_pool *p)
{
	struct gpu_pool *pool;

	if (w->gpu->ops->pool_new(w->gpu, p->n_slots, p->slot_bytes, &pool) != 0)
		return false;
	w->gpu->ops->pool_free(w->gpu, p->pool);
	p->pool = pool;
	w->gpu->ops->pool_info(pool, &p->info);
	pool_poison(w, p);
	p->lost = false;
	return true;
}

/* Memory for a pool that the engine wants; false: there is none. */
static bool pool_make(struct world *w, struct world_pool *p, uint32_t n, uint64_t bytes,
		      uint64_t table_len)
{
	if (w->gpu->ops->pool_new(w->gpu, n, bytes, &p->pool) != 0)
		return false;
	w->gpu->ops->pool_info(p->pool, &p->info);
	p->generations = calloc(n, sizeof(*p->generations));
	world_check(w, p->generations);
	if (w->config.keep)
		world_store_new(&p->table, table_len);
	return true;
}

/* Nobody may read what lies in a slot that is free. */
static void poison_free(struct world *w, uint32_t group)
{
	const struct radix_index *ix = w->engine ? world_index(w, group) : NULL;

	for (uint32_t i = 0; ix && i < w->pools[group].n_slots; i++)
		if (radix_slot_state(ix, i) == RADIX_SLOT_FREE)
			gpu_poison_slot(w->gpu, w->pools[group].pool, i);
}

void world_pool_answer(struct world *w, bool ready)
{
	/* What is asked for meanwhile is for another call, or the end of its step. */
	for (uint32_t left = w->n_wanted; w->engine && left && w->n_wanted; left--) {
		uint32_t group = w->wanted[0].group, n = w->wanted[0].n_slots;
		uint32_t n_host = w->wanted[0].n_host, n_ranks = w->wanted[0].n_ranks;
		uint64_t bytes = w->wanted[0].slot_bytes, table_len = w->wanted[0].table_len;
		bool coded = w->wanted[0].coded;
		struct world_pool *p = &w->pools[group];
		bool again = p->lost, adopt = w->wanted[0].adopt, unseen;
		struct prefixd_event event = { .type = PREFIXD_EVENT_POOL_FAILED };

		memmove(&w->wanted[0], &w->wanted[1], --w->n_wanted * sizeof(w->wanted[0]));
		event.u.pool.group = group;
		event.u.pool.why = "the device is full";
		if (adopt && (!ready || !p->pool)) {
			if (p->pool)
				world_pool_drop(w, group);
		} else if (ready && (again   ? pool_again(w, p)
				     : adopt ? true
					     : pool_make(w, p, n, bytes, table_len))) {
			if (adopt || again)
				world_check(w, p->n_slots == n && p->slot_bytes == bytes &&
						       p->n_host == n_host);
			p->n_slots = n;
			p->n_host = n_host;
			p->slot_bytes = bytes;
			event.type = PREFIXD_EVENT_POOL_READY;
			event.u.pool.slot_stride = p->info.slot_stride / n_ranks;
			event.u.pool.pool_len = p->info.len / n_ranks;
			event.u.pool.generations = p->generations;
			event.u.pool.table = w->config.keep ? &p->table.store : NULL;
			event.u.pool.n_fds = 2;
			event.u.pool.fresh = again && adopt;
			world_tiers_pool(w, group, n_host, bytes, coded, adopt || again);
		}
		/* New slots are the keeper's once the engine knows that they are. */
		unseen = again && adopt && p->pool;
		p->lost |= unseen;
		world_step(w, &event);
		if (unseen && w->engine)
			p->lost = false;
		if (adopt)
			poison_free(w, group);
	}
}

uint64_t world_next_due(const struct world *w)
{
	if (!w->engine)
		return UINT64_MAX;
	return radix_min_u64(prefixd_engine_deadline(w->engine),
			     radix_min_u64(world_tiers_due(w), world_life_due(w)));
}

void world_advance(struct world *w, uint64_t ns)
{
	uint64_t end = w->now_ns + ns;
	struct prefixd_event event = { .type = PREFIXD_EVENT_TIMER };

	world_note(w, "       %llu us pass\n", (unsigned long long)ns / 1000);
	while (w->engine) {
		uint64_t due = prefixd_engine_deadline(w->engine), answer = world_tiers_due(w);
		uint64_t check = world_life_due(w);
		uint64_t next = radix_min_u64(due, radix_min_u64(answer, check));

		if (next > end || next == UINT64_MAX)
			break;
		w->now_ns = next > w->now_ns ? next : w->now_ns;
		if (check == next) {
			world_life_deliver(w);
			continue;
		}
		if (answer <= due) {
			world_tiers_deliver(w);
			continue;
		}
		world_step(w, &event);
		if (w->engine && prefixd_engine_deadline(w->engine) == due)
			world_fail(w, "the deadline did not move on");
	}
	w->now_ns = end;
}

uint64_t world_evict(struct world *w, uint32_t group, uint64_t n)
{
	struct prefixd_event event = { .type = PREFIXD_EVENT_ADMIN_EVICT };

	event.u.admin.group = group;
	event.u.admin.n = n;
	world_step(w, &event);
	world_note(w, "       evicted %llu of %llu\n", (unsigned long long)w->ret_n,
		   (unsigned long long)n);
	return w->ret_n;
}

uint64_t world_flush(struct world *w, uint32_t ns)
{
	struct prefixd_event event = { .type = PREFIXD_EVENT_ADMIN_FLUSH };

	event.u.admin.ns = ns;
	world_step(w, &event);
	world_note(w, "       flushed %llu\n", (unsigned long long)w->ret_n);
	return w->ret_n;
}

void world_drain(struct world *w, uint64_t deadline_ns)
{
	struct prefixd_event event = { .type = PREFIXD_EVENT_DRAIN };

	event.u.drain.deadline_ns = deadline_ns;
	world_note(w, "       drain\n");
	world_step(w, &event);
}

struct prefixd_counters world_counters(const struct world *w)
{
	struct prefixd_counters c;

	prefixd_engine_counters(w->engine, &c);
	return c;
}

struct radix_index *world_index(const struct world *w, uint32_t group)
{
	struct prefixd_group_info info;
	uint32_t it = 0;

	while (w->engine && prefixd_engine_next_group(w->engine, &it, &info))
		if (info.id == group)
			return info.index;
	return NULL;
}

void world_stats(const struct world *w, uint32_t group, struct radix_stats *ret)
{
	struct radix_index *ix = world_index(w, group);

	ck_assert_ptr_nonnull(ix);
	radix_index_stats(ix, ret);
}

/* ---- the device ------------------------------------------------------------------------------ */

static void copied(struct gpu_job *job, int status)
{
	struct world *w = job->ctx;

	if (status)
		world_fail(w, "a copy failed with %d", status);
	job->ctx = NULL;
}

static void copy(struct world *w, uint64_t dst, uint64_t src, uint32_t len)
{
	struct gpu_job job = { .dst = dst, .src = src, .len = len, .done = copied, .ctx = w };

	world_check(w, w->gpu->ops->submit(w->gpu, &job) == 0);
	while (job.ctx) {
		uint64_t due = gpu_sim_next_due(w->gpu);

		if (due != UINT64_MAX)
			gpu_sim_advance(w->gpu, due);
		world_check(w, w->gpu->ops->reap(w->gpu, 16) > 0 || due != UINT64_MAX);
	}
}

void world_device(struct world *w, uint32_t group, uint32_t slot, uint64_t off, void *bytes,
		  uint32_t len, bool write)
{
	uint64_t addr = w->gpu->ops->slot_addr(w->pools[group].pool, slot) + off;

	if (write)
		copy(w, addr, (uintptr_t)bytes, len);
	else
		copy(w, (uintptr_t)bytes, addr, len);
}

void world_write(struct world *w, uint32_t group, uint32_t slot, const void *bytes, uint32_t len)
{
	copy(w, w->gpu->ops->slot_addr(w->pools[group].pool, slot), (uintptr_t)bytes, len);
}

void world_read(struct world *w, uint32_t group, uint32_t slot, void *bytes, uint32_t len)
{
	copy(w, (uintptr_t)bytes, w->gpu->ops->slot_addr(w->pools[group].pool, slot), len);
}
