/*
 * test_upgrade.c - the daemon's end by a signal, and another program in its place.
 *
 * The first argument picks the tests, so that each scenario is registered under its own name.
 */
#include "tests/e2e/worker.h"
#include "tests/lib/rng.h"
#include "tests/lib/run.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	UPGRADES = 20,
	LOADERS = 4,
	PROBES = 8,
	PROBE_BLOCKS = 24
};

static struct e2e_daemon d;

#define START(...) \
	ck_assert_int_eq(e2e_daemon_start(&d, (const char *const[]){ __VA_ARGS__, NULL }), 0)
#define KEPT "--keep", "holder", "--hold-timeout", "20s"

static void setup(void)
{
	ck_assert_int_eq(e2e_daemon_init(&d), 0);
}

/* SIGINT, so that nothing is kept. */
static void teardown(void)
{
	if (d.pid)
		(void)e2e_daemon_stop(&d, SIGINT);
	e2e_daemon_free(&d);
}

/* ---- looking --------------------------------------------------------------------------------- */

static unsigned count_in_log(const char *text)
{
	char *log = e2e_daemon_log(&d);
	unsigned n = 0;

	for (const char *at = log; (at = strstr(at, text)); at += strlen(text))
		n++;
	free(log);
	return n;
}

static void wait_for_log(const char *text, unsigned n)
{
	unsigned long end = e2e_now_ms() + 20000;

	while (count_in_log(text) < n) {
		if (e2e_now_ms() > end) {
			char *log = e2e_daemon_log(&d);

			ck_abort_msg("not %u times '%s' in: %s", n, text, log);
		}
		e2e_sleep_ms(2);
	}
}

/* Another program is in the process, and serves. */
static void upgrade(void)
{
	unsigned n = count_in_log("<6>ready:");

	ck_assert_int_eq(kill(d.pid, SIGUSR2), 0);
	wait_for_log("<6>ready:", n + 1);
}

static json_t *ask(const char *cmd)
{
	char *text = e2e_admin(&d, cmd);
	json_t *v = json_loads(text, 0, NULL);

	ck_assert_ptr_nonnull(v);
	pfx_free_string(text);
	return v;
}

static json_int_t number(const char *cmd, const char *name)
{
	json_t *v = ask(cmd);
	json_int_t n = json_integer_value(json_object_get(v, name));

	json_decref(v);
	return n;
}

