#include "tests/bench/peer.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

uint64_t bench_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

double bench_median(double *v, unsigned n)
{
	qsort(v, n, sizeof(*v), compare);
	return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

double bench_quantile(double *v, unsigned n, double q)
{
	unsigned i = (unsigned)(q * n);

	qsort(v, n, sizeof(*v), compare);
	return v[i < n ? i : n - 1];
}

/* splitmix64 (Steele, Lea, Flood 2014). */
uint64_t bench_random(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

int bench_n_cpus(void)
{
	return (int)sysconf(_SC_NPROCESSORS_ONLN);
}

void bench_pin(pid_t pid, int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	if (cpu >= 0) {
		CPU_SET(cpu, &set);
	} else {
		for (int i = 0; i < bench_n_cpus(); i++)
			CPU_SET(i, &set);
	}
	if (sched_setaffinity(pid, sizeof(set), &set) < 0)
		fprintf(stderr, "cannot pin to CPU %d, figures mix both cases: %s\n", cpu,
			strerror(errno));
}

/* Path of a program beside this one: build/tests/bench/X -> build/daemon/prefixd. */
static void sibling(char *out, size_t len, const char *relative)
{
	char self[512];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	char *slash;

	self[n > 0 ? n : 0] = 0;
	slash = strrchr(self, '/');
	if (slash)
		*slash = 0;
	snprintf(out, len, "%s/%s", self, relative);
}

static int wait_until_accepting(struct bench_server *s)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };

	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", s->socket);
	for (int i = 0; i < 1000; i++) {
		int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
		int r = connect(fd, (struct sockaddr *)&addr, sizeof(addr));

		close(fd);
		if (r == 0)
			return 0;
		if (waitpid(s->pid, NULL, WNOHANG) == s->pid) {
			s->pid = 0;
			return -ENOENT;
		}
		usleep(10000);
	}
	return -ETIMEDOUT;
}

static int start(struct bench_server *s, const char *const argv[], int cpu)
{
	s->pid = fork();
	if (s->pid < 0)
		return -errno;
	if (s->pid == 0) {
		int null = open("/dev/null", O_RDWR | O_CLOEXEC);

		bench_pin(0, cpu);
		(void)setenv("PREFIXD_KEEP", "none", 0); /* nothing survives its benchmark */
		dup2(null, 0);
		dup2(null, 1);
		if (!getenv("BENCH_VERBOSE"))
			dup2(null, 2);
		execvp(argv[0], (char *const *)(uintptr_t)argv);
		_exit(127);
	}
	return wait_until_accepting(s);
}

static int fresh_folder(struct bench_server *s, const char *socket)
{
	const char *base = getenv("TMPDIR");

	memset(s, 0, sizeof(*s));
	snprintf(s->dir, sizeof(s->dir), "%.40s/prefixd-bench-XXXXXX", base ? base : P_tmpdir);
	if (!mkdtemp(s->dir))
		return -errno;
	snprintf(s->socket, sizeof(s->socket), "%s/%s", s->dir, socket);
	return 0;
}

int bench_prefixd_start(struct bench_server *s, const char *pool_blocks, const char *const more[],
			int cpu)
{
	char program[600], admin[96];
	int r = fresh_folder(s, "s");
	unsigned n = 9;

	if (r < 0)
		return r;
	sibling(program, sizeof(program), "../../daemon/prefixd");
	snprintf(admin, sizeof(admin), "%.64s/a", s->dir);
	const char *argv[32] = { program,    "--socket", s->socket,       "--admin-socket", admin,
				 "--device", "host",     "--pool-blocks", pool_blocks };

	for (; more && *more && n < 31; more++)
		argv[n++] = *more;
	return start(s, argv, cpu);
}

int bench_redis_start(struct bench_server *s, int cpu)
{
	int r = fresh_folder(s, "r");

	if (r < 0)
		return r;
	const char *argv[] = { "redis-server", "--port", "0",    "--unixsocket",
			       s->socket,      "--save", "",     "--appendonly",
			       "no",           "--dir",  s->dir, "--daemonize",
			       "no",           NULL };

	return start(s, argv, cpu);
}

void bench_server_stop(struct bench_server *s)
{
	DIR *dir;
	struct dirent *e;

	if (s->pid > 0) {
		kill(s->pid, SIGTERM);
		for (int i = 0; i < 300 && waitpid(s->pid, NULL, WNOHANG) == 0; i++)
			usleep(10000);
		kill(s->pid, SIGKILL);
		s->pid = 0;
	}
	if (!s->dir[0])
		return;
	dir = opendir(s->dir);
	while (dir && (e = readdir(dir))) {
		if (e->d_name[0] != '.' || (e->d_name[1] && e->d_name[1] != '.'))
			unlinkat(dirfd(dir), e->d_name, 0);
	}
	if (dir)
		closedir(dir);
	rmdir(s->dir);
	s->dir[0] = 0;
}
