/*
 * test_words.c - requests that wait for a word of the worker's stream, on the real daemon.
 *
 * The worker is this test, which writes the words itself, late or early, and speaks in frames.
 *
 *     test_words [CASE]     cases: words, ends, limits, late
 */
#include "tests/e2e/shell_world.h"
#include "tests/lib/run.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define N_WORDS 512u
#define BYTES   4096u

/* A session, a namespace and the session's words. */
struct place {
	struct raw r;
	uint32_t ns;
	uint64_t *words;
	int fd; /* theirs */
};

static void place_end(struct place *at)
{
	if (at->words)
		munmap(at->words, 8 * (size_t)N_WORDS);
	at->words = NULL;
	raw_close(&at->r);
}

static struct place place(const char *model)
{
	struct place at = { .fd = -1 };
	struct proto_open_rep o;

	raw_connect(&at.r, d.socket);
	raw_hello(&at.r);
	o = raw_open_with(&at.r, model, BYTES, PROTO_OPEN_WORDS);
	ck_assert_uint_eq(o.n_words, N_WORDS);
	ck_assert_uint_eq(at.r.n_fds, o.n_pool_fds + 1u);
	at.ns = o.ns;
	at.fd = at.r.fds[o.n_pool_fds];
	at.words = mmap(NULL, 8 * (size_t)N_WORDS, PROT_READ | PROT_WRITE, MAP_SHARED, at.fd, 0);
	ck_assert_ptr_ne(at.words, MAP_FAILED);
	return at;
}

static void set(const struct place *at, uint32_t word, uint64_t value)
{
	__atomic_store_n(&at->words[word - 1], value, __ATOMIC_RELEASE);
}

/* ---- requests without their answers ---------------------------------------------------------- */

static uint8_t body[256];

static uint64_t send_body(struct place *at, uint16_t op, const struct proto_writer *w)
{
	uint8_t frame[sizeof(body) + PROTO_HEADER_LEN];

	ck_assert(proto_writer_ok(w));
	ck_assert(raw_write(&at->r, frame, raw_frame(&at->r, frame, op, body, w->len)));
	return at->r.seq;
}

static uint64_t send_commit(struct place *at, uint64_t lease, uint32_t n, uint32_t word,
			    uint64_t value)
{
	const struct proto_commit_req m = { .lease = lease, .n = n, .word = word, .value = value };
	struct proto_writer w = { .p = body, .cap = sizeof(body) };

	proto_commit_req_encode(&w, &m);
	return send_body(at, PROTO_OP_COMMIT, &w);
}

static uint64_t send_release(struct place *at, uint64_t lease, uint32_t word, uint64_t value)
{
	const struct proto_release_req m = { .lease = lease, .word = word, .value = value };
	struct proto_writer w = { .p = body, .cap = sizeof(body) };

	proto_release_req_encode(&w, &m);
	return send_body(at, PROTO_OP_RELEASE, &w);
}

static uint64_t send_quiesced(struct place *at, uint32_t word, uint64_t value)
{
	const struct proto_quiesced_req m = { .instance = { .b = { 1, 2, 3 } },
					      .word = word,
					      .value = value };
	struct proto_writer w = { .p = body, .cap = sizeof(body) };

	proto_quiesced_req_encode(&w, &m);
	return send_body(at, PROTO_OP_QUIESCED, &w);
}

/* The next answer is the one to this request. */
static void answered(struct place *at, uint64_t seq, enum proto_status status)
{
	ck_assert(raw_read(&at->r));
	ck_assert_uint_eq(at->r.h.seq, seq);
	ck_assert_msg(at->r.h.status == status, "%s", proto_status_to_string(at->r.h.status));
}

static void refused(struct place *at, uint64_t seq, const char *field)
{
	struct proto_error e;
	const char *bad;

	answered(at, seq, PROTO_STATUS_BAD_BODY);
	ck_assert_int_eq(proto_error_decode(at->r.body, at->r.h.len, &e, &bad), 0);
	ck_assert_uint_eq(e.field.n, strlen(field));
	ck_assert_mem_eq(e.field.p, field, e.field.n);
}

