/*
 * test_http.c - what monitors read, from the real daemon: pages, addresses, rude peers.
 *
 * With an argument only the test case of that name runs.
 */
#include "tests/e2e/http_client.h"
#include "tests/lib/rng.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define GIVEUP_MS 5000 /* when the daemon ends a connection */

/* promtool, where it is installed, has the last word on a scrape. */
static void promtool_check(const char *text)
{
	char path[128], command[200], out[4096] = "";
	FILE *f;

	if (access("/usr/bin/promtool", X_OK) != 0)
		return;
	snprintf(path, sizeof(path), "%s/scrape", d.dir);
	f = fopen(path, "we");
	ck_assert_ptr_nonnull(f);
	fputs(text, f);
	ck_assert_int_eq(fclose(f), 0);
	snprintf(command, sizeof(command), "/usr/bin/promtool check metrics < %s", path);
	ck_assert_msg(e2e_run((const char *const[]){ "/bin/sh", "-c", command, NULL }, out,
			      sizeof(out)) == 0,
		      "promtool: %s", out);
	unlink(path);
}

static void expect_status(const char *request, int status)
{
	struct http_answer a = http_ask(request);

	ck_assert_msg(a.status == status, "%d, not %d: %s", a.status, status, request);
	http_answer_free(&a);
}

static void expect_header(const struct http_answer *a, const char *line)
{
	const char *at = strstr(a->text, line);

	ck_assert_msg(at && at < a->body, "no %s in: %.400s", line, a->text);
}

/* ---- pages ----------------------------------------------------------------------------------- */

static void pages_check(void)
{
	struct exposition e;
	struct http_answer a;

	a = http_get("/healthz", "");
	ck_assert_int_eq(a.status, 200);
	ck_assert_str_eq(a.body, "ok\n");
	http_answer_free(&a);
	a = http_get("/readyz", "");
	ck_assert_int_eq(a.status, 200);
	http_answer_free(&a);

	a = http_get("/metrics", "");
	ck_assert_int_eq(a.status, 200);
	expect_header(&a, "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n");
	expect_header(&a, "Connection: close\r\n");
	promtool_check(a.body);
	e = exposition_parse(strdup(a.body), false);
	ck_assert(exposition_get(&e, "prefixd_config_last_reload_successful") == 1);
	ck_assert(exposition_get(&e, "process_open_fds") > 5);
	ck_assert(exposition_get(&e, "process_resident_memory_bytes") > 100000);
	ck_assert(exposition_get(&e, "prefixd_log_messages_total{level=\"info\"}") >= 1);
	exposition_free(&e);
	http_answer_free(&a);

	a = http_get("/metrics?name=x",
		     "Accept: application/openmetrics-text;version=1.0.0,*/*;q=0.1\r\n");
	ck_assert_int_eq(a.status, 200);
	expect_header(&a, "Content-Type: application/openmetrics-text; version=1.0.0; "
			  "charset=utf-8\r\n");
	e = exposition_parse(strdup(a.body), true);
	exposition_free(&e);
	http_answer_free(&a);
}

START_TEST(pages_over_tcp)
{
	http_start_tcp();
	pages_check();
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGTERM), 0);
}
END_TEST

START_TEST(pages_over_a_unix_socket)
{
	struct stat st;

	http_start_unix("64");
	ck_assert_int_eq(stat(http_path, &st), 0);
	ck_assert_uint_eq(st.st_mode & 0777, 0660);
	pages_check();
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGTERM), 0);
	ck_assert_int_ne(stat(http_path, &st), 0);
	/* What was left behind by one that was killed is taken over. */
	http_start_unix("64");
	(void)e2e_daemon_stop(&d, SIGKILL);
	http_start_unix("64");
	pages_check();
}
END_TEST

