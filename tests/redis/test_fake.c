/*
 * test_fake.c - the client against something that speaks the protocol and misbehaves as told.
 */
#include "gpu/codec.h"
#include "tests/lib/run.h"
#include "tests/redis/fake_redis.h"
#include "tests/redis/kit.h"

#include <stdlib.h>

#define BLOCK 4096u

static struct fake_redis *fake;
static struct kit kit;

static void setup(void)
{
	fake = fake_new();
	kit_init(&kit, fake_url(fake), BLOCK);
}

static void teardown(void)
{
	kit_stop(&kit);
	fake_free(fake);
}

static void start(void)
{
	kit_start(&kit);
	kit_wait_up(&kit);
}

/* GET is answered with the value of an entry. */
static void serve_value(uint32_t entry)
{
	struct kit_value v;
	uint8_t block[BLOCK], sum[16];
	char *text = malloc(BLOCK + 1000);
	size_t n, len;

	ck_assert_ptr_nonnull(text);
	kit_value(&kit, entry, &v);
	kit_block(entry, block, BLOCK);
	prefixd_value_checksum(block, BLOCK, sum);
	len = prefixd_value_len(&v.of, false);
	n = (size_t)snprintf(text, 100, "$%zu\r\n", len);
	prefixd_value_prefix(&v.of, sum, (uint8_t *)text + n);
	memcpy(text + n + len - BLOCK, block, BLOCK);
	memcpy(text + n + len, "\r\n", 2);
	fake_answer(fake, "GET", FAKE_BYTES, text, n + len + 2);
	free(text);
}

/* ---- F45: errors ----------------------------------------------------------------------------- */

struct error_case {
	const char *reply;
	enum prefixd_redis_error error;
	bool opens;  /* the first one opens the breaker */
	bool counts; /* else several in a row do */
};

static const struct error_case errors[] = {
	{ "-OOM command not allowed when used memory > 'maxmemory'.\r\n", PREFIXD_REDIS_ERROR_OOM,
	  false, false },
	{ "-LOADING Redis is loading the dataset in memory\r\n", PREFIXD_REDIS_ERROR_LOADING, true,
	  true },
	{ "-READONLY You can't write against a read only replica.\r\n",
	  PREFIXD_REDIS_ERROR_READONLY, false, false },
	{ "-NOAUTH Authentication required.\r\n", PREFIXD_REDIS_ERROR_AUTH, true, true },
	{ "-NOPERM this user has no permissions to run the 'set' command\r\n",
	  PREFIXD_REDIS_ERROR_AUTH, false, true },
	{ "-MOVED 3999 127.0.0.1:6381\r\n", PREFIXD_REDIS_ERROR_MOVED, false, true },
	{ "-ASK 3999 127.0.0.1:6381\r\n", PREFIXD_REDIS_ERROR_MOVED, false, true },
	{ "-CLUSTERDOWN Hash slot not served\r\n", PREFIXD_REDIS_ERROR_OTHER, false, true },
	{ "-ERR unknown command\r\n", PREFIXD_REDIS_ERROR_OTHER, false, true },
	{ "-\r\n", PREFIXD_REDIS_ERROR_OTHER, false, true },
	{ "-OOMPH is another word\r\n", PREFIXD_REDIS_ERROR_OTHER, false, true },
};

/* One error: said by its class, counted once, answered, and no second try. */
START_TEST(F45_one_error)
{
	const struct error_case *c = &errors[_i];
	struct prefixd_redis_stats s;

	start();
	fake_answer(fake, "SET", FAKE_BYTES, c->reply, strlen(c->reply));
	ck_assert_int_eq(kit_store(&kit, 1), PREFIXD_MOVE_FAILED);
	kit_idle(&kit, 30);
	s = kit_stats(&kit);
	ck_assert_uint_eq(s.errors[c->error], 1);
	for (int e = 0; e < PREFIXD_REDIS_N_ERRORS; e++)
		ck_assert_uint_eq(s.errors[e], e == (int)c->error);
	ck_assert_uint_eq(fake_count(fake, "SET"), 1);
	ck_assert_uint_eq(s.breaker_opened, c->opens);
	ck_assert_uint_eq(s.stored, 0);
}
END_TEST

