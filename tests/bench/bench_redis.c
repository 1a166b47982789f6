/*
 * bench_redis.c - blocks to Redis and back, beside redis-benchmark at the same size and depth.
 *
 *     bench_redis [--large]
 *
 * Starts a redis-server on a unix socket in a folder of its own.  A round stores and fetches with
 * the client of the daemon (names, checksums and all), then lets redis-benchmark SET and GET values
 * of that size from one connection; both keep DEPTH commands in flight over 64 keys.  Ratios are
 * the median of those of the rounds; trips are round trips per 1,000 blocks; the last column is the
 * part of the client thread's processor time that passes in hiredis, around whose two functions the
 * linker puts clocks.
 */
#include "daemon/helper.h"
#include "daemon/redis.h"
#include "daemon/redis_value.h"

#include <hiredis/read.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define KEYS       64u
#define KEY_LEN    64u
#define MAX_ROUNDS 99
/* Half of redis-benchmark fails the run.  What is aimed at is 0.85; neighbours move single runs. */
#define GATE       0.5

static char dir[64], path[96];
static pid_t server;

static void die(const char *what)
{
	fprintf(stderr, "bench_redis: %s\n", what);
	if (server > 0)
		kill(server, SIGKILL);
	exit(1);
}

/* ---- time in hiredis ------------------------------------------------------------------------- */

static uint64_t hiredis_ns, not_hiredis_ns;
static bool in_hiredis; /* the client's thread is */

static uint64_t thread_ns(void)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts); /* cannot fail for this clock */
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static double now(void)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_MONOTONIC, &ts); /* nor for this one */
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

int __real_redisReaderFeed(redisReader *r, const char *buf, size_t len);
int __wrap_redisReaderFeed(redisReader *r, const char *buf, size_t len);
int __real_redisReaderGetReply(redisReader *r, void **reply);
int __wrap_redisReaderGetReply(redisReader *r, void **reply);
bool __real_prefixd_value_parse(void *value, size_t len, struct prefixd_value_of *of,
				const struct prefixd_value_cipher *cipher, void *block,
				uint8_t ret_checksum[16], enum prefixd_redis_bad *ret_why);
bool __wrap_prefixd_value_parse(void *value, size_t len, struct prefixd_value_of *of,
				const struct prefixd_value_cipher *cipher, void *block,
				uint8_t ret_checksum[16], enum prefixd_redis_bad *ret_why);

int __wrap_redisReaderFeed(redisReader *r, const char *buf, size_t len)
{
	uint64_t begin = thread_ns();
	int ret = __real_redisReaderFeed(r, buf, len);

	hiredis_ns += thread_ns() - begin;
	return ret;
}

int __wrap_redisReaderGetReply(redisReader *r, void **reply)
{
	uint64_t begin = thread_ns();
	int ret;

	in_hiredis = true;
	ret = __real_redisReaderGetReply(r, reply);
	in_hiredis = false;
	hiredis_ns += thread_ns() - begin;
	return ret;
}

/* The reader calls back into the client: that is not hiredis' time. */
bool __wrap_prefixd_value_parse(void *value, size_t len, struct prefixd_value_of *of,
				const struct prefixd_value_cipher *cipher, void *block,
				uint8_t ret_checksum[16], enum prefixd_redis_bad *ret_why)
{
	uint64_t begin = thread_ns();
	bool ret = __real_prefixd_value_parse(value, len, of, cipher, block, ret_checksum, ret_why);

	if (in_hiredis)
		not_hiredis_ns += thread_ns() - begin;
	return ret;
}

static double usage_s(const struct rusage *u)
{
	return (double)(u->ru_utime.tv_sec + u->ru_stime.tv_sec) +
	       (double)(u->ru_utime.tv_usec + u->ru_stime.tv_usec) / 1e6;
}

/* Of this process but for this thread, which only asks: of the client's thread. */
static double client_s(void)
{
	struct rusage all, mine;

	(void)getrusage(RUSAGE_SELF, &all); /* cannot fail for these */
	(void)getrusage(RUSAGE_THREAD, &mine);
	return usage_s(&all) - usage_s(&mine);
}

/* ---- the other side -------------------------------------------------------------------------- */

static void server_start(void)
{
	snprintf(dir, sizeof(dir), "/tmp/prefixd-bench-XXXXXX");
	if (!mkdtemp(dir))
		die("cannot make a folder");
	snprintf(path, sizeof(path), "%s/redis.sock", dir);
	server = fork();
	if (server == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		execlp("redis-server", "redis-server", "--port", "0", "--unixsocket", path,
		       "--save", "", "--appendonly", "no", "--dir", dir, "--logfile", "redis.log",
		       (char *)NULL);
		_exit(127);
	}
	for (int i = 0; i < 500 && access(path, F_OK) != 0; i++)
		usleep(10000);
	if (access(path, F_OK) != 0)
		die("redis-server does not start");
}

