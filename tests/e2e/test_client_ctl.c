/*
 * test_client_ctl.c - prefixctl as its users meet it, and who may use the admin socket at all.
 *
 * Exit codes, JSON, the width of lines, what is refused without --yes; then that another user gets
 * nowhere and that no output of any kind shows a secret.
 */
#include "tests/e2e/fake.h"
#include "tests/e2e/harness.h"
#include "tests/lib/run.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define SALT  "sesame-4711"
#define TOKEN 777000u

static struct e2e_daemon daemon_;
static struct fake fake;
static char out[1 << 18];
static const char *const args[] = { "--pool-blocks",   "64",    "--log-level", "debug",
				    "--drain-timeout", "200ms", NULL };

static const char *ctl_binary(void)
{
	const char *path = getenv("PREFIXCTL_BIN");

	return path ? path : "";
}

/* prefixctl on this socket; up to 10 words, NULL ends them. */
static int ctl(const char *socket, const char *const words[])
{
	const char *argv[16] = { ctl_binary(), "--admin-socket", socket };

	for (size_t i = 0; words[i]; i++)
		argv[3 + i] = words[i];
	return e2e_run(argv, out, sizeof(out));
}

#define CTL(...) ctl(daemon_.admin, (const char *const[]){ __VA_ARGS__, NULL })

static void expect_ctl(int r, int expected)
{
	ck_assert_msg(r == expected, "exit %d instead of %d: %s", r, expected, out);
}

static bool says(const char *text)
{
	return strstr(out, text) != NULL;
}

static void expect_width(void)
{
	for (const char *line = out; *line;) {
		size_t n = strcspn(line, "\n");

		ck_assert_msg(n <= 80, "%zu columns: %.*s", n, (int)n, line);
		ck_assert_msg(n == 0 || line[n - 1] != ' ', "blank at the end: %.*s", (int)n, line);
		line += n + (line[n] == '\n');
	}
}

/* A worker with two committed blocks under a secret salt, which still holds a lease on them. */
static pfx_client *worker(void)
{
	uint32_t keys[2 * 16], tenant;
	pfx_prompt p = { .struct_size = sizeof(p),
			 .salt = SALT,
			 .salt_len = sizeof(SALT) - 1,
			 .keys = keys,
			 .n_keys = 2 };
	pfx_match_result m = { .struct_size = sizeof(m) };
	pfx_reserve_result v = { .struct_size = sizeof(v) };
	pfx_commit_result k = { .struct_size = sizeof(k) };
	pfx_client *c = e2e_connect(&daemon_);
	pfx_namespace *ns = e2e_open(
		c, "a-model-with-a-name-that-is-longer-than-a-terminal-would-like-it", 4096);

	for (uint32_t i = 0; i < 32; i++)
		keys[i] = TOKEN + i;
	ck_assert_int_eq(pfx_tenant(c, "default", &tenant), PFX_OK);
	p.tenant = tenant;
	ck_assert_int_eq(pfx_match(ns, &p, &m), PFX_OK);
	ck_assert_int_eq(pfx_reserve(ns, m.lease, 2, 0, &v), PFX_OK);
	ck_assert_int_eq(pfx_commit(ns, m.lease, 2, NULL, 0, 0, &k), PFX_OK);
	ck_assert_int_eq(pfx_report(ns, 12000, 345, 32, 1, 0), PFX_OK);
	return c;
}

static void setup(void)
{
	ck_assert_int_eq(e2e_daemon_init(&daemon_), 0);
	ck_assert_int_eq(e2e_daemon_start(&daemon_, args), 0);
}

static void teardown(void)
{
	e2e_daemon_free(&daemon_);
}

/* ---- prefixctl ------------------------------------------------------------------------------- */

START_TEST(commands)
{
	pfx_client *c = worker();

	expect_ctl(CTL("ping"), 0);
	ck_assert(says("answers"));
	expect_ctl(CTL("status"), 0);
	ck_assert_msg(says("ready 2") && says("a-model"), "%s", out);
	expect_width();
	expect_ctl(CTL("stat"), 0);
	expect_width();
	expect_ctl(CTL("stat", "-i", "10ms", "-n", "3"), 0);
	expect_width();
	expect_ctl(CTL("tree"), 0);
	ck_assert(says("blocks"));
	expect_ctl(CTL("tree", "--namespace", "bogus"), 1);
	ck_assert(says("model: there is no such namespace"));
	expect_ctl(CTL("pins"), 0);
	ck_assert(says("live"));
	expect_width();
	expect_ctl(CTL("pins", "--older", "1h"), 0);
	ck_assert(says("nothing is pinned"));
	expect_ctl(CTL("audit"), 0);
	ck_assert(says("clean"));
	expect_ctl(CTL("config"), 0);
	ck_assert(says("pool-blocks") && says("64"));
	expect_ctl(CTL("log-level", "info"), 0);
	expect_ctl(CTL("log-level"), 0);
	ck_assert(says("info"));
	pfx_close(c);
}
END_TEST

