/*
 * redis_command.c - one command and its bytes.
 *
 * A block is never copied into a command: its bytes are written from the slot, between a head (the
 * protocol's words and the head of the value) and a tail.  That is what the whole file is about;
 * hiredis' own way formats a command with the block in it, appends that to a buffer, and moves the
 * rest of the buffer to its front after each write.
 */
#include "daemon/redis_internal.h"
#include "daemon/redis_sum.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>

struct prefixd_redis_command *prefixd_command_new(struct prefixd_redis *r,
						  enum prefixd_redis_command_kind kind)
{
	struct prefixd_redis_command *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	radix_list_init(&c->link);
	c->kind = kind;
	c->redis = r;
	c->n_replies = 1;
	return c;
}

void prefixd_command_free(struct prefixd_redis_command *c)
{
	if (c->kind == PREFIXD_COMMAND_AUTH && c->text)
		sodium_memzero(c->text, c->text_len);
	free(c->text);
	free(c->own);
	free(c);
}

/* Room for n more bytes of text.  NULL without memory. */
static char *text_more(struct prefixd_redis_command *c, size_t n)
{
	char *p = malloc(c->text_len + n);

	if (!p)
		return NULL;
	if (c->text_len) {
		memcpy(p, c->text, c->text_len);
		if (c->kind == PREFIXD_COMMAND_AUTH)
			sodium_memzero(c->text, c->text_len);
	}
	free(c->text);
	c->text = p;
	return p + c->text_len;
}

static char *add_number(char *p, char kind, size_t n)
{
	return p + snprintf(p, 24, "%c%zu\r\n", kind, n);
}

static char *add_word(char *p, const void *word, size_t len)
{
	p = add_number(p, '$', len);
	memcpy(p, word, len);
	p += len;
	*p++ = '\r';
	*p++ = '\n';
	return p;
}

int prefixd_command_words(struct prefixd_redis_command *c, const struct prefixd_redis_word *words,
			  uint32_t n)
{
	size_t len = 24;
	char *p;

	for (uint32_t i = 0; i < n; i++)
		len += words[i].len + 28;
	p = text_more(c, len);
	if (!p)
		return -ENOMEM;
	p = add_number(p, '*', n);
	for (uint32_t i = 0; i < n; i++)
		p = add_word(p, words[i].p, words[i].len);
	c->text_len = (size_t)(p - c->text);
	c->head_len = c->text_len;
	return 0;
}

struct prefixd_value_of prefixd_command_of(const struct prefixd_redis_command *c)
{
	const struct prefixd_redis_message *m = c->m;

	return (struct prefixd_value_of){ .ns_digest = m->carry.ns_digest,
					  .name = c->name,
					  .parent = c->before,
					  .key = m->carry.key,
					  .key_len = m->carry.key_len,
					  .n_tokens = m->carry.n_tokens,
					  .block_bytes = m->block_bytes,
					  .n_pieces = m->n_pieces,
					  .codec = (uint8_t)m->codec,
					  .cold_bytes = m->cold_bytes,
					  .coded = m->coded };
}

/* Head and tail of SET, with room in the head for `prefix` bytes of the value. */
static int store_text(struct prefixd_redis_command *c, size_t value_len, size_t prefix,
		      uint8_t **ret_prefix)
{
	char key[PREFIXD_REDIS_KEY_LEN], ms[24], *p = text_more(c, 256 + prefix);
	uint64_t ttl_ns = c->redis->config.ttl_ns;

	if (!p)
		return -ENOMEM;
	prefixd_name_redis_key(c->name, key);
	p = add_number(p, '*', ttl_ns ? 5 : 3);
	p = add_word(p, "SET", 3);
	p = add_word(p, key, sizeof(key));
	p = add_number(p, '$', value_len);
	*ret_prefix = (uint8_t *)p;
	p += prefix;
	c->head_len = (size_t)(p - c->text);
	*p++ = '\r';
	*p++ = '\n';
	if (ttl_ns) {
		/* Rounded up: 0 is an error to Redis. */
		int n = snprintf(ms, sizeof(ms), "%llu",
				 (unsigned long long)((ttl_ns + 999999) / 1000000));

		p = add_word(p, "PX", 2);
		p = add_word(p, ms, (size_t)n);
	}
	c->text_len = (size_t)(p - c->text);
	return 0;
}