static unsigned n_fds(pid_t pid)
{
	char path[64];
	unsigned n = 0;
	DIR *dir;

	(void)snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	dir = opendir(path);
	ck_assert_ptr_nonnull(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

/* ---- load ------------------------------------------------------------------------------------ */

static int go_pipe[2];   /* closed: they begin */
static int stop_pipe[2]; /* closed: all processes of the load end */

/* Processes are made before this one has a driver, which no child may use. */
static void wait_to_go(void)
{
	char byte;

	close(go_pipe[1]);
	close(stop_pipe[1]);
	(void)!read(go_pipe[0], &byte, 1);
}

static bool go_on(void)
{
	struct pollfd p = { .fd = stop_pipe[0], .events = POLLIN };

	return poll(&p, 1, 0) == 0;
}

/* One request; false: the connection was lost, and with it the lease. */
static bool load_request(struct worker *w)
{
	worker_prompt(w, 2 + test_rng_below(&w->rng, 14), test_rng_below(&w->rng, 16),
		      test_rng_below(&w->rng, 40));
	w->requests++;
	if (worker_match(w) != PFX_OK)
		return false;
	if (worker_reserve(w) == PFX_OK && w->n_reserved) {
		worker_write(w, 0, w->n_reserved);
		if (worker_commit(w, w->n_reserved) != PFX_OK)
			return false;
	}
	return worker_release(w) == PFX_OK;
}

/* Serves requests until it is told to stop.  Exit status: 1: wrong bytes; 2: it stood still. */
static int loader(uint64_t seed)
{
	static struct worker w;
	uint64_t done = 0, cut = 0;
	uint32_t n;

	wait_to_go();
	while (go_on()) {
		if (worker_connect(&w, d.socket, seed) != PFX_OK)
			continue;
		if (load_request(&w)) {
			done++;
			continue;
		}
		cut++;
		/* Nothing is read or written by it any more. */
		(void)worker_quiesced(&w, &n); /* fails where the next one is being started */
	}
	fprintf(stderr, "worker %llu: %llu requests, %llu cut off, %llu blocks compared\n",
		(unsigned long long)seed, (unsigned long long)done, (unsigned long long)cut,
		(unsigned long long)w.blocks_verified);
	return w.corrupt ? 1 : done < 100 || w.blocks_verified < 100 ? 2 : 0;
}

/* Connects again and again, and to the admin socket too.  Exit status: 1: was refused. */
static int connector(void)
{
	const char *const paths[] = { d.socket, d.admin };
	unsigned long longest = 0, n = 0;

	wait_to_go();
	for (; go_on(); n++) {
		struct sockaddr_un sa = { .sun_family = AF_UNIX };
		int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
		unsigned long begun = e2e_now_ms();

		(void)snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", paths[n % 2]);
		if (connect(fd, (const struct sockaddr *)&sa, sizeof(sa)) < 0) {
			fprintf(stderr, "connect to %s: %s\n", paths[n % 2], strerror(errno));
			return 1;
		}
		close(fd);
		begun = e2e_now_ms() - begun;
		longest = begun > longest ? begun : longest;
		e2e_sleep_ms(1);
	}
	fprintf(stderr, "%lu connections, none refused, the longest took %lu ms\n", n, longest);
	return n < 100;
}

static pid_t child(int (*run)(uint64_t), uint64_t seed)
{
	pid_t pid = fork();

	ck_assert_int_ge(pid, 0);
	if (pid == 0)
		_exit(run ? run(seed) : connector());
	return pid;
}

/* ---- the probe set --------------------------------------------------------------------------- */

static void probe_prompt(struct worker *w, uint32_t i)
{
	worker_prompt(w, PROBE_BLOCKS, i, 1000 + i);
}

static void probes_store(struct worker *w)
{
	for (uint32_t i = 0; i < PROBES; i++) {
		probe_prompt(w, i);
		ck_assert_int_eq(worker_match(w), PFX_OK);
		ck_assert_int_eq(worker_reserve(w), PFX_OK);
		worker_write(w, 0, w->n_reserved);
		ck_assert_int_eq(worker_commit(w, w->n_reserved), PFX_OK);
		ck_assert_int_eq(worker_release(w), PFX_OK);
	}
}

/* All of them hit in full, byte for byte. */
static void probes_expect(struct worker *w)
{
	for (uint32_t i = 0; i < PROBES; i++) {
		uint64_t before = w->blocks_verified;

		probe_prompt(w, i);
		ck_assert_int_eq(worker_match(w), PFX_OK);
		ck_assert_uint_eq(w->n_hit, PROBE_BLOCKS);
		ck_assert_uint_eq(w->blocks_verified - before, PROBE_BLOCKS * e2e_ranks());
		ck_assert_uint_eq(w->corrupt, 0);
		ck_assert_int_eq(worker_release(w), PFX_OK);
	}
}

/* ---- F24: another program in the same process ------------------------------------------------ */

START_TEST(F24_twenty_upgrades_under_load)
{
	static struct worker w;
	pid_t pids[LOADERS + 1];
	unsigned long slowest = 0;
	unsigned fds;

	/*
	 * Room for every prompt the load can make: 16 stems, 40 variants, and for each half
	 * length h of 1 to 7 at most h + 1 blocks behind the stem's, 22,400 in all.  A fast
	 * machine fills a smaller pool before the probes are first asked for, and evicts them.
	 */
	START(KEPT, "--pool-blocks", "24576");
	ck_assert_int_eq(pipe(go_pipe), 0);
	ck_assert_int_eq(pipe(stop_pipe), 0);
	for (int i = 0; i < LOADERS; i++)
		pids[i] = child(loader, (uint64_t)i + 1);
	pids[LOADERS] = child(NULL, 0);
	worker_start(&w, d.socket, 77);
	probes_store(&w);
	close(go_pipe[1]);
	e2e_sleep_ms(200);
	fds = n_fds(d.pid);
	for (int i = 0; i < UPGRADES; i++) {
		unsigned long begun = e2e_now_ms();
		uint32_t n;

		upgrade();
		begun = e2e_now_ms() - begun;
		slowest = begun > slowest ? begun : slowest;
		ck_assert_int_eq(worker_ping(&w), PFX_OK);
		ck_assert_int_eq(worker_quiesced(&w, &n), PFX_OK);
		probes_expect(&w);
		e2e_sleep_ms(50);
	}
	close(stop_pipe[1]);
	for (size_t i = 0; i < LOADERS + 1; i++) {
		int status;

		ck_assert_int_eq(waitpid(pids[i], &status, 0), pids[i]);
		ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "process %zu: %d", i,
			      status);
	}
	ck_assert_uint_eq(count_in_log("<6>upgrade: going on as"), UPGRADES);
	ck_assert_int_eq(number("{\"op\":\"status\"}", "pid"), d.pid);
	/* A connection or two come and go; twenty upgrades would show. */
	ck_assert_uint_le(n_fds(d.pid), fds + 8);
	fprintf(stderr, "slowest upgrade, check included: %lu ms\n", slowest);
	worker_stop(&w);
}
END_TEST

static void file_write(const char *path, const char *text, mode_t mode)
{
	char tmp[256];
	int fd;

	(void)snprintf(tmp, sizeof(tmp), "%s.new", path);
	fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	ck_assert_int_eq(fchmod(fd, mode), 0);
	close(fd);
	ck_assert_int_eq(rename(tmp, path), 0);
}

/* As before: the same life, which answers. */
static void refused_upgrade(const char *says, unsigned nth, struct worker *w)
{
	unsigned ready = count_in_log("<6>ready:");
	uint8_t before[16], after[16];

	ck_assert_int_eq(pfx_boot_id(w->client, before), PFX_OK);
	ck_assert_int_eq(kill(d.pid, SIGUSR2), 0);
	wait_for_log("upgrade refused, going on as before", nth);
	wait_for_log(says, 1);
	ck_assert_int_eq(worker_ping(w), PFX_OK);
	ck_assert_int_eq(pfx_boot_id(w->client, after), PFX_OK);
	ck_assert_mem_eq(before, after, 16);
	ck_assert_uint_eq(count_in_log("<6>ready:"), ready);
	probes_expect(w);
}

START_TEST(F24_broken_configuration_is_refused)
{
	static struct worker w;
	char path[128];

	(void)snprintf(path, sizeof(path), "%s/conf", d.dir);
	file_write(path, "[memory]\npool-blocks = 512\n", 0600);
	START(KEPT, "--config", path);
	worker_start(&w, d.socket, 1);
	probes_store(&w);
	file_write(path, "[memory]\npool-blocks = many\n", 0600);
	refused_upgrade("does not take the settings (exit code 2)", 1, &w);
	file_write(path, "[memory]\npool-blocks = 512\n", 0600);
	upgrade();
	ck_assert_int_eq(worker_ping(&w), PFX_OK);
	probes_expect(&w);
	worker_stop(&w);
}
END_TEST

/* The daemon as a file of this test's folder, which it may replace. */
static void own_binary(char path[128], char holder[160])
{
	const char *binary = e2e_daemon_binary();
	const char *slash = strrchr(binary, '/');
	const char *const copy[] = { "/bin/cp", binary, path, NULL };

	(void)snprintf(path, 128, "%s/prog", d.dir);
	(void)snprintf(holder, 160, "%.*s/prefixd-holder", (int)(slash - binary), binary);
	ck_assert_int_eq(e2e_run(copy, NULL, 0), 0);
	ck_assert_int_eq(setenv("PREFIXD_BIN", path, 1), 0);
}

/* A program that says yes and cannot be run then, one that dies, one that is not there. */
START_TEST(F24_programs_that_cannot_be_run)
{
	static struct worker w;
	char path[128], holder[160], script[512], saved[160], link[160];
	ssize_t n;

	own_binary(path, holder);
	START(KEPT, "--holder-program", holder, "--pool-blocks", "512");
	worker_start(&w, d.socket, 1);
	probes_store(&w);
	(void)snprintf(saved, sizeof(saved), "%s.good", path);
	ck_assert_int_eq(rename(path, saved), 0);
	(void)snprintf(script, sizeof(script), "#!/bin/sh\nchmod 0600 %s\n", path);
	file_write(path, script, 0700);
	refused_upgrade("cannot run", 1, &w);
	file_write(path, "#!/bin/sh\nkill -9 $$\n", 0700);
	refused_upgrade("died checking the settings (signal 9)", 2, &w);
	ck_assert_int_eq(unlink(path), 0);
	refused_upgrade("there is no program where this one was started from", 3, &w);
	/* A package puts a new file in the old one's place. */
	ck_assert_int_eq(rename(saved, path), 0);
	upgrade();
	(void)snprintf(script, sizeof(script), "/proc/%d/exe", (int)d.pid);
	n = readlink(script, link, sizeof(link) - 1);
	ck_assert_int_gt(n, 0);
	link[n] = '\0';
	ck_assert_str_eq(link, path);
	ck_assert_int_eq(worker_ping(&w), PFX_OK);
	probes_expect(&w);
	worker_stop(&w);
}
END_TEST

/*
 * A worker reads what it had leased, whatever program is there: nothing of it goes to others until
 * it says that it is done, and its reserved slots stay its own so long.
 */
START_TEST(F24_leases_of_the_living_stay)
{
	static struct worker w, other;
	uint32_t n_slots;

	START(KEPT, "--pool-blocks", "256");
	worker_start(&w, d.socket, 1);
	probes_store(&w);
	probe_prompt(&w, 3);
	ck_assert_int_eq(worker_match(&w), PFX_OK); /* and is not released */
	ck_assert_uint_eq(w.n_hit, PROBE_BLOCKS);
	upgrade();
	upgrade();
	ck_assert_int_eq(number("{\"op\":\"status\"}", "leases"), (json_int_t)e2e_ranks());
	/* Others fill the pool several times over. */
	worker_start(&other, d.socket, 2);
	for (uint64_t i = 0; i < 60; i++) {
		worker_prompt(&other, 16, (uint32_t)i, 5000 + i);
		ck_assert_int_eq(worker_match(&other), PFX_OK);
		ck_assert_int_eq(worker_reserve(&other), PFX_OK);
		worker_write(&other, 0, other.n_reserved);
		ck_assert_int_eq(worker_commit(&other, other.n_reserved), PFX_OK);
		ck_assert_int_eq(worker_release(&other), PFX_OK);
	}
	ck_assert_uint_eq(other.corrupt, 0);
	ck_assert_int_eq(worker_ping(&w), PFX_OK);
	probe_prompt(&w, 3);
	ck_assert_int_eq(worker_match(&w), PFX_OK);
	ck_assert_uint_eq(w.n_hit, PROBE_BLOCKS); /* they were never given away */
	ck_assert_int_eq(worker_release(&w), PFX_OK);
	ck_assert_uint_eq(w.corrupt, 0);
	ck_assert_int_eq(worker_quiesced(&w, &n_slots), PFX_OK);
	ck_assert_int_eq(number("{\"op\":\"status\"}", "leases"), 0);
	worker_stop(&other);
	worker_stop(&w);
}
END_TEST

/* Sockets are handed over without a keeper too; the pools begin empty, and the log says so. */
START_TEST(F24_without_a_keeper)
{
	static struct worker w;

	START("--pool-blocks", "256", "--http", "127.0.0.1:0");
	worker_start(&w, d.socket, 1);
	probes_store(&w);
	upgrade();
	ck_assert_uint_eq(count_in_log("nobody keeps the memory"), 1);
	ck_assert_int_eq(worker_ping(&w), PFX_OK);
	probe_prompt(&w, 1);
	ck_assert_int_eq(worker_match(&w), PFX_OK);
	ck_assert_uint_eq(w.n_hit, 0);
	ck_assert_int_eq(worker_release(&w), PFX_OK);
	worker_stop(&w);
}
END_TEST

/* The port that the kernel chose is the next program's too. */
START_TEST(F24_the_same_port)
{
	char *log, *at, first[64], second[64];

	START("--pool-blocks", "64", "--http", "127.0.0.1:0");
	upgrade();
	wait_for_log(" at 127.0.0.1:", 2);
	log = e2e_daemon_log(&d);
	at = strstr(log, " at 127.0.0.1:");
	ck_assert_ptr_nonnull(at);
	ck_assert_int_eq(sscanf(at, " at %63s", first), 1);
	at = strstr(at + 1, " at 127.0.0.1:");
	ck_assert_ptr_nonnull(at);
	ck_assert_int_eq(sscanf(at, " at %63s", second), 1);
	ck_assert_str_eq(first, second);
	free(log);
}
END_TEST

/* What was handed over for another process, or makes no sense, means nothing. */
START_TEST(F24_nonsense_in_the_environment)
{
	static const char *const texts[] = {
		"",
		"1",
		"1 1\nlisten 5 6 0 a.sock",
		"2 SELF\nlisten 5 6 0 a.sock",
		"1 SELF\nlisten 0 1 0 a.sock\nlisten 99999 -1 0 b.sock\nlisten\nkeep nothing@1=77",
	};

	ck_assert_int_eq(setenv("PREFIXD_INHERIT", texts[_i], 1), 0);
	START(KEPT, "--pool-blocks", "64");
	ck_assert_int_eq(number("{\"op\":\"status\"}", "pid"), d.pid);
	ck_assert_uint_eq(count_in_log("PREFIXD_INHERIT"), 0);
}
END_TEST

static int listening(const char *path)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	(void)snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", path);
	ck_assert_int_eq(bind(fd, (const struct sockaddr *)&sa, sizeof(sa)), 0);
	ck_assert_int_eq(listen(fd, 64), 0);
	return fd;
}

