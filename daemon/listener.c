/*
 * listener.c - see listener.h.
 */
#include "daemon/listener.h"

#include "daemon/inherit.h"
#include "daemon/log.h"

#include <event2/event.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG           512
#define ACCEPTS_PER_EVENT 16
#define PAUSE_MS          100
#define ENDING_MS         10000 /* a process that was killed may take as long to go */
#define CLOSING_MS        200
#define EXITING           4u /* PF_EXITING among the flags of /proc/PID/stat */

/* ---- accepting ------------------------------------------------------------------------------- */

/* No descriptor left: give up the reserve for a moment, so that peers are told by the close. */
static void listener_refuse(struct prefixd_listener *l)
{
	static const struct timeval pause = { .tv_usec = PAUSE_MS * 1000 };

	prefixd_error("%s: a connection was closed at once: %m", l->path);
	if (l->reserve_fd >= 0)
		close(l->reserve_fd);
	for (int i = 0; i < ACCEPTS_PER_EVENT; i++) {
		int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC);

		if (fd < 0)
			break;
		close(fd);
		if (l->refused)
			(*l->refused)++;
	}
	l->reserve_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (event_add(l->resume_ev, &pause) == 0)
		(void)event_del(l->accept_ev); /* it is in the base; cannot fail */
}

static void listener_on_resume(evutil_socket_t fd, short what, void *ctx)
{
	struct prefixd_listener *l = ctx;

	if (l->fd >= 0 && event_add(l->accept_ev, NULL) < 0)
		prefixd_error("%s: cannot accept connections any more", l->path);
}

