/*
 * test_real.c - the client against a real redis-server on a unix socket.
 */
#include "tests/lib/run.h"
#include "tests/redis/kit.h"
#include "tests/redis/server.h"

#include <stdlib.h>
#include <unistd.h>

#define BLOCK 4096u

static struct server server;
static struct kit kit;

static void setup(void)
{
	server_init(&server);
	kit_init(&kit, server.url, BLOCK);
}

static void teardown(void)
{
	kit_stop(&kit);
	server_deinit(&server);
}

static void start(const char *const *more)
{
	server_start(&server, more);
	kit_start(&kit);
	kit_wait_up(&kit);
}

/* ---- what it is for -------------------------------------------------------------------------- */

START_TEST(store_look_fetch)
{
	char key[PREFIXD_REDIS_KEY_LEN + 1];
	struct prefixd_redis_stats s;

	kit.config.encrypt = _i;
	start(NULL);
	ck_assert_int_eq(kit_fetch(&kit, 0), PREFIXD_MOVE_LOST);
	ck_assert_uint_eq(kit_look(&kit, 0, 10), 0);
	for (uint32_t i = 0; i < 10; i++)
		ck_assert_int_eq(kit_store(&kit, i), PREFIXD_MOVE_OK);
	for (uint32_t i = 0; i < 10; i++)
		ck_assert_int_eq(kit_fetch(&kit, i), PREFIXD_MOVE_OK);
	ck_assert_uint_eq(kit_look(&kit, 0, 10), 10);
	ck_assert_uint_eq(kit_look(&kit, 0, 256), 10);
	ck_assert_uint_eq(kit_look(&kit, 10, 3), 0);
	kit_redis_key(&kit, 4, key);
	ck_assert_int_eq(server_int(&server, "EXISTS", key), 1);
	/* A day, and not for ever. */
	ck_assert_int_gt(server_int(&server, "TTL", key), 24 * 3600 - 60);
	ck_assert_int_le(server_int(&server, "TTL", key), 24 * 3600);
	ck_assert_int_eq(server_int(&server, "DEL", key), 1);
	ck_assert_uint_eq(kit_look(&kit, 0, 10), 4); /* leading ones only */
	ck_assert_int_eq(kit_fetch(&kit, 4), PREFIXD_MOVE_LOST);
	kit_idle(&kit, 20); /* an answer comes before the books are closed */
	s = kit_stats(&kit);
	ck_assert_uint_eq(s.stored, 10);
	ck_assert_uint_eq(s.fetched, 10);
	ck_assert_uint_eq(s.lost, 2);
	ck_assert_uint_eq(s.looks, 5);
	ck_assert_uint_eq(s.looks_present, 24);
	ck_assert_uint_eq(s.bytes_out, 10 * BLOCK);
	ck_assert_uint_eq(s.bytes_in, 10 * BLOCK);
	ck_assert_uint_eq(s.in_flight + s.in_flight_bytes + s.queued, 0);
	ck_assert_uint_eq(s.connects, 1);
	ck_assert_str_eq(s.policy, "noeviction");
	ck_assert(s.connected && s.breaker == PREFIXD_BREAKER_CLOSED && s.latency_ns > 0);
	ck_assert_uint_eq(kit_bad(&kit), 0);
}
END_TEST

START_TEST(ttl)
{
	char key[PREFIXD_REDIS_KEY_LEN + 1];

	kit.config.ttl_ns = _i ? 50 * MS + 1 : 0;
	start(NULL);
	ck_assert_int_eq(kit_store(&kit, 1), PREFIXD_MOVE_OK);
	kit_redis_key(&kit, 1, key);
	if (_i) {
		ck_assert_int_le(server_int(&server, "PTTL", key), 51);
		kit_idle(&kit, 100);
		ck_assert_int_eq(kit_fetch(&kit, 1), PREFIXD_MOVE_LOST);
	} else {
		ck_assert_int_eq(server_int(&server, "PTTL", key), -1);
	}
}
END_TEST

