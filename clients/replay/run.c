/*
 * run.c - the coordinator: forks, starts, watches and adds up.
 *
 * It sleeps in sigtimedwait: a worker's end (SIGCHLD) or the user's wish to stop wakes it at once,
 * and otherwise it looks at the counters ten times a second.  When a worker ends before its time
 * (killed, or a crash) the others would wait for its baton for ever, so all are stopped; a request
 * that is running is completed and released first.  Workers die with their coordinator.
 */
#include "clients/replay/run.h"

#include "clients/replay/progress.h"
#include "clients/replay/util.h"

#define XXH_INLINE_ALL
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

struct coordinator {
	const struct replay_options *options;
	const struct replay_trace *trace;
	struct replay_shared *shared;
	uint32_t *hits;
	uint8_t (*digests)[16];
	pid_t pids[REPLAY_MAX_WORKERS]; /* 0: ended and waited for */
	uint32_t n_alive;
	sigset_t wanted; /* signals that are blocked and waited for */
	uint64_t start_ns;
	bool bar;
};

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

enum replay_key_mode replay_key_mode_of(const struct replay_options *options,
					const struct replay_trace *trace)
{
	if (options->key_mode != REPLAY_KEYS_AUTO)
		return (enum replay_key_mode)options->key_mode;
	return trace->has_tokens ? REPLAY_KEYS_TOKENS : REPLAY_KEYS_DIGEST;
}

/* Made once here and shared by all workers: a keyed hash of the seed and the trace's own id. */
static void make_digests(struct coordinator *c)
{
	if (replay_key_mode_of(c->options, c->trace) != REPLAY_KEYS_DIGEST)
		return;
	c->digests = replay_alloc(c->trace->n_blocks, sizeof(*c->digests));
	for (uint32_t i = 0; i < c->trace->n_blocks; i++) {
		XXH128_canonical_t canonical;

		XXH128_canonicalFromHash(&canonical,
					 XXH3_128bits_withSeed(&c->trace->names[i],
							       sizeof(c->trace->names[i]),
							       c->options->seed));
		memcpy(c->digests[i], &canonical, sizeof(c->digests[i]));
	}
}