/* No answer comes in this time. */
static void quiet(const struct place *at, int ms)
{
	struct pollfd p = { .fd = at->r.fd, .events = POLLIN };

	ck_assert_msg(poll(&p, 1, ms) == 0, "an answer that was too early");
}

static void wait_parked(json_int_t n)
{
	wait_stat("parked", n);
}

/* A lease with n reserved slots. */
static uint64_t reserved(struct place *at, uint32_t first, uint32_t n)
{
	struct proto_reserve_req m = { .lease = match(&at->r, at->ns, first, n).lease, .n = n };
	struct proto_writer w = { .p = body, .cap = sizeof(body) };

	proto_reserve_req_encode(&w, &m);
	ck_assert(raw_call(&at->r, PROTO_OP_RESERVE, body, w.len));
	ck_assert_uint_eq(at->r.h.status, PROTO_STATUS_OK);
	return m.lease;
}

/* Blocks of that prompt that are there, as another session sees it. */
static uint32_t found(uint32_t first, uint32_t n)
{
	struct proto_match_rep rep;
	struct proto_open_rep o;
	struct raw r;

	raw_connect(&r, d.socket);
	raw_hello(&r);
	o = raw_open(&r, "m", BYTES);
	rep = match(&r, o.ns, first, n);
	release(&r, rep.lease);
	raw_close(&r);
	return rep.n_device;
}

/* ---- words ----------------------------------------------------------------------------------- */