/* The same over TCP, by number and by name. */
START_TEST(tcp)
{
	static const char *const hosts[] = { "tcp:127.0.0.1:%d", "127.0.0.1:%d", "localhost:%d",
					     "tcp:localhost:%d" };
	int port = 20000 + (int)(getpid() % 20000);
	char text[16];

	snprintf(text, sizeof(text), "%d", port);
	server_start(&server, (const char *const[]){ "--port", text, "--bind", "127.0.0.1", NULL });
	snprintf(kit.config.url, sizeof(kit.config.url), "%.*s%d", (int)strlen(hosts[_i]) - 2,
		 hosts[_i], port);
	kit_start(&kit);
	kit_wait_up(&kit);
	ck_assert_int_eq(kit_store(&kit, 1), PREFIXD_MOVE_OK);
	ck_assert_int_eq(kit_fetch(&kit, 1), PREFIXD_MOVE_OK);
	server_kill(&server);
	kit_wait_down(&kit, 1);
}
END_TEST

/* Chains in token mode: what is stored by entries is found by keys, down to the first gap. */
START_TEST(chain)
{
	struct prefixd_action a = { .type = PREFIXD_ACTION_NAMES, .group = 2 };
	uint32_t entries[20];
	char keys[20][8];
	uint8_t blocks[20][BLOCK];
	struct prefixd_redis_message *m;

	start(NULL);
	for (uint32_t i = 0; i < 20; i++) {
		entries[i] = 100 - i;
		snprintf(keys[i], sizeof(keys[i]), "key %u", i % 100);
		kit_block(i, blocks[i], BLOCK);
	}
	a.u.names = (struct prefixd_names){ .mode = RADIX_KEYS_TOKENS,
					    .root = "some root",
					    .parent = RADIX_NONE,
					    .key_len = 8,
					    .n = 20,
					    .entries = entries,
					    .keys = keys };
	for (uint32_t i = 0; i < 21; i++) {
		m = prefixd_redis_message_new(&a, i ? blocks[i - 1] : NULL, BLOCK);
		ck_assert_ptr_nonnull(m);
		kit.waiting++;
		prefixd_helper_send(prefixd_redis_helper(kit.redis), &m->message);
		a.type = PREFIXD_ACTION_STORE;
		a.u.carry = (struct prefixd_carry){ .entry = entries[i % 20],
						    .key = keys[i % 20],
						    .key_len = 8 };
	}
	kit_drain(&kit);
	ck_assert_uint_eq(kit.results[PREFIXD_MOVE_OK], 20);
	for (uint32_t first = 0; first < 20; first += 7) {
		/* Behind an entry that is named, without naming any. */
		a.type = PREFIXD_ACTION_LOOK;
		memset(&a.u, 0, sizeof(a.u));
		a.u.look.names = (struct prefixd_names){ .mode = RADIX_KEYS_TOKENS,
							 .root = "some root",
							 .parent = first ? entries[first - 1]
									 : RADIX_NONE,
							 .key_len = 8,
							 .n = 20 - first,
							 .keys = keys[first] };
		m = prefixd_redis_message_new(&a, NULL, 0);
		ck_assert_ptr_nonnull(m);
		kit.waiting++;
		prefixd_helper_send(prefixd_redis_helper(kit.redis), &m->message);
		m = kit_answer(&kit, KIT_PATIENCE);
		ck_assert_ptr_nonnull(m);
		ck_assert_uint_eq(m->n, 20 - first);
		prefixd_redis_message_free(m);
	}
}
END_TEST

/* ---- T46: round trips ------------------------------------------------------------------------ */

