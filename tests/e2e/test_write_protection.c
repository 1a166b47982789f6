/*
 * test_write_protection.c - pool-write staged with the real binary: who may write where, what a
 * worker that goes on writing gets, and what one that dies leaves.
 *
 * With E2E_DEVICE=cuda the same on the driver that looks like a GPU's; what needs this machine's
 * memory is left out then.
 */
#include "clients/c/prefixd.h"
#include "clients/c/prefixd_kernels.h"
#include "tests/e2e/mover.h"
#include "tests/e2e/shell_world.h"
#include "tests/e2e/worker.h"

#include <fcntl.h>
#include <grp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define NOBODY 65534

static bool on_gpu(void)
{
	return e2e_grace_ms() > 0;
}

static json_int_t status_of(const char *part, const char *name)
{
	json_t *status = admin("{\"op\":\"status\"}");
	json_int_t n = number(json_object_get(status, part), name);

	json_decref(status);
	return n;
}

/* ---- another user ---------------------------------------------------------------------------- */

static int open_again(int fd)
{
	char path[64];
	int again;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	again = open(path, O_RDWR | O_CLOEXEC);
	if (again < 0)
		return errno;
	close(again);
	return 0;
}

static int map_for_writing(int fd, size_t len)
{
	void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		return errno;
	munmap(p, len);
	return 0;
}

/* What another user can do with the descriptors of OPEN's reply; exit status: what failed. */
#define MUST(x)                                    \
	do {                                       \
		if (!(x))                          \
			_exit(__LINE__ % 250 + 1); \
	} while (0)

static void as_nobody(void)
{
	struct proto_open_rep rep;
	struct raw r;
	uint8_t *p;

	MUST(setgroups(0, NULL) == 0 && setgid(NOBODY) == 0 && setuid(NOBODY) == 0);
	raw_connect(&r, d.socket);
	raw_hello(&r);
	rep = raw_open(&r, "m", 4096);
	MUST(rep.flags & PROTO_OPENED_READ_ONLY);
	MUST(rep.n_write == 64 && rep.write_len >= 64 * rep.slot_stride && r.n_fds == 3);
	/* The pool, by none of the ways there are. */
	MUST(map_for_writing(r.fds[0], rep.pool_len) == EACCES);
	MUST(open_again(r.fds[0]) == EACCES);
	MUST(fchmod(r.fds[0], 0600) != 0 && errno == EPERM);
	p = mmap(NULL, rep.pool_len, PROT_READ, MAP_SHARED, r.fds[0], 0);
	MUST(p != MAP_FAILED);
	MUST(mprotect(p, rep.pool_len, PROT_READ | PROT_WRITE) != 0 && errno == EACCES);
	/* Nor the generations; but its own memory. */
	MUST(map_for_writing(r.fds[1], rep.n_slots * 8) == EACCES);
	MUST(map_for_writing(r.fds[2], rep.write_len) == 0);
	raw_close(&r);
	_exit(0);
}

START_TEST(another_user_cannot_write)
{
	struct proto_open_rep rep;
	struct raw r;
	int status;
	pid_t pid;

	if (geteuid() != 0) {
		fprintf(stderr, "not root: nobody here can be another user\n");
		return;
	}
	ck_assert_int_eq(chmod(d.dir, 0755), 0); /* the folder stops nobody */
	START("--pool-blocks", "8", "--socket-mode", "0666", "--pool-write", "staged");
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0)
		as_nobody();
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_msg(status == 0, "line %d or so failed as another user", WEXITSTATUS(status) - 1);
	/* What it does not protect from, and is said not to: the daemon's own user. */
	raw_connect(&r, d.socket);
	raw_hello(&r);
	rep = raw_open(&r, "m", 4096);
	ck_assert_int_eq(map_for_writing(r.fds[0], rep.pool_len), EACCES);
	ck_assert_int_eq(open_again(r.fds[0]), 0);
	raw_close(&r);
	expect_clean();
}
END_TEST

/* ---- a stray write --------------------------------------------------------------------------- */

