/*
 * test_wrong_uid.c - T56: who is not meant to come in does not, whatever he sends; the real binary.
 * That no bytes of his do harm is the fuzz corpora's part.
 */
#include "tests/e2e/shell_world.h"

#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOBODY 65534

static uint16_t hello_status(struct raw *r)
{
	const struct proto_hello_req m = { .version_min = PROTO_VERSION,
					   .version_max = PROTO_VERSION,
					   .self_test = proto_self_test(PROTO_VERSION),
					   .name = { .p = "x", .n = 1 } };
	uint8_t body[256];
	struct proto_writer w = { .p = body, .cap = sizeof(body) };

	proto_hello_req_encode(&w, &m);
	ck_assert(proto_writer_ok(&w));
	ck_assert(raw_call(r, PROTO_OP_HELLO, body, w.len));
	return r->h.status;
}

/* A daemon whose only tenant belongs to another user. */
START_TEST(a_user_without_a_tenant)
{
	struct raw r;
	char tenant[64];
	uint8_t byte;

	snprintf(tenant, sizeof(tenant), "default=uid:%u", geteuid() + 1);
	START("--pool-blocks", "8", "--tenant", tenant);
	raw_connect(&r, d.socket);
	ck_assert_uint_eq(hello_status(&r), PROTO_STATUS_FORBIDDEN);
	ck_assert_int_eq(recv(r.fd, &byte, 1, 0), 0); /* and that was it */
	raw_close(&r);
	/* Nor without HELLO, whatever is asked for. */
	for (uint16_t op = 0; op < 40; op++) {
		if (op == PROTO_OP_HELLO)
			continue;
		raw_connect(&r, d.socket);
		ck_assert(raw_call(&r, op, "\0\0\0\0\0\0\0\0", 8));
		ck_assert_uint_ne(r.h.status, PROTO_STATUS_OK);
		ck_assert_int_eq(recv(r.fd, &byte, 1, 0), 0);
		raw_close(&r);
	}
	expect_clean();
	ck_assert_int_eq(admin_number("{\"op\":\"stat\"}", "sessions"), 1);
}
END_TEST

/* In a child of another user: errno of connect(), or the status of HELLO plus 1000. */
static int as_nobody(const char *path)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int status, p[2], answer = -1;
	pid_t pid;

	ck_assert_int_eq(pipe(p), 0);
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		struct raw r = { .fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0) };

		if (setgroups(0, NULL) != 0 || setgid(NOBODY) != 0 || setuid(NOBODY) != 0)
			_exit(1);
		memcpy(addr.sun_path, path, strlen(path));
		answer = connect(r.fd, (struct sockaddr *)&addr, sizeof(addr)) == 0
				 ? 1000 + hello_status(&r)
				 : errno;
		_exit(write(p[1], &answer, sizeof(answer)) == sizeof(answer) ? 0 : 1);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
	ck_assert_int_eq(read(p[0], &answer, sizeof(answer)), sizeof(answer));
	close(p[0]);
	close(p[1]);
	return answer;
}

/* The same with another user indeed, which only root can play: modes of sockets, and tenants. */
START_TEST(another_user)
{
	if (geteuid() != 0) {
		fprintf(stderr, "not root: nobody here can be another user\n");
		return;
	}
	ck_assert_int_eq(chmod(d.dir, 0755), 0); /* the folder stops nobody */
	START("--pool-blocks", "8", "--socket-mode", "0600");
	ck_assert_int_eq(as_nobody(d.socket), EACCES);
	ck_assert_int_eq(as_nobody(d.admin), EACCES);
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGTERM), 0);
	START("--pool-blocks", "8", "--socket-mode", "0666", "--tenant", "default=uid:0");
	ck_assert_int_eq(as_nobody(d.socket), 1000 + PROTO_STATUS_FORBIDDEN);
	ck_assert_int_eq(as_nobody(d.admin), EACCES); /* whatever the workers' socket has */
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGTERM), 0);
	START("--pool-blocks", "8", "--socket-mode", "0666", "--tenant", "default=uid:0,uid:65534");
	ck_assert_int_eq(as_nobody(d.socket), 1000 + PROTO_STATUS_OK);
}
END_TEST

#define TESTS(...) ((const TTest *const[]){ __VA_ARGS__, NULL })

int main(void)
{
	const struct shell_case cases[] = {
		{ "T56", TESTS(a_user_without_a_tenant, another_user) },
	};

	return shell_main(cases, radix_array_size(cases), NULL);
}
