/*
 * keep_holder.c - prefixd-holder as a keeper: finding him, starting him, talking to him.
 *
 * One frame out, one frame in, with a deadline.  An answer that does not come in time is owed: the
 * connection stays, nothing else is asked on it, and once the answer is there all is put again.  A
 * connection that ends means that he has ended; another one is started and given everything.
 */
#include "daemon/keep_internal.h"

#include "daemon/log.h"
#include "proto/holder_wire.h"

#include <event2/event.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define SPAWN_TEXT_LEN 256
#define NAP_MS         5

/* ---- one frame ----------------------------------------------------------------------------- */

/* Return: true when `events` came before the end; false at the end. */
static bool wait_for(int fd, short events, uint64_t end_ms)
{
	for (;;) {
		struct pollfd p = { .fd = fd, .events = events };
		uint64_t now = prefixd_keep_now_ms();
		int n = poll(&p, 1, now < end_ms ? (int)(end_ms - now) : 0);

		if (n > 0)
			return true;
		if (n == 0 || errno != EINTR)
			return false;
	}
}

static int frame_send(int socket, const struct proto_holder_frame *f, int fd)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	uint8_t bytes[PROTO_HOLDER_LEN];
	struct iovec iov = { .iov_base = bytes, .iov_len = sizeof(bytes) };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };

	proto_holder_encode(f, bytes);
	if (fd >= 0) {
		msg.msg_control = control.bytes;
		msg.msg_controllen = sizeof(control.bytes);
		control.align = (struct cmsghdr){ .cmsg_level = SOL_SOCKET,
						  .cmsg_type = SCM_RIGHTS,
						  .cmsg_len = CMSG_LEN(sizeof(int)) };
		memcpy(CMSG_DATA(&control.align), &fd, sizeof(fd));
	}
	return sendmsg(socket, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? -errno : 0;
}

/*
 * One packet.  Return: 0 with *ret_fd, which may be -1; -EAGAIN: there is none; -EPIPE: the end;
 * -EPROTONOSUPPORT with the head: another version; -EBADMSG; negative errno.
 */
static int frame_receive(int socket, struct proto_holder_frame *ret, int *ret_fd)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))]; /* the kernel drops what has no place */
	} control;
	uint8_t bytes[PROTO_HOLDER_LEN + 1];
	struct iovec iov = { .iov_base = bytes, .iov_len = sizeof(bytes) };
	struct msghdr msg = { .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = control.bytes,
			      .msg_controllen = sizeof(control.bytes) };
	ssize_t n = recvmsg(socket, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	struct cmsghdr *m;
	int fd = -1, r;

	if (n < 0)
		return errno == ECONNRESET ? -EPIPE : errno == EINTR ? -EAGAIN : -errno;
	if (n == 0)
		return -EPIPE;
	m = CMSG_FIRSTHDR(&msg);
	if (m && m->cmsg_level == SOL_SOCKET && m->cmsg_type == SCM_RIGHTS &&
	    m->cmsg_len == CMSG_LEN(sizeof(int)))
		memcpy(&fd, CMSG_DATA(m), sizeof(fd));
	r = proto_holder_decode(bytes, (size_t)n, ret);
	if (r == 0) {
		*ret_fd = fd;
		return 0;
	}
	if (fd >= 0)
		close(fd);
	return r == PROTO_HOLDER_E_VERSION ? -EPROTONOSUPPORT : -EBADMSG;
}

/* What became of the connection when a frame could not be had. */
static void link_failed(struct prefixd_keep *k, int r)
{
	if (r == -ECANCELED)
		prefixd_keep_set_link(k, PREFIXD_KEEP_RELEASED);
	else if (r == -ETIMEDOUT)
		prefixd_keep_set_link(k, PREFIXD_KEEP_LATE);
	else if (k->fd >= 0) {
		(void)shutdown(k->fd, SHUT_RDWR); /* the loop closes it; it sees the end at once */
		prefixd_keep_set_link(k, PREFIXD_KEEP_GONE);
	}
}

/*
 * The answer to the last request.  Return: as frame_receive(); -EAGAIN: it is not there yet;
 * -ECANCELED: the memory was given up by somebody else.
 */
