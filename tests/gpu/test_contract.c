/*
 * test_contract.c - what every back end promises in gpu.h, run over the one named by the argument.
 *
 * The tests do not know which back end they run on: settle() and its like let time pass as it
 * passes there.  What memory of a device cannot do, since its driver has no such thing, is left out
 * of the list at the end.
 */
#include "gpu/gpu.h"
#include "tests/gpu/util.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *back_end = "host";

static struct gpu *g;

static void setup(void)
{
	g = open_back_end(back_end, NULL);
	n_completions = 0;
	n_in_flight = 0;
}

static void teardown(void)
{
	gpu_close(g);
	g = NULL;
}

/* ---- pools ----------------------------------------------------------------------------------- */

START_TEST(geometry)
{
	static const uint64_t sizes[] = { 1, 63, 64, 65, 100, 4096, 70000 };
	struct gpu_pool *pool = new_pool(g, 7, sizes[_i]);
	uint64_t first = g->ops->slot_addr(pool, 0);
	struct gpu_pool_info info;

	g->ops->pool_info(pool, &info);
	ck_assert_uint_eq(info.n_slots, 7);
	ck_assert_uint_eq(info.slot_bytes, sizes[_i]);
	ck_assert_uint_eq(info.slot_stride % 64, 0);
	ck_assert_uint_ge(info.slot_stride, sizes[_i]);
	ck_assert_uint_lt(info.slot_stride, sizes[_i] + 64);
	ck_assert_uint_ge(info.len, 7 * info.slot_stride);
	ck_assert_uint_eq(info.len % info.page_bytes, 0);
	ck_assert_uint_eq(first % 64, 0);
	ck_assert(info.sealed);
	for (uint32_t i = 0; i < 7; i++) {
		uint8_t *host = g->ops->slot_host(pool, i);

		ck_assert_uint_eq(g->ops->slot_addr(pool, i), first + i * info.slot_stride);
		if (host)
			ck_assert_ptr_eq(host, (uint8_t *)g->ops->slot_host(pool, 0) +
						       i * info.slot_stride);
	}
	g->ops->pool_free(g, pool);
}
END_TEST

START_TEST(impossible_sizes)
{
	static const struct {
		uint32_t n_slots;
		uint64_t slot_bytes;
	} sizes[] = {
		{ 0, 64 },         { 64, 0 },
		{ 1, UINT64_MAX }, { UINT32_MAX, UINT64_MAX / 2 },
		{ 4, INT64_MAX },  { 5, UINT64_C(3689348814741910336) }, /* times 5: 2^64 + 64 */
	};
	struct gpu_pool *const untouched = (void *)&g;
	struct gpu_pool *pool = untouched;

	ck_assert_int_eq(g->ops->pool_new(g, sizes[_i].n_slots, sizes[_i].slot_bytes, &pool),
			 -EINVAL);
	ck_assert_ptr_eq(pool, untouched);
}
END_TEST

START_TEST(more_memory_than_there_is)
{
	uint32_t fds = count_fds(), maps = count_memfd_maps();
	struct gpu_pool *pool = NULL;

	ck_assert_int_eq(g->ops->pool_new(g, 1u << 20, UINT64_C(1) << 28, &pool), -ENOMEM);
	ck_assert_ptr_null(pool);
	ck_assert_uint_eq(count_fds(), fds);
	ck_assert_uint_eq(count_memfd_maps(), maps);
}
END_TEST

/* A first touch would cost a page fault; mincore() sees pages of the file, touched or not by us. */
START_TEST(memory_is_there_at_once)
{
	struct gpu_pool *pool = new_pool(g, 256, 4096);
	uint8_t resident[256];
	uint64_t len;
	uint8_t *p = map_pool(g, pool, &len);

	ck_assert_uint_ge(len, sizeof(resident) * 4096);
	ck_assert_int_eq(mincore(p, sizeof(resident) * 4096, resident), 0);
	for (size_t i = 0; i < sizeof(resident); i++)
		ck_assert_uint_eq(resident[i] & 1, 1);
	ck_assert_int_eq(munmap(p, len), 0);
	g->ops->pool_free(g, pool);
}
END_TEST