START_TEST(other_addresses_are_refused)
{
	static const char *const addresses[] = { "0.0.0.0:9100", "[::]:9100", "10.0.0.1:9100",
						 "9100", "unix://relative" };
	char port[32];
	char *log;

	for (size_t i = 0; i < radix_array_size(addresses); i++)
		ck_assert_int_eq(
			e2e_daemon_start(&d, (const char *const[]){ "--http", addresses[i], NULL }),
			2);
	log = e2e_daemon_log(&d);
	ck_assert_ptr_nonnull(strstr(log, "'0.0.0.0:9100' can be reached from other machines"));
	free(log);

	/* A port that is taken: the daemon says so and does not start. */
	http_start_tcp();
	snprintf(port, sizeof(port), "127.0.0.1:%u", http_port);
	{
		struct e2e_daemon other;

		ck_assert_int_eq(e2e_daemon_init(&other), 0);
		ck_assert_int_eq(
			e2e_daemon_start(&other, (const char *const[]){ "--http", port, NULL }), 1);
		log = e2e_daemon_log(&other);
		ck_assert_ptr_nonnull(strstr(log, "http: cannot serve 127.0.0.1:"));
		free(log);
		e2e_daemon_free(&other);
	}
}
END_TEST

/* Off unless asked for: nothing listens but the two sockets. */
START_TEST(off_by_default)
{
	char *log;

	START("--pool-blocks", "64");
	log = e2e_daemon_log(&d);
	ck_assert_ptr_null(strstr(log, "http"));
	free(log);
}
END_TEST

START_TEST(readyz_tells_of_a_drain)
{
	struct proto_open_rep o;
	struct proto_match_rep m;
	struct http_answer a;
	struct raw r;

	http_start_unix("64");
	raw_connect(&r, d.socket);
	raw_hello(&r);
	o = raw_open(&r, "m", 4096);
	m = match(&r, o.ns, 1, 4);
	ck_assert_int_eq(kill(d.pid, SIGTERM), 0);
	for (int i = 0;; i++) {
		a = http_get("/readyz", "");
		if (a.status == 503)
			break;
		ck_assert_int_lt(i, 400);
		http_answer_free(&a);
		e2e_sleep_ms(5);
	}
	ck_assert_ptr_nonnull(strstr(a.body, "draining"));
	http_answer_free(&a);
	a = http_get("/healthz", "");
	ck_assert_int_eq(a.status, 200);
	http_answer_free(&a);
	ck_assert(http_value("prefixd_draining") == 1);
	ck_assert(http_value("prefixd_leases") == 1);
	release(&r, m.lease);
	raw_close(&r);
}
END_TEST

START_TEST(a_refused_reload_shows)
{
	char path[128];
	FILE *f;

	snprintf(path, sizeof(path), "%s/conf", d.dir);
	f = fopen(path, "we");
	ck_assert_ptr_nonnull(f);
	fputs("[daemon]\nlog-level = info\n", f);
	ck_assert_int_eq(fclose(f), 0);
	snprintf(http_path, sizeof(http_path), "%s/http.sock", d.dir);
	{
		char address[160];

		snprintf(address, sizeof(address), "unix://%s", http_path);
		START("--config", path, "--http", address);
	}
	for (int round = 0; round < 2; round++) {
		f = fopen(path, "we");
		ck_assert_ptr_nonnull(f);
		fputs(round == 0 ? "[daemon]\nlog-level = loud\n" : "[daemon]\nlog-level = warn\n",
		      f);
		ck_assert_int_eq(fclose(f), 0);
		ck_assert_int_eq(kill(d.pid, SIGHUP), 0);
		for (int i = 0; http_value("prefixd_config_last_reload_successful") != round; i++) {
			ck_assert_int_lt(i, 400);
			e2e_sleep_ms(5);
		}
	}
	unlink(path);
}
END_TEST

/* ---- rude peers ------------------------------------------------------------------------------ */

