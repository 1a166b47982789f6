/*
 * service_manager.c - see service_manager.h.
 */
#include "tests/e2e/service_manager.h"

#include "tests/e2e/harness.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static bool same_file(int a, int b)
{
	return syscall(SYS_kcmp, getpid(), getpid(), KCMP_FILE, a, b) == 0;
}

static void forget(struct manager *m, uint32_t i)
{
	close(m->store[i].fd);
	m->store[i] = m->store[--m->n];
}

/* What hangs up by itself. */
static void sweep(struct manager *m)
{
	for (uint32_t i = 0; i < m->n;) {
		struct pollfd p = { .fd = m->store[i].fd };

		if (m->store[i].watched && poll(&p, 1, 0) == 1 && p.revents & (POLLERR | POLLHUP))
			forget(m, i);
		else
			i++;
	}
}

/* Value of a line "KEY=value" in `ret`; false: there is none. */
static bool value_of(const char *text, const char *key, char *ret, size_t len)
{
	size_t n = strlen(key);

	for (const char *line = text; line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (strncmp(line, key, n) == 0 && line[n] == '=') {
			snprintf(ret, len, "%.*s", (int)strcspn(line + n + 1, "\n"), line + n + 1);
			return true;
		}
	}
	return false;
}

static void store(struct manager *m, const char *text, int fd)
{
	char name[256] = "stored", flag[8] = "";

	(void)value_of(text, "FDNAME", name, sizeof(name));
	(void)value_of(text, "FDPOLL", flag, sizeof(flag));
	for (uint32_t i = 0; i < m->n; i++) {
		if (same_file(m->store[i].fd, fd)) {
			close(fd);
			return;
		}
	}
	if (m->n >= m->max || m->n == MANAGER_STORE) {
		close(fd);
		return;
	}
	snprintf(m->store[m->n].name, sizeof(m->store[0].name), "%s", name);
	m->store[m->n].watched = strcmp(flag, "0") != 0;
	m->store[m->n++].fd = fd;
}

static void work(struct manager *m, const char *text, int fd)
{
	char name[256], flag[8];

	sweep(m);
	if (m->heard_len + strlen(text) + 3 < sizeof(m->heard))
		m->heard_len += (size_t)snprintf(m->heard + m->heard_len,
						 sizeof(m->heard) - m->heard_len, "%s\n\n", text);
	if (fd >= 0 && value_of(text, "FDSTORE", flag, sizeof(flag)))
		store(m, text, fd);
	else if (fd >= 0)
		close(fd); /* BARRIER=1, or what nobody wants */
	if (value_of(text, "FDSTOREREMOVE", flag, sizeof(flag)) &&
	    value_of(text, "FDNAME", name, sizeof(name)))
		for (uint32_t i = 0; i < m->n;) {
			if (strcmp(m->store[i].name, name) == 0)
				forget(m, i);
			else
				i++;
		}
}

static void receive(struct manager *m)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	char text[4096];
	struct iovec iov = { .iov_base = text, .iov_len = sizeof(text) - 1 };
	struct msghdr msg = { .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = control.bytes,
			      .msg_controllen = sizeof(control.bytes) };
	ssize_t n = recvmsg(m->fd, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	struct cmsghdr *c;
	int fd = -1;

	if (n < 0)
		return;
	text[n] = '\0';
	c = CMSG_FIRSTHDR(&msg);
	if (c && c->cmsg_type == SCM_RIGHTS)
		memcpy(&fd, CMSG_DATA(c), sizeof(fd));
	work(m, text, fd);
}

static void *manager_thread(void *ctx)
{
	struct manager *m = ctx;

	for (;;) {
		struct pollfd p[2] = { { .fd = m->stop_fd, .events = POLLIN },
				       { .fd = m->fd, .events = POLLIN } };
		bool paused;

		pthread_mutex_lock(&m->lock);
		paused = m->paused;
		if (!paused)
			receive(m);
		sweep(m);
		pthread_mutex_unlock(&m->lock);
		(void)poll(p, paused ? 1 : 2, 5);
		if (p[0].revents)
			return NULL;
	}
}

void manager_start(struct manager *m, const char *path, uint32_t max)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	size_t len = strlen(path);

	memset(m, 0, sizeof(*m));
	ck_assert_int_eq(pthread_mutex_init(&m->lock, NULL), 0);
	m->max = max;
	ck_assert_uint_lt(len, sizeof(m->path));
	memcpy(m->path, path, len);
	memcpy(addr.sun_path, path, len);
	if (path[0] == '@')
		addr.sun_path[0] = '\0';
	m->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	m->stop_fd = eventfd(0, EFD_CLOEXEC);
	ck_assert_int_ge(m->fd, 0);
	ck_assert_int_ge(m->stop_fd, 0);
	ck_assert_int_eq(bind(m->fd, (struct sockaddr *)(void *)&addr,
			      (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len)),
			 0);
	ck_assert_int_eq(setenv("NOTIFY_SOCKET", path, 1), 0);
	ck_assert_int_eq(pthread_create(&m->thread, NULL, manager_thread, m), 0);
}