START_TEST(size_is_sealed)
{
	struct gpu_pool *pool = new_pool(g, 4, 4096);
	int fd = g->ops->pool_fd(pool, 0, false);
	struct stat before, after;

	ck_assert_int_eq(fstat(fd, &before), 0);
	errno = 0;
	ck_assert_int_eq(ftruncate(fd, 0), -1);
	ck_assert_int_eq(errno, EPERM);
	errno = 0;
	ck_assert_int_eq(ftruncate(fd, before.st_size * 2), -1);
	ck_assert_int_eq(errno, EPERM);
	errno = 0;
	ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
	ck_assert_int_eq(errno, EPERM);
	ck_assert_int_eq(fstat(fd, &after), 0);
	ck_assert_int_eq(after.st_size, before.st_size);
	g->ops->pool_free(g, pool);
}
END_TEST

START_TEST(read_only_descriptor)
{
	struct gpu_pool *pool = new_pool(g, 4, 4096);
	int fd = g->ops->pool_fd(pool, 0, true);
	uint64_t len;
	uint8_t *rw = map_pool(g, pool, &len);
	const uint8_t *ro;

	ck_assert_int_ge(fd, 0);
	ck_assert_int_ne(fd, g->ops->pool_fd(pool, 0, false));
	ck_assert_int_eq(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
	errno = 0;
	ck_assert_ptr_eq(mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
	ck_assert_int_eq(errno, EACCES);
	ro = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);
	ck_assert_ptr_ne(ro, MAP_FAILED);
	rw[5000] = 0x5c;
	ck_assert_uint_eq(ro[5000], 0x5c);
	errno = 0;
	ck_assert_int_eq(mprotect((void *)(uintptr_t)ro, len, PROT_READ | PROT_WRITE), -1);
	ck_assert_int_eq(errno, EACCES);
	ck_assert_int_eq(munmap((void *)(uintptr_t)ro, len), 0);
	ck_assert_int_eq(munmap(rw, len), 0);
	g->ops->pool_free(g, pool);
}
END_TEST

/* A descriptor of device memory always grants writing; nobody is told otherwise. */
START_TEST(no_read_only_descriptor)
{
	struct gpu_pool *pool = new_pool(g, 4, 4096);

	ck_assert_int_eq(g->ops->pool_fd(pool, 0, true), -ENOTSUP);
	g->ops->pool_free(g, pool);
}
END_TEST

/* ---- two processes --------------------------------------------------------------------------- */

static void send_fd(int sock, int fd)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	char byte = 'f';
	struct iovec iov = { .iov_base = &byte, .iov_len = 1 };
	struct msghdr msg = { .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = control.buf,
			      .msg_controllen = sizeof(control.buf) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	ck_assert_int_eq(sendmsg(sock, &msg, 0), 1);
}

static int receive_fd(int sock)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	char byte;
	struct iovec iov = { .iov_base = &byte, .iov_len = 1 };
	struct msghdr msg = { .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = control.buf,
			      .msg_controllen = sizeof(control.buf) };
	struct cmsghdr *c;
	int fd = -1;

	if (recvmsg(sock, &msg, MSG_CMSG_CLOEXEC) != 1)
		return -1;
	c = CMSG_FIRSTHDR(&msg);
	if (c && c->cmsg_type == SCM_RIGHTS)
		memcpy(&fd, CMSG_DATA(c), sizeof(fd));
	return fd;
}

#define SHARED_SLOTS 8
#define SHARED_BYTES 5000

static uint8_t pattern(uint32_t slot, uint64_t i, uint8_t who)
{
	return (uint8_t)(slot * 31 + i * 7 + who);
}