/* Many requests while every write is refused: few are sent. */
START_TEST(F45_no_storm)
{
	const struct error_case *c = &errors[_i];
	uint64_t end;

	kit.config.backoff_min_ns = 100 * MS;
	start();
	fake_answer(fake, "SET", FAKE_BYTES, c->reply, strlen(c->reply));
	end = prefixd_redis_now() + 300 * MS;
	for (int i = 0; i < 30 || prefixd_redis_now() < end; i++) {
		ck_assert_int_ne(kit_store(&kit, 1), PREFIXD_MOVE_OK);
		kit_idle(&kit, 1);
	}
	/* Held or open for 50 to 100 ms, then twice that: at most a handful of rounds, of which
	 * each takes as many as the breaker allows. */
	ck_assert_uint_ge(fake_count(fake, "SET"), 1);
	ck_assert_uint_le(fake_count(fake, "SET"), c->counts && !c->opens ? 40 : 8);
	/* Reads go on, unless the breaker is open. */
	if (!c->counts) {
		ck_assert_uint_eq(kit_stats(&kit).breaker_opened, 0);
		serve_value(7);
		ck_assert_int_eq(kit_fetch(&kit, 7), PREFIXD_MOVE_OK);
	} else {
		ck_assert_uint_ge(kit_stats(&kit).breaker_opened, 1);
	}
	/* And everything is well again by itself. */
	fake_answer(fake, "SET", FAKE_USUAL, NULL, 0);
	kit_until(&kit, kit_store(&kit, 2) == PREFIXD_MOVE_OK);
}
END_TEST

/* The same errors to the questions at the beginning: never up, and asked less and less often. */
START_TEST(F45_at_the_door)
{
	const struct error_case *c = &errors[_i];
	uint64_t n, begin = prefixd_redis_now();

	kit.config.backoff_min_ns = 20 * MS;
	kit.config.backoff_max_ns = 1000 * MS;
	fake_answer(fake, "PING", FAKE_BYTES, c->reply, strlen(c->reply));
	kit_start(&kit);
	kit_until(&kit, kit_stats(&kit).errors[c->error] >= 3);
	ck_assert(!kit.up && kit.n_up == 0);
	ck_assert_int_eq(kit_store(&kit, 1), PREFIXD_MOVE_DOWN);
	n = fake_connections(fake);
	ck_assert_uint_ge(n, 3);
	/* With waits of 10, 20, 40 ... 500 ms at least; counted a while after the third. */
	ck_assert_uint_le(n, 4 + (prefixd_redis_now() - begin) / (40 * MS));
	fake_answer(fake, "PING", FAKE_USUAL, NULL, 0);
	kit_wait_up(&kit);
	ck_assert_int_eq(kit_store(&kit, 1), PREFIXD_MOVE_OK);
}
END_TEST

START_TEST(F45_reads_and_looks)
{
	const struct error_case *c = &errors[_i];

	start();
	fake_answer(fake, "EXISTS", FAKE_BYTES, c->reply, strlen(c->reply));
	ck_assert_uint_eq(kit_look(&kit, 0, 3), 0);
	kit_wait_up(&kit);
	fake_answer(fake, "GET", FAKE_BYTES, c->reply, strlen(c->reply));
	/* Refused, or the breaker has opened by then. */
	ck_assert_int_ne(kit_fetch(&kit, 1), PREFIXD_MOVE_OK);
	ck_assert_uint_eq(kit_bad(&kit), 0);
	ck_assert_uint_eq(fake_count(fake, "UNLINK"), 0);
}
END_TEST

