/*
 * test_crash_points.c - the daemon dies at each of its named places, and the next one goes on.
 *
 * A session is played that touches everything a daemon writes down: commits in parts, doubles,
 * waiting for another one's blocks, blocks that go down to host memory and to Redis and come up
 * again, reservations that are given up, extended leases, an invalidated namespace, a drained end.
 * A first run lists the places that are passed.  Then for each of them the daemon kills itself
 * there (crash_at.h), an ordinary one is started on what is kept, and
 *
 *     every block that a COMMIT was answered for is there, in some tier, with its path's bytes;
 *     no block is there that no COMMIT was sent for;
 *     the workers that lived go on: they say QUIESCED, and serve old and new prompts whole;
 *     the daemon's own audit is clean, and no slot is left that nobody uses or can get.
 *
 * The second test does the same to the daemon that takes the memory up: it dies while it does, and
 * a third one has to.
 */
#include "tests/e2e/crash_at.h"
#include "tests/e2e/redis_server.h"
#include "tests/e2e/worker.h"

#include "clients/c/prefixd_load.h"
#include "tests/lib/run.h"

#include <check.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	MAX_DONE = 128,
	PROMPTS = 14, /* more than the pool holds, then more than host memory does */
	BLOCKS = 12,
	SOON_MS = 20000
};

/* A prompt that was stored, and how far. */
struct done {
	uint32_t n_blocks, stem;
	uint64_t variant;
	uint32_t sent, answered; /* leading blocks */
};

static struct e2e_daemon d;
static struct e2e_redis redis;
static char plain[512]; /* the ordinary daemon's program */
static const char *holder;
static struct worker a, b;
static struct done done[MAX_DONE];
static uint32_t n_done;

