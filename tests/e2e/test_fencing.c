/*
 * test_fencing.c - the real daemon and workers that are killed, stopped, late, or gone in part: T20
 * T25 T33 F01 F03 F04 F05 F08, and the page that says when too much is kept from use.
 *
 * The first argument picks the case. Workers are processes of their own that read and write the
 * pool's memory; what they write is a function of the prompt, and every byte that is read is
 * compared.
 */
#include "tests/e2e/http_client.h"
#include "tests/e2e/mover.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES 4096u
#define MAX   2560u /* blocks of one prompt */
#define MODEL "m"

/* ---- a worker -------------------------------------------------------------------------------- */

struct worker {
	pfx_client *client;
	pfx_namespace *ns;
	uint32_t first; /* of its prompt */
	uint64_t lease, reuse;
	uint32_t slots[MAX];
	uint32_t n, n_hit; /* slots: those that were found, then reserved ones */
	uint32_t tokens[MAX * BLOCK];
};

/* In a child: the test's own way to fail is the parent's. */
#define need(x)                                                                         \
	do {                                                                            \
		if (!(x)) {                                                             \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #x); \
			_exit(1);                                                       \
		}                                                                       \
	} while (0)

static void worker_start(struct worker *w, bool copies)
{
	pfx_connect_options o = { .struct_size = sizeof(o),
				  .socket = d.socket,
				  .name = copies ? "copier" : "reader",
				  .deadline_ms = 20000,
				  .copies = copies };

	memset(w, 0, sizeof(*w));
	need(pfx_connect(&o, &w->client) == PFX_OK);
	w->ns = e2e_open(w->client, MODEL, BYTES);
}

static int worker_match(struct worker *w, uint32_t first, uint32_t n)
{
	pfx_match_result m = { .struct_size = sizeof(m) };
	pfx_prompt p = { .struct_size = sizeof(p), .salt = "", .keys = w->tokens, .n_keys = n };
	int r;

	for (uint32_t i = 0; i < n * BLOCK; i++)
		w->tokens[i] = first + i;
	w->first = first;
	w->n = w->n_hit = 0;
	w->lease = 0;
	r = pfx_match(w->ns, &p, &m);
	if (r != PFX_OK)
		return r;
	w->lease = m.lease;
	w->reuse = m.reuse;
	for (uint32_t i = 0; i < m.n_runs; i++)
		for (uint32_t k = 0; k < m.runs[i].len; k++)
			w->slots[w->n++] = m.runs[i].start + k;
	w->n_hit = w->n;
	need(w->n_hit == m.n_device);
	return r;
}

static int worker_reserve(struct worker *w, uint32_t n)
{
	pfx_reserve_result v = { .struct_size = sizeof(v) };
	int r = pfx_reserve(w->ns, w->lease, n, 0, &v);

	if (r != PFX_OK)
		return r;
	for (uint32_t i = 0; i < v.n_runs; i++)
		for (uint32_t k = 0; k < v.runs[i].len; k++)
			w->slots[w->n++] = v.runs[i].start + k;
	return r;
}

static uint64_t word(const struct worker *w, uint32_t i, uint32_t k)
{
	return ((uint64_t)w->first << 32) + i * 1000003u + k;
}

static void worker_write(struct worker *w)
{
	uint64_t block[BYTES / 8];

	for (uint32_t i = w->n_hit; i < w->n; i++) {
		for (uint32_t k = 0; k < BYTES / 8; k++)
			block[k] = word(w, i, k);
		mover_write(w->ns, w->slots[i], block, sizeof(block));
	}
}

/* Words [from, to) of all blocks that are not what they should be. */
static uint64_t worker_wrong(const struct worker *w, uint32_t from, uint32_t to)
{
	uint64_t wrong = 0, block[BYTES / 8];

	for (uint32_t i = 0; i < w->n; i++) {
		mover_read(w->ns, w->slots[i], block, sizeof(block));
		for (uint32_t k = from; k < to; k++)
			wrong += block[k] != word(w, i, k);
	}
	return wrong;
}

static uint32_t worker_stale(const struct worker *w)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < w->n_hit; i++)
		n += pfx_slot_stale(w->ns, w->slots[i], w->reuse) == 1;
	return n;
}

