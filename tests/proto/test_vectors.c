/*
 * test_vectors.c - the golden frames, both ways: what the files say is decoded, and what is encoded
 * is what the files say.  The files are parsed here as any client would parse them.
 *
 *     test_vectors DIR    (with frames.txt, frames-1.txt, frames-2.txt and bad.txt)
 */
#include "tests/lib/run.h"
#include "tests/proto/walk.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#define TEXT_MAX   (1u << 18)
#define FRAMES_MAX 128

/* One paragraph of a file: lines "name=value", kept as pointers into the file's text. */
struct entry {
	const char *name[64];
	const char *value[64];
	uint32_t n;
};

struct file {
	char text[TEXT_MAX];
	struct entry entries[FRAMES_MAX];
	uint32_t n;
};

static const char *dir;

static void load(const char *name, struct file *ret)
{
	char path[512];
	struct entry *e = NULL;
	FILE *f;
	size_t n;

	(void)snprintf(path, sizeof(path), "%s/%s", dir, name);
	f = fopen(path, "rb");
	ck_assert_msg(f != NULL, "%s", path);
	n = fread(ret->text, 1, sizeof(ret->text) - 1, f);
	(void)fclose(f); /* read only */
	ret->text[n] = 0;
	ret->n = 0;
	for (char *line = ret->text; *line;) {
		char *end = strchr(line, '\n');
		char *equals = strchr(line, '=');

		ck_assert_ptr_nonnull(end);
		*end = 0;
		if (!*line) {
			e = NULL;
		} else if (*line != '#') {
			ck_assert_ptr_nonnull(equals);
			if (!e) {
				ck_assert_uint_lt(ret->n, FRAMES_MAX);
				e = &ret->entries[ret->n++];
				e->n = 0;
			}
			ck_assert_uint_lt(e->n, radix_array_size(e->name));
			*equals = 0;
			e->name[e->n] = line;
			e->value[e->n++] = equals + 1;
		}
		line = end + 1;
	}
}

static const char *get(const struct entry *e, const char *name)
{
	for (uint32_t i = 0; i < e->n; i++) {
		if (!strcmp(e->name[i], name))
			return e->value[i];
	}
	ck_abort_msg("%s has no %s", e->value[0], name);
	return NULL;
}

static void header_from_text(const struct entry *e, struct proto_header *ret_h)
{
	memset(ret_h, 0, sizeof(*ret_h));
	ret_h->op = (uint16_t)strtoul(get(e, "op"), NULL, 10);
	ret_h->status = (uint16_t)strtoul(get(e, "status"), NULL, 10);
	ret_h->seq = strtoull(get(e, "seq"), NULL, 10);
	ck_assert_int_eq(walk_hex(get(e, "boot"), ret_h->boot.b, 16), 16);
}

/* The message as the lines f.NAME=VALUE give it; each field must be there, and no other. */
static void message_from_text(const struct entry *e, enum proto_body_id id, uint32_t version,
			      struct walk_msg *ret_m)
{
	const struct proto_body *b = proto_body_get(id);
	uint32_t n = 0, n_fields = proto_body_n_fields(id, version);

	memset(ret_m->bytes, 0, sizeof(ret_m->bytes));
	ret_m->used = 0;
	for (uint32_t i = 0; i < e->n; i++)
		n += !strncmp(e->name[i], "f.", 2);
	ck_assert_uint_eq(n, n_fields);
	for (uint32_t i = 0; i < n_fields; i++) {
		char name[80];

		(void)snprintf(name, sizeof(name), "f.%s", b->fields[i].name);
		ck_assert_msg(!walk_field_from_text(&b->fields[i], get(e, name), ret_m), "%s %s",
			      e->value[0], name);
	}
}

static enum proto_body_id check_frame(const struct entry *e, uint32_t version)
{
	static struct walk_msg want, got;
	static uint8_t bytes[8192], again[8192];
	int n = walk_hex(get(e, "hex"), bytes, sizeof(bytes));
	int id = walk_body_by_name(get(e, "body"));
	bool reply = !strcmp(get(e, "direction"), "reply");
	struct proto_writer w = { again, sizeof(again), 0, NULL };
	struct proto_header h, want_h;
	enum proto_status status;
	const char *field = "none";
	size_t start;

	ck_assert_msg(n >= (int)PROTO_HEADER_LEN && id >= 0, "%s", e->value[0]);
	header_from_text(e, &want_h);
	message_from_text(e, (enum proto_body_id)id, version, &want);