/* Finds what it stored itself, and writes there. */
static void stray(void)
{
	static struct worker w;
	uint8_t byte = 1;

	signal(SIGABRT, SIG_DFL);
	signal(SIGSEGV, SIG_DFL); /* a sanitizer would make something else of it */
	worker_start(&w, d.socket, 1);
	worker_prompt(&w, 4, 1, 1);
	if (worker_match(&w) != PFX_OK || worker_reserve(&w) != PFX_OK)
		_exit(1);
	worker_write(&w, 0, 4);
	if (worker_commit(&w, 4) != PFX_OK || worker_match(&w) != PFX_OK || w.n_hit != 4 ||
	    w.corrupt)
		_exit(2);
	mover_stray_write(w.ns, 0, &byte, 1);
	_exit(3);
}

START_TEST(a_stray_write_hits_nobody)
{
	static struct worker w;
	int status;
	pid_t pid;

	START("--pool-blocks", "64", "--pool-write", "staged");
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0)
		stray();
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	/* The kernel, or the driver, is asked for what the mapping does not give. */
	ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == (on_gpu() ? SIGABRT : SIGSEGV),
		      "it ended with %d", status);
	worker_start(&w, d.socket, 2);
	worker_prompt(&w, 4, 1, 1);
	ck_assert_int_eq(worker_match(&w), PFX_OK);
	ck_assert_uint_eq(w.n_hit, 4);
	ck_assert_uint_eq(w.corrupt, 0);
	ck_assert_int_eq(worker_release(&w), PFX_OK);
	worker_stop(&w);
	expect_clean();
}
END_TEST

/* ---- who writes on --------------------------------------------------------------------------- */

enum {
	LARGE = 256 << 10,
	ENOUGH = 3 /* of each outcome */
};

struct scribbler {
	_Atomic(uint8_t *) at;
	atomic_bool stop;
};

static void *scribble(void *ctx)
{
	struct scribbler *s = ctx;

	for (uint32_t i = 0; !s->stop; i++) {
		uint8_t *at = s->at; /* once: it may be taken away at any time */

		if (at)
			__atomic_fetch_xor(at + i * 4096 % LARGE, 0xff, __ATOMIC_RELAXED);
	}
	return NULL;
}

/* The block of request i, as it should be. */
static void expected(uint8_t *block, uint32_t i)
{
	memset(block, (int)(i % 251 + 1), LARGE);
}

/*
 * Bytes change while the daemon copies them: what is READY under a checksum is what that says, each
 * time; and both outcomes are seen.
 */