static int worker_commit(struct worker *w)
{
	pfx_commit_result c = { .struct_size = sizeof(c) };

	return pfx_commit(w->ns, w->lease, w->n - w->n_hit, NULL, 0, 0, &c);
}

static int worker_release(struct worker *w)
{
	return pfx_release(w->ns, w->lease, 0, 0, 0, NULL);
}

/* Stores what is missing of a prompt, as far as there is room, and compares what was there. */
static uint32_t worker_put(struct worker *w, uint32_t first, uint32_t n)
{
	int r;

	need(worker_match(w, first, n) == PFX_OK);
	need(worker_wrong(w, 0, BYTES / 8) == 0);
	r = w->n_hit < n ? worker_reserve(w, n - w->n_hit) : PFX_OK;
	need(r == PFX_OK || r == PFX_BUSY);
	worker_write(w);
	need(w->n == w->n_hit || worker_commit(w) == PFX_OK);
	need(worker_release(w) == PFX_OK);
	return w->n;
}

/* ---- a worker's process ---------------------------------------------------------------------- */

struct child {
	pid_t pid;
	int said, go;
};

/* Runs `life` in a process; it says when it is ready, and waits for the word to go on. */
static int says_fd, goes_fd;

static void say_ready(void)
{
	need(write(says_fd, "r", 1) == 1);
}

static void await_go(void)
{
	char byte;

	need(read(goes_fd, &byte, 1) == 1);
}

static struct child child_start(void (*life)(uint32_t arg), uint32_t arg)
{
	struct child c;
	int says[2], goes[2];
	char byte;

	ck_assert_int_eq(pipe2(says, O_CLOEXEC), 0);
	ck_assert_int_eq(pipe2(goes, O_CLOEXEC), 0);
	c.pid = fork();
	ck_assert_int_ge(c.pid, 0);
	if (c.pid == 0) {
		says_fd = says[1];
		goes_fd = goes[0];
		close(goes[1]); /* or it would wait for itself when the test has died */
		life(arg);
		_exit(0);
	}
	close(says[1]);
	close(goes[0]);
	c.said = says[0];
	c.go = goes[1];
	ck_assert_msg(read(c.said, &byte, 1) == 1, "a worker failed before it was ready");
	return c;
}

static void child_go(const struct child *c)
{
	ck_assert_int_eq(write(c->go, "g", 1), 1);
}

/* Its exit status must be that; 0: well.  Negative: the signal that killed it. */
static void child_end(struct child *c, int want)
{
	int status = -1;

	ck_assert_int_eq(waitpid(c->pid, &status, 0), c->pid);
	close(c->said);
	close(c->go);
	if (want < 0)
		ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == -want);
	else
		ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == want,
			      "a worker ended with %#x", (unsigned)status);
}

static void child_kill(struct child *c)
{
	kill(c->pid, SIGKILL);
	child_end(c, -SIGKILL);
}

/* Until leases pin so many blocks. */
static void wait_pinned(json_int_t n)
{
	unsigned long end = e2e_now_ms() + 10000;

	while (admin_number("{\"op\":\"pins\"}", "pinned_blocks") != n) {
		ck_assert(e2e_now_ms() < end);
		e2e_sleep_ms(2);
	}
}

/* ---- F01: pins of the killed ----------------------------------------------------------------- */

#define F01_BLOCKS 2500u

static void f01_life(uint32_t i)
{
	static struct worker w;

	worker_start(&w, false);
	need(worker_put(&w, 1000000 * (i + 1), F01_BLOCKS) == F01_BLOCKS);
	need(worker_match(&w, 1000000 * (i + 1), F01_BLOCKS) == PFX_OK && w.n_hit == F01_BLOCKS);
	say_ready();
	await_go();
	need(worker_wrong(&w, 0, BYTES / 8) == 0);
	need(worker_release(&w) == PFX_OK);
}

