/*
 * codec.h - frames to structs and back.
 *
 * What it guarantees.  Decoding never reads outside the span it was given, never allocates, and
 * checks every length against its limit before it uses it.  A cursor fails once and stays failed
 * (sticky), naming the first field that was wrong.  Encoding into a buffer that is too small fails
 * the same way and tells how much would have been needed; a field over its limit is never written
 * short, it fails the frame.
 *
 * What it relies on.  Nothing: spans in, structs out.
 */
#pragma once

#include "proto/messages.h"

/* Reader over one body. */
struct proto_reader {
	const uint8_t *p;
	uint32_t left;
	const char *bad_field; /* NULL while all went well */
};

/* Writer into the caller's buffer. */
struct proto_writer {
	uint8_t *p;
	size_t cap;
	size_t len;            /* bytes that were, or would have been, written */
	const char *bad_field; /* NULL, or the first field that was over its limit */
};

enum {
	_PROTO_E_OK,
	PROTO_E_SHORT, /* more bytes are needed before this can be decoded */
	PROTO_E_BAD,   /* not decodable; proto_reader.bad_field or ret_status says why */
};

/*
 * Header of the frame at p[0..n).  Return: 0 with *ret_h; PROTO_E_SHORT when fewer than
 * PROTO_HEADER_LEN bytes are there; PROTO_E_BAD with *ret_status BAD_FRAME, VERSION or TOO_LARGE
 * (checked against max_frame before anybody allocates).  The header is filled in either way.  Any
 * version that is spoken here passes; whether it is the one that HELLO agreed on, the caller knows.
 */
radix_nodiscard int proto_header_decode(const void *p, size_t n, uint32_t max_frame,
					struct proto_header *ret_h, enum proto_status *ret_status);
void proto_header_encode(const struct proto_header *h, uint8_t ret_bytes[PROTO_HEADER_LEN]);

/*
 * For each body NAME of PROTO_BODIES:
 *   proto_NAME_decode(body, n, &msg, &bad_field): 0, or PROTO_E_BAD with the field's name.  Bytes
 *     left over behind the last field are bad ("trailing bytes"): every version fixes its length.
 *     So are bits of a request's flags or has that this version does not define.  On failure
 *     nothing is written to *ret_msg.
 *   proto_NAME_encode(&w, &msg): appends the body.
 *   proto_NAME_decode_as(version, ...), proto_NAME_encode_as(&w, version, &msg): the same in the
 *     layout of that version.  What it lacks is decoded as 0, and not encoded.  The two above take
 *     the newest one: right for bodies that are the same in all, which all but a few are.
 *   proto_NAME_print(&msg, out, out_len): one line, for transcripts; returns the bytes written
 *     without the terminator (a line that does not fit is cut).  Blobs show as their length, so
 *     that neither salts nor prompts are printed; the tokens that EXPLAIN's reply names are.
 */
#define X(low, FIELDS)                                                                          \
	radix_nodiscard int proto_##low##_decode_as(uint32_t version, const void *body,         \
						    uint32_t n, struct proto_##low *ret_msg,    \
						    const char **ret_bad_field);                \
	void proto_##low##_encode_as(struct proto_writer *w, uint32_t version,                  \
				     const struct proto_##low *m);                              \
	radix_nodiscard static inline int proto_##low##_decode(const void *body, uint32_t n,    \
							       struct proto_##low *ret_msg,     \
							       const char **ret_bad_field)      \
	{                                                                                       \
		return proto_##low##_decode_as(PROTO_VERSION, body, n, ret_msg, ret_bad_field); \
	}                                                                                       \
	static inline void proto_##low##_encode(struct proto_writer *w,                         \
						const struct proto_##low *m)                    \
	{                                                                                       \
		proto_##low##_encode_as(w, PROTO_VERSION, m);                                   \
	}                                                                                       \
	size_t proto_##low##_print(const struct proto_##low *m, char *out, size_t out_len);
PROTO_BODIES(X)
#undef X

/*
 * A whole frame: reserve room for the header, encode the body, then close it.
 *     proto_frame_begin(&w);  proto_match_rep_encode(&w, &rep);  proto_frame_end(&w, start, &h);
 * proto_frame_end fills h->magic and len, and h->version with the newest one if it is 0.  Return:
 * 0; -ENOSPC: w->len bytes are needed; -EMSGSIZE: w->bad_field is over its limit, or the whole over
 * PROTO_MAX_FRAME_LIMIT.
 */
size_t proto_frame_begin(struct proto_writer *w);
radix_nodiscard int proto_frame_end(struct proto_writer *w, size_t start, struct proto_header *h);

static inline bool proto_writer_ok(const struct proto_writer *w)
{
	return w->len <= w->cap && !w->bad_field;
}

/* Run i of a decoded RUNS span (which need not be aligned). */
static inline struct radix_run proto_run_at(struct proto_span runs, uint32_t i)
{
	struct radix_run r;

	memcpy(&r, (const uint8_t *)runs.p + (size_t)i * sizeof(r), sizeof(r));
	return r; /* the wire and every machine this runs on are little endian */
}

/*
 * The version in which the body of this frame is laid out: the header's, but for HELLO's reply,
 * where the header says PROTO_VERSION_HELLO and the first field what was agreed on.  0: HELLO's
 * reply names a version that is not spoken here, or does not even do that.
 */
uint32_t proto_body_version(const struct proto_header *h, const void *body, bool reply);

/* HELLO's list of tenants: append one; take the next off `rest` (false: no more, or cut off). */
void proto_tenant_encode(struct proto_writer *w, uint32_t id, struct proto_span name);
bool proto_tenant_next(struct proto_span *rest, uint32_t *ret_id, struct proto_span *ret_name);

/*
 * CHANGES' events: append one; take the next off `rest`.  Return: 0; PROTO_E_SHORT: none is left;
 * PROTO_E_BAD: what follows is no event, and nothing more can be taken.
 */
void proto_change_append(struct proto_writer *w, const struct proto_change *change);
radix_nodiscard int proto_change_next(struct proto_span *rest, struct proto_change *ret_change);

/* Header and body as one line, like proto_NAME_print; `reply` says which way it went. */
size_t proto_frame_print(const struct proto_header *h, const void *body, bool reply, char *out,
			 size_t out_len);

/* Names as they are printed; "?" for a number that has none. */
const char *proto_op_to_string(uint16_t op);
const char *proto_status_to_string(uint16_t status);
const char *proto_status_cure(uint16_t status);
const char *proto_reason_to_string(uint8_t reason);
const char *proto_tier_to_string(uint8_t tier);
const char *proto_change_to_string(uint8_t kind);
const char *proto_removal_to_string(uint8_t reason);
const char *proto_wait_state_to_string(uint8_t state);

/*
 * What a client proves in HELLO: that it lays out and hashes as that version does.  Encodes a fixed
 * canonical message set and folds it into 16 bytes (README "Self-test").  A pure function of the
 * version; golden value in vectors/.
 */
struct proto_id proto_self_test(uint16_t version);

static inline bool proto_id_is_zero(const struct proto_id *id)
{
	static const struct proto_id zero;

	return memcmp(id, &zero, sizeof(zero)) == 0;
}

static inline bool proto_id_equal(const struct proto_id *a, const struct proto_id *b)
{
	return memcmp(a, b, sizeof(*a)) == 0;
}
