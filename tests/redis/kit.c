/*
 * kit.c - see kit.h.
 */
#include "tests/redis/kit.h"

#include "daemon/helper.h"
#include "tests/lib/rng.h"

#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>

const uint8_t kit_ns[32] = "the namespace of the tests .....";
static const uint8_t kit_root[32] = "the root of the tests ..........";
static const uint8_t kit_naming_key[32] = "the naming key of the tests ....";

void kit_init(struct kit *k, const char *url, uint64_t block_bytes)
{
	memset(k, 0, sizeof(*k));
	prefixd_redis_config_init(&k->config);
	snprintf(k->config.url, sizeof(k->config.url), "%s", url);
	memcpy(k->config.naming_key, kit_naming_key, 32);
	k->config.deadline_ns = 10000 * MS;
	k->config.connect_ns = 5000 * MS;
	k->config.backoff_min_ns = 10 * MS;
	k->config.backoff_max_ns = 200 * MS;
	k->config.max_block_bytes = block_bytes;
	k->block_bytes = block_bytes;
}

void kit_start(struct kit *k)
{
	char why[256] = "";
	int r = prefixd_redis_start(&k->redis, &k->config, why, sizeof(why));

	ck_assert_msg(r == 0, "%s", why);
}

void kit_stop(struct kit *k)
{
	prefixd_redis_stop(k->redis);
	k->redis = NULL;
}

/* ---- what entries are made of ---------------------------------------------------------------- */

void kit_key(uint32_t entry, uint8_t ret_key[KIT_KEY])
{
	uint64_t seed = 0x6b657900000000 + entry;

	test_rng_fill(&seed, ret_key, KIT_KEY);
}

void kit_block(uint32_t entry, void *block, uint64_t len)
{
	uint64_t seed = 0x626c6b00000000 + entry;

	test_rng_fill(&seed, block, len);
}

void kit_name(const struct kit *k, uint32_t entry, uint8_t ret_name[32], uint8_t ret_root[32])
{
	uint8_t key[KIT_KEY];

	kit_key(entry, key);
	memcpy(ret_root, kit_root, 32);
	prefixd_name_derive(k->config.naming_key, RADIX_KEYS_DIGEST, kit_root, key, KIT_KEY,
			    ret_name);
}

void kit_redis_key(const struct kit *k, uint32_t entry, char ret_key[PREFIXD_REDIS_KEY_LEN + 1])
{
	uint8_t name[32], root[32];

	kit_name(k, entry, name, root);
	prefixd_name_redis_key(name, ret_key);
	ret_key[PREFIXD_REDIS_KEY_LEN] = 0;
}

void kit_value(const struct kit *k, uint32_t entry, struct kit_value *ret)
{
	kit_key(entry, ret->key);
	kit_name(k, entry, ret->name, ret->root);
	ret->of = (struct prefixd_value_of){ .ns_digest = kit_ns,
					     .name = ret->name,
					     .parent = ret->root,
					     .key = ret->key,
					     .key_len = KIT_KEY,
					     .n_tokens = 16,
					     .block_bytes = k->block_bytes };
}

/* ---- requests -------------------------------------------------------------------------------- */

static void send_action(struct kit *k, const struct prefixd_action *a, void *block)
{
	struct prefixd_redis_message *m = prefixd_redis_message_new(a, block, k->block_bytes);

	ck_assert_ptr_nonnull(m);
	k->waiting++;
	prefixd_helper_send(prefixd_redis_helper(k->redis), &m->message);
}

static struct prefixd_names names_of(uint32_t first, uint32_t n, uint8_t **ret_keys)
{
	struct prefixd_names names = {
		.mode = RADIX_KEYS_DIGEST, .parent = RADIX_NONE, .key_len = KIT_KEY, .n = n
	};
	uint8_t *keys = malloc((size_t)n * KIT_KEY + 1);

	ck_assert_ptr_nonnull(keys);
	for (uint32_t i = 0; i < n; i++)
		kit_key(first + i, keys + (size_t)i * KIT_KEY);
	memcpy(names.root, kit_root, 32);
	memcpy(names.ns_digest, kit_ns, 32);
	names.keys = keys;
	*ret_keys = keys;
	return names;
}

void kit_names(struct kit *k, uint32_t n)
{
	for (; k->named < n; k->named++) {
		struct prefixd_action a = { .type = PREFIXD_ACTION_NAMES, .group = KIT_GROUP };
		uint8_t *keys;

		a.u.names = names_of(k->named, 1, &keys);
		a.u.names.entries = &k->named;
		send_action(k, &a, NULL);
		free(keys);
	}
}

