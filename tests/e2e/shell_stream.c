/*
 * shell_stream.c - the real binary and what a peer may do to its byte stream: cut it anywhere, send
 * ten thousand frames at once, be rude.
 *
 * With an argument only the test case of that name runs.
 */
#include "tests/e2e/shell_world.h"
#include "tests/lib/rng.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- framing over the real socket ------------------------------------------------------------ */

START_TEST(split_at_every_offset)
{
	static uint8_t bytes[1 << 15];
	struct proto_open_rep o;
	struct raw r;
	size_t len;

	START("--pool-blocks", "64");
	raw_connect(&r, d.socket);
	raw_hello(&r);
	o = raw_open(&r, "m", 4096);
	for (size_t cut = 1;; cut++) {
		uint8_t body[512];
		size_t n = match_body(body, sizeof(body), o.ns, 7, 3);
		uint64_t first = r.seq + 1;

		len = raw_frame(&r, bytes, PROTO_OP_PING, NULL, 0);
		len += raw_frame(&r, bytes + len, PROTO_OP_PROBE, body, 0); /* a body too short */
		len += raw_frame(&r, bytes + len, PROTO_OP_MATCH, body, n);
		len += raw_frame(&r, bytes + len, PROTO_OP_PING, NULL, 0);
		if (cut >= len)
			break;
		ck_assert(raw_write(&r, bytes, cut));
		usleep(200); /* so that the daemon reads the first part alone */
		ck_assert(raw_write(&r, bytes + cut, len - cut));
		for (uint64_t i = 0; i < 4; i++) {
			static const uint16_t status[] = { PROTO_STATUS_OK, PROTO_STATUS_BAD_BODY,
							   PROTO_STATUS_OK, PROTO_STATUS_OK };

			ck_assert(raw_read(&r));
			ck_assert_uint_eq(r.h.seq, first + i);
			ck_assert_uint_eq(r.h.status, status[i]);
			if (i == 2) {
				struct proto_match_rep rep;
				const char *bad;

				ck_assert_int_eq(
					proto_match_rep_decode(r.body, r.h.len, &rep, &bad), 0);
				ck_assert_uint_ne(rep.lease, 0);
			}
		}
		if (cut % 64 == 0) { /* leases of the matches go with their session */
			raw_close(&r);
			raw_connect(&r, d.socket);
			raw_hello(&r);
			o = raw_open(&r, "m", 4096);
		}
	}
	raw_close(&r);
	expect_clean();
}
END_TEST

/* Kilobytes from /proc/PID/status. */
static long status_kb(pid_t pid, const char *name)
{
	char path[64], line[256];
	long kb = -1;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	f = fopen(path, "re");
	ck_assert_ptr_nonnull(f);
	while (fgets(line, sizeof(line), f))
		if (strncmp(line, name, strlen(name)) == 0)
			kb = strtol(line + strlen(name) + 1, NULL, 10);
	fclose(f);
	ck_assert_int_ge(kb, 0);
	return kb;
}

START_TEST(ten_thousand_pipelined)
{
	enum {
		N = 10000
	};
	uint8_t body[2048];
	struct proto_open_rep o;
	uint8_t *bytes;
	struct raw r;
	size_t len = 0, n;
	long before, after;
	uint64_t first;
	pid_t writer;
	int status;

	START("--pool-blocks", "64");
	raw_connect(&r, d.socket);
	raw_hello(&r);
	o = raw_open(&r, "m", 4096);
	store(&r, o.ns, 1, 8);
	n = match_body(body, sizeof(body), o.ns, 1, 8);
	bytes = malloc((size_t)N * (PROTO_HEADER_LEN + n));
	ck_assert_ptr_nonnull(bytes);
	/* MATCH has replies with runs; its leases are left, so many of them meet the limit of
	 * leases: every frame is answered all the same. */
	first = r.seq + 1;
	for (int i = 0; i < N; i++)
		len += raw_frame(&r, bytes + len, i % 2 ? PROTO_OP_MATCH : PROTO_OP_PING, body,
				 i % 2 ? n : 0);
	before = status_kb(d.pid, "VmRSS:");
	writer = fork();
	ck_assert_int_ge(writer, 0);
	if (writer == 0) /* sends everything before anybody reads; the socket is shared */
		_exit(raw_write(&r, bytes, len) ? 0 : 1);
	e2e_sleep_ms(300); /* the daemon has work for longer than its limits allow to queue */
	after = status_kb(d.pid, "VmHWM:");
	for (uint64_t i = 0; i < N; i++) {
		ck_assert_msg(raw_read(&r), "closed at frame %llu", (unsigned long long)i);
		ck_assert_uint_eq(r.h.seq, first + i);
		ck_assert_uint_eq(r.h.op, i % 2 ? PROTO_OP_MATCH : PROTO_OP_PING);
	}
	ck_assert_int_eq(waitpid(writer, &status, 0), writer);
	ck_assert_int_eq(status, 0);
	ck_assert_msg(after - before < 16 * 1024, "grew by %ld KiB", after - before);
	after = status_kb(d.pid, "VmHWM:");
	ck_assert_msg(after - before < 16 * 1024, "grew by %ld KiB in the end", after - before);
	raw_close(&r);
	free(bytes);
	expect_clean();
}
END_TEST