/*
 * The worker: maps what it was sent, checks the even slots, fills the odd ones.  Its answer is the
 * number of wrong bytes, so that the parent can fail; an assertion here would only end the child.
 */
static _Noreturn void worker(int sock, uint64_t stride, uint64_t len)
{
	int fd = receive_fd(sock);
	uint32_t wrong = 0;
	uint8_t *p;

	p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (fd < 0 || p == MAP_FAILED)
		_exit(2);
	for (uint32_t slot = 0; slot < SHARED_SLOTS; slot++)
		for (uint64_t i = 0; i < SHARED_BYTES; i++)
			if (slot % 2 == 0)
				wrong += p[slot * stride + i] != pattern(slot, i, 1);
			else
				p[slot * stride + i] = pattern(slot, i, 2);
	_exit(write(sock, &wrong, sizeof(wrong)) == sizeof(wrong) ? 0 : 3);
}

START_TEST(two_processes_share_blocks)
{
	struct gpu_pool *pool = new_pool(g, SHARED_SLOTS, SHARED_BYTES);
	struct gpu_pool_info info;
	uint32_t wrong = UINT32_MAX;
	uint64_t len;
	uint8_t *p = map_pool(g, pool, &len);
	int socks[2], status;
	pid_t pid;

	g->ops->pool_info(pool, &info);
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, socks), 0);
	for (uint32_t slot = 0; slot < SHARED_SLOTS; slot += 2)
		for (uint64_t i = 0; i < SHARED_BYTES; i++)
			p[slot * info.slot_stride + i] = pattern(slot, i, 1);
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0)
		worker(socks[1], info.slot_stride, info.len);
	send_fd(socks[0], g->ops->pool_fd(pool, 0, false));
	ck_assert_int_eq(read(socks[0], &wrong, sizeof(wrong)), sizeof(wrong));
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
	ck_assert_uint_eq(wrong, 0);
	for (uint32_t slot = 0; slot < SHARED_SLOTS; slot++)
		for (uint64_t i = 0; i < SHARED_BYTES; i++)
			ck_assert_uint_eq(p[slot * info.slot_stride + i],
					  pattern(slot, i, slot % 2 ? 2 : 1));
	/* Shared, not copied: nothing was ever submitted to the device. */
	ck_assert_uint_eq(settle(g), 0);
	ck_assert_int_eq(munmap(p, len), 0);
	(void)close(socks[0]);
	(void)close(socks[1]);
	g->ops->pool_free(g, pool);
}
END_TEST

/* What a process of another uid, handed both descriptors, may do with the memory. */
static _Noreturn void stranger(int ro_fd, int open_fd, uint64_t len)
{
	char path[32];
	int bad = 0;

	if (setgid(65534) < 0 || setuid(65534) < 0)
		_exit(100);
	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", ro_fd);
	bad |= (open(path, O_RDWR | O_CLOEXEC) >= 0 || errno != EACCES) << 0;
	bad |= (open(path, O_WRONLY | O_CLOEXEC) >= 0 || errno != EACCES) << 1;
	bad |= (mmap(NULL, len, PROT_WRITE, MAP_SHARED, ro_fd, 0) != MAP_FAILED) << 2;
	bad |= (fchmod(ro_fd, 0666) == 0) << 3;
	bad |= (mmap(NULL, len, PROT_READ, MAP_SHARED, ro_fd, 0) == MAP_FAILED) << 4;
	/* A memfd that was not shut off can be opened again: it is the mode that refuses above. */
	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", open_fd);
	bad |= (open(path, O_RDWR | O_CLOEXEC) < 0) << 5;
	_exit(bad);
}