#define SOON(x)                                                                    \
	do {                                                                       \
		unsigned long end_ = e2e_now_ms() + SOON_MS;                       \
		while (!(x)) {                                                     \
			ck_assert_msg(e2e_now_ms() < end_, "not in time: %s", #x); \
			e2e_sleep_ms(2);                                           \
		}                                                                  \
	} while (0)

/* ---- daemons --------------------------------------------------------------------------------- */

/* An ordinary daemon (point NULL), or one that does at a place what `point` says. */
static int start(const char *point)
{
	/* a slow prefill: what lies below is always worth loading */
	const char *const args[] = { "--pool-blocks",
				     "64",
				     "--host-blocks",
				     "32",
				     "--redis",
				     redis.url,
				     "--index-blocks",
				     "1024",
				     "--watermark",
				     "5:10",
				     "--prefill-rate",
				     "1",
				     "--keep",
				     "holder",
				     "--hold-timeout",
				     "20s",
				     "--holder-program",
				     holder,
				     NULL };
	const char *binary = point ? getenv("PREFIXD_CRASH_BIN") : plain;

	ck_assert_ptr_nonnull(binary);
	ck_assert_int_eq(setenv("PREFIXD_BIN", binary, 1), 0);
	if (point)
		ck_assert_int_eq(setenv("PREFIXD_CRASH_POINT", point, 1), 0);
	else
		ck_assert_int_eq(unsetenv("PREFIXD_CRASH_POINT"), 0);
	return e2e_daemon_start(&d, args);
}

static bool died(void)
{
	siginfo_t info = { 0 };

	return waitid(P_PID, (id_t)d.pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid;
}

/* One admin request, or NULL when the daemon is not there. */
static json_t *try(const char *cmd)
{
	pfx_connect_options o = {
		.struct_size = sizeof(o), .socket = d.admin, .name = "test", .deadline_ms = 20000
	};
	pfx_client *c = NULL;
	char *text = NULL;
	json_t *v = NULL;

	if (pfx_connect(&o, &c) == PFX_OK && pfx_admin(c, cmd, 0, &text) == PFX_OK)
		v = json_loads(text, 0, NULL);
	pfx_free_string(text);
	pfx_close(c);
	return v;
}

static bool redis_is_up(void)
{
	json_t *v = try("{\"op\":\"status\"}");
	const char *is = json_string_value(json_object_get(json_object_get(v, "redis"), "breaker"));
	bool up = is && strcmp(is, "closed") == 0;

	json_decref(v);
	return up;
}

/* ---- the session: each step returns false when the daemon is gone ---------------------------- */

static bool lost(int r)
{
	return r == PFX_GONE || r == PFX_UNKNOWN_LEASE;
}

/* True: done; false: the daemon is gone.  All else fails the test. */
static bool went(const struct worker *w, int r, const char *what)
{
	if (lost(r))
		return false;
	ck_assert_msg(r == PFX_OK, "%s: %s: %s", what, pfx_status_to_string(r),
		      pfx_error(w->client));
	return true;
}

static struct done *entry(uint32_t n_blocks, uint32_t stem, uint64_t variant)
{
	for (uint32_t i = 0; i < n_done; i++)
		if (done[i].n_blocks == n_blocks && done[i].stem == stem &&
		    done[i].variant == variant)
			return &done[i];
	ck_assert_uint_lt(n_done, MAX_DONE);
	done[n_done] = (struct done){ .n_blocks = n_blocks, .stem = stem, .variant = variant };
	return &done[n_done++];
}

static bool ask(struct worker *w, const struct done *p)
{
	worker_prompt(w, p->n_blocks, p->stem, p->variant);
	return went(w, worker_match(w), "match") &&
	       (!w->promote || went(w, worker_load(w), "load"));
}

/* Writes and commits n of what is reserved. */
static bool commit(struct worker *w, struct done *p, uint32_t n)
{
	uint32_t end = w->n_hit + w->n_committed + n;

	worker_write(w, w->n_committed, n);
	if (p->sent < end)
		p->sent = end;
	if (!went(w, worker_commit(w, n), "commit"))
		return false;
	if (p->answered < end)
		p->answered = end;
	return true;
}

static bool reserve(struct worker *w)
{
	int r = worker_reserve(w);

	return r == PFX_BUSY || went(w, r, "reserve");
}

static bool release(struct worker *w)
{
	return went(w, worker_release(w), "release");
}

/* A whole request, in two COMMITs; true also when there is no room for all of it. */
static bool serve(struct worker *w, uint32_t n_blocks, uint32_t stem, uint64_t variant)
{
	struct done *p = entry(n_blocks, stem, variant);
	uint32_t half;

	if (!ask(w, p) || !reserve(w))
		return false;
	half = w->n_reserved / 2;
	return (half == 0 || commit(w, p, half)) &&
	       (w->n_reserved == half || commit(w, p, w->n_reserved - half)) && release(w);
}

/* Two compute the same: the second one's slots are doubles. */
static bool doubles(void)
{
	struct done *p = entry(8, 5, 900);

	return ask(&a, p) && ask(&b, p) && reserve(&a) && reserve(&b) &&
	       commit(&a, p, a.n_reserved) && commit(&b, p, b.n_reserved) && release(&a) &&
	       release(&b);
}

/* One computes, the other one waits for it. */
static bool waiting(void)
{
	struct done *p = entry(8, 6, 901);
	bool ok;

	a.single_flight = b.single_flight = true;
	ok = ask(&a, p) && reserve(&a) && ask(&b, p) && commit(&a, p, a.n_reserved) &&
	     went(&b, worker_wait(&b), "wait") && release(&a) && release(&b);
	a.single_flight = b.single_flight = false;
	return ok;
}

/* Reserved and given up; reserved, half committed and given up. */
static bool given_up(void)
{
	struct done *p = entry(8, 7, 902), *q = entry(8, 8, 903);

	return ask(&a, p) && reserve(&a) && release(&a) && ask(&a, q) && reserve(&a) &&
	       commit(&a, q, a.n_reserved / 2) && release(&a);
}

/* A lease that grows. */
static bool extended(void)
{
	struct done *p = entry(10, 9, 904);

	worker_prompt(&a, p->n_blocks, p->stem, p->variant);
	a.n_blocks = 4;
	if (!went(&a, worker_match(&a), "match") ||
	    !went(&a, worker_extend(&a, p->n_blocks - 4), "extend"))
		return false;
	return reserve(&a) && (!a.n_reserved || commit(&a, p, a.n_reserved)) && release(&a) &&
	       ask(&b, p) && release(&b);
}

static bool prefetched(void)
{
	pfx_prefetch_result r = { .struct_size = sizeof(r) };
	pfx_prompt p = { .struct_size = sizeof(p), .salt = "", .n_keys = BLOCKS };

	worker_prompt(&a, BLOCKS, done[0].stem, done[0].variant);
	p.keys = a.tokens;
	return went(&a, pfx_prefetch(a.ns, &p, 1000, &r), "prefetch");
}

/* Another model and another size of block, so another pool, whose blocks are invalidated. */
static bool another_model(void)
{
	pfx_namespace *ns;
	json_t *v;
	pfx_namespace_options o = { .struct_size = sizeof(o),
				    .key_mode = PFX_KEYS_TOKENS,
				    .flags = PFX_NS_OPAQUE,
				    .model = "another",
				    .revision = "1",
				    .dtype = "uint8",
				    .layers = 1,
				    .kv_heads = 1,
				    .head_dim = 1,
				    .block_tokens = WORKER_BLOCK_TOKENS,
				    .block_bytes = 1024,
				    .layout = "opaque",
				    .tp_size = 1,
				    .engine = "test",
				    .map = 1 };
	pfx_prompt p = { .struct_size = sizeof(p), .salt = "", .keys = b.tokens, .n_keys = 4 };
	pfx_match_result m = { .struct_size = sizeof(m) };
	pfx_reserve_result r = { .struct_size = sizeof(r) };
	pfx_commit_result c = { .struct_size = sizeof(c) };

	worker_prompt(&b, 4, 11, 905);
	if (!went(&b, pfx_open(b.client, &o, &ns), "open") ||
	    !went(&b, pfx_match(ns, &p, &m), "match"))
		return false;
	if (m.n_device < 4 &&
	    (!went(&b, pfx_reserve(ns, m.lease, 4 - m.n_device, 0, &r), "reserve") ||
	     !went(&b, pfx_commit(ns, m.lease, r.n, NULL, 0, 0, &c), "commit")))
		return false;
	if (!went(&b, pfx_release(ns, m.lease, 0, 0, 0, NULL), "release"))
		return false;
	v = try("{\"op\":\"invalidate\",\"model\":\"another\"}");
	if (!v)
		return false;
	json_decref(v);
	return true;
}

static bool session(void)
{
	if (!went(&a, worker_connect(&a, d.socket, 1), "open") ||
	    !went(&b, worker_connect(&b, d.socket, 2), "open"))
		return false;
	a.promote = true;
	for (uint32_t v = 0; v < PROMPTS; v++)
		if (!serve(v % 2 ? &b : &a, BLOCKS, v % 3, v))
			return false;
	for (uint32_t v = 0; v < 6; v++) /* they come up again */
		if (!serve(&a, BLOCKS, v % 3, v))
			return false;
	return doubles() && waiting() && given_up() && extended() && prefetched() &&
	       another_model() && serve(&b, BLOCKS, 10, 906);
}

/* ---- what must hold behind it ---------------------------------------------------------------- */

static uint32_t smaller(uint32_t x, uint32_t y)
{
	return x < y ? x : y;
}

/* Leading blocks of p that are there if the first n of q are. */
static uint32_t in_common(const struct done *p, const struct done *q, uint32_t n)
{
	if (p->stem != q->stem)
		return 0;
	if (p->variant == q->variant && p->n_blocks == q->n_blocks)
		return n;
	return smaller(n, smaller(p->n_blocks / 2, q->n_blocks / 2));
}

static bool all_there(void)
{
	for (uint32_t i = 0; i < n_done; i++) {
		uint32_t least = 0, most = 0, n;

		for (uint32_t k = 0; k < n_done; k++) {
			uint32_t x = in_common(&done[i], &done[k], done[k].answered);
			uint32_t y = in_common(&done[i], &done[k], done[k].sent);

			least = x > least ? x : least;
			most = y > most ? y : most;
		}
		ck_assert(ask(&a, &done[i]));
		n = a.n_hit + (a.promote ? 0 : a.n_host + a.n_redis);
		ck_assert(release(&a));
		ck_assert_msg(n <= most, "prompt %u has %u blocks, at most %u were committed", i, n,
			      most);
		if (n < least) {
			fprintf(stderr, "  prompt %u has %u of %u blocks (%u, %u, %u; %d)\n", i, n,
				least, a.n_hit, a.n_host, a.n_redis, a.load_reason);
			return false;
		}
	}
	return true;
}

static bool settled(void)
{
	json_t *audit = try("{\"op\":\"audit\"}"), *status = try("{\"op\":\"status\"}");
	const json_t *slots = json_object_get(status, "slots");
	bool ok = json_is_true(json_object_get(audit, "clean")) &&
		  json_integer_value(json_object_get(slots, "free")) +
				  json_integer_value(json_object_get(slots, "ready")) ==
			  json_integer_value(json_object_get(status, "n_slots")) &&
		  json_integer_value(json_object_get(status, "leases")) == 0;

	json_decref(audit);
	json_decref(status);
	return ok;
}

/* A worker that met the end of the last daemon goes on with this one. */
static void go_on(struct worker *w, uint64_t variant)
{
	uint32_t n_slots;

	SOON(worker_connect(w, d.socket, 1) == PFX_OK && worker_ping(w) == PFX_OK);
	ck_assert_int_eq(worker_quiesced(w, &n_slots), PFX_OK);
	w->single_flight = false;
	w->n_left = 0;
	ck_assert(serve(w, BLOCKS, 1, variant));
	ck_assert(serve(w, BLOCKS, done[0].stem, done[0].variant));
}

static void check(void)
{
	json_t *audit;

	SOON(worker_connect(&a, d.socket, 1) == PFX_OK && worker_ping(&a) == PFX_OK);
	SOON(redis_is_up());
	audit = try("{\"op\":\"audit\"}");
	ck_assert(json_is_true(json_object_get(audit, "clean")));
	json_decref(audit);
	a.promote = false;
	SOON(all_there());
	go_on(&a, 1000);
	go_on(&b, 1001);
	a.promote = true; /* through the pool, each byte compared */
	SOON(all_there());
	ck_assert_uint_eq(a.corrupt + b.corrupt, 0);
	SOON(settled());
}

/* ---- one life after the other ---------------------------------------------------------------- */

static void begin(void)
{
	redisReply *r = e2e_redis_do(&redis, "FLUSHALL");

	freeReplyObject(r);
	n_done = 0;
	ck_assert_int_eq(e2e_daemon_init(&d), 0);
}

static void end(void)
{
	worker_stop(&a);
	worker_stop(&b);
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGINT), 0); /* the memory is given up */
	e2e_daemon_free(&d);
}