START_TEST(json)
{
	static const char *const names[] = { "ping", "status", "stat",  "tree",
					     "pins", "audit",  "config" };
	pfx_client *c = worker();

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		expect_ctl(CTL(names[i], "--json"), 0);
		ck_assert_msg(out[0] == '{' && says("\"ok\":true"), "%s", out);
		/* One document, one line, when it is not a terminal that reads. */
		ck_assert_ptr_eq(strchr(out, '\n'), out + strlen(out) - 1);
	}
	expect_ctl(CTL("stat", "--json", "-i", "5ms", "-n", "2"), 0);
	ck_assert_ptr_ne(strchr(out, '\n'), out + strlen(out) - 1);
	pfx_close(c);
}
END_TEST

START_TEST(explain)
{
	pfx_client *c = worker();
	char tokens[512] = "";
	size_t n = 0;

	for (uint32_t i = 0; i < 32; i++)
		n += (size_t)snprintf(tokens + n, sizeof(tokens) - n, "%s%u", i ? "," : "",
				      TOKEN + i + (i == 20 ? 50000 : 0));
	expect_ctl(CTL("explain", "--namespace",
		       "a-model-with-a-name-that-is-longer-than-a-terminal-would-like-it",
		       "--tenant", "default", "--salt", SALT, "--tokens", tokens),
		   0);
	ck_assert_msg(says("diverged") && says("at token 20") && says("token 827020") &&
			      says("token 777020"),
		      "%s", out);
	expect_ctl(CTL("explain", "--namespace", "none-of-that-name", "--tokens", "1"), 1);
	expect_ctl(CTL("explain", "--tokens", "1"), 2);
	expect_ctl(CTL("explain", "--namespace", "1", "--tokens", "1,x"), 2);
	expect_ctl(CTL("explain", "--namespace", "1", "--tokens-file", "/nonexistent"), 2);
	pfx_close(c);
}
END_TEST

START_TEST(changing)
{
	pfx_client *c = worker();

	/* Nobody is at a terminal here: without --yes nothing happens. */
	expect_ctl(CTL("flush", "--all"), 2);
	expect_ctl(CTL("evict", "1"), 2);
	expect_ctl(CTL("invalidate", "1"), 2);
	expect_ctl(CTL("drain"), 2);
	expect_ctl(CTL("status"), 0);
	ck_assert(says("ready 2"));
	expect_ctl(CTL("evict", "1", "--yes"), 0);
	ck_assert(says("0 blocks")); /* they are held */
	pfx_close(c);
	expect_ctl(CTL("flush", "--yes"), 2);
	expect_ctl(CTL("evict", "--yes"), 2);
	expect_ctl(CTL("evict", "x", "--yes"), 2);
	expect_ctl(CTL("invalidate", "--yes"), 2);
	expect_ctl(CTL("invalidate", "1", "--namespace", "1", "--yes"), 2);
	expect_ctl(CTL("invalidate", "none-of-that-name", "--yes"), 1);
	expect_ctl(CTL("drain", "--yes"), 0);
	ck_assert_int_eq(e2e_daemon_stop(&daemon_, 0), 0); /* it ends by itself, well */
}
END_TEST

START_TEST(exit_codes)
{
	static const char *const all[] = { "ping",    "status",  "stat",       "tree",
					   "pins",    "explain", "evict",      "flush",
					   "audit",   "config",  "log-level",  "drain",
					   "version", "help",    "invalidate", "watch" };

	expect_ctl(CTL("bogus"), 2);
	expect_ctl(CTL("ping", "more"), 2);
	expect_ctl(CTL("ping", "--group", "1"), 2);
	expect_ctl(CTL("ping", "--bogus"), 2);
	expect_ctl(CTL("ping", "--timeout"), 2);
	expect_ctl(CTL("ping", "--timeout", "soon"), 2);
	expect_ctl(CTL("help"), 0);
	expect_width();
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		expect_ctl(CTL(all[i], "--help"), 0);
		ck_assert(says("prefixctl ") && says(all[i]));
		expect_width();
	}
	expect_ctl(CTL("help", "bogus"), 2);
	ck_assert(says("unknown command bogus"));
	expect_ctl(CTL("help", "--help"), 0);
	expect_ctl(CTL("version"), 0);
	(void)e2e_daemon_stop(&daemon_, SIGKILL);
	expect_ctl(CTL("ping"), 3);
	ck_assert(says("--admin-socket")); /* the cure is named */
	expect_ctl(CTL("audit", "--json"), 3);
}
END_TEST

static void serve_admin(struct fake *f)
{
	while (fake_hello(f))
		fake_serve_well(f);
}

