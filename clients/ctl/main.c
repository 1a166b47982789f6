/*
 * main.c - prefixctl: look at a running prefixd, and tell it what to do.
 *
 * One request on the admin socket, one answer on stdout; complaints go to stderr.  The exit codes
 * (ctl.h) are stable.  Nothing is asked of a person when stdin is not a terminal.
 */
#include "clients/ctl/ctl.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT_DIR "/run/prefixd"
#define SOCKET_NAME "prefixd-admin.sock"
#define BIT(opt)    (1u << CTL_OPT_##opt)
#define GENERAL     (BIT(ADMIN_SOCKET) | BIT(JSON) | BIT(TIMEOUT) | BIT(YES))

static const struct {
	const char *name, *value, *help;
	char letter;
} options[] = {
#define X(sym, name, letter, value, help) { name, value, help, letter },
	CTL_OPTIONS(X)
#undef X
};

static const struct ctl_command commands[] = {
	{ "ping", "ping", NULL, 0, false, "does it answer?", ctl_show_ping },
	{ "status", "status", NULL, 0, false, "everything on one page", ctl_show_status },
	{ "stat", "stat", NULL, BIT(INTERVAL) | BIT(COUNT), false,
	  "totals; with -i TIME what changed, line by line", NULL },
	{ "tree", "tree", NULL, BIT(GROUP) | BIT(NAMESPACE) | BIT(LINES), false,
	  "the index as a tree", ctl_show_tree },
	{ "pins", "pins", NULL, BIT(OLDER) | BIT(SORT), false, "who holds what, oldest first",
	  ctl_show_pins },
	{ "explain", "explain", NULL,
	  BIT(NAMESPACE) | BIT(TENANT) | BIT(SALT) | BIT(SALT_HEX) | BIT(TOKENS) |
		  BIT(TOKENS_FILE) | BIT(DIGESTS_FILE),
	  false, "why a prompt does not hit further", ctl_show_explain },
	{ "evict", "evict", "BLOCKS", BIT(BLOCKS) | BIT(GROUP), true,
	  "drop the coldest blocks that nobody holds", ctl_show_evict },
	{ "flush", "flush", NULL, BIT(NAMESPACE) | BIT(ALL), true,
	  "drop what a namespace holds and nobody uses", ctl_show_flush },
	{ "invalidate", "invalidate", "NAMESPACE", BIT(NAMESPACE), true,
	  "serve nothing of it that was stored so far", ctl_show_invalidate },
	{ "audit", "audit", NULL, 0, false, "check every invariant; exit 4 if one is broken",
	  ctl_show_audit },
	{ "config", "config", NULL, 0, false, "options, their values and where they come from",
	  ctl_show_config },
	{ "log-level", "log-level", "LEVEL", 0, false, "show or set it: error, warn, info, debug",
	  ctl_show_level },
	{ "drain", "drain", "TIME", 0, true,
	  "take no new work; end with the last lease or after TIME", ctl_show_drain },
	{ "watch", NULL, NULL, BIT(COUNT), false,
	  "what is stored, moves and goes, one line per event; -n LINES", NULL },
	{ "holder", NULL, "status|release", BIT(FORCE), false,
	  "who keeps the memory when the daemon is gone; have it given up", NULL },
	{ "version", NULL, NULL, 0, false, "of prefixctl", NULL },
	{ "help", NULL, "COMMAND", 0, false, "this, or the options of a command", NULL },
};

#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

static const struct ctl_command *find_command(const char *name)
{
	for (size_t i = 0; i < N_COMMANDS; i++)
		if (strcmp(commands[i].name, name) == 0)
			return &commands[i];
	return NULL;
}

/* ---- help ------------------------------------------------------------------------------------ */

static void print_options(FILE *out, uint32_t set)
{
	for (size_t i = 0; i < CTL_N_OPTIONS; i++) {
		const char *value = options[i].value;
		char letter[8] = "    ", name[48];

		if (!(set >> i & 1))
			continue;
		if (options[i].letter)
			(void)snprintf(letter, sizeof(letter), "-%c, ", options[i].letter);
		(void)snprintf(name, sizeof(name), "--%s%s%s", options[i].name, value ? " " : "",
			       value ? value : "");
		fprintf(out, "  %s%-24s %s\n", letter, name, options[i].help);
	}
}

