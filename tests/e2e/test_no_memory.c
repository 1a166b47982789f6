/*
 * test_no_memory.c - F27: the real daemon, whose N-th call for memory fails, for every N.
 *
 * Each N gets a fresh daemon that is armed from its first instruction on: its start, a session with
 * every operation, the admin socket, the pages for monitors, a reload, and the end of it all.  A
 * daemon that cannot start ends with status 1 and says so; one that runs answers NO_MEMORY or
 * closes that connection, and answers everybody properly once there is memory again.  It never ends
 * by itself, and never leaves anything behind that an audit finds.
 *
 * $PREFIXD_FAILING_MALLOC is the library to preload.  $PREFIXD_EVERY: only each so-manieth call.
 */
#include "tests/e2e/failing_malloc.h"
#include "tests/e2e/shell_world.h"
#include "tests/lib/run.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static struct failing *memory;
static char http[128];
static unsigned n_refused, n_closed; /* over all N, so that the test can tell that it tests */

/* ---- a client that takes every answer -------------------------------------------------------- */

struct guest {
	struct raw r;
	bool open;
};

static bool try_connect(const char *path, struct guest *g)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };

	memset(g, 0, sizeof(*g));
	g->r.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	ck_assert_int_ge(g->r.fd, 0);
	memcpy(addr.sun_path, path, strlen(path));
	g->open = connect(g->r.fd, (struct sockaddr *)&addr, sizeof(addr)) == 0;
	return g->open;
}

/* A request and its answer, whatever it is; false: the connection is closed. */
static bool ask(struct guest *g, uint16_t op, const void *body, size_t len)
{
	for (uint32_t i = 0; i < g->r.n_fds; i++)
		close(g->r.fds[i]);
	g->r.n_fds = 0;
	if (g->open && !raw_call(&g->r, op, body, len)) {
		g->open = false;
		n_closed++;
	}
	if (g->open && g->r.h.status == PROTO_STATUS_NO_MEMORY)
		n_refused++;
	return g->open;
}

static bool fine(const struct guest *g)
{
	return g->open && g->r.h.status == PROTO_STATUS_OK;
}

#define ENCODED(type, ...)                                       \
	const struct proto_##type m_ = { __VA_ARGS__ };          \
	struct proto_writer w_ = { .p = body, .cap = BODY_MAX }; \
	proto_##type##_encode(&w_, &m_);                         \
	ck_assert(proto_writer_ok(&w_))

#define BODY_MAX 65536u
static uint8_t body[BODY_MAX];

static void say_hello(struct guest *g)
{
	ENCODED(hello_req, .version_min = PROTO_VERSION, .version_max = PROTO_VERSION,
		.self_test = proto_self_test(PROTO_VERSION), .instance = { .b = { 1 } },
		.name = { .p = "x", .n = 1 });
	ask(g, PROTO_OP_HELLO, body, w_.len);
}

static uint32_t open_namespace_with(struct guest *g, const char *model, uint32_t flags)
{
	struct proto_open_rep rep;
	const char *bad;

	ENCODED(open_req, .key_mode = PROTO_KEYS_TOKENS, .flags = PROTO_OPEN_OPAQUE | flags,
		.model = { .p = model, .n = (uint32_t)strlen(model) },
		.revision = { .p = "r1", .n = 2 }, .dtype = { .p = "float16", .n = 7 }, .layers = 1,
		.kv_heads = 1, .head_dim = 64, .block_tokens = 16, .block_bytes = 4096,
		.layout = { .p = "opaque", .n = 6 }, .tp_size = 1,
		.engine = { .p = "raw", .n = 3 });
	ask(g, PROTO_OP_OPEN, body, w_.len);
	if (!fine(g) || proto_open_rep_decode(g->r.body, g->r.h.len, &rep, &bad))
		return UINT32_MAX;
	return rep.ns;
}

static uint32_t open_namespace(struct guest *g, const char *model)
{
	return open_namespace_with(g, model, 0);
}

static uint64_t take_lease(struct guest *g, uint32_t ns, uint32_t first, uint32_t n)
{
	struct proto_match_rep rep;
	const char *bad;

	ask(g, PROTO_OP_MATCH, body, match_body(body, sizeof(body), ns, first, n));
	if (!fine(g) || proto_match_rep_decode(g->r.body, g->r.h.len, &rep, &bad))
		return 0;
	return rep.lease;
}

