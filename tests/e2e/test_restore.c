/*
 * test_restore.c - what a start does with memory that an earlier life left: taken back, with every
 * tier and device; kept as it is where the settings changed; refused where it cannot be served;
 * given up where starts die of it.
 */
#include "daemon/ledger.h"
#include "tests/e2e/kept.h"
#include "tests/e2e/worker.h"
#include "tests/lib/run.h"

#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
	PROBES = 8,
	PROBE_BLOCKS = 24
};

static struct e2e_daemon d;
static struct worker w;
static char key[128];

/* A slow prefill: what lies below is always worth loading. */
#define ARGS(...)                                                                          \
	(const char *const[])                                                              \
	{                                                                                  \
		"--keep", "holder", "--hold-timeout", "20s", "--drain-timeout", "1s",      \
			"--prefill-rate", "1", "--naming-key-file", key, __VA_ARGS__, NULL \
	}
#define START(...) ck_assert_int_eq(e2e_daemon_start(&d, ARGS(__VA_ARGS__)), 0)

static void setup(void)
{
	ck_assert_int_eq(e2e_daemon_init(&d), 0);
	kept_naming_key(&d, key, sizeof(key));
}

static void teardown(void)
{
	worker_stop(&w);
	if (d.pid)
		(void)e2e_daemon_stop(&d, SIGINT); /* the memory is given up */
	e2e_daemon_free(&d);
}

static void die(void)
{
	ck_assert_int_ne(e2e_daemon_stop(&d, SIGKILL), -1);
}

static unsigned count_in_log(const char *text)
{
	char *log = e2e_daemon_log(&d);
	unsigned n = 0;

	for (const char *at = log; (at = strstr(at, text)); at += strlen(text))
		n++;
	free(log);
	return n;
}

/* A value of status, by "group.name". */
static double status_of(const char *group, const char *name)
{
	char *text = e2e_admin(&d, "{\"op\":\"status\"}");
	json_t *v = json_loads(text, 0, NULL);
	const json_t *j = json_object_get(v, group);
	double n;

	if (name)
		j = json_object_get(j, name);
	n = json_number_value(j);
	json_decref(v);
	pfx_free_string(text);
	return n;
}

static void probe_prompt(uint32_t i)
{
	worker_prompt(&w, PROBE_BLOCKS, i, 1000 + i);
}

static void probes_store_once(void)
{
	for (uint32_t i = 0; i < PROBES; i++) {
		probe_prompt(i);
		ck_assert_int_eq(worker_match(&w), PFX_OK);
		ck_assert_int_eq(worker_load(&w), PFX_OK);
		ck_assert_int_eq(worker_reserve(&w), PFX_OK);
		ck_assert_uint_eq(w.n_hit + w.n_reserved, PROBE_BLOCKS);
		worker_write(&w, 0, w.n_reserved);
		if (w.n_reserved)
			ck_assert_int_eq(worker_commit(&w, w.n_reserved), PFX_OK);
		ck_assert_int_eq(worker_release(&w), PFX_OK);
	}
}

/* How many of their blocks are there, compared byte for byte; lower tiers are asked too. */
static uint32_t probes_look(void)
{
	uint32_t n = 0;

	/* The first call notices that the daemon is another one. */
	ck_assert_int_eq(worker_ping(&w), PFX_OK);
	w.promote = true;
	for (uint32_t i = 0; i < PROBES; i++) {
		probe_prompt(i);
		ck_assert_int_eq(worker_match(&w), PFX_OK);
		ck_assert_int_eq(worker_load(&w), PFX_OK);
		n += w.n_hit;
		ck_assert_int_eq(worker_release(&w), PFX_OK);
	}
	ck_assert_uint_eq(w.corrupt, 0);
	ck_assert_uint_eq(w.errors, 0);
	return n;
}

/* All of them: where copies take their time, who stores faster loses some on the way down. */
static void probes_store(void)
{
	unsigned long end = e2e_now_ms() + 20000;

	worker_start(&w, d.socket, 1);
	do {
		ck_assert_msg(e2e_now_ms() < end, "never all of them at once");
		probes_store_once();
	} while (probes_look() < PROBES * PROBE_BLOCKS);
}

/* ---- taken back ------------------------------------------------------------------------------ */

static const struct {
	const char *device, *end;
	int signal;
} ends[] = {
	{ "host", "kill", SIGKILL },
	{ "sim", "kill", SIGKILL },
	{ "host", "term", SIGTERM },
	{ "sim", "term", SIGTERM },
};

/* The tests' device where one was asked for, else the one that the case is about. */
static const char *device_of(const char *own)
{
	return strcmp(e2e_device(), "host") == 0 ? own : e2e_device();
}

