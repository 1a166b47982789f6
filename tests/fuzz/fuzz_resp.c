/*
 * fuzz_resp.c - any bytes as what Redis answers, through hiredis' reader into the client's books.
 *
 *     byte 0  bit 0: the questions at the beginning are open; else the breaker is closed and
 *             commands are in flight.  bit 1: values are encrypted
 *     byte 1  the stream comes in pieces of so many bytes; 0: whole
 *     byte 2  how many commands (low 4 bits), then a byte of kind for each
 *     rest    the stream
 *
 * There is no socket: what the client would write counts as written. What must hold: every message
 * is answered exactly once; a block is written to only by an answer that says OK; the books are
 * empty at the end. Nothing that is decided depends on the clock. Encrypted, the block is then the
 * one that was stored. In plain text it is what the stream has: the checksum in a value keeps out
 * damage, and a fuzzer that watches comparisons finds the right one for bytes of its own.
 */
#include "daemon/helper.h"
#include "daemon/redis_internal.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define BLOCK 64u
#define KEY   8u
#define MAX   15u

#define must(x)                  \
	do {                     \
		if (!(x))        \
			abort(); \
	} while (0)

static const uint8_t naming_key[32] = "fuzz: naming key";
static const uint8_t ns_digest[32] = "fuzz: digest of the namespace..";
static uint8_t blocks[MAX][BLOCK];
static uint32_t n_open; /* messages without an answer */
static bool encrypted;
static const uint8_t *stream;
static size_t stream_len;

/* ---- the helper, without a thread ------------------------------------------------------------ */

void prefixd_helper_answer(struct prefixd_helper *h, struct prefixd_message *message)
{
	struct prefixd_redis_message *m = radix_container_of(message, struct prefixd_redis_message,
							     message);
	const uint8_t *block = m->block;
	uint8_t want[BLOCK];

	if (m->message.kind == PREFIXD_REDIS_FETCH) {
		memset(want, m->result == PREFIXD_MOVE_OK ? 'b' : 0x5a, sizeof(want));
		if (m->result == PREFIXD_MOVE_OK && !encrypted)
			must(memmem(stream, stream_len, block, BLOCK));
		else
			must(!memcmp(block, want, sizeof(want)));
	}
	if (m->message.kind != PREFIXD_REDIS_STATE && m->message.kind != PREFIXD_REDIS_EPOCH_SEEN) {
		must(n_open > 0);
		n_open--;
	}
	if (m->message.kind == PREFIXD_REDIS_LOOK)
		must(m->n <= m->names.n);
	prefixd_redis_message_free(m);
}

struct prefixd_message *prefixd_helper_take(struct prefixd_helper *h)
{
	return NULL;
}

bool prefixd_helper_stopping(const struct prefixd_helper *h)
{
	return true;
}

int prefixd_helper_request_fd(const struct prefixd_helper *h)
{
	return -1;
}

void prefixd_helper_alive(struct prefixd_helper *h, uint64_t now_ns)
{
}

int prefixd_helper_start(struct prefixd_helper **ret_h, const struct prefixd_helper_config *config)
{
	return -ENOSYS;
}

void prefixd_helper_stop(struct prefixd_helper *h, void (*drop)(struct prefixd_message *m))
{
}

/* ---- commands -------------------------------------------------------------------------------- */

static void *heap_take(void *ctx, size_t size)
{
	return aligned_alloc(64, (size + 63) & ~(size_t)63);
}

static void heap_give(void *ctx, void *ptr, size_t size)
{
	free(ptr);
}

static const struct radix_alloc heap = { .take = heap_take, .give = heap_give };

static void init(struct prefixd_redis *r, bool encrypt)
{
	struct radix_list *lists[] = { &r->urgent, &r->waiting, &r->writing, &r->awaiting,
				       &r->answers };

	memset(r, 0, sizeof(*r));
	prefixd_redis_config_init(&r->config);
	memcpy(r->config.naming_key, naming_key, 32);
	prefixd_value_cipher_init(&r->cipher, naming_key, encrypt);
	r->fd = -1;
	for (size_t i = 0; i < radix_array_size(lists); i++)
		radix_list_init(lists[i]);
	must(prefixd_link_init(r) == 0);
	must(prefixd_names_new(&r->names, &heap, naming_key) == 0);
	must(prefixd_replies_new(&r->replies, 300, prefixd_line_reply, r) == 0);
	must(prefixd_breaker_probe(&r->breaker, UINT64_MAX));
}

