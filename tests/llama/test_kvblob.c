/*
 * test_kvblob.c - the reader of libllama's blobs, on blobs that are right and on ones that are not.
 *
 * Blobs are written here field by field, by what is known of the layout and not by the code under
 * test.  Each lies at the end of a page behind which nothing may be touched, so that one byte read
 * too many ends the test, in any build.
 */
#include "clients/llama/kvblob.h"
#include "tests/lib/rng.h"
#include "tests/lib/run.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ROOM   (1u << 16)
#define LAYERS 3u
#define TOKENS 4u /* of a block */

static uint8_t *guarded; /* ROOM bytes, then a page that cannot be read */

static void setup(void)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	guarded = mmap(NULL, ROOM + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
		       0);
	ck_assert_ptr_ne(guarded, MAP_FAILED);
	ck_assert_int_eq(mprotect(guarded + ROOM, page, PROT_NONE), 0);
}

static void teardown(void)
{
	ck_assert_int_eq(munmap(guarded, ROOM + (size_t)sysconf(_SC_PAGESIZE)), 0);
}

struct text {
	uint8_t b[ROOM];
	size_t n;
};

static void u32(struct text *t, uint32_t v)
{
	memcpy(t->b + t->n, &v, 4);
	t->n += 4;
}

static void u64(struct text *t, uint64_t v)
{
	memcpy(t->b + t->n, &v, 8);
	t->n += 8;
}

/* What row `cell` of a layer holds, so that a row in a wrong place shows. */
static void row(struct text *t, uint32_t of, uint32_t layer, int32_t position, uint32_t size)
{
	for (uint32_t i = 0; i < size; i++)
		t->b[t->n++] = (uint8_t)(of * 101 + layer * 37 + (uint32_t)position * 11 + i);
}

static uint32_t row_size(uint32_t of, uint32_t layer)
{
	return 8 + 4 * layer + 2 * of;
}

static const int32_t plain[] = { 8, 9, 10, 11, 12, 13, 14, 15 };

static void blob_with(struct text *t, const int32_t *positions, uint32_t n, uint32_t streams,
		      uint32_t transposed, uint32_t layers)
{
	t->n = 0;
	u32(t, 0xaf143cd8);
	u32(t, 1);
	u32(t, streams);
	u32(t, n);
	for (uint32_t i = 0; i < n; i++) {
		u32(t, (uint32_t)positions[i]);
		u32(t, 1);
		u32(t, 1);
	}
	u32(t, transposed);
	u32(t, layers);
	u32(t, 0);
	u32(t, 64);
	for (uint32_t of = 0; of < 2; of++) {
		for (uint32_t l = 0; l < layers; l++) {
			u32(t, 1 + of);
			u64(t, row_size(of, l));
			for (uint32_t i = 0; i < n; i++)
				row(t, of, l, positions[i], row_size(of, l));
		}
	}
}

static void blob(struct text *t)
{
	blob_with(t, plain, 8, 1, 0, LAYERS);
}

/* Where the blob lies that is parsed: its end is the end of what may be read. */
static const uint8_t *place(const struct text *t)
{
	return memcpy(guarded + ROOM - t->n, t->b, t->n);
}

static int parse(const struct text *t, struct kvblob *b)
{
	return kvblob_parse(place(t), t->n, b);
}

static void expect(const struct text *t, int error)
{
	struct kvblob *b = malloc(sizeof(*b));
	int e = parse(t, b);

	ck_assert_msg(e == error, "it %s, where it %s was to be said", kvblob_error_to_string(e),
		      kvblob_error_to_string(error));
	free(b);
}

/* ---- what is right --------------------------------------------------------------------------- */

static void check_blocks(const int32_t *positions)
{
	struct text *t = calloc(1, sizeof(*t)), *want = calloc(1, sizeof(*want));
	struct kvblob *b = malloc(sizeof(*b));
	uint8_t out[2][512];
	void *const to[] = { out[0], out[1] };
	const void *const from[] = { out[0], out[1] };
	uint32_t order[8];

	blob_with(t, positions, 8, 1, 0, LAYERS);
	ck_assert_int_eq(parse(t, b), 0);
	ck_assert_uint_eq(b->n_cells, 8);
	ck_assert_uint_eq(b->n_layers, LAYERS);
	ck_assert_uint_eq(b->rot_k, 0);
	ck_assert_uint_eq(b->rot_v, 64);
	ck_assert_uint_eq(kvblob_size(b, 8), t->n);
	ck_assert(kvblob_order(place(t), b, 8, order));
	kvblob_read(place(t), b, order, TOKENS, 2, to);
	for (uint32_t k = 0; k < 2; k++) {
		want->n = 0;
		for (uint32_t l = 0; l < LAYERS; l++) {
			for (uint32_t of = 0; of < 2; of++) {
				for (uint32_t i = 0; i < TOKENS; i++)
					row(want, of, l, (int32_t)(8 + k * TOKENS + i),
					    row_size(of, l));
			}
		}
		ck_assert_uint_eq(want->n, kvblob_token_bytes(b) * TOKENS);
		ck_assert_mem_eq(out[k], want->b, want->n);
	}
	/* And back: the plain blob, of sequence 0. */
	blob(want);
	for (uint32_t at = 4; at < 16 + 8 * 12; at += at < 16 ? 20 : 12)
		memset(want->b + at, 0, 4);
	memset(t->b, 0x5a, t->n);
	kvblob_write(b, 8, TOKENS, 2, from, t->b);
	ck_assert_mem_eq(t->b, want->b, want->n);
	free(t);
	free(want);
	free(b);
}