/* A life with the session, ended by `signal` if not before.  True: it died at its place. */
static bool live_whole(const char *point, int signal)
{
	int status, r = start(point);

	if (r != 0) {
		ck_assert_msg(point && r == 128, "the daemon did not start: %d", r);
		return true;
	}
	SOON(redis_is_up() || died());
	(void)session();
	status = e2e_daemon_stop(&d, signal);
	ck_assert_int_ne(status, -1);
	return WIFSIGNALED(status) && signal != SIGKILL;
}

/* A life that takes up what there is, serves a little, and is killed if not before. */
static bool live_shortly(const char *point)
{
	int r = start(point);
	bool at_place;

	if (r != 0) {
		ck_assert_msg(point && r == 128, "the daemon did not start: %d", r);
		return true;
	}
	SOON(redis_is_up() || died());
	SOON(worker_connect(&a, d.socket, 1) == PFX_OK || died());
	at_place = died() || !serve(&a, BLOCKS, 2, 2000);
	if (at_place) /* its sockets end before it does */
		SOON(died());
	ck_assert_int_ne(e2e_daemon_stop(&d, SIGKILL), -1);
	return at_place;
}

/* One run, in a process of its own.  Exit status 0: died at its place; 3: never came there. */
static void run(const char *first, const char *second, bool two)
{
	bool at_place;

	begin();
	at_place = live_whole(first, two ? SIGKILL : SIGTERM);
	if (two)
		at_place = live_shortly(second);
	ck_assert_int_eq(start(NULL), 0);
	check();
	end();
	_exit(at_place ? 0 : 3);
}