	/* decode(hex) == fields */
	ck_assert_int_eq(
		proto_header_decode(bytes, (size_t)n, PROTO_MAX_FRAME_DEFAULT, &h, &status), 0);
	ck_assert_uint_eq(h.len + PROTO_HEADER_LEN, (uint32_t)n);
	/* HELLO's header is the same in all versions, and its reply's body says which one it is. */
	want_h.version = h.op == PROTO_OP_HELLO ? PROTO_VERSION_HELLO : (uint16_t)version;
	ck_assert_uint_eq(h.version, want_h.version);
	if (reply || h.op != PROTO_OP_HELLO)
		ck_assert_uint_eq(proto_body_version(&h, bytes + PROTO_HEADER_LEN, reply),
				  h.op == PROTO_OP_HELLO && h.status ? PROTO_VERSION_HELLO
								     : version);
	ck_assert_uint_eq(h.op, want_h.op);
	ck_assert_uint_eq(h.status, want_h.status);
	ck_assert_uint_eq(h.seq, want_h.seq);
	ck_assert_mem_eq(&h.boot, &want_h.boot, sizeof(h.boot));
	ck_assert_int_eq(proto_body_of(h.op, h.status, reply), id);
	ck_assert_msg(walk_decode_as((enum proto_body_id)id, version, bytes + PROTO_HEADER_LEN,
				     h.len, &got, &field) == 0,
		      "%s: %s", e->value[0], field);
	ck_assert_msg(walk_equal((enum proto_body_id)id, &want, &got), "%s", e->value[0]);

	/* encode(fields) == hex */
	start = proto_frame_begin(&w);
	walk_encode_as((enum proto_body_id)id, version, &w, &want);
	ck_assert_int_eq(proto_frame_end(&w, start, &want_h), 0);
	ck_assert_uint_eq(w.len, (size_t)n);
	ck_assert_mem_eq(again, bytes, (size_t)n);
	return (enum proto_body_id)id;
}

/* The versions that are spoken, each with its own file. */
static const char *const files[] = { "frames-1.txt", "frames-2.txt", "frames.txt" };

START_TEST(golden_frames_decode_and_encode)
{
	static struct file f;
	bool seen[PROTO_N_BODIES] = { false };
	uint32_t version = PROTO_VERSION_MIN + (uint32_t)_i;

	load(files[_i], &f);
	for (uint32_t i = 0; i < f.n; i++) {
		if (!strcmp(f.entries[i].name[0], "frame"))
			seen[check_frame(&f.entries[i], version)] = true;
	}
	for (int id = 0; id < PROTO_N_BODIES; id++)
		ck_assert_msg(seen[id] || id == PROTO_BODY_change, "no golden frame for %s",
			      proto_body_get((enum proto_body_id)id)->name);
}
END_TEST

/* Over all golden frames every field has a value other than 0 or empty at least once. */
START_TEST(golden_frames_use_every_field)
{
	static struct file f;
	static struct walk_msg m;
	uint32_t version = PROTO_VERSION_MIN + (uint32_t)_i;

	load(files[_i], &f);
	for (int id = 0; id < PROTO_N_BODIES; id++) {
		const struct proto_body *b = proto_body_get((enum proto_body_id)id);
		uint32_t n_fields = proto_body_n_fields((enum proto_body_id)id, version);

		if (id == PROTO_BODY_change)
			continue; /* a part of a frame: the next test */
		for (uint32_t k = 0; k < n_fields; k++) {
			bool used = false;

			for (uint32_t i = 1; i < f.n; i++) {
				static const uint8_t zero[sizeof(struct proto_span)];
				size_t size = proto_kind_width(b->fields[k].kind);

				if (walk_body_by_name(get(&f.entries[i], "body")) != id)
					continue;
				message_from_text(&f.entries[i], (enum proto_body_id)id, version,
						  &m);
				if (proto_kind_is_span(b->fields[k].kind))
					used |= proto_field_span(&b->fields[k], m.bytes).n > 0;
				else
					used |= memcmp(m.bytes + b->fields[k].offset, zero, size) !=
						0;
			}
			ck_assert_msg(used, "%s.%s is 0 in every golden frame", b->name,
				      b->fields[k].name);
		}
	}
}
END_TEST

