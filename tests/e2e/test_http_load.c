/*
 * test_http_load.c - what monitors read while workers work: numbers that add up, scrapes that
 * disturb nobody, and that do not grow with the index.
 *
 * With an argument only the test case of that name runs.
 */
#include "tests/e2e/http_client.h"
#include "tests/lib/rng.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- load ------------------------------------------------------------------------------------ */

static void lookups_add_up(const struct exposition *e)
{
	long double looked_up = exposition_get(e, "prefixd_lookup_tokens_total");

	ck_assert(exposition_sum(e, "prefixd_hit_tokens_total") +
			  exposition_sum(e, "prefixd_miss_tokens_total") ==
		  looked_up);
	ck_assert(exposition_sum(e, "prefixd_lookup_blocks_total") * BLOCK == looked_up);
	ck_assert(exposition_get(e, "prefixd_lookup_blocks_total{tier=\"device\"}") * BLOCK ==
		  exposition_sum(e, "prefixd_hit_tokens_total") -
			  exposition_get(e, "prefixd_hit_tail_tokens_total"));
	ck_assert(exposition_sum(e, "prefixd_lookups_total") ==
		  exposition_sum(e, "prefixd_leases_ended_total"));
	ck_assert(exposition_get(e, "prefixd_leases_begun_total") ==
		  exposition_sum(e, "prefixd_leases_ended_total") +
			  exposition_get(e, "prefixd_leases"));
	ck_assert(exposition_sum(e, "prefixd_pool_slots") ==
		  exposition_sum(e, "prefixd_pool_capacity_slots"));
	ck_assert(exposition_sum(e, "prefixd_pool_bytes") ==
		  exposition_sum(e, "prefixd_pool_capacity_bytes"));
	ck_assert(exposition_sum(e, "prefixd_tier_blocks") == exposition_get(e, "prefixd_blocks"));
}

/* One MATCH, with RESERVE, COMMIT and RELEASE as the dice say; true if a lease was left open. */
static bool random_lease(struct raw *r, uint32_t ns, uint64_t *rng)
{
	uint32_t n = 1 + test_rng_below(rng, 12);
	struct proto_match_rep m = match(r, ns, test_rng_below(rng, 40) * 1000, n);
	uint64_t lease = m.lease;
	struct proto_reserve_req reserve = { .lease = lease, .n = n };
	struct proto_commit_req commit = { .lease = lease };
	struct proto_reserve_rep granted;
	uint8_t body[64];
	struct proto_writer w = { .p = body, .cap = sizeof(body) };
	const char *bad;

	if (m.n_device < n && test_rng_below(rng, 4) > 0) {
		reserve.n = n - m.n_device;
		proto_reserve_req_encode(&w, &reserve);
		ck_assert(raw_call(r, PROTO_OP_RESERVE, body, w.len));
		if (r->h.status == PROTO_STATUS_OK) {
			ck_assert_int_eq(
				proto_reserve_rep_decode(r->body, r->h.len, &granted, &bad), 0);
			commit.n = test_rng_below(rng, granted.n + 1);
			w = (struct proto_writer){ .p = body, .cap = sizeof(body) };
			proto_commit_req_encode(&w, &commit);
			if (commit.n > 0) {
				ck_assert(raw_call(r, PROTO_OP_COMMIT, body, w.len));
				ck_assert_uint_eq(r->h.status, PROTO_STATUS_OK);
			}
		} else {
			ck_assert_uint_eq(r->h.status, PROTO_STATUS_BUSY);
		}
	}
	if (test_rng_below(rng, 40) == 0)
		return true;
	release(r, lease);
	return false;
}

