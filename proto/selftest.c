/*
 * selftest.c - what a client proves in HELLO: that it lays out every body as this version does.
 *
 * README.md, "Self-test", is the specification of what is computed here; the golden value is in
 * vectors/.  Constants are large and odd so that every byte of every field differs from its
 * neighbours: swapped fields, a wrong width or a wrong byte order change the result.
 */
#include "proto/codec.h"
#include "proto/fields.h"

#define SPREAD      0x9e3779b97f4a7c15u /* value k x SPREAD: all its bytes differ with k */
#define FNV_PRIME   0x100000001b3u
#define FNV_BASIS_A 0xcbf29ce484222325u /* FNV-1a's own */
#define FNV_BASIS_B 0x84222325cbf29ce4u
#define SPAN_BYTES  64u   /* backing of one span: 4 runs fit */
#define FRAME_MAX   2048u /* more than any canonical frame; checked by an assertion below */

/* Field number k of the whole set, counted from 1, gets its value. */
static void fill_field(const struct proto_field *f, uint32_t k, void *msg,
		       uint8_t backing[SPAN_BYTES])
{
	uint8_t *at = (uint8_t *)msg + f->offset;
	uint32_t width = proto_kind_width(f->kind);
	struct proto_span s = { backing, 1 + k % 7 };

	if (f->kind == PROTO_KIND_ID) {
		for (uint32_t i = 0; i < width; i++)
			at[i] = (uint8_t)(16 * k + i);
		return;
	}
	if (!proto_kind_is_span(f->kind)) {
		uint64_t v = ((uint64_t)k * SPREAD) >> (64 - 8 * width);

		memcpy(at, &v, width);
		return;
	}
	if (f->kind == PROTO_KIND_RUNS) {
		s.n = 1 + k % 3;
		for (uint32_t i = 0; i < s.n; i++) {
			struct radix_run run = { 1000 * k + i, k + i };

			memcpy(backing + sizeof(run) * i, &run, sizeof(run));
		}
	} else if (f->kind == PROTO_KIND_STR) {
		for (uint32_t i = 0; i < s.n; i++)
			backing[i] = (uint8_t)('a' + (k + i) % 26);
	} else {
		for (uint32_t i = 0; i < s.n; i++)
			backing[i] = (uint8_t)(k + 3 * i);
	}
	memcpy(at, &s, sizeof(s));
}

static void encode_body(struct proto_writer *w, enum proto_body_id id, uint32_t version,
			const void *msg)
{
	switch (id) {
#define X(low, FIELDS)                                    \
	case PROTO_BODY_##low:                            \
		proto_##low##_encode_as(w, version, msg); \
		break;
		PROTO_BODIES(X)
#undef X
	case PROTO_N_BODIES:
		break;
	}
}

static uint64_t fnv1a(uint64_t hash, const uint8_t *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		hash = (hash ^ p[i]) * FNV_PRIME;
	return hash;
}

/* Canonical frame number id; *k counts fields over the whole set. */
static size_t canonical_frame(enum proto_body_id id, uint16_t version, uint32_t *k,
			      uint8_t frame[FRAME_MAX])
{
	const struct proto_body *b = proto_body_get(id);
	struct proto_writer w = { frame, FRAME_MAX, 0, NULL };
	uint8_t backing[32][SPAN_BYTES];
	_Alignas(8) uint8_t msg[PROTO_BODY_SIZE_MAX] = { 0 };
	struct proto_header h = { .op = (uint16_t)(id + 1),
				  .status = (uint16_t)(id + 2),
				  .version = version,
				  .seq = (id + 1) * SPREAD };
	size_t start = proto_frame_begin(&w);
	uint32_t n_fields = proto_body_n_fields(id, version);
	int r;

	radix_assert(b->n_fields <= radix_array_size(backing));
	for (uint32_t i = 0; i < n_fields; i++)
		fill_field(&b->fields[i], ++*k, msg, backing[i]);
	for (uint32_t i = 0; i < sizeof(h.boot.b); i++)
		h.boot.b[i] = (uint8_t)(16 * (id + 1) + i);
	encode_body(&w, id, version, msg);
	r = proto_frame_end(&w, start, &h);
	radix_assert(r == 0);
	return w.len;
}

struct proto_id proto_self_test(uint16_t version)
{
	uint8_t frame[FRAME_MAX];
	uint64_t lane[2] = { FNV_BASIS_A, FNV_BASIS_B };
	struct proto_id id;
	uint32_t k = 0;

	for (int b = 0; b < PROTO_N_BODIES; b++) {
		size_t n = canonical_frame((enum proto_body_id)b, version, &k, frame);

		lane[0] = fnv1a(lane[0], frame, n);
		lane[1] = fnv1a(lane[1], frame, n);
	}
	memcpy(&id, lane, sizeof(id)); /* each lane little endian */
	return id;
}
