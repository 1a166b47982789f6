/*
 * keep_kit.c - see keep_kit.h.
 */
#include "tests/e2e/keep_kit.h"
#include "tests/lib/run.h"

#include <dirent.h>
#include <event2/event.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define WAIT_MS 10000

struct keep_kit kit;

void kit_setup(void)
{
	snprintf(kit.dir, sizeof(kit.dir), "/tmp/prefixd-test-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(kit.dir));
	snprintf(kit.admin, sizeof(kit.admin), "%s/admin.sock", kit.dir);
	snprintf(kit.socket, sizeof(kit.socket), "%s%s", kit.admin, PROTO_HOLDER_SUFFIX);
	ck_assert_int_eq(unsetenv("NOTIFY_SOCKET"), 0);
}

/* Whoever still holds something here is told to go; who does not listen leaves by his timeout. */
static void holder_end(void)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	struct proto_holder_frame f = { .version = PROTO_HOLDER_VERSION,
					.op = PROTO_HOLDER_RELEASE,
					.seq = 1,
					.flags = PROTO_HOLDER_FORCE };
	uint8_t bytes[PROTO_HOLDER_LEN];
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	struct pollfd p = { .fd = fd, .events = POLLIN };

	memcpy(addr.sun_path, kit.socket, strlen(kit.socket));
	proto_holder_encode(&f, bytes);
	if (fd >= 0 && connect(fd, (struct sockaddr *)(void *)&addr, sizeof(addr)) == 0 &&
	    send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL) > 0)
		(void)poll(&p, 1, 1000);
	if (fd >= 0)
		close(fd);
}

void kit_teardown(void)
{
	DIR *dir;

	holder_end();
	dir = opendir(kit.dir);
	for (struct dirent *e; dir && (e = readdir(dir));)
		if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
			(void)unlinkat(dirfd(dir), e->d_name, 0);
	if (dir)
		closedir(dir);
	(void)rmdir(kit.dir);
}

int kit_main(const char *name, const TTest *const tests[])
{
	Suite *s = suite_create(name);
	TCase *tc = tcase_create(name);

	tcase_set_timeout(tc, 120);
	tcase_add_checked_fixture(tc, kit_setup, kit_teardown);
	for (; *tests; tests++)
		tcase_add_test(tc, *tests);
	suite_add_tcase(s, tc);
	return test_run(s);
}

/* ---- files and processes ------------------------------------------------------------------- */

static uint8_t byte_of(uint32_t seed, size_t i)
{
	uint32_t x = (seed + 1) * 2654435761u + (uint32_t)i * 40503u;

	return (uint8_t)(x >> 13 ^ x >> 5);
}

int kit_file(uint32_t seed, size_t len)
{
	int fd = memfd_create("kept", MFD_CLOEXEC);
	uint8_t *p;

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(ftruncate(fd, (off_t)len), 0);
	p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	ck_assert_ptr_ne(p, MAP_FAILED);
	for (size_t i = 0; i < len; i++)
		p[i] = byte_of(seed, i);
	munmap(p, len);
	return fd;
}

bool kit_is_file(int fd, uint32_t seed, size_t len)
{
	struct stat st;
	size_t i = 0;
	uint8_t *p;

	if (fstat(fd, &st) < 0 || (size_t)st.st_size != len)
		return false;
	p = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		return false;
	while (i < len && p[i] == byte_of(seed, i))
		i++;
	munmap(p, len);
	return i == len;
}

void kit_expect_file(int fd, uint32_t seed, size_t len)
{
	ck_assert_int_ge(fd, 0);
	ck_assert_msg(kit_is_file(fd, seed, len), "not the file of seed %u", seed);
}

unsigned kit_n_fds(pid_t pid)
{
	char path[64];
	unsigned n = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	dir = opendir(path);
	ck_assert_ptr_nonnull(dir);
	for (struct dirent *e; (e = readdir(dir));)
		n += e->d_name[0] != '.';
	closedir(dir);
	return n;
}

void kit_wait_n_fds(pid_t pid, unsigned n)
{
	unsigned long end = e2e_now_ms() + WAIT_MS;

	while (kit_n_fds(pid) != n) {
		ck_assert_msg(e2e_now_ms() < end, "%u descriptors, not %u", kit_n_fds(pid), n);
		e2e_sleep_ms(1);
	}
}

bool kit_gone(pid_t pid)
{
	char path[64], text[512] = "";
	const char *p;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	f = fopen(path, "re");
	if (!f)
		return true;
	if (fread(text, 1, sizeof(text) - 1, f) == 0)
		text[0] = '\0'; /* gone in between */
	fclose(f);
	p = strrchr(text, ')');
	return !p || p[2] == 'Z' || p[2] == 'X';
}

void kit_wait_gone(pid_t pid, unsigned ms)
{
	unsigned long end = e2e_now_ms() + ms;

	while (!kit_gone(pid)) {
		ck_assert_msg(e2e_now_ms() < end, "process %d is still there", (int)pid);
		e2e_sleep_ms(2);
	}
}

bool kit_loop_until(struct event_base *base, bool (*done)(void *ctx), void *ctx, unsigned ms)
{
	unsigned long end = e2e_now_ms() + ms;

	while (!done(ctx)) {
		if (e2e_now_ms() >= end)
			return false;
		event_base_loop(base, EVLOOP_NONBLOCK);
		e2e_sleep_ms(1);
	}
	return true;
}