static int answer_take(struct prefixd_keep *k, struct proto_holder_frame *ret, int *ret_fd)
{
	for (;;) {
		int fd = -1, r = frame_receive(k->fd, ret, &fd);

		if (r < 0)
			return r;
		if (ret->seq == k->seq) {
			*ret_fd = fd;
			return 0;
		}
		if (fd >= 0)
			close(fd);
		if (ret->op == PROTO_HOLDER_RELEASE && ret->seq == 0)
			return -ECANCELED;
		if (ret->seq > k->seq)
			return -EBADMSG;
	}
}

/* A request and its answer.  Return: 0 with *ret and, where asked for, *ret_fd; negative errno. */
static int call(struct prefixd_keep *k, struct proto_holder_frame *f, int fd,
		struct proto_holder_frame *ret, int *ret_fd)
{
	uint64_t end = prefixd_keep_now_ms() + PREFIXD_KEEP_WAIT_MS;
	int got = -1, r;

	f->version = PROTO_HOLDER_VERSION;
	f->seq = ++k->seq;
	/* One is asked at a time, so there is room, unless he reads nothing at all. */
	r = wait_for(k->fd, POLLOUT, end) ? frame_send(k->fd, f, fd) : -ETIMEDOUT;
	if (r == -EAGAIN)
		r = -ETIMEDOUT;
	while (r == 0) {
		if (!wait_for(k->fd, POLLIN, end))
			return -ETIMEDOUT;
		r = answer_take(k, ret, &got);
		if (r == 0)
			break;
		if (r == -EAGAIN)
			r = 0;
	}
	if (r < 0)
		return r;
	if (ret_fd)
		*ret_fd = got;
	else if (got >= 0)
		close(got);
	return 0;
}

/* ---- putting and dropping ------------------------------------------------------------------ */

static int holder_put(struct prefixd_keep *k, struct prefixd_keep_item *item)
{
	struct proto_holder_frame f = { .op = PROTO_HOLDER_PUT }, reply;
	int r;

	memcpy(f.name, item->name, sizeof(f.name));
	r = call(k, &f, item->fd, &reply, NULL);
	if (r < 0) {
		link_failed(k, r);
		return r;
	}
	item->sent = reply.status == PROTO_HOLDER_STATUS_OK;
	return item->sent                                          ? 0
	       : reply.status == PROTO_HOLDER_STATUS_FULL          ? -ENOSPC
	       : reply.status == PROTO_HOLDER_STATUS_NO_DESCRIPTOR ? -ENFILE
								   : -EPROTO;
}

static void drop_name(struct prefixd_keep *k, const char *name)
{
	struct proto_holder_frame f = { .op = PROTO_HOLDER_DROP }, reply;
	int r;

	memcpy(f.name, name, strlen(name)); /* checked: shorter than the field */
	r = call(k, &f, -1, &reply, NULL);
	if (r < 0)
		link_failed(k, r);
}

static void holder_drop(struct prefixd_keep *k, const struct prefixd_keep_item *item)
{
	drop_name(k, item->name);
}

/*
 * What he has and the list has not is dropped, then all of the list is put: what he has of it
 * already is never without a keeper on the way.  Return: 0, negative errno.
 */
static int bring_in_line(struct prefixd_keep *k)
{
	struct proto_holder_frame f = { .op = PROTO_HOLDER_ITEM }, reply;
	int r = 0;

	for (f.index = 0; k->link == PREFIXD_KEEP_WORKS;) {
		r = call(k, &f, -1, &reply, NULL);
		if (r < 0 || reply.status != PROTO_HOLDER_STATUS_OK)
			break;
		if (prefixd_keep_find(k, reply.name) || !proto_holder_name_ok(reply.name))
			f.index++;
		else
			drop_name(k, reply.name); /* those behind it move up */
	}
	if (r < 0)
		link_failed(k, r);
	return prefixd_keep_put_all(k) == k->n_items ? 0 : -EIO;
}

/* ---- finding and starting ------------------------------------------------------------------ */

/* Reads the one line that prefixd-holder says about its start. */
static void spawn_listen(int fd, char text[SPAWN_TEXT_LEN])
{
	uint64_t end = prefixd_keep_now_ms() + PREFIXD_KEEP_WAIT_MS;
	size_t at = 0;
	ssize_t n = 1;

	while (n > 0 && at + 1 < SPAWN_TEXT_LEN && !memchr(text, '\n', at)) {
		if (!wait_for(fd, POLLIN, end))
			break;
		n = read(fd, text + at, SPAWN_TEXT_LEN - 1 - at);
		at += n > 0 ? (size_t)n : 0;
	}
	text[at] = '\0';
	text[strcspn(text, "\n")] = '\0';
}