static void reserve_and_commit(struct guest *g, uint64_t lease, uint32_t n)
{
	{
		ENCODED(reserve_req, .lease = lease, .n = n);
		ask(g, PROTO_OP_RESERVE, body, w_.len);
	}
	if (fine(g)) {
		ENCODED(commit_req, .lease = lease, .n = n);
		ask(g, PROTO_OP_COMMIT, body, w_.len);
	}
}

static void give_back(struct guest *g, uint64_t lease)
{
	ENCODED(release_req, .lease = lease);
	ask(g, PROTO_OP_RELEASE, body, w_.len);
}

/* A RELEASE that waits for a word, and one behind it; then the word comes. */
static void give_back_later(struct guest *g, uint64_t lease)
{
	uint8_t frame[2 * (PROTO_HEADER_LEN + 64)];
	uint64_t *words = MAP_FAILED;
	size_t n;

	(void)open_namespace_with(g, "m", PROTO_OPEN_WORDS);
	if (!fine(g) || g->r.n_fds == 0)
		return;
	words = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, g->r.fds[g->r.n_fds - 1], 0);
	ck_assert_ptr_ne(words, MAP_FAILED);
	{
		ENCODED(release_req, .lease = lease, .word = 1, .value = 1);
		n = raw_frame(&g->r, frame, PROTO_OP_RELEASE, body, w_.len);
	}
	{
		ENCODED(release_req, .lease = lease);
		n += raw_frame(&g->r, frame + n, PROTO_OP_RELEASE, body, w_.len);
	}
	g->open = raw_write(&g->r, frame, n);
	e2e_sleep_ms(1);
	__atomic_store_n(&words[0], 1, __ATOMIC_RELEASE);
	for (int i = 0; i < 2 && g->open; i++) {
		g->open = raw_read(&g->r);
		n_closed += !g->open;
	}
	munmap(words, 4096);
}

/* Everything that a worker may say. */
static void session(struct guest *g)
{
	uint64_t lease, other;
	uint32_t ns;

	if (!try_connect(d.socket, g))
		return;
	say_hello(g);
	ns = open_namespace(g, "m");
	{
		ENCODED(subscribe_req, .ns = 0);
		ask(g, PROTO_OP_SUBSCRIBE, body, w_.len);
		if (fine(g)) { /* its changes come in between: a connection of its own from here */
			close(g->r.fd);
			free(g->r.body);
			if (!try_connect(d.socket, g))
				return;
			say_hello(g);
			ns = open_namespace(g, "m");
		}
	}
	lease = take_lease(g, ns, 1, 12);
	reserve_and_commit(g, lease, 12);
	other = take_lease(g, ns, 5000, 4); /* another branch */
	reserve_and_commit(g, other, 2);
	{
		ENCODED(extend_req, .lease = lease, .n_tokens = 12 * BLOCK);
		ask(g, PROTO_OP_EXTEND, body, w_.len);
	}
	ask(g, PROTO_OP_PROBE, body, match_body(body, sizeof(body), ns, 1, 4));
	ask(g, PROTO_OP_EXPLAIN, body, match_body(body, sizeof(body), ns, 1, 4));
	ask(g, PROTO_OP_PING, NULL, 0);
	give_back_later(g, lease);
	give_back(g, other);
	(void)open_namespace(g, "n");
}

static void operate(void)
{
	static const char *const requests[] = {
		"{\"op\":\"status\"}",
		"{\"op\":\"tree\"}",
		"{\"op\":\"pins\"}",
		"{\"op\":\"explain\",\"model\":\"m\",\"tokens\":[1,2,3]}",
		"{\"op\":\"config\"}",
		"{\"op\":\"evict\",\"n\":1}",
		"{\"op\":\"flush\",\"all\":true}",
		"{\"op\":\"audit\"}",
	};
	struct guest g;

	for (size_t i = 0; i < radix_array_size(requests); i++) {
		if (try_connect(d.admin, &g)) {
			ENCODED(admin,
				.json = { .p = requests[i], .n = (uint32_t)strlen(requests[i]) });
			ask(&g, PROTO_OP_ADMIN, body, w_.len);
		}
		raw_close(&g.r);
	}
}

/* Any page, or none. */
static bool page(void)
{
	static const char get[] = "GET /metrics HTTP/1.0\r\n\r\n";
	struct pollfd p = { .events = POLLIN };
	char text[4096];
	struct guest g;
	bool ok = false;
	ssize_t n;

	if (!try_connect(http, &g))
		return false;
	p.fd = g.r.fd;
	if (raw_write(&g.r, get, sizeof(get) - 1))
		while (poll(&p, 1, 5000) == 1 && (n = recv(g.r.fd, text, sizeof(text), 0)) > 0)
			ok = true;
	raw_close(&g.r);
	return ok;
}

