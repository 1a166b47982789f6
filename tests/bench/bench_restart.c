/*
 * bench_restart.c - the daemon is killed under load, again and again: is all there again, and when?
 *
 * A daemon with a holder stores a million blocks.  Then twenty times: processes match, compare,
 * store and hold leases; at a random moment the daemon gets SIGKILL; as soon as it is gone another
 * one is started; a client that was connected before asks for a long prompt until it is lent whole
 * and every byte of it is right.  That is the time that counts, from the kill on.  A little later
 * the load pauses, and every prompt that was ever stored is matched and compared.
 *
 *     lost                 blocks that a COMMIT was answered for, and that are not there
 *     uncommitted_served   blocks that no COMMIT was ever sent for, and that are
 *     wrong_bytes          blocks lent with other bytes than their path's, to anybody at any time
 *     client_crashes       processes of the load that ended before they were told to
 *
 * Everything lies in a fresh directory, with unix sockets only.  The last line says how it went;
 * the exit status is 0 only if nothing of the above happened, no call ended in an unexpected way,
 * the daemon's own audit was clean each time, and no restart took --max-s.
 */
#include "tests/bench/bench_restart.h"

#include "tests/lib/rng.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define MATCH_NS     60000000000ull /* after that a restart has failed */
#define PAUSE_NS     60000000000ull
#define STOP_NS      30000000000ull
/* A round's load before the kill, at most, and what it gets at a time. */
#define FEED_US      400000u
#define FEED_STEP_US 2000u
#define AUDIT_MS     60000

struct found {
	uint64_t lost, uncommitted, wrong, compared, open;
};

/* One restart, in ns since the kill; and what the new daemon had of the processors by then. */
struct times {
	uint64_t gone, accepts, match, cpu;
};

static struct restart_book *book;
static struct restart_daemon d;
static pid_t workers[RESTART_MAX_WORKERS];
static uint64_t crashes, failures;
static uint32_t tokens[RESTART_MAX_PATH * RESTART_TOKENS];
static char *const *daemon_args;
static uint64_t pool_blocks;
static pfx_client *client;
static pfx_namespace *ns;

static double ms(uint64_t t)
{
	return (double)t / 1e6;
}

/* ---- one client's view ----------------------------------------------------------------------- */

/* Matches a prompt and compares what it is lent.  Return: a status. */
static int look(uint32_t prompt, uint32_t *ret_n, uint64_t *ret_wrong)
{
	pfx_prompt p = { .struct_size = sizeof(p),
			 .salt = "",
			 .keys = tokens,
			 .n_keys = restart_path_len(book, prompt) };
	pfx_match_result m = { .struct_size = sizeof(m) };
	uint32_t n = 0;
	int r;

	restart_tokens(book, prompt, tokens);
	r = pfx_match(ns, &p, &m);
	if (r != PFX_OK)
		return r;
	*ret_wrong = 0;
	for (uint32_t k = 0; k < m.n_runs; k++)
		for (uint32_t j = 0; j < m.runs[k].len; j++, n++)
			*ret_wrong += !restart_right(book, prompt, n,
						     pfx_slot(ns, m.runs[k].start + j));
	*ret_n = n;
	return pfx_release(ns, m.lease, 0, 0, 0, NULL);
}

static bool accepts(void)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	bool ok;

	(void)snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", d.socket);
	ok = fd >= 0 && connect(fd, (const struct sockaddr *)&sa, sizeof(sa)) == 0;
	if (fd >= 0)
		close(fd);
	return ok;
}

/* The daemon's own audit.  It verifies the whole index, so the load should rest. */
static bool audit_is_clean(void)
{
	pfx_connect_options o = { .struct_size = sizeof(o),
				  .socket = d.admin,
				  .name = "restart",
				  .deadline_ms = AUDIT_MS };
	pfx_client *c = NULL;
	char *text = NULL;
	json_t *v = NULL;
	bool clean;

	if (pfx_connect(&o, &c) == PFX_OK &&
	    pfx_admin(c, "{\"op\":\"audit\"}", AUDIT_MS, &text) == PFX_OK)
		v = json_loads(text, 0, NULL);
	clean = json_is_true(json_object_get(v, "clean"));
	if (!clean)
		fprintf(stderr, "restart: audit: %s\n", text ? text : c ? pfx_error(c) : "?");
	json_decref(v);
	pfx_free_string(text);
	pfx_close(c);
	return clean;
}

