/*
 * test_preflight.c - what the daemon makes of its machine, in this process: the verdict on every
 * limit, memory of the host tier, and the file of epochs.
 */
#include "daemon/arena.h"
#include "daemon/epochs.h"
#include "daemon/preflight.h"
#include "tests/lib/run.h"

#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB (1ull << 20)
#define GIB (1ull << 30)

static char why[512];

/* ---- the verdict ----------------------------------------------------------------------------- */

static struct prefixd_facts plenty(void)
{
	return (struct prefixd_facts){ .available_bytes = 64 * GIB,
				       .cgroup_bytes = PREFIXD_NO_LIMIT,
				       .address_bytes = PREFIXD_NO_LIMIT,
				       .lock_bytes = PREFIXD_NO_LIMIT,
				       .huge_free_bytes = 64 * GIB,
				       .huge_transparent = true,
				       .state_free_bytes = GIB,
				       .state_writable = true };
}

static struct prefixd_wants wants(void)
{
	return (struct prefixd_wants){ .pool_bytes = 8 * GIB,
				       .host_bytes = 4 * GIB,
				       .index_bytes = 256 * MIB,
				       .lock = true,
				       .huge = true,
				       .state_dir = "/run/prefixd" };
}

START_TEST(plenty_is_enough)
{
	struct prefixd_facts f = plenty();
	struct prefixd_wants w = wants();

	ck_assert_int_eq(prefixd_preflight(&f, &w, why, sizeof(why)), PREFIXD_FLY);
	ck_assert_str_eq(why, "");
	f.available_bytes = f.cgroup_bytes = f.address_bytes = 12 * GIB + 256 * MIB; /* just */
	f.lock_bytes = 12 * GIB; /* what the index takes is not locked */
	f.state_free_bytes = 64 << 10;
	ck_assert_int_eq(prefixd_preflight(&f, &w, why, sizeof(why)), PREFIXD_FLY);
}
END_TEST

/* One fact is one byte too small, and the sentence says which, how much, and what to do. */
START_TEST(each_limit_is_named)
{
	static const struct {
		size_t fact;
		uint64_t value;
		const char *says[3];
	} limits[] = {
		{ offsetof(struct prefixd_facts, available_bytes),
		  12 * GIB + 256 * MIB - 1,
		  { "(MemAvailable), but 12.2 GiB are asked for: pools 8.0 GiB, host tier 4.0 GiB",
		    "index about 256.0 MiB", "lower pool-bytes or host-bytes" } },
		{ offsetof(struct prefixd_facts, cgroup_bytes),
		  2 * GIB,
		  { "the control group leaves 2.0 GiB (/sys/fs/cgroup/a/b/memory.max)",
		    "but 12.2 GiB are asked for", "MemoryMax=" } },
		{ offsetof(struct prefixd_facts, address_bytes),
		  GIB,
		  { "address space is 1.0 GiB (ulimit -v, RLIMIT_AS)", "12.2 GiB", "LimitAS=" } },
		{ offsetof(struct prefixd_facts, lock_bytes),
		  8 * MIB,
		  { "locked memory is 8.0 MiB (ulimit -l, RLIMIT_MEMLOCK)",
		    "pools (8.0 GiB) and host tier (4.0 GiB) are 12.0 GiB",
		    "LimitMEMLOCK=infinity" } },
		{ offsetof(struct prefixd_facts, state_free_bytes),
		  (64 << 10) - 1,
		  { "the file system of /run/prefixd has 64.0 KiB free", "need 64.0 KiB",
		    "naming-key-file" } },
	};
	struct prefixd_facts f = plenty();
	struct prefixd_wants w = wants();

	snprintf(f.cgroup, sizeof(f.cgroup), "/a/b");
	memcpy((char *)&f + limits[_i].fact, &limits[_i].value, sizeof(uint64_t));
	ck_assert_int_eq(prefixd_preflight(&f, &w, why, sizeof(why)), PREFIXD_STAY);
	for (int i = 0; i < 3; i++)
		ck_assert_msg(strstr(why, limits[_i].says[i]), "no '%s' in: %s", limits[_i].says[i],
			      why);
}
END_TEST

