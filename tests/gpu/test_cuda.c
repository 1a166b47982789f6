/*
 * test_cuda.c - what the CUDA back end does beyond the contract of all, over the look-alike driver:
 * which device it takes, slabs, batches, faults, and what waits for what.
 *
 * No GPU has any part in this.  Each test has a process, and with it a driver, of its own.
 */
#include "tests/gpu/cuda_util.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>

#define MIB (UINT64_C(1) << 20)

/* ---- which device ---------------------------------------------------------------------------- */

#define ID(n) "GPU-100ca11c-e000-4000-8000-00000000000" #n

static int try_open(const char *name, char *why, size_t why_len)
{
	struct gpu *g = NULL;
	int r = gpu_open(name, NULL, &g, why, why_len);

	ck_assert_int_eq(r == 0, g != NULL);
	gpu_close(g);
	return r;
}

START_TEST(chosen_by_id)
{
	static const struct {
		const char *name;
		const char *id; /* NULL: none, or not one */
	} cases[] = {
		{ "cuda", ID(0) },
		{ "cuda:" ID(0), ID(0) },
		{ "cuda:" ID(2), ID(2) },
		{ "cuda:gpu-100CA11C-E000-4000-8000-000000000001", ID(1) },
		{ "cuda:100ca11ce00040008000000000000002", ID(2) },
		{ "cuda:GPU-100ca11c", NULL },
		{ "cuda:100ca11ce000400080000000000000022", NULL }, /* a digit too many */
		{ "cuda:" ID(3), NULL },
		{ "cuda:GPU-", NULL },
		{ "cuda:", NULL },
		{ "cuda:first", NULL },
	};
	char why[640];

	set_up_driver("devices=3");
	for (size_t i = 0; i < radix_array_size(cases); i++) {
		int r = try_open(cases[i].name, why, sizeof(why));

		ck_assert_msg(r == (cases[i].id ? 0 : -ENODEV), "%s: %d: %s", cases[i].name, r,
			      why);
		if (cases[i].id)
			ck_assert_msg(strstr(why, cases[i].id), "%s: %s", cases[i].name, why);
		else /* those that are there */
			ck_assert_msg(strstr(why, ID(0) ", " ID(1) ", " ID(2)), "%s: %s",
				      cases[i].name, why);
	}
	assert_nothing_held();
}
END_TEST

START_TEST(first_digits_are_enough)
{
	char why[640];

	set_up_driver("");
	ck_assert_int_eq(try_open("cuda:GPU-1", why, sizeof(why)), 0);
	ck_assert_int_eq(try_open("cuda:100c", why, sizeof(why)), 0);
	ck_assert_int_eq(try_open("cuda:100d", why, sizeof(why)), -ENODEV);
	ck_assert_int_eq(try_open("auto", why, sizeof(why)), 0);
	ck_assert_msg(strstr(why, ID(0)) && strstr(why, "chosen by auto"), "%s", why);
}
END_TEST