/* Every prompt of all rounds, while the load rests. */
static void check_all(struct found *ret)
{
	struct found f = { 0 };
	uint32_t n_known = book->n_known;

	for (uint32_t p = 0; p < n_known; p++) {
		uint32_t least = restart_at_least(book, p), most = restart_at_most(book, p), n = 0;
		uint64_t wrong = 0;
		int r = look(p, &n, &wrong);

		if (r != PFX_OK) {
			fprintf(stderr, "restart: prompt %u: %s: %s\n", p, pfx_status_to_string(r),
				pfx_error(client));
			failures++;
		}
		f.lost += n < least ? least - n : 0;
		f.uncommitted += n > most ? n - most : 0;
		f.open += book->progress[p].sent - book->progress[p].answered;
		f.wrong += wrong;
		f.compared += n;
	}
	*ret = f;
}

/* ---- the load -------------------------------------------------------------------------------- */

static void start_workers(void)
{
	for (uint32_t i = 0; i < book->config.n_workers; i++) {
		workers[i] = fork();
		if (workers[i] == 0)
			restart_worker(book, d.socket, i);
	}
}

/* Ends of workers that nobody asked for; `all`: waits for each, and kills who does not end. */
static void reap_workers(bool all)
{
	uint64_t end = restart_now_ns() + STOP_NS;

	for (uint32_t i = 0; i < book->config.n_workers; i++) {
		int status = 0;
		pid_t r = 0;

		if (workers[i] <= 0)
			continue;
		while ((r = waitpid(workers[i], &status, WNOHANG)) == 0 && all &&
		       restart_now_ns() < end)
			restart_nap_us(1000);
		if (r == 0 && !all)
			continue;
		if (r == 0) {
			(void)kill(workers[i], SIGKILL);
			(void)waitpid(workers[i], &status, 0);
		}
		if (r <= 0 || status != 0 || !all) {
			fprintf(stderr, "restart: worker %u ended with %#x\n", i, (unsigned)status);
			crashes++;
		}
		workers[i] = 0;
	}
}

static uint32_t n_alive(void)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < book->config.n_workers; i++)
		n += workers[i] > 0;
	return n;
}

static void pause_load(void)
{
	uint64_t end = restart_now_ns() + PAUSE_NS;

	book->pause = true;
	while (book->n_paused < n_alive() && restart_now_ns() < end) {
		reap_workers(false);
		restart_nap_us(1000);
	}
	if (book->n_paused < n_alive()) {
		fprintf(stderr, "restart: a worker does not come to rest\n");
		failures++;
	}
}

/* The load runs for so long; what may be new in it is handed out evenly over FEED_US of it. */
static void let_run(unsigned us)
{
	int64_t share = (int64_t)book->config.budget * FEED_STEP_US / FEED_US;

	book->pause = false;
	for (unsigned t = 0; t < us; t += FEED_STEP_US) {
		if (t < FEED_US)
			book->budget += share;
		restart_nap_us(FEED_STEP_US);
	}
}

/* Over all workers of the member of a tally that `first` is in the first one's. */
static uint64_t sum_of(const _Atomic uint64_t *first)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < book->config.n_workers; i++)
		n += first[i * (sizeof(struct restart_tally) / sizeof(*first))];
	return n;
}

#define SUM(name) sum_of(&book->tallies[0].name)

/* ---- rounds ---------------------------------------------------------------------------------- */

static void start_daemon(void)
{
	int r = restart_daemon_start(&d, &book->config, pool_blocks, daemon_args);

	if (r < 0)
		fprintf(stderr, "restart: fork: %s\n", strerror(-r));
}

/* Kill, start, and the first match that is whole and right. */
static bool restart_once(struct times *ret)
{
	uint64_t t0 = restart_now_ns(), wrong;
	struct times t = { 0 };
	uint32_t n;

	(void)restart_daemon_end(&d, SIGKILL);
	t.gone = restart_now_ns() - t0;
	start_daemon();
	for (;;) {
		uint64_t now;

		if (!t.accepts && accepts())
			t.accepts = restart_now_ns() - t0;
		n = 0, wrong = 0;
		if (look(0, &n, &wrong) == PFX_OK && n == restart_path_len(book, 0) && !wrong)
			break;
		now = restart_now_ns();
		if (now - t0 > MATCH_NS || !restart_daemon_runs(&d))
			return false;
		restart_nap_us(1000);
	}
	t.match = restart_now_ns() - t0;
	t.cpu = restart_daemon_cpu_ns(&d);
	*ret = t;
	return true;
}