/* Return: 0; 1: another one has the lock; -ENOENT: there is no such program; negative errno. */
static int spawn(struct prefixd_keep *k, char *why, size_t why_len)
{
	char socket[] = "--socket", timeout[] = "--timeout-ns", ns[24], text[SPAWN_TEXT_LEN] = "";
	char *argv[] = { k->program, socket, k->path, timeout, ns, NULL };
	char *envp[] = { NULL }; /* nothing of ours concerns it */
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attr;
	sigset_t none, all;
	int p[2], r;
	pid_t pid;

	snprintf(ns, sizeof(ns), "%llu", (unsigned long long)k->timeout_ns);
	if (pipe2(p, O_CLOEXEC) < 0)
		return -errno;
	sigemptyset(&none);
	sigfillset(&all);
	/* None of these fails but for want of memory, and then the spawn does. */
	(void)posix_spawn_file_actions_init(&actions);
	(void)posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
	(void)posix_spawn_file_actions_adddup2(&actions, p[1], 1);
	(void)posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
	(void)posix_spawnattr_init(&attr);
	(void)posix_spawnattr_setsigmask(&attr, &none);
	(void)posix_spawnattr_setsigdefault(&attr, &all);
	(void)posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	r = -posix_spawn(&pid, k->program, &actions, &attr, argv, envp);
	posix_spawn_file_actions_destroy(&actions);
	posix_spawnattr_destroy(&attr);
	close(p[1]);
	if (r == 0) {
		spawn_listen(p[0], text);
		if (!text[0])
			(void)kill(pid, SIGKILL); /* ours until it is waited for */
		while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
			;
		r = strcmp(text, "ready") == 0 ? 0 : strcmp(text, "busy") == 0 ? 1 : -EIO;
	}
	close(p[0]);
	if (r < 0)
		snprintf(why, why_len, "cannot start %s: %s", k->program,
			 text[0]     ? text
			 : r == -EIO ? "it says nothing"
				     : strerror(-r));
	return r;
}

/* Return: 0 with *ret_fd; -ENOENT: nobody serves; -EAGAIN: too busy; negative errno. */
static int dial(struct prefixd_keep *k, int *ret_fd, char *why, size_t why_len)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	struct ucred cred;
	socklen_t len = sizeof(cred);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), r = 0;

	memcpy(addr.sun_path, k->path, strlen(k->path));
	if (fd < 0 || connect(fd, (struct sockaddr *)(void *)&addr, sizeof(addr)) < 0 ||
	    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0)
		r = errno == ECONNREFUSED ? -ENOENT : -errno;
	if (r == 0 && cred.uid != geteuid() && cred.uid != 0)
		r = -EPERM; /* it would hand us what it likes */
	if (r == 0) {
		*ret_fd = fd;
		return 0;
	}
	if (fd >= 0)
		close(fd);
	if (r == -EPERM)
		snprintf(why, why_len,
			 "%s is served by user %u; remove it, or give another "
			 "--admin-socket",
			 k->path, cred.uid);
	else
		snprintf(why, why_len, "cannot connect to the holder at %s: %s", k->path,
			 strerror(-r));
	return r;
}

