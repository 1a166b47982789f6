/*
 * shell_parts.c - the shell's small parts, in this process: who a peer is, the engine's memory, the
 * naming key, sockets and their locks.
 */
#include "daemon/listener.h"
#include "daemon/log.h"
#include "daemon/memory.h"
#include "daemon/options.h"
#include "daemon/peer.h"
#include "daemon/server_internal.h"
#include "tests/lib/run.h"

#include <check.h>
#include <event2/event.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[64];
static char why[PREFIXD_WHY_LEN];

static void setup(void)
{
	snprintf(dir, sizeof(dir), "/tmp/prefixd-parts-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	prefixd_log_set_level(PREFIXD_LOG_ERROR);
}

static void teardown(void)
{
	static const char *const names[] = { "a.sock", "a.sock.lock", "k", "k.new", "w" };
	char path[128];

	for (size_t i = 0; i < radix_array_size(names); i++) {
		snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
		if (unlink(path) < 0)
			(void)rmdir(path); /* most are not there */
	}
	rmdir(dir);
}

static bool readable(int fd, int ms)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, ms) == 1;
}

/* ---- peers ----------------------------------------------------------------------------------- */

START_TEST(peer_is_what_the_kernel_says)
{
	struct prefixd_peer peer;
	int sv[2], pidfd = -1;

	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
	ck_assert_int_eq(prefixd_peer_get(sv[0], &peer, &pidfd), 0);
	ck_assert_uint_eq(peer.pid, (uint32_t)getpid());
	ck_assert_uint_eq(peer.uid, getuid());
	ck_assert_uint_eq(peer.gid, getgid());
	ck_assert_uint_eq(peer.start_time, prefixd_process_start((uint32_t)getpid()));
	ck_assert_uint_ne(peer.start_time, 0);
	ck_assert_int_ge(pidfd, 0);
	ck_assert_int_ne(fcntl(pidfd, F_GETFD) & FD_CLOEXEC, 0);
	ck_assert(!readable(pidfd, 0));
	close(pidfd);
	close(sv[0]);
	close(sv[1]);
	ck_assert_int_lt(prefixd_peer_get(sv[0], &peer, &pidfd), 0);
}
END_TEST

/* Kernels without SO_PEERPIDFD: by number and start time. */
START_TEST(process_by_number)
{
	uint64_t start;
	int hold[2], fd, other;
	pid_t child;

	ck_assert_int_eq(pipe(hold), 0);
	child = fork();
	ck_assert_int_ge(child, 0);
	if (child == 0) {
		char c;

		close(hold[1]);
		(void)!read(hold[0], &c, 1);
		_exit(0);
	}
	close(hold[0]);
	start = prefixd_process_start((uint32_t)child);
	ck_assert_uint_ne(start, 0);
	ck_assert_int_eq(prefixd_process_open((uint32_t)child, start + 1), -1);  /* reused number */
	ck_assert_int_eq(prefixd_process_open((uint32_t)child, UINT64_MAX), -1); /* the future */
	ck_assert_int_eq(prefixd_process_open(0, start), -1); /* another pid namespace */
	fd = prefixd_process_open((uint32_t)child, start);
	ck_assert_int_ge(fd, 0);
	ck_assert(!readable(fd, 0));
	close(hold[1]);
	ck_assert(readable(fd, 5000)); /* it has ended, though nobody has waited for it */
	ck_assert_int_eq(waitpid(child, NULL, 0), child);
	other = prefixd_process_open((uint32_t)child, start);
	ck_assert_int_eq(other, -1);
	ck_assert_uint_eq(prefixd_process_start((uint32_t)child), 0);
	close(fd);
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

/* The VmFlags of the mapping that holds p. */
static void vm_flags(const void *p, char out[512])
{
	FILE *f = fopen("/proc/self/smaps", "re");
	bool here = false;
	char line[512];

	ck_assert_ptr_nonnull(f);
	out[0] = '\0';
	while (fgets(line, sizeof(line), f)) {
		unsigned long from, to;

		if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
			here = (uintptr_t)p >= from && (uintptr_t)p < to;
		if (here && strncmp(line, "VmFlags:", 8) == 0)
			snprintf(out, 512, "%s", line);
	}
	fclose(f);
}

START_TEST(memory_is_aligned_counted_and_not_dumped)
{
	static const size_t sizes[] = {
		0, 1, 63, 64, 65, 4097, (2u << 20) - 1, 2u << 20, 5u << 20
	};
	void *p[radix_array_size(sizes)];
	struct prefixd_memory m;
	size_t total = 0;
	char flags[512];

	prefixd_memory_init(&m, true);
	for (size_t i = 0; i < radix_array_size(sizes); i++) {
		p[i] = radix_take(&m.alloc, sizes[i]);
		ck_assert_ptr_nonnull(p[i]);
		ck_assert_uint_eq((uintptr_t)p[i] % 64, 0);
		memset(p[i], 0xaa, sizes[i]);
		total += sizes[i];
	}
	ck_assert_uint_eq(m.bytes, total);
	ck_assert_uint_eq(m.n_live, radix_array_size(sizes));
	ck_assert_uint_eq((uintptr_t)p[8] % (2u << 20), 0);
	vm_flags(p[8], flags);
	ck_assert_msg(strstr(flags, " dd"), "%s", flags); /* left out of core dumps */
	for (size_t i = 0; i < radix_array_size(sizes); i++)
		radix_give(&m.alloc, p[i], sizes[i]);
	ck_assert_uint_eq(m.bytes, 0);
	ck_assert_uint_eq(m.n_live, 0);
	ck_assert_uint_eq(m.peak, total);
	ck_assert_ptr_null(radix_take(&m.alloc, SIZE_MAX));
	ck_assert_ptr_null(radix_take(&m.alloc, SIZE_MAX / 2 - 1));
	ck_assert_uint_eq(m.n_live, 0);
}
END_TEST

/* ---- naming key ------------------------------------------------------------------------------ */

static struct prefixd_options *options(const char *key_file)
{
	char socket_flag[128], key_flag[160], name[] = "prefixd";
	char *argv[] = { name, socket_flag, key_file ? key_flag : NULL, NULL };
	struct prefixd_options *o = NULL;

	snprintf(socket_flag, sizeof(socket_flag), "--admin-socket=%s/k.sock", dir);
	if (key_file)
		snprintf(key_flag, sizeof(key_flag), "--naming-key-file=%s", key_file);
	ck_assert_msg(prefixd_options_load(&o, key_file ? 3 : 2, argv, NULL, why, sizeof(why)) == 0,
		      "%s", why);
	return o;
}

static void put(const char *path, const char *text, mode_t mode)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	ck_assert_int_eq(fchmod(fd, mode), 0);
	close(fd);
}