START_TEST(who_writes_on_stores_nothing_wrong)
{
	uint32_t tokens[BLOCK], n_ok = 0, n_refused = 0;
	uint8_t *want = malloc(LARGE), *got = malloc(LARGE);
	struct scribbler s = { .at = NULL };
	pfx_namespace *ns, *reader_ns;
	pfx_client *c, *reader;
	pthread_t thread;

	if (on_gpu())
		return;
	START("--pool-blocks", "64", "--pool-write", "staged", "--write-blocks", "4");
	c = e2e_connect(&d);
	ns = e2e_open(c, "m", LARGE);
	reader = e2e_connect(&d);
	reader_ns = e2e_open(reader, "m", LARGE);
	ck_assert_int_eq(pthread_create(&thread, NULL, scribble, &s), 0);
	for (uint32_t i = 0; (n_ok < ENOUGH || n_refused < ENOUGH) && i < 3000; i++) {
		pfx_prompt p = {
			.struct_size = sizeof(p), .salt = "", .keys = tokens, .n_keys = 1
		};
		pfx_match_result m = { .struct_size = sizeof(m) };
		pfx_reserve_result res = { .struct_size = sizeof(res) };
		pfx_commit_result done = { .struct_size = sizeof(done) };
		XXH128_canonical_t sum;
		uint8_t *room;
		int r;

		for (uint32_t k = 0; k < BLOCK; k++)
			tokens[k] = i;
		ck_assert_int_eq(pfx_match(ns, &p, &m), PFX_OK);
		ck_assert_int_eq(pfx_reserve(ns, m.lease, 1, 0, &res), PFX_OK);
		room = pfx_write_slot(ns, res.runs[0].start);
		expected(want, i);
		XXH128_canonicalFromHash(&sum, XXH3_128bits(want, LARGE));
		memcpy(room, want, LARGE);
		if (i % 2) /* every other time it is quiet, so that some are taken */
			s.at = room;
		r = pfx_commit(ns, m.lease, 1, sum.digest, 0, 5000, &done);
		s.at = NULL;
		ck_assert_msg(r == PFX_OK ||
				      (r == PFX_BAD_BODY && strstr(pfx_error(c), "checksums")),
			      "COMMIT: %s", pfx_error(c));
		n_ok += r == PFX_OK;
		n_refused += r != PFX_OK;
		ck_assert_int_eq(pfx_release(ns, m.lease, 0, 0, 0, NULL), PFX_OK);
		ck_assert_int_eq(pfx_match(reader_ns, &p, &m), PFX_OK);
		ck_assert_uint_eq(m.n_device, r == PFX_OK);
		if (r == PFX_OK) {
			mover_read(reader_ns, m.runs[0].start, got, LARGE);
			ck_assert_mem_eq(got, want, LARGE);
		}
		ck_assert_int_eq(pfx_release(reader_ns, m.lease, 0, 0, 0, NULL), PFX_OK);
	}
	s.stop = true;
	ck_assert_int_eq(pthread_join(thread, NULL), 0);
	fprintf(stderr, "%u commits taken, %u refused\n", n_ok, n_refused);
	ck_assert_uint_ge(n_ok, ENOUGH);
	ck_assert_uint_ge(n_refused, ENOUGH);
	ck_assert_int_ge(status_of("counters", "take_corrupt"), n_refused);
	pfx_close(c);
	pfx_close(reader);
	free(want);
	free(got);
	expect_clean();
}
END_TEST

/* ---- who dies -------------------------------------------------------------------------------- */

static json_int_t slots(const char *state)
{
	return status_of("slots", state);
}

/* Its slots are free at once, whatever the grace of the device: it never wrote to them. */
START_TEST(who_dies_leaves_no_slot)
{
	unsigned long began;
	int tell[2], status;
	char byte;
	pid_t pid;

	START("--pool-blocks", "64", "--pool-write", "staged");
	ck_assert_int_eq(pipe(tell), 0);
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		static struct worker w;

		worker_start(&w, d.socket, 1);
		worker_prompt(&w, 32, 16, 7);
		if (worker_match(&w) != PFX_OK || worker_reserve(&w) != PFX_OK)
			_exit(1);
		worker_write(&w, 0, 8);
		if (worker_commit(&w, 8) != PFX_OK)
			_exit(2);
		(void)!write(tell[1], "x", 1);
		pause();
	}
	ck_assert_int_eq(read(tell[0], &byte, 1), 1);
	ck_assert_int_eq(slots("reserved"), 24);
	kill(pid, SIGKILL);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	began = e2e_now_ms();
	while (slots("free") != 64 - 8 && e2e_now_ms() - began < 800)
		e2e_sleep_ms(5);
	ck_assert_int_eq(slots("free"), 64 - 8);
	ck_assert_int_eq(slots("quarantined"), 0);
	fprintf(stderr, "free %lu ms after the worker's end\n", e2e_now_ms() - began);
	close(tell[0]);
	close(tell[1]);
	expect_clean();
}
END_TEST

/* What workers write in lies on the GPU too: this machine need not have as much. */
START_TEST(a_gpu_has_its_own_memory)
{
	if (!on_gpu())
		return;
	START("--pool-blocks", "64", "--pool-write", "staged", "--write-bytes", "512TiB");
	ck_assert_int_eq(slots("free"), 0); /* no pool yet */
}
END_TEST

/* ---- options --------------------------------------------------------------------------------- */

