/*
 * world_life.c - see world_life.h.
 */
#include "tests/lib/world_life.h"

#include <check.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/ledger.h"
#include "tests/lib/world_internal.h"

/* Of programs that were built with crash points only. */
extern void (*radix_crash_hook)(const char *name) __attribute__((weak));

#define FIRST_ORPHAN 1000u /* session numbers of orphans; those of clients are below */
#define PAGE         4096u

/* ---- stores ---------------------------------------------------------------------------------- */

static int store_commit(struct radix_store *s, uint64_t len)
{
	struct world_store *st = s->ctx;

	if (len > s->len)
		return -ENOMEM;
	if (len <= s->committed)
		return 0;
	len = radix_min_u64((len + PAGE - 1) / PAGE * PAGE, s->len);
	if (ftruncate(st->fd, (off_t)len) < 0)
		return -ENOMEM;
	s->committed = len;
	return 0;
}

static void *map(int fd, uint64_t len)
{
	void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);

	ck_assert_ptr_ne(p, MAP_FAILED);
	return p;
}

void world_store_new(struct world_store *st, uint64_t len)
{
	st->fd = memfd_create("world", MFD_CLOEXEC);
	ck_assert_int_ge(st->fd, 0);
	st->store = (struct radix_store){
		.base = map(st->fd, len),
		.len = len,
		.commit = store_commit,
		.ctx = st,
	};
	st->used = true;
}

void world_store_free(struct world_store *st)
{
	if (!st->used)
		return;
	munmap(st->store.base, st->store.len);
	close(st->fd);
	*st = (struct world_store){ 0 };
}

/* The next life sees the same bytes elsewhere. */
static void store_remap(struct world_store *st)
{
	void *old = st->store.base;

	if (!st->used)
		return;
	st->store.base = map(st->fd, st->store.len);
	munmap(old, st->store.len);
}

/* ---- crash points ---------------------------------------------------------------------------- */

static struct world *stepping; /* whose step it is that may be stopped */

void world_life_point(const char *name)
{
	struct world *w = stepping;

	if (!w || !w->life.in_step)
		return;
	w->life.n_points++;
	if (!w->life.countdown || --w->life.countdown)
		return;
	w->life.point = name;
	longjmp(w->life.env, 1);
}

void world_life_step_begins(struct world *w)
{
	stepping = w;
	w->life.in_step = true;
	if (&radix_crash_hook)
		radix_crash_hook = world_life_point;
}

void world_life_step_ends(struct world *w)
{
	w->life.in_step = false;
	stepping = NULL;
}

void world_life_kill_at(struct world *w, uint64_t n)
{
	w->life.countdown = n;
}

/* ---- the end --------------------------------------------------------------------------------- */

void world_life_died(struct world *w)
{
	struct world_life *l = &w->life;

	world_life_step_ends(w);
	world_check(w, w->config.keep);
	world_note(w, "       the daemon is killed%s%s\n", l->point ? " at " : "",
		   l->point ? l->point : "");
	l->countdown = 0;
	l->down = true;
	w->engine = NULL;
	test_heap_drop(&w->heap);
	w->n_wanted = 0;
	l->n_watches = l->n_checks = 0;
	for (uint32_t i = 0; i < WORLD_CLIENTS; i++) {
		struct world_client *c = &w->clients[i];

		c->used = c->open = false;
		c->ready_due = c->slow = false;
		c->n_events = 0;
		world_client_late_drop(c);
	}
	world_tiers_killed(w);
	world_desks_drop(w);
}

void world_life_kill(struct world *w)
{
	world_check(w, !w->life.down && !w->life.in_step);
	w->life.point = NULL;
	world_life_died(w);
}

bool world_life_down(const struct world *w)
{
	return w->life.down;
}

void world_life_stop(struct world *w, uint64_t ns)
{
	uint64_t end = w->now_ns + ns;

	world_drain(w, end);
	while (w->engine && !w->life.exited && w->now_ns < end) {
		uint64_t due = radix_min_u64(world_next_due(w), end);

		world_advance(w, due > w->now_ns ? due - w->now_ns : 0);
	}
	if (!w->engine)
		return; /* killed on the way */
	if (!w->life.exited)
		world_fail(w, "it does not come to an end");
	w->engine = prefixd_engine_free(w->engine);
	world_check(w, w->heap.live_blocks == 0);
	w->life.point = NULL;
	world_life_died(w);
}

