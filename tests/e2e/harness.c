/*
 * harness.c - see harness.h.
 *
 * Processes are started with fork and exec and ended by the number that fork gave, never by name.
 */
#include "tests/e2e/harness.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define START_MS 20000
#define STOP_MS  20000
#define MAX_ARGS 64

unsigned long e2e_now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (unsigned long)ts.tv_sec * 1000 + (unsigned long)(ts.tv_nsec / 1000000);
}

void e2e_sleep_ms(unsigned ms)
{
	(void)poll(NULL, 0, (int)ms);
}

const char *e2e_daemon_binary(void)
{
	const char *path = getenv("PREFIXD_BIN");

	return path && access(path, X_OK) == 0 ? path : NULL;
}

int e2e_daemon_init(struct e2e_daemon *d)
{
	memset(d, 0, sizeof(*d));
	(void)snprintf(d->dir, sizeof(d->dir), "/tmp/prefixd-test-XXXXXX");
	if (!mkdtemp(d->dir)) {
		d->dir[0] = 0;
		return -errno;
	}
	(void)snprintf(d->socket, sizeof(d->socket), "%s/prefixd.sock", d->dir);
	(void)snprintf(d->admin, sizeof(d->admin), "%s/admin.sock", d->dir);
	(void)snprintf(d->log, sizeof(d->log), "%s/log", d->dir);
	return 0;
}

const char *e2e_device(void)
{
	const char *name = getenv("E2E_DEVICE");

	return name && *name ? name : "host";
}

unsigned e2e_ranks(void)
{
	const char *n = getenv("E2E_RANKS");

	return n && *n ? (unsigned)strtoul(n, NULL, 10) : 1;
}

unsigned long e2e_grace_ms(void)
{
	return strncmp(e2e_device(), "cuda", 4) == 0 ? 1000 : 0;
}

/* In the child: never returns. */
static void exec_daemon(const struct e2e_daemon *d, const char *binary, const char *const args[])
{
	const char *argv[MAX_ARGS] = { binary,   "--socket", d->socket,   "--admin-socket",
				       d->admin, "--device", e2e_device() };
	size_t n = 7;
	int fd = open(d->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	int null = open("/dev/null", O_RDONLY | O_CLOEXEC);

	for (; args && *args && n + 1 < MAX_ARGS; args++)
		argv[n++] = *args;
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);  /* nothing survives its test */
	(void)setenv("PREFIXD_KEEP", "none", 0); /* unless it asks for that */
	if (fd < 0 || null < 0 || dup2(null, 0) < 0 || dup2(fd, 1) < 0 || dup2(fd, 2) < 0)
		_exit(126);
	{
		char *v[MAX_ARGS];

		memcpy(v, argv, sizeof(v)); /* execv takes pointers to what it does not change */
		execv(binary, v);
	}
	_exit(127);
}

int e2e_daemon_spawn(struct e2e_daemon *d, const char *const args[])
{
	const char *binary = e2e_daemon_binary();
	pid_t pid;

	if (!binary)
		return -ENOENT;
	pid = fork();
	if (pid < 0)
		return -errno;
	if (pid == 0)
		exec_daemon(d, binary, args);
	d->pid = pid;
	return 0;
}

static bool accepts(const char *path)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	bool ok;

	if (fd < 0)
		return false;
	(void)snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", path);
	ok = connect(fd, (const struct sockaddr *)&sa, sizeof(sa)) == 0;
	close(fd);
	return ok;
}

/* Why it did not start: some tests want that, all others are read by somebody who does not know. */
static int refused(const struct e2e_daemon *d, int status)
{
	char *log = e2e_daemon_log(d);
	size_t n = strlen(log);

	fprintf(stderr, "the daemon ended with %#x: %s", (unsigned)status,
		n > 800 ? log + n - 800 : log);
	free(log);
	return WIFEXITED(status) && WEXITSTATUS(status) ? WEXITSTATUS(status) : 128;
}

int e2e_daemon_start(struct e2e_daemon *d, const char *const args[])
{
	unsigned long end = e2e_now_ms() + START_MS;
	int r = e2e_daemon_spawn(d, args);

	while (r == 0 && !(accepts(d->socket) && accepts(d->admin))) {
		int status;

		if (waitpid(d->pid, &status, WNOHANG) == d->pid) {
			d->pid = 0;
			return refused(d, status);
		}
		if (e2e_now_ms() > end) {
			(void)e2e_daemon_stop(d, SIGKILL);
			return -ETIMEDOUT;
		}
		e2e_sleep_ms(1);
	}
	return r;
}