static void listener_on_accept(evutil_socket_t fd, short what, void *ctx)
{
	struct prefixd_listener *l = ctx;

	for (int i = 0; i < ACCEPTS_PER_EVENT && l->fd >= 0; i++) {
		int peer = accept4(l->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (peer >= 0) {
			l->accepted(l->ctx, peer);
			continue;
		}
		if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
			listener_refuse(l);
		else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
			prefixd_error("%s: accept failed: %m", l->path);
		break;
	}
}

/* ---- opening --------------------------------------------------------------------------------- */

/*
 * A directory in which others may rename things lets them put another socket, or another directory
 * with one, in ours' place.  So none above the socket may be one; the sticky bit (/tmp) helps.
 */
static int writable_check(const char *dir, char *why, size_t why_len)
{
	char *path = realpath(dir, NULL), *slash;
	struct stat st;
	int r = path ? 0 : -errno;

	if (r < 0)
		snprintf(why, why_len, "directory %s: %s", dir, strerror(-r));
	while (r == 0) {
		const char *at = path[0] ? path : "/";

		if (stat(at, &st) == 0 && (st.st_mode & S_IWOTH) && !(st.st_mode & S_ISVTX)) {
			snprintf(why, why_len,
				 "directory %s is writable by everybody: chmod o-w %s, or put the "
				 "socket elsewhere",
				 at, at);
			r = -EPERM;
		}
		if (!path[0])
			break;
		slash = strrchr(path, '/');
		*slash = '\0';
	}
	free(path);
	return r;
}

static int parent_check(const char *path, char *why, size_t why_len)
{
	const char *slash = strrchr(path, '/');
	char dir[sizeof(((struct sockaddr_un *)NULL)->sun_path)];
	struct stat st;

	if (slash == path)
		snprintf(dir, sizeof(dir), "/");
	else
		snprintf(dir, sizeof(dir), "%.*s", slash ? (int)(slash - path) : 1,
			 slash ? path : ".");
	/* Its home in /run is gone after a boot; any other directory is the operator's to make. */
	if (strcmp(dir, "/run/prefixd") == 0 && mkdir(dir, 0755) < 0 && errno != EEXIST) {
		snprintf(why, why_len, "cannot make directory %s: %s", dir, strerror(errno));
		return -errno;
	}
	if (stat(dir, &st) < 0) {
		int r = -errno;

		snprintf(why, why_len, "directory %s of socket %s: %s", dir, path, strerror(-r));
		return r;
	}
	return writable_check(dir, why, why_len);
}

/* Who wrote himself into the lock file; 0: nobody. */
static long lock_holder(int fd)
{
	char text[32];
	ssize_t n = pread(fd, text, sizeof(text) - 1, 0);

	text[n > 0 ? n : 0] = '\0';
	return strtol(text, NULL, 10);
}

/* Is the process on its way out?  The kernel takes its memory down before it gives locks back. */
static bool is_ending(long pid)
{
	char path[48], text[512];
	const char *at;
	unsigned flags;
	ssize_t n;
	char state;
	int fd;

	if (pid <= 0)
		return false;
	snprintf(path, sizeof(path), "/proc/%ld/stat", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return true; /* not there any more */
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	text[n > 0 ? n : 0] = '\0';
	at = strrchr(text, ')'); /* the name before it may contain anything */
	if (!at || sscanf(at + 1, " %c %*d %*d %*d %*d %*d %u", &state, &flags) != 2)
		return false;
	return state == 'Z' || state == 'X' || flags & EXITING;
}

/* A daemon that was killed a moment ago is waited for.  Return: whether the lock was had. */
static bool lock_wait(int fd)
{
	for (int i = 0; i < ENDING_MS; i++) {
		if (flock(fd, LOCK_EX | LOCK_NB) == 0)
			return true;
		if (errno != EWOULDBLOCK || !is_ending(lock_holder(fd)))
			break;
		(void)poll(NULL, 0, 1);
	}
	return false;
}

static int lock_take(struct prefixd_listener *l, char *why, size_t why_len)
{
	char lock[128];
	int r;

	snprintf(lock, sizeof(lock), "%s.lock", l->path);
	l->lock_fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (l->lock_fd < 0) {
		r = -errno;
		snprintf(why, why_len, "cannot open lock file %s: %s", lock, strerror(-r));
		return r;
	}
	if (!lock_wait(l->lock_fd)) {
		r = -errno;
		if (r == -EWOULDBLOCK)
			snprintf(why, why_len,
				 "another prefixd serves %s (it holds %s); stop it or give another "
				 "socket",
				 l->path, lock);
		else
			snprintf(why, why_len, "cannot lock %s: %s", lock, strerror(-r));
		return r;
	}
	/* For whoever finds it locked; who cannot be told waits for nobody. */
	if (ftruncate(l->lock_fd, 0) < 0 || dprintf(l->lock_fd, "%ld\n", (long)getpid()) < 0)
		prefixd_debug("cannot write to %s: %m", lock);
	return 0;
}

/* Return: 0: somebody answers; negative errno. */
static int connect_try(const struct sockaddr_un *addr)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), r = 0;

	if (fd < 0)
		return -errno;
	if (connect(fd, (const struct sockaddr *)(const void *)addr, sizeof(*addr)) < 0)
		r = -errno;
	close(fd);
	return r;
}

/* Removes a socket that nobody serves any more; anything else in its place is left alone. */
static int stale_remove(const char *path, const struct sockaddr_un *addr, char *why, size_t why_len)
{
	struct stat st;
	int r = 0;

	if (lstat(path, &st) < 0)
		return 0;
	if (!S_ISSOCK(st.st_mode)) {
		snprintf(why, why_len, "%s exists and is not a socket; not removing it", path);
		return -EEXIST;
	}
	/* A process that ends may give back its lock a moment before its socket. */
	for (int i = 0; i < CLOSING_MS; i++) {
		r = connect_try(addr);
		if (r != 0 && r != -EAGAIN)
			break;
		(void)poll(NULL, 0, 1);
	}
	if (r == 0 || r == -EAGAIN) {
		snprintf(why, why_len, "somebody else answers at %s; give another socket", path);
		return -EADDRINUSE;
	}
	if (r != -ECONNREFUSED && r != -ENOENT) {
		snprintf(why, why_len, "cannot tell whether %s is in use: %s", path, strerror(-r));
		return r;
	}
	if (unlink(path) < 0 && errno != ENOENT) {
		r = -errno;
		snprintf(why, why_len, "cannot remove the old socket %s: %s", path, strerror(-r));
		return r;
	}
	return 0;
}

