/*
 * fuzz_value.c - any bytes as a value of Redis.
 *
 * The first byte: bit 0 asks for encryption, bit 1 puts the head's checksum right, so that what
 * lies behind it is reached. What must hold: nothing is read outside (ASan); what is refused leaves
 * the block untouched and has a reason; what is accepted is, byte for byte, what this daemon would
 * have written, so that nothing of it was ignored.
 */
#include "daemon/redis_value.h"

#include <stdlib.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define BLOCK 64u
#define KEY   16u

#define must(x)                  \
	do {                     \
		if (!(x))        \
			abort(); \
	} while (0)

static const uint8_t naming_key[32] = "fuzz: naming key";
static struct prefixd_value_of of = {
	.ns_digest = (const uint8_t *)"fuzz: digest of the namespace...",
	.name = (const uint8_t *)"fuzz: name of the block.........",
	.parent = (const uint8_t *)"fuzz: name of the parent........",
	.key = "fuzz: the key...",
	.key_len = KEY,
	.n_tokens = 4,
	.block_bytes = BLOCK,
};

static void reseal(uint8_t *value)
{
	uint64_t h = XXH3_64bits(value, 160);

	for (unsigned i = 0; i < 8; i++)
		value[160 + i] = (uint8_t)(h >> (8 * i));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t *value, *copy, block[BLOCK], untouched[BLOCK], sum[16], again[BLOCK + 512];
	enum prefixd_redis_bad why = PREFIXD_REDIS_N_BAD;
	struct prefixd_value_cipher cipher;
	size_t len;

	if (!size)
		return 0;
	len = size - 1;
	value = malloc(len + 1);
	copy = malloc(len + 1);
	must(value && copy);
	if (len)
		memcpy(value, data + 1, len);
	if ((data[0] & 2) && len >= PREFIXD_VALUE_HEAD)
		reseal(value);
	if (len)
		memcpy(copy, value, len);
	prefixd_value_cipher_init(&cipher, naming_key, data[0] & 1);
	memset(block, 0x5a, sizeof(block));
	memset(untouched, 0x5a, sizeof(untouched));
	if (!prefixd_value_parse(value, len, &of, &cipher, block, sum, &why)) {
		must(why < PREFIXD_REDIS_N_BAD && why != PREFIXD_REDIS_BAD_TYPE);
		must(!memcmp(block, untouched, sizeof(block)));
	} else {
		uint8_t want[16];

		prefixd_value_checksum(block, BLOCK, want);
		must(!memcmp(want, sum, sizeof(sum)));
		must(len == prefixd_value_len(&of, cipher.on));
		if (cipher.on) {
			prefixd_value_encrypt(&of, sum, block, &cipher, copy + 40, again);
		} else {
			prefixd_value_prefix(&of, sum, again);
			memcpy(again + len - BLOCK, block, BLOCK);
		}
		must(!memcmp(again, copy, len));
	}
	free(value);
	free(copy);
	return 0;
}