static void print_said(const char *text)
{
	char *line = restart_daemon_said(&d, text);

	if (line)
		printf("      %s", line);
	free(line);
}

/* Returns the seconds that it took, or infinity. */
static double round_of(uint32_t i, uint64_t *rng, struct found *sum)
{
	unsigned before_us = 10000 + test_rng_below(rng, FEED_US - 10000);
	uint64_t committed = SUM(committed);
	struct times t = { 0 };
	struct found f = { 0 };
	bool back;

	let_run(before_us);
	reap_workers(false);
	if (!restart_daemon_runs(&d))
		failures++;
	committed = SUM(committed) - committed;
	back = restart_once(&t);
	if (!back) {
		printf("%4u  no match of the whole prompt\n", i);
		return HUGE_VAL;
	}
	let_run(50000 + test_rng_below(rng, 100000));
	pause_load();
	check_all(&f);
	failures += !audit_is_clean();
	printf("%4u  %7.1f  %9llu  %6llu  %7.1f  %8.1f  %8.1f %7.1f  %9llu  %5llu %11llu %6llu\n",
	       i, before_us / 1e3, (unsigned long long)committed, (unsigned long long)f.open,
	       ms(t.gone), ms(t.accepts), ms(t.match), ms(t.cpu), (unsigned long long)f.compared,
	       (unsigned long long)f.lost, (unsigned long long)f.uncommitted,
	       (unsigned long long)f.wrong);
	print_said("restored");
	(void)fflush(stdout);
	sum->lost += f.lost;
	sum->uncommitted += f.uncommitted;
	sum->wrong += f.wrong;
	sum->compared += f.compared;
	return (double)t.match / 1e9;
}

static bool connect_first(void)
{
	uint64_t end = restart_now_ns() + MATCH_NS;

	while (!accepts()) {
		if (!restart_daemon_runs(&d) || restart_now_ns() > end)
			return false;
		restart_nap_us(1000);
	}
	client = restart_connect(book, d.socket, &ns);
	return client != NULL;
}

static bool fill(void)
{
	uint64_t t0 = restart_now_ns();

	for (uint32_t p = 0; p < book->n_base; p++) {
		int r = restart_store(book, ns, p);

		if (r != PFX_OK) {
			fprintf(stderr, "restart: storing prompt %u: %s: %s\n", p,
				pfx_status_to_string(r), pfx_error(client));
			return false;
		}
		book->n_known = p + 1;
	}
	printf("%llu blocks of %u bytes in %u prompts of %u blocks (one of %u), stored in %.1f s; "
	       "pool of %llu slots\n",
	       (unsigned long long)restart_n_blocks(book, book->n_base), book->config.block_bytes,
	       book->n_base, book->config.path, book->config.long_path,
	       ms(restart_now_ns() - t0) / 1e3, (unsigned long long)pool_blocks);
	return true;
}

/* Returns the longest time, in seconds. */
static double all_rounds(struct found *sum)
{
	uint64_t rng = book->config.seed;
	double max = 0;

	printf("%u processes of load; times in ms since the kill; CPU: what the new daemon had "
	       "used until the match\n"
	       " run   killed  committed    open     gone   accepts     match     CPU   compared   "
	       "lost uncommitted  wrong\n"
	       "         after   meanwhile  blocks\n",
	       book->config.n_workers);
	for (uint32_t i = 1; i <= book->config.n_runs; i++) {
		double s = round_of(i, &rng, sum);

		max = s > max ? s : max;
		if (isinf(s))
			break;
	}
	return max;
}

/* ---- options --------------------------------------------------------------------------------- */

static const char *text_option(int argc, char **argv, const char *name, const char *otherwise)
{
	for (int i = 1; i + 1 < argc && strcmp(argv[i], "--") != 0; i++)
		if (!strcmp(argv[i], name))
			return argv[i + 1];
	return otherwise;
}

static double option(int argc, char **argv, const char *name, double otherwise)
{
	const char *s = text_option(argc, argv, name, NULL);

	return s ? strtod(s, NULL) : otherwise;
}

/* The program of this build: build/tests/bench/restart -> build/daemon/prefixd. */
static const char *default_daemon(void)
{
	static char path[600];
	const char *named = getenv("PREFIXD_BIN");
	ssize_t n = readlink("/proc/self/exe", path, 500);
	char *slash;

	if (named && *named)
		return named;
	path[n > 0 ? n : 0] = 0;
	slash = strrchr(path, '/');
	if (!slash)
		return "prefixd";
	(void)snprintf(slash, sizeof(path) - (size_t)(slash - path), "/../../daemon/prefixd");
	return path;
}