/* What no healthy daemon says. */
START_TEST(findings)
{
	static const char *const audit[] = { "audit", NULL },
				 *const js[] = { "audit", "--json", NULL },
				 *const status[] = { "status", NULL };

	memset(&fake, 0, sizeof(fake));
	fake.admin_json = "{\"ok\":true,\"clean\":false,\"groups\":[],"
			  "\"findings\":[{\"number\":7,\"text\":\"a node has no parent\"}]}";
	fake_start(&fake, serve_admin);
	expect_ctl(ctl(fake.path, audit), 4);
	ck_assert(says("invariant 7: a node has no parent") && says("NOT clean"));
	expect_ctl(ctl(fake.path, js), 4);
	/* Names come from workers: they do not get to drive the terminal. */
	fake.admin_json = "{\"ok\":true,\"version\":\"\\u001b[2J\\u0007\",\"namespaces\":"
			  "[{\"model\":\"\\u001b]0;x\\u0007\"}]}";
	expect_ctl(ctl(fake.path, status), 0);
	ck_assert_ptr_null(strchr(out, 0x1b));
	ck_assert_ptr_null(strchr(out, 0x07));
	fake.admin_json = "[1]";
	expect_ctl(ctl(fake.path, status), 3);
	fake.admin_json = "{\"ok\":false,\"field\":\"n\",\"error\":\"too many\"}";
	expect_ctl(ctl(fake.path, status), 1);
	ck_assert_str_eq(out, "prefixctl: n: too many\n");
	fake_stop(&fake);
}
END_TEST

/* What a daemon with lower tiers says, large numbers included; one without says nothing of it. */
START_TEST(tiers)
{
	static const char *const status[] = { "status", NULL }, *const stat_[] = { "stat", NULL };

	memset(&fake, 0, sizeof(fake));
	fake.admin_json =
		"{\"ok\":true,\"version\":\"1\",\"device\":\"sim\",\"boot\":\"ab\",\"n_slots\":100,"
		"\"sockets\":{\"worker\":\"/w\"},\"slots\":{\"ready\":100},"
		"\"tiers\":{\"device\":{\"blocks\":100,\"bytes\":409600,\"hit_tokens\":5},"
		"\"host\":{\"blocks\":123456789,\"bytes\":1099511627776,\"hit_tokens\":6},"
		"\"redis\":{\"blocks\":7,\"bytes\":8,\"hit_tokens\":987654321987}},"
		"\"host\":{\"n_slots\":3,\"slots\":{\"free\":1,\"ready\":2},\"second_copies\":1},"
		"\"demoted_blocks\":{\"device\":{\"host\":123456789,\"redis\":987654321},"
		"\"host\":{\"redis\":77}},"
		"\"promoted_blocks\":{\"host\":{\"device\":44},\"redis\":{\"device\":0}},"
		"\"removed_blocks\":{\"device\":{\"capacity\":0},\"host\":{\"dropped\":12},"
		"\"redis\":{\"tier_lost\":0}},"
		"\"redis\":{\"configured\":true,\"connected\":false,\"breaker\":\"half-open\","
		"\"breaker_opened\":3,\"latency_us\":1234.5,\"stored\":5,\"fetched\":6,\"lost\":7,"
		"\"bytes_out\":123456789012,\"bytes_in\":2,\"commands\":10,\"round_trips\":4,"
		"\"bad_values\":{\"checksum\":2,\"magic\":0},\"errors\":{\"timeout\":9},"
		"\"policy\":\"allkeys-lru\"}}";
	fake_start(&fake, serve_admin);
	expect_ctl(ctl(fake.path, status), 0);
	expect_width();
	ck_assert_msg(says("123M host, 988M redis") && says("44 device"), "%s", out);
	ck_assert(says("free 1, ready 2") && says("1 of them second copies"));
	ck_assert(says("dropped 12") && !says("tier_lost"));
	ck_assert(says("NOT connected, breaker half-open (opened 3 times)"));
	ck_assert(says("checksum 2") && says("timeout 9") && says("allkeys-lru"));
	fake.admin_json = "{\"ok\":true,\"demoted_blocks\":123456,\"promoted_blocks\":98765,"
			  "\"requests\":1}";
	expect_ctl(ctl(fake.path, stat_), 0);
	expect_width();
	ck_assert(says("123k") && says("98765"));
	fake.admin_json = "{\"ok\":true,\"redis\":{\"configured\":false},\"host\":{\"n_slots\":0},"
			  "\"tiers\":{\"device\":{\"blocks\":1}}}";
	expect_ctl(ctl(fake.path, status), 0);
	ck_assert(!says("Tiers") && !says("Redis") && !says("host"));
	fake_stop(&fake);
}
END_TEST

/* ---- T57: the admin socket is its owner's, and shows no secret ------------------------------- */

