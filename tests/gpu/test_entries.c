/*
 * test_entries.c - each entry of the driver fails once, at each call.
 *
 * One life of a device, with all that can be asked of it, is lived again and again, each time in a
 * process of its own and with another call of the driver failing: the first of an entry, the
 * second, until there are no more.  Whatever comes: what went well is right to the byte, what did
 * not is told in a sentence with the entry's name, nothing of the driver and no descriptor is held
 * in the end, and no rule of the driver is broken.
 *
 * The driver writes down where it was called from.  The last test counts these places, and those in
 * the sources; they are as many.  So that a place is one address, gpu/ is compiled for this without
 * optimization.
 */
#include "gpu/codec.h"
#include "gpu/driver.h"
#include "gpu/fatbin.h"
#include "tests/gpu/cuda_util.h"

#include <fcntl.h>
#include <sys/wait.h>

#define N_SLOTS    40u
#define SLOT_BYTES UINT64_C(4096)
#define N_JOBS     12u
#define N_CODED    4u
#define MAX_CALLS  120u /* of cuStreamQuery there are as many as it takes */

/* LeakSanitizer's, where the test is compiled with it. */
int __lsan_do_recoverable_leak_check(void) __attribute__((weak));

static const struct entry {
	const char *field;
	const char *symbol;
	const char *with; /* faults without which it would not be called */
	const char *told; /* what the sentence names */
} entries[] = {
#define X(field, symbol, abi, required, args) { #field, symbol, "", symbol },
	GPU_DRIVER_TABLE(X)
#undef X
};

/* Called only while something else fails. */
static struct entry entry_of(size_t i)
{
	struct entry e = entries[i];

	if (strcmp(e.field, "error_name") == 0 || strcmp(e.field, "error_string") == 0) {
		e.with = "+mem_create:2:999";
		e.told = "cuMemCreate";
	}
	if (strcmp(e.field, "copy") == 0)
		e.with = "+copy_batch:1-:801";
	return e;
}

/* ---- one life -------------------------------------------------------------------------------- */

/* What a life found; 0 failures: all went well. */
struct life {
	struct gpu *g;
	const char *told;
	char text[1024]; /* what was told, or what is wrong */
	bool failed;
	bool wrong;
};

static void wrong(struct life *l, const char *what)
{
	if (!l->wrong)
		(void)snprintf(l->text, sizeof(l->text), "%s", what);
	l->wrong = true;
}

/* Something did not work: it has to be told why. */
static void fails(struct life *l, const char *what, const char *sentence, int r)
{
	char text[900];

	l->failed = true;
	(void)snprintf(text, sizeof(text), "%s: %d: %s", what, r, sentence);
	if (!strstr(sentence, l->told))
		wrong(l, text);
	if (r != -ENODEV && r != -ENOMEM && r != -EINVAL && r != -EIO)
		wrong(l, text);
}

static bool went(struct life *l, const char *what, int r)
{
	if (r < 0)
		fails(l, what, gpu_trouble(l->g), r);
	return r == 0;
}

static struct gpu *life_open(struct life *l)
{
	char why[640] = "";
	int r = gpu_open("cuda", NULL, &l->g, why, sizeof(why));

	if (r < 0)
		fails(l, "open", why, r);
	if (why[0] == '\0')
		wrong(l, "no sentence");
	return r < 0 ? NULL : l->g;
}

static uint8_t content(uint32_t i, uint64_t at)
{
	const uint64_t v = i * 37 + at * 3 + at / 256;

	return (uint8_t)(i < 2 ? v & 0x3f : v); /* what can be coded, and what cannot */
}

static bool has_content(const uint8_t *p, uint32_t i)
{
	for (uint64_t at = 0; at < SLOT_BYTES; at++)
		if (p[at] != content(i, at))
			return false;
	return true;
}

/* What kernels do in a life; with gaps behind exact pieces, and without. */
static const struct gpu_coded coding = {
	.geometry = { .tokens = 2, .heads = 4, .dim = 8, .element = GPU_ELEMENT_BF16 },
	.codec = GPU_CODEC_INT8,
	.n_pieces = SLOT_BYTES / 128,
	.exact = { 0x10 },
};