static void send_carry(struct kit *k, enum prefixd_action_type type, uint32_t entry, void *block,
		       uint64_t deadline_ns)
{
	struct prefixd_action a = { .type = type, .group = KIT_GROUP };
	uint8_t key[KIT_KEY];

	kit_names(k, entry + 1);
	kit_key(entry, key);
	a.u.carry = (struct prefixd_carry){ .id = entry,
					    .entry = entry,
					    .n_tokens = 16,
					    .deadline_ns = deadline_ns,
					    .key = key,
					    .key_len = KIT_KEY };
	memcpy(a.u.carry.ns_digest, kit_ns, 32);
	send_action(k, &a, block);
}

void kit_send_store(struct kit *k, uint32_t entry, void *block, uint64_t deadline_ns)
{
	send_carry(k, PREFIXD_ACTION_STORE, entry, block, deadline_ns);
}

void kit_send_fetch(struct kit *k, uint32_t entry, void *block, uint64_t deadline_ns)
{
	send_carry(k, PREFIXD_ACTION_FETCH, entry, block, deadline_ns);
}

void kit_send_epoch(struct kit *k, const uint8_t digest[32], struct prefixd_epoch epoch,
		    bool raised)
{
	struct prefixd_action a = { .type = PREFIXD_ACTION_EPOCH };

	memcpy(a.u.epoch.digest, digest, 32);
	a.u.epoch.epoch = epoch;
	a.u.epoch.raised = raised;
	send_action(k, &a, NULL);
}

/* ---- answers --------------------------------------------------------------------------------- */

/* Books what came unasked.  Return: it was that, and is gone. */
static bool unasked(struct kit *k, struct prefixd_redis_message *m)
{
	struct prefixd_event e;

	if (m->message.kind == PREFIXD_REDIS_STATE) {
		ck_assert(prefixd_redis_event(m, &e) && e.type == PREFIXD_EVENT_REDIS_STATE);
		k->up = e.u.redis_up;
		*(k->up ? &k->n_up : &k->n_down) += 1;
	} else if (m->message.kind == PREFIXD_REDIS_EPOCH_SEEN) {
		ck_assert(prefixd_redis_event(m, &e) && e.type == PREFIXD_EVENT_EPOCH_SEEN);
		k->seen = e.u.epoch.epoch;
		k->n_seen++;
	} else {
		return false;
	}
	prefixd_redis_message_free(m);
	return true;
}

struct prefixd_redis_message *kit_answer(struct kit *k, unsigned ms)
{
	struct prefixd_helper *h = prefixd_redis_helper(k->redis);
	uint64_t end = prefixd_redis_now() + ms * MS;

	for (;;) {
		struct prefixd_message *got;
		uint64_t now;

		while ((got = prefixd_helper_receive(h))) {
			struct prefixd_redis_message *m =
				radix_container_of(got, struct prefixd_redis_message, message);

			if (unasked(k, m))
				continue;
			ck_assert_uint_gt(k->waiting, 0);
			k->waiting--;
			if (m->message.kind == PREFIXD_REDIS_STORE ||
			    m->message.kind == PREFIXD_REDIS_FETCH)
				k->results[m->result]++;
			return m;
		}
		now = prefixd_redis_now();
		if (now >= end)
			return NULL;
		(void)poll(&(struct pollfd){ prefixd_helper_answer_fd(h), POLLIN, 0 }, 1,
			   (int)((end - now) / MS) + 1);
	}
}

void kit_drain(struct kit *k)
{
	uint64_t end = prefixd_redis_now() + KIT_PATIENCE * MS;

	while (k->waiting) {
		uint64_t now = prefixd_redis_now();
		struct prefixd_redis_message *m =
			now < end ? kit_answer(k, (unsigned)((end - now) / MS) + 1) : NULL;

		ck_assert_msg(m != NULL, "%u requests without an answer", k->waiting);
		prefixd_redis_message_free(m);
	}
}

void kit_idle(struct kit *k, unsigned ms)
{
	uint64_t end = prefixd_redis_now() + ms * MS, now;

	while ((now = prefixd_redis_now()) < end)
		prefixd_redis_message_free(kit_answer(k, (unsigned)((end - now) / MS) + 1));
}

void kit_wait_up(struct kit *k)
{
	uint64_t end = prefixd_redis_now() + KIT_PATIENCE * MS;

	while (!k->up && prefixd_redis_now() < end)
		prefixd_redis_message_free(kit_answer(k, 10));
	if (!k->up) {
		struct prefixd_redis_stats s = kit_stats(k);
		char text[256] = "";
		int n = 0;

		for (int i = 0; i < PREFIXD_REDIS_N_ERRORS; i++)
			n += snprintf(text + n, sizeof(text) - (size_t)n, " %" PRIu64, s.errors[i]);
		ck_abort_msg("not up: breaker %d, %" PRIu64 " connects, %" PRIu64
			     " in flight, errors%s",
			     (int)s.breaker, s.connects, s.in_flight, text);
	}
}