START_TEST(pins_of_the_killed)
{
	struct child c[4];
	json_int_t pinned = 0;
	json_t *j;

	START("--pool-blocks", "10240");
	for (uint32_t i = 0; i < 4; i++)
		c[i] = child_start(f01_life, i);
	j = admin("{\"op\":\"pins\"}");
	ck_assert_int_eq(number(j, "total"), 4);
	ck_assert_int_eq(number(j, "pinned_blocks"), 4 * F01_BLOCKS);
	ck_assert_int_eq(number(j, "processes"), 4);
	json_decref(j);
	child_kill(&c[1]);
	child_kill(&c[3]);
	/*
	 * Their descriptors were readable before waitpid() returned: one turn of the loop, which
	 * the first answer may still be a part of.
	 */
	for (int turn = 0; turn < 2; turn++) {
		j = admin("{\"op\":\"pins\"}");
		pinned = number(j, "pinned_blocks");
		json_decref(j);
	}
	ck_assert_int_eq(pinned, 2 * F01_BLOCKS);
	ck_assert_int_eq(admin_number("{\"op\":\"evict\",\"n\":10240}", "evicted"), 2 * F01_BLOCKS);
	for (int i = 0; i < 4; i += 2) {
		child_go(&c[i]);
		child_end(&c[i], 0);
	}
	wait_stat("leases", 0);
	expect_clean();
}
END_TEST

/* ---- F03: stopped ---------------------------------------------------------------------------- */

#define F03_HALF 16u /* blocks read, and as many written: half of 64 */

/* What a worker that stands still for a while finds when it goes on. */
static void f03_life(uint32_t copies)
{
	static struct worker read_, write_;

	worker_start(&read_, copies);
	worker_start(&write_, copies);
	need(worker_put(&read_, 1000000, F03_HALF) == F03_HALF);
	need(worker_match(&read_, 1000000, F03_HALF) == PFX_OK && read_.n_hit == F03_HALF);
	need(worker_match(&write_, 2000000, F03_HALF) == PFX_OK);
	need(worker_reserve(&write_, F03_HALF) == PFX_OK && write_.n == F03_HALF);
	say_ready();
	await_go(); /* SIGSTOP comes while it waits here; its memory is untouched by itself */
	if (!copies) {
		need(worker_wrong(&read_, 0, BYTES / 8) == 0);
		need(worker_stale(&read_) == 0);
		worker_write(&write_);
		need(worker_commit(&write_) == PFX_OK);
		return;
	}
	/* It was revoked.  What it copies now is known to be others', and its slots wait for it. */
	(void)worker_wrong(&read_, 0, BYTES / 8);
	need(worker_stale(&read_) == F03_HALF);
	worker_write(&write_);
	need(worker_commit(&write_) == PFX_REVOKED);
	need(worker_release(&read_) == PFX_REVOKED);
	need(pfx_quiesced(write_.client, &write_.n) == PFX_OK && write_.n == F03_HALF);
	need(worker_put(&read_, 1000000, F03_HALF) == F03_HALF); /* computed anew */
}

/* Others fill what they can get, twenty times over, and compare all of it. */
static uint32_t pressure(uint32_t most)
{
	static struct worker w;
	uint32_t got = 0;

	worker_start(&w, false);
	for (uint32_t round = 0; round < 20; round++) {
		uint32_t n = worker_put(&w, 10000000 + 100000 * round, most);

		got = n > got ? n : got;
		ck_assert_int_eq(worker_match(&w, 10000000 + 100000 * round, most), PFX_OK);
		ck_assert_uint_eq(worker_wrong(&w, 0, BYTES / 8), 0);
		ck_assert_int_eq(worker_release(&w), PFX_OK);
	}
	pfx_close(w.client);
	return got;
}

static void stopped(bool copies)
{
	struct child c;

	START("--pool-blocks", "64", "--lease-max-age", copies ? "300ms" : "0");
	c = child_start(f03_life, copies);
	ck_assert_int_eq(kill(c.pid, SIGSTOP), 0);
	if (copies)
		wait_pinned(0);
	/* What it holds nobody else gets; of what was revoked the reads only. */
	ck_assert_uint_eq(pressure(64), copies ? 64 - F03_HALF : 64 - 2 * F03_HALF);
	child_go(&c);
	ck_assert_int_eq(kill(c.pid, SIGCONT), 0);
	child_end(&c, 0);
	wait_stat("leases", 0);
	expect_clean();
	if (!copies) { /* what it stored is there, to the byte */
		static struct worker w;

		worker_start(&w, false);
		ck_assert_int_eq(worker_match(&w, 2000000, F03_HALF), PFX_OK);
		ck_assert_uint_eq(w.n_hit, F03_HALF);
		ck_assert_uint_eq(worker_wrong(&w, 0, BYTES / 8), 0);
		pfx_close(w.client);
	}
}

