/*
 * main.c - runs seeds, one process each, as many at a time as there are processors.
 *
 *     sim SEED [OPERATIONS]             one seed
 *     sim --seeds N [--from S] [OPERATIONS]     N seeds from S (1) on
 *
 * Those that fail are run again with a transcript, the first three of them.  README.md has the
 * other options.  The last line is "sim: N seeds, N violations"; the exit status is 0 when there
 * were none.
 */
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "radix/base.h"
#include "tests/sim/fail.h"
#include "tests/sim/sim.h"

enum {
	N_OPS = 2000,
	SHOWN = 3,      /* failures that are run again */
	N_JUDGED = 100, /* seeds whose hits are compared */
};

struct options {
	uint64_t n, from, n_ops;
	uint32_t jobs, limit_s;
	bool faultless, one_life, blind, stop, here;
};

/* What the processes hand over: one per job, and the sum. */
struct job {
	pid_t pid;
	uint64_t seed;
	struct sim_result *result;
};

static void add(struct sim_result *sum, const struct sim_result *x)
{
#define X(name, help) sum->name += x->name;
	SIM_COUNTS(X)
#undef X
	for (uint32_t i = 0; i < SIM_POINTS && x->points[i].n; i++)
		sim_point_add(sum, x->points[i].name, x->points[i].n);
}

static void run(const struct options *o, uint64_t seed, bool record, struct sim_result *ret)
{
	struct sim_config config = {
		.seed = seed,
		.n_ops = o->n_ops,
		.record = record,
		.faultless = o->faultless,
		.one_life = o->one_life,
		.blind = o->blind,
	};

	memset(ret, 0, sizeof(*ret));
	if (!record && !freopen("/dev/null", "w", stderr))
		_exit(2);
	fail_watch(seed, o->limit_s);
	sim_run(&config, ret);
	_exit(0);
}

static pid_t start(const struct options *o, uint64_t seed, bool record, struct sim_result *ret)
{
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (pid == 0)
		run(o, seed, record, ret);
	if (pid < 0) {
		perror("sim: fork");
		exit(2);
	}
	return pid;
}

/* Once more, with a transcript. */
static void show(const struct options *o, uint64_t seed, struct sim_result *scratch)
{
	int status;

	printf("sim: seed %" PRIu64 " fails\n", seed);
	if (waitpid(start(o, seed, true, scratch), &status, 0) < 0)
		return;
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		printf("sim: seed %" PRIu64 " did not fail again: the run is not determined\n",
		       seed);
	else if (WIFSIGNALED(status))
		printf("sim: seed %" PRIu64 " ended by signal %d\n", seed, WTERMSIG(status));
}