static void deinit(struct prefixd_redis *r)
{
	prefixd_ops_fail_all(r);
	prefixd_redis_post_all(r);
	must(!n_open && !r->n_in_flight && !r->n_queued && !r->bytes_in_flight &&
	     !r->bytes_unwritten);
	prefixd_link_deinit(r);
	prefixd_replies_free(r->replies);
	prefixd_names_free(r->names);
	free(r->epochs);
}

static void ask(struct prefixd_redis *r, enum prefixd_action_type type, uint32_t i)
{
	struct prefixd_action a = { .type = type };
	uint8_t key[KEY] = { 'k', (uint8_t)i };
	uint32_t entry = i;

	if (type == PREFIXD_ACTION_STORE || type == PREFIXD_ACTION_FETCH) {
		a.u.carry = (struct prefixd_carry){
			.entry = i, .key = key, .key_len = KEY, .n_tokens = 4
		};
		memcpy(a.u.carry.ns_digest, ns_digest, 32);
	} else if (type == PREFIXD_ACTION_EPOCH) {
		a.u.epoch.digest[0] = (uint8_t)i;
		a.u.epoch.epoch.n = i;
		a.u.epoch.raised = i % 2;
	} else {
		struct prefixd_names *names = type == PREFIXD_ACTION_LOOK ? &a.u.look.names
									  : &a.u.names;

		*names = (struct prefixd_names){ .mode = RADIX_KEYS_DIGEST,
						 .parent = RADIX_NONE,
						 .key_len = KEY,
						 .n = 1,
						 .keys = key };
		names->entries = type == PREFIXD_ACTION_LOOK ? NULL : &entry;
	}
	n_open++;
	{
		struct prefixd_redis_message *m = prefixd_redis_message_new(&a, blocks[i], BLOCK);

		must(m);
		prefixd_ops_take(r, m);
	}
}

/* What waits is begun, and what is begun counts as written. */
static void write_all(struct prefixd_redis *r)
{
	struct radix_list *waiting[] = { &r->urgent, &r->waiting };
	struct prefixd_redis_command *c;

	prefixd_epochs_settle(r);
	for (size_t i = 0; i < radix_array_size(waiting); i++) {
		while (!radix_list_empty(waiting[i])) {
			c = radix_list_first(waiting[i], struct prefixd_redis_command, link);
			if (!prefixd_ops_begin(r, c))
				continue;
			radix_list_remove(&c->link);
			r->n_queued--;
			prefixd_line_send(r, c);
		}
	}
	while (!radix_list_empty(&r->writing)) {
		c = radix_list_first(&r->writing, struct prefixd_redis_command, link);
		r->bytes_unwritten -= prefixd_command_len(c) - c->written;
		c->written = prefixd_command_len(c);
		radix_list_remove(&c->link);
		radix_list_add_tail(&r->awaiting, &c->link);
	}
}

static void begin(struct prefixd_redis *r, const uint8_t *kinds, uint32_t n, bool handshake)
{
	static const enum prefixd_action_type types[] = { PREFIXD_ACTION_STORE,
							  PREFIXD_ACTION_FETCH, PREFIXD_ACTION_LOOK,
							  PREFIXD_ACTION_EPOCH };

	if (handshake) {
		snprintf(r->config.password, sizeof(r->config.password), "fuzz");
		prefixd_link_connected(r);
	} else {
		prefixd_breaker_close(&r->breaker, prefixd_redis_now());
	}
	for (uint32_t i = 0; i < n; i++) {
		enum prefixd_action_type type = types[kinds[i] % radix_array_size(types)];

		ask(r, PREFIXD_ACTION_NAMES, i);
		/* A value that is stored begins as the one that is fetched has to be. */
		memset(blocks[i], type == PREFIXD_ACTION_STORE ? 'b' : 0x5a, BLOCK);
		ask(r, type, i);
	}
	write_all(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct prefixd_redis r;
	size_t piece, n;

	if (size < 3)
		return 0;
	n = data[2] & 15;
	if (size < 3 + n)
		return 0;
	encrypted = data[0] & 2;
	init(&r, encrypted);
	begin(&r, data + 3, (uint32_t)n, data[0] & 1);
	piece = data[1] ? data[1] : size;
	data += 3 + n;
	size -= 3 + n;
	stream = data;
	stream_len = size;
	while (size && !r.broken) {
		size_t some = size < piece ? size : piece;

		if (prefixd_replies_feed(r.replies, data, some) < 0)
			prefixd_redis_break(&r, PREFIXD_REDIS_ERROR_PROTOCOL);
		if (!r.broken)
			write_all(&r);
		data += some;
		size -= some;
	}
	deinit(&r);
	return 0;
}