static const struct gpu_coded ragged = {
	/* 12 pieces of 336 bytes */
	.geometry = { .tokens = 1, .heads = 3, .dim = 56, .element = GPU_ELEMENT_BF16 },
	.codec = GPU_CODEC_E4M3,
	.n_pieces = 12,
	.exact = { 0x01, 0x02 },
};

static uint64_t bytes_of(const struct gpu_coded *coded)
{
	return coded ? coded->n_pieces * gpu_coded_piece_len(coded) : SLOT_BYTES;
}

static void life_submit_as(struct life *l, struct counted_job *c, uint64_t dst, uint64_t src,
			   const struct gpu_coded *coded)
{
	int r;

	*c = (struct counted_job){ .job = { .dst = dst,
					    .src = src,
					    .len = bytes_of(coded),
					    .done = count_done,
					    .ctx = c,
					    .coded = coded,
					    .want_sum = coded != NULL,
					    .urgent = (dst >> 12) & 1 } };
	n_in_flight++;
	r = l->g->ops->submit(l->g, &c->job);
	if (r == 0)
		return;
	n_in_flight--;
	c->status = 1;
	if (r == -ENODEV || (coded && r == -ENOMEM))
		fails(l, "submit", gpu_trouble(l->g), r);
	else
		wrong(l, "submit says something else than that the device is lost");
}

static void life_submit(struct life *l, struct counted_job *c, uint64_t dst, uint64_t src)
{
	life_submit_as(l, c, dst, src, NULL);
}

/* All that were taken have to complete. */
static void life_settle(struct life *l, struct counted_job *jobs)
{
	for (uint32_t i = 0; n_in_flight && i < 100; i++) {
		(void)readable_within(l->g, 200);
		(void)l->g->ops->reap(l->g, 16);
	}
	if (n_in_flight)
		wrong(l, "jobs that do not complete");
	for (uint32_t i = 0; i < N_JOBS; i++)
		if (jobs[i].n_done != (jobs[i].status != 1))
			wrong(l, "a job completed twice, or one that was refused");
		else if (jobs[i].status < 0)
			fails(l, "job", gpu_trouble(l->g), jobs[i].status);
}

/* In, across, and out again.  Return: all went well. */
static bool life_copies(struct life *l, struct gpu_pool *pool, uint8_t *from, uint8_t *to)
{
	const struct gpu_ops *ops = l->g->ops;
	struct counted_job in[N_JOBS], across[N_JOBS], out[N_JOBS];

	for (uint32_t i = 0; i < N_JOBS; i++)
		for (uint64_t at = 0; at < SLOT_BYTES; at++)
			from[i * SLOT_BYTES + at] = content(i, at);
	for (uint32_t i = 0; i < N_JOBS; i++)
		life_submit(l, &in[i], ops->slot_addr(pool, i), addr_of(from + i * SLOT_BYTES));
	life_settle(l, in);
	for (uint32_t i = 0; i < N_JOBS; i++)
		life_submit(l, &across[i], ops->slot_addr(pool, i + N_JOBS),
			    ops->slot_addr(pool, i));
	life_settle(l, across);
	for (uint32_t i = 0; i < N_JOBS; i++)
		life_submit(l, &out[i], addr_of(to + i * SLOT_BYTES),
			    ops->slot_addr(pool, i + N_JOBS));
	life_settle(l, out);
	for (uint32_t i = 0; i < N_JOBS; i++)
		if (in[i].status == 0 && across[i].status == 0 && out[i].status == 0 &&
		    !has_content(to + i * SLOT_BYTES, i))
			wrong(l, "wrong bytes");
	return !l->failed && !l->wrong;
}