START_TEST(read_only_binds_other_uids)
{
	struct gpu_pool *pool = new_pool(g, 4, 4096);
	int ro_fd = g->ops->pool_fd(pool, 0, true);
	struct gpu_pool_info info;
	struct gpu_shm shm;
	struct stat st;
	int status;
	pid_t pid;

	g->ops->pool_info(pool, &info);
	ck_assert_int_eq(fstat(ro_fd, &st), 0);
	ck_assert_uint_eq(st.st_mode & 07777, 0400);
	ck_assert_int_eq(gpu_shm_new(&shm, "prefixd-test", 4096, false, false), 0);
	/* Only root can become somebody else; the mode above is checked for everyone. */
	if (geteuid() == 0) {
		pid = fork();
		ck_assert_int_ge(pid, 0);
		if (pid == 0)
			stranger(ro_fd, shm.fd, info.len);
		ck_assert_int_eq(waitpid(pid, &status, 0), pid);
		ck_assert_int_eq(status, 0);
	}
	gpu_shm_free(&shm);
	g->ops->pool_free(g, pool);
}
END_TEST

/* ---- jobs ------------------------------------------------------------------------------------ */

START_TEST(bytes_arrive)
{
	struct gpu_pool *pool = new_pool(g, 4, 3000);
	struct counted_job in, across, out;
	uint8_t *from = pages(g, 3000), *to = pages(g, 3000);
	uint32_t n = 0;

	for (size_t i = 0; i < 3000; i++)
		from[i] = (uint8_t)(i * 13 + 1);
	ck_assert_int_eq(submit(g, &in, g->ops->slot_addr(pool, 1), addr_of(from), 3000), 0);
	ck_assert_uint_eq(in.n_done, 0);
	n += settle_way(g);
	ck_assert_int_eq(
		submit(g, &across, g->ops->slot_addr(pool, 3), g->ops->slot_addr(pool, 1), 3000),
		0);
	ck_assert_uint_eq(across.n_done, 0);
	n += settle_way(g);
	ck_assert_int_eq(submit(g, &out, addr_of(to), g->ops->slot_addr(pool, 3), 3000), 0);
	ck_assert_uint_eq(out.n_done, 0);
	n += settle(g);
	ck_assert_uint_eq(n, 3);
	ck_assert_uint_eq(in.n_done, 1);
	ck_assert_uint_eq(across.n_done, 1);
	ck_assert_uint_eq(out.n_done, 1);
	ck_assert_int_eq(in.status | across.status | out.status, 0);
	ck_assert_mem_eq(from, to, 3000);
	g->ops->pool_free(g, pool);
}
END_TEST

START_TEST(pools_of_one_device)
{
	struct gpu_pool *a = new_pool(g, 2, 128), *b = new_pool(g, 3, 256);
	uint8_t *from = pages(g, 128), *to = pages(g, 128);
	struct counted_job jobs[3];
	uint32_t n = 0;

	memset(from, 0x3e, 128);
	ck_assert_int_eq(submit(g, &jobs[0], g->ops->slot_addr(a, 1), addr_of(from), 128), 0);
	n += settle_way(g);
	ck_assert_int_eq(submit(g, &jobs[1], g->ops->slot_addr(b, 2), g->ops->slot_addr(a, 1), 128),
			 0);
	n += settle_way(g);
	ck_assert_int_eq(submit(g, &jobs[2], addr_of(to), g->ops->slot_addr(b, 2), 128), 0);
	n += settle(g);
	ck_assert_uint_eq(n, 3);
	ck_assert_mem_eq(from, to, 128);
	g->ops->pool_free(g, a);
	ck_assert_int_eq(submit(g, &jobs[0], addr_of(to), g->ops->slot_addr(b, 0), 128), 0);
	ck_assert_uint_eq(settle(g), 1);
	g->ops->pool_free(g, b);
}
END_TEST