/* ---- processes ------------------------------------------------------------------------------- */

/* Its place in the list; n_gone: it lives, as far as anybody knows. */
static uint32_t gone_at(const struct world_life *l, uint32_t pid, uint64_t start_time)
{
	uint32_t i = 0;

	while (i < l->n_gone &&
	       (l->gone[i].pid != pid ||
		(l->gone[i].start_time != start_time && l->gone[i].start_time != WORLD_ANY_TIME)))
		i++;
	return i;
}

void world_life_process(struct world *w, uint32_t pid, uint64_t start_time, bool lives)
{
	struct world_life *l = &w->life;
	uint32_t at = gone_at(l, pid, start_time);

	if (lives != (at < l->n_gone))
		return;
	if (lives) {
		l->gone[at] = l->gone[--l->n_gone];
		return;
	}
	if (l->n_gone == l->cap_gone) {
		l->cap_gone = l->cap_gone ? 2 * l->cap_gone : 64;
		l->gone = realloc(l->gone, l->cap_gone * sizeof(*l->gone));
		ck_assert_ptr_nonnull(l->gone);
	}
	l->gone[l->n_gone++] = (struct world_process){ pid, start_time };
}

void world_life_watch(struct world *w, const struct prefixd_action *a)
{
	struct world_life *l = &w->life;

	world_check(w, a->session >= FIRST_ORPHAN);
	if (l->n_watches == l->cap_watches) {
		l->cap_watches = l->cap_watches ? 2 * l->cap_watches : 64;
		l->watches = realloc(l->watches, l->cap_watches * sizeof(*l->watches));
		ck_assert_ptr_nonnull(l->watches);
	}
	l->watches[l->n_watches++] = (struct world_watch){ a->session, a->u.watch.pid,
							   a->u.watch.start_time };
	world_note(w, "%4u   process %u of an earlier life is watched\n", a->session,
		   a->u.watch.pid);
}

bool world_life_forget(struct world *w, uint32_t session)
{
	struct world_life *l = &w->life;

	for (uint32_t i = 0; i < l->n_watches; i++) {
		if (l->watches[i].session != session)
			continue;
		l->watches[i] = l->watches[--l->n_watches];
		return true;
	}
	return false;
}

void world_life_tell_gone(struct world *w)
{
	for (uint32_t i = 0; i < w->life.n_watches;) {
		struct world_watch v = w->life.watches[i];
		struct prefixd_event event = { .type = PREFIXD_EVENT_PROCESS_GONE,
					       .session = v.session };

		i++;
		if (gone_at(&w->life, v.pid, v.start_time) == w->life.n_gone)
			continue;
		world_note(w, "%4u   process %u of an earlier life is gone\n", v.session, v.pid);
		world_step(w, &event);
		i = 0; /* the list has changed */
		if (!w->engine)
			return;
		/* It may be told of again; the engine need not have forgotten it yet. */
		for (uint32_t k = 0; k < w->life.n_watches; k++)
			if (w->life.watches[k].session == v.session)
				w->life.watches[k].pid = 0;
	}
}

uint32_t world_life_watches(const struct world *w)
{
	return w->life.n_watches;
}

/* ---- VERIFY ---------------------------------------------------------------------------------- */

void world_life_verify(struct world *w, const struct prefixd_action *a)
{
	struct world_life *l = &w->life;
	struct world_check *c = &l->checks[l->n_checks];

	world_check(w, l->n_checks < 4 && a->u.verify.n > 0 && a->u.verify.n <= 64);
	l->n_checks++;
	c->id = a->u.verify.id;
	c->group = a->group;
	c->n = a->u.verify.n;
	c->due_ns = w->now_ns + l->check_ns;
	memcpy(c->v, a->u.verify.v, c->n * sizeof(c->v[0]));
	world_note(w, "       verify %u: %u blocks of pool %u\n", c->id, c->n, c->group);
}

/* In the order of asking. */
uint64_t world_life_due(const struct world *w)
{
	return w->life.n_checks ? w->life.checks[0].due_ns : UINT64_MAX;
}