static void server_end(void)
{
	char log[96];

	kill(server, SIGKILL);
	waitpid(server, NULL, 0);
	snprintf(log, sizeof(log), "%s/redis.log", dir);
	(void)unlink(log);
	(void)unlink(path);
	(void)rmdir(dir);
}

struct result {
	double rps, us, share, trips; /* us: of a processor, per block */
};

/* redis-benchmark's. */
static struct result benchmark(const char *what, uint64_t size, uint32_t depth, uint32_t n)
{
	char d[24], p[24], count[24], keys[24], line[512];
	struct result r = { 0 };
	struct rusage u;
	int fds[2];
	pid_t pid;
	FILE *f;

	snprintf(d, sizeof(d), "%llu", (unsigned long long)size);
	snprintf(p, sizeof(p), "%u", depth);
	snprintf(count, sizeof(count), "%u", n);
	snprintf(keys, sizeof(keys), "%u", KEYS);
	if (pipe(fds) < 0)
		die("no pipe");
	pid = fork();
	if (pid == 0) {
		(void)dup2(fds[1], 1);
		(void)close(fds[0]);
		execlp("redis-benchmark", "redis-benchmark", "-s", path, "-t", what, "-d", d, "-P",
		       p, "-n", count, "-c", "1", "-r", keys, "--csv", (char *)NULL);
		_exit(127);
	}
	close(fds[1]);
	f = fdopen(fds[0], "r");
	while (f && fgets(line, sizeof(line), f)) {
		const char *comma = strstr(line, "\",\"");

		if (comma && strncmp(line, "\"test\"", 6) != 0)
			r.rps = strtod(comma + 3, NULL);
	}
	if (f)
		(void)fclose(f);       /* read only */
	(void)wait4(pid, NULL, 0, &u); /* a child of ours */
	if (r.rps <= 0)
		die("redis-benchmark gives no figure; is it installed?");
	r.us = usage_s(&u) * 1e6 / n;
	return r;
}

/* ---- this side ------------------------------------------------------------------------------- */

static struct prefixd_redis *redis;
static uint8_t *blocks; /* KEYS of them */

static void key_of(uint32_t i, uint8_t key[KEY_LEN])
{
	memset(key, (int)(i % KEYS), KEY_LEN);
}

static void send_one(enum prefixd_action_type type, uint32_t i, uint64_t size)
{
	struct prefixd_action a = { .type = type };
	struct prefixd_redis_message *m;
	uint8_t key[KEY_LEN];
	uint32_t entry = i % KEYS;

	key_of(i, key);
	if (type == PREFIXD_ACTION_NAMES)
		a.u.names = (struct prefixd_names){ .mode = RADIX_KEYS_DIGEST,
						    .parent = RADIX_NONE,
						    .key_len = KEY_LEN,
						    .n = 1,
						    .entries = &entry,
						    .keys = key };
	else
		a.u.carry =
			(struct prefixd_carry){ .entry = entry, .key = key, .key_len = KEY_LEN };
	m = prefixd_redis_message_new(&a, blocks + (size_t)entry * size, size);
	if (!m)
		die("no memory");
	prefixd_helper_send(prefixd_redis_helper(redis), &m->message);
}

/* Waits for `n` answers, all OK. */
static void receive(uint32_t n)
{
	struct prefixd_helper *h = prefixd_redis_helper(redis);

	while (n) {
		struct prefixd_message *got = prefixd_helper_receive(h);
		struct prefixd_redis_message *m =
			radix_container_of(got, struct prefixd_redis_message, message);

		if (!got) {
			(void)poll(&(struct pollfd){ prefixd_helper_answer_fd(h), POLLIN, 0 }, 1,
				   1000);
			continue;
		}
		if (m->message.kind != PREFIXD_REDIS_STATE) {
			if (m->result != PREFIXD_MOVE_OK)
				die("a request failed");
			n--;
		}
		prefixd_redis_message_free(m);
	}
}

static void client_start(uint64_t size, uint32_t depth)
{
	struct prefixd_redis_config config;
	struct prefixd_redis_stats s;
	char why[256];

	prefixd_redis_config_init(&config);
	snprintf(config.url, sizeof(config.url), "unix:%s", path);
	config.max_block_bytes = size;
	config.deadline_ns = 60000000000;
	config.batch = depth;
	/* So that DEPTH commands are in flight, as with the other. */
	config.in_flight_bytes = depth * (size + KEY_LEN + PREFIXD_VALUE_OVERHEAD);
	if (prefixd_redis_start(&redis, &config, why, sizeof(why)) < 0)
		die(why);
	for (int i = 0; i < 5000; i++) {
		prefixd_redis_stats(redis, &s);
		if (s.connected)
			break;
		usleep(1000);
	}
	for (uint32_t i = 0; i < KEYS; i++)
		send_one(PREFIXD_ACTION_NAMES, i, size);
	receive(KEYS);
}

