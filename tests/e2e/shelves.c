/*
 * shelves.c - see shelves.h.
 */
#include "tests/e2e/shelves.h"

#include "tests/e2e/mover.h"

#include "tests/e2e/kept.h"
#include "tests/lib/rng.h"

#include <check.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

static uint32_t tokens[SHELF_BLOCKS * SHELF_TOKENS];

static const char *salt_of(uint32_t shelf)
{
	return shelf == 1 ? "a salt" : "";
}

uint32_t shelf_bytes(uint32_t shelf)
{
	return shelf == 2 ? 1024 : 512;
}

static uint64_t seed_of(uint32_t shelf, uint32_t prompt, uint32_t i, uint32_t what)
{
	uint64_t s = (uint64_t)shelf << 48 | (uint64_t)(i < SHELF_STEM ? 9999 : prompt) << 32 |
		     i << 4 | what;

	return test_rng(&s);
}

void shelf_key(uint32_t shelf, uint32_t prompt, uint32_t i, uint32_t ret_tokens[SHELF_TOKENS])
{
	uint64_t s = seed_of(shelf, prompt, i, 1);

	for (uint32_t k = 0; k < SHELF_TOKENS; k++)
		ret_tokens[k] = test_rng_below(&s, 50000);
}

static void fill(uint32_t shelf, uint32_t prompt, uint32_t i, void *ret_bytes)
{
	uint64_t s = seed_of(shelf, prompt, i, 2);

	test_rng_fill(&s, ret_bytes, shelf_bytes(shelf));
}

static pfx_prompt prompt_of(uint32_t shelf, uint32_t prompt)
{
	for (uint32_t i = 0; i < SHELF_BLOCKS; i++)
		shelf_key(shelf, prompt, i, tokens + i * SHELF_TOKENS);
	return (pfx_prompt){ .struct_size = sizeof(pfx_prompt),
			     .salt = salt_of(shelf),
			     .salt_len = (uint32_t)strlen(salt_of(shelf)),
			     .keys = tokens,
			     .n_keys = SHELF_BLOCKS };
}

/* Leading blocks that are there; every byte is compared.  The lease stays. */
static uint32_t match(struct shelves *s, uint32_t shelf, uint32_t prompt, uint64_t *ret_lease)
{
	pfx_namespace *ns = s->ns[shelf == 2];
	pfx_prompt p = prompt_of(shelf, prompt);
	pfx_match_result m = { .struct_size = sizeof(m) };
	uint8_t want[SHELF_MAX_BYTES], has[SHELF_MAX_BYTES];
	uint32_t i = 0;
	int r = pfx_match(ns, &p, &m);

	ck_assert_msg(r == PFX_OK, "match: %s", pfx_error(s->client));
	for (uint32_t k = 0; k < m.n_runs; k++) {
		for (uint32_t j = 0; j < m.runs[k].len; j++, i++) {
			mover_read(ns, m.runs[k].start + j, has, shelf_bytes(shelf));
			fill(shelf, prompt, i, want);
			ck_assert_msg(memcmp(has, want, shelf_bytes(shelf)) == 0,
				      "wrong bytes: shelf %u, prompt %u, block %u", shelf, prompt,
				      i);
		}
	}
	ck_assert_uint_eq(i, m.n_device);
	*ret_lease = m.lease;
	return i;
}

uint32_t shelves_look(struct shelves *s, uint32_t shelf, uint32_t prompt)
{
	uint64_t lease;
	uint32_t n = match(s, shelf, prompt, &lease);

	ck_assert_int_eq(pfx_release(s->ns[shelf == 2], lease, 0, 0, 0, NULL), PFX_OK);
	return n;
}