/* Return: 0: he serves us; -EBUSY: another; -EPIPE: he was leaving; negative errno. */
static int greet(struct prefixd_keep *k, char *why, size_t why_len)
{
	struct proto_holder_frame f = { .op = PROTO_HOLDER_HELLO,
					.flags = PROTO_HOLDER_DAEMON,
					.timeout_ns = k->timeout_ns },
				  reply = { 0 };
	int r;

	memcpy(f.text, k->version, sizeof(f.text));
	k->seq = 0;
	r = call(k, &f, -1, &reply, NULL);
	if (r == 0 && reply.status == PROTO_HOLDER_STATUS_OK) {
		k->holder_pid = reply.holder_pid;
		return 0;
	}
	if (r == -EPROTONOSUPPORT || (r == 0 && reply.status == PROTO_HOLDER_STATUS_VERSION)) {
		r = -EPROTONOSUPPORT;
		snprintf(why, why_len,
			 "the prefixd-holder at %s speaks version %u of its protocol, this prefixd "
			 "%u: start the prefixd that it belongs to, or give up what it keeps with "
			 "`prefixctl --admin-socket %.*s holder release`",
			 k->path, reply.version, PROTO_HOLDER_VERSION,
			 (int)(strlen(k->path) - strlen(PROTO_HOLDER_SUFFIX)), k->path);
	} else if (r == 0 && reply.status == PROTO_HOLDER_STATUS_SERVED) {
		r = -EBUSY;
		snprintf(why, why_len,
			 "the prefixd-holder at %s (process %u) serves another "
			 "prefixd, process %u",
			 k->path, reply.holder_pid, reply.daemon_pid);
	} else if (r == 0) {
		r = -EPROTO;
		snprintf(why, why_len, "the prefixd-holder at %s %s", k->path,
			 proto_holder_status_to_string(reply.status));
	} else if (r == -ETIMEDOUT) {
		snprintf(why, why_len,
			 "the prefixd-holder at %s does not answer within %d ms; is it stopped?  "
			 "Let it go on, or end it, which gives up what it keeps",
			 k->path, PREFIXD_KEEP_WAIT_MS);
	} else {
		snprintf(why, why_len, "the prefixd-holder at %s: %s", k->path, strerror(-r));
	}
	return r;
}

/* Connects, and starts one where there is none.  Return: 0; negative errno with a sentence. */
static int reach(struct prefixd_keep *k, uint64_t end_ms, char *why, size_t why_len)
{
	for (;;) {
		int r = dial(k, &k->fd, why, why_len);

		if (r == 0) {
			r = greet(k, why, why_len);
			if (r == 0)
				return 0;
			close(k->fd);
			k->fd = -1;
		} else if (r == -ENOENT) {
			r = spawn(k, why, why_len);
			if (r < 0)
				return r;
			if (r == 0)
				continue;
			r = -EBUSY;
		}
		/*
		 * Who was killed a moment ago may still seem to live, and who leaves has the
		 * lock.
		 */
		if ((r != -EBUSY && r != -EPIPE && r != -EAGAIN) || prefixd_keep_now_ms() >= end_ms)
			return r;
		(void)poll(NULL, 0, NAP_MS);
	}
}

/* Takes over what he keeps. */
static int take_over(struct prefixd_keep *k, char *why, size_t why_len)
{
	struct proto_holder_frame f = { .op = PROTO_HOLDER_ITEM, .flags = PROTO_HOLDER_SEND },
				  reply;

	for (f.index = 0;; f.index++) {
		int fd = -1, r = call(k, &f, -1, &reply, &fd);

		if (r == 0 && reply.status == PROTO_HOLDER_STATUS_NO_ITEM)
			return 0;
		if (r == 0 && (reply.status != PROTO_HOLDER_STATUS_OK || fd < 0 ||
			       prefixd_keep_add_found(k, reply.name, fd, 0) < 0))
			r = fd < 0 ? -EMFILE : -EPROTO;
		if (r < 0) {
			snprintf(why, why_len,
				 "cannot take over item %u of the prefixd-holder at "
				 "%s: %s",
				 f.index, k->path, strerror(-r));
			return r;
		}
	}
}

int prefixd_keep_holder_start(struct prefixd_keep *k, bool handed, char *why, size_t why_len)
{
	int r;

	if (strlen(k->path) >= sizeof(((struct sockaddr_un *)NULL)->sun_path)) {
		snprintf(why, why_len,
			 "%s is too long for the socket of a holder; give a shorter --admin-socket",
			 k->path);
		return -ENAMETOOLONG;
	}
	k->ops = &prefixd_keep_holder;
	r = reach(k, prefixd_keep_now_ms() + PREFIXD_KEEP_START_MS, why, why_len);
	if (r < 0)
		return r;
	prefixd_keep_set_link(k, PREFIXD_KEEP_WORKS);
	r = handed ? bring_in_line(k) : take_over(k, why, why_len);
	if (handed && r < 0)
		snprintf(why, why_len, "the prefixd-holder at %s does not take what it is given",
			 k->path);
	if (r == 0)
		prefixd_keep_watch(k, k->fd);
	return r;
}