START_TEST(naming_key_is_made_once)
{
	struct prefixd_options *o = options(NULL);
	uint8_t a[32] = { 0 }, b[32] = { 0 }, zero[32] = { 0 };
	char path[128];
	struct stat st;

	snprintf(path, sizeof(path), "%s/k.key", dir);
	ck_assert_str_eq(o->naming_key_file, path);
	ck_assert_msg(prefixd_naming_key(o, a, why, sizeof(why)) == 0, "%s", why);
	ck_assert_mem_ne(a, zero, sizeof(a));
	ck_assert_int_eq(stat(path, &st), 0);
	ck_assert_uint_eq(st.st_mode & 0777, 0600);
	ck_assert_msg(prefixd_naming_key(o, b, why, sizeof(why)) == 0, "%s", why);
	ck_assert_mem_eq(a, b, sizeof(a));
	unlink(path);
	prefixd_options_free(o);
}
END_TEST

START_TEST(naming_key_must_be_right_and_private)
{
	static const char hex[] =
		"00112233445566778899aabbccddeeffFFEEDDCCBBAA99887766554433221100";
	char path[128], text[128];
	struct prefixd_options *o;
	uint8_t key[32];

	snprintf(path, sizeof(path), "%s/k", dir);
	o = options(path);
	/* A file that was named and is not there is a mistake, not a wish. */
	ck_assert_int_eq(prefixd_naming_key(o, key, why, sizeof(why)), -ENOENT);
	put(path, hex, 0600);
	ck_assert_int_eq(prefixd_naming_key(o, key, why, sizeof(why)), 0);
	ck_assert_uint_eq(key[1], 0x11);
	ck_assert_uint_eq(key[16], 0xff);
	snprintf(text, sizeof(text), "%s\n", hex);
	put(path, text, 0400);
	ck_assert_int_eq(prefixd_naming_key(o, key, why, sizeof(why)), 0);
	unlink(path);
	put(path, hex, 0640);
	ck_assert_int_eq(prefixd_naming_key(o, key, why, sizeof(why)), -EPERM);
	ck_assert_ptr_nonnull(strstr(why, "chmod 600"));
	unlink(path);
	put(path, "0011", 0600);
	ck_assert_int_eq(prefixd_naming_key(o, key, why, sizeof(why)), -EINVAL);
	ck_assert_ptr_nonnull(strstr(why, "64 hex digits"));
	snprintf(text, sizeof(text), "%.63sg", hex);
	put(path, text, 0600);
	ck_assert_int_eq(prefixd_naming_key(o, key, why, sizeof(why)), -EINVAL);
	snprintf(text, sizeof(text), "%s0", hex);
	put(path, text, 0600);
	ck_assert_int_eq(prefixd_naming_key(o, key, why, sizeof(why)), -EINVAL);
	unlink(path);
	ck_assert_int_eq(symlink("/etc/passwd", path), 0);
	ck_assert_int_lt(prefixd_naming_key(o, key, why, sizeof(why)), 0);
	unlink(path);
	ck_assert_int_eq(mkfifo(path, 0600), 0); /* does not hang */
	ck_assert_int_lt(prefixd_naming_key(o, key, why, sizeof(why)), 0);
	prefixd_options_free(o);
}
END_TEST

