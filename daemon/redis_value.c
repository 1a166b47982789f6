/*
 * redis_value.c - see redis_value.h.
 *
 * The order of the checks is that of trust: what kind of thing this is, whether its head is whole,
 * whose it claims to be, and only then what it holds.  So the reason counted is the most general
 * one that is true: a value of a newer version is not called damaged.
 */
#include "daemon/redis_value.h"

#include "daemon/redis_sum.h"

#include <sodium.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum {
	AT_VERSION = 8,
	AT_FLAGS = 10,
	AT_CODEC = 12,
	AT_ZERO = 13,
	AT_HEAD_LEN = 16,
	AT_KEY_LEN = 20,
	AT_PAYLOAD_LEN = 24,
	AT_TOKENS = 32,
	AT_ZERO_2 = 36,
	AT_NONCE = 40,
	AT_NAMESPACE = 64,
	AT_NAME = 96,
	AT_PARENT = 128,
	AT_HEAD_SUM = 160,
};

static const uint8_t magic[AT_VERSION] = { 0x89, 'P', 'F', 'X', 'D', '\r', '\n', 0x1a };

static void put(uint8_t *p, uint64_t v, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		p[i] = (uint8_t)(v >> (8 * i));
}

static uint64_t get(const uint8_t *p, unsigned n)
{
	uint64_t v = 0;

	for (unsigned i = 0; i < n; i++)
		v |= (uint64_t)p[i] << (8 * i);
	return v;
}

static bool is_zero(const uint8_t *p, size_t n)
{
	uint8_t any = 0;

	for (size_t i = 0; i < n; i++)
		any |= p[i];
	return !any;
}

void prefixd_value_checksum(const void *block, size_t len, uint8_t ret_checksum[16])
{
	prefixd_sum(block, len, ret_checksum);
}

void prefixd_value_cipher_init(struct prefixd_value_cipher *c, const uint8_t naming_key[32],
			       bool on)
{
	static const char purpose[] = "prefixd redis value encryption 1";

	c->on = on;
	/* Fails only for lengths out of range, and these are constants. */
	(void)crypto_generichash(c->key, sizeof(c->key), (const uint8_t *)purpose,
				 sizeof(purpose) - 1, naming_key, 32);
}

static size_t payload_len(const struct prefixd_value_of *of)
{
	return (size_t)(of->coded ? of->cold_bytes : of->block_bytes);
}

size_t prefixd_value_len(const struct prefixd_value_of *of, bool encrypted)
{
	return PREFIXD_VALUE_HEAD + PREFIXD_VALUE_SUM + of->key_len + payload_len(of) +
	       (encrypted ? PREFIXD_VALUE_TAG : 0);
}

static void head_write(const struct prefixd_value_of *of, unsigned flags, const uint8_t *nonce,
		       uint8_t *p)
{
	memset(p, 0, PREFIXD_VALUE_HEAD);
	memcpy(p, magic, sizeof(magic));
	put(p + AT_VERSION, PREFIXD_VALUE_VERSION, 2);
	put(p + AT_FLAGS, flags, 2);
	p[AT_CODEC] = of->coded ? of->codec : 0;
	put(p + AT_HEAD_LEN, PREFIXD_VALUE_HEAD, 4);
	put(p + AT_KEY_LEN, of->key_len, 4);
	put(p + AT_PAYLOAD_LEN, payload_len(of), 8);
	put(p + AT_TOKENS, of->n_tokens, 4);
	if (nonce)
		memcpy(p + AT_NONCE, nonce, PREFIXD_VALUE_NONCE);
	memcpy(p + AT_NAMESPACE, of->ns_digest, 32);
	memcpy(p + AT_NAME, of->name, 32);
	memcpy(p + AT_PARENT, of->parent, 32);
	put(p + AT_HEAD_SUM, XXH3_64bits(p, AT_HEAD_SUM), 8);
}

void prefixd_value_prefix(const struct prefixd_value_of *of, const uint8_t checksum[16],
			  uint8_t *ret_prefix)
{
	head_write(of, 0, NULL, ret_prefix);
	memcpy(ret_prefix + PREFIXD_VALUE_HEAD, checksum, PREFIXD_VALUE_SUM);
	memcpy(ret_prefix + PREFIXD_VALUE_HEAD + PREFIXD_VALUE_SUM, of->key, of->key_len);
}

void prefixd_value_encrypt(const struct prefixd_value_of *of, const uint8_t checksum[16],
			   const void *block, const struct prefixd_value_cipher *cipher,
			   const uint8_t nonce[PREFIXD_VALUE_NONCE], uint8_t *ret_value)
{
	uint8_t *body = ret_value + PREFIXD_VALUE_HEAD;
	size_t n = PREFIXD_VALUE_SUM + of->key_len + payload_len(of);

	head_write(of, PREFIXD_VALUE_ENCRYPTED, nonce, ret_value);
	memcpy(body, checksum, PREFIXD_VALUE_SUM);
	memcpy(body + PREFIXD_VALUE_SUM, of->key, of->key_len);
	memcpy(body + PREFIXD_VALUE_SUM + of->key_len, block, payload_len(of));
	/* In place; always 0. */
	(void)crypto_aead_xchacha20poly1305_ietf_encrypt_detached(body, body + n, NULL, body, n,
								  ret_value, PREFIXD_VALUE_HEAD,
								  NULL, nonce, cipher->key);
}