START_TEST(requests_that_are_wrong)
{
	static char huge[1 << 20];
	struct http_answer a;
	size_t n;

	http_start_tcp();
	expect_status("GET / HTTP/1.1\r\n\r\n", 404);
	expect_status("GET /metrics/ HTTP/1.1\r\n\r\n", 404);
	expect_status("GET /../metrics HTTP/1.1\r\n\r\n", 404);
	expect_status("POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 405);
	expect_status("POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 405);
	expect_status("PUT /x HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 405);
	expect_status("DELETE /healthz HTTP/1.1\r\n\r\n", 405);
	expect_status("HEAD /metrics HTTP/1.1\r\n\r\n", 405);
	expect_status("OPTIONS * HTTP/1.1\r\n\r\n", 405);
	expect_status("POST /metrics HTTP/1.1\r\nContent-Length: 999999999\r\n\r\n", 413);
	expect_status("BREW /metrics HTTP/1.1\r\n\r\n", 501);
	expect_status("nonsense\r\n\r\n", 400);
	expect_status("GET /metrics HTTP/1.1\r\nno colon\r\n\r\n", 400);
	a = http_ask("POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n");
	expect_header(&a, "Allow: GET\r\n");
	http_answer_free(&a);

	/* One long header, one long path, many headers, an endless line: none is served. */
	for (int kind = 0; kind < 4; kind++) {
		n = (size_t)snprintf(huge, sizeof(huge), "GET /healthz%s",
				     kind == 1 ? "?" : " HTTP/1.1\r\n");
		if (kind == 2)
			while (n < 30000)
				n += (size_t)snprintf(huge + n, sizeof(huge) - n, "X-%zu: y\r\n",
						      n);
		else
			memset(huge + n, 'a', kind == 3 ? sizeof(huge) - 1 - n : 30000);
		n += kind == 2 ? 0 : kind == 3 ? sizeof(huge) - 1 - n : 30000;
		if (kind == 3)
			huge[n] = '\0';
		else
			snprintf(huge + n, sizeof(huge) - n, "%s",
				 kind == 0   ? ": y\r\n\r\n"
				 : kind == 1 ? " HTTP/1.1\r\n\r\n"
					     : "\r\n");
		a = http_ask(huge);
		ck_assert_msg(a.status == 400 || a.status == 413 || a.status == 0, "kind %d: %d",
			      kind, a.status);
		http_answer_free(&a);
	}
	pages_check();
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGTERM), 0);
}
END_TEST

/*
 * Requests as long as they may be come in several reads, also on a descriptor whose number the
 * connection before had: every byte reaches its own request.
 */
START_TEST(long_requests_one_after_another)
{
	char request[9000];
	size_t n;

	http_start_tcp();
	for (size_t i = 0; i < 60; i++) {
		n = (size_t)snprintf(request, sizeof(request), "GET /healthz HTTP/1.1\r\nX: ");
		memset(request + n, 'a', 4000 + 60 * i);
		n += 4000 + 60 * i;
		snprintf(request + n, sizeof(request) - n, "\r\n\r\n");
		expect_status(request, 200);
	}
}
END_TEST

/* Half a request and then silence; a byte now and then: over after 5 s, either way. */
START_TEST(silence_and_dripping_end)
{
	int silent, dripping;
	unsigned long begun = e2e_now_ms();
	struct http_answer a;
	unsigned i = 0;

	http_start_unix("64");
	silent = http_connect();
	dripping = http_connect();
	http_write(silent, "GET /met", 8);
	http_write(dripping, "GET /metrics HTTP/1.1\r\nX: ", 26);
	while (e2e_now_ms() - begun < 2 * GIVEUP_MS) {
		struct pollfd p = { .fd = dripping, .events = POLLIN };

		if (poll(&p, 1, 100) == 1)
			break;
		if (i++ % 2 == 0)
			http_write(dripping, "a", 1);
	}
	ck_assert_uint_ge(e2e_now_ms() - begun, GIVEUP_MS - 1000);
	ck_assert_uint_lt(e2e_now_ms() - begun, 2 * GIVEUP_MS);
	a = http_answer_read(silent);
	ck_assert_int_eq(a.status, 0);
	http_answer_free(&a);
	ck_assert_uint_lt(e2e_now_ms() - begun, 2 * GIVEUP_MS);
	close(silent);
	close(dripping);
	pages_check();
}
END_TEST

/* More silent peers than connections: workers notice nothing, and a scrape has its turn later. */
START_TEST(a_crowd_waits_outside)
{
	struct proto_open_rep o;
	int fds[40];
	struct raw r;
	long double open_fds, crowded;

	http_start_unix("64");
	raw_connect(&r, d.socket);
	raw_hello(&r);
	o = raw_open(&r, "m", 4096);
	open_fds = http_value("process_open_fds");
	e2e_sleep_ms(300); /* until the last connection is forgotten */
	for (size_t i = 0; i < radix_array_size(fds); i++)
		fds[i] = http_connect();
	for (uint32_t i = 0; i < 50; i++) {
		unsigned long begun = e2e_now_ms();

		release(&r, match(&r, o.ns, i, 4).lease);
		ck_assert_uint_lt(e2e_now_ms() - begun, 2000);
	}
	crowded = 0;
	{
		char path[64], out[16];
		const char *const argv[] = { "/bin/sh", "-c", path, NULL };

		snprintf(path, sizeof(path), "ls /proc/%d/fd | wc -l", (int)d.pid);
		ck_assert_int_eq(e2e_run(argv, out, sizeof(out)), 0);
		crowded = strtold(out, NULL);
	}
	ck_assert_msg(crowded <= open_fds + 16, "%.0Lf descriptors, %.0Lf before", crowded,
		      open_fds);
	ck_assert_msg(crowded >= open_fds + 10, "%.0Lf descriptors, %.0Lf before", crowded,
		      open_fds);
	for (size_t i = 20; i < radix_array_size(fds); i++)
		close(fds[i]);
	pages_check(); /* the first ones end after 5 s */
	for (size_t i = 0; i < 20; i++)
		close(fds[i]);
	raw_close(&r);
	expect_clean();
}
END_TEST

/* Peers that ask and never read: their answers wait in their buffers, nobody waits for them. */
START_TEST(slow_scrapers_hold_nobody_up)
{
	static const char request[] = "GET /metrics HTTP/1.1\r\n\r\n";
	struct proto_open_rep o;
	int fds[12], small = 1;
	struct raw r;

	http_start_tcp();
	raw_connect(&r, d.socket);
	raw_hello(&r);
	o = raw_open(&r, "m", 4096);
	for (size_t i = 0; i < radix_array_size(fds); i++) {
		fds[i] = http_connect();
		ck_assert_int_eq(setsockopt(fds[i], SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)),
				 0);
		http_write(fds[i], request, sizeof(request) - 1);
	}
	for (uint32_t i = 0; i < 500; i++) {
		unsigned long begun = e2e_now_ms();

		release(&r, match(&r, o.ns, i, 4).lease);
		ck_assert_uint_lt(e2e_now_ms() - begun, 2000);
	}
	pages_check();
	for (size_t i = 0; i < radix_array_size(fds); i++)
		close(fds[i]);
	raw_close(&r);
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGTERM), 0);
}
END_TEST