/* What the device says of a block, and what it made of it. */
static void check_coded(struct life *l, const struct counted_job *out, const struct counted_job *in,
			const struct gpu_coded *how, uint32_t i, const uint8_t *packed)
{
	static uint8_t block[SLOT_BYTES], expected[SLOT_BYTES];
	uint64_t sum[2];

	for (uint64_t at = 0; at < SLOT_BYTES; at++)
		block[at] = content(i, at);
	gpu_checksum(gpu_codec_best(), block, bytes_of(how), sum);
	if (out->status == 0 && memcmp(sum, out->job.sum, sizeof(sum)) != 0)
		wrong(l, "a wrong sum of what was encoded");
	if (out->status != 0)
		return;
	if (gpu_coded_encode(how, block, expected) == out->job.uncodable)
		wrong(l, "that a block can be coded, or not, is told the wrong way round");
	if (out->job.uncodable)
		return;
	if (memcmp(packed, expected, gpu_coded_bytes(how)) != 0)
		wrong(l, "wrong bytes of a packed block");
	gpu_coded_decode(how, expected, block);
	gpu_checksum(gpu_codec_best(), block, bytes_of(how), sum);
	if (in->status == 0 && memcmp(sum, in->job.sum, sizeof(sum)) != 0)
		wrong(l, "wrong bytes of a decoded block");
}

/* Slots 0 to 3 coded, and others gathered, into `to`; and back into slots 0 to 11. */
static void life_codes(struct life *l, struct gpu_pool *pool, uint8_t *to, bool whole)
{
	static const struct gpu_coded *const how[N_CODED] = { &coding, &ragged, &coding, &ragged };
	const struct gpu_ops *ops = l->g->ops;
	struct counted_job out[N_JOBS], in[N_JOBS];

	for (uint32_t i = 0; i < N_JOBS; i++) {
		uint32_t slot = i < N_CODED ? i : N_JOBS + i * 5 % N_JOBS;

		life_submit_as(l, &out[i], addr_of(to + i * SLOT_BYTES), ops->slot_addr(pool, slot),
			       i < N_CODED ? how[i] : NULL);
	}
	life_settle(l, out);
	for (uint32_t i = 0; i < N_JOBS; i++)
		life_submit_as(l, &in[i], ops->slot_addr(pool, i), addr_of(to + i * SLOT_BYTES),
			       i < N_CODED ? how[i] : NULL);
	life_settle(l, in);
	for (uint32_t i = 0; whole && i < N_CODED; i++)
		check_coded(l, &out[i], &in[i], how[i], i, to + i * SLOT_BYTES);
	for (uint32_t i = N_CODED; whole && i < N_JOBS; i++)
		if (out[i].status == 0 && !has_content(to + i * SLOT_BYTES, i * 5 % N_JOBS))
			wrong(l, "wrong bytes of a gathered block");
}

/* The memory of a pool, once more as a pool. */
static void life_adopt(struct life *l, struct gpu_pool *pool)
{
	const struct gpu_ops *ops = l->g->ops;
	struct gpu_pool *again = NULL;
	struct gpu_pool_info info;
	int fds[16];
	int r;

	ops->pool_info(pool, &info);
	for (uint32_t i = 0; i < info.n_slabs; i++)
		fds[i] = fcntl(ops->pool_fd(pool, i, false), F_DUPFD_CLOEXEC, 0);
	r = ops->pool_adopt(l->g, fds, info.n_slabs, N_SLOTS, SLOT_BYTES, &again);
	if (went(l, "adopt", r))
		ops->pool_free(l->g, again);
	for (uint32_t i = 0; r < 0 && i < info.n_slabs; i++)
		if (close(fds[i]) < 0)
			wrong(l, "a descriptor that was the caller's is closed");
}

static void life_with(struct life *l)
{
	const struct gpu_ops *ops = l->g->ops;
	const uint64_t len = N_JOBS * SLOT_BYTES;
	struct gpu_pool *pool = NULL, *second = NULL;
	uint8_t *from = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	uint8_t *to = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	bool pinned;

	ck_assert(from != MAP_FAILED && to != MAP_FAILED);
	pinned = went(l, "pin", ops->host_pin(l->g, from, len));
	if (went(l, "pin", ops->host_pin(l->g, to, len))) {
		ops->host_unpin(l->g, to);
		pinned = went(l, "pin", ops->host_pin(l->g, to, len)) && pinned;
	} else {
		pinned = false;
	}
	if (went(l, "pool", ops->pool_new(l->g, N_SLOTS, SLOT_BYTES, &pool)) && pinned) {
		bool whole = life_copies(l, pool, from, to);

		if (ops->codes(l->g))
			life_codes(l, pool, to, whole);
	}
	if (went(l, "pool", ops->pool_new(l->g, 3, SLOT_BYTES, &second)))
		ops->pool_free(l->g, second);
	if (pool)
		life_adopt(l, pool);
	if (l->g->ops->health(l->g) < 0)
		fails(l, "health", gpu_trouble(l->g), -ENODEV);
	/* The pool, and what is pinned, are left for close(). */
}