/* The head alone.  Return: true; false with the reason. */
static bool head_check(const uint8_t *p, size_t len, const struct prefixd_value_of *of,
		       enum prefixd_redis_bad *ret_why)
{
	enum prefixd_redis_bad why;

	if (len < sizeof(magic))
		why = PREFIXD_REDIS_BAD_TRUNCATED;
	else if (memcmp(p, magic, sizeof(magic)) != 0)
		why = PREFIXD_REDIS_BAD_MAGIC;
	else if (len < AT_FLAGS)
		why = PREFIXD_REDIS_BAD_TRUNCATED;
	else if (get(p + AT_VERSION, 2) != PREFIXD_VALUE_VERSION)
		why = PREFIXD_REDIS_BAD_VERSION;
	else if (len < PREFIXD_VALUE_HEAD)
		why = PREFIXD_REDIS_BAD_TRUNCATED;
	else if (get(p + AT_HEAD_SUM, 8) != XXH3_64bits(p, AT_HEAD_SUM) ||
		 get(p + AT_HEAD_LEN, 4) != PREFIXD_VALUE_HEAD || !is_zero(p + AT_ZERO, 3) ||
		 !is_zero(p + AT_ZERO_2, 4))
		why = PREFIXD_REDIS_BAD_HEADER;
	else if (get(p + AT_FLAGS, 2) & ~(uint64_t)PREFIXD_VALUE_ENCRYPTED)
		why = PREFIXD_REDIS_BAD_VERSION; /* of somebody who can do more */
	else if (memcmp(p + AT_NAMESPACE, of->ns_digest, 32) != 0)
		why = PREFIXD_REDIS_BAD_NAMESPACE;
	else if (memcmp(p + AT_NAME, of->name, 32) != 0)
		why = PREFIXD_REDIS_BAD_NAME;
	else if (memcmp(p + AT_PARENT, of->parent, 32) != 0 ||
		 get(p + AT_KEY_LEN, 4) != of->key_len || get(p + AT_TOKENS, 4) != of->n_tokens)
		why = PREFIXD_REDIS_BAD_KEY;
	else if (p[AT_CODEC] != 0 && p[AT_CODEC] != of->codec)
		why = PREFIXD_REDIS_BAD_CODEC;
	else if (get(p + AT_PAYLOAD_LEN, 8) != (p[AT_CODEC] ? of->cold_bytes : of->block_bytes))
		why = PREFIXD_REDIS_BAD_SIZE;
	else
		return true;
	*ret_why = why;
	return false;
}

bool prefixd_value_parse(void *value, size_t len, struct prefixd_value_of *of,
			 const struct prefixd_value_cipher *cipher, void *block,
			 uint8_t ret_checksum[16], enum prefixd_redis_bad *ret_why)
{
	uint8_t *p = value, *body = p + PREFIXD_VALUE_HEAD, sum[16];
	enum prefixd_redis_bad why;
	size_t n;

	if (!head_check(p, len, of, &why)) {
		*ret_why = why;
		return false;
	}
	of->coded = p[AT_CODEC] != 0;
	n = PREFIXD_VALUE_SUM + of->key_len + payload_len(of);
	if (get(p + AT_FLAGS, 2) != (cipher->on ? PREFIXD_VALUE_ENCRYPTED : 0u) ||
	    (!cipher->on && !is_zero(p + AT_NONCE, PREFIXD_VALUE_NONCE)))
		why = PREFIXD_REDIS_BAD_AUTH;
	else if (len < prefixd_value_len(of, cipher->on))
		why = PREFIXD_REDIS_BAD_TRUNCATED;
	else if (len > prefixd_value_len(of, cipher->on))
		why = PREFIXD_REDIS_BAD_OVERSIZED;
	else if (cipher->on && crypto_aead_xchacha20poly1305_ietf_decrypt_detached(
				       body, NULL, body, n, body + n, p, PREFIXD_VALUE_HEAD,
				       p + AT_NONCE, cipher->key) != 0)
		why = PREFIXD_REDIS_BAD_AUTH;
	else if (memcmp(body + PREFIXD_VALUE_SUM, of->key, of->key_len) != 0)
		why = PREFIXD_REDIS_BAD_KEY;
	else {
		const uint8_t *payload = body + PREFIXD_VALUE_SUM + of->key_len;

		if (of->coded) /* in one piece, whose codes they are */
			prefixd_sum(payload, payload_len(of), sum);
		else
			prefixd_sum_pieces(PROTO_CHECKSUM_XXH3_128, payload, payload_len(of),
					   of->n_pieces, sum);
		if (memcmp(sum, body, PREFIXD_VALUE_SUM) == 0) {
			memcpy(block, payload, payload_len(of));
			memcpy(ret_checksum, sum, sizeof(sum));
			return true;
		}
		why = PREFIXD_REDIS_BAD_CHECKSUM;
	}
	*ret_why = why;
	return false;
}
