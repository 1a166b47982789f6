/*
 * redis_value.h - one block as one value in Redis, which says by itself whose it is.
 *
 *     offset  bytes  field, little-endian
 *          0      8  magic: 89 "PFXD" 0d 0a 1a
 *          8      2  version, 1
 *         10      2  flags; bit 0: what follows the head is encrypted
 *         12      1  codec (enum gpu_codec) of a cold block (cold.h); 0: the block as it is
 *         13      3  zero
 *         16      4  head_len, 168
 *         20      4  key_len
 *         24      8  payload_len
 *         32      4  n_tokens
 *         36      4  zero
 *         40     24  nonce; zero when not encrypted
 *         64     32  digest of the namespace
 *         96     32  name
 *        128     32  name of the parent
 *        160      8  XXH3-64 of the 160 bytes before
 *        168     16  XXH3-128 (canonical form) of the payload; of pieces of several ranks, as
 *                    daemon/stripe_sum.h has it
 *        184    key  the block's key, key_len bytes
 *          -    payload, payload_len bytes
 *          -     16  tag, when encrypted
 *
 * Keys are token ids, and the checksum of a block tells which of two guesses it is: so both lie
 * behind the head, where encryption covers them.  The head is what encryption authenticates beside.
 *
 * What it guarantees.  Pure.  Parsing reads nothing outside of the span it is given, whatever the
 * bytes say, and writes the block only when every field, the key and the checksum are right; else
 * it names the first thing that is wrong.
 *
 * What it relies on.  The caller knows what the value must be; a value is never believed about it.
 */
#pragma once

#include "daemon/redis.h"

#define PREFIXD_VALUE_HEAD     168u
#define PREFIXD_VALUE_SUM      16u
#define PREFIXD_VALUE_TAG      16u
#define PREFIXD_VALUE_NONCE    24u
#define PREFIXD_VALUE_VERSION  1u
/* Of a value beside its key and its payload. */
#define PREFIXD_VALUE_OVERHEAD (PREFIXD_VALUE_HEAD + PREFIXD_VALUE_SUM + PREFIXD_VALUE_TAG)

enum {
	PREFIXD_VALUE_ENCRYPTED = 1, /* flags */
};

/* What a value must say. */
struct prefixd_value_of {
	const uint8_t *ns_digest; /* 32 bytes each */
	const uint8_t *name;
	const uint8_t *parent;
	const void *key;
	uint32_t key_len;
	uint32_t n_tokens;
	uint64_t block_bytes;
	uint32_t n_pieces; /* as in struct prefixd_redis_message */
	/* Of a coded namespace: how its values are coded, and how long they are then.  Those of
	   blocks that cannot be coded are as they are. */
	uint8_t codec;
	uint64_t cold_bytes;
	bool coded; /* this one is; answered by prefixd_value_parse() */
};

/* How values are encrypted, or that they are not. */
struct prefixd_value_cipher {
	bool on;
	uint8_t key[32];
};

/* The key is derived from the naming key, so that one secret is shared and two are used. */
void prefixd_value_cipher_init(struct prefixd_value_cipher *c, const uint8_t naming_key[32],
			       bool on);

/* Bytes of a whole value. */
size_t prefixd_value_len(const struct prefixd_value_of *of, bool encrypted);

/* What precedes the payload of a value in clear: PREFIXD_VALUE_HEAD + PREFIXD_VALUE_SUM + key_len
 * bytes. */
void prefixd_value_prefix(const struct prefixd_value_of *of, const uint8_t checksum[16],
			  uint8_t *ret_prefix);
/* A whole value, encrypted: prefixd_value_len() bytes.  The nonce is random, used once. */
void prefixd_value_encrypt(const struct prefixd_value_of *of, const uint8_t checksum[16],
			   const void *block, const struct prefixd_value_cipher *cipher,
			   const uint8_t nonce[PREFIXD_VALUE_NONCE], uint8_t *ret_value);

/*
 * Checks a value and copies its payload to `block` (room for block_bytes).  The span may be
 * changed: it is decrypted in place.  Return: true; false with the reason, `block` untouched.
 */
bool prefixd_value_parse(void *value, size_t len, struct prefixd_value_of *of,
			 const struct prefixd_value_cipher *cipher, void *block,
			 uint8_t ret_checksum[16], enum prefixd_redis_bad *ret_why);

/* XXH3-128 in its canonical form. */
void prefixd_value_checksum(const void *block, size_t len, uint8_t ret_checksum[16]);