/* ---- the daemon ------------------------------------------------------------------------------ */

static void begin(void)
{
	char path[128];
	int fd;

	shell_setup();
	snprintf(path, sizeof(path), "%s/memory", d.dir);
	snprintf(http, sizeof(http), "%s/http.sock", d.dir);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(ftruncate(fd, sizeof(*memory)), 0);
	memory = mmap(NULL, sizeof(*memory), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	ck_assert_ptr_ne(memory, MAP_FAILED);
	close(fd);
	ck_assert_int_eq(setenv("PREFIXD_TEST_MEMORY", path, 1), 0);
}

static void end(void)
{
	shell_teardown();
	munmap(memory, sizeof(*memory));
}

/* Fails with what the daemon has to say. */
__attribute__((noreturn)) static void unwell(long n, const char *what)
{
	char *log = e2e_daemon_log(&d);

	fprintf(stderr, "%s", strlen(log) > 4000 ? log + strlen(log) - 4000 : log);
	free(log);
	ck_abort_msg("call %ld: %s", n, what);
}

/* Starts it armed.  False: it could not start, and said so. */
static bool start_armed(long n)
{
	char flag[160];
	/* Leases of this very process are left behind, and it does not end. */
	const char *args[] = { "--pool-blocks",   "64",   "--http", flag, "--event-ring", "64",
			       "--drain-timeout", "10ms", NULL };
	int r;

	snprintf(flag, sizeof(flag), "unix://%s", http);
	atomic_store(&memory->calls, 0);
	atomic_store(&memory->failed, 0);
	atomic_store(&memory->countdown, n);
	atomic_store(&memory->armed, 1);
	ck_assert_int_eq(setenv("LD_PRELOAD", getenv("PREFIXD_FAILING_MALLOC"), 1), 0);
	r = e2e_daemon_start(&d, args);
	ck_assert_int_eq(unsetenv("LD_PRELOAD"), 0);
	if (r == 0)
		return true;
	atomic_store(&memory->armed, 0);
	if (r != 1) {
		fprintf(stderr, "the start gave %d\n", r);
		unwell(n, "it could not start, and did not end as it should");
	}
	ck_assert_int_eq(atomic_load(&memory->failed), 1);
	return false;
}

/* With memory again everything is as if nothing had been. */
static void expect_well(long n)
{
	struct proto_open_rep o;
	struct raw r;

	if (waitpid(d.pid, NULL, WNOHANG) != 0)
		unwell(n, "the daemon has ended");
	raw_connect(&r, d.socket);
	raw_hello(&r);
	o = raw_open(&r, "m", 4096);
	store(&r, o.ns, 9000, 8);
	ck_assert_uint_eq(match(&r, o.ns, 9000, 8).n_device, 8);
	raw_close(&r);
	if (!page())
		unwell(n, "no page for monitors");
	expect_clean();
}

static void one(long n)
{
	struct guest g;

	if (!start_armed(n))
		return;
	session(&g);
	operate();
	(void)page();
	(void)kill(d.pid, SIGHUP);
	(void)kill(d.pid, SIGUSR1);
	raw_close(&g.r);
	e2e_sleep_ms(2);
	atomic_store(&memory->armed, 0);
	expect_well(n);
	if (e2e_daemon_stop(&d, SIGTERM) != 0)
		unwell(n, "no good end");
}

START_TEST(every_call_for_memory)
{
	const char *every = getenv("PREFIXD_EVERY");
	long step = every ? strtol(every, NULL, 10) : 1, n = 1, all;

	one(1L << 40); /* how many there are, when none fails */
	all = atomic_load(&memory->calls);
	ck_assert_int_eq(atomic_load(&memory->failed), 0);
	ck_assert_int_gt(all, 100);
	n_refused = n_closed = 0;
	for (; n <= all; n += step)
		one(n);
	fprintf(stderr, "%ld calls for memory, each %ld. failed; %u requests refused, %u closed\n",
		all, step, n_refused, n_closed);
	ck_assert_uint_gt(n_refused, 0);
	ck_assert_uint_gt(n_closed, 0);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("no-memory");
	TCase *t = tcase_create("F27");

	if (!e2e_daemon_binary() || !getenv("PREFIXD_FAILING_MALLOC")) {
		puts("1..0 # SKIP no prefixd binary, or nothing to preload");
		return EXIT_SUCCESS;
	}
	tcase_set_timeout(t, 600);
	tcase_add_checked_fixture(t, begin, end);
	tcase_add_test(t, every_call_for_memory);
	suite_add_tcase(s, t);
	return test_run(s);
}