/* One slab, however many a pool of that size has; copies go from it into a pool. */
START_TEST(single_slab)
{
	const uint64_t mib = UINT64_C(1) << 20;
	struct gpu_pool *pool = new_pool(g, 48, mib), *single = NULL;
	uint8_t *from = pages(g, 4096), *to = pages(g, 4096);
	struct gpu_pool_info info, other;
	struct counted_job jobs[3];
	uint32_t n = 0;

	ck_assert_int_eq(g->ops->pool_single(g, 48, mib, &single), 0);
	g->ops->pool_info(single, &info);
	g->ops->pool_info(pool, &other);
	ck_assert_uint_eq(info.n_slabs, 1);
	ck_assert_uint_eq(info.slab_bytes, info.len);
	ck_assert_uint_eq(info.n_slots, 48);
	ck_assert_uint_eq(info.slot_stride, other.slot_stride);
	ck_assert_int_ge(g->ops->pool_fd(single, 0, false), 0);
	memset(from, 0x77, 4096);
	ck_assert_int_eq(submit(g, &jobs[0], g->ops->slot_addr(single, 47), addr_of(from), 4096),
			 0);
	n += settle_way(g);
	ck_assert_int_eq(submit(g, &jobs[1], g->ops->slot_addr(pool, 3),
				g->ops->slot_addr(single, 47), 4096),
			 0);
	n += settle_way(g);
	ck_assert_int_eq(submit(g, &jobs[2], addr_of(to), g->ops->slot_addr(pool, 3), 4096), 0);
	n += settle(g);
	ck_assert_uint_eq(n, 3);
	ck_assert_mem_eq(from, to, 4096);
	g->ops->pool_free(g, single);
	g->ops->pool_free(g, pool);
}
END_TEST

START_TEST(refused_jobs_never_complete)
{
	struct gpu_pool *pool = new_pool(g, 4, 4096);
	uint64_t slot = g->ops->slot_addr(pool, 0);
	uint8_t *host = pages(g, 64), *other = pages(g, 64);
	struct counted_job c;
	struct {
		uint64_t dst, src, len;
	} bad[] = {
		{ slot, addr_of(host), 0 },             /* nothing to do */
		{ addr_of(host), addr_of(other), 64 },  /* no side in a pool */
		{ slot, slot, 64 },                     /* onto itself */
		{ slot, slot + 63, 64 },                /* overlapping by a byte */
		{ slot + 63, slot, 64 },                /* the other way round */
		{ slot, addr_of(host), UINT64_MAX },    /* wraps around */
		{ slot, UINT64_MAX - 10, 64 },          /* wraps around in memory */
		{ UINT64_MAX - 10, addr_of(host), 64 }, /* and as destination */
	};

	ck_assert_int_eq(submit(g, &c, bad[_i].dst, bad[_i].src, bad[_i].len), -EINVAL);
	ck_assert(!readable(g));
	ck_assert_uint_eq(settle(g), 0);
	ck_assert_uint_eq(c.n_done, 0);
	g->ops->pool_free(g, pool);
}
END_TEST

START_TEST(job_without_callback)
{
	struct gpu_pool *pool = new_pool(g, 1, 64);
	uint8_t *host = pages(g, 64);
	struct gpu_job job = { .dst = g->ops->slot_addr(pool, 0), .src = addr_of(host), .len = 64 };

	ck_assert_int_eq(g->ops->submit(g, &job), -EINVAL);
	g->ops->pool_free(g, pool);
}
END_TEST

/* Adjacent ranges do not overlap, and the last byte of a pool can be copied. */
START_TEST(edges_of_ranges)
{
	struct gpu_pool *pool = new_pool(g, 2, 64);
	uint64_t slot = g->ops->slot_addr(pool, 0);
	struct gpu_pool_info info;
	struct counted_job jobs[2];
	uint8_t *byte = pages(g, 1), *back = pages(g, 1);
	uint32_t n = 0;

	*byte = 0x77;
	g->ops->pool_info(pool, &info);
	ck_assert_int_eq(submit(g, &jobs[0], slot + info.len - 1, addr_of(byte), 1), 0);
	n += settle_way(g);
	ck_assert_int_eq(submit(g, &jobs[1], addr_of(back), slot + info.len - 1, 1), 0);
	n += settle(g);
	ck_assert_uint_eq(n, 2);
	ck_assert_uint_eq(*back, 0x77);
	ck_assert_int_eq(submit(g, &jobs[0], slot + 64, slot, 64), 0);
	ck_assert_uint_eq(settle(g), 1);
	ck_assert_int_eq(g->ops->health(g), 0);
	g->ops->pool_free(g, pool);
}
END_TEST