/* errno of connecting as uid and gid `id`, 0 for success; -1: this process may not change uid. */
static int connect_as(const char *path, unsigned id)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	int status;
	pid_t pid;

	if (geteuid() != 0)
		return -1;
	(void)snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", path);
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		int fd = socket(AF_UNIX, SOCK_STREAM, 0);

		if (fd < 0 || setgroups(0, NULL) || setgid(id) || setuid(id))
			_exit(255);
		_exit(connect(fd, (const struct sockaddr *)&sa, sizeof(sa)) ? errno : 0);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) != 255);
	return WEXITSTATUS(status);
}

START_TEST(modes)
{
	struct stat st;

	ck_assert_int_eq(stat(daemon_.admin, &st), 0);
	ck_assert_uint_eq(st.st_mode & 07777, 0600);
	ck_assert_int_eq(stat(daemon_.socket, &st), 0);
	ck_assert_uint_eq(st.st_mode & 07777, 0660);
}
END_TEST

START_TEST(other_user)
{
	int r;

	/* The way there is open: it is the socket itself that refuses. */
	ck_assert_int_eq(chmod(daemon_.dir, 0755), 0);
	r = connect_as(daemon_.admin, 65534);
	ck_assert_msg(r == EACCES || (r == -1 && geteuid() != 0), "%s", strerror(r));
	r = connect_as(daemon_.admin, 0);
	ck_assert_msg(r == 0 || (r == -1 && geteuid() != 0), "%s", strerror(r));
	if (geteuid() != 0)
		fputs("# not root: the refusal of another user was not tried, the mode was\n",
		      stderr);
}
END_TEST

static char *read_key(void)
{
	char path[128], *key = calloc(1, 128);
	struct stat st;
	int fd;

	(void)snprintf(path, sizeof(path), "%s/admin.key", daemon_.dir);
	fd = open(path, O_RDONLY);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(fstat(fd, &st), 0);
	ck_assert_uint_eq(st.st_mode & 07777, 0600);
	ck_assert_int_ge((int)read(fd, key, 64), 64);
	close(fd);
	return key;
}

static void expect_no_secret(const char *where, const char *text, const char *key)
{
	static const char salt_hex[] = "736573616d652d34373131"; /* SALT */
	char token[16];

	ck_assert_msg(!strstr(text, SALT) && !strstr(text, salt_hex), "%s shows the salt", where);
	ck_assert_msg(!strstr(text, key), "%s shows the naming key", where);
	for (uint32_t i = 0; i < 32; i++) {
		(void)snprintf(token, sizeof(token), "%u", TOKEN + i);
		ck_assert_msg(!strstr(text, token), "%s shows token %s: %s", where, token, text);
	}
}

START_TEST(no_secret)
{
	static const char *const names[] = { "ping", "status", "stat",   "tree",
					     "pins", "audit",  "config", "log-level" };
	pfx_client *c = worker();
	char *key = read_key(), *log;

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		expect_ctl(CTL(names[i]), 0);
		expect_no_secret(names[i], out, key);
		expect_ctl(CTL(names[i], "--json"), 0);
		expect_no_secret(names[i], out, key);
	}
	/* Asked for by somebody who does not know the salt: not even that it would be there. */
	expect_ctl(CTL("explain", "--namespace", "1", "--tokens", "5,6", "--json"), 0);
	expect_no_secret("explain", out, key);
	pfx_close(c);
	(void)e2e_daemon_stop(&daemon_, SIGTERM);
	log = e2e_daemon_log(&daemon_);
	ck_assert_uint_gt(strlen(log), 0);
	expect_no_secret("the log", log, key);
	free(log);
	free(key);
}
END_TEST

static Suite *suite(bool t57)
{
	Suite *s = suite_create(t57 ? "T57" : "prefixctl");
	TCase *t = tcase_create("prefixctl");

	tcase_set_timeout(t, 120);
	tcase_add_checked_fixture(t, setup, teardown);
	if (t57) {
		tcase_add_test(t, modes);
		tcase_add_test(t, other_user);
		tcase_add_test(t, no_secret);
	} else {
		tcase_add_test(t, commands);
		tcase_add_test(t, json);
		tcase_add_test(t, explain);
		tcase_add_test(t, changing);
		tcase_add_test(t, exit_codes);
		tcase_add_test(t, findings);
		tcase_add_test(t, tiers);
	}
	suite_add_tcase(s, t);
	return s;
}

/* With "T57": that scenario only. */
int main(int argc, char **argv)
{
	if (!e2e_daemon_binary() || access(ctl_binary(), X_OK) != 0) {
		fputs("no PREFIXD_BIN or PREFIXCTL_BIN\n", stderr);
		return E2E_SKIP;
	}
	return test_run(suite(argc > 1 && strcmp(argv[1], "T57") == 0));
}