/*
 * The service manager's sockets: served from the first connection on, which was made before the
 * daemon was there; handed over by an upgrade; and left where they are at the end, for the next.
 */
START_TEST(F24_sockets_of_the_service_manager)
{
	char script[256], path[128];
	const char *binary = e2e_daemon_binary();
	pfx_client *early;
	int fds[2];

	fds[0] = listening(d.socket);
	fds[1] = listening(d.admin);
	/* Out of the way of 3 and 4, and not closed on exec; a shell takes one digit. */
	ck_assert(fcntl(8, F_GETFD) < 0 && fcntl(9, F_GETFD) < 0);
	ck_assert_int_eq(dup2(fds[0], 8), 8);
	ck_assert_int_eq(dup2(fds[1], 9), 9);
	(void)snprintf(path, sizeof(path), "%s/prog", d.dir);
	(void)snprintf(script, sizeof(script),
		       "#!/bin/sh\nexport LISTEN_PID=$$ LISTEN_FDS=2 "
		       "LISTEN_FDNAMES=prefixd:prefixd-admin\nexec %s \"$@\" 3<&8 4<&9\n",
		       binary);
	file_write(path, script, 0700);
	ck_assert_int_eq(setenv("PREFIXD_BIN", path, 1), 0);
	for (int life = 0; life < 2; life++) {
		int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
		struct sockaddr_un sa = { .sun_family = AF_UNIX };

		(void)snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", d.socket);
		ck_assert_int_eq(connect(fd, (const struct sockaddr *)&sa, sizeof(sa)), 0);
		START("--pool-blocks", "64");
		early = e2e_connect(&d);
		ck_assert_int_eq(pfx_ping(early, 0), PFX_OK);
		upgrade();
		ck_assert_int_eq(pfx_ping(early, 0), PFX_OK);
		pfx_close(early);
		close(fd);
		ck_assert_int_eq(number("{\"op\":\"status\"}", "pid"), d.pid);
		ck_assert_int_eq(e2e_daemon_stop(&d, SIGTERM), 0);
		ck_assert_int_eq(access(d.socket, F_OK), 0);
		ck_assert_int_eq(access(d.admin, F_OK), 0);
	}
}
END_TEST