START_TEST(reads_and_writes_blocks)
{
	static const int32_t turned[] = { 12, 13, 14, 15, 8, 9, 10, 11 };
	static const int32_t mixed[] = { 15, 8, 14, 9, 13, 10, 12, 11 };

	check_blocks(plain);
	check_blocks(turned);
	check_blocks(mixed);
}
END_TEST

START_TEST(order_refuses_other_positions)
{
	static const int32_t bad[][8] = {
		{ 8, 9, 10, 11, 12, 13, 14, 14 },
		{ 8, 9, 10, 11, 12, 13, 14, 16 },
		{ 7, 9, 10, 11, 12, 13, 14, 15 },
		{ 8, 9, 10, 11, 12, 13, 14, INT32_MAX },
	};
	struct text *t = calloc(1, sizeof(*t));
	struct kvblob *b = malloc(sizeof(*b));
	uint32_t order[8];

	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		blob_with(t, bad[i], 8, 1, 0, LAYERS);
		ck_assert_int_eq(parse(t, b), 0);
		ck_assert_msg(!kvblob_order(place(t), b, 8, order), "case %zu", i);
	}
	blob(t);
	ck_assert_int_eq(parse(t, b), 0);
	ck_assert(kvblob_order(place(t), b, 8, order));
	ck_assert(!kvblob_order(place(t), b, 7, order));
	ck_assert(!kvblob_order(place(t), b, INT32_MIN, order));
	free(t);
	free(b);
}
END_TEST

START_TEST(shapes_are_compared)
{
	struct text *t = calloc(1, sizeof(*t));
	struct kvblob *a = malloc(sizeof(*a)), *b = malloc(sizeof(*b));
	size_t k = 16 + 8 * 12 + 16; /* the first layer's type */

	blob(t);
	ck_assert_int_eq(parse(t, a), 0);
	ck_assert_int_eq(parse(t, b), 0);
	ck_assert(kvblob_same_shape(a, b));
	t->b[k] = 9;
	ck_assert_int_eq(parse(t, b), 0);
	ck_assert(!kvblob_same_shape(a, b));
	blob(t);
	t->b[k - 8] = 32; /* K's rotation */
	ck_assert_int_eq(parse(t, b), 0);
	ck_assert(!kvblob_same_shape(a, b));
	blob_with(t, plain, 8, 1, 0, LAYERS + 1);
	ck_assert_int_eq(parse(t, b), 0);
	ck_assert(!kvblob_same_shape(a, b));
	free(t);
	free(a);
	free(b);
}
END_TEST

/* ---- what is not ----------------------------------------------------------------------------- */

static void poke(struct text *t, size_t at, uint32_t v)
{
	memcpy(t->b + at, &v, 4);
}

START_TEST(says_what_is_wrong)
{
	struct text *t = calloc(1, sizeof(*t));
	size_t cells = 16, head = cells + 8 * 12, k = head + 16;

	blob(t);
	poke(t, 0, 1);
	expect(t, KVBLOB_MAGIC);
	blob_with(t, plain, 8, 2, 0, LAYERS);
	expect(t, KVBLOB_STREAMS);
	blob(t);
	poke(t, 12, 0);
	expect(t, KVBLOB_NO_CELLS);
	poke(t, 12, UINT32_MAX);
	expect(t, KVBLOB_SHORT);
	blob(t);
	poke(t, cells, UINT32_MAX);
	expect(t, KVBLOB_CELLS);
	blob(t);
	poke(t, cells + 4, 2);
	expect(t, KVBLOB_CELLS);
	blob(t);
	poke(t, cells + 8, 7);
	expect(t, KVBLOB_CELLS);
	blob_with(t, plain, 8, 1, 1, LAYERS);
	expect(t, KVBLOB_TRANSPOSED);
	blob(t);
	poke(t, head + 4, 0);
	expect(t, KVBLOB_LAYERS);
	poke(t, head + 4, KVBLOB_LAYERS_MAX + 1);
	expect(t, KVBLOB_LAYERS);
	blob(t);
	poke(t, k, UINT32_MAX);
	expect(t, KVBLOB_ROWS);
	blob(t);
	poke(t, k + 4, 0);
	expect(t, KVBLOB_ROWS);
	blob(t);
	poke(t, k + 8, 0x80000000);
	expect(t, KVBLOB_SHORT);
	blob(t);
	u32(t, 1);
	expect(t, KVBLOB_TRAILING);
	free(t);
}
END_TEST