static void print_help(FILE *out, const struct ctl_command *c)
{
	if (c) {
		fprintf(out, "prefixctl %s%s%s%s - %s\n", c->name, c->operand ? " [" : "",
			c->operand ? c->operand : "", c->operand ? "]" : "", c->help);
		if (!c->op && !c->options)
			return; /* asks nobody */
		fputs("\n", out);
		print_options(out, c->options | (c->changes ? GENERAL : GENERAL & ~BIT(YES)));
	} else {
		fputs("usage: prefixctl [OPTIONS] COMMAND [OPTIONS]\n\n", out);
		for (size_t i = 0; i < N_COMMANDS; i++)
			fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].help);
		fputs("\n", out);
		print_options(out, GENERAL);
	}
	fputs("\nThe socket is --admin-socket, else $PREFIXD_ADMIN_SOCKET, else\n" DEFAULT_DIR
	      "/" SOCKET_NAME ", or for users other than root, where there\n"
	      "is no " DEFAULT_DIR ", $XDG_RUNTIME_DIR/" SOCKET_NAME ".\n"
	      "Exit: 0 well, 1 refused, 2 wrong command line, 3 no daemon answers, "
	      "4 findings.\n",
	      out);
}

static enum ctl_exit help(const char *name)
{
	const struct ctl_command *c = name ? find_command(name) : NULL;

	if (name && !c) {
		fprintf(stderr, "prefixctl: unknown command %s\nprefixctl: see `prefixctl help`\n",
			ctl_clean(name));
		return CTL_USAGE;
	}
	print_help(stdout, c);
	return CTL_OK;
}

/* ---- arguments ------------------------------------------------------------------------------- */

static int find_option(const char *arg, const char **ret_value)
{
	size_t n = strcspn(arg, "=");

	for (int i = 0; i < CTL_N_OPTIONS; i++) {
		bool is_long = strncmp(arg, "--", 2) == 0 && n - 2 == strlen(options[i].name) &&
			       strncmp(arg + 2, options[i].name, n - 2) == 0;

		if (is_long || (options[i].letter && arg[1] == options[i].letter && !arg[2])) {
			*ret_value = is_long && arg[n] ? arg + n + 1 : NULL;
			return i;
		}
	}
	return -1;
}

/* One option at argv[*at].  Return: false with a message. */
static bool take_option(struct ctl *ctl, int argc, char **argv, int *at)
{
	const char *arg = argv[*at], *value = NULL;
	int i = find_option(arg, &value);

	if (i < 0) {
		fprintf(stderr, "prefixctl: unknown option %s\n", ctl_clean(arg));
		return false;
	}
	if (options[i].value && !value && *at + 1 < argc)
		value = argv[++*at];
	if ((options[i].value == NULL) != (value == NULL)) {
		fprintf(stderr, "prefixctl: --%s %s\n", options[i].name,
			value ? "takes no value" : "wants a value");
		return false;
	}
	ctl->values[i] = value ? value : "";
	return true;
}

static bool parse(struct ctl *ctl, int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		if (argv[i][0] == '-' && argv[i][1]) {
			if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
				if (ctl->command && strcmp(ctl->command->name, "help") != 0)
					ctl->operand = ctl->command->name;
				ctl->command = find_command("help");
				return true;
			}
			if (strcmp(argv[i], "--version") == 0) {
				ctl->command = find_command("version");
				return true;
			}
			if (!take_option(ctl, argc, argv, &i))
				return false;
		} else if (!ctl->command) {
			ctl->command = find_command(argv[i]);
			if (!ctl->command) {
				fprintf(stderr, "prefixctl: unknown command %s\n",
					ctl_clean(argv[i]));
				return false;
			}
		} else if (ctl->command->operand && !ctl->operand) {
			ctl->operand = argv[i];
		} else {
			fprintf(stderr, "prefixctl: %s does not take \"%s\"\n", ctl->command->name,
				ctl_clean(argv[i]));
			return false;
		}
	}
	if (!ctl->command)
		return false;
	for (int i = 0; i < CTL_N_OPTIONS; i++) {
		if (ctl->values[i] && !((ctl->command->options | GENERAL) >> i & 1)) {
			fprintf(stderr, "prefixctl: %s does not take --%s\n", ctl->command->name,
				options[i].name);
			return false;
		}
	}
	return true;
}

/* ---- the exchange ---------------------------------------------------------------------------- */