/* Random bytes, and requests cut anywhere: no answer but a refusal, and the daemon lives. */
START_TEST(noise)
{
	static const char good[] = "GET /healthz HTTP/1.1\r\nHost: x\r\nAccept: a/b;q=1\r\n\r\n";
	uint64_t rng;

	rng = 37;
	http_start_unix("64");
	for (int i = 0; i < 300; i++) {
		char bytes[256];
		size_t len = sizeof(good) - 1;
		struct http_answer a;
		int fd = http_connect();

		memcpy(bytes, good, len);
		if (i % 3 == 0)
			len = test_rng_below(&rng, (uint32_t)len);
		for (size_t k = test_rng_below(&rng, 6); k > 0 && len > 0; k--)
			bytes[test_rng_below(&rng, (uint32_t)len)] = (char)test_rng_below(&rng,
											  256);
		http_write(fd, bytes, len);
		ck_assert_int_eq(shutdown(fd, SHUT_WR), 0);
		a = http_answer_read(fd);
		ck_assert_msg(a.status == 0 || a.status == 200 || a.status == 400 ||
				      a.status == 404 || a.status == 405 || a.status == 501,
			      "%d: %.80s", a.status, a.text);
		http_answer_free(&a);
		close(fd);
	}
	pages_check();
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGTERM), 0);
}
END_TEST

#define TESTS(...) ((const TTest *const[]){ __VA_ARGS__, NULL })

int main(int argc, char **argv)
{
	const struct shell_case cases[] = {
		{ "pages",
		  TESTS(pages_over_tcp, pages_over_a_unix_socket, other_addresses_are_refused,
			off_by_default, readyz_tells_of_a_drain, a_refused_reload_shows) },
		{ "rude", TESTS(requests_that_are_wrong, long_requests_one_after_another,
				silence_and_dripping_end, a_crowd_waits_outside,
				slow_scrapers_hold_nobody_up, noise) },
	};

	return shell_main(cases, radix_array_size(cases), argc > 1 ? argv[1] : NULL);
}