static void say(const struct sim_result *x, uint64_t n, double seconds)
{
	printf("sim: in sum");
#define X(name, help) printf(", %" PRIu64 " %s", x->name, help);
	SIM_COUNTS(X)
#undef X
	printf("\n");
	for (uint32_t i = 0; i < SIM_POINTS && x->points[i].n; i++)
		printf("%s %s %" PRIu64, i ? "," : "sim: killed at", x->points[i].name,
		       x->points[i].n);
	if (x->points[0].n)
		printf("\n");
	if (x->ideal)
		printf("sim: hits are %.1f %% of those of a cache of the same size without faults "
		       "(%.1f %% and %.1f %% of the blocks asked for)\n",
		       100.0 * (double)x->hits / (double)x->ideal,
		       100.0 * (double)x->hits / (double)x->asked,
		       100.0 * (double)x->ideal / (double)x->asked);
	printf("sim: %.1f s, %.2f s per 100 seeds\n", seconds, 100 * seconds / (double)n);
}

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Runs them all; returns how many failed. */
static uint64_t run_all(const struct options *o, uint64_t *ret_n)
{
	struct sim_result *shared, sum = { 0 };
	struct job jobs[64] = { 0 };
	uint64_t next = o->from, n = o->n, n_bad = 0, n_done = 0;
	double began = now_s();

	shared = mmap(NULL, sizeof(*shared) * 65, PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED) {
		perror("sim: mmap");
		exit(2);
	}
	while (n_done < n) {
		struct job *j = jobs;
		int status;
		pid_t pid;

		for (uint32_t i = 0; i < o->jobs && next < o->from + n; i++) {
			if (jobs[i].pid)
				continue;
			jobs[i].seed = next++;
			jobs[i].result = &shared[i];
			jobs[i].pid = start(o, jobs[i].seed, false, jobs[i].result);
		}
		pid = wait(&status);
		while (j->pid != pid)
			j++;
		j->pid = 0;
		n_done++;
		add(&sum, j->result);
		if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
			continue;
		if (n_bad++ < SHOWN)
			show(o, j->seed, &shared[64]);
		else
			printf("sim: seed %" PRIu64 " fails\n", j->seed);
		if (o->stop)
			n = next - o->from;
	}
	*ret_n = n;
	say(&sum, n, now_s() - began);
	/* One world may be unlucky; so many are not. */
	if (n >= N_JUDGED && 2 * sum.hits < sum.ideal) {
		printf("sim: hits are fewer than half of what they are without faults\n");
		n_bad++;
	}
	return n_bad;
}

static uint64_t number(const char *text)
{
	char *end;
	uint64_t v = strtoull(text, &end, 0);

	if (*text == '\0' || *end) {
		fprintf(stderr, "sim: \"%s\" is no number\n", text);
		exit(2);
	}
	return v;
}

static void parse(int argc, char **argv, struct options *o)
{
	static const struct option known[] = {
		{ "seeds", required_argument, NULL, 's' },
		{ "from", required_argument, NULL, 'f' },
		{ "jobs", required_argument, NULL, 'j' },
		{ "limit", required_argument, NULL, 'l' },
		{ "faultless", no_argument, NULL, 'q' },
		{ "one-life", no_argument, NULL, 'o' },
		{ "blind", no_argument, NULL, 'b' },
		{ "stop", no_argument, NULL, 'x' },
		{ "here", no_argument, NULL, 'h' },
		{ 0 },
	};
	int c;

	while ((c = getopt_long(argc, argv, "", known, NULL)) != -1) {
		if (c == 's')
			o->n = number(optarg);
		else if (c == 'f')
			o->from = number(optarg);
		else if (c == 'j')
			o->jobs = (uint32_t)number(optarg);
		else if (c == 'l')
			o->limit_s = (uint32_t)number(optarg);
		else if (c == 'q')
			o->faultless = true;
		else if (c == 'o')
			o->one_life = true;
		else if (c == 'b')
			o->blind = true;
		else if (c == 'x')
			o->stop = true;
		else if (c == 'h')
			o->here = true;
		else
			exit(2);
	}
	if (o->n == 0 && optind < argc) {
		o->n = 1;
		o->from = number(argv[optind++]);
	}
	if (optind < argc)
		o->n_ops = number(argv[optind++]);
	if (o->n == 0 || optind < argc || o->jobs == 0 || o->jobs > 64) {
		fprintf(stderr, "usage: sim SEED [OPERATIONS] | sim --seeds N [--from S] "
				"[--jobs N] [--limit SECONDS] [--faultless] [--one-life] [--blind] "
				"[--stop] [--here] [OPERATIONS]\n");
		exit(2);
	}
}

int main(int argc, char **argv)
{
	struct options o = { .from = 1, .n_ops = N_OPS, .limit_s = 120 };
	struct sim_result here;
	uint64_t n, n_bad;

	o.jobs = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
	parse(argc, argv, &o);
	if (o.here)
		run(&o, o.from, true, &here);
	n_bad = run_all(&o, &n);
	printf("sim: %" PRIu64 " seeds, %" PRIu64 " violations\n", n, n_bad);
	return n_bad ? 1 : 0;
}
