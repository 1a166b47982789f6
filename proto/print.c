/*
 * print.c - frames as one line of text, for transcripts and tests.
 *
 * Text of the peer is escaped, so a line stays one line.  Blobs (keys, tails, salts, JSON) appear
 * as their length only: what is printed may end up in a log.
 */
#include "proto/codec.h"
#include "proto/fields.h"

#define RUNS_SHOWN 8u /* a MATCH can carry thousands */

struct line {
	char *out;
	size_t room; /* bytes without the terminator */
	size_t len;
};

static void add_char(struct line *l, char c)
{
	if (l->len < l->room)
		l->out[l->len++] = c;
}

static void add_text(struct line *l, const char *text)
{
	while (*text)
		add_char(l, *text++);
}

static void add_u64(struct line *l, uint64_t v)
{
	char digits[20];
	uint32_t n = 0;

	do {
		digits[n++] = (char)('0' + v % 10);
		v /= 10;
	} while (v);
	while (n)
		add_char(l, digits[--n]);
}

static void add_hex(struct line *l, const uint8_t *p, uint32_t n)
{
	static const char hex[] = "0123456789abcdef";

	for (uint32_t i = 0; i < n; i++) {
		add_char(l, hex[p[i] >> 4]);
		add_char(l, hex[p[i] & 15]);
	}
}

static void add_quoted(struct line *l, struct proto_span s)
{
	const uint8_t *p = s.p;

	add_char(l, '"');
	for (uint32_t i = 0; i < s.n; i++) {
		if (p[i] == '"' || p[i] == '\\') {
			add_char(l, '\\');
			add_char(l, (char)p[i]);
		} else if (p[i] >= 0x20 && p[i] < 0x7f) {
			add_char(l, (char)p[i]);
		} else {
			add_text(l, "\\x");
			add_hex(l, p + i, 1);
		}
	}
	add_char(l, '"');
}

static void add_runs(struct line *l, struct proto_span runs)
{
	add_char(l, '[');
	for (uint32_t i = 0; i < runs.n && i < RUNS_SHOWN; i++) {
		struct radix_run run = proto_run_at(runs, i);

		if (i)
			add_char(l, ' ');
		add_u64(l, run.start);
		add_char(l, '+');
		add_u64(l, run.len);
	}
	if (runs.n > RUNS_SHOWN) {
		add_text(l, " ... ");
		add_u64(l, runs.n);
		add_text(l, " runs");
	}
	add_char(l, ']');
}

static void add_field(struct line *l, const struct proto_field *f, const void *msg)
{
	add_char(l, ' ');
	add_text(l, f->name);
	add_char(l, '=');
	switch (f->kind) {
	case PROTO_KIND_U8:
	case PROTO_KIND_U16:
	case PROTO_KIND_U32:
	case PROTO_KIND_U64:
		add_u64(l, proto_field_u64(f, msg));
		break;
	case PROTO_KIND_ID:
		add_hex(l, (const uint8_t *)msg + f->offset, sizeof(struct proto_id));
		break;
	case PROTO_KIND_STR:
		add_quoted(l, proto_field_span(f, msg));
		break;
	case PROTO_KIND_BLOB:
		add_u64(l, proto_field_span(f, msg).n);
		add_char(l, 'B');
		break;
	case PROTO_KIND_RUNS:
		add_runs(l, proto_field_span(f, msg));
		break;
	}
}

static void add_body(struct line *l, enum proto_body_id id, uint32_t version, const void *msg)
{
	const struct proto_body *b = proto_body_get(id);
	uint32_t n = proto_body_n_fields(id, version);

	add_text(l, b->name);
	for (uint32_t i = 0; i < n; i++)
		add_field(l, &b->fields[i], msg);
}

static struct line line_begin(char *out, size_t out_len)
{
	return (struct line){ out, out_len ? out_len - 1 : 0, 0 };
}

static size_t line_end(struct line *l, size_t out_len)
{
	if (out_len)
		l->out[l->len] = 0;
	return l->len;
}

static void add_bad(struct line *l, const char *field)
{
	add_text(l, "undecodable, field ");
	add_text(l, field);
}

#define X(low, FIELDS)                                                                     \
	size_t proto_##low##_print(const struct proto_##low *m, char *out, size_t out_len) \
	{                                                                                  \
		struct line l = line_begin(out, out_len);                                  \
                                                                                           \
		add_body(&l, PROTO_BODY_##low, PROTO_VERSION, m);                          \
		return line_end(&l, out_len);                                              \
	}                                                                                  \
	static void add_frame_##low(struct line *l, uint32_t version, const void *body,    \
				    uint32_t n)                                            \
	{                                                                                  \
		struct proto_##low m;                                                      \
		const char *field;                                                         \
                                                                                           \
		if (proto_##low##_decode_as(version, body, n, &m, &field))                 \
			add_bad(l, field);                                                 \
		else                                                                       \
			add_body(l, PROTO_BODY_##low, version, &m);                        \
	}
PROTO_BODIES(X)
#undef X

size_t proto_frame_print(const struct proto_header *h, const void *body, bool reply, char *out,
			 size_t out_len)
{
	struct line l = line_begin(out, out_len);
	uint32_t version = proto_body_version(h, body, reply);

	add_text(&l, proto_op_to_string(h->op));
	add_char(&l, ' ');
	add_text(&l, reply ? proto_status_to_string(h->status) : "request");
	add_text(&l, " seq=");
	add_u64(&l, h->seq);
	add_text(&l, " len=");
	add_u64(&l, h->len);
	add_char(&l, ' ');
	switch (proto_body_of(h->op, h->status, reply)) {
#define X(low, FIELDS)                                      \
	case PROTO_BODY_##low:                              \
		add_frame_##low(&l, version, body, h->len); \
		break;
		PROTO_BODIES(X)
#undef X
	default:
		add_text(&l, "no body known");
	}
	return line_end(&l, out_len);
}