/* Wrong passwords and refused names: AUTH is asked, what it says decides. */
START_TEST(F45_auth)
{
	snprintf(kit.config.user, sizeof(kit.config.user), "prefixd");
	snprintf(kit.config.password, sizeof(kit.config.password), "secret");
	fake_says(fake, "AUTH", "-WRONGPASS invalid username-password pair\r\n");
	fake_says(fake, "CLIENT", "-ERR unknown subcommand\r\n");
	fake_says(fake, "INFO", "-NOPERM no\r\n");
	kit_start(&kit);
	kit_until(&kit, kit_stats(&kit).errors[PREFIXD_REDIS_ERROR_AUTH] >= 2);
	ck_assert(!kit.up);
	fake_answer(fake, "AUTH", FAKE_USUAL, NULL, 0);
	kit_wait_up(&kit);
	ck_assert_str_eq(kit_stats(&kit).policy, "");
}
END_TEST

/* ---- F47: what is no reply ------------------------------------------------------------------- */

static const char *const garbage[] = {
	"HTTP/1.1 400 Bad Request\r\n\r\n",
	"$536870913\r\n",
	"$-2\r\n",
	"*2147483647\r\n",
	"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n",
	"*2\r\n$1\r\na\r\n$1\r\nb\r\n",
	":1\r\n",
	"+OK\r\n",
	">1\r\n+push\r\n",
	"$3\r\nabcXY+OK\r\n",
};

START_TEST(F47_garbage)
{
	start();
	fake_answer(fake, "GET", FAKE_BYTES, garbage[_i], strlen(garbage[_i]));
	ck_assert_int_ne(kit_fetch(&kit, 1), PREFIXD_MOVE_OK);
	kit_until(&kit, kit_stats(&kit).errors[PREFIXD_REDIS_ERROR_PROTOCOL] >= 1);
	kit_wait_down(&kit, 1);
	/* It connects anew and goes on. */
	serve_value(2);
	kit_wait_up(&kit);
	ck_assert_uint_ge(fake_connections(fake), 2);
	ck_assert_int_eq(kit_fetch(&kit, 2), PREFIXD_MOVE_OK);
}
END_TEST

START_TEST(F47_replies_nobody_asked_for)
{
	start();
	fake_says(fake, "SET", "+OK\r\n+OK\r\n");
	ck_assert_int_eq(kit_store(&kit, 1), PREFIXD_MOVE_OK);
	kit_wait_down(&kit, 1);
	ck_assert_uint_eq(kit_stats(&kit).errors[PREFIXD_REDIS_ERROR_PROTOCOL], 1);
}
END_TEST

/* Half a gigabyte is announced, then nothing: the request is answered at once, by its length. */
START_TEST(F47_announced)
{
	kit.config.deadline_ns = 1000 * MS;
	start();
	fake_says(fake, "GET", "$536870912\r\n");
	/* Not `down`: it does not wait for the rest. */
	ck_assert_int_eq(kit_fetch(&kit, 1), PREFIXD_MOVE_CORRUPT);
	ck_assert_uint_eq(kit_stats(&kit).bad_values[PREFIXD_REDIS_BAD_OVERSIZED], 1);
	/* The rest never comes: what is asked next waits for its deadline, and no longer. */
	ck_assert_int_eq(kit_fetch(&kit, 2), PREFIXD_MOVE_DOWN);
	kit_wait_up(&kit);
}
END_TEST