/* Two ask for one new prompt, the first computes it, the second finds it by EXTEND. */
static void take_over(struct raw *first, struct raw *second, uint32_t ns, uint32_t tokens)
{
	uint64_t mine = match(first, ns, tokens, 4).lease,
		 theirs = match(second, ns, tokens, 4).lease;
	const struct proto_reserve_req reserve = { .lease = mine, .n = 4 };
	const struct proto_commit_req commit = { .lease = mine, .n = 4 };
	const struct proto_extend_req extend = { .lease = theirs, .n_tokens = 4 * BLOCK };
	uint8_t body[64];
	struct proto_writer w = { .p = body, .cap = sizeof(body) };

	proto_reserve_req_encode(&w, &reserve);
	ck_assert(raw_call(first, PROTO_OP_RESERVE, body, w.len));
	ck_assert_uint_eq(first->h.status, PROTO_STATUS_OK);
	w = (struct proto_writer){ .p = body, .cap = sizeof(body) };
	proto_commit_req_encode(&w, &commit);
	ck_assert(raw_call(first, PROTO_OP_COMMIT, body, w.len));
	ck_assert_uint_eq(first->h.status, PROTO_STATUS_OK);
	w = (struct proto_writer){ .p = body, .cap = sizeof(body) };
	proto_extend_req_encode(&w, &extend);
	ck_assert(raw_call(second, PROTO_OP_EXTEND, body, w.len));
	ck_assert_uint_eq(second->h.status, PROTO_STATUS_OK);
	release(first, mine);
	release(second, theirs);
}

static void status_agrees(const struct exposition *e)
{
	static const struct {
		const char *counter, *series;
	} same[] = {
		{ "queried_tokens", "prefixd_lookup_tokens_total" },
		{ "lookup_miss_blocks", "prefixd_lookup_blocks_total{tier=\"miss\"}" },
		{ "hit_device_tokens", "prefixd_hit_tokens_total{tier=\"device\"}" },
		{ "miss_never_seen", "prefixd_miss_tokens_total{reason=\"never_seen\"}" },
		{ "committed_blocks", "prefixd_commits_total" },
		{ "lookups", "prefixd_leases_begun_total" },
		{ "reserve_busy", "prefixd_reserve_busy_total" },
	};
	json_t *j = admin("{\"op\":\"status\"}"), *counters = json_object_get(j, "counters");

	for (size_t i = 0; i < radix_array_size(same); i++)
		ck_assert_msg((long double)number(counters, same[i].counter) ==
				      exposition_get(e, same[i].series),
			      "%s", same[i].series);
	json_decref(j);
}

START_TEST(metrics_add_up)
{
	uint32_t lost = 0, n_requests = 0;
	struct exposition e;
	uint64_t rng;
	struct raw r[3];
	uint32_t ns[3];

	rng = 3737;
	http_start_unix("100"); /* less than is stored, so that blocks leave and RESERVE is busy */
	for (int i = 0; i < 3; i++) {
		raw_connect(&r[i], d.socket);
		raw_hello(&r[i]);
		ns[i] = raw_open(&r[i], i == 2 ? "other" : "m", 4096).ns;
	}
	take_over(&r[0], &r[1], ns[0], 900000);
	n_requests += 2;
	for (int i = 0; i < 3000; i++) {
		size_t who = test_rng_below(&rng, 3);

		lost += random_lease(&r[who], ns[who], &rng);
		n_requests++;
		if (i % 500 == 0) {
			e = http_scrape();
			lookups_add_up(&e);
			exposition_free(&e);
		}
	}
	e = http_scrape();
	lookups_add_up(&e);
	status_agrees(&e);
	ck_assert(exposition_get(&e, "prefixd_leases") == lost);
	ck_assert(exposition_get(&e, "prefixd_pin_age_max_seconds") > 0);
	ck_assert(exposition_get(&e, "prefixd_request_duration_seconds_count{op=\"match\"}") ==
		  n_requests);
	ck_assert(
		exposition_sum(&e, "prefixd_request_duration_seconds_count") ==
		exposition_get(&e, "prefixd_requests_total") +
			exposition_get(&e, "prefixd_request_duration_seconds_count{op=\"admin\"}"));
	/* The load was one that tests something. */
	ck_assert_uint_gt(lost, 10);
	ck_assert(exposition_get(&e, "prefixd_hit_tokens_total{tier=\"device\"}") > 0);
	ck_assert(exposition_get(&e, "prefixd_hit_tokens_total{tier=\"pending\"}") == 4 * BLOCK);
	ck_assert(exposition_get(&e, "prefixd_miss_tokens_total{reason=\"never_seen\"}") > 0);
	ck_assert(exposition_get(&e, "prefixd_miss_tokens_total{reason=\"no_room\"}") > 0);
	ck_assert(exposition_sum(&e, "prefixd_evicted_blocks_total") > 0);
	ck_assert(exposition_get(&e, "prefixd_loop_iteration_seconds_count") > 3000);
	exposition_free(&e);
	for (int i = 0; i < 3; i++)
		raw_close(&r[i]);
	expect_clean();
}
END_TEST

