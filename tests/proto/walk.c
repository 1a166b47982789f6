/*
 * walk.c - bodies by number; see walk.h.
 */
#include "tests/proto/walk.h"

#include "tests/lib/rng.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

int walk_decode_as(enum proto_body_id id, uint32_t version, const void *body, uint32_t n,
		   struct walk_msg *ret_msg, const char **ret_bad_field)
{
	switch (id) {
#define X(low, FIELDS)                                                                       \
	case PROTO_BODY_##low:                                                               \
		return proto_##low##_decode_as(version, body, n,                             \
					       (struct proto_##low *)(void *)ret_msg->bytes, \
					       ret_bad_field);
		PROTO_BODIES(X)
#undef X
	case PROTO_N_BODIES:
		break;
	}
	abort();
}

int walk_decode(enum proto_body_id id, const void *body, uint32_t n, struct walk_msg *ret_msg,
		const char **ret_bad_field)
{
	return walk_decode_as(id, PROTO_VERSION, body, n, ret_msg, ret_bad_field);
}

void walk_encode(enum proto_body_id id, struct proto_writer *w, const struct walk_msg *msg)
{
	walk_encode_as(id, PROTO_VERSION, w, msg);
}

void walk_encode_as(enum proto_body_id id, uint32_t version, struct proto_writer *w,
		    const struct walk_msg *msg)
{
	switch (id) {
#define X(low, FIELDS)                                                                         \
	case PROTO_BODY_##low:                                                                 \
		proto_##low##_encode_as(w, version,                                            \
					(const struct proto_##low *)(const void *)msg->bytes); \
		return;
		PROTO_BODIES(X)
#undef X
	case PROTO_N_BODIES:
		break;
	}
	abort();
}

size_t walk_print(enum proto_body_id id, const struct walk_msg *msg, char *out, size_t out_len)
{
	switch (id) {
#define X(low, FIELDS)                                                                           \
	case PROTO_BODY_##low:                                                                   \
		return proto_##low##_print((const struct proto_##low *)(const void *)msg->bytes, \
					   out, out_len);
		PROTO_BODIES(X)
#undef X
	case PROTO_N_BODIES:
		break;
	}
	abort();
}

int walk_body_by_name(const char *name)
{
	for (int i = 0; i < PROTO_N_BODIES; i++) {
		if (!strcmp(proto_body_get((enum proto_body_id)i)->name, name))
			return i;
	}
	return -1;
}

static uint8_t *arena_take(struct walk_msg *msg, uint32_t n)
{
	uint8_t *p = msg->arena + msg->used;

	if (n > WALK_ARENA - msg->used)
		abort();
	msg->used += n;
	return p;
}

static uint32_t span_unit(const struct proto_field *f)
{
	return f->kind == PROTO_KIND_RUNS ? (uint32_t)sizeof(struct radix_run) : 1;
}

static void put_span(const struct proto_field *f, const void *p, uint32_t n, struct walk_msg *msg)
{
	struct proto_span s = { p, n };

	memcpy(msg->bytes + f->offset, &s, sizeof(s));
}

void walk_set_span(enum proto_body_id id, uint32_t i, const void *p, uint32_t n,
		   struct walk_msg *msg)
{
	put_span(&proto_body_get(id)->fields[i], p, n, msg);
}

/* Which bits of an integer field are defined; written out here a second time on purpose. */
static uint64_t defined_bits(const char *body, const char *field)
{
	static const struct {
		const char *body, *field;
		uint64_t bits;
	} masks[] = {
		{ "match_req", "has", 7 },    { "probe_req", "has", 7 },
		{ "explain_req", "has", 7 },  { "hello_req", "flags", 1 },
		{ "open_req", "flags", 3 },   { "match_req", "flags", 7 },
		{ "extend_req", "flags", 5 }, { "release_req", "flags", 3 },
		{ "probe_req", "flags", 1 },  { "prefetch_req", "has", 7 },
	};

	for (size_t i = 0; i < radix_array_size(masks); i++) {
		if (!strcmp(masks[i].body, body) && !strcmp(masks[i].field, field))
			return masks[i].bits;
	}
	return UINT64_MAX;
}

static void fill_span(const struct proto_field *f, uint64_t *state, uint32_t span_max,
		      struct walk_msg *msg)
{
	uint32_t n = (uint32_t)(test_rng(state) % (span_max / span_unit(f) + 1));
	uint8_t *p;

	n = radix_min_u32(n, f->max);
	p = arena_take(msg, n * span_unit(f));
	for (uint32_t i = 0; i < n * span_unit(f); i++) {
		p[i] = (uint8_t)test_rng(state);
		if (f->kind == PROTO_KIND_STR && !p[i])
			p[i] = 'x';
	}
	put_span(f, p, n, msg);
}

void walk_fill_random(enum proto_body_id id, uint64_t *state, uint32_t span_max,
		      struct walk_msg *ret_msg)
{
	const struct proto_body *b = proto_body_get(id);

	memset(ret_msg->bytes, 0, sizeof(ret_msg->bytes));
	ret_msg->used = 0;
	for (uint32_t i = 0; i < b->n_fields; i++) {
		const struct proto_field *f = &b->fields[i];
		uint64_t v[2] = { test_rng(state) & defined_bits(b->name, f->name),
				  test_rng(state) };

		if (proto_kind_is_span(f->kind))
			fill_span(f, state, span_max, ret_msg);
		else
			memcpy(ret_msg->bytes + f->offset, v, proto_kind_width(f->kind));
	}
}

