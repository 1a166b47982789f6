/*
 * holder_main.c - prefixd-holder, the program.
 *
 * Started by prefixd, or by hand.  One line on standard output says how that went: "ready", "busy"
 * when another holder serves the socket, or a sentence; whoever started it reads that and is free.
 * By then the holder is nobody's child, has a session of its own, no terminal, the root as its
 * directory, and no descriptor but its socket, its lock, and /dev/null three times.
 *
 * A lock file (the socket's path with ".lock") is held as long as it lives, and stays behind:
 * taking it away would let two holders lock two files of that name.
 */
#include "daemon/holder.h"

#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define BACKLOG     16
#define NAME        "prefixd-holder"
#define DESCRIPTORS (PROTO_HOLDER_ITEMS_MAX + 64u)

enum {
	EXIT_WELL = 0,
	EXIT_FAILED = 1,
	EXIT_USAGE_WRONG = 2,
	EXIT_BUSY = 3, /* another holder serves this socket */
};

static const char usage[] =
	"usage: " NAME " --socket PATH [--timeout-ns N] [--foreground]\n\n"
	"Keeps memory of a prefixd that is gone for the next one.  prefixd starts it by itself\n"
	"(--keep holder); `prefixctl holder status` shows it, `prefixctl holder release`\n"
	"ends it.\n\n"
	"  --socket PATH     where to serve: the daemon's admin socket with .holder behind it\n"
	"  --timeout-ns N    leave after N nanoseconds without a daemon (600 s)\n"
	"  --foreground      stay a child of who started it\n"
	"  --version, --help\n";

static int failed(const char *what, const char *path)
{
	printf("%s %s: %s\n", what, path, strerror(errno));
	return EXIT_FAILED;
}

/* ---- the socket ---------------------------------------------------------------------------- */

/* Removes a socket that nobody serves any more, and nothing else.  The lock is held. */
static int stale_remove(const struct sockaddr_un *addr)
{
	const char *path = addr->sun_path;
	struct stat st;
	int fd, r;

	if (lstat(path, &st) < 0)
		return EXIT_WELL;
	if (!S_ISSOCK(st.st_mode)) {
		printf("%s exists and is not a socket; not removing it\n", path);
		return EXIT_FAILED;
	}
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return failed("cannot make a socket for", path);
	r = connect(fd, (const struct sockaddr *)(const void *)addr, sizeof(*addr)) < 0 ? errno : 0;
	close(fd);
	if (r == ECONNREFUSED || r == ENOENT)
		return unlink(path) < 0 && errno != ENOENT ? failed("cannot remove", path)
							   : EXIT_WELL;
	printf("somebody who is no " NAME " answers at %s\n", path);
	return EXIT_FAILED;
}

static int serve(const char *path, int *ret_fd)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	char lock[sizeof(addr.sun_path) + 8];
	int fd, r;

	if (strlen(path) >= sizeof(addr.sun_path)) {
		printf("%s: a socket's path may have %zu bytes\n", path, sizeof(addr.sun_path) - 1);
		return EXIT_FAILED;
	}
	memcpy(addr.sun_path, path, strlen(path));
	snprintf(lock, sizeof(lock), "%s.lock", path);
	fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return failed("cannot open lock file", lock);
	if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
		if (errno != EWOULDBLOCK)
			return failed("cannot lock", lock);
		printf("busy\n");
		return EXIT_BUSY;
	}
	r = stale_remove(&addr);
	if (r)
		return r;
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	umask(0177); /* nobody may connect before the mode is right */
	if (fd < 0 || bind(fd, (struct sockaddr *)(void *)&addr, sizeof(addr)) < 0 ||
	    listen(fd, BACKLOG) < 0)
		return failed("cannot serve", path);
	*ret_fd = fd;
	return EXIT_WELL;
}

/* ---- away from who started it -------------------------------------------------------------- */

/* The first fork leaves the group that a terminal's signals go to, the second the chance of one. */
static void detach(void)
{
	int status = EXIT_FAILED;
	pid_t pid = fork();

	if (pid == 0) {
		if (setsid() < 0 || (pid = fork()) < 0)
			_exit(EXIT_FAILED);
		if (pid == 0)
			return;
		_exit(EXIT_WELL);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid || status != EXIT_WELL) {
		printf("cannot start a process of its own: %s\n",
		       pid < 0 ? strerror(errno) : "the second fork failed");
		exit(EXIT_FAILED);
	}
	printf("ready\n");
	exit(fflush(stdout) == 0 ? EXIT_WELL : EXIT_FAILED);
}