START_TEST(names_cells_with_more_in_them)
{
	struct text *t = calloc(1, sizeof(*t));

	u32(t, 0xaf143cd8);
	u32(t, 1);
	u32(t, 1);
	u32(t, 3);
	for (uint32_t i = 0; i < 3; i++) {
		u32(t, i);
		u32(t, 1);
		u32(t, 5);
		u32(t, 6);
		u32(t, 7);
		u32(t, 1);
	}
	u32(t, 0);
	expect(t, KVBLOB_EXTENDED_CELLS);
	free(t);
}
END_TEST

START_TEST(names_a_missing_v)
{
	struct text *t = calloc(1, sizeof(*t));

	blob(t);
	for (uint32_t l = 0; l < LAYERS; l++)
		t->n -= 12 + 8 * row_size(1, l);
	expect(t, KVBLOB_NO_V);
	free(t);
}
END_TEST

START_TEST(no_prefix_is_taken)
{
	struct text *t = calloc(1, sizeof(*t));
	struct kvblob *b = malloc(sizeof(*b));
	size_t n;

	blob(t);
	n = t->n;
	for (t->n = 0; t->n < n; t->n++)
		ck_assert_msg(parse(t, b) != 0, "%zu of %zu bytes", t->n, n);
	ck_assert_int_eq(parse(t, b), 0);
	free(t);
	free(b);
}
END_TEST

static void mutate(struct text *t, uint64_t *rng)
{
	static const uint32_t odd[] = { 0,          1,          2,          0x7fffffff,
					0x80000000, 0xffffffff, 0x10000000, 0xfffffff0 };
	uint32_t n = 1 + (uint32_t)(test_rng(rng) % 3);

	while (n-- && t->n > 4) {
		uint64_t x = test_rng(rng);
		/* Nine of ten in what is not payload: the header and the layers' heads. */
		size_t most = x % 10 ? 200 : t->n, at = (size_t)(test_rng(rng) % most);

		if (at + 4 > t->n)
			at = t->n - 4;
		switch (x >> 32 & 7) {
		case 0:
			t->n = at;
			break;
		case 1:
			t->n += at;
			break;
		case 2:
		case 3:
			poke(t, at, odd[test_rng(rng) % 8]);
			break;
		case 4:
			poke(t, at, (uint32_t)test_rng(rng));
			break;
		case 5:
			memmove(t->b + at, t->b + at + 4, t->n - at - 4);
			t->n -= 4;
			break;
		default:
			t->b[at] ^= (uint8_t)(1u << (x >> 40 & 7));
		}
	}
}

/* Whatever parses is read as a block too: every row that it names must be there. */
static void read_all(const struct text *t, const struct kvblob *b)
{
	const uint8_t *bytes = guarded + ROOM - t->n;
	uint32_t *order = calloc(b->n_cells, sizeof(*order));
	void *out = malloc((size_t)kvblob_token_bytes(b) * b->n_cells);
	int32_t first;

	ck_assert(order && out);
	ck_assert_uint_eq(kvblob_size(b, b->n_cells), t->n);
	memcpy(&first, bytes + b->cells, 4);
	if (kvblob_order(bytes, b, first, order))
		kvblob_read(bytes, b, order, b->n_cells, 1, &out);
	free(order);
	free(out);
}

START_TEST(mutations_are_refused_or_in_bounds)
{
	struct text *t = calloc(1, sizeof(*t));
	struct kvblob *b = malloc(sizeof(*b));
	uint32_t taken = 0, refused = 0, seen = 0;
	uint64_t rng = 20;

	for (uint32_t i = 0; i < 100000; i++) {
		int e;

		blob(t);
		mutate(t, &rng);
		e = parse(t, b);
		seen |= 1u << e;
		if (e) {
			refused++;
			continue;
		}
		taken++;
		read_all(t, b);
	}
	ck_assert_uint_gt(taken, 1000);
	ck_assert_uint_gt(refused, 10000);
	/* They came far enough to meet every check that a change of bytes can meet. */
	for (int e = KVBLOB_OK; e <= KVBLOB_TRAILING; e++) {
		if (e != KVBLOB_EXTENDED_CELLS && e != KVBLOB_NO_V)
			ck_assert_msg(seen >> e & 1, "never: it %s", kvblob_error_to_string(e));
	}
	free(t);
	free(b);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("kvblob");
	TCase *t = tcase_create("kvblob");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_set_timeout(t, 120);
	tcase_add_test(t, reads_and_writes_blocks);
	tcase_add_test(t, order_refuses_other_positions);
	tcase_add_test(t, shapes_are_compared);
	tcase_add_test(t, says_what_is_wrong);
	tcase_add_test(t, names_cells_with_more_in_them);
	tcase_add_test(t, names_a_missing_v);
	tcase_add_test(t, no_prefix_is_taken);
	tcase_add_test(t, mutations_are_refused_or_in_bounds);
	suite_add_tcase(s, t);
	return test_run(s);
}