int e2e_daemon_stop(struct e2e_daemon *d, int signal)
{
	unsigned long end = e2e_now_ms() + STOP_MS;
	int status = 0;

	if (!d->pid)
		return -1;
	(void)kill(d->pid, signal);
	while (waitpid(d->pid, &status, WNOHANG) != d->pid) {
		if (e2e_now_ms() > end)
			return -1;
		e2e_sleep_ms(1);
	}
	d->pid = 0;
	return status;
}

void e2e_daemon_free(struct e2e_daemon *d)
{
	DIR *dir;

	if (d->pid)
		(void)e2e_daemon_stop(d, SIGKILL);
	dir = d->dir[0] ? opendir(d->dir) : NULL;
	for (struct dirent *e; dir && (e = readdir(dir));) {
		if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
			(void)unlinkat(dirfd(dir), e->d_name, 0);
	}
	if (dir)
		closedir(dir);
	if (d->dir[0])
		(void)rmdir(d->dir);
	memset(d, 0, sizeof(*d));
}

/* All of a descriptor, terminated; never NULL. */
static char *slurp(int fd)
{
	size_t len = 0, cap = 4096;
	char *s = malloc(cap);
	ssize_t n;

	ck_assert_ptr_nonnull(s);
	while (fd >= 0 && (n = read(fd, s + len, cap - len - 1)) > 0) {
		len += (size_t)n;
		if (cap - len < 2) {
			cap *= 2;
			s = realloc(s, cap);
			ck_assert_ptr_nonnull(s);
		}
	}
	s[len] = 0;
	return s;
}

char *e2e_daemon_log(const struct e2e_daemon *d)
{
	int fd = open(d->log, O_RDONLY | O_CLOEXEC);
	char *s = slurp(fd);

	if (fd >= 0)
		close(fd);
	return s;
}

pfx_client *e2e_connect(const struct e2e_daemon *d)
{
	pfx_connect_options o = {
		.struct_size = sizeof(o), .socket = d->socket, .name = "test", .deadline_ms = 5000
	};
	pfx_client *c = NULL;
	int r = pfx_connect(&o, &c);

	ck_assert_msg(r == PFX_OK, "connect: %s: %s", pfx_status_to_string(r), pfx_error(c));
	return c;
}

pfx_namespace *e2e_open(pfx_client *c, const char *model, unsigned block_bytes)
{
	pfx_namespace_options o = {
		.struct_size = sizeof(o),
		.key_mode = PFX_KEYS_TOKENS,
		.flags = PFX_NS_OPAQUE,
		.model = model,
		.revision = "r1",
		.dtype = "float16",
		.layers = 1,
		.kv_heads = 1,
		.head_dim = 64,
		.block_tokens = 16,
		.block_bytes = block_bytes,
		.layout = "opaque",
		.tp_size = 1,
		.engine = "test/1",
		.map = 1,
	};
	pfx_namespace *ns = NULL;
	int r = pfx_open(c, &o, &ns);

	ck_assert_msg(r == PFX_OK, "open: %s: %s", pfx_status_to_string(r), pfx_error(c));
	return ns;
}

char *e2e_admin(const struct e2e_daemon *d, const char *json)
{
	pfx_connect_options o = {
		.struct_size = sizeof(o), .socket = d->admin, .name = "test", .deadline_ms = 5000
	};
	pfx_client *c = NULL;
	char *reply = NULL;
	int r = pfx_connect(&o, &c);

	if (r == PFX_OK)
		r = pfx_admin(c, json, 0, &reply);
	ck_assert_msg(r == PFX_OK, "admin %s: %s: %s", json, pfx_status_to_string(r), pfx_error(c));
	pfx_close(c);
	return reply;
}

int e2e_run(const char *const argv[], char *out, size_t out_len)
{
	int p[2], status;
	char *s;
	pid_t pid;

	if (pipe2(p, O_CLOEXEC) != 0)
		return -1;
	pid = fork();
	if (pid == 0) {
		int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
		char *v[MAX_ARGS] = { 0 };

		for (size_t i = 0; argv[i] && i + 1 < MAX_ARGS; i++)
			memcpy(&v[i], &argv[i], sizeof(v[i]));
		if (null < 0 || dup2(null, 0) < 0 || dup2(p[1], 1) < 0 || dup2(p[1], 2) < 0)
			_exit(126);
		execv(v[0], v);
		_exit(127);
	}
	close(p[1]);
	s = slurp(p[0]);
	close(p[0]);
	if (out_len)
		(void)snprintf(out, out_len, "%s", s); /* cut when longer */
	free(s);
	if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
		return -1;
	return WEXITSTATUS(status);
}