void kit_wait_down(struct kit *k, uint32_t n)
{
	uint64_t end = prefixd_redis_now() + KIT_PATIENCE * MS;

	while (k->n_down < n && prefixd_redis_now() < end)
		prefixd_redis_message_free(kit_answer(k, 10));
	ck_assert_msg(k->n_down >= n, "not down %u times", n);
}

/* ---- one at a time --------------------------------------------------------------------------- */

/* The answer of a kind; others are waited for and thrown away. */
static struct prefixd_redis_message *answer_of(struct kit *k, uint32_t kind)
{
	for (;;) {
		struct prefixd_redis_message *m = kit_answer(k, 30000);

		ck_assert_msg(m != NULL, "no answer");
		if (m->message.kind == kind)
			return m;
		prefixd_redis_message_free(m);
	}
}

enum prefixd_move_result kit_store(struct kit *k, uint32_t entry)
{
	uint8_t *block = malloc(k->block_bytes), sum[16];
	struct prefixd_redis_message *m;
	enum prefixd_move_result result;
	struct prefixd_event e;

	ck_assert_ptr_nonnull(block);
	kit_block(entry, block, k->block_bytes);
	kit_send_store(k, entry, block, 0);
	m = answer_of(k, PREFIXD_REDIS_STORE);
	ck_assert(prefixd_redis_event(m, &e) && e.type == PREFIXD_EVENT_MOVED);
	ck_assert_uint_eq(e.u.moved.id, entry);
	result = e.u.moved.result;
	if (result == PREFIXD_MOVE_OK) {
		prefixd_value_checksum(block, k->block_bytes, sum);
		ck_assert(e.u.moved.summed && !memcmp(e.u.moved.checksum, sum, 16));
	}
	prefixd_redis_message_free(m);
	free(block);
	return result;
}

enum prefixd_move_result kit_fetch(struct kit *k, uint32_t entry)
{
	uint8_t *want = malloc(k->block_bytes), *got = malloc(k->block_bytes), sum[16];
	struct prefixd_redis_message *m;
	enum prefixd_move_result result;
	struct prefixd_event e;

	ck_assert(want && got);
	memset(got, 0xa5, k->block_bytes);
	kit_send_fetch(k, entry, got, 0);
	m = answer_of(k, PREFIXD_REDIS_FETCH);
	ck_assert(prefixd_redis_event(m, &e) && e.type == PREFIXD_EVENT_MOVED);
	ck_assert_uint_eq(e.u.moved.id, entry);
	result = e.u.moved.result;
	if (result == PREFIXD_MOVE_OK) {
		kit_block(entry, want, k->block_bytes);
		prefixd_value_checksum(want, k->block_bytes, sum);
		ck_assert(e.u.moved.summed && !memcmp(e.u.moved.checksum, sum, 16));
	} else {
		memset(want, 0xa5, k->block_bytes);
	}
	ck_assert_msg(!memcmp(want, got, k->block_bytes), "wrong bytes after result %d",
		      (int)result);
	prefixd_redis_message_free(m);
	free(want);
	free(got);
	return result;
}

uint32_t kit_look(struct kit *k, uint32_t first, uint32_t n)
{
	struct prefixd_action a = { .type = PREFIXD_ACTION_LOOK, .group = KIT_GROUP };
	struct prefixd_redis_message *m;
	struct prefixd_event e;
	uint8_t *keys;

	a.u.look.id = 77;
	a.u.look.names = names_of(first, n, &keys);
	send_action(k, &a, NULL);
	free(keys);
	m = answer_of(k, PREFIXD_REDIS_LOOK);
	ck_assert(prefixd_redis_event(m, &e) && e.type == PREFIXD_EVENT_LOOKED);
	ck_assert_uint_eq(e.u.looked.id, 77);
	prefixd_redis_message_free(m);
	return e.u.looked.n;
}

struct prefixd_redis_stats kit_stats(const struct kit *k)
{
	struct prefixd_redis_stats s;

	prefixd_redis_stats(k->redis, &s);
	return s;
}

uint64_t kit_bad(const struct kit *k)
{
	struct prefixd_redis_stats s = kit_stats(k);
	uint64_t n = 0;

	for (int i = 0; i < PREFIXD_REDIS_N_BAD; i++)
		n += s.bad_values[i];
	return n;
}