static struct result client(enum prefixd_action_type type, uint64_t size, uint32_t n)
{
	struct prefixd_redis_stats before, after;
	double begin, cpu;
	struct result r;

	prefixd_redis_stats(redis, &before);
	hiredis_ns = not_hiredis_ns = 0;
	cpu = client_s();
	begin = now();
	for (uint32_t i = 0; i < n; i++)
		send_one(type, i, size);
	receive(n);
	r.rps = n / (now() - begin);
	cpu = client_s() - cpu;
	prefixd_redis_stats(redis, &after);
	r.share = (double)(hiredis_ns - not_hiredis_ns) / 1e9 / cpu;
	r.us = cpu * 1e6 / n;
	r.trips = (double)(after.round_trips - before.round_trips) * 1000 / n;
	return r;
}

/* ---- a table --------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *v, int n)
{
	qsort(v, (size_t)n, sizeof(*v), by_value);
	return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

struct row {
	struct result ours[MAX_ROUNDS], theirs[MAX_ROUNDS];
};

static double median_of(const struct result *v, size_t at, int n)
{
	double x[MAX_ROUNDS];

	for (int i = 0; i < n; i++)
		memcpy(&x[i], (const char *)&v[i] + at, sizeof(x[i]));
	return median(x, n);
}

static bool print(const char *what, uint64_t size, uint32_t depth, const struct row *row, int n)
{
	double mb = (double)size / 1e6, ratio[MAX_ROUNDS];

	for (int i = 0; i < n; i++)
		ratio[i] = row->ours[i].rps / row->theirs[i].rps;
	printf("%-6s %5llu KiB %5u %7.0f MB/s %10.0f MB/s %8.2f %8.0f us %8.0f us %8.1f %6.1f %%\n",
	       what, (unsigned long long)(size >> 10), depth,
	       median_of(row->ours, offsetof(struct result, rps), n) * mb,
	       median_of(row->theirs, offsetof(struct result, rps), n) * mb, median(ratio, n),
	       median_of(row->ours, offsetof(struct result, us), n),
	       median_of(row->theirs, offsetof(struct result, us), n),
	       median_of(row->ours, offsetof(struct result, trips), n),
	       median_of(row->ours, offsetof(struct result, share), n) * 100);
	fflush(stdout);
	return median(ratio, n) >= GATE;
}

/*
 * n: a whole number of batches; redis-benchmark sends no less, counts beyond n, and when its clock
 * ticks then gives up with "All clients disconnected".  False: a row is below the gate.
 */
static bool run(uint64_t size, uint32_t depth, uint32_t n, int rounds)
{
	static struct row store, fetch;
	bool ok;

	blocks = calloc(KEYS, size);
	if (!blocks)
		die("no memory");
	for (size_t i = 0; i < KEYS * size; i++)
		blocks[i] = (uint8_t)(i * 2654435761u >> 13);
	client_start(size, depth);
	for (int i = -1; i < rounds; i++) { /* the first one warms up */
		int at = i < 0 ? 0 : i;

		store.ours[at] = client(PREFIXD_ACTION_STORE, size, n);
		store.theirs[at] = benchmark("set", size, depth, n);
		fetch.ours[at] = client(PREFIXD_ACTION_FETCH, size, n);
		fetch.theirs[at] = benchmark("get", size, depth, n);
	}
	prefixd_redis_stop(redis);
	free(blocks);
	ok = print("STORE", size, depth, &store, rounds);
	return print("FETCH", size, depth, &fetch, rounds) && ok;
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 && !strcmp(argv[1], "--large") ? 11 : 3;
	bool ok = true;

	if (argc > 2 || (argc > 1 && rounds == 3)) {
		fprintf(stderr, "usage: %s [--large]\n", argv[0]);
		return 2;
	}
	server_start();
	printf("                              prefixd  redis-benchmark    ratio     prefixd   "
	       "benchmark    trips  hiredis\n"
	       "what       block depth     throughput       throughput   median  cpu/block  "
	       "cpu/block   /1,000   of cpu\n");
	ok &= run(256 << 10, 16, 2000, rounds);
	ok &= run(256 << 10, 64, 1984, rounds);
	ok &= run(2 << 20, 16, 320, rounds);
	server_end();
	return ok ? 0 : 1;
}