START_TEST(descriptor_tells_of_work)
{
	struct gpu_pool *pool = new_pool(g, 4, 64);
	uint8_t *from = pages(g, 64);
	struct counted_job jobs[5];

	ck_assert(!readable(g));
	ck_assert_uint_eq(g->ops->reap(g, 10), 0);
	for (uint32_t i = 0; i < 5; i++)
		ck_assert_int_eq(
			submit(g, &jobs[i], g->ops->slot_addr(pool, i % 4), addr_of(from), 64), 0);
	gpu_sim_advance(g, 1000);
	ck_assert(readable(g));
	ck_assert_uint_eq(g->ops->reap(g, 0), 0);
	ck_assert_uint_eq(reap_some(g, 2), 2);
	ck_assert_uint_eq(reap_some(g, 2), 2);
	ck_assert_uint_eq(reap_some(g, 2), 1);
	ck_assert(quiet(g));
	for (uint32_t i = 0; i < 5; i++) {
		ck_assert_uint_eq(jobs[i].n_done, 1);
		ck_assert_uint_eq(jobs[i].place, i + 1);
	}
	g->ops->pool_free(g, pool);
}
END_TEST

/* Longer than one reap() may hold its caller; the descriptor has to bring us back. */
START_TEST(long_copy)
{
	const uint64_t len = UINT64_C(3) << 20;
	struct gpu_pool *pool = new_pool(g, 2, len);
	uint8_t *from = pages(g, len), *to = pages(g, len);
	struct counted_job in, out;
	uint32_t n = 0;

	for (uint64_t i = 0; i < len; i++)
		from[i] = (uint8_t)((i * UINT64_C(2654435761)) >> 13);
	ck_assert_int_eq(submit(g, &in, g->ops->slot_addr(pool, 1), addr_of(from), len), 0);
	n += settle_way(g);
	ck_assert_int_eq(submit(g, &out, addr_of(to), g->ops->slot_addr(pool, 1), len), 0);
	n += settle(g);
	ck_assert_uint_eq(n, 2);
	ck_assert_mem_eq(from, to, len);
	g->ops->pool_free(g, pool);
}
END_TEST

struct chain {
	struct counted_job c;
	uint32_t left;
	uint32_t depth;
};

static void chain_done(struct gpu_job *job, int status)
{
	struct chain *chain = job->ctx;

	ck_assert_int_eq(status, 0);
	ck_assert_uint_eq(chain->depth, 0);
	chain->depth++;
	/* The job is the caller's again, inside its own callback too. */
	if (--chain->left > 0)
		ck_assert_int_eq(g->ops->submit(g, job), 0);
	chain->depth--;
}

START_TEST(callback_submits_again)
{
	struct gpu_pool *pool = new_pool(g, 1, 64);
	uint8_t *from = pages(g, 64);
	struct chain chain = { .left = 50 };
	uint32_t n = 0;

	chain.c.job = (struct gpu_job){ .dst = g->ops->slot_addr(pool, 0),
					.src = addr_of(from),
					.len = 64,
					.done = chain_done,
					.ctx = &chain };
	ck_assert_int_eq(g->ops->submit(g, &chain.c.job), 0);
	while (chain.left > 0 && n < 50)
		n += settle(g);
	ck_assert_uint_eq(n, 50);
	ck_assert_uint_eq(chain.left, 0);
	ck_assert(quiet(g));
	g->ops->pool_free(g, pool);
}
END_TEST