/* The socket's path from the root on, since that is where it will be working. */
static int path_from_root(const char *path, char *ret, size_t len)
{
	size_t at = 0;

	ret[0] = '\0';
	if (path[0] != '/') {
		if (!getcwd(ret, len))
			return -errno;
		at = strlen(ret);
	}
	if (at + strlen(path) + 2 > len)
		return -ENAMETOOLONG;
	snprintf(ret + at, len - at, "%s%s", at ? "/" : "", path);
	return 0;
}

static int settle(int listen_fd)
{
	static const int ignored[] = {
		SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGTSTP, SIGUSR1, SIGUSR2
	};
	struct rlimit rl;
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	for (size_t i = 0; i < radix_array_size(ignored); i++)
		if (signal(ignored[i], SIG_IGN) == SIG_ERR)
			return -errno;
	if (null < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0 || dup2(null, 2) < 0)
		return -errno;
	if (null > 2)
		close(null);
	(void)prctl(PR_SET_NAME, NAME); /* whatever the file is called */
	if (getrlimit(RLIMIT_NOFILE, &rl) == 0 && rl.rlim_cur < DESCRIPTORS) {
		rl.rlim_cur = rl.rlim_max < DESCRIPTORS ? rl.rlim_max : DESCRIPTORS;
		(void)setrlimit(RLIMIT_NOFILE, &rl); /* fewer items, then */
	}
	/* Once more, so that peers are told this process, not the one that began. */
	return listen(listen_fd, BACKLOG) < 0 || chdir("/") < 0 ? -errno : 0;
}

/* ---- arguments ----------------------------------------------------------------------------- */

struct arguments {
	const char *path;
	uint64_t timeout_ns;
	bool foreground;
};

static bool parse_number(const char *text, uint64_t *ret)
{
	char *end;
	unsigned long long n;

	errno = 0;
	n = strtoull(text, &end, 10);
	if (errno || *end || text[0] < '0' || text[0] > '9')
		return false;
	*ret = n;
	return true;
}

/* Return: an exit code, or -1 to go on. */
static int parse(struct arguments *a, int argc, char **argv)
{
	static const struct option options[] = {
		{ "socket", required_argument, NULL, 's' },
		{ "timeout-ns", required_argument, NULL, 't' },
		{ "foreground", no_argument, NULL, 'f' },
		{ "version", no_argument, NULL, 'v' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	int c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (c) {
		case 's':
			a->path = optarg;
			break;
		case 't':
			if (!parse_number(optarg, &a->timeout_ns)) {
				fprintf(stderr, NAME ": --timeout-ns wants a number\n");
				return EXIT_USAGE_WRONG;
			}
			break;
		case 'f':
			a->foreground = true;
			break;
		case 'v':
			printf(NAME " " PREFIXD_VERSION_TEXT ", holder protocol %u\n",
			       PROTO_HOLDER_VERSION);
			return EXIT_WELL;
		case 'h':
			fputs(usage, stdout);
			return EXIT_WELL;
		default:
			return EXIT_USAGE_WRONG;
		}
	}
	if (!a->path || optind != argc) {
		fputs(usage, stderr);
		return EXIT_USAGE_WRONG;
	}
	return -1;
}

int main(int argc, char **argv)
{
	struct arguments a = { .timeout_ns = 600ull * 1000000000u };
	struct prefixd_holder_config config = { .version = PREFIXD_VERSION_TEXT, .listen_fd = -1 };
	static char path[4096];
	int r = parse(&a, argc, argv);

	if (r >= 0)
		return r;
	(void)close_range(3, ~0u, 0); /* whatever was open where it was started */
	errno = -path_from_root(a.path, path, sizeof(path));
	r = errno ? failed("cannot tell where to find", a.path) : serve(a.path, &config.listen_fd);
	if (r) {
		(void)fflush(stdout); /* whoever does not hear it sees the exit code */
		return r;
	}
	config.path = path;
	config.timeout_ns = a.timeout_ns;
	if (!a.foreground) {
		detach();
	} else {
		printf("ready\n");
		(void)fflush(stdout); /* likewise */
	}
	if (settle(config.listen_fd) < 0)
		return EXIT_FAILED;
	return prefixd_holder_run(&config) < 0 ? EXIT_FAILED : EXIT_WELL;
}