static void *share(size_t len)
{
	void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

static int share_memory(struct coordinator *c)
{
	c->shared = share(sizeof(*c->shared));
	if (c->options->hits)
		c->hits = share(c->trace->n_requests * sizeof(*c->hits));
	if (!c->shared || (c->options->hits && !c->hits)) {
		replay_say("cannot share memory with the workers: %s", strerror(errno));
		return -ENOMEM;
	}
	/* Fails only for values above SEM_VALUE_MAX or without process-shared semaphores. */
	if (sem_init(&c->shared->ready, 1, 0) != 0)
		return -errno;
	for (uint64_t i = 0; i < c->options->workers; i++)
		if (sem_init(&c->shared->baton[i], 1, 0) != 0)
			return -errno;
	return 0;
}

static void stop(struct coordinator *c)
{
	atomic_store(&c->shared->stop, true);
	for (uint64_t i = 0; i < c->options->workers; i++)
		sem_post(&c->shared->baton[i]);
}

static int fork_workers(struct coordinator *c)
{
	pid_t parent = getpid();

	for (uint32_t i = 0; i < c->options->workers; i++) {
		struct replay_job job = { c->options, c->trace, c->shared, (const void *)c->digests,
					  c->hits,    i };
		pid_t pid = fork();

		if (pid == 0) {
			(void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* fails for a wrong number only */
			_exit(getppid() == parent ? replay_worker_main(&job) : 1);
		}
		if (pid < 0) {
			replay_say("cannot fork a worker: %s", strerror(errno));
			stop(c);
			return -EAGAIN;
		}
		c->pids[i] = pid;
		c->n_alive++;
	}
	return 0;
}

/* Waits for those that have ended.  A worker that ended in its own way has set end_ns. */
static void reap(struct coordinator *c, struct replay_result *ret)
{
	for (uint64_t i = 0; i < c->options->workers; i++) {
		int status;

		if (!c->pids[i] || waitpid(c->pids[i], &status, WNOHANG) != c->pids[i])
			continue;
		c->pids[i] = 0;
		c->n_alive--;
		if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
			continue;
		if (!c->shared->workers[i].end_ns)
			ret->n_died++;
		stop(c);
	}
}

/* One nap and what woke us. */
static void watch(struct coordinator *c, struct replay_result *ret, long nap_ms)
{
	struct timespec nap = { 0, nap_ms * 1000000 };
	int signal = sigtimedwait(&c->wanted, NULL, &nap);

	if (signal == SIGINT || signal == SIGTERM) {
		/* Asked a second time: a worker may be waiting for an answer for a long while. */
		for (uint64_t i = 0; ret->interrupted && i < c->options->workers; i++)
			if (c->pids[i])
				kill(c->pids[i], SIGKILL);
		ret->interrupted = true;
		stop(c);
	}
	reap(c, ret);
}

static void start_when_ready(struct coordinator *c, struct replay_result *ret)
{
	uint64_t n_ready = 0;

	while (n_ready < c->options->workers && c->n_alive == c->options->workers &&
	       !ret->interrupted) {
		while (sem_trywait(&c->shared->ready) == 0)
			n_ready++;
		if (n_ready < c->options->workers)
			watch(c, ret, 2);
	}
	c->start_ns = now_ns();
	if (c->options->order == REPLAY_ORDER_TRACE)
		sem_post(&c->shared->baton[0]);
	else
		for (uint64_t i = 0; i < c->options->workers; i++)
			sem_post(&c->shared->baton[i]);
}

static void add_up(struct coordinator *c, struct replay_result *ret)
{
	for (uint64_t i = 0; i < c->options->workers; i++)
		replay_stats_merge(&ret->sum, &c->shared->workers[i]);
	if (ret->sum.end_ns > c->start_ns)
		ret->elapsed_s = (double)(ret->sum.end_ns - c->start_ns) * 1e-9;
	ret->pool_slots = c->shared->pool_slots;
	ret->pool_stride = c->shared->pool_stride;
	c->shared->error[sizeof(c->shared->error) - 1] = '\0';
	memcpy(ret->error, c->shared->error, sizeof(ret->error));
}

static int write_hits(const struct coordinator *c)
{
	FILE *file = c->hits ? fopen(c->options->hits, "we") : NULL;
	bool failed;

	if (!c->hits)
		return 0;
	if (!file) {
		replay_say("cannot write %s: %s", c->options->hits, strerror(errno));
		return -EIO;
	}
	for (size_t i = 0; i < c->trace->n_requests; i++)
		fprintf(file, "%u\n", c->hits[i]);
	failed = ferror(file);
	if (fclose(file) != 0 || failed) {
		replay_say("cannot write %s", c->options->hits);
		return -EIO;
	}
	return 0;
}

static void coordinator_deinit(struct coordinator *c)
{
	free(c->digests);
	if (c->hits)
		munmap(c->hits, c->trace->n_requests * sizeof(*c->hits));
	if (c->shared)
		munmap(c->shared, sizeof(*c->shared));
}

int replay_run(const struct replay_options *options, const struct replay_trace *trace,
	       struct replay_result *ret)
{
	struct coordinator c = {
		.options = options,
		.trace = trace,
		.bar = options->progress == REPLAY_PROGRESS_AUTO && isatty(STDERR_FILENO),
	};
	struct replay_moves moves;
	sigset_t before;
	int r;

	*ret = (struct replay_result){ 0 };
	if (options->admin_socket && replay_moves_ask(options->admin_socket, &moves) < 0)
		return -EIO;
	make_digests(&c);
	sigemptyset(&c.wanted);
	sigaddset(&c.wanted, SIGCHLD);
	sigaddset(&c.wanted, SIGINT);
	sigaddset(&c.wanted, SIGTERM);
	sigprocmask(SIG_BLOCK, &c.wanted, &before);
	r = share_memory(&c);
	if (r == 0)
		r = fork_workers(&c);
	if (r == 0)
		start_when_ready(&c, ret);
	while (c.n_alive) {
		watch(&c, ret, 100);
		if (c.bar)
			replay_progress_draw(c.shared, options, trace->n_requests,
					     (double)(now_ns() - c.start_ns) * 1e-9);
	}
	if (c.bar)
		replay_progress_clear();
	if (r == 0) {
		add_up(&c, ret);
		r = write_hits(&c);
		if (options->admin_socket &&
		    replay_moves_ask(options->admin_socket, &ret->moves) == 0) {
			replay_moves_since(&ret->moves, &moves);
			ret->moves_known = true;
		}
	}
	sigprocmask(SIG_SETMASK, &before, NULL);
	coordinator_deinit(&c);
	return r;
}