/* Desks beyond the limit are refused with both numbers, and the session may go on without. */
START_TEST(limit_of_desks)
{
	pfx_namespace_options o = { .struct_size = sizeof(o) };
	pfx_client *a, *b;
	pfx_namespace *ns;

	START("--pool-blocks", "64", "--pool-write", "staged", "--write-blocks", "16",
	      "--write-bytes", "100KiB");
	a = e2e_connect(&d);
	(void)e2e_open(a, "m", 4096);
	b = e2e_connect(&d);
	o.key_mode = PFX_KEYS_TOKENS;
	o.flags = PFX_NS_OPAQUE;
	o.model = "m";
	o.revision = "r";
	o.dtype = "float16";
	o.block_tokens = BLOCK;
	o.block_bytes = 4096;
	o.layout = "opaque";
	o.engine = "test";
	o.tp_size = 1;
	o.map = 1;
	ck_assert_int_eq(pfx_open(b, &o, &ns), PFX_NO_BUDGET);
	ck_assert_ptr_nonnull(strstr(pfx_error(b), "write-bytes"));
	pfx_close(a);
	for (int i = 0; i < 200 && pfx_open(b, &o, &ns) != PFX_OK; i++)
		e2e_sleep_ms(10);
	ck_assert_int_eq(pfx_open(b, &o, &ns), PFX_OK);
	pfx_close(b);
}
END_TEST

/* A place whose memory went with its connection is none, though the pool stays to be read. */
START_TEST(no_place_without_a_desk)
{
	static uint64_t bytes[4096 / 8];
	const uint64_t pieces[2] = { (uintptr_t)bytes, (uintptr_t)bytes + 2048 };
	const pfx_cache_layout layout = { .struct_size = sizeof(layout),
					  .pieces = pieces,
					  .n_pieces = 2,
					  .n_blocks = 1,
					  .piece_bytes = 2048,
					  .stride = 2048 };
	const uint32_t zero = 0;
	pfx_namespace *refused, *served;
	pfx_cache *cache;
	pfx_client *c;

	START("--pool-blocks", "64", "--pool-write", "staged", "--write-blocks", "16",
	      "--write-bytes", "1MiB");
	c = e2e_connect(&d);
	refused = e2e_open(c, "m", 4096);
	served = e2e_open(c, "m", 8192);
	ck_assert_ptr_nonnull(pfx_write_slot(refused, 0));
	ck_assert_int_ne(e2e_daemon_stop(&d, SIGKILL), -1);
	START("--pool-blocks", "64", "--pool-write", "staged", "--write-blocks", "16",
	      "--write-bytes", "140KiB");
	ck_assert_int_eq(pfx_ping(c, 0), PFX_OK); /* the newest is opened again first */
	ck_assert_ptr_nonnull(pfx_write_slot(served, 0));
	ck_assert_ptr_nonnull(pfx_slot(refused, 0));
	ck_assert_ptr_null(pfx_write_slot(refused, 0));
	ck_assert_int_eq(pfx_cache_new(refused, &layout, &cache), PFX_OK);
	ck_assert_int_eq(pfx_cache_store(cache, NULL, &zero, &zero, 1), PFX_WRONG_STATE);
	ck_assert_ptr_nonnull(strstr(pfx_error(c), "opens it again"));
	pfx_close(c);
}
END_TEST

#define TESTS(...) ((const TTest *const[]){ __VA_ARGS__, NULL })

int main(int argc, char **argv)
{
	const struct shell_case cases[] = {
		{ "users", TESTS(another_user_cannot_write) },
		{ "stray", TESTS(a_stray_write_hits_nobody) },
		{ "scribbler", TESTS(who_writes_on_stores_nothing_wrong) },
		{ "death", TESTS(who_dies_leaves_no_slot, a_gpu_has_its_own_memory) },
		{ "limit", TESTS(limit_of_desks, no_place_without_a_desk) },
	};

	return shell_main(cases, radix_array_size(cases), argc > 1 ? argv[1] : NULL);
}