bool walk_equal(enum proto_body_id id, const struct walk_msg *a, const struct walk_msg *b)
{
	const struct proto_body *body = proto_body_get(id);

	for (uint32_t i = 0; i < body->n_fields; i++) {
		const struct proto_field *f = &body->fields[i];

		if (proto_kind_is_span(f->kind)) {
			struct proto_span x = proto_field_span(f, a->bytes);
			struct proto_span y = proto_field_span(f, b->bytes);

			if (x.n != y.n ||
			    (x.n && memcmp(x.p, y.p, (size_t)x.n * span_unit(f)) != 0))
				return false;
		} else if (memcmp(a->bytes + f->offset, b->bytes + f->offset,
				  proto_kind_width(f->kind)) != 0) {
			return false;
		}
	}
	return true;
}

/* ---- text of the vector files ---------------------------------------------------------------- */

static int hex_text(const uint8_t *p, size_t n, char *out, size_t out_len)
{
	if (2 * n + 1 > out_len)
		return -1;
	for (size_t i = 0; i < n; i++)
		(void)snprintf(out + 2 * i, 3, "%02x", p[i]); /* fits: checked above */
	out[2 * n] = 0;
	return (int)(2 * n);
}

static int runs_text(struct proto_span s, char *out, size_t out_len)
{
	size_t at = 0;

	out[0] = 0;
	for (uint32_t i = 0; i < s.n; i++) {
		struct radix_run run = proto_run_at(s, i);
		int n = snprintf(out + at, out_len - at, "%s%" PRIu32 "+%" PRIu32, i ? "," : "",
				 run.start, run.len);

		if (n < 0 || (size_t)n >= out_len - at)
			return -1;
		at += (size_t)n;
	}
	return (int)at;
}

int walk_field_to_text(const struct proto_field *f, const struct walk_msg *msg, char *out,
		       size_t out_len)
{
	struct proto_span s;
	int n;

	if (f->kind == PROTO_KIND_ID)
		return hex_text(msg->bytes + f->offset, 16, out, out_len);
	if (!proto_kind_is_span(f->kind)) {
		n = snprintf(out, out_len, "%" PRIu64, proto_field_u64(f, msg->bytes));
		return n < 0 || (size_t)n >= out_len ? -1 : n;
	}
	s = proto_field_span(f, msg->bytes);
	if (f->kind == PROTO_KIND_RUNS)
		return runs_text(s, out, out_len);
	if (f->kind == PROTO_KIND_BLOB)
		return hex_text(s.p, s.n, out, out_len);
	if (s.n >= out_len)
		return -1;
	if (s.n)
		memcpy(out, s.p, s.n);
	out[s.n] = 0;
	return (int)s.n;
}

int walk_hex(const char *text, uint8_t *ret_bytes, size_t cap)
{
	size_t len = strlen(text);

	if (len % 2 || len / 2 > cap)
		return -1;
	for (size_t i = 0; i < len / 2; i++) {
		const char pair[3] = { text[2 * i], text[2 * i + 1], 0 };
		char *end;

		ret_bytes[i] = (uint8_t)strtoul(pair, &end, 16);
		if (*end)
			return -1;
	}
	return (int)(len / 2);
}

static int runs_from_text(const struct proto_field *f, const char *text, struct walk_msg *msg)
{
	uint8_t *p = msg->arena + msg->used;
	uint32_t n = 0;

	while (*text) {
		char *end;
		struct radix_run run;

		run.start = (uint32_t)strtoul(text, &end, 10);
		if (*end != '+')
			return -1;
		run.len = (uint32_t)strtoul(end + 1, &end, 10);
		if (*end != ',' && *end)
			return -1;
		memcpy(arena_take(msg, sizeof(run)), &run, sizeof(run));
		n++;
		text = *end ? end + 1 : end;
	}
	put_span(f, p, n, msg);
	return 0;
}

int walk_field_from_text(const struct proto_field *f, const char *text, struct walk_msg *msg)
{
	uint8_t *p;
	char *end;
	uint64_t v;
	int n;

	if (f->kind == PROTO_KIND_ID)
		return walk_hex(text, msg->bytes + f->offset, 16) == 16 ? 0 : -1;
	if (!proto_kind_is_span(f->kind)) {
		v = strtoull(text, &end, 10);
		memcpy(msg->bytes + f->offset, &v, proto_kind_width(f->kind));
		return *text && !*end ? 0 : -1;
	}
	if (f->kind == PROTO_KIND_RUNS)
		return runs_from_text(f, text, msg);
	if (f->kind == PROTO_KIND_BLOB) {
		p = arena_take(msg, (uint32_t)strlen(text) / 2);
		n = walk_hex(text, p, strlen(text) / 2);
		if (n < 0)
			return -1;
		put_span(f, p, (uint32_t)n, msg);
		return 0;
	}
	n = (int)strlen(text);
	p = arena_take(msg, (uint32_t)n);
	memcpy(p, text, (size_t)n);
	put_span(f, p, (uint32_t)n, msg);
	return 0;
}