START_TEST(what_is_not_asked_for_does_not_matter)
{
	struct prefixd_facts f = plenty();
	struct prefixd_wants w = wants();

	f.lock_bytes = 0;
	w.lock = false;
	f.huge_free_bytes = 0;
	w.huge = false;
	ck_assert_int_eq(prefixd_preflight(&f, &w, why, sizeof(why)), PREFIXD_FLY);
	ck_assert_str_eq(why, "");
	w.huge = true; /* a hint, and no reason to stay */
	ck_assert_int_eq(prefixd_preflight(&f, &w, why, sizeof(why)), PREFIXD_FLY);
	ck_assert_msg(strstr(why, "sysctl vm.nr_hugepages=4096"), "%s", why);
	ck_assert_ptr_null(strstr(why, "transparent"));
	f.huge_transparent = false;
	ck_assert_int_eq(prefixd_preflight(&f, &w, why, sizeof(why)), PREFIXD_FLY);
	ck_assert_msg(strstr(why, "echo madvise"), "%s", why);
	f.state_writable = false;
	ck_assert_int_eq(prefixd_preflight(&f, &w, why, sizeof(why)), PREFIXD_STAY);
	ck_assert_msg(strstr(why, "the folder /run/prefixd"), "%s", why);
}
END_TEST