START_TEST(stopped_reader)
{
	stopped(false);
}
END_TEST

START_TEST(stopped_copier)
{
	stopped(true);
}
END_TEST

/* ---- F04: a child holds the socket ----------------------------------------------------------- */

static void f04_life(uint32_t arg)
{
	static struct worker w;
	pid_t grandchild;

	worker_start(&w, false);
	need(worker_match(&w, 1000000, 8) == PFX_OK && worker_reserve(&w, 8) == PFX_OK);
	grandchild = fork();
	if (grandchild == 0) {
		/* The socket and the mapping are its own too now; the session is not. */
		pfx_match_result m = { .struct_size = sizeof(m) };
		pfx_prompt p = {
			.struct_size = sizeof(p), .salt = "", .keys = w.tokens, .n_keys = 1
		};

		need(pfx_match(w.ns, &p, &m) == PFX_FORKED);
		say_ready();
		await_go();
		_exit(0);
	}
	pause();
}

START_TEST(a_child_holds_the_socket)
{
	struct child c;

	START("--pool-blocks", "64");
	c = child_start(f04_life, 0);
	ck_assert_int_eq(admin_number("{\"op\":\"stat\"}", "leases"), 1);
	kill(c.pid, SIGKILL);
	ck_assert_int_eq(waitpid(c.pid, NULL, 0), c.pid);
	wait_stat("leases", 0);
	expect_clean();
	child_go(&c); /* the grandchild goes only now */
	close(c.go);
	close(c.said);
}
END_TEST

/* ---- F05: back before the old end was heard -------------------------------------------------- */

/* A session with a lease that reserves blocks; its instance is that of all raw clients here. */
static void f05_session(struct raw *r, uint32_t first)
{
	struct proto_open_rep ns;
	struct proto_reserve_req reserve = { .n = 4 };
	uint8_t body[64];
	struct proto_writer w = { .p = body, .cap = sizeof(body) };

	raw_connect(r, d.socket);
	raw_hello(r);
	ns = raw_open(r, MODEL, BYTES);
	reserve.lease = match(r, ns.ns, first, 4).lease;
	proto_reserve_req_encode(&w, &reserve);
	ck_assert(raw_call(r, PROTO_OP_RESERVE, body, w.len));
	ck_assert_uint_eq(r->h.status, PROTO_STATUS_OK);
}

static size_t f05_quiesced(struct raw *r, uint8_t *frame)
{
	struct proto_quiesced_req m = { .instance = { .b = { 1, 2, 3 } }, .old_boot = r->h.boot };
	uint8_t body[64];
	struct proto_writer w = { .p = body, .cap = sizeof(body) };

	proto_quiesced_req_encode(&w, &m);
	return raw_frame(r, frame, PROTO_OP_QUIESCED, body, w.len);
}

/*
 * The old socket is closed with much in it that was not heard yet, and QUIESCED comes by the new
 * one: it speaks for the old one's lease, whatever the loop looks at first, and not for its own.
 */
START_TEST(quiesced_before_the_end_was_heard)
{
	static uint8_t pings[500 * PROTO_HEADER_LEN];
	struct proto_quiesced_rep rep;
	uint8_t frame[128];
	const char *bad;

	START("--pool-blocks", "64");
	for (int round = 0; round < 20; round++) {
		struct raw old, new;

		f05_session(&old, 1000);
		f05_session(&new, 5000);
		ck_assert_int_eq(kill(d.pid, SIGSTOP), 0);
		for (size_t at = 0; at < sizeof(pings);)
			at += raw_frame(&old, pings + at, PROTO_OP_PING, NULL, 0);
		ck_assert(raw_write(&old, pings, sizeof(pings)));
		ck_assert(raw_write(&new, frame, f05_quiesced(&new, frame)));
		raw_close(&old);
		ck_assert_int_eq(kill(d.pid, SIGCONT), 0);
		ck_assert(raw_read(&new));
		ck_assert_uint_eq(new.h.status, PROTO_STATUS_OK);
		ck_assert_int_eq(proto_quiesced_rep_decode(new.body, new.h.len, &rep, &bad), 0);
		ck_assert_uint_eq(rep.n_leases, 1);
		ck_assert_uint_eq(rep.n_slots, 4);
		ck_assert_int_eq(admin_number("{\"op\":\"stat\"}", "leases"), 1); /* its own */
		raw_close(&new);
		/* Nothing lies about for the next round: what is an orphan by now is spoken for. */
		raw_connect(&new, d.socket);
		raw_hello(&new);
		ck_assert(raw_write(&new, frame, f05_quiesced(&new, frame)));
		ck_assert(raw_read(&new));
		ck_assert_int_eq(admin_number("{\"op\":\"stat\"}", "leases"), 0);
		raw_close(&new);
	}
	expect_clean();
}
END_TEST

