/*
 * redis_seeds.c - writes the first inputs of fuzz_value.c and fuzz_resp.c: `fuzz_redis_seeds DIR`
 * fills DIR/value and DIR/resp, which exist.
 *
 * What it writes is what those two take for right, in clear and encrypted, and a few streams of
 * replies of every kind.
 */
#include "daemon/redis_internal.h"

#include <stdio.h>
#include <stdlib.h>

static const uint8_t naming_key[32] = "fuzz: naming key";
static char dir[3000];

static void put(const char *kind, const char *name, const void *bytes, size_t n)
{
	char path[4096];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s/%s", dir, kind, name);
	f = fopen(path, "wb");
	if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0) {
		perror(path);
		exit(1);
	}
}

/* A whole value behind `at` bytes.  Return: bytes in all. */
static size_t value(const struct prefixd_value_of *of, const uint8_t block[64], bool encrypted,
		    uint8_t *out, size_t at)
{
	static const uint8_t nonce[PREFIXD_VALUE_NONCE] = "a nonce of the seeds";
	struct prefixd_value_cipher cipher;
	size_t len = prefixd_value_len(of, encrypted);
	uint8_t sum[16];

	prefixd_value_cipher_init(&cipher, naming_key, true);
	prefixd_value_checksum(block, 64, sum);
	if (encrypted) {
		prefixd_value_encrypt(of, sum, block, &cipher, nonce, out + at);
	} else {
		prefixd_value_prefix(of, sum, out + at);
		memcpy(out + at + len - 64, block, 64);
	}
	return at + len;
}

static void values(void)
{
	const struct prefixd_value_of of = {
		.ns_digest = (const uint8_t *)"fuzz: digest of the namespace...",
		.name = (const uint8_t *)"fuzz: name of the block.........",
		.parent = (const uint8_t *)"fuzz: name of the parent........",
		.key = "fuzz: the key...",
		.key_len = 16,
		.n_tokens = 4,
		.block_bytes = 64,
	};
	uint8_t out[1024], block[64];

	memset(block, 'v', sizeof(block));
	for (int i = 0; i < 4; i++) {
		char name[16];

		out[0] = (uint8_t)i;
		snprintf(name, sizeof(name), "whole-%d", i);
		put("value", name, out, value(&of, block, i & 1, out, 1));
	}
}

/* Two FETCHes, a LOOK, a STORE and an EPOCH, and what a Redis that has everything answers. */
static void fetches(bool encrypted)
{
	uint8_t out[4096] = { encrypted ? 2 : 0, 0, 5, 1, 1, 2, 0, 3 }, block[64], name[32],
		root[32];
	size_t n = 8;

	memset(root, 0, sizeof(root));
	memset(block, 'b', sizeof(block));
	/* LOOK is asked first: it is urgent. */
	memcpy(out + n, "*1\r\n$-1\r\n+OK\r\n:1\r\n", 19);
	n += 4 + 5; /* EPOCH's MGET is on its way before all others */
	memcpy(out + n, ":1\r\n", 4);
	n += 4;
	for (uint8_t i = 0; i < 2; i++) {
		uint8_t key[8] = { 'k', i };
		struct prefixd_value_of of = {
			.ns_digest = (const uint8_t *)"fuzz: digest of the namespace..",
			.name = name,
			.parent = root,
			.key = key,
			.key_len = 8,
			.n_tokens = 4,
			.block_bytes = 64,
		};

		prefixd_name_derive(naming_key, RADIX_KEYS_DIGEST, root, key, 8, name);
		n += (size_t)snprintf((char *)out + n, 20, "$%zu\r\n",
				      prefixd_value_len(&of, encrypted));
		n = value(&of, block, encrypted, out, n);
		memcpy(out + n, "\r\n", 2);
		n += 2;
	}
	memcpy(out + n, "+OK\r\n+OK\r\n", 10);
	n += 10;
	put("resp", encrypted ? "fetch-encrypted" : "fetch", out, n);
}

static void stream(const char *name, const char *head, size_t head_len, const char *text)
{
	uint8_t out[4096];
	size_t n = strlen(text);

	memcpy(out, head, head_len);
	memcpy(out + head_len, text, n);
	put("resp", name, out, head_len + n);
}

int main(int argc, char **argv)
{
	if (argc != 2) {
		fprintf(stderr, "usage: %s DIR\n", argv[0]);
		return 2;
	}
	snprintf(dir, sizeof(dir), "%s", argv[1]);
	values();
	fetches(false);
	fetches(true);
	stream("hello", "\1\0\0", 3,
	       "+OK\r\n+OK\r\n$54\r\n# Memory\r\nused_memory:1\r\n"
	       "maxmemory_policy:allkeys-lru\r\n\r\n+PONG\r\n*0\r\n");
	stream("refused", "\1\3\0", 3,
	       "-WRONGPASS no\r\n-NOAUTH no\r\n-NOAUTH no\r\n-NOAUTH no\r\n");
	stream("errors", "\0\0\6\0\0\1\1\2\2", 9,
	       ":0\r\n:1\r\n-OOM no\r\n-READONLY no\r\n-MOVED 1 a:1\r\n-WRONGTYPE no\r\n:1\r\n");
	stream("lost", "\0\1\3\1\1\1", 6, "$-1\r\n$5\r\nhello\r\n$2000\r\n");
	stream("loading", "\0\0\2\1\1", 5, "-LOADING no\r\n$-1\r\n");
	stream("nested", "\0\0\2\3\1", 5, "*1\r\n*1\r\n*1\r\n$1\r\na\r\n");
	stream("huge", "\0\0\2\1\1", 5, "$536870912\r\nabc");
	stream("many", "\0\0\2\3\1", 5, "*2147483647\r\n$1\r\na\r\n");
	return 0;
}