/* False: the bytes are not the ones that are known. */
static bool store_check(struct prefixd_redis_message *m)
{
	uint8_t seal[PREFIXD_COLD_SEAL];

	if (!m->coded) {
		if (m->carry.checksum_kind == PROTO_CHECKSUM_KERNEL) {
			prefixd_sum_pieces(PROTO_CHECKSUM_KERNEL, m->block, m->block_bytes,
					   m->n_pieces, m->checksum);
			if (memcmp(m->checksum, m->carry.checksum, sizeof(m->checksum)) != 0)
				return false;
		}
		prefixd_sum_pieces(PROTO_CHECKSUM_XXH3_128, m->block, m->block_bytes, m->n_pieces,
				   m->checksum);
		return m->carry.checksum_kind != PROTO_CHECKSUM_XXH3_128 ||
		       memcmp(m->checksum, m->carry.checksum, sizeof(m->checksum)) == 0;
	}
	/* What is known of a block is not known of its codes. */
	prefixd_sum(m->block, m->cold_bytes, m->checksum);
	if (!m->sealed)
		return true;
	prefixd_cold_seal(m->checksum, m->carry.entry, m->carry.generation, seal);
	return memcmp(seal, (const uint8_t *)m->block + m->cold_bytes, sizeof(seal)) == 0;
}

int prefixd_command_store(struct prefixd_redis_command *c)
{
	struct prefixd_redis_message *m = c->m;
	const struct prefixd_value_cipher *cipher = &c->redis->cipher;
	struct prefixd_value_of of = prefixd_command_of(c);
	size_t len = prefixd_value_len(&of, cipher->on);
	const uint64_t block_len = m->coded ? m->cold_bytes : m->block_bytes;
	uint8_t *prefix;

	if (!store_check(m))
		return -EBADMSG;
	if (cipher->on) {
		uint8_t nonce[PREFIXD_VALUE_NONCE];

		c->own = malloc(len);
		if (!c->own || store_text(c, len, 0, &prefix) < 0)
			return -ENOMEM;
		randombytes_buf(nonce, sizeof(nonce));
		prefixd_value_encrypt(&of, m->checksum, m->block, cipher, nonce, c->own);
		c->payload = c->own;
		c->payload_len = len;
	} else {
		if (store_text(c, len, len - block_len, &prefix) < 0)
			return -ENOMEM;
		prefixd_value_prefix(&of, m->checksum, prefix);
		c->payload = m->block;
		c->payload_len = block_len;
	}
	return 0;
}

int prefixd_command_fetch(struct prefixd_redis_command *c)
{
	char key[PREFIXD_REDIS_KEY_LEN];

	prefixd_name_redis_key(c->name, key);
	return prefixd_command_words(
		c, (struct prefixd_redis_word[]){ { "GET", 3 }, { key, sizeof(key) } }, 2);
}

int prefixd_command_look(struct prefixd_redis_command *c)
{
	const struct prefixd_redis_message *m = c->m;
	uint8_t(*names)[32] = malloc((size_t)m->names.n * 32);
	char key[PREFIXD_REDIS_KEY_LEN], *p;

	int r = 0;

	/* One text for all: each command has 2 words and at most 128 bytes. */
	p = names ? text_more(c, (size_t)m->names.n * 128) : NULL;
	if (!p)
		r = -ENOMEM;
	else if (!prefixd_names_chain(c->redis->names, m->group, &m->names, names))
		r = -EINVAL;
	if (r < 0) {
		free(names);
		return r;
	}
	for (uint32_t i = 0; i < m->names.n; i++) {
		prefixd_name_redis_key(names[i], key);
		p = add_number(p, '*', 2);
		p = add_word(p, "EXISTS", 6);
		p = add_word(p, key, sizeof(key));
	}
	free(names);
	c->text_len = (size_t)(p - c->text);
	c->head_len = c->text_len;
	c->n_replies = m->names.n;
	return 0;
}

int prefixd_command_detach(struct prefixd_redis_command *c)
{
	if (!c->payload || c->own)
		return 0;
	if (c->written < c->head_len + c->payload_len) {
		c->own = malloc(c->payload_len);
		if (!c->own)
			return -ENOMEM;
		memcpy(c->own, c->payload, c->payload_len);
	}
	c->payload = c->own;
	return 0;
}