/* ---- sockets --------------------------------------------------------------------------------- */

static void accepted(void *ctx, int fd)
{
	int *n = ctx;

	(*n)++;
	close(fd);
}

static int listen_at(struct prefixd_listener *l, struct event_base *base, const char *path, int *n)
{
	why[0] = '\0';
	return prefixd_listener_init(l, base, path, 0600, accepted, n, why, sizeof(why));
}

START_TEST(one_listener_per_path)
{
	struct event_base *base = event_base_new();
	struct prefixd_listener a = { 0 }, b = { 0 };
	char path[128];
	struct stat st;
	int n = 0;

	snprintf(path, sizeof(path), "%s/a.sock", dir);
	ck_assert_msg(listen_at(&a, base, path, &n) == 0, "%s", why);
	ck_assert_int_eq(listen_at(&b, base, path, &n), -EWOULDBLOCK);
	ck_assert_ptr_nonnull(strstr(why, "another prefixd serves"));
	ck_assert_int_eq(stat(path, &st), 0);
	prefixd_listener_deinit(&a);
	ck_assert_int_ne(stat(path, &st), 0);
	ck_assert_msg(listen_at(&b, base, path, &n) == 0, "%s", why); /* the lock is free again */
	prefixd_listener_deinit(&b);
	prefixd_listener_deinit(&b); /* idempotent */
	event_base_free(base);
}
END_TEST

/* Somebody without our lock answers at the path: it is left alone. */
START_TEST(a_living_stranger_is_left_alone)
{
	struct event_base *base = event_base_new();
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), n = 0;
	struct prefixd_listener l = { 0 };
	struct stat st;

	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s/a.sock", dir);
	ck_assert_int_eq(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	ck_assert_int_eq(listen(fd, 1), 0);
	ck_assert_int_eq(listen_at(&l, base, addr.sun_path, &n), -EADDRINUSE);
	ck_assert_ptr_nonnull(strstr(why, "somebody else answers"));
	close(fd);
	ck_assert_int_eq(stat(addr.sun_path, &st), 0);
	ck_assert_msg(listen_at(&l, base, addr.sun_path, &n) == 0, "%s", why); /* now it is stale */
	prefixd_listener_deinit(&l);
	event_base_free(base);
}
END_TEST

START_TEST(writable_directories_are_refused)
{
	struct event_base *base = event_base_new();
	struct prefixd_listener l = { 0 };
	char sub[128], path[160];
	int n = 0;

	snprintf(sub, sizeof(sub), "%s/w", dir);
	ck_assert_int_eq(mkdir(sub, 0700), 0);
	ck_assert_int_eq(chmod(sub, 0777), 0);
	snprintf(path, sizeof(path), "%s/a.sock", sub);
	ck_assert_int_eq(listen_at(&l, base, path, &n), -EPERM);
	ck_assert_ptr_nonnull(strstr(why, "writable by everybody"));
	ck_assert_int_eq(chmod(sub, 01777), 0); /* like /tmp: others cannot rename ours */
	ck_assert_msg(listen_at(&l, base, path, &n) == 0, "%s", why);
	prefixd_listener_deinit(&l);
	snprintf(path, sizeof(path), "%s/a.sock.lock", sub);
	unlink(path);
	snprintf(path, sizeof(path), "%s/none/a.sock", dir);
	ck_assert_int_eq(listen_at(&l, base, path, &n), -ENOENT);
	event_base_free(base);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("parts");
	TCase *tc = tcase_create("parts");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 30);
	tcase_add_test(tc, peer_is_what_the_kernel_says);
	tcase_add_test(tc, process_by_number);
	tcase_add_test(tc, memory_is_aligned_counted_and_not_dumped);
	tcase_add_test(tc, naming_key_is_made_once);
	tcase_add_test(tc, naming_key_must_be_right_and_private);
	tcase_add_test(tc, one_listener_per_path);
	tcase_add_test(tc, a_living_stranger_is_left_alone);
	tcase_add_test(tc, writable_directories_are_refused);
	suite_add_tcase(s, tc);
	return s;
}

int main(void)
{
	return test_run(suite());
}