/* Longer than any block may be, and whole: refused, unlinked, and the connection goes on. */
START_TEST(F47_oversized)
{
	size_t len = BLOCK + RADIX_KEY_MAX + 1000;
	char *text = calloc(1, len + 100);
	size_t n = (size_t)snprintf(text, 50, "$%zu\r\n", len);

	ck_assert_ptr_nonnull(text);
	memcpy(text + n + len, "\r\n", 2);
	start();
	fake_answer(fake, "GET", FAKE_BYTES, text, n + len + 2);
	fake_says(fake, "UNLINK", ":1\r\n");
	free(text);
	for (unsigned i = 1; i <= 3; i++)
		ck_assert_int_eq(kit_fetch(&kit, i), PREFIXD_MOVE_CORRUPT);
	ck_assert_int_eq(kit_store(&kit, 1), PREFIXD_MOVE_OK); /* behind the UNLINKs */
	ck_assert_uint_eq(kit_stats(&kit).bad_values[PREFIXD_REDIS_BAD_OVERSIZED], 3);
	ck_assert_uint_eq(kit_stats(&kit).unlinked, 3);
	ck_assert_uint_eq(fake_connections(fake), 1);
}
END_TEST

/* ---- half answers, stalls, ends -------------------------------------------------------------- */

START_TEST(few_bytes_at_a_time)
{
	serve_value(3);
	fake_split(fake, (size_t)_i);
	kit.config.deadline_ns = kit.config.connect_ns = 60000 * MS; /* it takes its time */
	start();
	ck_assert_int_eq(kit_fetch(&kit, 3), PREFIXD_MOVE_OK);
	ck_assert_int_eq(kit_fetch(&kit, 4), PREFIXD_MOVE_CORRUPT); /* the value of 3 */
	ck_assert_uint_eq(kit_stats(&kit).bad_values[PREFIXD_REDIS_BAD_NAME], 1);
	ck_assert_uint_eq(fake_connections(fake), 1);
}
END_TEST

START_TEST(closed_within_a_reply)
{
	static const char *const halves[] = { "", "$", "$5000\r", "$5000\r\nabc", "*2\r\n$1\r\na" };

	start();
	for (size_t i = 0; i < radix_array_size(halves); i++) {
		fake_answer(fake, "GET", FAKE_CLOSE, halves[i], strlen(halves[i]));
		kit_wait_up(&kit);
		ck_assert_int_eq(kit_fetch(&kit, 1), PREFIXD_MOVE_DOWN);
		ck_assert_uint_ge(kit_stats(&kit).errors[PREFIXD_REDIS_ERROR_CLOSED], i + 1);
	}
}
END_TEST

/* The deadline of a request: answered then, with nothing written to it later. */
START_TEST(late_reply)
{
	uint8_t *block = malloc(BLOCK), want[BLOCK];
	struct prefixd_redis_message *m;
	uint64_t begin;

	ck_assert_ptr_nonnull(block);
	kit.config.deadline_ns = 60000 * MS;
	kit.config.breaker_failures = 100;
	start();
	kit_names(&kit, 20);
	kit_drain(&kit);
	fake_answer(fake, "GET", FAKE_MUTE, NULL, 0);
	memset(block, 0xa5, BLOCK);
	memset(want, 0xa5, BLOCK);
	begin = prefixd_redis_now();
	kit_send_fetch(&kit, 5, block, begin + 1000 * MS);
	m = kit_answer(&kit, KIT_PATIENCE);
	ck_assert_ptr_nonnull(m);
	ck_assert_int_eq(m->result, PREFIXD_MOVE_DOWN);
	ck_assert_uint_ge(prefixd_redis_now() - begin, 990 * MS);
	prefixd_redis_message_free(m);
	/* Now the reply comes, with the next one: the first is for the dead request. */
	{
		struct kit_value v;
		uint8_t data[BLOCK], sum[16];
		char text[2 * BLOCK + 2000];
		size_t n = 0;

		for (uint32_t e = 5; e <= 6; e++) {
			size_t len;

			kit_value(&kit, e, &v);
			kit_block(e, data, BLOCK);
			prefixd_value_checksum(data, BLOCK, sum);
			len = prefixd_value_len(&v.of, false);
			n += (size_t)snprintf(text + n, 100, "$%zu\r\n", len);
			prefixd_value_prefix(&v.of, sum, (uint8_t *)text + n);
			n += len - BLOCK;
			memcpy(text + n, data, BLOCK);
			n += BLOCK;
			memcpy(text + n, "\r\n", 2);
			n += 2;
		}
		fake_answer(fake, "GET", FAKE_BYTES, text, n);
	}
	ck_assert_int_eq(kit_fetch(&kit, 6), PREFIXD_MOVE_OK);
	ck_assert_mem_eq(block, want, BLOCK);
	ck_assert_uint_eq(kit_stats(&kit).breaker_opened, 0);
	ck_assert_uint_eq(kit_stats(&kit).errors[PREFIXD_REDIS_ERROR_TIMEOUT], 1);
	free(block);
}
END_TEST