START_TEST(T46_round_trips)
{
	uint64_t len = 256 << 10;
	uint8_t *block = malloc(len), *got[50];
	struct prefixd_redis_stats before, after;

	ck_assert_ptr_nonnull(block);
	kit_init(&kit, server.url, len);
	kit.config.deadline_ns = 60000 * MS;
	start((const char *const[]){ "--maxmemory", "512mb", NULL });
	kit_names(&kit, 1000);
	kit_drain(&kit);
	kit_block(0, block, len); /* the same bytes under every name */
	before = kit_stats(&kit);
	/* All of them are ready before the first one can be answered. */
	server_stop(&server);
	for (uint32_t i = 0; i < 1000; i++)
		kit_send_store(&kit, i, block, 0);
	while (kit_stats(&kit).queued + kit_stats(&kit).in_flight < 1000)
		kit_idle(&kit, 1);
	server_cont(&server);
	kit_drain(&kit);
	after = kit_stats(&kit);
	ck_assert_uint_eq(kit.results[PREFIXD_MOVE_OK], 1000);
	ck_assert_uint_eq(after.stored, 1000);
	ck_assert_uint_ge(after.round_trips - before.round_trips, 1);
	ck_assert_uint_le(after.round_trips - before.round_trips, 20);
	/* And back, into 50 blocks by turns. */
	for (uint32_t i = 0; i < 50; i++) {
		got[i] = malloc(len);
		ck_assert_ptr_nonnull(got[i]);
	}
	before = after;
	server_stop(&server);
	for (uint32_t i = 0; i < 1000; i++)
		kit_send_fetch(&kit, i, got[i % 50], 0);
	while (kit_stats(&kit).queued + kit_stats(&kit).in_flight < 1000)
		kit_idle(&kit, 1);
	server_cont(&server);
	kit_drain(&kit);
	after = kit_stats(&kit);
	ck_assert_uint_eq(after.fetched, 1000);
	ck_assert_uint_le(after.round_trips - before.round_trips, 20);
	for (uint32_t i = 0; i < 50; i++) {
		ck_assert_mem_eq(got[i], block, len);
		free(got[i]);
	}
	free(block);
	/* One at a time each is a trip of its own: the count is no constant. */
	before = after;
	for (uint32_t i = 0; i < 30; i++)
		ck_assert_uint_eq(kit_look(&kit, 0, 100), 100);
	ck_assert_uint_ge(kit_stats(&kit).round_trips - before.round_trips, 30);
}
END_TEST

/* ---- F40: down, dead, empty, flapping -------------------------------------------------------- */

START_TEST(F40_down_at_start)
{
	uint64_t begin = prefixd_redis_now();

	kit_start(&kit);
	for (uint32_t i = 0; i < 50; i++) {
		ck_assert_int_eq(kit_store(&kit, i), PREFIXD_MOVE_DOWN);
		ck_assert_int_eq(kit_fetch(&kit, i), PREFIXD_MOVE_DOWN);
		ck_assert_uint_eq(kit_look(&kit, i, 4), 0);
	}
	ck_assert_uint_lt(prefixd_redis_now() - begin, 20000 * MS); /* 150 deadlines of 10 s */
	ck_assert(!kit.up && kit.n_down == 0);
	kit_until(&kit, kit_stats(&kit).errors[PREFIXD_REDIS_ERROR_CONNECT] >= 1);
	/* Names that were learned while it was down are of use when it comes. */
	server_start(&server, NULL);
	kit_wait_up(&kit);
	ck_assert_int_eq(kit_store(&kit, 3), PREFIXD_MOVE_OK);
	ck_assert_int_eq(kit_fetch(&kit, 3), PREFIXD_MOVE_OK);
}
END_TEST

START_TEST(F40_dies_and_comes_back_empty)
{
	uint8_t block[BLOCK];

	start(NULL);
	for (int round = 0; round < 3; round++) {
		ck_assert_int_eq(kit_store(&kit, 1), PREFIXD_MOVE_OK);
		/* It dies with work in flight: each is answered once, by what happened. */
		server_stop(&server);
		memset(kit.results, 0, sizeof(kit.results));
		for (uint32_t i = 0; i < 100; i++)
			kit_send_fetch(&kit, 1, block, 0);
		server_kill(&server);
		kit_drain(&kit);
		ck_assert_uint_eq(kit.results[PREFIXD_MOVE_DOWN], 100);
		kit_wait_down(&kit, (uint32_t)round + 1);
		ck_assert_int_eq(kit_store(&kit, 1), PREFIXD_MOVE_DOWN);
		server_start(&server, NULL);
		kit_wait_up(&kit);
		ck_assert_int_eq(kit_fetch(&kit, 1), PREFIXD_MOVE_LOST);
		ck_assert_uint_eq(kit_look(&kit, 0, 8), 0);
	}
	ck_assert_uint_eq(kit_bad(&kit), 0);
}
END_TEST

