/*
 * shell_raw.h - a client that speaks frames and nothing else, for tests that want to be rude.
 *
 * Every call fails the running Check test when the daemon does not do its part within 10 s.
 */
#pragma once

#include "proto/codec.h"

struct raw {
	int fd;
	uint64_t seq;
	uint16_t version;      /* agreed by HELLO; 0: not said yet */
	struct proto_header h; /* of the last reply */
	uint8_t *body;         /* its body, h.len bytes, valid until the next one */
	size_t cap;
	int fds[8]; /* descriptors that came with it; the caller closes them */
	uint32_t n_fds;
};

void raw_connect(struct raw *r, const char *path);
void raw_close(struct raw *r);
/* Writes all bytes; false when the daemon has closed. */
bool raw_write(struct raw *r, const void *bytes, size_t len);
/* Appends a frame of the next sequence number to out; returns its length. */
size_t raw_frame(struct raw *r, uint8_t *out, uint16_t op, const void *body, size_t len);
/* Reads one reply.  False when the daemon has closed. */
bool raw_read(struct raw *r);
/* One request and its reply. */
bool raw_call(struct raw *r, uint16_t op, const void *body, size_t len);
/* Says HELLO and expects OK. */
void raw_hello(struct raw *r);
/* Opens an opaque namespace of 16 tokens a block and expects descriptors. */
struct proto_open_rep raw_open(struct raw *r, const char *model, uint64_t block_bytes);
/* The same with further PROTO_OPEN_* flags. */
struct proto_open_rep raw_open_with(struct raw *r, const char *model, uint64_t block_bytes,
				    uint32_t flags);
/* An ADMIN request; the JSON text of the answer, valid until the next reply. */
const char *raw_admin(struct raw *r, const char *json);