START_TEST(close_completes_what_is_in_flight)
{
	struct gpu_pool *pool = new_pool(g, 4, 64);
	uint8_t *from = pages(g, 64);
	struct counted_job jobs[4];

	for (uint32_t i = 0; i < 4; i++)
		ck_assert_int_eq(submit(g, &jobs[i], g->ops->slot_addr(pool, i), addr_of(from), 64),
				 0);
	gpu_sim_advance(g, 1000);
	ck_assert_uint_eq(reap_some(g, 1), 1);
	gpu_close(g);
	for (uint32_t i = 0; i < 4; i++)
		ck_assert_uint_eq(jobs[i].n_done, 1);
	ck_assert_int_eq(jobs[0].status, 0);
	/* A copy that was done already may say so; none may claim success without its bytes. */
	for (uint32_t i = 1; i < 4; i++)
		ck_assert(jobs[i].status == -ENODEV || jobs[i].status == 0);
	g = open_back_end(back_end, NULL);
}
END_TEST

static void stubborn_done(struct gpu_job *job, int status)
{
	struct counted_job *c = job->ctx;

	c->n_done++;
	c->status = g->ops->submit(g, job);
}

/* A caller that always submits again does not keep a device from closing. */
START_TEST(close_takes_no_more_jobs)
{
	struct gpu_pool *pool = new_pool(g, 1, 64);
	uint8_t *from = pages(g, 64);
	struct counted_job c = { .job = { .dst = g->ops->slot_addr(pool, 0),
					  .src = addr_of(from),
					  .len = 64,
					  .done = stubborn_done,
					  .ctx = &c } };

	ck_assert_int_eq(g->ops->submit(g, &c.job), 0);
	gpu_close(g);
	ck_assert_uint_eq(c.n_done, 1);
	ck_assert_int_eq(c.status, -ENODEV);
	g = open_back_end(back_end, NULL);
}
END_TEST

START_TEST(nothing_stays_open)
{
	uint32_t fds = count_fds(), maps = count_memfd_maps();

	for (uint32_t i = 0; i < 20; i++) {
		struct gpu *other = open_back_end(back_end, NULL);
		struct gpu_pool *freed = new_pool(other, 3, 100);

		(void)new_pool(other, 5, 4000); /* left for close */
		other->ops->pool_free(other, freed);
		other->ops->pool_free(other, NULL);
		gpu_close(other);
	}
	gpu_close(NULL);
	ck_assert_uint_eq(count_fds(), fds);
	ck_assert_uint_eq(count_memfd_maps(), maps);
}
END_TEST