/*
 * STOREs that are answered by their deadline while their bytes are still being written: the slot
 * is not read any longer.  (test_real.c looks at what arrives.)
 */
START_TEST(slot_used_again)
{
	uint64_t len = 4u << 20;
	uint8_t *block = malloc(len);
	uint64_t begin;

	ck_assert_ptr_nonnull(block);
	kit_stop(&kit);
	kit_init(&kit, fake_url(fake), len);
	kit.config.deadline_ns = 60000 * MS;
	kit.config.breaker_failures = 100;
	start();
	fake_answer(fake, "EXISTS", FAKE_STALL, NULL, 0);
	kit_names(&kit, 20);
	kit_drain(&kit);
	/* The other end stands still; the first block fills the socket. */
	begin = prefixd_redis_now();
	{
		struct prefixd_action a = { .type = PREFIXD_ACTION_LOOK, .group = KIT_GROUP };
		struct prefixd_redis_message *m;

		a.u.look.names = (struct prefixd_names){
			.mode = RADIX_KEYS_DIGEST, .key_len = 4, .n = 1, .keys = "look"
		};
		a.u.look.deadline_ns = begin + 1000 * MS;
		m = prefixd_redis_message_new(&a, NULL, 0);
		ck_assert_ptr_nonnull(m);
		kit.waiting++;
		prefixd_helper_send(prefixd_redis_helper(kit.redis), &m->message);
	}
	kit_idle(&kit, 20);
	kit_block(1, block, len);
	kit_send_store(&kit, 1, block, begin + 1500 * MS);
	kit_send_store(&kit, 2, block, begin + 1500 * MS); /* not begun when its time is over */
	kit_drain(&kit);
	ck_assert_uint_eq(kit.results[PREFIXD_MOVE_DOWN], 2);
	free(block); /* ASan would see it read */
	kit_idle(&kit, 50);
	fake_hang_up(fake, false);
	kit_wait_down(&kit, 1);
}
END_TEST

/* Comes and goes every 200 ms: every request is answered, and none waits for long. */
START_TEST(flapping)
{
	uint64_t begin, slowest = 0;
	uint32_t n[PREFIXD_MOVE_FAILED + 1] = { 0 };

	kit.config.backoff_min_ns = 10 * MS;
	kit.config.backoff_max_ns = 50 * MS;
	start();
	for (int round = 0; round < 8; round++) {
		uint64_t end = prefixd_redis_now() + 200 * MS;

		fake_hang_up(fake, round % 2 == 0);
		do {
			begin = prefixd_redis_now();
			n[kit_store(&kit, 1)]++;
			begin = prefixd_redis_now() - begin;
			slowest = begin > slowest ? begin : slowest;
			kit_idle(&kit, 1);
		} while (prefixd_redis_now() < end);
	}
	ck_assert_uint_gt(n[PREFIXD_MOVE_OK], 0);
	ck_assert_uint_gt(n[PREFIXD_MOVE_DOWN], 0);
	ck_assert_uint_eq(n[PREFIXD_MOVE_OK] + n[PREFIXD_MOVE_DOWN],
			  n[PREFIXD_MOVE_OK] + n[PREFIXD_MOVE_DOWN] + n[PREFIXD_MOVE_FAILED] +
				  n[PREFIXD_MOVE_CORRUPT] + n[PREFIXD_MOVE_LOST]);
	ck_assert_uint_lt(slowest, 5000 * MS); /* half of a deadline */
	ck_assert_uint_ge(kit.n_down, 2);
	ck_assert(kit.n_up == kit.n_down || kit.n_up == kit.n_down + 1);
	ck_assert_uint_eq(kit_stats(&kit).breaker_opened, kit.n_down);
}
END_TEST