static void life_end(struct life *l, uint32_t fds)
{
	struct lookalike_census c;

	if (l->g)
		gpu_close(l->g);
	if (count_fds() != fds)
		wrong(l, "descriptors are left open");
	if (__lsan_do_recoverable_leak_check && __lsan_do_recoverable_leak_check() != 0)
		wrong(l, "memory is left");
	/* A library that was closed again holds nothing. */
	if (!lookalike_census(&c))
		return;
	if (c.n_memories + c.n_handles + c.n_reservations + c.n_mappings > 0)
		wrong(l, "device memory is left");
	if (c.n_registrations + c.n_streams + c.n_modules + c.n_retained > 0)
		wrong(l, "something of the driver is left");
	if (c.n_broken > 0)
		wrong(l, "a rule is broken");
}

/* Exit statuses of a life. */
enum {
	LIFE_WELL, /* without the fault's having come about */
	LIFE_FAULT,
	LIFE_WRONG
};

static _Noreturn void live(const char *settings, const char *told, int to_parent)
{
	struct life l = { .told = told };
	struct lookalike_census c = { 0 };
	uint32_t fds = count_fds();
	bool came;

	(void)setenv("LOOKALIKE", settings, 1);
	if (life_open(&l))
		life_with(&l);
	/* If the library is gone again it was for the fault. */
	came = !lookalike_census(&c) || c.n_planned > 0;
	life_end(&l, fds);
	/* In taking down, perhaps. */
	came = came || (lookalike_census(&c) && c.n_planned > 0);
	if (l.failed && !came)
		wrong(&l, "something fails without a fault");
	if (l.wrong)
		(void)!write(to_parent, l.text, strlen(l.text));
	_exit(l.wrong ? LIFE_WRONG : came ? LIFE_FAULT : LIFE_WELL);
}

static int live_once(const char *settings, const char *told)
{
	char text[1024] = "";
	int ends[2], status;
	ssize_t n;
	pid_t pid;

	ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0)
		live(settings, told, ends[1]);
	(void)close(ends[1]);
	n = read(ends[0], text, sizeof(text) - 1);
	text[n > 0 ? n : 0] = '\0';
	(void)close(ends[0]);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) < LIFE_WRONG, "%s: status %d: %s",
		      settings, status, text);
	return WEXITSTATUS(status);
}

/* ---- the entries ----------------------------------------------------------------------------- */

static bool kernels_are_there(void)
{
	return getenv("KERNELS") && gpu_fatbin_len > 0;
}

/* The setting with them, where this build has them; then a device codes. */
static const char *kernels(void)
{
	const char *path = getenv("KERNELS");
	static char text[256];

	if (!kernels_are_there())
		return "latency_us=0";
	(void)snprintf(text, sizeof(text), "kernels=%s", path);
	return text;
}

static const int results[] = { GPU_CU_INVALID_VALUE, GPU_CU_OUT_OF_MEMORY, GPU_CU_UNKNOWN };

START_TEST(each_call_fails)
{
	const struct entry e = entry_of((size_t)_i);
	const char *trace = getenv("ENTRIES_TRACE");
	char settings[512];

	for (size_t k = 0; k < radix_array_size(results); k++) {
		uint32_t nth = 1;

		do {
			(void)snprintf(settings, sizeof(settings),
				       "abort=1,granularity=4096,trace=%s,%s,fail=%s:%u:%d%s",
				       trace, kernels(), e.field, nth, results[k], e.with);
			if (e.with[0] && nth > 20)
				break; /* its companion comes about in every life */
		} while (live_once(settings, e.told) == LIFE_FAULT && nth++ < MAX_CALLS);
	}
}
END_TEST

