/*
 * upgrade.c - SIGUSR2: another program in this process, which goes on where this one was.
 *
 *     SIGUSR2 -> the new program checks the settings, in a child -> no pool is being made
 *             -> what was answered is sent, epochs are on the disk -> exec, with sockets and memory
 *
 * What it guarantees.  The process keeps its number, so whoever supervises it sees nothing.  The
 * listening sockets are never closed: who connects meanwhile waits in their queue.  Whatever fails
 * before exec, or exec itself, leaves the daemon serving, with a line that says why.  What is cut
 * off by exec is what a kill would cut off.
 *
 * The program is looked for as it was started (argv[0], so that a link which was moved to a new
 * version counts), else at the file that this one was run from; /proc/self/exe would be the old
 * one, deleted.
 */
#include "daemon/server_internal.h"

#include "daemon/http.h"
#include "daemon/inherit.h"
#include "daemon/keep.h"
#include "daemon/log.h"
#include "daemon/restore.h"
#include "daemon/tiers.h"

#include <event2/event.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define LOOK_MS    5
#define CHECK_NS   UINT64_C(10000000000) /* that checking the settings may take */
#define MAKING_NS  UINT64_C(60000000000) /* and waiting for a pool */
#define MAX_SOCKET 3u
#define MAX_KEPT   64u /* that the check looks at: pools beyond them are alike */

struct prefixd_upgrade {
	struct event *look_ev;
	pid_t child;  /* that checks; 0: none */
	bool checked; /* it has found nothing wrong */
	uint64_t until_ns;
	char program[4096]; /* what is going to run */
	char started[4096]; /* file that this program was run from */
};

int prefixd_upgrade_init(struct prefixd_server *s)
{
	struct prefixd_upgrade *u = calloc(1, sizeof(*u));
	ssize_t n;

	if (!u)
		return -ENOMEM;
	/* While it is there: later it may be "FILE (deleted)". */
	n = readlink("/proc/self/exe", u->started, sizeof(u->started) - 1);
	u->started[n < 0 ? 0 : n] = '\0';
	s->upgrade = u;
	return 0;
}

static void upgrade_end(struct prefixd_upgrade *u)
{
	if (u->child > 0) {
		(void)kill(u->child, SIGKILL);
		(void)waitpid(u->child, NULL, 0); /* it was killed: not long */
	}
	u->child = 0;
	u->checked = false;
	if (u->look_ev)
		event_free(u->look_ev);
	u->look_ev = NULL;
}

void prefixd_upgrade_free(struct prefixd_server *s)
{
	if (!s->upgrade)
		return;
	upgrade_end(s->upgrade);
	free(s->upgrade);
	s->upgrade = NULL;
}

/* ---- which program --------------------------------------------------------------------------- */

static bool may_run(const char *path)
{
	return path[0] && access(path, X_OK) == 0;
}

/* As the shell found it.  Return: false: it is in none of the folders. */
static bool in_path(const char *name, char *out, size_t out_len)
{
	const char *dir = getenv("PATH"), *end;

	for (; dir && *dir; dir = *end ? end + 1 : end) {
		end = strchrnul(dir, ':');
		if (snprintf(out, out_len, "%.*s/%s", (int)(end - dir), dir, name) < (int)out_len &&
		    may_run(out))
			return true;
	}
	return false;
}

static bool program_find(struct prefixd_server *s, char *out, size_t out_len)
{
	const char *name = s->argc > 0 ? s->argv[0] : "";

	if (strchr(name, '/')) {
		snprintf(out, out_len, "%s", name);
		if (may_run(out))
			return true;
	} else if (name[0] && in_path(name, out, out_len)) {
		return true;
	}
	snprintf(out, out_len, "%s", s->upgrade->started);
	return may_run(out);
}

/* ---- the check ------------------------------------------------------------------------------- */