/* Nothing is answered: the connection is given up after its deadline, and everything answered. */
START_TEST(stall)
{
	uint64_t begin;

	kit.config.deadline_ns = 200 * MS;
	start();
	fake_answer(fake, "PING", FAKE_STALL, NULL, 0);
	fake_answer(fake, "SET", FAKE_STALL, NULL, 0);
	begin = prefixd_redis_now();
	ck_assert_int_eq(kit_store(&kit, 1), PREFIXD_MOVE_DOWN);
	ck_assert_uint_ge(prefixd_redis_now() - begin, 190 * MS);
	ck_assert_uint_lt(prefixd_redis_now() - begin, 5000 * MS);
	kit_wait_down(&kit, 1);
	ck_assert_uint_ge(kit_stats(&kit).errors[PREFIXD_REDIS_ERROR_TIMEOUT], 1);
	/* While it is open nobody waits. */
	begin = prefixd_redis_now();
	for (unsigned i = 0; i < 100; i++)
		ck_assert_int_eq(kit_store(&kit, i), PREFIXD_MOVE_DOWN);
	ck_assert_uint_eq(kit_look(&kit, 0, 10), 0);
	ck_assert_uint_lt(prefixd_redis_now() - begin, 10000 * MS); /* 20 s by deadlines */
}
END_TEST

/* The same with more requests all the time, which the socket still takes: noticed as soon. */
START_TEST(stall_under_load)
{
	uint8_t block[BLOCK] = { 0 };
	uint64_t begin;

	kit.config.deadline_ns = 300 * MS;
	kit.config.breaker_failures = 100000;
	start();
	kit_names(&kit, 2);
	fake_answer(fake, "SET", FAKE_MUTE, NULL, 0);
	fake_answer(fake, "PING", FAKE_STALL, NULL, 0);
	begin = prefixd_redis_now();
	while (!kit.n_down && prefixd_redis_now() < begin + 20000 * MS) {
		kit_send_store(&kit, 1, block, prefixd_redis_now() + 5 * MS);
		kit_idle(&kit, 5);
	}
	ck_assert_uint_ge(prefixd_redis_now() - begin, 290 * MS);
	ck_assert_uint_lt(prefixd_redis_now() - begin, 10000 * MS);
	kit_drain(&kit);
	ck_assert_uint_gt(kit.results[PREFIXD_MOVE_DOWN], 5);
}
END_TEST

/* Requests that time out while others are answered: so many in a row open the breaker. */
START_TEST(failures_in_a_row)
{
	kit.config.deadline_ns = 5000 * MS;
	kit.config.breaker_failures = 3;
	start();
	fake_says(fake, "SET", "-ERR no\r\n");
	for (int round = 0; round < 4; round++) {
		ck_assert_int_eq(kit_store(&kit, 1), PREFIXD_MOVE_FAILED);
		ck_assert_int_eq(kit_store(&kit, 1), PREFIXD_MOVE_FAILED);
		ck_assert_int_eq(kit_fetch(&kit, 1), PREFIXD_MOVE_LOST); /* a success */
	}
	ck_assert_uint_eq(kit_stats(&kit).breaker_opened, 0);
	for (int i = 0; i < 3; i++)
		ck_assert_int_eq(kit_store(&kit, 1), PREFIXD_MOVE_FAILED);
	kit_wait_down(&kit, 1);
	ck_assert_uint_eq(kit_stats(&kit).breaker_opened, 1);
}
END_TEST