/* The facts are this machine's: limits that this process sets show in them. */
START_TEST(facts_are_the_machines)
{
	const struct rlimit address = { 3 * GIB, 3 * GIB }, locked = { 32 << 10, 32 << 10 };
	struct prefixd_facts f;

	prefixd_facts_gather(&f, "/");
	ck_assert_uint_gt(f.available_bytes, 16 * MIB);
	ck_assert_uint_ne(f.available_bytes, PREFIXD_NO_LIMIT);
	ck_assert_uint_gt(f.state_free_bytes, 0);
	ck_assert_uint_le(prefixd_memory_available(), f.available_bytes + GIB);
	ck_assert_int_eq(setrlimit(RLIMIT_MEMLOCK, &locked), 0);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
	ck_assert_int_eq(setrlimit(RLIMIT_AS, &address), 0);
	prefixd_facts_gather(&f, "/");
	ck_assert_uint_eq(f.address_bytes, 3 * GIB);
#else
	(void)address; /* a sanitizer's mappings would not fit */
#endif
	prefixd_facts_gather(&f, "/nonexistent");
	ck_assert(!f.state_writable);
	ck_assert_uint_eq(f.state_free_bytes, PREFIXD_NO_LIMIT);
	ck_assert(f.lock_bytes == 32 << 10 || f.lock_bytes == PREFIXD_NO_LIMIT); /* root may */
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

static unsigned n_steps;

static void step(void *ctx)
{
	n_steps += ctx == &n_steps;
}

START_TEST(arenas_are_there_whole_and_in_steps)
{
	const struct prefixd_arena_config config = { .huge = _i, .step = step, .ctx = &n_steps };
	struct prefixd_arena a = { 0 };
	uint8_t *p;

	ck_assert_int_eq(prefixd_arena_new(&a, 150 * MIB + 1, &config), 0);
	ck_assert_uint_ge(a.len, 150 * MIB + 1);
	ck_assert_uint_lt(a.len, 153 * MIB);
	ck_assert_uint_eq((uintptr_t)a.base % (2 * MIB), 0);
	ck_assert_uint_eq(n_steps, 3); /* of at most 64 MiB */
	p = a.base;
	for (uint64_t i = 0; i < a.len; i += 4096)
		ck_assert_uint_eq(p[i], 0);
	prefixd_arena_free(&a);
	ck_assert_ptr_null(a.base);
	prefixd_arena_free(&a);
	ck_assert_int_eq(prefixd_arena_new(&a, 1, &config), 0); /* one page */
	ck_assert_uint_eq(a.len, 4096);
	prefixd_arena_free(&a);
}
END_TEST

START_TEST(arenas_that_cannot_be)
{
	struct prefixd_arena_config config = { 0 };
	const struct rlimit locked = { 64 << 10, 64 << 10 };
	struct prefixd_arena a = { 0 };

	ck_assert_int_eq(prefixd_arena_new(&a, 0, &config), -EINVAL);
	ck_assert_int_eq(prefixd_arena_new(&a, UINT64_MAX, &config), -EINVAL);
	ck_assert_int_eq(prefixd_arena_new(&a, 1ull << 50, &config), -ENOMEM);
	ck_assert_ptr_null(a.base);
	ck_assert_int_eq(setrlimit(RLIMIT_MEMLOCK, &locked), 0);
	config.lock = true;
	if (prefixd_arena_new(&a, MIB, &config) == 0) { /* root may */
		ck_assert(a.locked);
		prefixd_arena_free(&a);
	}
	ck_assert_ptr_null(a.base);
}
END_TEST

/* ---- the file of epochs ---------------------------------------------------------------------- */

static char dir[64], path[128];

static void epochs_setup(void)
{
	snprintf(dir, sizeof(dir), "/tmp/prefixd-epochs-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/e", dir);
}

static void epochs_teardown(void)
{
	char tmp[160];

	snprintf(tmp, sizeof(tmp), "%s.new", path);
	(void)unlink(tmp);
	(void)chmod(path, 0600);
	(void)unlink(path);
	rmdir(dir);
}

static struct prefixd_epochs load(void)
{
	struct prefixd_epochs e = { 0 };

	ck_assert_msg(prefixd_epochs_load(&e, path, why, sizeof(why)) == 0, "%s", why);
	return e;
}

static void set(struct prefixd_epochs *e, uint8_t who, uint64_t n, uint64_t nonce)
{
	const struct prefixd_epoch epoch = { n, nonce };
	uint8_t digest[32] = { who };

	ck_assert_int_eq(prefixd_epochs_set(e, digest, &epoch), 0);
}

static void expect(const struct prefixd_epochs *e, uint8_t who, uint64_t n, uint64_t nonce)
{
	uint8_t digest[32] = { who };
	const struct prefixd_epoch_entry *have = prefixd_epochs_find(e, digest);

	ck_assert_ptr_nonnull(have);
	ck_assert_uint_eq(have->epoch.n, n);
	ck_assert_uint_eq(have->epoch.nonce, nonce);
}

START_TEST(epochs_are_read_as_they_were_written)
{
	struct prefixd_epochs e = load();
	struct stat st;

	ck_assert_uint_eq(e.n, 0);
	set(&e, 1, 0, 0); /* never raised: nothing to keep */
	ck_assert(!e.dirty);
	ck_assert_int_eq(prefixd_epochs_save(&e), 0);
	ck_assert_int_ne(stat(path, &st), 0);
	for (uint8_t i = 0; i < 40; i++)
		set(&e, i, 1u + i, UINT64_MAX - i);
	set(&e, 3, 4, 0);          /* the same number, a smaller nonce */
	set(&e, 5, 2, UINT64_MAX); /* a smaller number */
	set(&e, 7, 8, UINT64_MAX); /* the same number, a greater nonce */
	set(&e, 9, 1ull << 40, 0); /* a greater number */
	ck_assert_int_eq(prefixd_epochs_save(&e), 0);
	ck_assert(!e.dirty);
	ck_assert_int_eq(stat(path, &st), 0);
	ck_assert_uint_eq(st.st_mode & 0777, 0600);
	prefixd_epochs_deinit(&e);
	prefixd_epochs_deinit(&e);

	e = load();
	ck_assert(!e.dirty);
	ck_assert_uint_eq(e.n, 40);
	expect(&e, 0, 1, UINT64_MAX);
	expect(&e, 3, 4, UINT64_MAX - 3);
	expect(&e, 5, 6, UINT64_MAX - 5);
	expect(&e, 7, 8, UINT64_MAX);
	expect(&e, 9, 1ull << 40, 0);
	prefixd_epochs_deinit(&e);
}
END_TEST

static size_t slurp(char *out, size_t cap)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = read(fd, out, cap);

	ck_assert_int_gt(n, 0);
	close(fd);
	return (size_t)n;
}