START_TEST(no_device_is_told)
{
	struct gpu *g = NULL;
	char why[640];

	set_up_driver("devices=0");
	ck_assert_int_eq(try_open("cuda", why, sizeof(why)), -ENODEV);
	ck_assert_msg(strncmp(why, "no device: ", 11) == 0, "%s", why);
	ck_assert_int_eq(gpu_open("auto", NULL, &g, why, sizeof(why)), 0);
	ck_assert_int_eq(g->ops->kind, GPU_KIND_HOST);
	ck_assert_msg(strncmp(why, "host memory (chosen by auto: no device: ", 40) == 0, "%s", why);
	gpu_close(g);
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

/* Slots lie across slabs as if there were none. */
START_TEST(slabs_side_by_side)
{
	struct gpu *g = open_cuda("");
	struct gpu_pool *pool = new_pool(g, 9, MIB + 4096);
	uint8_t *from = pages(g, MIB), *to = pages(g, MIB);
	struct gpu_pool_info info;
	struct counted_job job;
	uint64_t len;
	uint8_t *p = map_pool(g, pool, &len);

	g->ops->pool_info(pool, &info);
	ck_assert_uint_eq(info.len, 10 * MIB);
	ck_assert_uint_eq(info.n_slabs, 3);
	ck_assert_uint_eq(info.slab_bytes, 4 * MIB);
	ck_assert_int_ne(g->ops->pool_fd(pool, 0, false), g->ops->pool_fd(pool, 1, false));
	ck_assert(all_bytes(p, len, 0));
	for (uint32_t i = 0; i < 9; i++) {
		memset(from, (int)i + 1, MIB);
		ck_assert_int_eq(submit(g, &job, g->ops->slot_addr(pool, i), addr_of(from), MIB),
				 0);
		ck_assert_uint_eq(settle(g), 1);
		ck_assert(all_bytes(p + i * info.slot_stride, MIB, (uint8_t)(i + 1)));
		ck_assert_int_eq(submit(g, &job, addr_of(to), g->ops->slot_addr(pool, i), MIB), 0);
		ck_assert_uint_eq(settle(g), 1);
		ck_assert(all_bytes(to, MIB, (uint8_t)(i + 1)));
	}
	g->ops->pool_free(g, pool);
	gpu_close(g);
	assert_nothing_held();
}
END_TEST

/* The daemon may wait for more descriptors than a message holds, but not for thousands. */
START_TEST(few_slabs)
{
	struct gpu *g = open_cuda("granularity=4096,memory=1073741824");
	struct gpu_pool *pool = new_pool(g, 100, MIB);
	struct gpu_pool_info info;

	g->ops->pool_info(pool, &info);
	ck_assert_uint_eq(info.n_slabs, 4);
	ck_assert_uint_eq(info.slab_bytes, 25 * MIB);
	g->ops->pool_free(g, pool);
	gpu_close(g);
}
END_TEST

START_TEST(slabs_are_adopted)
{
	struct gpu *g = open_cuda("");
	struct gpu_pool *pool = new_pool(g, 9, MIB), *again = NULL;
	int fds[8];
	struct gpu_pool_info info;
	uint64_t len;
	uint8_t *p = map_pool(g, pool, &len);

	g->ops->pool_info(pool, &info);
	for (uint32_t i = 0; i < info.n_slabs; i++)
		fds[i] = fcntl(g->ops->pool_fd(pool, i, false), F_DUPFD_CLOEXEC, 0);
	for (uint64_t i = 0; i < len; i += 4096)
		p[i] = (uint8_t)(i / 4096 * 7 + 1);
	ck_assert_int_eq(munmap(p, len), 0);
	gpu_close(g);
	g = open_back_end("cuda", NULL);
	ck_assert_int_eq(g->ops->pool_adopt(g, fds, info.n_slabs - 1, 9, MIB, &again), -EINVAL);
	ck_assert_int_eq(g->ops->pool_adopt(g, fds, info.n_slabs, 9, MIB, &again), 0);
	for (uint32_t i = 0; i < info.n_slabs; i++)
		ck_assert_int_eq(g->ops->pool_fd(again, i, false), fds[i]);
	p = map_pool(g, again, &len);
	for (uint64_t i = 0; i < len; i += 4096)
		ck_assert_uint_eq(p[i], (uint8_t)(i / 4096 * 7 + 1));
	gpu_close(g);
	assert_nothing_held();
}
END_TEST

/* Which worker wrote there before is nobody's business; and what one writes now stays. */
START_TEST(new_memory_is_zero_when_it_comes)
{
	struct gpu *g = open_cuda("latency_us=50000");
	struct gpu_pool *pool = new_pool(g, 4, 4096);
	uint64_t len;
	uint8_t *p = map_pool(g, pool, &len);

	ck_assert(all_bytes(p, len, 0));
	memset(p, 0x5a, len);
	(void)usleep(150000);
	ck_assert(all_bytes(p, len, 0x5a));
	g->ops->pool_free(g, pool);
	gpu_close(g);
}
END_TEST

START_TEST(memory_ends)
{
	struct gpu *g = open_cuda("memory=16777216");
	struct gpu_pool *pool = new_pool(g, 10, MIB), *more = NULL;
	struct lookalike_census before = census(), after;
	uint32_t fds = count_fds();

	ck_assert_int_eq(g->ops->pool_new(g, 10, MIB, &more), -ENOMEM);
	ck_assert_int_eq(g->ops->pool_new(g, 100, MIB, &more), -ENOMEM);
	ck_assert_ptr_null(more);
	ck_assert_uint_eq(count_fds(), fds);
	after = census();
	ck_assert_uint_eq(after.n_memories, before.n_memories);
	ck_assert_uint_eq(after.n_handles, before.n_handles);
	ck_assert_uint_eq(after.n_reservations, before.n_reservations);
	ck_assert_int_eq(g->ops->health(g), 0);
	g->ops->pool_free(g, pool);
	more = new_pool(g, 10, MIB);
	gpu_close(g);
	assert_nothing_held();
}
END_TEST

START_TEST(what_jobs_may_reach)
{
	struct gpu *g = open_cuda("");
	struct gpu_pool *pool = new_pool(g, 4, 8192);
	uint64_t slot = g->ops->slot_addr(pool, 0);
	uint8_t *pinned = pages(g, 8192);
	uint8_t *other = mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
			      0);
	struct counted_job job;

	ck_assert_int_eq(submit(g, &job, slot, addr_of(other), 64), -EINVAL);
	ck_assert_int_eq(submit(g, &job, addr_of(other), slot, 64), -EINVAL);
	ck_assert_int_eq(submit(g, &job, slot, addr_of(pinned) + 8192 - 63, 64), -EINVAL);
	ck_assert_int_eq(submit(g, &job, slot, addr_of(pinned) - 1, 64), -EINVAL);
	ck_assert_int_eq(g->ops->host_pin(g, NULL, 4096), -EINVAL);
	ck_assert_int_eq(g->ops->host_pin(g, other, 0), -EINVAL);
	ck_assert_int_eq(g->ops->host_pin(g, other + 64, 4096), -EINVAL);
	ck_assert_int_eq(g->ops->host_pin(g, other, 4097), -EINVAL);
	ck_assert_int_eq(g->ops->host_pin(g, other, 16384), 0);
	ck_assert_int_eq(g->ops->host_pin(g, other + 4096, 4096), -EINVAL); /* it is already */
	ck_assert_int_eq(submit(g, &job, slot, addr_of(other), 64), 0);
	ck_assert_uint_eq(settle(g), 1);
	g->ops->host_unpin(g, other);
	ck_assert_int_eq(submit(g, &job, slot, addr_of(other), 64), -EINVAL);
	ck_assert_int_eq(g->ops->host_pin(g, other, 4096), 0);
	ck_assert_int_eq(submit(g, &job, slot, addr_of(other), 64), 0);
	ck_assert_uint_eq(settle(g), 1);
	ck_assert_ptr_null(g->ops->slot_host(pool, 0));
	ck_assert_int_eq(g->ops->health(g), 0);
	gpu_close(g);
	assert_nothing_held();
}
END_TEST