/* The events in the golden CHANGES: one of each kind, and as they were written. */
START_TEST(golden_events)
{
	static struct file f;
	static struct walk_msg m;
	static uint8_t again[4096];
	struct proto_writer w = { again, sizeof(again), 0, NULL };
	const struct proto_body *b = proto_body_get(PROTO_BODY_change);
	struct proto_span rest, all = { NULL, 0 };
	bool kinds[PROTO_CHANGE_RESYNC + 1] = { false }, used[16] = { false };
	struct proto_change c;
	uint32_t n = 0;

	load("frames.txt", &f);
	for (uint32_t i = 1; i < f.n && !all.n; i++) {
		if (walk_body_by_name(get(&f.entries[i], "body")) != PROTO_BODY_changes)
			continue;
		message_from_text(&f.entries[i], PROTO_BODY_changes, PROTO_VERSION, &m);
		all = ((const struct proto_changes *)(const void *)m.bytes)->events;
	}
	rest = all;
	while (proto_change_next(&rest, &c) == 0) {
		for (uint32_t k = 0; k < b->n_fields; k++) {
			static const uint8_t zero[sizeof(struct proto_span)];
			const struct proto_field *field = &b->fields[k];

			used[k] |= proto_kind_is_span(field->kind)
					   ? proto_field_span(field, &c).n > 0
					   : memcmp((const uint8_t *)&c + field->offset, zero,
						    proto_kind_width(field->kind)) != 0;
		}
		kinds[c.kind] = true;
		proto_change_append(&w, &c);
		n++;
	}
	ck_assert_uint_eq(rest.n, 0);
	ck_assert_uint_eq(n, ((const struct proto_changes *)(const void *)m.bytes)->n);
	ck_assert_uint_eq(w.len, all.n);
	ck_assert_mem_eq(again, all.p, all.n);
	for (uint32_t k = PROTO_CHANGE_STORED; k <= PROTO_CHANGE_RESYNC; k++)
		ck_assert_msg(kinds[k], "no golden event of kind %u", k);
	for (uint32_t k = 0; k < b->n_fields; k++)
		ck_assert_msg(used[k], "change.%s is 0 in every event", b->fields[k].name);
}
END_TEST

START_TEST(self_test_is_the_golden_one)
{
	static struct file f;
	struct proto_id want, got = proto_self_test((uint16_t)(PROTO_VERSION_MIN + _i));

	load(files[_i], &f);
	ck_assert_int_eq(walk_hex(get(&f.entries[0], "self_test"), want.b, 16), 16);
	ck_assert_mem_eq(&got, &want, sizeof(got));
}
END_TEST

/* MISSING_FIELD is the daemon's to say: such a frame decodes, and `has` shows what is missing. */
static void check_missing(const struct proto_header *h, const uint8_t *body, const char *field)
{
	struct proto_match_req m;
	const char *bad = "none";

	ck_assert_uint_eq(h->op, PROTO_OP_MATCH);
	ck_assert_int_eq(proto_match_req_decode(body, h->len, &m, &bad), 0);
	ck_assert_str_eq(field, "salt");
	ck_assert_uint_eq(m.has & PROTO_HAS_SALT, 0);
}

START_TEST(bad_frames_are_refused)
{
	static struct file f;
	static struct walk_msg m;
	static uint8_t bytes[8192];

	load("bad.txt", &f);
	ck_assert_uint_ge(f.n, 13);
	for (uint32_t i = 0; i < f.n; i++) {
		const struct entry *e = &f.entries[i];
		int n = walk_hex(get(e, "hex"), bytes, sizeof(bytes));
		int want = (int)strtol(get(e, "status"), NULL, 10);
		const char *field = "";
		enum proto_status status;
		struct proto_header h;
		int id;

		ck_assert_int_ge(n, (int)PROTO_HEADER_LEN);
		if (proto_header_decode(bytes, (size_t)n, PROTO_MAX_FRAME_DEFAULT, &h, &status)) {
			ck_assert_msg((int)status == want, "%s", e->value[0]);
			continue;
		}
		ck_assert_uint_eq(h.len + PROTO_HEADER_LEN, (uint32_t)n);
		if (want == PROTO_STATUS_MISSING_FIELD) {
			check_missing(&h, bytes + PROTO_HEADER_LEN, get(e, "field"));
			continue;
		}
		ck_assert_msg(want == PROTO_STATUS_BAD_BODY, "%s", e->value[0]);
		id = proto_body_of(h.op, 0, false);
		ck_assert_int_ge(id, 0);
		ck_assert_int_eq(walk_decode((enum proto_body_id)id, bytes + PROTO_HEADER_LEN,
					     h.len, &m, &field),
				 PROTO_E_BAD);
		ck_assert_str_eq(field, get(e, "field"));
	}
}
END_TEST

int main(int argc, char **argv)
{
	Suite *s = suite_create("vectors");
	TCase *t = tcase_create("vectors");

	dir = argc > 1 ? argv[1] : ".";
	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, golden_frames_decode_and_encode, 0, radix_array_size(files));
	tcase_add_loop_test(t, golden_frames_use_every_field, 0, radix_array_size(files));
	tcase_add_test(t, golden_events);
	tcase_add_loop_test(t, self_test_is_the_golden_one, 0, radix_array_size(files));
	tcase_add_test(t, bad_frames_are_refused);
	suite_add_tcase(s, t);
	return test_run(s);
}