void world_life_deliver(struct world *w)
{
	struct world_check c = w->life.checks[0];
	struct prefixd_event event = { .type = PREFIXD_EVENT_VERIFIED };
	uint64_t len = w->pools[c.group].slot_bytes;
	uint8_t *block = malloc(len), sum[16];

	ck_assert_ptr_nonnull(block);
	w->life.n_checks--;
	memmove(&w->life.checks[0], &w->life.checks[1], w->life.n_checks * sizeof(c));
	event.u.verified.id = c.id;
	for (uint32_t i = 0; i < c.n; i++) {
		world_device(w, c.group, c.v[i].slot, 0, block, (uint32_t)len, false);
		world_sum(block, len, sum);
		event.u.verified.done |= 1ull << i;
		if (memcmp(sum, c.v[i].checksum, sizeof(sum)) != 0)
			event.u.verified.bad |= 1ull << i;
	}
	free(block);
	world_note(w, "       verified %u: bad %llx\n", c.id,
		   (unsigned long long)event.u.verified.bad);
	world_step(w, &event);
}

/* ---- the next life --------------------------------------------------------------------------- */

void world_life_init(struct world *w)
{
	w->life.n = 1;
	w->life.check_ns = 100000;
	if (!w->config.keep)
		return;
	world_store_new(&w->life.ledger, prefixd_ledger_len());
	w->config.engine.ledger = &w->life.ledger.store;
}

void world_life_deinit(struct world *w)
{
	world_store_free(&w->life.ledger);
	for (uint32_t i = 0; i < WORLD_GROUPS; i++)
		world_store_free(&w->pools[i].table);
	free(w->life.watches);
	free(w->life.gone);
	w->life.watches = NULL;
	w->life.gone = NULL;
}

static void look_at_ledger(struct world *w)
{
	struct prefixd_ledger_info info;
	enum prefixd_ledger_content content;
	char why[256] = "";

	content = prefixd_ledger_look(&w->life.ledger.store, w->config.engine.naming_key, &info,
				      why, sizeof(why));
	if (content != PREFIXD_LEDGER_STATE && content != PREFIXD_LEDGER_EMPTY)
		world_fail(w, "the ledger cannot be read: %s", why);
}

/* What no group of the ledger took up is given up. */
static void drop_rest(struct world *w, const bool *asked)
{
	for (uint32_t i = 0; i < WORLD_GROUPS; i++)
		if (w->pools[i].pool && !asked[i])
			world_pool_drop(w, i);
}

/* Another life: another boot id, other lease ids, other hashes, the same bytes elsewhere. */
static int life_begins(struct world *w)
{
	struct prefixd_engine_config *e = &w->config.engine;

	world_check(w, w->life.down && w->config.keep);
	store_remap(&w->life.ledger);
	for (uint32_t i = 0; i < WORLD_GROUPS; i++)
		store_remap(&w->pools[i].table);
	w->life.n++;
	memcpy(e->boot.b + 2, &w->life.n, sizeof(w->life.n));
	e->secret[0] = test_rng(&w->rng);
	e->secret[1] = test_rng(&w->rng);
	look_at_ledger(w);
	world_note(w, "       life %u begins\n", w->life.n);
	if (prefixd_engine_new(&w->engine, e) < 0)
		return -ENOMEM;
	w->life.down = w->life.exited = false;
	return 0;
}

void world_life_forego(struct world *w)
{
	static const bool none[WORLD_GROUPS];

	drop_rest(w, none);
	ck_assert_int_eq(life_begins(w), 0);
}

int world_life_restart(struct world *w)
{
	struct prefixd_event event = { .type = PREFIXD_EVENT_RESTORE };
	bool asked[WORLD_GROUPS] = { 0 }, early = test_rng_below(&w->rng, 2);

	if (life_begins(w) < 0)
		return -ENOMEM;
	prefixd_ledger_begin(&w->life.ledger.store);
	event.u.restore.first_session = FIRST_ORPHAN * w->life.n;
	w->life.holding = true;
	world_step(w, &event);
	w->life.holding = false;
	if (!w->engine)
		return 0;
	world_check(w, w->ret_n == w->life.n_watches);
	for (uint32_t i = 0; i < w->n_wanted; i++)
		asked[w->wanted[i].group] = true;
	drop_rest(w, asked);
	if (early)
		world_life_tell_gone(w);
	if (w->engine && !w->config.hold_pools)
		world_pool_answer(w, true);
	if (w->engine)
		world_life_tell_gone(w);
	if (w->engine)
		prefixd_ledger_settled(&w->life.ledger.store);
	if (w->engine)
		world_tiers_begin(w);
	return 0;
}
