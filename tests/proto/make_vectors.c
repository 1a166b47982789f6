/*
 * make_vectors.c - writes proto/vectors/ and the worked session of proto/README.md.
 *
 *     make_vectors frames     golden frames of the newest version with their fields
 *     make_vectors frames-1   the same of version 1
 *     make_vectors frames-2   the same of version 2
 *     make_vectors bad        frames that a decoder must refuse, and with what
 *     make_vectors session    the worked session as text and hex dump
 *     make_vectors seed DIR   one file per frame: the fuzzer's first corpus
 *     make_vectors check WHAT FILE   exit 1 unless FILE holds exactly that text (for "session": as
 *                                    a part of it)
 *
 * Values are chosen to differ from field to field, so that two fields in the wrong order show.
 */
#include "tests/proto/walk.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define TEXT_MAX  (1u << 18)
#define FRAME_MAX 4096u

enum want {
	WANT_FRAMES,
	WANT_FRAMES_1,
	WANT_FRAMES_2,
	WANT_BAD,
	WANT_SESSION,
	WANT_SEED
};

struct out {
	enum want want;
	uint16_t version;
	const char *dir;
	char *text;
	size_t len;
	bool in_session;
};

struct frame {
	const char *name;
	uint16_t op;
	uint16_t status;
	uint64_t seq;
	bool reply;
};

