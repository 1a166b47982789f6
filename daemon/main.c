/*
 * main.c - prefixd, the program: options in, a server out.
 *
 * The only file that ends the process.  It stays in the foreground; whoever supervises it sees its
 * end.
 */
#include "daemon/inherit.h"
#include "daemon/log.h"
#include "daemon/reserve.h"
#include "daemon/restore.h"
#include "daemon/server.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define END_SECONDS 10

static void print_line(void *ctx, const char *text)
{
	fprintf(ctx, "# %s\n", text);
}

static int finish_stdout(void)
{
	if (fflush(stdout) != 0 || ferror(stdout)) {
		prefixd_error("cannot write to standard output: %m");
		return PREFIXD_EXIT_FAILED;
	}
	return PREFIXD_EXIT_DRAINED;
}

/* Without these three the first sockets would take their numbers, and get what is printed. */
static bool standard_descriptors(void)
{
	for (int fd = 0; fd <= 2; fd++)
		if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd)
			return false;
	return true;
}

/*
 * A driver may hang for ever in the middle of giving memory back, and a thread in it cannot be
 * ended.  By then the sockets are gone and all that has to be on the disk is; what is left is
 * memory, which the kernel takes.
 */
static volatile sig_atomic_t end_code;

static void on_end(int signal)
{
	static const char text[] =
		"<4>something hangs while it is being closed; leaving without it\n";
	ssize_t n = write(STDERR_FILENO, text, sizeof(text) - 1);

	(void)n; /* nowhere to say so */
	_exit(end_code);
}

static void end_within(unsigned seconds, int code)
{
	end_code = code;
	if (signal(SIGALRM, on_end) != SIG_ERR)
		alarm(seconds);
}

/* Out of the environment, so that nobody else takes it for his.  False: it was not there. */
static bool env_take(const char *name, char *out, size_t out_len)
{
	const char *text = getenv(name);

	snprintf(out, out_len, "%s", text ? text : "");
	(void)unsetenv(name); /* a literal; cannot fail */
	return text;
}

int main(int argc, char **argv)
{
	struct prefixd_server *server = NULL;
	struct prefixd_options *options = NULL;
	char why[PREFIXD_WHY_LEN];
	char kept[1024];
	bool follows; /* another daemon, which asks whether it can */
	int r;

	if (!standard_descriptors())
		return PREFIXD_EXIT_FAILED;
	prefixd_inherit_read();
	follows = env_take(PREFIXD_CHECK_KEPT, kept, sizeof(kept));
	r = prefixd_options_load(&options, argc, argv, environ, why, sizeof(why));
	if (r < 0) {
		prefixd_error("%s", why);
		return r == -EINVAL ? PREFIXD_EXIT_USAGE : PREFIXD_EXIT_FAILED;
	}
	switch (options->command) {
	case PREFIXD_HELP:
		prefixd_options_help(stdout);
		break;
	case PREFIXD_VERSION:
		printf("prefixd %s, protocol %u\n", prefixd_version(), PROTO_VERSION);
		break;
	case PREFIXD_PRINT_CONFIG:
		prefixd_options_print(options, stdout);
		putchar('\n');
		prefixd_server_memory_table(options, print_line, stdout);
		break;
	case PREFIXD_CHECK_CONFIG:
		if (options->unknown_env[0])
			prefixd_warn("%s in the environment means nothing to prefixd",
				     options->unknown_env);
		r = follows ? prefixd_restore_check(options, kept, why, sizeof(why)) : 0;
		if (r < 0) {
			prefixd_error("what is there cannot be taken over: %s", why);
			return PREFIXD_EXIT_FAILED;
		}
		printf("configuration is valid\n");
		break;
	case PREFIXD_RUN:
		/* From the first line of the log on: whoever reads it may go. */
		if (signal(SIGPIPE, SIG_IGN) == SIG_ERR)
			return PREFIXD_EXIT_FAILED;
		prefixd_reserve_install();
		r = prefixd_server_new(&server, options, argc, argv, environ, why, sizeof(why));
		if (r < 0) {
			prefixd_error("cannot start: %s", why);
			return PREFIXD_EXIT_FAILED;
		}
		r = prefixd_server_run(server);
		end_within(END_SECONDS, r);
		prefixd_server_free(server);
		return r;
	}
	prefixd_options_free(options);
	return finish_stdout();
}