/* More than one registration holds; the copy goes over where two of them meet. */
START_TEST(copies_across_registrations)
{
	const uint64_t len = (UINT64_C(1) << 30) + MIB;
	struct gpu *g = open_cuda("");
	struct gpu_pool *pool = new_pool(g, 2, MIB);
	uint8_t *p = mmap(NULL, len, PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	struct counted_job job;
	uint8_t *at;

	ck_assert_ptr_ne(p, MAP_FAILED);
	ck_assert_int_eq(g->ops->host_pin(g, p, len), 0);
	at = p + len - MIB - 40000;
	for (uint32_t i = 0; i < 100000; i++)
		at[i] = (uint8_t)(i * 7 + i / 999);
	ck_assert_int_eq(submit(g, &job, g->ops->slot_addr(pool, 1), addr_of(at), 100000), 0);
	ck_assert_uint_eq(settle(g), 1);
	ck_assert_int_eq(job.status, 0);
	memset(at, 0, 100000);
	ck_assert_int_eq(submit(g, &job, addr_of(at), g->ops->slot_addr(pool, 1), 100000), 0);
	ck_assert_uint_eq(settle(g), 1);
	ck_assert_int_eq(job.status, 0);
	for (uint32_t i = 0; i < 100000; i++)
		ck_assert_uint_eq(at[i], (uint8_t)(i * 7 + i / 999));
	gpu_close(g);
	assert_nothing_held();
}
END_TEST

/* ---- batches --------------------------------------------------------------------------------- */

#define MANY 200u

static struct counted_job many[2000];

/* The same with a driver that has batches, and with one that is older than they are. */
START_TEST(many_jobs)
{
	struct gpu *g = open_cuda(_i ? "version=12040,latency_us=200" : "latency_us=200,reorder=5");
	struct gpu_pool *pool = new_pool(g, MANY, 256);
	uint8_t *from = pages(g, MANY * 256), *to = pages(g, MANY * 256);

	for (uint32_t i = 0; i < MANY * 256; i++)
		from[i] = (uint8_t)(i * 11 + i / 256);
	for (uint32_t i = 0; i < MANY; i++)
		ck_assert_int_eq(submit(g, &many[i], g->ops->slot_addr(pool, i),
					addr_of(from + i * 256), 256),
				 0);
	ck_assert_uint_eq(settle(g), MANY);
	for (uint32_t i = 0; i < MANY; i++)
		ck_assert(many[i].n_done == 1 && many[i].place == i + 1 && many[i].status == 0);
	for (uint32_t i = 0; i < MANY; i++)
		ck_assert_int_eq(
			submit(g, &many[i], addr_of(to + i * 256), g->ops->slot_addr(pool, i), 256),
			0);
	ck_assert_uint_eq(settle(g), MANY);
	ck_assert_mem_eq(from, to, MANY * 256);
	ck_assert_uint_eq(census().n_batches, _i ? 0 : 8); /* of 64 at most, four each way */
	gpu_close(g);
	assert_nothing_held();
}
END_TEST

START_TEST(queue_full)
{
	struct gpu *g = open_cuda("latency_us=500");
	struct gpu_pool *pool = new_pool(g, 4, 64);
	uint8_t *from = pages(g, 64);
	uint32_t n = 0;
	int r = 0;

	while (n < 2000 &&
	       (r = submit(g, &many[n], g->ops->slot_addr(pool, n % 4), addr_of(from), 64)) == 0)
		n++;
	ck_assert_int_eq(r, -EAGAIN);
	ck_assert_uint_eq(n, 1024);
	ck_assert_uint_eq(many[n].n_done, 0);
	ck_assert_uint_eq(settle(g), n);
	ck_assert_uint_eq(many[1024].n_done, 0);
	ck_assert_int_eq(submit(g, &many[0], g->ops->slot_addr(pool, 0), addr_of(from), 64), 0);
	ck_assert_uint_eq(settle(g), 1);
	gpu_close(g);
}
END_TEST

/* Jobs of one way may build on each other, though a batch has no order. */
START_TEST(order_of_one_way)
{
	struct gpu *g = open_cuda("latency_us=300,reorder=77");
	struct gpu_pool *pool = new_pool(g, 32, 512);
	uint8_t *from = pages(g, 32 * 512), *to = pages(g, 512);

	for (uint32_t i = 0; i < 32 * 512; i++)
		from[i] = (uint8_t)(i * 3 + i / 512);
	/* A slot is written often, and copied on before it is written again. */
	for (uint32_t i = 0; i + 1 < 32; i++) {
		ck_assert_int_eq(submit(g, &many[2 * i], g->ops->slot_addr(pool, 0),
					addr_of(from + i * 512), 512),
				 0);
		ck_assert_int_eq(submit(g, &many[2 * i + 1], g->ops->slot_addr(pool, i + 1),
					g->ops->slot_addr(pool, 0), 512),
				 0);
	}
	ck_assert_uint_eq(settle(g), 62);
	for (uint32_t i = 0; i + 1 < 32; i++) {
		ck_assert_int_eq(
			submit(g, &many[0], addr_of(to), g->ops->slot_addr(pool, i + 1), 512), 0);
		ck_assert_uint_eq(settle(g), 1);
		ck_assert_mem_eq(to, from + i * 512, 512);
	}
	gpu_close(g);
}
END_TEST

/* The urgent one overtakes what was taken, but not handed over, before it. */
START_TEST(urgent_ones_first)
{
	struct gpu *g = open_cuda("latency_us=1000");
	struct gpu_pool *pool = new_pool(g, 8, 64);
	uint8_t *from = pages(g, 64);
	struct counted_job urgent = {
		.job = { .dst = g->ops->slot_addr(pool, 7),
			 .src = addr_of(from),
			 .len = 64,
			 .done = count_done,
			 .ctx = &urgent,
			 .urgent = true },
	};

	/* Each waits for the one before it. */
	for (uint32_t i = 0; i < 20; i++)
		ck_assert_int_eq(submit(g, &many[i], g->ops->slot_addr(pool, 0), addr_of(from), 64),
				 0);
	n_in_flight++;
	ck_assert_int_eq(g->ops->submit(g, &urgent.job), 0);
	ck_assert_uint_eq(settle(g), 21);
	ck_assert_uint_lt(urgent.place, 20);
	gpu_close(g);
}
END_TEST

/* ---- threads --------------------------------------------------------------------------------- */

static void *open_elsewhere(void *ctx)
{
	struct gpu **g = ctx;

	*g = open_back_end("cuda", NULL);
	return NULL;
}

static void *close_elsewhere(void *ctx)
{
	gpu_close(ctx);
	return NULL;
}

/* One thread at a time, but not always the same. */
START_TEST(threads_take_turns)
{
	struct gpu *g = NULL;
	struct gpu_pool *pool;
	struct counted_job job;
	pthread_t t;
	uint8_t *from;

	set_up_driver("");
	ck_assert_int_eq(pthread_create(&t, NULL, open_elsewhere, &g), 0);
	ck_assert_int_eq(pthread_join(t, NULL), 0);
	pool = new_pool(g, 4, 4096);
	from = pages(g, 4096);
	ck_assert_int_eq(submit(g, &job, g->ops->slot_addr(pool, 0), addr_of(from), 4096), 0);
	ck_assert_uint_eq(settle(g), 1);
	ck_assert_int_eq(job.status, 0);
	ck_assert_int_eq(pthread_create(&t, NULL, close_elsewhere, g), 0);
	ck_assert_int_eq(pthread_join(t, NULL), 0);
	assert_nothing_held();
}
END_TEST

/* ---- faults ---------------------------------------------------------------------------------- */

#define N_FLYING 6u

/* Jobs both ways, two of them urgent. */
static void fly(struct gpu *g, struct gpu_pool *pool, uint8_t *host, struct counted_job *jobs)
{
	for (uint32_t i = 0; i < N_FLYING; i++) {
		uint64_t slot = g->ops->slot_addr(pool, i), at = addr_of(host + i * 4096);
		bool in = i % 2;

		jobs[i] = (struct counted_job){
			.job = { .dst = in ? slot : at,
				 .src = in ? at : slot,
				 .len = 4096,
				 .done = count_done,
				 .ctx = &jobs[i],
				 .urgent = i < 2 },
		};
		n_in_flight++;
		ck_assert_int_eq(g->ops->submit(g, &jobs[i].job), 0);
	}
}

/* Lost: everything says so, and what was taken can be given back. */
static void assert_lost(struct gpu *g, const char *call)
{
	struct gpu_pool *none = NULL;
	struct counted_job job;
	int fd = 0;

	ck_assert_int_eq(g->ops->health(g), -ENODEV);
	ck_assert_msg(strstr(gpu_trouble(g), call), "\"%s\" does not name %s", gpu_trouble(g),
		      call);
	ck_assert_int_eq(submit(g, &job, 64, 128, 64), -ENODEV);
	ck_assert_int_eq(g->ops->pool_new(g, 4, 64, &none), -ENODEV);
	ck_assert_int_eq(g->ops->pool_adopt(g, &fd, 1, 4, 64, &none), -ENODEV);
	ck_assert_int_eq(g->ops->host_pin(g, &none, 4096), g->ops->host_pin(g, &none, 4096));
	ck_assert_ptr_null(none);
}

/* Nothing is in flight whose end would tell: it is asked. */
START_TEST(fault_while_idle)
{
	struct gpu *g = open_cuda("fail=stream_query:3:999");

	ck_assert_int_eq(g->ops->health(g), 0);
	ck_assert_int_eq(g->ops->health(g), 0);
	assert_lost(g, "cuStreamQuery");
	gpu_close(g);
	ck_assert_uint_eq(census().n_broken, 0);
}
END_TEST

/* A queue that has faulted says nothing. */
START_TEST(silent_faults)
{
	static const char *const faults[] = { "op=copy:3:700", "op=write:2:719", "op=call:1:999",
					      "op=copy:1:214" };
	char settings[64];
	struct counted_job jobs[N_FLYING];
	struct gpu_pool *pool;
	struct gpu *g;
	uint8_t *host;
	uint32_t n_lost = 0;

	(void)snprintf(settings, sizeof(settings), "latency_us=2000,%s", faults[_i]);
	g = open_cuda(settings);
	pool = new_pool(g, N_FLYING, 4096);
	host = pages(g, N_FLYING * 4096);
	fly(g, pool, host, jobs);
	ck_assert_uint_eq(settle(g), N_FLYING);
	for (uint32_t i = 0; i < N_FLYING; i++) {
		ck_assert_uint_eq(jobs[i].n_done, 1);
		ck_assert(jobs[i].status == 0 || jobs[i].status == -ENODEV);
		n_lost += jobs[i].status == -ENODEV;
	}
	/* That the call alone fails is noticed later than the word. */
	if (_i != 2)
		ck_assert_uint_ge(n_lost, 1);
	if (_i == 2 && g->ops->health(g) == 0)
		(void)usleep(300000);
	if (_i != 2)
		assert_lost(g, "cuStreamQuery");
	g->ops->pool_free(g, pool);
	gpu_close(g);
	ck_assert_uint_eq(census().n_broken, 0);
}
END_TEST

/* What is handed over goes on, whatever another call said: its job is the device's until then. */
START_TEST(lost_but_still_writing)
{
	static const char *const faults[] = { "fail=stream_call:2:999", "fail=stream_write:2:999",
					      "fail=stream_call:1:700", "fail=context_set:4:999" };
	char settings[64];
	struct counted_job jobs[N_FLYING];
	struct gpu_pool *pool;
	struct gpu *g;
	uint8_t *host, *seen;
	uint32_t n;

	(void)snprintf(settings, sizeof(settings), "latency_us=150000,%s", faults[_i]);
	g = open_cuda(settings);
	pool = new_pool(g, N_FLYING, 4096);
	host = pages(g, N_FLYING * 4096);
	seen = malloc(N_FLYING * 4096);
	ck_assert_ptr_nonnull(seen);
	memset(host, 0x11, N_FLYING * 4096);
	fly(g, pool, host, jobs);
	n = settle(g);
	memcpy(seen, host, N_FLYING * 4096);
	ck_assert_uint_eq(n, N_FLYING);
	(void)usleep(400000);
	ck_assert_mem_eq(seen, host, N_FLYING * 4096);
	if (_i < 3)
		assert_lost(g, "cu");
	free(seen);
	gpu_close(g);
	assert_nothing_held();
}
END_TEST

/* Nobody's bytes move after the close, and what they moved in is free. */
START_TEST(close_waits)
{
	struct gpu *g = open_cuda("latency_us=150000");
	struct gpu_pool *pool = new_pool(g, N_FLYING, 4096);
	uint8_t *host = pages(g, N_FLYING * 4096), *seen = malloc(N_FLYING * 4096);
	struct counted_job jobs[N_FLYING];

	ck_assert_ptr_nonnull(seen);
	memset(host, 0x11, N_FLYING * 4096);
	fly(g, pool, host, jobs);
	ck_assert_uint_eq(g->ops->reap(g, 0), 0); /* handed over */
	gpu_close(g);
	memcpy(seen, host, N_FLYING * 4096);
	for (uint32_t i = 0; i < N_FLYING; i++)
		ck_assert_uint_eq(jobs[i].n_done, 1);
	(void)usleep(400000);
	ck_assert_mem_eq(seen, host, N_FLYING * 4096);
	free(seen);
	assert_nothing_held();
}
END_TEST

/* A queue that never ends is no reason never to close. */
#define HANGING_WELL 5

START_TEST(hanging)
{
	struct gpu *g = open_cuda("op=copy:1:hang");
	struct gpu_pool *pool = new_pool(g, N_FLYING, 4096);
	uint8_t *host = pages(g, N_FLYING * 4096);
	struct counted_job jobs[N_FLYING];
	uint32_t n = 0;

	fly(g, pool, host, jobs);
	for (int i = 0; i < 20; i++) {
		(void)readable_within(g, 50);
		n += g->ops->reap(g, 16);
	}
	ck_assert_uint_lt(n, N_FLYING);
	ck_assert_int_eq(g->ops->health(g), 0); /* it may be slow: nobody knows */
	gpu_close(g);
	for (uint32_t i = 0; i < N_FLYING; i++)
		ck_assert_uint_eq(jobs[i].n_done, 1);
	_exit(HANGING_WELL); /* all is left as it was: nobody looks for leaks */
}
END_TEST

/* The driver will not do one of the copies: this one fails, the others are made. */
START_TEST(one_bad_job)
{
	static const char *const faults[] = {
		"version=12040,fail=copy:3:1", /* none in a batch */
		"fail=copy_batch:1:1+copy:3:1",
		"fail=copy_batch:1:2+copy:3:2",
		"fail=copy_batch:1:1+copy:3:1,reorder=3",
	};
	struct gpu *g = open_cuda(faults[_i]);
	struct gpu_pool *pool = new_pool(g, 8, 4096);
	uint8_t *from = pages(g, 8 * 4096);
	struct counted_job jobs[8];
	uint64_t len;
	uint8_t *p = map_pool(g, pool, &len);

	memset(from, 0x42, 8 * 4096);
	for (uint32_t i = 0; i < 8; i++)
		ck_assert_int_eq(submit(g, &jobs[i], g->ops->slot_addr(pool, i),
					addr_of(from + i * 4096), 4096),
				 0);
	ck_assert_uint_eq(settle(g), 8);
	for (uint32_t i = 0; i < 8; i++) {
		ck_assert_uint_eq(jobs[i].place, i + 1);
		ck_assert_int_eq(jobs[i].status, i == 2 ? -EIO : 0);
		ck_assert(i == 2 || all_bytes(p + i * 4096, 4096, 0x42));
	}
	ck_assert_int_eq(g->ops->health(g), 0);
	ck_assert_str_ne(gpu_trouble(g), "");
	gpu_close(g);
	assert_nothing_held();
}
END_TEST

static Suite *cuda(void)
{
	Suite *s = suite_create("cuda");
	TCase *t = new_case();

	tcase_add_test(t, chosen_by_id);
	tcase_add_test(t, first_digits_are_enough);
	tcase_add_test(t, no_device_is_told);
	tcase_add_test(t, slabs_side_by_side);
	tcase_add_test(t, few_slabs);
	tcase_add_test(t, slabs_are_adopted);
	tcase_add_test(t, new_memory_is_zero_when_it_comes);
	tcase_add_test(t, memory_ends);
	tcase_add_test(t, what_jobs_may_reach);
	tcase_add_test(t, copies_across_registrations);
	tcase_add_loop_test(t, many_jobs, 0, 2);
	tcase_add_test(t, queue_full);
	tcase_add_test(t, order_of_one_way);
	tcase_add_test(t, urgent_ones_first);
	tcase_add_test(t, threads_take_turns);
	tcase_add_test(t, fault_while_idle);
	tcase_add_loop_test(t, silent_faults, 0, 4);
	tcase_add_loop_test(t, lost_but_still_writing, 0, 4);
	tcase_add_test(t, close_waits);
	tcase_add_exit_test(t, hanging, HANGING_WELL);
	tcase_add_loop_test(t, one_bad_job, 0, 4);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	if (!may_die()) {
		(void)printf("1..0 # SKIP each test needs a process of its own\n");
		return 0;
	}
	return run_suite(cuda());
}