/* ---- F23: SIGTERM ---------------------------------------------------------------------------- */

/* A worker with a lease; ends it when it is told to. */
static void lease_take(struct worker *w)
{
	worker_start(w, d.socket, 1);
	probes_store(w);
	probe_prompt(w, 1);
	ck_assert_int_eq(worker_match(w), PFX_OK);
	ck_assert_uint_eq(w->n_hit, PROBE_BLOCKS);
}

START_TEST(F23_pins_that_end_after_a_second)
{
	static struct worker w;
	unsigned long begun;
	int status;

	START(KEPT, "--pool-blocks", "512", "--drain-timeout", "30s");
	lease_take(&w);
	begun = e2e_now_ms();
	ck_assert_int_eq(kill(d.pid, SIGTERM), 0);
	e2e_sleep_ms(1000);
	ck_assert_int_eq(waitpid(d.pid, NULL, WNOHANG), 0); /* it waits for the lease */
	ck_assert_int_eq(worker_reserve(&w), PFX_OK);       /* nothing is missing */
	ck_assert_int_eq(worker_release(&w), PFX_OK);
	ck_assert_int_eq(waitpid(d.pid, &status, 0), d.pid);
	d.pid = 0;
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	begun = e2e_now_ms() - begun;
	ck_assert_msg(begun >= 1000 && begun < 6000, "%lu ms", begun);
	ck_assert_uint_eq(count_in_log("drained, leaving"), 1);
	/* The next one goes on with the memory. */
	START(KEPT, "--pool-blocks", "512");
	ck_assert_int_eq(worker_ping(&w), PFX_OK);
	probes_expect(&w);
	worker_stop(&w);
}
END_TEST

