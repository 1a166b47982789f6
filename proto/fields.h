/*
 * fields.h - the tables of messages.h as data, for code that walks a body field by field.
 *
 * The printer, the self-test and the tests use it; the codec does not (it expands the tables into
 * straight code).  A body's struct is read and written through offset and kind, so whoever walks it
 * needs no case per message.
 */
#pragma once

#include "proto/messages.h"

enum proto_kind {
	PROTO_KIND_U8,
	PROTO_KIND_U16,
	PROTO_KIND_U32,
	PROTO_KIND_U64,
	PROTO_KIND_ID,   /* struct proto_id */
	PROTO_KIND_STR,  /* struct proto_span of bytes */
	PROTO_KIND_BLOB, /* struct proto_span of bytes */
	PROTO_KIND_RUNS, /* struct proto_span of struct radix_run */
};

struct proto_field {
	const char *name;
	enum proto_kind kind;
	uint32_t offset; /* in the struct */
	uint32_t max;    /* of spans: bytes, or runs */
};

struct proto_body {
	const char *name;
	const struct proto_field *fields;
	uint32_t n_fields; /* of the newest version */
	uint32_t size;     /* of the struct */
};

enum proto_body_id {
#define X(low, FIELDS) PROTO_BODY_##low,
	PROTO_BODIES(X)
#undef X
	PROTO_N_BODIES
};

#define PROTO_BODY_SIZE_MAX 512u /* no body's struct is larger; checked in fields.c */

const struct proto_body *proto_body_get(enum proto_body_id id);
/* How many of its fields, counted from the first one, that version of the protocol has. */
uint32_t proto_body_n_fields(enum proto_body_id id, uint32_t version);

/* Body of a frame: an enum proto_body_id, or -1 for an unknown or reserved operation. */
int proto_body_of(uint16_t op, uint16_t status, bool reply);

/* Bytes on the wire of one integer or id; 0 for spans. */
static inline uint32_t proto_kind_width(enum proto_kind kind)
{
	static const uint8_t width[] = { 1, 2, 4, 8, 16, 0, 0, 0 };

	return width[kind];
}

static inline bool proto_kind_is_span(enum proto_kind kind)
{
	return kind >= PROTO_KIND_STR;
}

/* Value of an integer field. */
static inline uint64_t proto_field_u64(const struct proto_field *f, const void *msg)
{
	uint64_t v = 0;

	memcpy(&v, (const uint8_t *)msg + f->offset, proto_kind_width(f->kind)); /* little endian */
	return v;
}

static inline struct proto_span proto_field_span(const struct proto_field *f, const void *msg)
{
	struct proto_span s;

	memcpy(&s, (const uint8_t *)msg + f->offset, sizeof(s));
	return s;
}