/* Long enough for the watch over silent queues; then a queue that is one; then all is well. */
START_TEST(slow_lives)
{
	static const char *const faults[] = { "latency_us=150000", "op=copy:2:700",
					      "latency_us=1000,poison=1" };
	char settings[512];

	(void)snprintf(settings, sizeof(settings), "abort=1,granularity=4096,trace=%s,%s,%s",
		       getenv("ENTRIES_TRACE"), kernels(), faults[_i]);
	ck_assert_int_eq(live_once(settings, "cu"), _i == 1 ? LIFE_FAULT : LIFE_WELL);
}
END_TEST

/* ---- places ---------------------------------------------------------------------------------- */

static char *read_file(const char *path)
{
	FILE *f = fopen(path, "re");
	size_t used = 0, size = 1 << 20;
	char *text = malloc(size);

	ck_assert_msg(f && text, "%s: %m", path);
	used = fread(text, 1, size - 1, f);
	ck_assert_uint_lt(used, size - 1);
	text[used] = '\0';
	(void)fclose(f);
	return text;
}

static uint32_t count_in(const char *file, const char *const *marks)
{
	char path[512];
	uint32_t n = 0;
	char *text;

	(void)snprintf(path, sizeof(path), "%s/%s", getenv("GPU_SOURCE"), file);
	text = read_file(path);
	for (; *marks; marks++)
		for (const char *at = text; (at = strstr(at, *marks)); at++)
			n++;
	free(text);
	return n;
}

static uint32_t places_in_source(void)
{
	static const char *const macros[] = { "gpu_cuda_ask(", "gpu_cuda_call(", "gpu_cuda_undo(",
					      NULL };
	static const char *const direct[] = { "d->init(",       "d->device_count(",
					      "d->error_name(", "d->error_string(",
					      "= version(",     NULL };

	return count_in("cuda.c", macros) + count_in("cuda_batch.c", macros) +
	       count_in("cuda_kernels.c", macros) + count_in("cuda_memory.c", macros) +
	       count_in("cuda_queue.c", macros) + count_in("driver.c", direct);
}

/* Those that a build without kernels for this machine does not come to. */
static uint32_t places_of_kernels(void)
{
	static const char *const macros[] = { "gpu_cuda_ask(", "gpu_cuda_call(", "gpu_cuda_undo(",
					      NULL };

	return count_in("cuda_kernels.c", macros) - (gpu_fatbin_len > 0); /* loading is tried */
}

/* Lines of the trace, each counted once; every process wrote its own. */
static uint32_t places_reached(void)
{
	static char seen[1024][256];
	FILE *f = fopen(getenv("ENTRIES_TRACE"), "re");
	char line[sizeof(seen[0])];
	uint32_t n = 0, i;

	ck_assert_ptr_nonnull(f);
	while (fgets(line, sizeof(line), f)) {
		for (i = 0; i < n && strcmp(seen[i], line) != 0; i++)
			;
		ck_assert_uint_lt(i, radix_array_size(seen) - 1);
		if (i == n)
			memcpy(seen[n++], line, sizeof(line));
	}
	(void)fclose(f);
	return n;
}

START_TEST(all_places_are_reached)
{
	uint32_t reached = places_reached(), all = places_in_source();

	(void)printf("# sites reached %u / sites in source %u%s\n", reached, all,
		     kernels_are_there() ? ""
					 : "; no kernels in this build, theirs are not reached");
	(void)fflush(stdout);
	if (kernels_are_there())
		ck_assert_uint_eq(reached, all);
	else
		ck_assert_uint_eq(reached + places_of_kernels(), all);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("entries");
	TCase *t = new_case();

	tcase_set_timeout(t, 300);
	tcase_add_loop_test(t, each_call_fails, 0, radix_array_size(entries));
	tcase_add_loop_test(t, slow_lives, 0, 3);
	tcase_add_test(t, all_places_are_reached);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	char path[] = "/tmp/prefixd-trace-XXXXXX";
	int fd = mkstemp(path);
	int r;

	if (fd < 0 || setenv("ENTRIES_TRACE", path, 1) < 0)
		return EXIT_FAILURE;
	(void)close(fd);
	r = run_suite(suite());
	(void)unlink(path);
	return r;
}