/* ---- prefixd-holder ------------------------------------------------------------------------ */

const char *kit_holder_binary(void)
{
	const char *path = getenv("PREFIXD_HOLDER_BIN");

	return path && access(path, X_OK) == 0 ? path : NULL;
}

int kit_holder_start(uint64_t timeout_ns, char *says, size_t len)
{
	char ns[24];
	const char *argv[] = {
		kit_holder_binary(), "--socket", kit.socket, "--timeout-ns", ns, NULL
	};

	ck_assert_ptr_nonnull(argv[0]);
	snprintf(ns, sizeof(ns), "%llu", (unsigned long long)timeout_ns);
	return e2e_run(argv, says, len);
}

int kit_dial(void)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	ck_assert_int_ge(fd, 0);
	memcpy(addr.sun_path, kit.socket, strlen(kit.socket));
	ck_assert_msg(connect(fd, (struct sockaddr *)(void *)&addr, sizeof(addr)) == 0,
		      "connect %s: %s", kit.socket, strerror(errno));
	return fd;
}

static void send_all(int socket, const void *bytes, size_t len, const int *fds, uint32_t n_fds)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int) * 8)];
	} control = { 0 };
	struct iovec iov = { .iov_base = (void *)(uintptr_t)bytes, .iov_len = len };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };

	ck_assert_uint_le(n_fds, 8);
	if (n_fds > 0) {
		msg.msg_control = control.bytes;
		msg.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
		control.align = (struct cmsghdr){ .cmsg_level = SOL_SOCKET,
						  .cmsg_type = SCM_RIGHTS,
						  .cmsg_len = CMSG_LEN(sizeof(int) * n_fds) };
		memcpy(CMSG_DATA(&control.align), fds, sizeof(int) * n_fds);
	}
	(void)sendmsg(socket, &msg, MSG_NOSIGNAL); /* a closed end shows in what comes back */
}

static size_t receive(int socket, uint8_t ret[PROTO_HOLDER_LEN + 1], int *ret_fd)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec iov = { .iov_base = ret, .iov_len = PROTO_HOLDER_LEN + 1 };
	struct msghdr msg = { .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = control.bytes,
			      .msg_controllen = sizeof(control.bytes) };
	struct pollfd p = { .fd = socket, .events = POLLIN };
	struct cmsghdr *m;
	ssize_t n;

	ck_assert_msg(poll(&p, 1, WAIT_MS) == 1, "no answer");
	n = recvmsg(socket, &msg, MSG_CMSG_CLOEXEC);
	if (n <= 0)
		return 0;
	m = CMSG_FIRSTHDR(&msg);
	*ret_fd = -1;
	if (m && m->cmsg_type == SCM_RIGHTS)
		memcpy(ret_fd, CMSG_DATA(m), sizeof(int));
	return (size_t)n;
}

size_t kit_exchange(int socket, const void *bytes, size_t len, const int *fds, uint32_t n_fds,
		    uint8_t ret[PROTO_HOLDER_LEN + 1])
{
	int fd = -1;
	size_t n;

	send_all(socket, bytes, len, fds, n_fds);
	n = receive(socket, ret, &fd);
	if (fd >= 0)
		close(fd);
	return n;
}

bool kit_call(int socket, struct proto_holder_frame *f, int fd, struct proto_holder_frame *ret,
	      int *ret_fd)
{
	static uint64_t seq;
	uint8_t bytes[PROTO_HOLDER_LEN + 1];
	int got = -1;
	size_t n;

	if (f->version == 0)
		f->version = PROTO_HOLDER_VERSION;
	f->seq = ++seq;
	proto_holder_encode(f, bytes);
	send_all(socket, bytes, PROTO_HOLDER_LEN, &fd, fd >= 0 ? 1 : 0);
	n = receive(socket, bytes, &got);
	if (n == 0)
		return false;
	ck_assert_int_eq(proto_holder_decode(bytes, n, ret), 0);
	ck_assert_uint_eq(ret->seq, f->seq);
	ck_assert_uint_eq(ret->op, f->op);
	if (ret_fd)
		*ret_fd = got;
	else if (got >= 0)
		close(got);
	return true;
}

struct proto_holder_frame kit_hello(int socket, uint32_t flags, uint64_t timeout_ns)
{
	struct proto_holder_frame f = { .op = PROTO_HOLDER_HELLO,
					.flags = flags,
					.timeout_ns = timeout_ns,
					.text = "7.7.7" },
				  reply;

	ck_assert(kit_call(socket, &f, -1, &reply, NULL));
	ck_assert_uint_eq(reply.status, PROTO_HOLDER_STATUS_OK);
	return reply;
}

struct proto_holder_frame kit_look(void)
{
	int fd = kit_dial();
	struct proto_holder_frame reply = kit_hello(fd, 0, 0);

	close(fd);
	return reply;
}

void kit_put(int socket, const char *name, int fd)
{
	struct proto_holder_frame f = { .op = PROTO_HOLDER_PUT }, reply;

	snprintf(f.name, sizeof(f.name), "%s", name);
	ck_assert(kit_call(socket, &f, fd, &reply, NULL));
	ck_assert_uint_eq(reply.status, PROTO_HOLDER_STATUS_OK);
}