static void store(struct shelves *s, uint32_t shelf, uint32_t prompt)
{
	pfx_namespace *ns = s->ns[shelf == 2];
	pfx_reserve_result r = { .struct_size = sizeof(r) };
	pfx_commit_result c = { .struct_size = sizeof(c) };
	XXH128_canonical_t sums[SHELF_BLOCKS];
	uint8_t bytes[SHELF_MAX_BYTES];
	uint64_t lease;
	uint32_t n = match(s, shelf, prompt, &lease), i = 0;

	if (n < SHELF_BLOCKS) {
		ck_assert_int_eq(pfx_reserve(ns, lease, SHELF_BLOCKS - n, 0, &r), PFX_OK);
		ck_assert_uint_eq(r.n, SHELF_BLOCKS - n);
		for (uint32_t k = 0; k < r.n_runs; k++) {
			for (uint32_t j = 0; j < r.runs[k].len; j++, i++) {
				fill(shelf, prompt, n + i, bytes);
				mover_write(ns, r.runs[k].start + j, bytes, shelf_bytes(shelf));
				XXH128_canonicalFromHash(&sums[i],
							 XXH3_128bits(bytes, shelf_bytes(shelf)));
			}
		}
		ck_assert_int_eq(pfx_commit(ns, lease, r.n, sums, 0, 0, &c), PFX_OK);
	}
	ck_assert_int_eq(pfx_release(ns, lease, 0, 0, 0, NULL), PFX_OK);
}

static void store_all(struct shelves *s)
{
	for (uint32_t shelf = 0; shelf < SHELVES; shelf++)
		for (uint32_t p = 0; p < s->n_prompts[shelf]; p++)
			store(s, shelf, p);
}

int shelves_start(struct shelves *s, bool verify)
{
	char key[160];
	const char *const args[] = { "--pool-blocks",
				     "4096",
				     "--keep",
				     "holder",
				     "--hold-timeout",
				     "20s",
				     "--drain-timeout", /* leases of shelves_hold() may be left */
				     "100ms",
				     "--naming-key-file",
				     key,
				     "--recover-verify",
				     verify ? "full" : "off",
				     NULL };

	kept_naming_key(&s->d, key, sizeof(key));
	return e2e_daemon_start(&s->d, args);
}

static void connect_client(struct shelves *s)
{
	s->client = e2e_connect(&s->d);
	s->ns[0] = e2e_open(s->client, "m", shelf_bytes(0));
	s->ns[1] = e2e_open(s->client, "another", shelf_bytes(2));
}

void shelves_begin(struct shelves *s)
{
	ck_assert_int_eq(e2e_daemon_init(&s->d), 0);
	ck_assert_int_eq(shelves_start(s, false), 0);
	connect_client(s);
	store_all(s);
}

void shelves_hold(struct shelves *s)
{
	pfx_prompt p = prompt_of(0, s->n_prompts[0]); /* one that is not stored */
	pfx_match_result m = { .struct_size = sizeof(m) };
	pfx_reserve_result r = { .struct_size = sizeof(r) };

	ck_assert_int_eq(pfx_match(s->ns[0], &p, &m), PFX_OK);
	s->leases[1] = m.lease;
	ck_assert_int_eq(pfx_reserve(s->ns[0], m.lease, 8, 0, &r), PFX_OK);
	ck_assert_uint_eq(match(s, 0, 0, &s->leases[0]), SHELF_BLOCKS);
}

void shelves_kill(struct shelves *s)
{
	ck_assert_int_ne(e2e_daemon_stop(&s->d, SIGKILL), -1);
	pfx_close(s->client);
	s->client = NULL;
}

void shelves_restart(struct shelves *s, bool verify)
{
	int r = shelves_start(s, verify);
	char *log = e2e_daemon_log(&s->d);

	ck_assert_msg(r == 0, "the daemon did not start: %d: %s", r, log);
	free(log);
	connect_client(s);
}

static void audit(struct shelves *s)
{
	char *text = e2e_admin(&s->d, "{\"op\":\"audit\"}");
	json_t *v = json_loads(text, 0, NULL);

	ck_assert_msg(json_is_true(json_object_get(v, "clean")), "%s", text);
	json_decref(v);
	pfx_free_string(text);
}

void shelves_end(struct shelves *s)
{
	audit(s);
	store_all(s);
	for (uint32_t shelf = 0; shelf < SHELVES; shelf++)
		for (uint32_t p = 0; p < s->n_prompts[shelf]; p++)
			ck_assert_uint_eq(shelves_look(s, shelf, p), SHELF_BLOCKS);
	audit(s);
	pfx_close(s->client);
	ck_assert_int_eq(e2e_daemon_stop(&s->d, SIGINT), 0); /* the memory is given up */
	e2e_daemon_free(&s->d);
}