/* The child finds what is kept under the numbers that it has here.  Return: 0; -ENOMEM. */
static int kept_pass(const struct prefixd_server *s, posix_spawn_file_actions_t *files)
{
	int fds[MAX_KEPT];
	uint32_t n = prefixd_restore_fds(s, fds, MAX_KEPT);
	char text[MAX_KEPT * 12] = "";
	size_t len = 0;

	for (uint32_t i = 0; i < n; i++) {
		len += (size_t)snprintf(text + len, sizeof(text) - len, "%s%d", i ? " " : "",
					fds[i]);
		/* Onto itself: it is no longer closed on exec then. */
		(void)posix_spawn_file_actions_adddup2(files, fds[i], fds[i]);
	}
	return setenv(PREFIXD_CHECK_KEPT, text, 1) == 0 ? 0 : -ENOMEM;
}

static int check_spawn_with(struct prefixd_server *s, char *const *argv, pid_t *ret_child)
{
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attr;
	sigset_t none, all;
	int r;

	(void)sigemptyset(&none);
	(void)sigfillset(&all);
	/* None of these fails but for want of memory, and then the spawn does. */
	(void)posix_spawn_file_actions_init(&files);
	(void)posix_spawn_file_actions_adddup2(&files, STDERR_FILENO, STDOUT_FILENO);
	(void)posix_spawnattr_init(&attr);
	(void)posix_spawnattr_setsigmask(&attr, &none);
	(void)posix_spawnattr_setsigdefault(&attr, &all);
	(void)posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	r = kept_pass(s, &files);
	if (r == 0)
		r = -posix_spawn(ret_child, s->upgrade->program, &files, &attr, argv, environ);
	(void)unsetenv(PREFIXD_CHECK_KEPT); /* a literal; cannot fail */
	(void)posix_spawnattr_destroy(&attr);
	(void)posix_spawn_file_actions_destroy(&files);
	return r;
}

/* Return: 0 with the child's number; negative errno. */
static int check_spawn(struct prefixd_server *s, pid_t *ret_child)
{
	char flag[] = "--check-config";
	char **argv = calloc((size_t)s->argc + 2, sizeof(char *));
	int r;

	if (!argv)
		return -ENOMEM;
	for (int i = 0; i < s->argc; i++)
		argv[i] = s->argv[i];
	argv[s->argc] = flag;
	r = check_spawn_with(s, argv, ret_child);
	free(argv);
	return r;
}

/* ---- exec ------------------------------------------------------------------------------------ */

static uint32_t sockets_gather(const struct prefixd_server *s,
			       struct prefixd_listening v[MAX_SOCKET])
{
	const struct prefixd_listener *both[] = { &s->worker, &s->admin };
	uint32_t n = 0;

	for (size_t i = 0; i < radix_array_size(both); i++)
		v[n++] = (struct prefixd_listening){ .fd = both[i]->fd,
						     .lock_fd = both[i]->lock_fd,
						     .foreign = both[i]->foreign,
						     .where = both[i]->path };
	if (s->http)
		prefixd_http_listening(s->http, s->options->http, &v[n++]);
	return n;
}

static void signals_block(bool block)
{
	static const int numbers[] = PREFIXD_SIGNALS;
	sigset_t set;

	(void)sigemptyset(&set);
	for (size_t i = 0; i < radix_array_size(numbers); i++)
		(void)sigaddset(&set, numbers[i]);
	(void)sigprocmask(block ? SIG_BLOCK : SIG_UNBLOCK, &set, NULL);
}

/* Comes back only when it failed.  Return: negative errno. */
static int replace(struct prefixd_server *s)
{
	struct prefixd_listening sockets[MAX_SOCKET];
	struct prefixd_keep *keep = prefixd_restore_keep(s);
	uint32_t n = sockets_gather(s, sockets);
	char *kept = NULL;
	int r = 0;

	if (keep) {
		kept = malloc(PREFIXD_KEEP_HANDED_MAX);
		r = kept ? prefixd_keep_hand_over(keep, kept, PREFIXD_KEEP_HANDED_MAX) : -ENOMEM;
		if (r < 0) {
			free(kept);
			return r;
		}
	}
	r = prefixd_inherit_write(sockets, n, kept);
	free(kept);
	if (r == 0) {
		/* A signal that comes before its handlers are there waits for them. */
		signals_block(true);
		(void)execv(s->upgrade->program, s->argv);
		r = -errno;
		signals_block(false);
		prefixd_inherit_undo(sockets, n);
	}
	if (keep)
		prefixd_keep_stay(keep);
	return r;
}