static void put(const char *bytes, size_t n)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, bytes, n), (ssize_t)n);
	close(fd);
}

/* Cut anywhere, or with any byte changed: refused, or every epoch is one that was written. */
START_TEST(damaged_epochs_are_refused)
{
	struct prefixd_epochs e = load();
	char good[1024], bad[1024];
	unsigned taken = 0;
	size_t n;

	for (uint8_t i = 1; i < 4; i++)
		set(&e, i, i, i);
	ck_assert_int_eq(prefixd_epochs_save(&e), 0);
	prefixd_epochs_deinit(&e);
	n = slurp(good, sizeof(good));
	for (size_t cut = 0; cut < n; cut++) {
		put(good, cut);
		ck_assert_int_eq(prefixd_epochs_load(&e, path, why, sizeof(why)), -EINVAL);
		ck_assert_ptr_nonnull(strstr(why, "is damaged"));
		ck_assert_ptr_null(e.v);
	}
	for (size_t at = 0; at < n; at++) {
		memcpy(bad, good, n);
		bad[at] ^= 0x40;
		put(bad, n);
		if (prefixd_epochs_load(&e, path, why, sizeof(why)) == 0) {
			taken++;
			prefixd_epochs_deinit(&e);
		}
	}
	ck_assert_uint_eq(taken, 0); /* no hex digit is another one with that bit changed */
	memcpy(bad, good, n);
	bad[n] = '\n';
	put(bad, n + 1);
	ck_assert_int_eq(prefixd_epochs_load(&e, path, why, sizeof(why)), -EINVAL);
}
END_TEST

START_TEST(epochs_that_others_may_write_are_refused)
{
	struct prefixd_epochs e = load();

	set(&e, 1, 1, 1);
	ck_assert_int_eq(prefixd_epochs_save(&e), 0);
	prefixd_epochs_deinit(&e);
	ck_assert_int_eq(chmod(path, 0620), 0);
	ck_assert_int_eq(prefixd_epochs_load(&e, path, why, sizeof(why)), -EPERM);
	ck_assert_int_eq(unlink(path), 0);
	ck_assert_int_eq(symlink("/dev/null", path), 0);
	ck_assert_int_lt(prefixd_epochs_load(&e, path, why, sizeof(why)), 0);
}
END_TEST

/* What cannot be written stays to be written, and the file is the old one. */
START_TEST(epochs_that_cannot_be_written)
{
	struct prefixd_epochs e = load(), old;
	const struct rlimit none = { 0, 0 };

	set(&e, 1, 1, 1);
	ck_assert_int_eq(prefixd_epochs_save(&e), 0);
	set(&e, 1, 2, 2);
	ck_assert_ptr_ne(signal(SIGXFSZ, SIG_IGN), SIG_ERR);
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &none), 0); /* a disk that is full */
	ck_assert_int_lt(prefixd_epochs_save(&e), 0);
	ck_assert(e.dirty);
	old = load();
	expect(&old, 1, 1, 1);
	prefixd_epochs_deinit(&old);
	prefixd_epochs_deinit(&e);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("preflight");
	TCase *tc = tcase_create("machine"), *epochs = tcase_create("epochs");

	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, plenty_is_enough);
	tcase_add_loop_test(tc, each_limit_is_named, 0, 5);
	tcase_add_test(tc, what_is_not_asked_for_does_not_matter);
	tcase_add_test(tc, facts_are_the_machines);
	tcase_add_loop_test(tc, arenas_are_there_whole_and_in_steps, 0, 2);
	tcase_add_test(tc, arenas_that_cannot_be);
	suite_add_tcase(s, tc);
	tcase_add_checked_fixture(epochs, epochs_setup, epochs_teardown);
	tcase_set_timeout(epochs, 60);
	tcase_add_test(epochs, epochs_are_read_as_they_were_written);
	tcase_add_test(epochs, damaged_epochs_are_refused);
	tcase_add_test(epochs, epochs_that_others_may_write_are_refused);
	tcase_add_test(epochs, epochs_that_cannot_be_written);
	suite_add_tcase(s, epochs);
	return s;
}

int main(void)
{
	return test_run(suite());
}