static struct restart_config configure(int argc, char **argv)
{
	struct restart_config c = {
		.n_blocks = (uint64_t)option(argc, argv, "--blocks", 1e6),
		.n_runs = (uint32_t)option(argc, argv, "--runs", 20),
		.n_workers = (uint32_t)option(argc, argv, "--workers", 4),
		.path = (uint32_t)option(argc, argv, "--path", 512),
		.long_path = (uint32_t)option(argc, argv, "--long", 4096),
		.block_bytes = (uint32_t)option(argc, argv, "--bytes", 128),
		.budget = (uint64_t)option(argc, argv, "--new", 20000),
		.max_s = option(argc, argv, "--max-s", 1),
		.seed = (uint64_t)option(argc, argv, "--seed", 1),
		.keep = strcmp(text_option(argc, argv, "--keep", "holder"), "none") != 0,
		.daemon = text_option(argc, argv, "--daemon", default_daemon()),
	};

	if (c.path < 8 || c.path > RESTART_MAX_PATH || c.long_path < c.path ||
	    c.long_path > RESTART_MAX_PATH || c.block_bytes < 8 ||
	    c.block_bytes > RESTART_MAX_BLOCK || c.n_workers > RESTART_MAX_WORKERS) {
		fprintf(stderr,
			"restart: --path from 8 to --long, --long to %d, --bytes from 8 to %d, "
			"--workers to %d\n",
			RESTART_MAX_PATH, RESTART_MAX_BLOCK, RESTART_MAX_WORKERS);
		exit(2);
	}
	for (int i = 1; i < argc && !daemon_args; i++)
		if (!strcmp(argv[i], "--"))
			daemon_args = argv + i + 1; /* for the daemon */
	return c;
}

static bool run(struct found *sum, double *ret_max)
{
	uint64_t spare = book->config.n_workers * 2ull * book->config.path;

	pool_blocks = restart_n_blocks(book, book->n_base) + spare +
		      (book->config.n_runs + 1) * (book->config.budget * 3 / 2 + spare);
	start_daemon();
	if (!connect_first() || !fill())
		return false;
	book->pause = true;
	start_workers();
	*ret_max = all_rounds(sum);
	book->stop = true;
	reap_workers(true);
	printf("load: %llu requests, %llu blocks committed, %llu compared, %llu of them under "
	       "leases of a killed daemon; %llu times a worker met a new one; %llu busy\n",
	       (unsigned long long)SUM(requests), (unsigned long long)SUM(committed),
	       (unsigned long long)SUM(compared), (unsigned long long)SUM(held_over),
	       (unsigned long long)SUM(lives), (unsigned long long)SUM(busy));
	printf("after the restarts: %llu blocks compared\n", (unsigned long long)sum->compared);
	if (SUM(unexpected) || failures)
		printf("load: %llu calls ended as they should not, %llu checks failed\n",
		       (unsigned long long)SUM(unexpected), (unsigned long long)failures);
	return true;
}

int main(int argc, char **argv)
{
	struct restart_config config = configure(argc, argv);
	struct found sum = { 0 };
	double max = HUGE_VAL;
	bool ok;

	(void)signal(SIGPIPE, SIG_IGN);
	book = restart_book_new(&config);
	if (!book || restart_daemon_init(&d) < 0) {
		fprintf(stderr, "restart: %s\n", strerror(errno));
		return 1;
	}
	ok = run(&sum, &max);
	sum.wrong += SUM(wrong);
	ok = ok && !sum.lost && !sum.uncommitted && !sum.wrong && !crashes && !failures &&
	     !SUM(unexpected) && max < config.max_s;
	pfx_close(client);
	restart_daemon_free(&d, !ok);
	if (!ok)
		fprintf(stderr, "restart: the daemon's log is left in %s\n", d.dir);
	printf("restart: runs=%u lost=%llu uncommitted_served=%llu wrong_bytes=%llu "
	       "client_crashes=%llu max_s=%.3f\n",
	       config.n_runs, (unsigned long long)sum.lost, (unsigned long long)sum.uncommitted,
	       (unsigned long long)sum.wrong, (unsigned long long)crashes, max);
	return ok ? 0 : 1;
}