/* However it ended, and on every device: the simulated one does not poison what it leaves. */
START_TEST(all_of_it_comes_back)
{
	START("--device", device_of(ends[_i].device), "--pool-blocks", "512");
	probes_store();
	ck_assert_int_ne(e2e_daemon_stop(&d, ends[_i].signal), -1);
	START("--device", device_of(ends[_i].device), "--pool-blocks", "512");
	ck_assert_uint_eq(probes_look(), PROBES * PROBE_BLOCKS);
	ck_assert(status_of("restore", "seconds") > 0);
	ck_assert(status_of("restore", "pools") == 1);
	ck_assert(status_of("restore", "blocks") > 0);
	ck_assert_uint_eq(count_in_log("restored in "), 1);
}
END_TEST

/* Most of the blocks are in the host tier alone. */
START_TEST(the_host_tier_comes_back)
{
	static const char *const devices[] = { "host", "sim" };
	const char *device = device_of(devices[_i]);

	START("--device", device, "--pool-blocks", "48", "--host-blocks", "512");
	probes_store();
	die();
	START("--device", device, "--pool-blocks", "48", "--host-blocks", "512");
	ck_assert_uint_eq(probes_look(), PROBES * PROBE_BLOCKS);
	ck_assert_uint_gt(w.n_host + w.blocks_loaded, 0);
}
END_TEST

/* Background verification comes to all blocks, and finds nothing wrong with what is right. */
START_TEST(blocks_without_sums_are_not_verified)
{
	START("--pool-blocks", "512", "--recover-verify", "background");
	probes_store();
	die();
	START("--pool-blocks", "512", "--recover-verify", _i ? "full" : "background");
	ck_assert_uint_eq(probes_look(), PROBES * PROBE_BLOCKS);
	ck_assert(status_of("restore", "corrupt") == 0);
}
END_TEST

/* A life after a life: nothing is lost by being taken back often. */
START_TEST(ten_lives)
{
	START("--pool-blocks", "512");
	probes_store();
	for (int i = 0; i < 10; i++) {
		die();
		START("--pool-blocks", "512");
		ck_assert_uint_eq(probes_look(), PROBES * PROBE_BLOCKS);
	}
}
END_TEST

/* ---- settings that changed ------------------------------------------------------------------- */

START_TEST(a_pool_keeps_its_size)
{
	START("--pool-blocks", "512", "--host-blocks", "64");
	probes_store();
	die();
	START("--pool-blocks", "1024", "--host-blocks", "32");
	ck_assert_uint_eq(probes_look(), PROBES * PROBE_BLOCKS);
	ck_assert(status_of("n_slots", NULL) == 512);
	ck_assert_uint_eq(count_in_log("stays as it is: 512 for pool-blocks 1024, "
				       "64 for host-blocks 32"),
			  1);
}
END_TEST

static void refused(const char *const args[], int exit_code, const char *says, const char *and)
{
	ck_assert_int_eq(e2e_daemon_start(&d, args), exit_code);
	if (count_in_log(says) == 0 || count_in_log(and) == 0) {
		char *log = e2e_daemon_log(&d);

		ck_abort_msg("no '%s' and '%s' in: %s", says, and, log);
	}
}

/* More than is allowed now: refused with both numbers; with a larger limit it is all there. */
START_TEST(beyond_the_limit)
{
	START("--pool-bytes", "16MiB");
	probes_store();
	die();
	for (int i = 0; i < 2; i++)
		refused(ARGS("--pool-bytes", "8MiB"), 1,
			"an earlier life left 16.0 MiB of pools, and pool-bytes is 8.0 MiB",
			"holder release`");
	START("--pool-bytes", "17MiB");
	ck_assert_uint_eq(probes_look(), PROBES * PROBE_BLOCKS);
}
END_TEST

START_TEST(host_tiers_beyond_the_limit)
{
	START("--pool-blocks", "64", "--host-bytes", "4MiB");
	probes_store();
	die();
	refused(ARGS("--pool-blocks", "64", "--host-bytes", "1MiB"), 1,
		"of host tiers, and "
		"host-bytes is 1.0 MiB",
		"holder release`");
	START("--pool-blocks", "64", "--host-bytes", "4MiB");
	ck_assert_uint_eq(probes_look(), PROBES * PROBE_BLOCKS);
}
END_TEST