/* ---- when something happens to him --------------------------------------------------------- */

static void disconnect(struct prefixd_keep *k)
{
	prefixd_keep_watch(k, -1);
	if (k->fd >= 0)
		close(k->fd);
	k->fd = -1;
}

static void retry_later(struct prefixd_keep *k, const char *why)
{
	k->retry_ms = k->retry_ms ? k->retry_ms * 2 : PREFIXD_KEEP_RETRY_MS;
	if (k->retry_ms > PREFIXD_KEEP_RETRY_MAX)
		k->retry_ms = PREFIXD_KEEP_RETRY_MAX;
	k->not_before_ms = prefixd_keep_now_ms() + k->retry_ms;
	prefixd_warn("memory ends with this daemon for now: %s; trying again in %u ms", why,
		     k->retry_ms);
	prefixd_keep_retry_in(k, k->retry_ms);
}

/* Another one, who is given everything. */
static void start_again(struct prefixd_keep *k)
{
	char why[512] = "";

	disconnect(k);
	if (reach(k, prefixd_keep_now_ms() + PREFIXD_KEEP_WAIT_MS, why, sizeof(why)) < 0) {
		retry_later(k, why);
		return;
	}
	prefixd_keep_set_link(k, PREFIXD_KEEP_WORKS);
	prefixd_keep_watch(k, k->fd);
	if (bring_in_line(k) < 0) {
		retry_later(k, "the new prefixd-holder does not take everything");
		return;
	}
	k->retry_ms = 0;
	prefixd_info("the prefixd-holder with process number %u keeps all %u items again",
		     k->holder_pid, k->n_items);
}

/* Frames that came unasked or late, and the end of the connection. */
static void look(struct prefixd_keep *k)
{
	struct proto_holder_frame f;
	int fd = -1, r = answer_take(k, &f, &fd);

	if (r == 0 && fd >= 0)
		close(fd);
	if (r == -EAGAIN)
		return;
	if (r < 0) {
		link_failed(k, r);
		return;
	}
	if (k->link != PREFIXD_KEEP_LATE)
		return;
	prefixd_keep_set_link(k, PREFIXD_KEEP_WORKS);
	if (bring_in_line(k) == 0)
		prefixd_info("the prefixd-holder answers again and keeps all %u items", k->n_items);
}

static void holder_turn(struct prefixd_keep *k)
{
	enum prefixd_keep_link before = k->link;
	uint64_t now = prefixd_keep_now_ms();

	if (k->fd >= 0 && k->link != PREFIXD_KEEP_GONE && k->link != PREFIXD_KEEP_RELEASED)
		look(k);
	switch (k->link) {
	case PREFIXD_KEEP_WORKS:
		break;
	case PREFIXD_KEEP_LATE:
		/* Said once: by the turn that a thread's word of it brought about. */
		if (before == PREFIXD_KEEP_LATE)
			prefixd_warn("the prefixd-holder with process number %u does not answer; "
				     "until it does, memory ends with this daemon",
				     k->holder_pid);
		break;
	case PREFIXD_KEEP_GONE:
		if (now < k->not_before_ms) {
			prefixd_keep_retry_in(k, (uint32_t)(k->not_before_ms - now));
			break;
		}
		if (k->fd >= 0)
			prefixd_warn("the prefixd-holder with process number %u has ended; "
				     "starting another one",
				     k->holder_pid);
		start_again(k);
		break;
	case PREFIXD_KEEP_RELEASED:
		if (k->fd >= 0)
			prefixd_warn("an operator had the kept memory released: it ends with this "
				     "daemon");
		disconnect(k);
		break;
	}
}

static void holder_stop(struct prefixd_keep *k, bool release)
{
	struct proto_holder_frame f = { .op = PROTO_HOLDER_RELEASE }, reply;

	if (release && k->link == PREFIXD_KEEP_WORKS && call(k, &f, -1, &reply, NULL) < 0)
		prefixd_warn("the prefixd-holder with process number %u does not say that it gave "
			     "the memory up",
			     k->holder_pid);
	disconnect(k);
}

const struct prefixd_keep_ops prefixd_keep_holder = {
	.keeper = PREFIXD_KEEPER_HOLDER,
	.put = holder_put,
	.drop = holder_drop,
	.turn = holder_turn,
	.stop = holder_stop,
};