START_TEST(F40_flapping)
{
	uint64_t slowest = 0;
	uint32_t n = 0, ok = 0;

	kit.config.backoff_max_ns = 50 * MS;
	start(NULL);
	for (int round = 0; round < 6; round++) {
		uint64_t end = prefixd_redis_now() + 200 * MS;

		while (prefixd_redis_now() < end) {
			uint64_t begin = prefixd_redis_now(), took;

			ok += kit_store(&kit, n % 8) == PREFIXD_MOVE_OK;
			(void)kit_fetch(&kit, n % 8); /* any result; bytes are checked */
			took = prefixd_redis_now() - begin;
			slowest = took > slowest ? took : slowest;
			n++;
			kit_idle(&kit, 1);
		}
		if (round % 2)
			server_start(&server, NULL);
		else
			server_kill(&server);
	}
	ck_assert_uint_gt(ok, 0);
	ck_assert_uint_gt(n, ok);
	ck_assert_uint_lt(slowest, 5000 * MS); /* half of a deadline */
	ck_assert_uint_eq(kit_bad(&kit), 0);
}
END_TEST

/* ---- F41: it stands still -------------------------------------------------------------------- */

START_TEST(F41_sigstop)
{
	uint64_t begin, took;
	struct prefixd_redis_stats s;
	uint8_t *blocks = malloc(64 * BLOCK), want[BLOCK];

	ck_assert_ptr_nonnull(blocks);
	memset(want, 0xa5, sizeof(want));
	kit.config.deadline_ns = 1000 * MS;
	kit.config.connect_ns = 1000 * MS;
	start(NULL);
	for (uint32_t i = 0; i < 64; i++)
		ck_assert_int_eq(kit_store(&kit, i), PREFIXD_MOVE_OK);
	server_stop(&server);
	memset(blocks, 0xa5, 64 * BLOCK);
	begin = prefixd_redis_now();
	for (uint32_t i = 0; i < 64; i++)
		kit_send_fetch(&kit, i, blocks + (size_t)i * BLOCK, 0);
	memset(kit.results, 0, sizeof(kit.results));
	kit_drain(&kit);
	took = prefixd_redis_now() - begin;
	ck_assert_uint_eq(kit.results[PREFIXD_MOVE_DOWN], 64);
	ck_assert_uint_ge(took, 990 * MS);
	ck_assert_uint_lt(took, 10000 * MS);
	kit_wait_down(&kit, 1);
	/* Open, and probing a Redis that accepts and says nothing: nobody waits. */
	begin = prefixd_redis_now();
	for (uint32_t i = 0; i < 200; i++)
		ck_assert_int_eq(kit_fetch(&kit, i % 64), PREFIXD_MOVE_DOWN);
	ck_assert_uint_lt(prefixd_redis_now() - begin, 20000 * MS); /* 200 s by deadlines */
	s = kit_stats(&kit);
	ck_assert_uint_eq(s.breaker_opened, 1);
	ck_assert_uint_eq(s.breaker_closed, 1);
	ck_assert_int_ne(s.breaker, PREFIXD_BREAKER_CLOSED);
	/* A probe times out as well. */
	kit_until(&kit, kit_stats(&kit).errors[PREFIXD_REDIS_ERROR_TIMEOUT] >= 2);
	ck_assert(!kit.up);
	server_cont(&server);
	kit_wait_up(&kit);
	s = kit_stats(&kit);
	ck_assert_uint_eq(s.breaker_closed, 2);
	/* Replies of that time were for nobody. */
	kit_idle(&kit, 50);
	for (uint32_t i = 0; i < 64; i++)
		ck_assert_mem_eq(blocks + (size_t)i * BLOCK, want, BLOCK);
	for (uint32_t i = 0; i < 64; i++)
		ck_assert_int_eq(kit_fetch(&kit, i), PREFIXD_MOVE_OK);
	ck_assert_uint_eq(kit_bad(&kit), 0);
	free(blocks);
}
END_TEST