/* ---- all places ------------------------------------------------------------------------------ */

static struct crash_list *list_of(bool two)
{
	char path[160], point[170];
	void *p;
	pid_t pid;
	int fd, status = -1;

	(void)snprintf(path, sizeof(path), "%s/places", redis.dir);
	(void)snprintf(point, sizeof(point), "list:%s", path);
	pid = fork();
	if (pid == 0)
		run(two ? NULL : point, point, two);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 3, "a run without a kill: %#x",
		      (unsigned)status);
	fd = open(path, O_RDWR | O_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	p = mmap(NULL, sizeof(struct crash_list), PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	ck_assert_ptr_ne(p, MAP_FAILED);
	close(fd);
	return p;
}

/* Returns the number of faults. */
static unsigned at(const char *name, unsigned long n, bool two, unsigned *kills)
{
	char point[CRASH_NAME_LEN + 32];
	int status = -1;
	pid_t pid;

	(void)snprintf(point, sizeof(point), "%s:%lu", name, n);
	pid = fork();
	if (pid == 0)
		run(two ? NULL : point, point, two);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	if (status == 0)
		++*kills;
	if (WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 3))
		return 0;
	fprintf(stderr, "FAILED: killed at %s\n", point);
	return 1;
}

static void sweep(bool two)
{
	const struct crash_list *list;
	unsigned faults = 0, kills = 0, names = 0, never = 0;

	ck_assert_int_eq(e2e_redis_init(&redis), 0);
	e2e_redis_start(&redis, NULL);
	list = list_of(two);
	for (uint32_t i = 0; i < list->n; i++) {
		const char *name = list->v[i].name;
		unsigned long count = list->v[i].count, before = kills;

		faults += at(name, 1, two, &kills);
		if (count > 2 && !two) /* most of it is the same program as before */
			faults += at(name, (count + 1) / 2, two, &kills);
		if (count > 1)
			faults += at(name, count, two, &kills);
		names++;
		never += kills == before;
		fprintf(stderr, "%-36s passed %6lu times, %lu kills\n", name, count,
			kills - before);
	}
	fprintf(stderr, "crash points: %u places, %u kills, %u faults\n", names, kills, faults);
	e2e_redis_free(&redis);
	ck_assert_uint_gt(names, 0);
	ck_assert_uint_eq(never, 0);
	ck_assert_uint_eq(faults, 0);
}

START_TEST(killed_at_each_place)
{
	sweep(false);
}
END_TEST

START_TEST(killed_while_it_takes_the_memory_up)
{
	sweep(true);
}
END_TEST

int main(int argc, char **argv)
{
	const char *which = argc > 1 ? argv[1] : "";
	Suite *suite = suite_create("crash-points");
	TCase *t = tcase_create(which);

	holder = getenv("PREFIXD_HOLDER_BIN");
	if (!e2e_daemon_binary() || !getenv("PREFIXD_CRASH_BIN") || !holder) {
		printf("1..0 # SKIP no daemon binary\n");
		return 0;
	}
	(void)snprintf(plain, sizeof(plain), "%s", e2e_daemon_binary());
	tcase_set_timeout(t, 1200);
	if (!*which || strcmp(which, "session") == 0)
		tcase_add_test(t, killed_at_each_place);
	if (!*which || strcmp(which, "start") == 0)
		tcase_add_test(t, killed_while_it_takes_the_memory_up);
	suite_add_tcase(suite, t);
	return test_run(suite);
}