START_TEST(descriptors_close_on_exec)
{
	struct gpu_pool *pool = new_pool(g, 1, 64);
	int fds[] = { g->ops->pool_fd(pool, 0, false), g->ops->event_fd(g),
		      g->ops->pool_fd(pool, 0, true) };

	for (size_t i = 0; i < radix_array_size(fds); i++)
		if (fds[i] != -ENOTSUP)
			ck_assert_int_eq(fcntl(fds[i], F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
	g->ops->pool_free(g, pool);
}
END_TEST

/* ---- errors of the programmer ---------------------------------------------------------------- */

START_TEST(freeing_under_a_job_traps)
{
	struct gpu_pool *pool = new_pool(g, 1, 64);
	uint8_t *from = pages(g, 64);
	struct counted_job c;

	ck_assert_int_eq(submit(g, &c, g->ops->slot_addr(pool, 0), addr_of(from), 64), 0);
	g->ops->pool_free(g, pool);
}
END_TEST

START_TEST(slot_beyond_the_pool_traps)
{
	struct gpu_pool *pool = new_pool(g, 3, 64);

	(void)g->ops->slot_addr(pool, 3);
}
END_TEST

/* ---- names ----------------------------------------------------------------------------------- */

START_TEST(names)
{
	static const struct {
		const char *name;
		int r;
	} cases[] = {
		{ "cuda:", -ENODEV }, { "cuda:GPU-none", -ENODEV }, { "cudax", -ENOENT },
		{ "", -ENOENT },      { "HOST", -ENOENT },          { "hosts", -ENOENT },
		{ "si", -ENOENT },
	};
	struct gpu *untouched = g, *opened = untouched;
	char why[120] = "";

	for (size_t i = 0; i < radix_array_size(cases); i++) {
		ck_assert_int_eq(gpu_open(cases[i].name, NULL, &opened, why, sizeof(why)),
				 cases[i].r);
		ck_assert_ptr_eq(opened, untouched);
		ck_assert_str_ne(why, "");
		why[0] = '\0';
	}
	/* The sentence is cut where there is no room, and may be left out. */
	ck_assert_int_eq(gpu_open("cuda:", NULL, &opened, why, 6), -ENODEV);
	ck_assert_uint_eq(strlen(why), 5);
	ck_assert_int_eq(gpu_open("cuda:", NULL, &opened, NULL, 0), -ENODEV);
	ck_assert_ptr_eq(opened, untouched);
	ck_assert_str_eq(g->ops->name, back_end);
	ck_assert_str_eq(gpu_trouble(g), "");
}
END_TEST

/* A GPU where one can be opened, and host memory where not, with the reason. */
START_TEST(automatic)
{
	struct gpu *device = NULL, *chosen = NULL;
	char why[640] = "", reason[640] = "";
	int r = gpu_open("cuda", NULL, &device, reason, sizeof(reason));

	ck_assert_int_eq(gpu_open("auto", NULL, &chosen, why, sizeof(why)), 0);
	ck_assert_int_eq(chosen->ops->kind, r == 0 ? GPU_KIND_CUDA : GPU_KIND_HOST);
	ck_assert_str_ne(reason, "");
	if (r < 0)
		ck_assert_msg(strstr(why, reason), "\"%s\" does not say \"%s\"", why, reason);
	gpu_close(chosen);
	gpu_close(device);
}
END_TEST

static Suite *contract(void)
{
	Suite *s = suite_create("contract");
	TCase *t = new_case();

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_loop_test(t, geometry, 0, 7);
	tcase_add_loop_test(t, impossible_sizes, 0, 6);
	tcase_add_test(t, more_memory_than_there_is);
	tcase_add_test(t, memory_is_there_at_once);
	tcase_add_test(t, single_slab);
	tcase_add_test(t, two_processes_share_blocks);
	if (strcmp(back_end, "cuda") == 0) {
		tcase_add_test(t, no_read_only_descriptor);
	} else {
		tcase_add_test(t, size_is_sealed);
		tcase_add_test(t, read_only_descriptor);
		tcase_add_test(t, read_only_binds_other_uids);
	}
	tcase_add_test(t, bytes_arrive);
	tcase_add_test(t, pools_of_one_device);
	tcase_add_loop_test(t, refused_jobs_never_complete, 0, 8);
	tcase_add_test(t, job_without_callback);
	tcase_add_test(t, edges_of_ranges);
	tcase_add_test(t, descriptor_tells_of_work);
	tcase_add_test(t, long_copy);
	tcase_add_test(t, callback_submits_again);
	tcase_add_test(t, close_completes_what_is_in_flight);
	tcase_add_test(t, close_takes_no_more_jobs);
	tcase_add_test(t, nothing_stays_open);
	tcase_add_test(t, descriptors_close_on_exec);
	tcase_add_test(t, names);
	tcase_add_test(t, automatic);
	if (may_die()) {
		/* __builtin_trap() is SIGILL; sanitizers leave it alone. */
		tcase_add_test_raise_signal(t, freeing_under_a_job_traps, SIGILL);
		tcase_add_test_raise_signal(t, slot_beyond_the_pool_traps, SIGILL);
	}
	suite_add_tcase(s, t);
	return s;
}

int main(int argc, char **argv)
{
	if (argc > 1)
		back_end = argv[1];
	return run_suite(contract());
}