/*
 * A STORE is answered by its own short deadline with half of its bytes written; its slot is used
 * for something else, then Redis goes on: it gets the block as it was.
 */
START_TEST(F41_slot_used_again)
{
	uint64_t len = 3 << 20;
	uint8_t *block = malloc(len);

	ck_assert_ptr_nonnull(block);
	kit_init(&kit, server.url, len);
	kit.config.encrypt = _i;
	kit.config.deadline_ns = 60000 * MS;
	kit.config.breaker_failures = 100;
	start(NULL);
	kit_names(&kit, 4);
	kit_drain(&kit);
	server_stop(&server);
	kit_block(1, block, len);
	kit_send_store(&kit, 1, block, prefixd_redis_now() + 1500 * MS);
	kit_drain(&kit);
	ck_assert_uint_eq(kit.results[PREFIXD_MOVE_DOWN], 1);
	memset(block, 0xff, len);
	free(block);
	server_cont(&server);
	ck_assert_int_eq(kit_fetch(&kit, 1), PREFIXD_MOVE_OK);
	ck_assert_uint_eq(kit_stats(&kit).breaker_opened, 0);
}
END_TEST

/* ---- F42: it evicts -------------------------------------------------------------------------- */

START_TEST(F42_evicts)
{
	uint64_t len = 64 << 10;
	uint32_t n[PREFIXD_MOVE_FAILED + 1] = { 0 }, present = 0;
	struct prefixd_redis_stats s;
	bool there[64];

	kit_init(&kit, server.url, len);
	start((const char *const[]){ "--maxmemory", "8mb", "--maxmemory-policy", "allkeys-lru",
				     NULL });
	for (uint32_t i = 0; i < 1024; i++)
		ck_assert_int_eq(kit_store(&kit, i), PREFIXD_MOVE_OK);
	for (uint32_t i = 0; i < 1024; i++)
		n[kit_fetch(&kit, i)]++; /* the kit compares every byte of what is served */
	/* 8 MiB hold at most 128 of these. */
	ck_assert_uint_le(n[PREFIXD_MOVE_OK], 128);
	ck_assert_uint_ge(n[PREFIXD_MOVE_OK], 32);
	ck_assert_uint_eq(n[PREFIXD_MOVE_LOST], 1024 - n[PREFIXD_MOVE_OK]);
	s = kit_stats(&kit);
	ck_assert_uint_eq(s.lost, n[PREFIXD_MOVE_LOST]);
	ck_assert_uint_eq(kit_bad(&kit), 0);
	ck_assert_str_eq(s.policy, "allkeys-lru");
	/* LOOK, then values go, then FETCH: GET is the truth. */
	memset(n, 0, sizeof(n));
	for (uint32_t i = 0; i < 64; i++) {
		ck_assert_int_eq(kit_store(&kit, i), PREFIXD_MOVE_OK);
		there[i] = false;
	}
	for (uint32_t i = 0; i < 64; i++)
		present += there[i] = kit_look(&kit, i, 1) == 1;
	ck_assert_uint_ge(present, 16);
	for (uint32_t i = 100; i < 500; i++)
		ck_assert_int_eq(kit_store(&kit, i), PREFIXD_MOVE_OK);
	for (uint32_t i = 0; i < 64; i++) {
		if (there[i])
			n[kit_fetch(&kit, i)]++;
	}
	ck_assert_uint_ge(n[PREFIXD_MOVE_LOST], 1);
	ck_assert_uint_eq(n[PREFIXD_MOVE_LOST] + n[PREFIXD_MOVE_OK], present);
	ck_assert_uint_eq(kit_bad(&kit), 0);
}
END_TEST

