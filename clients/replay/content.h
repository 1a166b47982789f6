/*
 * content.h - f(namespace, path): what the bytes of a block have to be.
 *
 * The content of a block is a function of its namespace and of every key from the root down to it.
 * So two workers agree on it without talking, and a block that was handed out for another prefix,
 * another namespace, another tenant, or before it was written whole, does not compare equal: for
 * two different paths every 8-byte word of the content differs (README, "The content function").
 *
 * Nothing here depends on the daemon; both functions are pure.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* The path above the first block: of a namespace's digest and the root id that MATCH answers. */
uint64_t replay_path_root(const uint8_t digest[32], const uint8_t root[16]);
/* The path down to and including the block whose key follows. */
uint64_t replay_path_step(uint64_t path, const void *key, size_t key_len);

void replay_content_fill(void *block, size_t len, uint64_t path);
/* Return: len when every byte is right, else the offset of the first wrong 8-byte word. */
size_t replay_content_check(const void *block, size_t len, uint64_t path);