START_TEST(one_memory_for_each_session)
{
	struct stat a_file, b_file, again;
	struct place a, b;
	struct proto_open_rep o;
	int seals;

	START("--pool-blocks", "64");
	a = place("m");
	b = place("m");
	ck_assert_int_eq(fstat(a.fd, &a_file), 0);
	ck_assert_int_eq(fstat(b.fd, &b_file), 0);
	ck_assert_uint_eq(a_file.st_size, 8 * N_WORDS);
	ck_assert_uint_ne(a_file.st_ino, b_file.st_ino);
	seals = fcntl(a.fd, F_GET_SEALS);
	ck_assert_int_eq(seals & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
			 F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
	ck_assert_int_eq(ftruncate(a.fd, 0), -1);
	ck_assert_int_eq(errno, EPERM);
	for (uint32_t i = 0; i < N_WORDS; i++)
		ck_assert_uint_eq(a.words[i], 0);
	/* The same namespace with the wish and without it: nothing else is another. */
	o = raw_open(&a.r, "m", BYTES);
	ck_assert_uint_eq(o.ns, a.ns);
	ck_assert_uint_eq(o.n_words, 0);
	while (a.r.n_fds > 0)
		close(a.r.fds[--a.r.n_fds]);
	o = raw_open_with(&a.r, "other", BYTES, PROTO_OPEN_WORDS);
	ck_assert_uint_eq(o.n_words, N_WORDS);
	ck_assert_int_eq(fstat(a.r.fds[o.n_pool_fds], &again), 0);
	ck_assert_uint_eq(again.st_ino, a_file.st_ino);
	place_end(&a);
	place_end(&b);
}
END_TEST

START_TEST(a_word_that_is_there_is_not_waited_for)
{
	struct place a;
	uint64_t lease;

	START("--pool-blocks", "64");
	a = place("m");
	lease = reserved(&a, 1, 4);
	set(&a, 1, 7);
	answered(&a, send_commit(&a, lease, 2, 1, 7), PROTO_STATUS_OK);
	answered(&a, send_commit(&a, lease, 1, 1, 3), PROTO_STATUS_OK);
	answered(&a, send_commit(&a, lease, 1, 0, 99), PROTO_STATUS_OK);
	ck_assert_uint_eq(found(1, 4), 4);
	answered(&a, send_release(&a, lease, 1, 7), PROTO_STATUS_OK);
	place_end(&a);
	expect_clean();
}
END_TEST

/* Until the word comes nobody finds the blocks, and the rest of the session goes on. */
START_TEST(a_word_that_comes_late)
{
	uint64_t lease, other, commit, end;
	struct place a;
	json_t *j;

	START("--pool-blocks", "64");
	a = place("m");
	lease = reserved(&a, 1, 4);
	commit = send_commit(&a, lease, 4, N_WORDS, 9);
	wait_parked(1);
	j = admin("{\"op\":\"status\"}");
	ck_assert_int_eq(number(json_array_get(json_object_get(j, "sessions"), 0), "parked"), 1);
	json_decref(j);
	ck_assert(raw_call(&a.r, PROTO_OP_PING, NULL, 0));
	other = reserved(&a, 9000, 2);
	answered(&a, send_commit(&a, other, 2, 0, 0), PROTO_STATUS_OK);
	ck_assert_uint_eq(found(9000, 2), 2);
	ck_assert_uint_eq(found(1, 4), 0);
	set(&a, N_WORDS, 8);
	set(&a, 1, 9);
	quiet(&a, 30);
	ck_assert_uint_eq(found(1, 4), 0);
	end = send_release(&a, lease, 0, 0); /* behind it, of the same lease */
	answered(&a, send_release(&a, other, 0, 0), PROTO_STATUS_OK);
	set(&a, N_WORDS, 9);
	answered(&a, commit, PROTO_STATUS_OK);
	answered(&a, end, PROTO_STATUS_OK);
	ck_assert_uint_eq(found(1, 4), 4);
	wait_parked(0);
	place_end(&a);
	wait_stat("leases", 0);
	expect_clean();
}
END_TEST

/* All that names the lease keeps its order; a later word that is there already changes nothing. */
START_TEST(requests_of_a_lease_keep_their_order)
{
	struct proto_extend_req extend = { 0 };
	struct proto_reserve_req reserve = { .n = 2 };
	struct proto_wait_req wait = { 0 };
	struct proto_writer w = { .p = body, .cap = sizeof(body) };
	uint32_t tokens[2 * BLOCK];
	uint64_t lease, seq[7];
	struct place a;

	START("--pool-blocks", "64");
	a = place("m");
	lease = extend.lease = reserve.lease = wait.lease = reserved(&a, 1, 2);
	for (uint32_t i = 0; i < 2 * BLOCK; i++)
		tokens[i] = 1 + 2 * BLOCK + i;
	extend.n_tokens = 4 * BLOCK;
	extend.keys = (struct proto_span){ tokens, sizeof(tokens) };
	set(&a, 2, 1);
	seq[0] = send_commit(&a, lease, 2, 1, 1);
	proto_wait_req_encode(&w, &wait);
	seq[1] = send_body(&a, PROTO_OP_WAIT, &w);
	w.len = 0;
	proto_extend_req_encode(&w, &extend);
	seq[2] = send_body(&a, PROTO_OP_EXTEND, &w);
	w.len = 0;
	proto_reserve_req_encode(&w, &reserve);
	seq[3] = send_body(&a, PROTO_OP_RESERVE, &w);
	seq[4] = send_commit(&a, lease, 2, 2, 1);
	seq[5] = send_release(&a, lease, 3, 1);
	wait_parked(6);
	quiet(&a, 20);
	set(&a, 1, 1);
	for (uint32_t i = 0; i < 5; i++)
		answered(&a, seq[i], PROTO_STATUS_OK);
	quiet(&a, 20);
	ck_assert_uint_eq(found(1, 4), 4);
	ck_assert_int_eq(admin_number("{\"op\":\"stat\"}", "parked"), 1);
	/* A body that does not decode is about no lease that anybody knows. */
	seq[6] = send_body(&a, PROTO_OP_COMMIT,
			   &(struct proto_writer){ .p = body, .cap = 3, .len = 3 });
	refused(&a, seq[6], "op_id");
	set(&a, 3, 1);
	answered(&a, seq[5], PROTO_STATUS_OK);
	place_end(&a);
	expect_clean();
}
END_TEST

/* Half of all values lies behind a value and is there, the other half is still to come. */
START_TEST(values_go_round)
{
	static const struct {
		uint64_t is, wanted;
		bool there;
	} cases[] = {
		{ 0, 0, true },
		{ 0, 1, false },
		{ 3, UINT64_MAX - 1, true },
		{ UINT64_MAX - 1, 3, false },
		{ 1ull << 63, 1, true },
		{ (1ull << 63) + 1, 1, false },
		{ 5, 5 + (1ull << 63), false },
		{ 4, 5 + (1ull << 63), true },
	};
	struct place a;

	START("--pool-blocks", "64");
	a = place("m");
	for (uint32_t i = 0; i < radix_array_size(cases); i++) {
		uint64_t lease = match(&a.r, a.ns, 1, 1).lease, seq;

		set(&a, 4, cases[i].is);
		seq = send_release(&a, lease, 4, cases[i].wanted);
		if (!cases[i].there) {
			wait_parked(1);
			quiet(&a, 5);
			set(&a, 4, cases[i].wanted);
		}
		answered(&a, seq, PROTO_STATUS_OK);
	}
	place_end(&a);
	expect_clean();
}
END_TEST

START_TEST(words_that_are_not_there)
{
	struct place a, none = { .fd = -1 };
	struct proto_open_rep o;
	uint64_t lease, seq;

	START("--pool-blocks", "64");
	a = place("m");
	lease = reserved(&a, 1, 1);
	refused(&a, send_commit(&a, lease, 1, N_WORDS + 1, 0), "word");
	refused(&a, send_release(&a, lease, UINT32_MAX, 0), "word");
	refused(&a, send_quiesced(&a, N_WORDS + 1, 0), "word");
	/* It does not even wait behind what waits. */
	seq = send_commit(&a, lease, 1, 1, 1);
	wait_parked(1);
	refused(&a, send_commit(&a, lease, 1, N_WORDS + 1, 0), "word");
	set(&a, 1, 1);
	answered(&a, seq, PROTO_STATUS_OK);
	/* Nobody else's words. */
	raw_connect(&none.r, d.socket);
	raw_hello(&none.r);
	o = raw_open(&none.r, "m", BYTES);
	lease = match(&none.r, o.ns, 1, 1).lease;
	refused(&none, send_release(&none, lease, 1, 1), "word");
	answered(&none, send_release(&none, lease, 0, 1), PROTO_STATUS_OK);
	place_end(&a);
	place_end(&none);
}
END_TEST

START_TEST(each_session_waits_for_its_own)
{
	struct place at[2];
	uint64_t seq[2];

	START("--pool-blocks", "64");
	for (uint32_t i = 0; i < 2; i++) {
		at[i] = place("m");
		seq[i] = send_commit(&at[i], reserved(&at[i], 1 + 5000 * i, 2), 2, 1, 1);
	}
	wait_parked(2);
	set(&at[1], 1, 1);
	answered(&at[1], seq[1], PROTO_STATUS_OK);
	quiet(&at[0], 20);
	ck_assert_uint_eq(found(1, 2), 0);
	ck_assert_uint_eq(found(5001, 2), 2);
	set(&at[0], 1, 1);
	answered(&at[0], seq[0], PROTO_STATUS_OK);
	place_end(&at[0]);
	place_end(&at[1]);
	expect_clean();
}
END_TEST

/* What the device has not left yet stays held: QUIESCED counts when its word has come. */
START_TEST(quiesced_waits_too)
{
	struct place a, b;
	uint64_t seq[2];

	START("--pool-blocks", "64");
	a = place("m");
	b = place("m");
	(void)reserved(&a, 1, 4);
	place_end(&a);
	seq[0] = send_quiesced(&b, 1, 1);
	seq[1] = send_quiesced(&b, 0, 0);
	wait_parked(2);
	(void)match(&b.r, b.ns, 1, 1); /* of no lease that QUIESCED names */
	ck_assert_int_eq(admin_number("{\"op\":\"stat\"}", "leases"), 2);
	set(&b, 1, 1);
	answered(&b, seq[0], PROTO_STATUS_OK);
	answered(&b, seq[1], PROTO_STATUS_OK);
	wait_stat("leases", 1);
	place_end(&b);
}
END_TEST

/* ---- ends ------------------------------------------------------------------------------------ */

/* The socket ends: what waits is of no use any more, and the lease dies with the process alone. */
START_TEST(the_end_of_the_socket)
{
	struct place a, b;
	uint64_t *words;

	START("--pool-blocks", "64");
	a = place("m");
	(void)send_commit(&a, reserved(&a, 1, 4), 4, 1, 1);
	wait_parked(1);
	words = a.words;
	a.words = NULL;
	place_end(&a);
	wait_parked(0);
	__atomic_store_n(words, 1, __ATOMIC_RELEASE);
	e2e_sleep_ms(20);
	ck_assert_uint_eq(found(1, 4), 0);
	ck_assert_int_eq(admin_number("{\"op\":\"stat\"}", "leases"), 1);
	munmap(words, 8 * (size_t)N_WORDS);
	b = place("m");
	answered(&b, send_quiesced(&b, 0, 0), PROTO_STATUS_OK);
	wait_stat("leases", 0);
	place_end(&b);
	expect_clean();
}
END_TEST

/* What has come before the daemon hears of the end counts. */
START_TEST(a_word_and_the_end)
{
	struct place a;

	START("--pool-blocks", "64");
	a = place("m");
	(void)send_commit(&a, reserved(&a, 1, 4), 4, 1, 1);
	wait_parked(1);
	ck_assert_int_eq(kill(d.pid, SIGSTOP), 0);
	set(&a, 1, 1);
	place_end(&a);
	ck_assert_int_eq(kill(d.pid, SIGCONT), 0);
	wait_parked(0);
	ck_assert_uint_eq(found(1, 4), 4);
	expect_clean();
}
END_TEST

/* Nothing of what waited has happened for the next life. */
START_TEST(the_end_of_the_daemon)
{
	struct place a;

	START("--pool-blocks", "64", "--keep", "holder", "--hold-timeout", "20s");
	a = place("m");
	store(&a.r, a.ns, 9000, 2);
	(void)send_commit(&a, reserved(&a, 1, 4), 4, 1, 1);
	wait_parked(1);
	ck_assert_int_ne(e2e_daemon_stop(&d, SIGKILL), -1);
	set(&a, 1, 1);
	START("--pool-blocks", "64", "--keep", "holder", "--hold-timeout", "20s");
	ck_assert_uint_eq(found(9000, 2), 2);
	ck_assert_uint_eq(found(1, 4), 0);
	ck_assert_int_eq(admin_number("{\"op\":\"stat\"}", "parked"), 0);
	place_end(&a);
	expect_clean();
	ck_assert_int_ne(e2e_daemon_stop(&d, SIGINT), -1); /* and gives up what is kept */
}
END_TEST

/* A worker is killed whose stream never gets there. */
START_TEST(the_end_of_the_process)
{
	unsigned long killed;
	int ready[2];
	pid_t worker;
	char c;

	START("--pool-blocks", "8");
	ck_assert_int_eq(pipe(ready), 0);
	worker = fork();
	ck_assert_int_ge(worker, 0);
	if (worker == 0) {
		struct place a = place("m");
		uint64_t lease = reserved(&a, 1, 8);

		(void)send_commit(&a, lease, 8, 1, 1);
		(void)send_release(&a, lease, 1, 2);
		(void)!write(ready[1], "x", 1);
		pause();
		_exit(0);
	}
	ck_assert_int_eq(read(ready[0], &c, 1), 1);
	wait_parked(2);
	killed = e2e_now_ms();
	ck_assert_int_eq(kill(worker, SIGKILL), 0);
	ck_assert_int_eq(waitpid(worker, NULL, 0), worker);
	wait_parked(0);
	ck_assert_uint_eq(found(1, 8), 0);
	/* All slots were its own: they are had again, and not before its device is through. */
	for (bool had = false; !had;) {
		struct place b = place("m");
		struct proto_reserve_req m = { .lease = match(&b.r, b.ns, 7000, 1).lease, .n = 1 };
		struct proto_writer w = { .p = body, .cap = sizeof(body) };

		proto_reserve_req_encode(&w, &m);
		ck_assert(raw_call(&b.r, PROTO_OP_RESERVE, body, w.len));
		had = b.r.h.status == PROTO_STATUS_OK;
		if (had)
			ck_assert_uint_ge(e2e_now_ms() + 1, killed + e2e_grace_ms());
		ck_assert_uint_lt(e2e_now_ms(), killed + e2e_grace_ms() + 10000);
		release(&b.r, m.lease);
		place_end(&b);
	}
	expect_clean();
	close(ready[0]);
	close(ready[1]);
}
END_TEST

/* ---- limits ---------------------------------------------------------------------------------- */

/* Who has so much parked is not heard until half of it has gone; the others are. */
START_TEST(not_heard_beyond_so_much)
{
	enum {
		N = 1200,
		MOST = 1024
	};
	static uint64_t seq[N];
	uint64_t ping;
	uint8_t frame[PROTO_HEADER_LEN];
	struct place a;

	START("--pool-blocks", "64");
	a = place("m");
	for (uint32_t i = 0; i < N; i++)
		seq[i] = send_release(&a, 1000000 + i, 1, 1 + i / 100);
	ck_assert(raw_write(&a.r, frame, raw_frame(&a.r, frame, PROTO_OP_PING, NULL, 0)));
	ping = a.r.seq;
	wait_parked(MOST);
	e2e_sleep_ms(20);
	ck_assert_int_eq(admin_number("{\"op\":\"stat\"}", "parked"), MOST);
	quiet(&a, 0);
	ck_assert_uint_eq(found(1, 1), 0); /* another session is served */
	set(&a, 1, 1);
	for (uint32_t i = 0; i < 100; i++)
		answered(&a, seq[i], PROTO_STATUS_UNKNOWN_LEASE);
	quiet(&a, 20);
	ck_assert_int_eq(admin_number("{\"op\":\"stat\"}", "parked"), MOST - 100);
	set(&a, 1, 6); /* 424 are left, so it is heard again */
	for (uint32_t i = 100; i < 600; i++)
		answered(&a, seq[i], PROTO_STATUS_UNKNOWN_LEASE);
	answered(&a, ping, PROTO_STATUS_OK);
	wait_parked(N - 600);
	set(&a, 1, 99);
	for (uint32_t i = 600; i < N; i++)
		answered(&a, seq[i], PROTO_STATUS_UNKNOWN_LEASE);
	wait_parked(0);
	place_end(&a);
}
END_TEST

/* Its end is heard all the same, while the process lives and the word does not come. */
START_TEST(the_end_of_who_is_not_heard)
{
	enum {
		N = 1200,
		MOST = 1024
	};
	json_int_t before;
	struct place a;

	START("--pool-blocks", "64");
	before = admin_number("{\"op\":\"stat\"}", "sessions");
	a = place("m");
	for (uint32_t i = 0; i < N; i++)
		(void)send_release(&a, 1000000 + i, 1, 1);
	wait_parked(MOST);
	place_end(&a);
	wait_parked(0);
	wait_stat("sessions", before);
	expect_clean();
}
END_TEST

/* Many sessions with much to hand over at once: all of it comes. */
START_TEST(all_at_once)
{
	enum {
		SESSIONS = 8,
		N = 500
	};
	static struct place at[SESSIONS];
	uint64_t first[SESSIONS];

	START("--pool-blocks", "64");
	for (uint32_t s = 0; s < SESSIONS; s++) {
		at[s] = place("m");
		first[s] = at[s].r.seq + 1;
		for (uint32_t i = 0; i < N; i++)
			(void)send_release(&at[s], i % 2 ? 77 : 1000 + i, 1, 1);
	}
	wait_parked(SESSIONS * N);
	for (uint32_t s = 0; s < SESSIONS; s++)
		set(&at[s], 1, 1);
	for (uint32_t s = 0; s < SESSIONS; s++) {
		bool seen[N] = { false };
		uint64_t last = 0;

		for (uint32_t i = 0; i < N; i++) {
			uint64_t k;

			ck_assert(raw_read(&at[s].r));
			k = at[s].r.h.seq - first[s];
			ck_assert_uint_lt(k, N);
			ck_assert(!seen[k]);
			seen[k] = true;
			if (k % 2 == 0)
				continue;
			ck_assert_uint_gt(k, last); /* those of lease 77 */
			last = k;
		}
		place_end(&at[s]);
	}
	wait_parked(0);
}
END_TEST

/* Processor time of the daemon so far, in milliseconds. */
static unsigned long cpu_ms(void)
{
	unsigned long user = 0, sys = 0;
	char path[64], text[512];
	const char *at;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)d.pid);
	f = fopen(path, "r");
	ck_assert_ptr_nonnull(f);
	ck_assert_ptr_nonnull(fgets(text, sizeof(text), f));
	(void)fclose(f); /* read only */
	at = strrchr(text, ')');
	ck_assert_ptr_nonnull(at);
	ck_assert_int_eq(
		sscanf(at + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &sys),
		2);
	return (user + sys) * 1000 / (unsigned long)sysconf(_SC_CLK_TCK);
}