static enum ctl_exit failed(const struct ctl *ctl, int status)
{
	const char *error = ctl->client ? pfx_error(ctl->client) : "no memory";

	fprintf(stderr, "prefixctl: %s\n", ctl_clean(error));
	if (status == PFX_GONE)
		fputs("prefixctl: is prefixd running, as this user? "
		      "Another socket: --admin-socket PATH\n",
		      stderr);
	return status == PFX_GONE || status == PFX_DEADLINE || status == PFX_PROTOCOL
		       ? CTL_UNREACHABLE
		       : CTL_ERROR;
}

/* As libprefixd finds the worker socket: a user's own daemon only where the machine has none.
 * Return: NULL without memory. */
char *ctl_socket_path(const char *given)
{
	const char *env = getenv("PREFIXD_ADMIN_SOCKET"), *runtime = getenv("XDG_RUNTIME_DIR");
	const char *path = given ? given : env;
	char *own;

	if (path && *path)
		return strdup(path);
	if (geteuid() == 0 || access(DEFAULT_DIR, F_OK) == 0 || !runtime || !*runtime)
		return strdup(DEFAULT_DIR "/" SOCKET_NAME);
	return asprintf(&own, "%s/" SOCKET_NAME, runtime) < 0 ? NULL : own;
}

bool ctl_timeout(const struct ctl *ctl, uint32_t *ret_ms)
{
	double seconds = 10;

	if (ctl->values[CTL_OPT_TIMEOUT] &&
	    (!ctl_parse_seconds(ctl->values[CTL_OPT_TIMEOUT], &seconds) || seconds > 1e6)) {
		fprintf(stderr, "prefixctl: --timeout \"%s\" is not a time, as 10, 500ms or 1m\n",
			ctl_clean(ctl->values[CTL_OPT_TIMEOUT]));
		return false;
	}
	*ret_ms = seconds < 0.001 ? 1 : (uint32_t)(seconds * 1000);
	return true;
}

static enum ctl_exit connect_daemon(struct ctl *ctl)
{
	pfx_connect_options o = { .struct_size = sizeof(o), .name = "prefixctl" };
	char *path;
	int r;

	if (!ctl_timeout(ctl, &o.deadline_ms))
		return CTL_USAGE;
	path = ctl_socket_path(ctl->values[CTL_OPT_ADMIN_SOCKET]);
	o.socket = path;
	r = path ? pfx_connect(&o, &ctl->client) : PFX_NO_MEMORY;
	free(path);
	return r ? failed(ctl, r) : CTL_OK;
}

/* *ret_reply is set with CTL_OK only, and is an object. */
static enum ctl_exit exchange(struct ctl *ctl, const char *text, json_t **ret_reply)
{
	char *answer = NULL;
	json_error_t e;
	json_t *reply;
	int r = pfx_admin(ctl->client, text, 0, &answer);

	if (r)
		return failed(ctl, r);
	reply = json_loads(answer, JSON_REJECT_DUPLICATES, &e);
	pfx_free_string(answer);
	if (!json_is_object(reply)) {
		json_decref(reply);
		fputs("prefixctl: the answer is not a JSON object\n", stderr);
		return CTL_UNREACHABLE;
	}
	*ret_reply = reply;
	return CTL_OK;
}

void ctl_print_json(const json_t *reply)
{
	size_t flags = JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(12);

	(void)json_dumpf(reply, stdout, flags | (isatty(1) ? JSON_INDENT(2) : JSON_COMPACT));
	putchar('\n');
}

static enum ctl_exit refused(const json_t *reply)
{
	const char *field = ctl_str(reply, "field");

	fprintf(stderr, "prefixctl: %s%s%s\n", field, *field ? ": " : "", ctl_str(reply, "error"));
	return CTL_ERROR;
}

static void nap(double seconds)
{
	struct timespec ts = { .tv_sec = (time_t)seconds };

	ts.tv_nsec = (long)((seconds - (double)ts.tv_sec) * 1e9);
	while (clock_nanosleep(CLOCK_MONOTONIC, 0, &ts, &ts) == EINTR)
		;
}

/* stat: totals once, or what changed in each interval. */
static enum ctl_exit run_stat(struct ctl *ctl, const char *text)
{
	const char *interval = ctl->values[CTL_OPT_INTERVAL], *count = ctl->values[CTL_OPT_COUNT];
	bool json = ctl->values[CTL_OPT_JSON] != NULL;
	uint64_t n = interval ? UINT64_MAX : 1;
	enum ctl_exit r = CTL_OK;
	json_t *before = NULL;
	double seconds = 1;

