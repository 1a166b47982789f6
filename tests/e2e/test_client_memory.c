/*
 * test_client_memory.c - libprefixd when memory runs out: each allocation of a whole session fails
 * in turn.
 *
 * The linker puts the functions below in front of the allocator (--wrap).  They count only in the
 * thread that asked for it, so that the scripted daemon's side does not disturb.  Whatever fails,
 * the client says so or goes on, nothing is leaked, and the same client works once memory is back.
 */
#include "tests/e2e/fake.h"
#include "tests/e2e/harness.h"

#include <check.h>
#include <stdlib.h>

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t m);
void *__real_realloc(void *p, size_t n);
char *__real_strdup(const char *s);
void __real_free(void *p);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t m);
void *__wrap_realloc(void *p, size_t n);
char *__wrap_strdup(const char *s);
void __wrap_free(void *p);

static _Thread_local bool counting;
static _Thread_local long n_calls, fail_at, live;

static bool fails(void)
{
	return counting && ++n_calls == fail_at;
}

static void *counted(void *p)
{
	live += counting && p;
	return p;
}

void *__wrap_malloc(size_t n)
{
	return fails() ? NULL : counted(__real_malloc(n));
}

void *__wrap_calloc(size_t n, size_t m)
{
	return fails() ? NULL : counted(__real_calloc(n, m));
}

void *__wrap_realloc(void *p, size_t n)
{
	if (fails())
		return NULL;
	return p ? __real_realloc(p, n) : counted(__real_realloc(NULL, n));
}

char *__wrap_strdup(const char *s)
{
	return fails() ? NULL : counted(__real_strdup(s));
}

void __wrap_free(void *p)
{
	live -= counting && p;
	__real_free(p);
}

static struct fake fake;

static void serve(struct fake *f)
{
	while (fake_accept(f)) /* some connections end before their HELLO */
		if (fake_receive(f) && f->h.op == PROTO_OP_HELLO && fake_answer_hello(f))
			fake_serve_well(f);
}

/* Return: the first status that was not OK, or OK. */
static int request(pfx_client *c, pfx_namespace **ns, const uint32_t *keys, uint32_t n_keys)
{
	pfx_namespace_options o = { .struct_size = sizeof(o),
				    .key_mode = PFX_KEYS_TOKENS,
				    .model = "m",
				    .block_tokens = 16,
				    .block_bytes = 4096,
				    .map = 1 };
	pfx_prompt p = { .struct_size = sizeof(p), .keys = keys, .n_keys = n_keys };
	pfx_match_result m = { .struct_size = sizeof(m) };
	pfx_reserve_result v = { .struct_size = sizeof(v) };
	pfx_commit_result k = { .struct_size = sizeof(k) };
	int r = *ns ? 0 : pfx_open(c, &o, ns), e;

	if (r == 0)
		r = pfx_match(*ns, &p, &m);
	if (r)
		return r;
	r = pfx_reserve(*ns, m.lease, 2, 0, &v);
	if (r == 0)
		r = pfx_commit(*ns, m.lease, 2, NULL, 0, 0, &k);
	e = pfx_release(*ns, m.lease, 0, 0, 0, NULL);
	return r ? r : e;
}

static bool expected(int r)
{
	/* A connection that had to be given up is GONE or has taken its lease along. */
	return r == PFX_OK || r == PFX_NO_MEMORY || r == PFX_GONE || r == PFX_UNKNOWN_LEASE ||
	       r == PFX_WRONG_STATE;
}

START_TEST(every_allocation)
{
	uint32_t n_keys = 2048, *keys;
	long total = 0;

	memset(&fake, 0, sizeof(fake));
	fake.n_words = 4;
	fake_start(&fake, serve);
	keys = calloc(n_keys, 64); /* a request longer than the first buffers */
	ck_assert_ptr_nonnull(keys);
	for (long at = 1; total == 0 || at <= total; at++) {
		pfx_connect_options o = { .struct_size = sizeof(o),
					  .socket = fake.path,
					  .deadline_ms = 5000 };
		pfx_client *c = NULL;
		pfx_namespace *ns = NULL;
		unsigned long end;
		int first, second, again = PFX_GONE;

		n_calls = live = 0;
		fail_at = total ? at : 0; /* the first round only counts */
		counting = true;
		first = pfx_connect(&o, &c);
		second = c ? request(c, &ns, keys, n_keys) : PFX_NO_MEMORY;
		fail_at = 0;
		end = e2e_now_ms() + 5000;
		while (c && (again = request(c, &ns, keys, n_keys)) == PFX_GONE &&
		       e2e_now_ms() < end)
			e2e_sleep_ms(1); /* the back-off of a failed attempt */
		pfx_close(c);
		counting = false;
		ck_assert_msg(expected(first) && expected(second), "allocation %ld: %s, %s", at,
			      pfx_status_to_string(first), pfx_status_to_string(second));
		ck_assert_msg(!c || again == PFX_OK, "after allocation %ld failed: %s", at,
			      pfx_status_to_string(again));
		ck_assert_msg(live == 0, "allocation %ld: %ld blocks leaked", at, live);
		if (!total) {
			ck_assert_int_eq(first, PFX_OK);
			ck_assert_int_eq(second, PFX_OK);
			total = n_calls;
			at = 0;
			ck_assert_int_ge(total, 10);
		}
	}
	free(keys);
	fake_stop(&fake);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("client_memory");
	TCase *t = tcase_create("memory");
	SRunner *sr = srunner_create(s);
	int failed;

	tcase_set_timeout(t, 60);
	tcase_add_test(t, every_allocation);
	suite_add_tcase(s, t);
	srunner_run_all(sr, CK_ENV);
	failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed != 0;
}