/* ---- T20, T33, F08: copied too slowly -------------------------------------------------------- */

/* Copies half of each block, is held up, copies the rest; `late`: longer than its leases last. */
static void slow_life(uint32_t late)
{
	static struct worker w;

	worker_start(&w, true);
	need(worker_match(&w, 1000000, 32) == PFX_OK && w.n_hit == 32);
	need(worker_wrong(&w, 0, BYTES / 16) == 0);
	say_ready();
	await_go();
	if (!late) {
		need(worker_wrong(&w, BYTES / 16, BYTES / 8) == 0);
		need(worker_stale(&w) == 0);
		need(worker_release(&w) == PFX_OK);
		return;
	}
	/* The bytes are others' by now; nothing but the generation says so, and it says so. */
	need(worker_wrong(&w, BYTES / 16, BYTES / 8) > 0);
	need(worker_stale(&w) == 32);
	need(worker_release(&w) == PFX_REVOKED);
	need(worker_match(&w, 1000000, 32) == PFX_OK && w.n_hit == 0); /* computes */
	need(worker_reserve(&w, 32) == PFX_OK);
	worker_write(&w);
	need(worker_commit(&w) == PFX_OK);
}

/* Fills the pool, and is gone. */
static void filler_life(uint32_t first)
{
	static struct worker w;

	worker_start(&w, false);
	need(worker_put(&w, first, 32) == 32);
	say_ready();
	pfx_close(w.client);
}

START_TEST(copied_too_slowly)
{
	struct child c, filler;

	START("--pool-blocks", "32", "--lease-max-age", "300ms");
	filler = child_start(filler_life, 1000000);
	child_end(&filler, 0);
	c = child_start(slow_life, 0);
	child_go(&c);
	child_end(&c, 0);
	c = child_start(slow_life, 1);
	wait_pinned(0);
	filler = child_start(filler_life, 5000000);
	child_end(&filler, 0);
	child_go(&c);
	child_end(&c, 0);
	wait_stat("leases", 0);
	expect_clean();
}
END_TEST

/* ---- T25: closed, and alive ------------------------------------------------------------------ */

static void t25_life(uint32_t arg)
{
	static struct worker w;

	worker_start(&w, false);
	need(worker_put(&w, 1000000, 16) == 16);
	need(worker_match(&w, 1000000, 16) == PFX_OK && w.n_hit == 16);
	/* The socket goes, the mapping stays: as a device would go on reading. */
	for (int fd = 3; fd < 64; fd++)
		if (fd != says_fd && fd != goes_fd)
			close(fd);
	say_ready();
	await_go();
	need(worker_wrong(&w, 0, BYTES / 8) == 0);
	say_ready();
	pause();
}

START_TEST(closed_and_alive)
{
	struct child c;
	json_t *j, *pin;
	char byte;

	START("--pool-blocks", "64");
	c = child_start(t25_life, 0);
	wait_stat("leases", 1);
	do {
		j = admin("{\"op\":\"pins\"}");
		pin = json_array_get(json_object_get(j, "pins"), 0);
		byte = json_is_true(json_object_get(pin, "orphan"));
		if (byte) {
			ck_assert_int_eq(number(pin, "pid"), c.pid);
			ck_assert_int_eq(number(pin, "blocks"), 16);
			ck_assert_int_eq(number(pin, "bytes"), 16 * BYTES);
			ck_assert_str_eq(json_string_value(json_object_get(pin, "name")), "reader");
			ck_assert_str_eq(json_string_value(json_object_get(pin, "state")),
					 "orphan");
			ck_assert_str_eq(json_string_value(json_object_get(pin, "model")), MODEL);
		}
		json_decref(j);
	} while (!byte);
	ck_assert_uint_eq(pressure(64), 64 - 16);
	child_go(&c);
	ck_assert_int_eq(read(c.said, &byte, 1), 1); /* every byte was still there */
	child_kill(&c);
	wait_stat("leases", 0);
	ck_assert_uint_eq(pressure(64), 64);
	expect_clean();
}
END_TEST