	if ((interval && (!ctl_parse_seconds(interval, &seconds) || seconds < 0.001)) ||
	    (count && !ctl_parse_u64(count, UINT64_MAX, &n))) {
		fputs("prefixctl: stat wants a time from 1ms on after -i, a number after -n\n",
		      stderr);
		return CTL_USAGE;
	}
	for (uint64_t i = 0; i < n; i++) {
		json_t *now = NULL;

		if (i)
			nap(seconds);
		r = exchange(ctl, text, &now);
		if (r == CTL_OK && !ctl_bool(now, "ok"))
			r = refused(now);
		if (r) {
			json_decref(now);
			break;
		}
		if (json) {
			ctl_print_json(now);
		} else {
			if (i % 20 == 0)
				ctl_show_stat_title();
			ctl_show_stat_line(before, now);
		}
		(void)fflush(stdout); /* a broken pipe is noticed at the end */
		json_decref(before);
		before = now;
		if (ferror(stdout))
			break;
	}
	json_decref(before);
	return r;
}

static enum ctl_exit run(struct ctl *ctl)
{
	json_t *request = ctl_request_new(ctl), *reply = NULL;
	char *text = request ? json_dumps(request, JSON_COMPACT) : NULL;
	enum ctl_exit r = text ? connect_daemon(ctl) : CTL_USAGE;

	json_decref(request);
	if (r == CTL_OK && strcmp(ctl->command->name, "stat") == 0)
		r = run_stat(ctl, text);
	else if (r == CTL_OK && (r = exchange(ctl, text, &reply)) == CTL_OK) {
		if (ctl->values[CTL_OPT_JSON])
			ctl_print_json(reply);
		if (!ctl_bool(reply, "ok"))
			r = refused(reply);
		else if (!ctl->values[CTL_OPT_JSON])
			r = ctl->command->show(ctl, reply);
		if (r == CTL_OK && json_is_false(json_object_get(reply, "clean")))
			r = CTL_FINDINGS;
		json_decref(reply);
	}
	free(text);
	pfx_close(ctl->client);
	return r;
}

static enum ctl_exit run_watch(struct ctl *ctl)
{
	enum ctl_exit r = connect_daemon(ctl);

	if (r == CTL_OK)
		r = ctl_watch(ctl);
	pfx_close(ctl->client);
	return r;
}

/* What changes something is done when --yes says so, or a person at the terminal does. */
static bool confirmed(const struct ctl *ctl)
{
	char answer[8] = "";

	if (!ctl->command->changes || ctl->values[CTL_OPT_YES])
		return true;
	if (!isatty(0)) {
		fprintf(stderr, "prefixctl: %s changes what the daemon holds: add --yes\n",
			ctl->command->name);
		return false;
	}
	fprintf(stderr, "%s: %s. Sure? [y/N] ", ctl->command->name, ctl->command->help);
	return fgets(answer, sizeof(answer), stdin) && (answer[0] == 'y' || answer[0] == 'Y');
}

int main(int argc, char **argv)
{
	struct ctl ctl = { 0 };
	enum ctl_exit r = CTL_OK;

	signal(SIGPIPE, SIG_IGN); /* `prefixctl tree | head` ends by the failed write below */
	if (!parse(&ctl, argc, argv)) {
		if (argc < 2)
			print_help(stderr, NULL);
		else
			fputs("prefixctl: see `prefixctl help`\n", stderr);
		return CTL_USAGE;
	}
	if (strcmp(ctl.command->name, "version") == 0)
		printf("prefixctl %s\n", pfx_version());
	else if (strcmp(ctl.command->name, "help") == 0)
		r = help(ctl.operand);
	else if (strcmp(ctl.command->name, "watch") == 0)
		r = run_watch(&ctl);
	else if (strcmp(ctl.command->name, "holder") == 0)
		r = ctl_holder(&ctl);
	else
		r = confirmed(&ctl) ? run(&ctl) : CTL_USAGE;
	/* What was not written was not said; but a reader that had enough is no error. */
	if (fflush(stdout) != 0 && errno != EPIPE && r == CTL_OK) {
		perror("prefixctl: stdout");
		r = CTL_ERROR;
	}
	return (int)r;
}