static void add(struct out *o, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(struct out *o, const char *format, ...)
{
	va_list ap;
	int n;

	va_start(ap, format);
	n = vsnprintf(o->text + o->len, TEXT_MAX - o->len, format, ap);
	va_end(ap);
	if (n < 0 || (size_t)n >= TEXT_MAX - o->len)
		abort();
	o->len += (size_t)n;
}

static void add_hex(struct out *o, const uint8_t *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		add(o, "%02x", p[i]);
	add(o, "\n");
}

static void add_dump(struct out *o, const uint8_t *p, size_t n)
{
	for (size_t row = 0; row < n; row += 16) {
		add(o, "    %04zx ", row);
		for (size_t i = row; i < row + 16; i++) {
			if (i < n)
				add(o, " %02x", p[i]);
			else
				add(o, "   ");
		}
		add(o, "  ");
		for (size_t i = row; i < row + 16 && i < n; i++)
			add(o, "%c", p[i] >= 0x20 && p[i] < 0x7f ? p[i] : '.');
		while (o->text[o->len - 1] == ' ') /* no white space at the end of a line */
			o->len--;
		add(o, "\n");
	}
}

static void add_fields(struct out *o, enum proto_body_id id, const struct walk_msg *m)
{
	const struct proto_body *b = proto_body_get(id);
	uint32_t n = proto_body_n_fields(id, o->version);
	char text[FRAME_MAX];

	for (uint32_t i = 0; i < n; i++) {
		if (walk_field_to_text(&b->fields[i], m, text, sizeof(text)) < 0)
			abort();
		add(o, "f.%s=%s\n", b->fields[i].name, text);
	}
}

static void write_seed(const struct out *o, const char *name, const uint8_t *p, size_t n)
{
	char path[512];
	FILE *f;

	(void)snprintf(path, sizeof(path), "%s/%s", o->dir,
		       name); /* a cut path fails to open or is wrong on screen */
	f = fopen(path, "wb");
	if (!f || fwrite(p, 1, n, f) != n || fclose(f)) {
		perror(path);
		exit(1);
	}
}

static const struct proto_id boot = { { 0xb0, 0x07, 0x1d, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99,
					0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff } };

static size_t encode(uint16_t version, const struct frame *f, enum proto_body_id id,
		     const struct walk_msg *m, uint8_t bytes[FRAME_MAX], struct proto_header *ret_h)
{
	struct proto_writer w = { bytes, FRAME_MAX, 0, NULL };
	size_t start = proto_frame_begin(&w);

	*ret_h = (struct proto_header){
		.version = f->op == PROTO_OP_HELLO ? PROTO_VERSION_HELLO : version,
		.op = f->op,
		.status = f->status,
		.seq = f->seq,
	};
	if (f->reply || f->seq > 1) /* the first request knows no boot id yet */
		ret_h->boot = boot;
	walk_encode_as(id, version, &w, m);
	if (proto_frame_end(&w, start, ret_h))
		abort();
	return w.len;
}

static void emit(struct out *o, struct frame f, enum proto_body_id id, const void *msg)
{
	uint8_t bytes[FRAME_MAX];
	char line[FRAME_MAX];
	struct walk_msg m = { .used = 0 };
	struct proto_header h;
	size_t n;

	memcpy(m.bytes, msg, proto_body_get(id)->size);
	n = encode(o->version, &f, id, &m, bytes, &h);
	if (proto_body_of(f.op, f.status, f.reply) != (int)id)
		abort();
	switch (o->want) {
	case WANT_FRAMES:
	case WANT_FRAMES_1:
	case WANT_FRAMES_2:
		add(o, "frame=%s\nhex=", f.name);
		add_hex(o, bytes, n);
		add(o, "direction=%s\nop=%u\nstatus=%u\nseq=%" PRIu64 "\nboot=",
		    f.reply ? "reply" : "request", f.op, f.status, f.seq);
		add_hex(o, h.boot.b, sizeof(h.boot.b));
		add(o, "body=%s\n", proto_body_get(id)->name);
		add_fields(o, id, &m);
		add(o, "\n");
		break;
	case WANT_SESSION:
		if (!o->in_session)
			break;
		(void)proto_frame_print(&h, bytes + PROTO_HEADER_LEN, f.reply, line, sizeof(line));
		add(o, "    %s %s\n", f.reply ? "<-" : "->", line);
		add_dump(o, bytes, n);
		add(o, "\n");
		break;
	case WANT_SEED:
		write_seed(o, f.name, bytes, n);
		break;
	case WANT_BAD:
		break;
	}
}

#define EMIT(o, name, op, status, seq, reply, low, ...)                                   \
	emit(o, (struct frame){ name, PROTO_OP_##op, PROTO_STATUS_##status, seq, reply }, \
	     PROTO_BODY_##low, &(struct proto_##low){ __VA_ARGS__ })
#define REQUEST(o, name, op, seq, low, ...) EMIT(o, name, op, OK, seq, false, low, __VA_ARGS__)
#define REPLY(o, name, op, seq, low, ...)   EMIT(o, name, op, OK, seq, true, low, __VA_ARGS__)
#define REFUSAL(o, name, op, status, seq, ...) \
	EMIT(o, name, op, status, seq, true, error, __VA_ARGS__)

#define TEXT(s)                  \
	{                        \
		s, sizeof(s) - 1 \
	}
#define BYTES(a)             \
	{                    \
		a, sizeof(a) \
	}
#define RUNS(a)                        \
	{                              \
		a, radix_array_size(a) \
	}
#define ID(first)                                                                                \
	{                                                                                        \
		{                                                                                \
			first, first + 1, first + 2, first + 3, first + 4, first + 5, first + 6, \
				first + 7, first + 8, first + 9, first + 10, first + 11,         \
				first + 12, first + 13, first + 14, first + 15                   \
		}                                                                                \
	}

static const uint32_t prompt[14] = { 101,  7592, 2088, 102,  1037,  3231, 2003,
				     2182, 2000, 3422, 1996, 17463, 1012, 999 };
static const uint8_t ns_digest[32] = { 0x5e, 0xed, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06,
				       0x07, 0x08, 0x09, 0x0a, 0x0b, 0x0c, 0x0d, 0x0e,
				       0x0f, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16,
				       0x17, 0x18, 0x19, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e };

/* ---- the worked session ---------------------------------------------------------------------- */

static void session_begin(struct out *o)
{
	static const uint8_t tenants[] = { 0,   0, 0, 0, 7, 0, 'd', 'e', 'f', 'a', 'u', 'l',
					   't', 1, 0, 0, 0, 4, 0,   'a', 'c', 'm', 'e' };

	REQUEST(o, "hello.request", HELLO, 1, hello_req, .version_min = 1,
		.version_max = o->version, .flags = PROTO_HELLO_COPIES,
		.self_test = proto_self_test(1), .instance = ID(0x10), .name = TEXT("worker-0"));
	REPLY(o, "hello.reply", HELLO, 1, hello_rep, .version = o->version, .session = 7,
	      .max_frame = 1048576, .max_keys = 32768, .max_namespaces = 16, .max_leases = 65536,
	      .op_ids_kept = 1024, .op_ids_kept_ms = 60000, .daemon = TEXT("prefixd 0.1.0"),
	      .tenants = BYTES(tenants));
	REQUEST(o, "open.request", OPEN, 2, open_req, .key_mode = PROTO_KEYS_TOKENS,
		.model = TEXT("tiny"), .revision = TEXT("main@4f1c"), .dtype = TEXT("float16"),
		.layers = 2, .kv_heads = 1, .head_dim = 64, .block_tokens = 4, .block_bytes = 2048,
		.layout = TEXT("block-major"), .tp_size = 1, .engine = TEXT("demo-1"));
	REPLY(o, "open.reply", OPEN, 2, open_rep, .ns = 1, .digest = BYTES(ns_digest),
	      .key_len = 16, .block_tokens = 4, .block_bytes = 2048, .group = 0, .n_slots = 1024,
	      .slot_stride = 2048, .pool_len = 2097152, .n_pool_fds = 2, .pool = ID(0xe0),
	      .slab_len = 2097152, .n_ranks = 1, .cold_bytes = 2048);
}

static void session_fill(struct out *o)
{
	static const struct radix_run slots[] = { { 0, 2 }, { 5, 1 } };

	REQUEST(o, "match.miss.request", MATCH, 3, match_req, .has = PROTO_HAS_ALL, .ns = 1,
		.tenant = 1, .salt = TEXT("s3"), .op_id = ID(0x20), .deadline_us = 20000,
		.n_tokens = 14, .keys = { prompt, 48 }, .tail = { prompt + 12, 8 });
	REPLY(o, "match.miss.reply", MATCH, 3, match_rep, .lease = 0x700000001, .root = ID(0x60),
	      .reason = PROTO_REASON_NEVER_SEEN, .reuse = 9);
	REQUEST(o, "reserve.request", RESERVE, 4, reserve_req, .op_id = ID(0x30),
		.lease = 0x700000001, .n = 3, .deadline_us = 5000);
	REPLY(o, "reserve.reply", RESERVE, 4, reserve_rep, .n = 3, .first = 0, .reuse = 9,
	      .runs = RUNS(slots));
	REQUEST(o, "commit.request", COMMIT, 5, commit_req, .op_id = ID(0x40), .lease = 0x700000001,
		.n = 3);
	REPLY(o, "commit.reply", COMMIT, 5, commit_rep, .n_stored = 3, .n_duplicate = 0, .reuse = 9,
	      .runs = RUNS(slots));
}

static void session_hit(struct out *o)
{
	static const struct radix_run slots[] = { { 0, 2 }, { 5, 1 } };

	REQUEST(o, "match.hit.request", MATCH, 6, match_req, .has = PROTO_HAS_ALL, .ns = 1,
		.tenant = 1, .salt = TEXT("s3"), .op_id = ID(0x50), .deadline_us = 20000,
		.n_tokens = 14, .keys = { prompt, 48 }, .tail = { prompt + 12, 8 });
	REPLY(o, "match.hit.reply", MATCH, 6, match_rep, .lease = 0x700000002, .root = ID(0x60),
	      .n_device = 3, .reason = PROTO_REASON_BELOW_BLOCK, .miss_token = 12, .reuse = 9,
	      .runs = RUNS(slots));
	REQUEST(o, "release.request", RELEASE, 7, release_req, .op_id = ID(0x70),
		.lease = 0x700000002, .flags = PROTO_RELEASE_NEXT, .next_use_ms = 30000);
	REPLY(o, "release.reply", RELEASE, 7, release_rep, .queried_tokens = 14,
	      .hit_device_tokens = 12, .miss_tokens = 2);
	REQUEST(o, "release.again.request", RELEASE, 8, release_req, .op_id = ID(0x80),
		.lease = 0x700000002);
	REFUSAL(o, "release.again.reply", RELEASE, UNKNOWN_LEASE, 8, .field = TEXT("lease"),
		.text = TEXT("no lease 30064771074: it was released, revoked or never was"));
}

/* ---- everything else ------------------------------------------------------------------------- */

static const uint8_t digests[3][16] = {
	{ 0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xab, 0xac, 0xad, 0xae,
	  0xaf },
	{ 0xb0, 0xb1, 0xb2, 0xb3, 0xb4, 0xb5, 0xb6, 0xb7, 0xb8, 0xb9, 0xba, 0xbb, 0xbc, 0xbd, 0xbe,
	  0xbf },
	{ 0xc0, 0xc1, 0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7, 0xc8, 0xc9, 0xca, 0xcb, 0xcc, 0xcd, 0xce,
	  0xcf },
};

static void digest_mode(struct out *o)
{
	static const struct radix_run runs[] = { { 40, 1 }, { 17, 2 } };

	REQUEST(o, "open.digest.request", OPEN, 20, open_req, .key_mode = PROTO_KEYS_DIGEST,
		.flags = PROTO_OPEN_OPAQUE, .model = TEXT("big"), .revision = TEXT("r2"),
		.dtype = TEXT("fp8_e4m3"), .scales = TEXT("sha256:77"), .layers = 61, .kv_heads = 8,
		.head_dim = 128, .block_tokens = 16, .block_bytes = 65536, .layout = TEXT("opaque"),
		.windows = TEXT("0-3:4096"), .adapter = TEXT("lora-a@3"), .tp_size = 4,
		.tp_rank = 2, .engine = TEXT("vllm-0.11/3"), .digest_len = 16,
		.seed_probe = BYTES(digests[2]));
	REPLY(o, "open.digest.reply", OPEN, 20, open_rep, .ns = 2,
	      .flags = PROTO_OPENED_SEED_MISMATCH | PROTO_OPENED_READ_ONLY,
	      .digest = BYTES(ns_digest), .key_len = 16, .block_tokens = 16, .block_bytes = 65537,
	      .group = 3, .n_slots = 77, .slot_stride = 65600, .pool_len = 5054464,
	      .n_pool_fds = 2);
	REQUEST(o, "match.island.request", MATCH, 21, match_req, .has = PROTO_HAS_ALL, .ns = 2,
		.tenant = 1, .salt = { "\0\1", 2 }, .decision_id = ID(0x90),
		.flags = PROTO_MATCH_ISLAND | PROTO_MATCH_PROMOTE, .deadline_us = 1000,
		.n_tokens = 30, .parent = BYTES(digests[0]), .keys = { digests[1], 32 });
	REPLY(o, "match.tiers.reply", MATCH, 21, match_rep, .lease = 9, .root = ID(0x61),
	      .n_device = 3, .n_host = 4, .n_redis = 5, .n_pending = 6, .tail_tokens = 7,
	      .tail_slot = 8, .advice = 1, .reason = PROTO_REASON_PENDING, .more = 1,
	      .load_us = 1234, .miss_token = 199, .reuse = 0x1122334455667788, .runs = RUNS(runs));
	REQUEST(o, "extend.request", EXTEND, 22, extend_req, .op_id = ID(0x31), .lease = 9,
		.flags = PROTO_MATCH_NO_TAIL, .deadline_us = 10, .n_tokens = 11,
		.parent = BYTES(digests[2]), .keys = BYTES(digests[0]), .tail = { prompt, 12 });
	REPLY(o, "extend.reply", EXTEND, 22, match_rep, .lease = 9, .root = ID(0x61),
	      .reason = PROTO_REASON_DIVERGED, .miss_token = 96, .reuse = 10);
	REQUEST(o, "commit.checksums.request", COMMIT, 23, commit_req, .op_id = ID(0x41),
		.lease = 9, .n = 2, .tail_tokens = 3, .checksum_kind = PROTO_CHECKSUM_XXH3_128,
		.checksums = { digests, 32 });
	REPLY(o, "commit.duplicate.reply", COMMIT, 23, commit_rep, .n_stored = 1, .n_duplicate = 2,
	      .reuse = 3, .runs = RUNS(runs));
	REPLY(o, "reserve.part.reply", RESERVE, 24, reserve_rep, .n = 3, .first = 12, .reuse = 13,
	      .runs = RUNS(runs));
	REPLY(o, "release.all.reply", RELEASE, 25, release_rep, .queried_tokens = 210,
	      .hit_device_tokens = 20, .hit_host_tokens = 30, .hit_redis_tokens = 40,
	      .hit_pending_tokens = 50, .miss_tokens = 70);
}

static void subscriber(struct out *o)
{
	static uint8_t events[1024];
	struct proto_writer w = { events, sizeof(events), 0, NULL };
	struct proto_change stored = { .kind = PROTO_CHANGE_STORED,
				       .number = 42,
				       .ns = 2,
				       .tenant = 1,
				       .root = ID(0x62),
				       .position = UINT32_MAX,
				       .n_tokens = 16,
				       .slot = 7,
				       .block = BYTES(digests[1]),
				       .parent = BYTES(digests[0]) };
	struct proto_change removed = { .kind = PROTO_CHANGE_REMOVED,
					.reason = PROTO_REMOVAL_CAPACITY,
					.number = 43,
					.ns = 2,
					.tenant = 1,
					.root = ID(0x62),
					.position = UINT32_MAX,
					.n_tokens = 16,
					.slot = 7,
					.block = BYTES(digests[1]) };
	struct proto_change moved = { .kind = PROTO_CHANGE_MOVED,
				      .from_tier = PROTO_TIER_HOST,
				      .number = 44,
				      .ns = 2,
				      .tenant = 1,
				      .root = ID(0x62),
				      .position = UINT32_MAX,
				      .n_tokens = 16,
				      .slot = 9,
				      .block = BYTES(digests[0]) };
	struct proto_change lost = { .kind = PROTO_CHANGE_REMOVED,
				     .tier = PROTO_TIER_REDIS,
				     .reason = PROTO_REMOVAL_LOST,
				     .number = 46,
				     .ns = 2,
				     .tenant = 1,
				     .root = ID(0x62),
				     .position = UINT32_MAX,
				     .n_tokens = 16,
				     .slot = UINT32_MAX,
				     .block = BYTES(digests[2]) };
	struct proto_change cleared = { .kind = PROTO_CHANGE_CLEARED,
					.number = 45,
					.ns = 2,
					.tenant = UINT32_MAX,
					.position = UINT32_MAX,
					.slot = UINT32_MAX,
					.revision = 3 };

	struct proto_change resync = { .kind = PROTO_CHANGE_RESYNC,
				       .number = 99,
				       .tenant = UINT32_MAX,
				       .position = UINT32_MAX,
				       .slot = UINT32_MAX };

	stored.tier = PROTO_TIER_REDIS;
	proto_change_append(&w, &stored);
	proto_change_append(&w, &removed);
	proto_change_append(&w, &moved);
	proto_change_append(&w, &cleared);
	proto_change_append(&w, &lost);
	proto_change_append(&w, &resync);
	REQUEST(o, "subscribe.request", SUBSCRIBE, 40, subscribe_req, .ns = 2, .from = 42,
		.life = ID(0xb0));
	REPLY(o, "subscribe.reply", SUBSCRIBE, 40, subscribe_rep, .last = 46, .oldest = 12);
	REPLY(o, "changes.stream", CHANGES, 40, changes, .n = 6,
	      .events = { events, (uint32_t)w.len });
}

/* A load's end, whole and cut, and what brings blocks up before anybody asks. */
static void tiers(struct out *o)
{
	REPLY(o, "event.loaded.reply", EVENT, 21, event, .lease = 9, .state = PROTO_WAIT_LOADED,
	      .n = 7, .reason = PROTO_REASON_TIER_LOST);
	REPLY(o, "event.failed.reply", EVENT, 22, event, .lease = 9, .state = PROTO_WAIT_FAILED,
	      .reason = PROTO_REASON_TIER_DOWN);
	REQUEST(o, "prefetch.request", PREFETCH, 41, prefetch_req, .has = PROTO_HAS_ALL, .ns = 1,
		.tenant = 2, .salt = TEXT("q"), .op_id = ID(0x51), .deadline_us = 250000,
		.n_tokens = 14, .keys = { prompt, 48 });
	REPLY(o, "prefetch.reply", PREFETCH, 41, prefetch_rep, .root = ID(0x63), .n_device = 1,
	      .n_host = 2, .n_redis = 4);
}

/* What version 2 tells of earlier lives. */
static void lives(struct out *o)
{
	if (o->version < 2)
		return;
	REQUEST(o, "hello.new-only.request", HELLO, 42, hello_req, .version_min = o->version,
		.version_max = o->version, .self_test = proto_self_test(o->version),
		.instance = ID(0x12), .name = TEXT("worker-1"));
	REPLY(o, "hello.orphans.reply", HELLO, 42, hello_rep, .version = o->version, .session = 8,
	      .max_frame = 65536, .max_keys = 100, .max_namespaces = 1, .max_leases = 2,
	      .daemon = TEXT("prefixd 0.2.0"), .n_orphans = 3, .orphans_boot = ID(0x22));
	REPLY(o, "open.kept.reply", OPEN, 43, open_rep, .ns = 4,
	      .flags = PROTO_OPENED_KEPT | PROTO_OPENED_READ_ONLY, .digest = BYTES(ns_digest),
	      .key_len = 64, .block_tokens = 16, .block_bytes = 65536, .group = 1, .n_slots = 8,
	      .slot_stride = 65536, .pool_len = 524288, .n_pool_fds = 2, .pool = ID(0xf0));
	REQUEST(o, "quiesced.any-life.request", QUIESCED, 44, quiesced_req, .instance = ID(0x12));
	REPLY(o, "quiesced.any-life.reply", QUIESCED, 44, quiesced_rep, .n_leases = 3,
	      .n_slots = 5);
}

/* What version 3 tells of devices, codecs, windows, ranks, write memory and words. */
static void devices(struct out *o)
{
	static const struct radix_run windowed[] = { { PROTO_SLOT_NONE, 96 }, { 17, 2 } };

	if (o->version < 3)
		return;
	REQUEST(o, "open.device.request", OPEN, 45, open_req, .key_mode = PROTO_KEYS_TOKENS,
		.flags = PROTO_OPEN_STRIPE | PROTO_OPEN_WINDOWS | PROTO_OPEN_WORDS,
		.model = TEXT("wide"), .revision = TEXT("r3"), .dtype = TEXT("bfloat16"),
		.layers = 32, .kv_heads = 2, .head_dim = 128, .block_tokens = 16,
		.block_bytes = 524288, .layout = TEXT("layer-major"), .windows = TEXT("0-31:4096"),
		.tp_size = 4, .tp_rank = 1, .engine = TEXT("demo-3"), .cold_codec = TEXT("int8"),
		.exact_layers = TEXT("0-1,31"));
	REPLY(o, "open.device.reply", OPEN, 45, open_rep, .ns = 5, .digest = BYTES(ns_digest),
	      .key_len = 64, .block_tokens = 16, .block_bytes = 524288, .group = 2, .n_slots = 8,
	      .slot_stride = 524288, .pool_len = 4194304, .n_pool_fds = 3, .pool = ID(0xef),
	      .device = PROTO_DEVICE_CUDA, .device_id = ID(0xd0), .slab_len = 2097152, .n_ranks = 4,
	      .window = 256, .n_write = 6, .write_len = 3145728, .n_words = 512,
	      .cold_bytes = 294912);
	REPLY(o, "match.lossy.reply", MATCH, 46, match_rep, .lease = 0x700000009, .root = ID(0x64),
	      .n_device = 98, .n_host = 3, .reason = PROTO_REASON_NEVER_SEEN, .miss_token = 1616,
	      .reuse = 11, .runs = RUNS(windowed), .n_lossy = 5, .first_lossy = 97);
	REQUEST(o, "commit.word.request", COMMIT, 47, commit_req, .op_id = ID(0x42),
		.lease = 0x700000009, .n = 2, .word = 1, .value = 0x8877665544332211);
	REQUEST(o, "release.word.request", RELEASE, 48, release_req, .op_id = ID(0x72),
		.lease = 0x700000009, .word = 512, .value = 7);
	REQUEST(o, "quiesced.word.request", QUIESCED, 49, quiesced_req, .instance = ID(0x12),
		.word = 3, .value = UINT64_MAX);
	EMIT(o, "lost.reply", LOST, DEVICE_LOST, 2, true, error, .field = TEXT("device"),
	     .text = TEXT("the device of pool group 2 is lost"));
}

static void the_rest(struct out *o)
{
	static const uint8_t bitmap[] = { 0x05 };

	REQUEST(o, "probe.request", PROBE, 30, probe_req, .has = PROTO_HAS_ALL, .ns = 2,
		.tenant = 1, .salt = TEXT("p"), .flags = PROTO_PROBE_BITMAP, .n_tokens = 48,
		.keys = BYTES(digests));
	REPLY(o, "probe.reply", PROBE, 30, probe_rep, .root = ID(0x62), .n_device = 1, .n_host = 2,
	      .n_redis = 3, .bitmap = BYTES(bitmap));
	REQUEST(o, "explain.request", EXPLAIN, 31, explain_req, .has = PROTO_HAS_ALL, .ns = 1,
		.tenant = 2, .salt = TEXT("z"), .n_tokens = 6, .keys = { prompt, 16 },
		.tail = { prompt + 4, 8 });
	REPLY(o, "explain.reply", EXPLAIN, 31, explain_rep, .matched_tokens = 4, .position = 5,
	      .reason = PROTO_REASON_DIVERGED, .has_tokens = 3, .own_token = 3231,
	      .stored_token = 2182, .lost_tokens = 1,
	      .text = TEXT("token 5 differs from what is stored there"));
	REQUEST(o, "report.request", REPORT, 32, report_req, .ns = 1, .ttft_us = 2, .tpot_us = 3,
		.input_tokens = 4, .running = 5, .waiting = 6);
	REPLY(o, "report.reply", REPORT, 32, empty);
	REQUEST(o, "quiesced.request", QUIESCED, 33, quiesced_req, .instance = ID(0x11),
		.old_boot = ID(0x21));
	REPLY(o, "quiesced.reply", QUIESCED, 33, quiesced_rep, .n_leases = 2, .n_slots = 40);
	REQUEST(o, "wait.request", WAIT, 39, wait_req, .lease = 12, .deadline_us = 2000000);
	REPLY(o, "wait.reply", WAIT, 39, wait_rep, .lease = 12, .state = PROTO_WAIT_WAITING,
	      .n = 512, .leader_us = 9999000);
	REPLY(o, "event.reply", EVENT, 39, event, .lease = 12, .state = PROTO_WAIT_LEAD, .n = 256,
	      .leader_us = 10000000);
	tiers(o);
	REQUEST(o, "ping.request", PING, 34, empty);
	REPLY(o, "ping.reply", PING, 34, empty);
	REQUEST(o, "admin.request", ADMIN, 35, admin, .json = TEXT("{\"op\":\"ping\"}"));
	REPLY(o, "admin.reply", ADMIN, 35, admin, .json = TEXT("{\"ok\":true}"));
	REFUSAL(o, "match.salt-missing.reply", MATCH, MISSING_FIELD, 36, .field = TEXT("salt"),
		.text = TEXT("salt is missing; an empty salt has to be said"));
	REFUSAL(o, "reserve.busy.reply", RESERVE, BUSY, 37, .text = TEXT("no slot is free"),
		.retry_after_us = 1500);
	REFUSAL(o, "hello.draining.reply", HELLO, DRAINING, 38,
		.text = TEXT("the daemon is stopping"));
}

/* ---- frames to refuse ------------------------------------------------------------------------ */

struct bad {
	uint8_t bytes[FRAME_MAX];
	size_t len;
};

static void bad_begin(struct bad *b, uint16_t op, enum proto_body_id id, const void *msg)
{
	struct walk_msg m = { .used = 0 };
	struct proto_header h;

	memcpy(m.bytes, msg, proto_body_get(id)->size);
	b->len = encode(PROTO_VERSION, &(struct frame){ "", op, 0, 2, false }, id, &m, b->bytes,
			&h);
}

static void bad_end(struct out *o, const char *name, enum proto_status status, const char *field,
		    const struct bad *b)
{
	if (o->want == WANT_SEED)
		write_seed(o, name, b->bytes, b->len);
	if (o->want != WANT_BAD)
		return;
	add(o, "frame=%s\nhex=", name);
	add_hex(o, b->bytes, b->len);
	add(o, "status=%u\nfield=%s\n\n", status, field);
}

static void set_len(struct bad *b, size_t body)
{
	uint32_t n = (uint32_t)body;

	memcpy(b->bytes + offsetof(struct proto_header, len), &n, sizeof(n));
}

static void bad_headers(struct out *o)
{
	static const struct {
		const char *name;
		size_t at;
		uint8_t value;
		enum proto_status status;
	} edits[] = {
		{ "bad.magic", offsetof(struct proto_header, magic), 'Q', PROTO_STATUS_BAD_FRAME },
		{ "bad.version-0", offsetof(struct proto_header, version), 0,
		  PROTO_STATUS_VERSION },
		{ "bad.version-4", offsetof(struct proto_header, version), 4,
		  PROTO_STATUS_VERSION },
		{ "bad.flags", offsetof(struct proto_header, flags) + 1, 0x80,
		  PROTO_STATUS_BAD_FRAME },
		{ "bad.length", offsetof(struct proto_header, len) + 3, 0xff,
		  PROTO_STATUS_TOO_LARGE },
	};

	for (size_t i = 0; i < radix_array_size(edits); i++) {
		struct bad b;

		bad_begin(&b, PROTO_OP_PING, PROTO_BODY_empty, &(struct proto_empty){});
		b.bytes[edits[i].at] = edits[i].value;
		bad_end(o, edits[i].name, edits[i].status, "", &b);
	}
}

static void bad_bodies(struct out *o)
{
	struct proto_hello_req hello = { .version_min = 1, .version_max = 1, .name = TEXT("w") };
	struct proto_match_req match = { .has = PROTO_HAS_ALL, .keys = { prompt, 16 } };
	struct bad b;

	bad_begin(&b, PROTO_OP_HELLO, PROTO_BODY_hello_req, &hello);
	set_len(&b, --b.len - PROTO_HEADER_LEN);
	bad_end(o, "bad.text-cut", PROTO_STATUS_BAD_BODY, "name", &b);

	bad_begin(&b, PROTO_OP_HELLO, PROTO_BODY_hello_req, &hello);
	b.bytes[b.len - 1] = 0;
	bad_end(o, "bad.text-with-0", PROTO_STATUS_BAD_BODY, "name", &b);

	bad_begin(&b, PROTO_OP_HELLO, PROTO_BODY_hello_req, &hello);
	b.bytes[b.len - 3] = 65; /* one more than name may have, and all of them there */
	memset(b.bytes + b.len, 'w', 64);
	b.len += 64;
	set_len(&b, b.len - PROTO_HEADER_LEN);
	bad_end(o, "bad.text-too-long", PROTO_STATUS_BAD_BODY, "name", &b);

	hello.flags = PROTO_HELLO_ALL + 1;
	bad_begin(&b, PROTO_OP_HELLO, PROTO_BODY_hello_req, &hello);
	bad_end(o, "bad.undefined-flag", PROTO_STATUS_BAD_BODY, "flags", &b);

	bad_begin(&b, PROTO_OP_PING, PROTO_BODY_empty, &(struct proto_empty){});
	b.bytes[b.len++] = 0;
	set_len(&b, 1);
	bad_end(o, "bad.trailing", PROTO_STATUS_BAD_BODY, "trailing bytes", &b);

	match.has = PROTO_HAS_ALL + 1;
	bad_begin(&b, PROTO_OP_MATCH, PROTO_BODY_match_req, &match);
	bad_end(o, "bad.undefined-has", PROTO_STATUS_BAD_BODY, "has", &b);

	match.has = PROTO_HAS_ALL;
	bad_begin(&b, PROTO_OP_MATCH, PROTO_BODY_match_req, &match);
	memset(b.bytes + b.len - 24, 0xff, 4); /* length of keys: 4 + 16 before tail's 4 */
	bad_end(o, "bad.keys-length", PROTO_STATUS_BAD_BODY, "keys", &b);

	match.has = PROTO_HAS_NS | PROTO_HAS_TENANT;
	bad_begin(&b, PROTO_OP_MATCH, PROTO_BODY_match_req, &match);
	bad_end(o, "bad.salt-missing", PROTO_STATUS_MISSING_FIELD, "salt", &b);
}

/* ---- main ------------------------------------------------------------------------------------ */

static void write_all(struct out *o)
{
	struct proto_id st = proto_self_test(o->version);

	if (o->want <= WANT_FRAMES_2) {
		add(o,
		    "# Golden frames of version %u; tests/proto/make_vectors.c writes this.\n"
		    "# Integers decimal, ids and blobs hex, text as it is, runs start+length.\n"
		    "self_test=",
		    o->version);
		add_hex(o, st.b, sizeof(st.b));
		add(o, "\n");
	}
	if (o->want == WANT_BAD)
		add(o, "# Frames to refuse with max_frame 1048576; `field` is what is named.\n"
		       "# tests/proto/make_vectors.c writes this.\n\n");
	o->in_session = true;
	session_begin(o);
	session_fill(o);
	session_hit(o);
	o->in_session = false;
	digest_mode(o);
	subscriber(o);
	the_rest(o);
	lives(o);
	devices(o);
	bad_headers(o);
	bad_bodies(o);
}

static int parse_want(const char *s, enum want *ret_want)
{
	static const char *const names[] = { "frames", "frames-1", "frames-2",
					     "bad",    "session",  "seed" };

	for (size_t i = 0; i < radix_array_size(names); i++) {
		if (!strcmp(s, names[i])) {
			*ret_want = (enum want)i;
			return 0;
		}
	}
	return -1;
}

static int check(const struct out *o, const char *path)
{
	static char have[TEXT_MAX];
	FILE *f = fopen(path, "rb");
	size_t n = f ? fread(have, 1, sizeof(have) - 1, f) : 0;

	if (!f) {
		perror(path);
		return 1;
	}
	(void)fclose(f); /* read only */
	have[n] = 0;
	if (o->want == WANT_SESSION ? strstr(have, o->text) != NULL : !strcmp(have, o->text))
		return 0;
	fprintf(stderr,
		"%s is not what the code encodes: a layout changed, or the file was not "
		"written again\n",
		path);
	return 1;
}

int main(int argc, char **argv)
{
	static char text[TEXT_MAX];
	struct out o = { .text = text };
	bool checking = argc == 4 && !strcmp(argv[1], "check");

	if (argc < 2 || parse_want(argv[checking ? 2 : 1], &o.want) ||
	    (o.want == WANT_SEED && argc != 3)) {
		fprintf(stderr,
			"usage: make_vectors [check] frames|frames-1|frames-2|bad|session [FILE] "
			"| seed DIR\n");
		return 2;
	}
	o.version = o.want == WANT_FRAMES_1 ? 1 : o.want == WANT_FRAMES_2 ? 2 : PROTO_VERSION;
	o.dir = argv[argc - 1];
	write_all(&o);
	if (checking)
		return check(&o, argv[3]);
	fputs(text, stdout);
	return 0;
}
