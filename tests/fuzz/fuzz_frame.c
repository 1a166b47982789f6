/*
 * fuzz_frame.c - any bytes as a frame: header, every body, printing, and back.
 *
 * What must hold for every input: no read outside it (ASan), a refusal names a field and writes
 * nothing, every span of what decodes lies inside the body and under its limit, and encoding what
 * was decoded gives the same bytes (so there is one encoding of each message, and nothing of the
 * input was ignored).
 */
#include "tests/proto/walk.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define must(x)                  \
	do {                     \
		if (!(x))        \
			abort(); \
	} while (0)

static bool is_field(const struct proto_body *b, const char *name)
{
	for (uint32_t i = 0; i < b->n_fields; i++) {
		if (!strcmp(b->fields[i].name, name))
			return true;
	}
	return !strcmp(name, "trailing bytes");
}

static void check_spans(const struct proto_body *b, const struct walk_msg *m, const uint8_t *body,
			size_t n)
{
	for (uint32_t i = 0; i < b->n_fields; i++) {
		const struct proto_field *f = &b->fields[i];
		struct proto_span s;
		size_t bytes;

		if (!proto_kind_is_span(f->kind))
			continue;
		s = proto_field_span(f, m->bytes);
		bytes = (size_t)s.n * (f->kind == PROTO_KIND_RUNS ? sizeof(struct radix_run) : 1);
		must(s.n <= f->max && bytes <= n);
		must((const uint8_t *)s.p >= body && (const uint8_t *)s.p + bytes <= body + n);
		if (f->kind == PROTO_KIND_STR && s.n)
			must(!memchr(s.p, 0, s.n));
	}
}

static void check_again(enum proto_body_id id, const struct walk_msg *m, const uint8_t *body,
			size_t n)
{
	uint8_t *again = malloc(n + 1);
	struct proto_writer w = { again, n, 0, NULL };

	must(again);
	walk_encode(id, &w, m);
	must(proto_writer_ok(&w) && w.len == n && (!n || !memcmp(again, body, n)));
	free(again);
}

static void one_body(enum proto_body_id id, const uint8_t *body, uint32_t n)
{
	const struct proto_body *b = proto_body_get(id);
	const char *field = NULL;
	struct walk_msg m;
	char line[96];

	memset(m.bytes, 0xee, sizeof(m.bytes));
	if (walk_decode(id, body, n, &m, &field)) {
		must(field && is_field(b, field));
		for (uint32_t i = 0; i < b->size; i++)
			must(m.bytes[i] == 0xee);
		return;
	}
	check_spans(b, &m, body, n);
	check_again(id, &m, body, n);
	must(walk_print(id, &m, line, sizeof(line)) < sizeof(line));
}

static void tenants(const uint8_t *body, uint32_t n)
{
	struct proto_span rest = { body, n }, name;
	uint32_t id, before;

	do {
		before = rest.n;
	} while (proto_tenant_next(&rest, &id, &name) && rest.n < before);
	must(rest.n <= before);
}

static void changes(const uint8_t *body, uint32_t n)
{
	struct proto_span rest = { body, n };
	struct proto_change c;
	uint32_t before;

	do {
		before = rest.n;
	} while (proto_change_next(&rest, &c) == 0 && rest.n < before);
	must(rest.n <= before);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const uint8_t nothing[1];
	enum proto_status status = PROTO_STATUS_OK;
	struct proto_header h;
	const uint8_t *body = nothing;
	uint32_t n = 0;
	char line[512];
	int r = proto_header_decode(data, size, PROTO_MAX_FRAME_DEFAULT, &h, &status);

	if (r == PROTO_E_SHORT) {
		must(size < PROTO_HEADER_LEN);
		return 0;
	}
	must((r == 0) == (status == PROTO_STATUS_OK));
	if (!r) {
		uint8_t again[PROTO_HEADER_LEN];

		proto_header_encode(&h, again);
		must(!memcmp(again, data, sizeof(again)));
	}
	/* The body is what is there, whatever len says, also behind a bad header. */
	if (size > PROTO_HEADER_LEN) {
		body = data + PROTO_HEADER_LEN;
		n = (uint32_t)(size - PROTO_HEADER_LEN);
	}
	for (int id = 0; id < PROTO_N_BODIES; id++)
		one_body((enum proto_body_id)id, body, n);
	tenants(body, n);
	changes(body, n);
	h.len = n;
	(void)proto_frame_print(&h, body, false, line, sizeof(line)); /* must not crash */
	(void)proto_frame_print(&h, body, true, line, sizeof(line));
	return 0;
}
