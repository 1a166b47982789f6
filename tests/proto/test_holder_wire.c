/*
 * test_holder_wire.c - the frames between daemon, holder and prefixctl: each field comes back, each
 * cut and each byte that has no place is refused, and of another version only the head is read.
 */
#include "proto/holder_wire.h"
#include "tests/lib/run.h"

#include <stdlib.h>

static struct proto_holder_frame sample(void)
{
	return (struct proto_holder_frame){ .version = PROTO_HOLDER_VERSION,
					    .op = PROTO_HOLDER_ITEM,
					    .seq = 0x0102030405060708,
					    .status = 3,
					    .flags = 5,
					    .index = 7,
					    .n_items = 9,
					    .holder_pid = 11,
					    .daemon_pid = 13,
					    .timeout_ns = UINT64_MAX,
					    .left_ns = 17,
					    .age_ns = 19,
					    .size = 1ull << 40,
					    .held = 23,
					    .name = "g12.pool",
					    .text = "0.1.0" };
}

START_TEST(each_field_comes_back_from_its_place)
{
	const struct proto_holder_frame f = sample();
	struct proto_holder_frame got = { 0 };
	uint8_t bytes[PROTO_HOLDER_LEN];

	proto_holder_encode(&f, bytes);
	ck_assert_int_eq(proto_holder_decode(bytes, sizeof(bytes), &got), 0);
#define X(field, at) ck_assert_mem_eq(&got.field, &f.field, sizeof(f.field));
	PROTO_HOLDER_FIELDS(X)
#undef X
	/* The layout is what other programs count on. */
	ck_assert_mem_eq(bytes, "PFXH\1\0\4\0\10\7\6\5\4\3\2\1\3\0\0\0\5\0\0\0", 24);
	ck_assert_mem_eq(bytes + 80, "g12.pool", 9);
	ck_assert_mem_eq(bytes + 144, "0.1.0", 6);
}
END_TEST

START_TEST(what_is_cut_or_longer_is_refused)
{
	const struct proto_holder_frame f = sample();
	struct proto_holder_frame got;

	for (size_t n = 0; n <= PROTO_HOLDER_LEN + 3; n++) {
		/* Of just this size, so that reading on is noticed. */
		uint8_t full[PROTO_HOLDER_LEN + 3] = { 0 }, *bytes = malloc(n ? n : 1);

		ck_assert_ptr_nonnull(bytes);
		proto_holder_encode(&f, full);
		memcpy(bytes, full, n);
		ck_assert_int_eq(proto_holder_decode(bytes, n, &got),
				 n == PROTO_HOLDER_LEN ? 0 : PROTO_HOLDER_E_BAD);
		free(bytes);
	}
}
END_TEST

START_TEST(bytes_without_a_place_are_refused)
{
	const struct proto_holder_frame f = sample();
	struct proto_holder_frame got;
	uint8_t bytes[PROTO_HOLDER_LEN];

	for (size_t i = 0; i < PROTO_HOLDER_LEN; i++) {
		bool text = i >= 80 && i < 176, head = i < 6;
		int r;

		proto_holder_encode(&f, bytes);
		bytes[i] ^= 0x80; /* what no text may hold, wherever its end is */
		r = proto_holder_decode(bytes, sizeof(bytes), &got);
		if (i == 4 || i == 5)
			ck_assert_int_eq(r, PROTO_HOLDER_E_VERSION);
		else
			ck_assert_int_eq(r, text || head || i >= 176 ? PROTO_HOLDER_E_BAD : 0);
	}
	proto_holder_encode(&f, bytes);
	memset(bytes + 80, 'x', PROTO_HOLDER_NAME_LEN); /* no end */
	ck_assert_int_eq(proto_holder_decode(bytes, sizeof(bytes), &got), PROTO_HOLDER_E_BAD);
	proto_holder_encode(&f, bytes);
	bytes[80 + 20] = 'x'; /* behind its end */
	ck_assert_int_eq(proto_holder_decode(bytes, sizeof(bytes), &got), PROTO_HOLDER_E_BAD);
}
END_TEST

START_TEST(of_another_version_the_head_is_read)
{
	struct proto_holder_frame f = sample(), got;
	uint8_t bytes[PROTO_HOLDER_LEN];

	f.version = 2;
	proto_holder_encode(&f, bytes);
	memset(bytes + PROTO_HOLDER_HEAD_LEN, 0xff, sizeof(bytes) - PROTO_HOLDER_HEAD_LEN);
	for (size_t n = PROTO_HOLDER_HEAD_LEN; n <= PROTO_HOLDER_LEN; n++) {
		memset(&got, 0xaa, sizeof(got));
		ck_assert_int_eq(proto_holder_decode(bytes, n, &got), PROTO_HOLDER_E_VERSION);
		ck_assert_uint_eq(got.version, 2);
		ck_assert_uint_eq(got.op, f.op);
		ck_assert_uint_eq(got.seq, f.seq);
		ck_assert_uint_eq(got.status, f.status);
		ck_assert_uint_eq(got.flags, f.flags);
		ck_assert_uint_eq(got.index, 0);
		ck_assert_uint_eq(got.held, 0);
		ck_assert_str_eq(got.name, "");
	}
	ck_assert_int_eq(proto_holder_decode(bytes, PROTO_HOLDER_HEAD_LEN - 1, &got),
			 PROTO_HOLDER_E_BAD);
}
END_TEST

START_TEST(names_and_words)
{
	static const char *const good[] = { "a", "ledger", "g0.pool", "A-Z_9", "..." };
	static const char *const bad[] = { "", " ", "a b", "a/b", "a=b", "a:b", "a\n", "\xc3\xa4" };
	char name[PROTO_HOLDER_NAME_LEN + 1] = { 0 };

	for (size_t i = 0; i < radix_array_size(good); i++)
		ck_assert(proto_holder_name_ok(good[i]));
	for (size_t i = 0; i < radix_array_size(bad); i++)
		ck_assert(!proto_holder_name_ok(bad[i]));
	memset(name, 'a', PROTO_HOLDER_NAME_LEN - 1);
	ck_assert(proto_holder_name_ok(name));
	memset(name, 'a', PROTO_HOLDER_NAME_LEN);
	ck_assert(!proto_holder_name_ok(name));
	for (uint32_t i = 0; i <= PROTO_HOLDER_STATUS_NO_DESCRIPTOR; i++)
		for (uint32_t j = 0; j < i; j++)
			ck_assert_str_ne(proto_holder_status_to_string(i),
					 proto_holder_status_to_string(j));
	ck_assert_ptr_nonnull(strstr(proto_holder_status_to_string(77), "does not know"));
}
END_TEST

int main(void)
{
	Suite *s = suite_create("holder-wire");
	TCase *tc = tcase_create("holder-wire");

	tcase_add_test(tc, each_field_comes_back_from_its_place);
	tcase_add_test(tc, what_is_cut_or_longer_is_refused);
	tcase_add_test(tc, bytes_without_a_place_are_refused);
	tcase_add_test(tc, of_another_version_the_head_is_read);
	tcase_add_test(tc, names_and_words);
	suite_add_tcase(s, tc);
	return test_run(s);
}