/* After 10 seconds somebody is told, once; and waiting costs next to nothing all the while. */
START_TEST(late_words_are_told)
{
	unsigned long cpu;
	struct place a;
	const char *line;
	char want[128], *log;
	uint64_t seq;

	START("--pool-blocks", "64");
	a = place("m");
	set(&a, 7, 41);
	seq = send_release(&a, match(&a.r, a.ns, 1, 1).lease, 7, 42);
	wait_parked(1);
	cpu = cpu_ms();
	e2e_sleep_ms(9000);
	cpu = cpu_ms() - cpu;
	ck_assert_msg(cpu < 900, "%lu ms of processor time in 9 seconds", cpu);
	log = e2e_daemon_log(&d);
	ck_assert_ptr_null(strstr(log, "waits for word"));
	free(log);
	e2e_sleep_ms(2500);
	log = e2e_daemon_log(&d);
	snprintf(want, sizeof(want),
		 "(pid %d): RELEASE waits for word 7, which is 41, to come to 42;", (int)getpid());
	line = strstr(log, want);
	ck_assert_msg(line != NULL, "%s", log);
	ck_assert_ptr_null(strstr(line + strlen(want), "waits for word"));
	free(log);
	set(&a, 7, 42);
	answered(&a, seq, PROTO_STATUS_OK);
	place_end(&a);
}
END_TEST

int main(int argc, char **argv)
{
	const TTest *const words[] = { one_memory_for_each_session,
				       a_word_that_is_there_is_not_waited_for,
				       a_word_that_comes_late,
				       requests_of_a_lease_keep_their_order,
				       values_go_round,
				       words_that_are_not_there,
				       each_session_waits_for_its_own,
				       quiesced_waits_too,
				       NULL };
	const TTest *const ends[] = { the_end_of_the_socket, a_word_and_the_end,
				      the_end_of_the_daemon, the_end_of_the_process, NULL };
	const TTest *const limits[] = { not_heard_beyond_so_much, the_end_of_who_is_not_heard,
					all_at_once, NULL };
	const TTest *const late[] = { late_words_are_told, NULL };
	const struct shell_case cases[] = {
		{ "words", words }, { "ends", ends }, { "limits", limits }, { "late", late }
	};

	return shell_main(cases, radix_array_size(cases), argc > 1 ? argv[1] : NULL);
}