/* A deadline that has passed already, and entries without a name. */
START_TEST(not_tried)
{
	struct prefixd_action a = { .type = PREFIXD_ACTION_STORE, .group = KIT_GROUP };
	uint8_t block[BLOCK], key[KIT_KEY];
	struct prefixd_redis_message *m;
	uint64_t known[2];

	start();
	kit_names(&kit, 2);
	kit_send_store(&kit, 1, block, 1);
	kit_drain(&kit);
	ck_assert_uint_eq(kit.results[PREFIXD_MOVE_DOWN], 1);
	for (int i = 0; i < 2; i++) {
		/* No name; and a key that the entry's name is not made of. */
		kit_key(99, key);
		a.u.carry = (struct prefixd_carry){ .entry = i ? 1 : 500,
						    .key = key,
						    .key_len = KIT_KEY };
		m = prefixd_redis_message_new(&a, block, BLOCK);
		ck_assert_ptr_nonnull(m);
		kit.waiting++;
		prefixd_helper_send(prefixd_redis_helper(kit.redis), &m->message);
		kit_drain(&kit);
		ck_assert_uint_eq(kit.results[PREFIXD_MOVE_FAILED], (uint32_t)i + 1);
	}
	/* What lies in the slot is not the block that was committed. */
	kit_key(1, key);
	a.u.carry.entry = 1;
	a.u.carry.checksum_kind = PROTO_CHECKSUM_XXH3_128;
	kit_block(1, block, BLOCK);
	m = prefixd_redis_message_new(&a, block, BLOCK);
	ck_assert_ptr_nonnull(m);
	kit.waiting++;
	prefixd_helper_send(prefixd_redis_helper(kit.redis), &m->message);
	kit_drain(&kit);
	ck_assert_uint_eq(kit.results[PREFIXD_MOVE_CORRUPT], 1);
	/* Nor is it by the other kind of sum; which would be right. */
	a.u.carry.checksum_kind = PROTO_CHECKSUM_KERNEL;
	m = prefixd_redis_message_new(&a, block, BLOCK);
	ck_assert_ptr_nonnull(m);
	kit.waiting++;
	prefixd_helper_send(prefixd_redis_helper(kit.redis), &m->message);
	kit_drain(&kit);
	ck_assert_uint_eq(kit.results[PREFIXD_MOVE_CORRUPT], 2);
	ck_assert_uint_eq(fake_count(fake, "SET"), 0);
	gpu_checksum(gpu_codec_best(), block, BLOCK, known);
	memcpy(a.u.carry.checksum, known, sizeof(known)); /* the lowest byte first */
	m = prefixd_redis_message_new(&a, block, BLOCK);
	ck_assert_ptr_nonnull(m);
	kit.waiting++;
	prefixd_helper_send(prefixd_redis_helper(kit.redis), &m->message);
	kit_drain(&kit);
	ck_assert_uint_eq(kit.results[PREFIXD_MOVE_OK], 1);
	ck_assert_uint_eq(fake_count(fake, "SET"), 1);
}
END_TEST

/* LOOK counts those that are there from the first one on. */
START_TEST(look_to_the_first_gap)
{
	start();
	fake_answer(fake, "EXISTS", FAKE_ONCE, ":1\r\n:0\r\n:1\r\n", 12);
	ck_assert_uint_eq(kit_look(&kit, 0, 3), 1);
	fake_answer(fake, "EXISTS", FAKE_ONCE, ":0\r\n:1\r\n:1\r\n", 12);
	ck_assert_uint_eq(kit_look(&kit, 0, 3), 0);
	fake_answer(fake, "EXISTS", FAKE_ONCE, ":1\r\n:1\r\n-ERR no\r\n:1\r\n", 21);
	ck_assert_uint_eq(kit_look(&kit, 0, 4), 2);
	fake_answer(fake, "EXISTS", FAKE_ONCE, ":1\r\n:1\r\n:1\r\n", 12);
	ck_assert_uint_eq(kit_look(&kit, 0, 3), 3);
	ck_assert_uint_eq(kit_look(&kit, 0, 0), 0);
	ck_assert_uint_eq(fake_connections(fake), 1);
}
END_TEST

