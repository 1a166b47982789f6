/*
 * bench_restart_daemon.c - the daemon of the restart benchmark: started, killed, its log.
 *
 * All of it lies in a fresh directory: unix sockets, the log, what the daemon puts beside its admin
 * socket.  Processes are ended by the number that fork gave.
 */
#include "tests/bench/bench_restart.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_ARGS 64
#define END_NS   10000000000ull

uint64_t restart_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

void restart_nap_us(unsigned us)
{
	struct timespec ts = { .tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000l };

	(void)nanosleep(&ts, NULL); /* a signal that ends it early does no harm */
}

int restart_daemon_init(struct restart_daemon *d)
{
	memset(d, 0, sizeof(*d));
	(void)snprintf(d->dir, sizeof(d->dir), "/tmp/prefixd-restart-XXXXXX");
	if (!mkdtemp(d->dir))
		return -errno;
	(void)snprintf(d->socket, sizeof(d->socket), "%s/s.sock", d->dir);
	(void)snprintf(d->admin, sizeof(d->admin), "%s/a.sock", d->dir);
	(void)snprintf(d->log, sizeof(d->log), "%s/log", d->dir);
	return 0;
}

/* In the child: never returns. */
static void exec_daemon(const struct restart_daemon *d, const char *const argv[])
{
	int fd = open(d->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
	char *v[MAX_ARGS];

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (fd < 0 || null < 0 || dup2(null, 0) < 0 || dup2(fd, 1) < 0 || dup2(fd, 2) < 0)
		_exit(126);
	memcpy(v, argv, sizeof(v)); /* execv takes pointers to what it does not change */
	execv(v[0], v);
	_exit(127);
}

int restart_daemon_start(struct restart_daemon *d, const struct restart_config *config,
			 uint64_t pool_blocks, char *const more[])
{
	const char *argv[MAX_ARGS] = { config->daemon, "--socket", d->socket, "--admin-socket",
				       d->admin,       "--device", "host",    "--pool-blocks" };
	char n_slots[24];
	struct stat st;
	size_t n = 8;
	pid_t pid;

	(void)snprintf(n_slots, sizeof(n_slots), "%llu", (unsigned long long)pool_blocks);
	argv[n++] = n_slots;
	for (; more && *more && n + 1 < MAX_ARGS; more++)
		argv[n++] = *more;
	d->log_from = stat(d->log, &st) == 0 ? st.st_size : 0;
	pid = fork();
	if (pid < 0)
		return -errno;
	if (pid == 0) {
		(void)setenv("PREFIXD_KEEP", config->keep ? "holder" : "none", 1);
		exec_daemon(d, argv);
	}
	d->pid = pid;
	return 0;
}

bool restart_daemon_runs(struct restart_daemon *d)
{
	int status;

	if (d->pid && waitpid(d->pid, &status, WNOHANG) == d->pid) {
		fprintf(stderr, "restart: the daemon ended by itself, status %#x; see %s\n",
			(unsigned)status, d->log);
		d->pid = 0;
	}
	return d->pid != 0;
}

uint64_t restart_daemon_cpu_ns(const struct restart_daemon *d)
{
	struct timespec ts;
	clockid_t clock;

	if (!d->pid || clock_getcpuclockid(d->pid, &clock) != 0 || clock_gettime(clock, &ts) < 0)
		return 0;
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

int restart_daemon_end(struct restart_daemon *d, int signal)
{
	uint64_t end = restart_now_ns() + END_NS;
	int status = 0;

	if (!d->pid)
		return 0;
	(void)kill(d->pid, signal);
	while (waitpid(d->pid, &status, signal == SIGKILL ? 0 : WNOHANG) == 0) {
		if (restart_now_ns() > end)
			signal = SIGKILL, (void)kill(d->pid, SIGKILL);
		else
			restart_nap_us(1000);
	}
	d->pid = 0;
	return status;
}

char *restart_daemon_said(const struct restart_daemon *d, const char *text)
{
	FILE *f = fopen(d->log, "re");
	char *line = NULL;
	size_t cap = 0;
	bool found = false;

	if (!f || fseeko(f, d->log_from, SEEK_SET) != 0) {
		if (f)
			(void)fclose(f);
		return NULL;
	}
	while (!found && getline(&line, &cap, f) > 0)
		found = strstr(line, text) != NULL;
	(void)fclose(f);
	if (found)
		return line;
	free(line);
	return NULL;
}

void restart_daemon_free(struct restart_daemon *d, bool keep_dir)
{
	const struct dirent *e;
	DIR *dir;

	/* At a terminal's end the daemon gives its memory up, and the holder leaves with it. */
	(void)restart_daemon_end(d, SIGINT);
	if (!d->dir[0] || keep_dir)
		return;
	dir = opendir(d->dir);
	while (dir && (e = readdir(dir))) {
		if (e->d_name[0] != '.' || (e->d_name[1] && e->d_name[1] != '.'))
			(void)unlinkat(dirfd(dir), e->d_name, 0);
	}
	if (dir)
		closedir(dir);
	(void)rmdir(d->dir);
	d->dir[0] = 0;
}
