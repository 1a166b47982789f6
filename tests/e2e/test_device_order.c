/*
 * test_device_order.c - memory that a daemon left on GPUs, and a next life that finds them in
 * another order, or not at all, on the look-alike driver: slots are taken back on the GPU that they
 * lie on, or are not taken back.
 *
 * Workers are raw frames here, and write nothing: this process loads no driver, so it may fork.
 */
#include "tests/e2e/shell_world.h"
#include "tests/lib/run.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define UUID(n) "100ca11c-e000-4000-8000-00000000000" #n

enum {
	SMALL = 4096
};

static struct raw worker;

static void life(const char *device, const char *write)
{
	ck_assert_int_eq(setenv("E2E_DEVICE", "cuda", 1), 0);
	ck_assert_int_eq(setenv("LOOKALIKE", "devices=3,abort=1,poison=1,opaque=1", 1), 0);
	START("--device", device, "--pool-blocks", "8", "--pool-write", write, "--keep", "holder",
	      "--hold-timeout", "30s");
	raw_connect(&worker, d.socket);
	raw_hello(&worker);
}

static void end(int signal)
{
	raw_close(&worker);
	ck_assert_int_ge(e2e_daemon_stop(&d, signal), 0);
}

/* Its namespace; the pool lies on that one. */
static uint32_t open_on(const char *uuid)
{
	struct proto_open_rep o = raw_open(&worker, "m", SMALL);
	char text[40] = "";
	size_t n = 0;

	while (worker.n_fds > 0)
		close(worker.fds[--worker.n_fds]);
	for (uint32_t i = 0; i < sizeof(o.device_id.b); i++)
		n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%02x",
				      i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
				      o.device_id.b[i]);
	ck_assert_str_eq(text, uuid);
	return o.ns;
}

static uint32_t found(uint32_t ns)
{
	struct proto_match_rep rep = match(&worker, ns, 1000, 2);

	release(&worker, rep.lease);
	return rep.n_device;
}

static bool log_has(const char *text)
{
	char *log = e2e_daemon_log(&d);
	bool has = strstr(log, text) != NULL;

	free(log);
	return has;
}

/* Each life begins with another one. */
static const char *const orders[] = {
	"cuda:" UUID(1) "," UUID(0),
	"cuda:" UUID(2) "," UUID(0) "," UUID(1),
	"cuda:" UUID(0),
	"cuda",
};

/* In the second case desks, which lie where the pool lies. */
static void in_another_order(const char *write)
{
	uint32_t ns;

	life("cuda:" UUID(0) "," UUID(1), write);
	ns = open_on(UUID(0));
	store(&worker, ns, 1000, 2);
	for (uint32_t i = 0; i < radix_array_size(orders); i++) {
		end(SIGKILL);
		life(orders[i], write);
		ns = open_on(UUID(0));
		ck_assert_uint_eq(found(ns), 2);
		store(&worker, ns, 2000 + i * 1000, 1); /* and it can be written to */
	}
	ck_assert(!log_has("cannot be taken back"));
	expect_clean();
	end(SIGINT);
}

START_TEST(in_another_order_directly)
{
	in_another_order("direct");
}
END_TEST

START_TEST(in_another_order_staged)
{
	in_another_order("staged");
}
END_TEST

/* The GPU is not there: the memory is given up with a sentence, and there is other. */
START_TEST(without_it)
{
	uint32_t ns;

	life("cuda:" UUID(0) "," UUID(1), "direct");
	ns = open_on(UUID(0));
	store(&worker, ns, 1000, 2);
	end(SIGKILL);
	life("cuda:" UUID(2) "," UUID(1), "direct");
	ns = open_on(UUID(2));
	ck_assert(log_has("kept from before, cannot be taken back: it lies on GPU-" UUID(
		0) ", which is "
		   "none of this daemon's devices"));
	ck_assert_uint_eq(found(ns), 0);
	store(&worker, ns, 1000, 2);
	/* Of which the ledger says where it lies. */
	end(SIGKILL);
	life("cuda", "direct");
	ns = open_on(UUID(2));
	ck_assert_uint_eq(found(ns), 2);
	expect_clean();
	end(SIGINT);
}
END_TEST

int main(int argc, char **argv)
{
	const TTest *const order[] = { in_another_order_directly, in_another_order_staged, NULL };
	const TTest *const without[] = { without_it, NULL };
	const struct shell_case cases[] = { { "order", order }, { "without", without } };

	return shell_main(cases, radix_array_size(cases), argc > 1 ? argv[1] : NULL);
}