/* ---- epochs ---------------------------------------------------------------------------------- */

START_TEST(epochs)
{
	static const uint8_t ns[32] = "a namespace with an epoch";
	struct prefixd_epoch theirs = { 5, 77 }, ours = { 4, 99 };
	char text[PREFIXD_EPOCH_TEXT], reply[200];
	uint64_t sets;
	int n;

	start();
	prefixd_epoch_print(kit.config.naming_key, ns, theirs, text);
	n = snprintf(reply, sizeof(reply), "*1\r\n$52\r\n%.52s\r\n", text);
	fake_answer(fake, "MGET", FAKE_BYTES, reply, (size_t)n);
	kit_send_epoch(&kit, ns, ours, false);
	kit_until(&kit, kit.n_seen == 1);
	ck_assert(kit.seen.n == 5 && kit.seen.nonce == 77);
	ck_assert_uint_eq(fake_count(fake, "SET"), 0);
	/* Damaged, or of another namespace: not believed, and written over by what is known. */
	reply[12] ^= 1;
	fake_answer(fake, "MGET", FAKE_BYTES, reply, (size_t)n);
	kit_until(&kit, kit_stats(&kit).bad_values[PREFIXD_REDIS_BAD_CHECKSUM] >= 1);
	kit_until(&kit, fake_count(fake, "SET") >= 1);
	ck_assert_uint_eq(kit.n_seen, 1);
	/* Raised here: told to Redis at once. */
	fake_answer(fake, "MGET", FAKE_MUTE, NULL, 0);
	kit_idle(&kit, 100);
	sets = fake_count(fake, "SET");
	kit_send_epoch(&kit, ns, (struct prefixd_epoch){ 6, 1 }, true);
	kit_until(&kit, fake_count(fake, "SET") == sets + 1);
	ck_assert_uint_eq(kit.n_seen, 1);
}
END_TEST

static Suite *suite(const char *which)
{
	Suite *s = suite_create("redis fake");
	TCase *tc = tcase_create(which);

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 60);
	if (!strcmp(which, "F45")) {
		tcase_add_loop_test(tc, F45_one_error, 0, (int)radix_array_size(errors));
		tcase_add_loop_test(tc, F45_no_storm, 0, (int)radix_array_size(errors));
		tcase_add_loop_test(tc, F45_at_the_door, 0, (int)radix_array_size(errors));
		tcase_add_loop_test(tc, F45_reads_and_looks, 0, (int)radix_array_size(errors));
		tcase_add_test(tc, F45_auth);
	} else if (!strcmp(which, "F47")) {
		tcase_add_loop_test(tc, F47_garbage, 0, (int)radix_array_size(garbage));
		tcase_add_test(tc, F47_replies_nobody_asked_for);
		tcase_add_test(tc, F47_announced);
		tcase_add_test(tc, F47_oversized);
	} else {
		tcase_add_loop_test(tc, few_bytes_at_a_time, 1, 4);
		tcase_add_test(tc, closed_within_a_reply);
		tcase_add_test(tc, late_reply);
		tcase_add_test(tc, slot_used_again);
		tcase_add_test(tc, flapping);
		tcase_add_test(tc, stall);
		tcase_add_test(tc, stall_under_load);
		tcase_add_test(tc, failures_in_a_row);
		tcase_add_test(tc, not_tried);
		tcase_add_test(tc, look_to_the_first_gap);
		tcase_add_test(tc, epochs);
	}
	suite_add_tcase(s, tc);
	return s;
}

int main(int argc, char **argv)
{
	return test_run(suite(argc > 1 ? argv[1] : "all"));
}