START_TEST(F23_a_pin_that_never_ends)
{
	static struct worker w;
	unsigned long begun;
	int status;

	START(KEPT, "--pool-blocks", "512", "--drain-timeout", "1s");
	lease_take(&w);
	begun = e2e_now_ms();
	status = e2e_daemon_stop(&d, SIGTERM);
	begun = e2e_now_ms() - begun;
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	ck_assert_msg(begun >= 1000 && begun < 6000, "%lu ms", begun);
	/* Its reader lives, so the next one keeps it for him. */
	START(KEPT, "--pool-blocks", "512");
	ck_assert_int_eq(number("{\"op\":\"status\"}", "leases"), (json_int_t)e2e_ranks());
	ck_assert_int_eq(worker_ping(&w), PFX_OK);
	probes_expect(&w);
	worker_stop(&w);
}
END_TEST

START_TEST(F23_second_signal_is_immediate)
{
	static struct worker w;
	unsigned long begun;
	int status;

	START(KEPT, "--pool-blocks", "512", "--drain-timeout", "1h");
	lease_take(&w);
	ck_assert_int_eq(kill(d.pid, SIGTERM), 0);
	wait_for_log("draining for at most", 1);
	begun = e2e_now_ms();
	status = e2e_daemon_stop(&d, SIGTERM);
	ck_assert_uint_lt(e2e_now_ms() - begun, 5000);
	ck_assert(WIFEXITED(status));
	ck_assert_int_eq(WEXITSTATUS(status), 3);
	START(KEPT, "--pool-blocks", "512");
	ck_assert_int_eq(worker_ping(&w), PFX_OK);
	probes_expect(&w);
	worker_stop(&w);
}
END_TEST