static int socket_bind(struct prefixd_listener *l, mode_t mode, char *why, size_t why_len)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	mode_t old;
	int r;

	if (strlen(l->path) >= sizeof(addr.sun_path)) {
		snprintf(why, why_len, "%s: a socket's path may have %zu bytes", l->path,
			 sizeof(addr.sun_path) - 1);
		return -ENAMETOOLONG;
	}
	memcpy(addr.sun_path, l->path, strlen(l->path));
	r = stale_remove(l->path, &addr, why, why_len);
	if (r < 0)
		return r;
	l->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (l->fd < 0) {
		r = -errno;
		snprintf(why, why_len, "cannot make a socket: %s", strerror(-r));
		return r;
	}
	old = umask((mode_t)(~mode & 0777)); /* nobody may connect before the mode is right */
	r = bind(l->fd, (struct sockaddr *)(void *)&addr, sizeof(addr)) < 0 ? -errno : 0;
	umask(old);
	if (r == 0 && listen(l->fd, BACKLOG) < 0)
		r = -errno;
	if (r < 0) {
		snprintf(why, why_len, "cannot serve %s: %s", l->path, strerror(-r));
		close(l->fd);
		l->fd = -1;
	}
	return r;
}

/* Return: 1: there is one, which listens; 0: there is none; negative errno. */
static int socket_take(struct prefixd_listener *l, mode_t mode, char *why, size_t why_len)
{
	struct prefixd_listening have;
	int r;

	if (!prefixd_inherit_take(l->path, &have))
		return 0;
	l->fd = have.fd;
	l->lock_fd = have.lock_fd;
	l->foreign = have.foreign;
	if (l->lock_fd < 0) {
		r = lock_take(l, why, why_len);
		if (r < 0)
			return r;
	}
	/* As the settings are now. */
	if (!l->foreign && chmod(l->path, mode) < 0)
		prefixd_warn("cannot change the mode of %s: %m", l->path);
	return 1;
}

int prefixd_listener_init(struct prefixd_listener *l, struct event_base *base, const char *path,
			  mode_t mode, void (*accepted)(void *ctx, int fd), void *ctx, char *why,
			  size_t why_len)
{
	int r;

	*l = (struct prefixd_listener){ .path = path,
					.fd = -1,
					.lock_fd = -1,
					.reserve_fd = -1,
					.accepted = accepted,
					.ctx = ctx };
	r = parent_check(path, why, why_len);
	if (r == 0)
		r = socket_take(l, mode, why, why_len);
	if (r == 0) {
		r = lock_take(l, why, why_len);
		if (r == 0)
			r = socket_bind(l, mode, why, why_len);
	}
	if (r < 0) {
		prefixd_listener_deinit(l);
		return r;
	}
	l->reserve_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (!accepted)
		return 0; /* the caller accepts */
	l->accept_ev = event_new(base, l->fd, EV_READ | EV_PERSIST, listener_on_accept, l);
	l->resume_ev = evtimer_new(base, listener_on_resume, l);
	if (!l->accept_ev || !l->resume_ev || event_add(l->accept_ev, NULL) < 0) {
		snprintf(why, why_len, "out of memory");
		prefixd_listener_deinit(l);
		return -ENOMEM;
	}
	return 0;
}

void prefixd_listener_stop(struct prefixd_listener *l)
{
	if (!l->path || l->fd < 0)
		return;
	if (l->accept_ev)
		event_free(l->accept_ev);
	if (l->resume_ev)
		event_free(l->resume_ev);
	l->accept_ev = l->resume_ev = NULL;
	if (!l->foreign)
		unlink(l->path); /* ours: the lock is held */
	close(l->fd);
	l->fd = -1;
}

void prefixd_listener_deinit(struct prefixd_listener *l)
{
	if (!l->path)
		return;
	prefixd_listener_stop(l);
	if (l->reserve_fd >= 0)
		close(l->reserve_fd);
	if (l->lock_fd >= 0)
		close(l->lock_fd);
	*l = (struct prefixd_listener){ 0 };
}