void manager_stop(struct manager *m)
{
	ck_assert_int_eq(eventfd_write(m->stop_fd, 1), 0);
	ck_assert_int_eq(pthread_join(m->thread, NULL), 0);
	while (m->n > 0)
		forget(m, 0);
	close(m->fd);
	close(m->stop_fd);
	(void)unsetenv("NOTIFY_SOCKET");
}

void manager_pause(struct manager *m, bool paused)
{
	pthread_mutex_lock(&m->lock);
	m->paused = paused;
	pthread_mutex_unlock(&m->lock);
}

void manager_set_max(struct manager *m, uint32_t max)
{
	pthread_mutex_lock(&m->lock);
	m->max = max;
	pthread_mutex_unlock(&m->lock);
}

/* Once all that was sent so far has been worked on. */
static void settle(struct manager *m)
{
	for (int i = 0; i < 1000; i++) {
		struct pollfd p = { .fd = m->fd, .events = POLLIN };

		if (poll(&p, 1, 0) == 0)
			break;
		e2e_sleep_ms(1);
	}
}

uint32_t manager_n(struct manager *m)
{
	uint32_t n;

	settle(m);
	pthread_mutex_lock(&m->lock);
	sweep(m);
	n = m->n;
	pthread_mutex_unlock(&m->lock);
	return n;
}

uint32_t manager_n_named(struct manager *m, const char *name)
{
	uint32_t n = 0;

	settle(m);
	pthread_mutex_lock(&m->lock);
	for (uint32_t i = 0; i < m->n; i++)
		n += strcmp(m->store[i].name, name) == 0;
	pthread_mutex_unlock(&m->lock);
	return n;
}

uint32_t manager_n_heard(struct manager *m, const char *text)
{
	uint32_t n = 0;

	pthread_mutex_lock(&m->lock);
	for (const char *at = m->heard; (at = strstr(at, text)); at++)
		n++;
	pthread_mutex_unlock(&m->lock);
	return n;
}

bool manager_hears(struct manager *m, const char *text, unsigned ms)
{
	unsigned long end = e2e_now_ms() + ms;

	while (manager_n_heard(m, text) == 0) {
		if (e2e_now_ms() > end)
			return false;
		e2e_sleep_ms(2);
	}
	return true;
}

/* In the child: descriptors from 3 on, their names, and the program.  Never returns. */
static void become(struct manager *m, const char *const argv[], const struct manager_passed *more,
		   size_t n_more)
{
	static char names[MANAGER_STORE * 64];
	size_t n = 0, at = 0;
	char text[24], *v[24];

	for (uint32_t i = 0; i < n_more + m->n; i++) {
		int fd = i < n_more ? more[i].fd : m->store[i - n_more].fd;
		const char *name = i < n_more ? more[i].name : m->store[i - n_more].name;

		/* Out of the way of the numbers that they get. */
		if (fcntl(fd, F_DUPFD_CLOEXEC, 2000 + (int)n) != 2000 + (int)n)
			_exit(121);
		at += (size_t)snprintf(names + at, sizeof(names) - at, "%s%s", n ? ":" : "", name);
		n++;
	}
	for (size_t i = 0; i < n; i++)
		if (dup2(2000 + (int)i, 3 + (int)i) < 0)
			_exit(122);
	snprintf(text, sizeof(text), "%d", (int)getpid());
	(void)setenv("LISTEN_PID", text, 1);
	snprintf(text, sizeof(text), "%zu", n);
	(void)setenv("LISTEN_FDS", text, 1);
	(void)setenv("LISTEN_FDNAMES", names, 1);
	for (n = 0; argv[n] && n < 23; n++)
		v[n] = strdup(argv[n]);
	v[n] = NULL;
	execv(argv[0], v);
	_exit(126);
}

pid_t manager_spawn(struct manager *m, const char *const argv[], const struct manager_passed *more,
		    size_t n_more, const char *log)
{
	pid_t pid;

	settle(m);
	pthread_mutex_lock(&m->lock);
	pid = fork();
	if (pid == 0) {
		int fd = log ? open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : 2;

		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (dup2(fd, 2) < 0 || dup2(2, 1) < 0)
			_exit(120);
		become(m, argv, more, n_more);
	}
	pthread_mutex_unlock(&m->lock);
	ck_assert_int_gt(pid, 0);
	return pid;
}

int manager_run(struct manager *m, const char *const argv[], const struct manager_passed *more,
		size_t n_more)
{
	pid_t pid = manager_spawn(m, argv, more, n_more, NULL);
	int status;

	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}