/* Names were made with the other key: nothing of it would ever be found.  The right one has it. */
START_TEST(another_naming_key)
{
	char right[sizeof(key)], text[65];
	FILE *f;

	START("--pool-blocks", "512");
	probes_store();
	die();
	memcpy(right, key, sizeof(key));
	(void)snprintf(key, sizeof(key), "%s/wrong.key", d.dir);
	memset(text, '5', 64);
	text[64] = '\0';
	f = fopen(key, "we");
	ck_assert_ptr_nonnull(f);
	ck_assert_int_gt(fprintf(f, "%s\n", text), 0);
	ck_assert_int_eq(fclose(f), 0);
	ck_assert_int_eq(chmod(key, 0600), 0);
	refused(ARGS("--pool-blocks", "512"), 1, "another naming key", "holder release`");
	memcpy(key, right, sizeof(key));
	START("--pool-blocks", "512");
	ck_assert_uint_eq(probes_look(), PROBES * PROBE_BLOCKS);
}
END_TEST

/* ---- starts that die ------------------------------------------------------------------------- */

static void attempts_add(unsigned n)
{
	struct kept k;

	kept_open(&k, &d, WORKER_BLOCK_BYTES);
	for (unsigned i = 0; i < n; i++)
		prefixd_ledger_begin(&k.ledger_file.store);
	kept_close(&k);
}

/* The third start in a row that dies is the last one with that memory. */
START_TEST(starts_that_die_of_it)
{
	START("--pool-blocks", "512");
	probes_store();
	die();
	attempts_add(PREFIXD_LEDGER_ATTEMPTS - 1);
	START("--pool-blocks", "512"); /* the last attempt, which goes well */
	ck_assert_uint_eq(probes_look(), PROBES * PROBE_BLOCKS);
	die();
	attempts_add(PREFIXD_LEDGER_ATTEMPTS - 1); /* they were counted anew */
	START("--pool-blocks", "512");
	ck_assert_uint_eq(probes_look(), PROBES * PROBE_BLOCKS);
	ck_assert_uint_eq(count_in_log("GIVING IT UP"), 0);
	die();
	attempts_add(PREFIXD_LEDGER_ATTEMPTS);
	START("--pool-blocks", "512");
	ck_assert_uint_eq(count_in_log("GIVING IT UP"), 1);
	ck_assert_uint_eq(probes_look(), 0);
	/* And what it has from now on is kept again. */
	worker_stop(&w);
	probes_store();
	die();
	START("--pool-blocks", "512");
	ck_assert_uint_eq(probes_look(), PROBES * PROBE_BLOCKS);
}
END_TEST

/* Memory without a ledger that tells of it is nobody's. */
START_TEST(an_empty_ledger)
{
	static const uint8_t zeroes[4096];
	struct kept k;

	START("--pool-blocks", "512");
	probes_store();
	die();
	kept_open(&k, &d, WORKER_BLOCK_BYTES);
	kept_replace(&k, NULL, zeroes, sizeof(zeroes));
	kept_close(&k);
	START("--pool-blocks", "512");
	ck_assert_uint_eq(probes_look(), 0);
	worker_stop(&w);
	probes_store();
	die();
	START("--pool-blocks", "512");
	ck_assert_uint_eq(probes_look(), PROBES * PROBE_BLOCKS);
}
END_TEST

/* One part of a group is gone: the group begins anew, and nothing of it stays with the keeper. */
START_TEST(a_part_is_missing)
{
	static const char *const parts[] = { "pool", "generations", "table" };
	struct kept k;

	START("--pool-blocks", "512");
	probes_store();
	die();
	kept_open(&k, &d, WORKER_BLOCK_BYTES);
	{
		char name[32];

		(void)snprintf(name, sizeof(name), "g0.%s", parts[_i]);
		prefixd_keep_drop(k.keep, name);
	}
	kept_close(&k);
	START("--pool-blocks", "512");
	ck_assert_uint_eq(probes_look(), 0);
	ck_assert(status_of("restore", "pools_lost") == 1);
	worker_stop(&w);
	probes_store();
	die();
	START("--pool-blocks", "512");
	ck_assert_uint_eq(probes_look(), PROBES * PROBE_BLOCKS);
}
END_TEST

/* ---- another program ------------------------------------------------------------------------- */

/* The block table that the living daemon works on. */
static struct radix_head *living_table(void)
{
	char dir[32], path[300], link[64];
	struct radix_head *head = NULL;
	DIR *fds;

	(void)snprintf(dir, sizeof(dir), "/proc/%d/fd", (int)d.pid);
	fds = opendir(dir);
	ck_assert_ptr_nonnull(fds);
	for (struct dirent *e; !head && (e = readdir(fds));) {
		ssize_t n;
		int fd;

		(void)snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
		n = readlink(path, link, sizeof(link) - 1);
		link[n > 0 ? n : 0] = '\0';
		if (!strstr(link, "prefixd-table"))
			continue;
		fd = open(path, O_RDWR | O_CLOEXEC);
		ck_assert_int_ge(fd, 0);
		head = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		ck_assert_ptr_ne(head, MAP_FAILED);
		close(fd);
	}
	closedir(fds);
	ck_assert_ptr_nonnull(head);
	return head;
}