/* A process scrapes as fast as it can while workers work: nothing fails on either side. */
START_TEST(scraping_does_not_disturb)
{
	unsigned long begun = e2e_now_ms();
	struct proto_open_rep o;
	uint64_t rng;
	struct raw r;
	pid_t scraper;
	int status, stop[2];
	uint32_t n = 0;

	http_start_unix("200");
	ck_assert_int_eq(pipe(stop), 0);
	scraper = fork();
	ck_assert_int_ge(scraper, 0);
	if (scraper == 0) {
		struct pollfd p = { .fd = stop[0], .events = POLLIN };
		int n_scrapes = 0;

		close(stop[1]);
		while (poll(&p, 1, 0) == 0) {
			struct exposition e = http_scrape();

			lookups_add_up(&e);
			exposition_free(&e);
			n_scrapes++;
		}
		_exit(n_scrapes > 10 ? 0 : 1);
	}
	close(stop[0]);
	raw_connect(&r, d.socket);
	raw_hello(&r);
	o = raw_open(&r, "m", 4096);
	rng = 1;
	while (e2e_now_ms() - begun < 3000) {
		(void)random_lease(&r, o.ns, &rng);
		n++;
	}
	close(stop[1]);
	ck_assert_int_eq(waitpid(scraper, &status, 0), scraper);
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the scraper failed: %d",
		      status);
	ck_assert_uint_gt(n, 100);
	raw_close(&r);
	expect_clean();
}
END_TEST

/* Answered in the same time however many blocks there are. */
START_TEST(a_million_blocks)
{
	enum {
		N = 1000000,
		AT_ONCE = 4000
	};
	struct proto_open_rep o;
	struct exposition e;
	unsigned long best = 1000;
	struct raw r;

	http_start_unix("1000000");
	raw_connect(&r, d.socket);
	raw_hello(&r);
	o = raw_open(&r, "m", 64);
	for (uint32_t first = 0; first < N; first += AT_ONCE) {
		/* 64 KiB of body hold 1,000 blocks; each chunk is a branch of its own. */
		for (uint32_t k = 0; k < AT_ONCE; k += 1000)
			store(&r, o.ns, (first + k) * BLOCK, 1000);
	}
	for (int i = 0; i < 5; i++) {
		unsigned long begun = e2e_now_ms();
		struct http_answer a = http_get("/metrics", "");

		if (e2e_now_ms() - begun < best)
			best = e2e_now_ms() - begun;
		ck_assert_int_eq(a.status, 200);
		http_answer_free(&a);
	}
	e = http_scrape();
	ck_assert(exposition_get(&e, "prefixd_blocks") == N);
	ck_assert(exposition_get(&e, "prefixd_scrape_duration_seconds") < 0.050L);
	exposition_free(&e);
	ck_assert_msg(best < 50, "a scrape took %lu ms", best);
	raw_close(&r);
}
END_TEST

#define TESTS(...) ((const TTest *const[]){ __VA_ARGS__, NULL })

int main(int argc, char **argv)
{
	const struct shell_case cases[] = {
		{ "T37", TESTS(metrics_add_up) },
		{ "load", TESTS(scraping_does_not_disturb, a_million_blocks) },
	};

	return shell_main(cases, radix_array_size(cases), argc > 1 ? argv[1] : NULL);
}