void prefixd_upgrade_signals(void)
{
	signals_block(false);
}

static void __attribute__((format(printf, 2, 3)))
refuse(struct prefixd_server *s, const char *format, ...)
{
	char why[PREFIXD_WHY_LEN];
	va_list ap;

	va_start(ap, format);
	vsnprintf(why, sizeof(why), format, ap);
	va_end(ap);
	upgrade_end(s->upgrade);
	prefixd_notify_ready(&s->notify, NULL);
	prefixd_error("upgrade refused, going on as before: %s", why);
}

static void upgrade_now(struct prefixd_server *s)
{
	int r;

	if (!prefixd_restore_keep(s))
		prefixd_warn("nobody keeps the memory (keep=none): %s starts with empty pools",
			     s->upgrade->program);
	prefixd_info("upgrade: going on as %s", s->upgrade->program);
	prefixd_tiers_save(s);
	prefixd_server_settle(s); /* replies of this turn leave with their sockets */
	r = replace(s);
	refuse(s, "cannot run %s: %s", s->upgrade->program, strerror(-r));
}

/* Has the child ended?  Return: true when there is nothing more to wait for. */
static bool check_done(struct prefixd_server *s)
{
	struct prefixd_upgrade *u = s->upgrade;
	int status;

	if (waitpid(u->child, &status, WNOHANG) != u->child)
		return false;
	u->child = 0;
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
		u->checked = true;
		u->until_ns = prefixd_now_ns() + MAKING_NS;
		return true;
	}
	if (WIFEXITED(status))
		refuse(s, "%s does not take the settings (exit code %d)", u->program,
		       WEXITSTATUS(status));
	else
		refuse(s, "%s died checking the settings (signal %d)", u->program,
		       WTERMSIG(status));
	return true;
}

static void on_look(evutil_socket_t fd, short what, void *ctx)
{
	struct prefixd_server *s = ctx;
	struct prefixd_upgrade *u = s->upgrade;
	uint64_t now = prefixd_server_mark(s);

	if (s->draining)
		upgrade_end(u); /* it has been said */
	else if (u->checked && !prefixd_tiers_making(s))
		upgrade_now(s);
	else if (!u->checked && check_done(s))
		;
	else if (now > u->until_ns)
		refuse(s, "%s",
		       u->checked ? "a pool is being made, and that takes its time"
				  : "checking the settings takes too long");
	prefixd_server_settle(s);
}

void prefixd_upgrade_begin(struct prefixd_server *s)
{
	static const struct timeval often = { .tv_usec = LOOK_MS * 1000 };
	struct prefixd_upgrade *u = s->upgrade;
	int r;

	if (s->draining || u->look_ev) {
		prefixd_warn("upgrade: %s already", s->draining ? "leaving" : "under way");
		return;
	}
	if (!program_find(s, u->program, sizeof(u->program))) {
		refuse(s, "there is no program where this one was started from");
		return;
	}
	prefixd_info("upgrade: %s checks the settings", u->program);
	prefixd_notify_reloading(&s->notify);
	u->until_ns = prefixd_now_ns() + CHECK_NS;
	u->look_ev = event_new(s->base, -1, EV_PERSIST, on_look, s);
	r = u->look_ev && event_add(u->look_ev, &often) == 0 ? check_spawn(s, &u->child) : -ENOMEM;
	if (r < 0)
		refuse(s, "%s cannot be run: %s", u->program, strerror(-r));
}
