/*
 * peer.c - see peer.h.
 */
#include "daemon/peer.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

uint64_t prefixd_process_start(uint32_t pid)
{
	char path[32], text[1024];
	unsigned long long start = 0;
	const char *p;
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%u/stat", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (n <= 0)
		return 0;
	text[n] = '\0';
	p = strrchr(text, ')'); /* the name before it may contain anything */
	if (!p)
		return 0;
	/* Field 3 follows the bracket, the start time is field 22. */
	for (int field = 2; field < 22 && p; field++)
		p = strchr(p + 1, ' ');
	if (p)
		start = strtoull(p + 1, NULL, 10);
	return start;
}

void prefixd_process_name(uint32_t pid, char ret_name[PREFIXD_PROCESS_NAME_MAX])
{
	char path[32];
	ssize_t n = -1;
	int fd;

	snprintf(path, sizeof(path), "/proc/%u/comm", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		n = read(fd, ret_name, PREFIXD_PROCESS_NAME_MAX - 1);
		close(fd);
	}
	if (n > 0 && ret_name[n - 1] == '\n')
		n--;
	ret_name[n > 0 ? n : 0] = '\0';
}

/* Clock ticks since boot, now: a process that began later cannot have connected before. */
static uint64_t ticks_now(void)
{
	struct timespec ts;
	long hz = sysconf(_SC_CLK_TCK);

	(void)clock_gettime(CLOCK_BOOTTIME, &ts); /* cannot fail for this clock */
	return (uint64_t)ts.tv_sec * (uint64_t)hz +
	       (uint64_t)ts.tv_nsec / (1000000000u / (uint64_t)hz);
}

int prefixd_process_open(uint32_t pid, uint64_t start_time)
{
	uint64_t now = ticks_now();
	int fd;

	errno = 0;
	if (pid == 0 || start_time == 0 || start_time > now)
		return -1;
	fd = (int)syscall(SYS_pidfd_open, pid, 0u);
	/* The number may have been given to another process between connect and here. */
	if (fd >= 0 && prefixd_process_start(pid) != start_time) {
		close(fd);
		return -1;
	}
	return fd;
}

/* Something has run out here: that says nothing about the peer. */
static bool scarce(int err)
{
	return err == EMFILE || err == ENFILE || err == ENOMEM;
}

int prefixd_peer_get(int fd, struct prefixd_peer *ret_peer, int *ret_pidfd)
{
	struct ucred cred;
	socklen_t len = sizeof(cred);
	struct prefixd_peer peer = { 0 };
	int pidfd = -1;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0)
		return -errno;
	peer.pid = (uint32_t)cred.pid;
	peer.uid = cred.uid;
	peer.gid = cred.gid;
	errno = 0;
	peer.start_time = cred.pid > 0 ? prefixd_process_start(peer.pid) : 0;
	if (peer.start_time == 0 && scarce(errno))
		return -errno;

	len = sizeof(pidfd);
	if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &len) < 0) {
		if (scarce(errno))
			return -errno;
		pidfd = prefixd_process_open(peer.pid, peer.start_time);
		if (pidfd < 0 && scarce(errno))
			return -errno;
	}
	if (pidfd >= 0)
		(void)fcntl(pidfd, F_SETFD, FD_CLOEXEC); /* set by the kernel already; harmless */
	*ret_peer = peer;
	*ret_pidfd = pidfd;
	return 0;
}