/* Full, and told to keep what it has: writes are refused, reads go on. */
START_TEST(F42_noeviction)
{
	uint64_t len = 256 << 10;
	uint32_t n[PREFIXD_MOVE_FAILED + 1] = { 0 };

	kit_init(&kit, server.url, len);
	start((const char *const[]){ "--maxmemory", "4mb", "--maxmemory-policy", "noeviction",
				     NULL });
	for (uint32_t i = 0; i < 64; i++)
		n[kit_store(&kit, i)]++;
	ck_assert_uint_ge(n[PREFIXD_MOVE_OK], 4);
	ck_assert_uint_ge(n[PREFIXD_MOVE_FAILED], 1);
	ck_assert_uint_eq(n[PREFIXD_MOVE_OK] + n[PREFIXD_MOVE_FAILED] + n[PREFIXD_MOVE_DOWN], 64);
	ck_assert_int_eq(kit_fetch(&kit, 0), PREFIXD_MOVE_OK);
	ck_assert_uint_eq(kit_stats(&kit).breaker_opened, 0);
	ck_assert_uint_ge(kit_stats(&kit).errors[PREFIXD_REDIS_ERROR_OOM], 1);
	ck_assert(kit.up);
}
END_TEST

/* ---- the user's rights ----------------------------------------------------------------------- */

static const char *const rights[] = { "+get",    "+set",  "+mget", "+exists",
				      "+unlink", "+info", "+ping", "+client|setname" };

/* The line of daemon/README.md without one right (-1: with all). */
static void acl_line(int without, const char *password, char *ret, size_t len)
{
	int n = snprintf(ret, len, "user prefixd on >%s ~prefixd:* resetchannels -@all", password);

	for (int i = 0; i < (int)radix_array_size(rights); i++) {
		if (i != without)
			n += snprintf(ret + n, len - (size_t)n, " %s", rights[i]);
	}
}

static void start_acl(int without, const char *password)
{
	char path[128], line[300];
	FILE *f;

	snprintf(path, sizeof(path), "%s/users.acl", server.dir);
	acl_line(without, password, line, sizeof(line));
	f = fopen(path, "w");
	ck_assert_ptr_nonnull(f);
	ck_assert_int_gt(fprintf(f, "user default on nopass ~* &* +@all\n%s\n", line), 0);
	ck_assert_int_eq(fclose(f), 0);
	snprintf(kit.config.user, sizeof(kit.config.user), "prefixd");
	snprintf(kit.config.password, sizeof(kit.config.password), "a-secret-word");
	server_start(&server, (const char *const[]){ "--aclfile", path, NULL });
	(void)unlink(path);
}

/* Everything that the client ever asks for.  Return: what Redis refused, by its own log. */
static size_t use_all_rights(void)
{
	static const uint8_t ns[32] = "a namespace";
	char key[PREFIXD_REDIS_KEY_LEN + 1];
	redisReply *reply;
	size_t refused;

	(void)kit_store(&kit, 1); /* what is refused shows in the log */
	(void)kit_fetch(&kit, 1);
	(void)kit_look(&kit, 1, 1);
	kit_send_epoch(&kit, ns, (struct prefixd_epoch){ 1, 2 }, true);
	kit_idle(&kit, 50);
	kit_redis_key(&kit, 1, key);
	server_set(&server, key, "bad", 3);
	(void)kit_fetch(&kit, 1);
	kit_idle(&kit, 50);
	reply = server_do(&server, "ACL", "LOG", NULL);
	refused = reply->elements;
	freeReplyObject(reply);
	return refused;
}

START_TEST(acl_suffices)
{
	redisReply *reply;

	start_acl(-1, "a-secret-word");
	kit_start(&kit);
	kit_wait_up(&kit);
	ck_assert_uint_eq(use_all_rights(), 0);
	ck_assert_int_eq(kit_store(&kit, 1), PREFIXD_MOVE_OK);
	ck_assert_int_eq(kit_fetch(&kit, 1), PREFIXD_MOVE_OK);
	ck_assert_uint_eq(kit_look(&kit, 1, 1), 1);
	ck_assert_uint_eq(kit_stats(&kit).unlinked, 1);
	ck_assert_str_eq(kit_stats(&kit).policy, "noeviction");
	for (int i = 0; i < PREFIXD_REDIS_N_ERRORS; i++)
		ck_assert_uint_eq(kit_stats(&kit).errors[i], 0);
	reply = server_do(&server, "CLIENT", "LIST", NULL);
	ck_assert_ptr_nonnull(strstr(reply->str, "name=prefixd"));
	ck_assert_ptr_nonnull(strstr(reply->str, "user=prefixd"));
	freeReplyObject(reply);
}
END_TEST