/* Somebody at a terminal: nothing stays behind, not even the holder. */
START_TEST(F23_interrupt_gives_the_memory_up)
{
	static struct worker w;
	char path[128];
	int status;

	START(KEPT, "--pool-blocks", "512");
	worker_start(&w, d.socket, 1);
	probes_store(&w);
	(void)snprintf(path, sizeof(path), "%s.holder", d.admin);
	ck_assert_int_eq(access(path, F_OK), 0);
	status = e2e_daemon_stop(&d, SIGINT);
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	for (unsigned long end = e2e_now_ms() + 5000; access(path, F_OK) == 0; e2e_sleep_ms(2))
		ck_assert_uint_lt(e2e_now_ms(), end);
	START(KEPT, "--pool-blocks", "512");
	ck_assert_int_eq(worker_ping(&w), PFX_OK);
	probe_prompt(&w, 1);
	ck_assert_int_eq(worker_match(&w), PFX_OK);
	ck_assert_uint_eq(w.n_hit, 0);
	ck_assert_int_eq(worker_release(&w), PFX_OK);
	worker_stop(&w);
}
END_TEST

int main(int argc, char **argv)
{
	const char *which = argc > 1 ? argv[1] : "";
	bool f23 = strcmp(which, "F24") != 0, f24 = strcmp(which, "F23") != 0;
	Suite *suite = suite_create("upgrade");
	TCase *t = tcase_create(which);

	if (!e2e_daemon_binary()) {
		printf("1..0 # SKIP no daemon binary\n");
		return 0;
	}
	tcase_set_timeout(t, 120);
	tcase_add_checked_fixture(t, setup, teardown);
	if (f24) {
		tcase_add_test(t, F24_twenty_upgrades_under_load);
		tcase_add_test(t, F24_broken_configuration_is_refused);
		tcase_add_test(t, F24_programs_that_cannot_be_run);
		tcase_add_test(t, F24_leases_of_the_living_stay);
		tcase_add_test(t, F24_without_a_keeper);
		tcase_add_test(t, F24_the_same_port);
		tcase_add_test(t, F24_sockets_of_the_service_manager);
		tcase_add_loop_test(t, F24_nonsense_in_the_environment, 0, 5);
	}
	if (f23) {
		tcase_add_test(t, F23_pins_that_end_after_a_second);
		tcase_add_test(t, F23_a_pin_that_never_ends);
		tcase_add_test(t, F23_second_signal_is_immediate);
		tcase_add_test(t, F23_interrupt_gives_the_memory_up);
	}
	suite_add_tcase(suite, t);
	return test_run(suite);
}