/* ---- rude input ------------------------------------------------------------------------------ */

/* One connection that says something wrong, and maybe reads, and maybe leaves in the middle. */
static void be_rude(uint64_t *rng, const struct proto_open_rep *o)
{
	static uint8_t bytes[1 << 16];
	struct raw r;
	size_t len = 0;

	raw_connect(&r, test_rng_below(rng, 4) ? d.socket : d.admin);
	if (test_rng_below(rng, 4)) {
		raw_hello(&r);
		if (test_rng_below(rng, 2))
			(void)raw_open(&r, "m", 4096);
	}
	for (uint32_t i = 0, n = 1 + test_rng_below(rng, 8); i < n; i++) {
		uint8_t body[4096];
		size_t body_len = test_rng_below(rng, 300);
		uint16_t op = (uint16_t)test_rng_below(rng, 34);
		size_t at = len;

		for (size_t k = 0; k < body_len; k++)
			body[k] = test_rng_below(rng, 3) ? 0 : (uint8_t)test_rng_below(rng, 256);
		if (test_rng_below(rng, 3) == 0) {
			op = PROTO_OP_MATCH;
			body_len = match_body(body, sizeof(body), o->ns, test_rng_below(rng, 1000),
					      test_rng_below(rng, 8));
			if (test_rng_below(rng, 2)) /* one bit off */
				body[test_rng_below(rng, (uint32_t)body_len)] ^=
					(uint8_t)(1u << test_rng_below(rng, 8));
		}
		len += raw_frame(&r, bytes + len, op, body, body_len);
		if (test_rng_below(rng, 8) == 0) /* a header with a bit off */
			bytes[at + test_rng_below(rng, PROTO_HEADER_LEN)] ^=
				(uint8_t)(1u << test_rng_below(rng, 8));
	}
	if (test_rng_below(rng, 4) == 0)
		len -= test_rng_below(rng, PROTO_HEADER_LEN);
	(void)raw_write(&r, bytes, len); /* the daemon may have closed already */
	if (test_rng_below(rng, 2)) {
		uint8_t got[4096];

		(void)shutdown(r.fd, SHUT_WR);
		while (recv(r.fd, got, sizeof(got), 0) > 0)
			;
	}
	raw_close(&r);
}

START_TEST(rude_input_harms_nobody)
{
	unsigned rounds = getenv("PREFIXD_NIGHTLY") ? 50000 : 1500;
	struct proto_open_rep o;
	uint64_t rng = 20240607;
	struct raw good;

	START("--pool-blocks", "64", "--log-level", "error");
	raw_connect(&good, d.socket);
	raw_hello(&good);
	o = raw_open(&good, "m", 4096);
	store(&good, o.ns, 1, 20);
	for (unsigned i = 0; i < rounds; i += 50) {
		pid_t worker = fork(); /* its leases go with it */
		int status;

		ck_assert_int_ge(worker, 0);
		if (worker == 0) {
			for (unsigned k = 0; k < 50; k++)
				be_rude(&rng, &o);
			_exit(0);
		}
		ck_assert_int_eq(waitpid(worker, &status, 0), worker);
		ck_assert_int_eq(status, 0);
		(void)test_rng(&rng); /* other words for the next one */
		expect_clean();
	}
	ck_assert_uint_eq(match(&good, o.ns, 1, 20).n_device, 20); /* the good one is undisturbed */
	raw_close(&good);
	expect_clean();
	wait_stat("leases", 1); /* of this very process, which lives: an orphan */
	ck_assert(WIFEXITED(e2e_daemon_stop(&d, SIGINT)));
}
END_TEST

#define TESTS(...) ((const TTest *const[]){ __VA_ARGS__, NULL })

int main(int argc, char **argv)
{
	const struct shell_case cases[] = {
		{ "split-every-offset", TESTS(split_at_every_offset) },
		{ "pipeline-10000", TESTS(ten_thousand_pipelined) },
		{ "rude", TESTS(rude_input_harms_nobody) },
	};

	return shell_main(cases, radix_array_size(cases), argc > 1 ? argv[1] : NULL);
}
