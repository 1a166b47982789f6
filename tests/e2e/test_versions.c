/*
 * test_versions.c - who speaks an older version of the protocol to the real binary.
 *
 * Where pools lie in this machine's memory he is served.  With E2E_DEVICE=cuda he is told that he
 * cannot be, before he is sent descriptors that he would take for files; his connection goes on.
 */
#include "tests/e2e/harness.h"
#include "tests/e2e/shell_world.h"

#include <check.h>
#include <string.h>
#include <unistd.h>

static struct proto_span text(const char *s)
{
	return (struct proto_span){ s, (uint32_t)strlen(s) };
}

static void hello(struct raw *r, uint16_t version)
{
	const struct proto_hello_req m = { .version_min = 1,
					   .version_max = version,
					   .self_test = proto_self_test(1),
					   .instance = { .b = { (uint8_t)version } },
					   .name = text("old") };
	uint8_t body[256];
	struct proto_writer w = { .p = body, .cap = sizeof(body) };

	proto_hello_req_encode(&w, &m);
	ck_assert(proto_writer_ok(&w));
	ck_assert(raw_call(r, PROTO_OP_HELLO, body, w.len));
	ck_assert_uint_eq(r->h.status, PROTO_STATUS_OK);
	ck_assert_uint_eq(r->version, version);
}

/* Status of the reply. */
static uint16_t open_in(struct raw *r)
{
	const struct proto_open_req m = { .key_mode = PROTO_KEYS_TOKENS,
					  .flags = PROTO_OPEN_OPAQUE,
					  .model = text("m"),
					  .revision = text("r1"),
					  .dtype = text("float16"),
					  .layers = 1,
					  .kv_heads = 1,
					  .head_dim = 64,
					  .block_tokens = BLOCK,
					  .block_bytes = 4096,
					  .layout = text("opaque"),
					  .tp_size = 1,
					  .engine = text("raw") };
	uint8_t body[1024];
	struct proto_writer w = { .p = body, .cap = sizeof(body) };

	proto_open_req_encode_as(&w, r->version, &m);
	ck_assert(proto_writer_ok(&w));
	ck_assert(raw_call(r, PROTO_OP_OPEN, body, w.len));
	for (uint32_t i = 0; i < r->n_fds; i++)
		close(r->fds[i]);
	return r->h.status;
}

START_TEST(each_version)
{
	const bool gpu = strcmp(e2e_device(), "cuda") == 0;

	START("--pool-blocks", "8");
	for (uint16_t version = 1; version <= PROTO_VERSION; version++) {
		struct proto_error e;
		const char *bad;
		struct raw r;

		raw_connect(&r, d.socket);
		hello(&r, version);
		if (version >= 3 || !gpu) {
			ck_assert_uint_eq(open_in(&r), PROTO_STATUS_OK);
			ck_assert_uint_ge(r.n_fds, 2);
		} else {
			ck_assert_uint_eq(open_in(&r), PROTO_STATUS_UNSUPPORTED);
			ck_assert_uint_eq(r.n_fds, 0);
			ck_assert_int_eq(proto_error_decode(r.body, r.h.len, &e, &bad), 0);
			ck_assert_ptr_nonnull(memmem(e.text.p, e.text.n, "version 3", 9));
		}
		ck_assert(raw_call(&r, PROTO_OP_PING, NULL, 0));
		ck_assert_uint_eq(r.h.status, PROTO_STATUS_OK);
		raw_close(&r);
	}
	expect_clean();
}
END_TEST

int main(void)
{
	const TTest *const tests[] = { each_version, NULL };
	const struct shell_case cases[] = { { "versions", tests } };

	return shell_main(cases, 1, NULL);
}
