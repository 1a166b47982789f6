/*
 * walk.h - bodies by number, for tests that treat all messages alike.
 *
 * A message lives in a struct walk_msg big enough for any body; spans made here point into its own
 * arena, so a message is freed by forgetting it.
 */
#pragma once

#include "proto/codec.h"
#include "proto/fields.h"

#define WALK_ARENA (1u << 16)

struct walk_msg {
	_Alignas(8) uint8_t bytes[PROTO_BODY_SIZE_MAX];
	uint8_t arena[WALK_ARENA];
	uint32_t used;
};

/* The generated functions, chosen by number. */
int walk_decode(enum proto_body_id id, const void *body, uint32_t n, struct walk_msg *ret_msg,
		const char **ret_bad_field);
int walk_decode_as(enum proto_body_id id, uint32_t version, const void *body, uint32_t n,
		   struct walk_msg *ret_msg, const char **ret_bad_field);
void walk_encode(enum proto_body_id id, struct proto_writer *w, const struct walk_msg *msg);
void walk_encode_as(enum proto_body_id id, uint32_t version, struct proto_writer *w,
		    const struct walk_msg *msg);
size_t walk_print(enum proto_body_id id, const struct walk_msg *msg, char *out, size_t out_len);

/* Number of the body with that name; -1. */
int walk_body_by_name(const char *name);

/* A valid message: flags defined, text without byte 0, spans from empty to span_max bytes.  `state`
 * is that of tests/lib/rng.h. */
void walk_fill_random(enum proto_body_id id, uint64_t *state, uint32_t span_max,
		      struct walk_msg *ret_msg);
/* Field i gets this span; what it points to stays the caller's. */
void walk_set_span(enum proto_body_id id, uint32_t i, const void *p, uint32_t n,
		   struct walk_msg *msg);
/* Equal in every field, span contents included. */
bool walk_equal(enum proto_body_id id, const struct walk_msg *a, const struct walk_msg *b);

/* One field as in the vector files: integers decimal, ids and blobs hex, text as it is, runs
 * start+length.  Return: length, or -1 when out is too small. */
int walk_field_to_text(const struct proto_field *f, const struct walk_msg *msg, char *out,
		       size_t out_len);
/* The reverse.  Return: 0, -1 when the text is not of the field's kind. */
int walk_field_from_text(const struct proto_field *f, const char *text, struct walk_msg *msg);

/* Hex to bytes.  Return: bytes, or -1. */
int walk_hex(const char *text, uint8_t *ret_bytes, size_t cap);