static void wait_for_log(const char *text, unsigned n)
{
	for (unsigned long end = e2e_now_ms() + 10000; count_in_log(text) < n; e2e_sleep_ms(2))
		ck_assert_msg(e2e_now_ms() < end, "no '%s'", text);
}

/* A program that could not read the memory is not let near it. */
START_TEST(upgrade_asks_whether_the_memory_can_be_read)
{
	struct radix_head *head;

	START("--pool-blocks", "512");
	probes_store();
	head = living_table();
	head->version++;
	head->check = radix_head_check(head);
	ck_assert_int_eq(kill(d.pid, SIGUSR2), 0);
	wait_for_log("upgrade refused", 1);
	wait_for_log("the block tables are of another version", 1);
	ck_assert_uint_eq(probes_look(), PROBES * PROBE_BLOCKS);
	head->version--;
	head->check = radix_head_check(head);
	ck_assert_int_eq(kill(d.pid, SIGUSR2), 0);
	wait_for_log("<6>ready:", 2);
	ck_assert_uint_eq(probes_look(), PROBES * PROBE_BLOCKS);
	ck_assert_int_eq(munmap(head, 4096), 0);
}
END_TEST

/* Nor one that finds no device: behind the exec there would be nobody. */
START_TEST(upgrade_asks_whether_the_device_is_there)
{
	char was[256], blind[160];
	FILE *f;

	/* The same program without a GPU, under the name that the daemon was started by. */
	(void)snprintf(was, sizeof(was), "%s", e2e_daemon_binary());
	(void)snprintf(blind, sizeof(blind), "%s/prefixd", d.dir);
	ck_assert_int_eq(symlink(was, blind), 0);
	ck_assert_int_eq(setenv("PREFIXD_BIN", blind, 1), 0);
	START("--pool-blocks", "512", "--holder-program", getenv("PREFIXD_HOLDER_BIN"));
	ck_assert_int_eq(setenv("PREFIXD_BIN", was, 1), 0);
	probes_store();
	ck_assert_int_eq(unlink(blind), 0);
	f = fopen(blind, "we");
	ck_assert_ptr_nonnull(f);
	ck_assert_int_gt(fprintf(f, "#!/bin/sh\nLOOKALIKE=devices=0 exec %s \"$@\"\n", was), 0);
	ck_assert_int_eq(fclose(f), 0);
	ck_assert_int_eq(chmod(blind, 0700), 0);
	ck_assert_int_eq(kill(d.pid, SIGUSR2), 0);
	wait_for_log("upgrade refused", 1);
	wait_for_log("what is there cannot be taken over: ", 1);
	ck_assert_uint_eq(probes_look(), PROBES * PROBE_BLOCKS);
	ck_assert_int_eq(unlink(blind), 0);
	ck_assert_int_eq(symlink(was, blind), 0);
	ck_assert_int_eq(kill(d.pid, SIGUSR2), 0);
	wait_for_log("<6>ready:", 2);
	ck_assert_uint_eq(probes_look(), PROBES * PROBE_BLOCKS);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("restore");
	TCase *t = tcase_create("all");

	if (!e2e_daemon_binary()) {
		printf("1..0 # SKIP no daemon binary\n");
		return 0;
	}
	tcase_set_timeout(t, 60);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_loop_test(t, all_of_it_comes_back, 0, 4);
	tcase_add_loop_test(t, the_host_tier_comes_back, 0, 2);
	tcase_add_loop_test(t, blocks_without_sums_are_not_verified, 0, 2);
	tcase_add_test(t, ten_lives);
	tcase_add_test(t, a_pool_keeps_its_size);
	tcase_add_test(t, beyond_the_limit);
	tcase_add_test(t, host_tiers_beyond_the_limit);
	tcase_add_test(t, another_naming_key);
	tcase_add_test(t, starts_that_die_of_it);
	tcase_add_test(t, an_empty_ledger);
	tcase_add_loop_test(t, a_part_is_missing, 0, 3);
	tcase_add_test(t, upgrade_asks_whether_the_memory_can_be_read);
	if (strcmp(e2e_device(), "host") != 0)
		tcase_add_test(t, upgrade_asks_whether_the_device_is_there);
	suite_add_tcase(suite, t);
	return test_run(suite);
}