/* Each right is used: without it something is refused. */
START_TEST(acl_each_right)
{
	start_acl(_i, "a-secret-word");
	kit_start(&kit);
	if (!strcmp(rights[_i], "+ping")) {
		kit_until(&kit, kit_stats(&kit).errors[PREFIXD_REDIS_ERROR_AUTH] >= 2);
		ck_assert(!kit.up);
		return;
	}
	kit_wait_up(&kit);
	ck_assert_uint_ge(use_all_rights(), 1);
}
END_TEST

START_TEST(wrong_password)
{
	start_acl(-1, "another-word");
	kit_start(&kit);
	kit_until(&kit, kit_stats(&kit).errors[PREFIXD_REDIS_ERROR_AUTH] >= 2);
	ck_assert(!kit.up);
	ck_assert_int_eq(kit_store(&kit, 1), PREFIXD_MOVE_DOWN);
	/* Put right there, it comes up by itself. */
	freeReplyObject(server_do(&server, "ACL", "SETUSER", "prefixd", ">a-secret-word", NULL));
	kit_wait_up(&kit);
	/* Taken away while it is connected: refused, then down. */
	freeReplyObject(server_do(&server, "ACL", "SETUSER", "prefixd", "off", "resetkeys", NULL));
	for (int i = 0; i < 10; i++)
		ck_assert_int_ne(kit_store(&kit, 1), PREFIXD_MOVE_OK);
	kit_wait_down(&kit, 1);
}
END_TEST

/* A password without a user: requirepass. */
START_TEST(requirepass)
{
	snprintf(kit.config.password, sizeof(kit.config.password), "a secret word");
	server_start(&server, (const char *const[]){ "--requirepass", "a secret word", NULL });
	kit_start(&kit);
	kit_wait_up(&kit);
	ck_assert_int_eq(kit_store(&kit, 1), PREFIXD_MOVE_OK);
}
END_TEST

/* ---- cases ----------------------------------------------------------------------------------- */

static void add_cases(TCase *tc, const char *which)
{
	if (!strcmp(which, "F40")) {
		tcase_add_test(tc, F40_down_at_start);
		tcase_add_test(tc, F40_dies_and_comes_back_empty);
		tcase_add_test(tc, F40_flapping);
	} else if (!strcmp(which, "F41")) {
		tcase_add_test(tc, F41_sigstop);
		tcase_add_loop_test(tc, F41_slot_used_again, 0, 2);
	} else if (!strcmp(which, "F42")) {
		tcase_add_test(tc, F42_evicts);
		tcase_add_test(tc, F42_noeviction);
	} else if (!strcmp(which, "T46")) {
		tcase_add_test(tc, T46_round_trips);
	} else if (!strcmp(which, "acl")) {
		tcase_add_test(tc, acl_suffices);
		tcase_add_loop_test(tc, acl_each_right, 0, (int)radix_array_size(rights));
		tcase_add_test(tc, wrong_password);
		tcase_add_test(tc, requirepass);
	} else {
		tcase_add_loop_test(tc, store_look_fetch, 0, 2);
		tcase_add_loop_test(tc, ttl, 0, 2);
		tcase_add_loop_test(tc, tcp, 0, 4);
		tcase_add_test(tc, chain);
	}
}

int main(int argc, char **argv)
{
	const char *which = argc > 1 ? argv[1] : "basic";
	Suite *s = suite_create("redis real");
	TCase *tc = tcase_create(which);

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 120);
	add_cases(tc, which);
	suite_add_tcase(s, tc);
	return test_run(s);
}