/* ---- the page -------------------------------------------------------------------------------- */

/* Leaves 20 read blocks and 20 reserved ones behind, and lives on. */
static void leaver_life(uint32_t arg)
{
	static struct worker w;

	worker_start(&w, false);
	need(worker_put(&w, 1000000, 20) == 20);
	need(worker_match(&w, 1000000, 40) == PFX_OK && w.n_hit == 20);
	need(worker_reserve(&w, 20) == PFX_OK);
	pfx_close(w.client);
	say_ready();
	await_go();
}

static void await_page(int status, const char *text)
{
	unsigned long end = e2e_now_ms() + 10000;
	struct http_answer a = http_get("/readyz", "");

	while (a.status != status && e2e_now_ms() < end) {
		http_answer_free(&a);
		e2e_sleep_ms(5);
		a = http_get("/readyz", "");
	}
	ck_assert_int_eq(a.status, status);
	ck_assert_msg(strstr(a.body, text) != NULL, "%s", a.body);
	http_answer_free(&a);
}

/* Until so many slots are kept from use: a GPU may write a while longer than its process lives. */
static void wait_kept(long double n)
{
	unsigned long end = e2e_now_ms() + 10000;

	while (http_value("prefixd_kept_slots") != n) {
		ck_assert(e2e_now_ms() < end);
		e2e_sleep_ms(5);
	}
}

START_TEST(a_page_that_names_them)
{
	char pid[32], out[4096], *log;
	struct child c;

	http_start_unix("64");
	await_page(200, "ok\n");
	c = child_start(leaver_life, 0);
	(void)snprintf(pid, sizeof(pid), "pid %d keeps 40", c.pid);
	await_page(503, "degraded: pool 0: 40 of 64 slots");
	await_page(503, pid);
	await_page(503, "and may write ");
	ck_assert(http_value("prefixd_pools_over_half") == 1);
	ck_assert(http_value("prefixd_kept_slots") == 40);
	ck_assert(http_value("prefixd_orphan_leases") == 1);
	ck_assert(http_value("prefixd_reserved_slots") == 20);
	ck_assert(http_value("prefixd_pinned_blocks") == 20);
	ck_assert(http_value("prefixd_pinned_bytes") == 20 * BYTES);
	ck_assert(http_value("prefixd_pin_age_max_seconds") > 0);
	ck_assert_int_eq(e2e_run((const char *const[]){ getenv("PREFIXCTL_BIN"), "--admin-socket",
							d.admin, "pins", "--sort", "size", NULL },
				 out, sizeof(out)),
			 0);
	ck_assert_msg(strstr(out, "orphan") && !strstr(out, "1000000") &&
			      strstr(out, "40 kept from use") && strstr(out, "more than half"),
		      "%s", out);
	/* It serves on with what is left, and gives nothing away. */
	ck_assert_uint_eq(pressure(64), 24);
	child_go(&c);
	child_end(&c, 0);
	await_page(200, "ok\n"); /* by itself */
	wait_kept(0);
	ck_assert(http_value("prefixd_pools_over_half") == 0);
	ck_assert(http_value("prefixd_pool_over_half_total") == 1);
	log = e2e_daemon_log(&d);
	ck_assert_msg(strstr(log, pid) && strstr(log, "kept from use again"), "%s", log);
	free(log);
	ck_assert_uint_eq(pressure(64), 64);
	expect_clean();
}
END_TEST

int main(int argc, char **argv)
{
#define TESTS(...) ((const TTest *const[]){ __VA_ARGS__, NULL })
	const struct shell_case cases[] = {
		{ "F01", TESTS(pins_of_the_killed) },
		{ "F03", TESTS(stopped_reader, stopped_copier) },
		{ "F04", TESTS(a_child_holds_the_socket) },
		{ "F05", TESTS(quiesced_before_the_end_was_heard) },
		{ "F08", TESTS(copied_too_slowly) },
		{ "T25", TESTS(closed_and_alive) },
		{ "page", TESTS(a_page_that_names_them) },
	};

	return shell_main(cases, radix_array_size(cases), argc > 1 ? argv[1] : NULL);
}
