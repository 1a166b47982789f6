/*
 * bench_socket.c - MATCH over the unix socket beside Redis' MGET of as many keys.
 *
 * The question a block store answers with MGET of 512 keys ("which of these blocks have you?")
 * prefixd answers with one MATCH.  Both servers hold the same 1,000,000 blocks and are asked for
 * the same prompts: 8,192 tokens, 512 blocks, the first 448 of them stored.  All kinds of request
 * are interleaved in rounds; printed are medians of rounds and the ratio of the two medians.
 *
 *     one client, same CPU    server and client share a CPU: no wake-up across CPUs
 *     one client, two CPUs    bound by two wake-ups
 *     16 in flight            one connection, 16 requests before the first answer is read
 *
 * The client side is what an engine would use: libprefixd and hiredis; for 16 in flight, frames
 * by proto/codec.h and hiredis' pipeline.  RELEASE is sent outside the timed part.
 */
#include "tests/bench/peer.h"

#include "clients/c/prefixd.h"
#include "proto/codec.h"

#include <errno.h>
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum {
	BLOCK_TOKENS = 16,
	BLOCKS = 512,
	HITS = 448,
	DIGEST = 16,
	DEPTH = 16,
	PER_ROUND = 40
};

struct world {
	struct bench_server prefixd, redis;
	pfx_client *client;
	pfx_namespace *tokens, *digests;
	uint32_t tenant;
	redisContext *rc;
	int raw; /* a second connection for requests in flight */
	uint32_t raw_ns[2];
	uint64_t seq;
	unsigned n_prompts;
	uint64_t rng;
};

static void die(const char *what, const char *why)
{
	fprintf(stderr, "bench_socket: %s: %s\n", what, why ? why : "");
	exit(1);
}

/* Tokens of prompt p: a function of (p, position), so that nothing has to be kept. */
static void prompt_tokens(unsigned p, bool fresh_tail, uint64_t salt, uint32_t *out)
{
	uint64_t s = 0x1234567u + p * 0x10001u;

	for (unsigned i = 0; i < BLOCKS * BLOCK_TOKENS; i++) {
		if (fresh_tail && i == HITS * BLOCK_TOKENS)
			s ^= salt | 1;
		out[i] = (uint32_t)(bench_random(&s) % 128000);
	}
}

static void prompt_digests(unsigned p, bool fresh_tail, uint64_t salt, uint8_t *out)
{
	uint64_t s = 0x7654321u + p * 0x10001u;

	for (unsigned i = 0; i < BLOCKS; i++) {
		if (fresh_tail && i == HITS)
			s ^= salt | 1;
		for (unsigned j = 0; j < DIGEST; j += 8) {
			uint64_t v = bench_random(&s);

			memcpy(out + i * DIGEST + j, &v, 8);
		}
	}
}

static pfx_namespace *open_namespace(pfx_client *c, int mode)
{
	pfx_namespace_options o = {
		.struct_size = sizeof(o),
		.key_mode = mode,
		.flags = PFX_NS_OPAQUE,
		.model = "bench",
		.revision = "1",
		.dtype = "float16",
		.layers = 1,
		.kv_heads = 1,
		.head_dim = 1,
		.block_tokens = BLOCK_TOKENS,
		.block_bytes = 64,
		.layout = "opaque",
		.tp_size = 1,
		.engine = "bench",
		.digest_len = mode == PFX_KEYS_DIGEST ? DIGEST : 0,
		.seed_probe = mode == PFX_KEYS_DIGEST ? "bench seed probe" : NULL,
		.seed_probe_len = mode == PFX_KEYS_DIGEST ? 16 : 0,
		.map = 0,
	};
	pfx_namespace *ns = NULL;

	if (pfx_open(c, &o, &ns) != PFX_OK)
		die("open", pfx_error(c));
	return ns;
}

static pfx_prompt whole(const struct world *w, const void *keys)
{
	return (pfx_prompt){ .struct_size = sizeof(pfx_prompt),
			     .tenant = w->tenant,
			     .salt = "",
			     .keys = keys,
			     .n_keys = BLOCKS,
			     .deadline_ms = 10000 };
}

static void store(struct world *w, pfx_namespace *ns, const void *keys)
{
	pfx_prompt p = whole(w, keys);
	pfx_match_result m = { .struct_size = sizeof(m) };
	pfx_reserve_result r = { .struct_size = sizeof(r) };
	pfx_commit_result c = { .struct_size = sizeof(c) };

	if (pfx_match(ns, &p, &m) != PFX_OK)
		die("match", pfx_error(w->client));
	if (m.n_device < BLOCKS &&
	    (pfx_reserve(ns, m.lease, BLOCKS - m.n_device, 10000, &r) != PFX_OK ||
	     pfx_commit(ns, m.lease, r.n, NULL, 0, 10000, &c) != PFX_OK))
		die("store", pfx_error(w->client));
	if (pfx_release(ns, m.lease, 0, 0, 10000, NULL) != PFX_OK)
		die("release", pfx_error(w->client));
}

static void redis_store(struct world *w, const uint8_t *digests)
{
	static const char *argv[1 + 2 * BLOCKS];
	static size_t lens[1 + 2 * BLOCKS];
	redisReply *reply;

	argv[0] = "MSET";
	lens[0] = 4;
	for (unsigned i = 0; i < BLOCKS; i++) {
		argv[1 + 2 * i] = (const char *)digests + i * DIGEST;
		lens[1 + 2 * i] = DIGEST;
		argv[2 + 2 * i] = "01234567"; /* where the block lies: 8 bytes */
		lens[2 + 2 * i] = 8;
	}
	reply = redisCommandArgv(w->rc, 1 + 2 * BLOCKS, argv, lens);
	if (!reply)
		die("MSET", w->rc->errstr);
	freeReplyObject(reply);
}

static void mget_append(struct world *w, const uint8_t *digests)
{
	static const char *argv[1 + BLOCKS];
	static size_t lens[1 + BLOCKS];

	argv[0] = "MGET";
	lens[0] = 4;
	for (unsigned i = 0; i < BLOCKS; i++) {
		argv[1 + i] = (const char *)digests + i * DIGEST;
		lens[1 + i] = DIGEST;
	}
	redisAppendCommandArgv(w->rc, 1 + BLOCKS, argv, lens);
}

static void mget_read(struct world *w)
{
	void *reply = NULL;
	unsigned hits = 0;

	if (redisGetReply(w->rc, &reply) != REDIS_OK)
		die("MGET", w->rc->errstr);
	for (size_t i = 0; i < ((redisReply *)reply)->elements; i++)
		hits += ((redisReply *)reply)->element[i]->type == REDIS_REPLY_STRING;
	if (hits != HITS)
		die("MGET", "wrong number of hits");
	freeReplyObject(reply);
}

/* ---- frames in flight ------------------------------------------------------------------------ */

static void raw_write(struct world *w, const uint8_t *p, size_t n)
{
	while (n) {
		ssize_t k = write(w->raw, p, n);

		if (k <= 0)
			die("write", strerror(errno));
		p += k;
		n -= (size_t)k;
	}
}

static void raw_read(struct world *w, uint8_t *p, size_t n)
{
	while (n) {
		ssize_t k = read(w->raw, p, n);

		if (k <= 0)
			die("read", k ? strerror(errno) : "the daemon closed the connection");
		p += k;
		n -= (size_t)k;
	}
}

static void raw_reply(struct world *w, uint8_t *body, uint32_t cap, struct proto_header *ret_h)
{
	uint8_t head[PROTO_HEADER_LEN];
	enum proto_status status;

	raw_read(w, head, sizeof(head));
	if (proto_header_decode(head, sizeof(head), PROTO_MAX_FRAME_DEFAULT, ret_h, &status) ||
	    ret_h->len > cap)
		die("reply", "bad header");
	raw_read(w, body, ret_h->len);
	if (ret_h->status)
		die("reply", proto_status_to_string(ret_h->status));
}

/* One frame into a buffer; its value is the frame's length. */
#define FRAME(world, into, room, opcode, name, msg)                                 \
	__extension__({                                                             \
		struct proto_writer wr_ = { .p = (into), .cap = (room) };           \
		struct proto_header h_ = { .op = (opcode),                          \
					   .seq = (world)->seq++,                   \
					   .version = (opcode) == PROTO_OP_HELLO    \
							      ? PROTO_VERSION_HELLO \
							      : PROTO_VERSION };    \
		size_t at_ = proto_frame_begin(&wr_);                               \
		proto_##name##_encode(&wr_, (msg));                                 \
		if (proto_frame_end(&wr_, at_, &h_))                                \
			die("encode", #name);                                       \
		wr_.len;                                                            \
	})

static size_t match_frame(struct world *w, uint8_t *buf, size_t cap, uint32_t ns, const void *keys,
			  uint32_t len)
{
	struct proto_match_req m = { .has = PROTO_HAS_ALL,
				     .ns = ns,
				     .tenant = w->tenant,
				     .n_tokens = BLOCKS * BLOCK_TOKENS,
				     .keys = { keys, len } };

	return FRAME(w, buf, cap, PROTO_OP_MATCH, match_req, &m);
}

static uint32_t raw_open(struct world *w, int mode)
{
	static uint8_t buf[4096];
	struct proto_open_req o = {
		.key_mode = (uint8_t)mode,
		.flags = PROTO_OPEN_OPAQUE,
		.model = { "bench", 5 },
		.revision = { "1", 1 },
		.dtype = { "float16", 7 },
		.layers = 1,
		.kv_heads = 1,
		.head_dim = 1,
		.block_tokens = BLOCK_TOKENS,
		.block_bytes = 64,
		.layout = { "opaque", 6 },
		.tp_size = 1,
		.engine = { "bench", 5 },
		.digest_len = mode == PROTO_KEYS_DIGEST ? DIGEST : 0,
		.seed_probe = { "bench seed probe", mode == PROTO_KEYS_DIGEST ? 16 : 0 },
	};
	struct proto_header h;
	struct proto_open_rep rep;
	const char *bad;

	raw_write(w, buf, FRAME(w, buf, sizeof(buf), PROTO_OP_OPEN, open_req, &o));
	raw_reply(w, buf, sizeof(buf), &h);
	if (proto_open_rep_decode(buf, h.len, &rep, &bad))
		die("open", bad);
	return rep.ns;
}

static void raw_connect(struct world *w)
{
	static uint8_t buf[70000];
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	struct proto_hello_req hello = { .version_min = PROTO_VERSION,
					 .version_max = PROTO_VERSION,
					 .self_test = proto_self_test(PROTO_VERSION),
					 .instance = { "bench in flight" },
					 .name = { "bench", 5 } };
	struct proto_header h;

	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", w->prefixd.socket);
	w->raw = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (connect(w->raw, (struct sockaddr *)&addr, sizeof(addr)))
		die("connect", strerror(errno));
	raw_write(w, buf, FRAME(w, buf, sizeof(buf), PROTO_OP_HELLO, hello_req, &hello));
	raw_reply(w, buf, sizeof(buf), &h);
	w->raw_ns[0] = raw_open(w, PROTO_KEYS_TOKENS);
	w->raw_ns[1] = raw_open(w, PROTO_KEYS_DIGEST);
}

/* DEPTH MATCHes at once; returns ns per request.  The leases are given back untimed. */
static double in_flight(struct world *w, bool digests, uint8_t *const frames[], const size_t lens[])
{
	static uint8_t reply[70000], release[DEPTH][128];
	uint64_t leases[DEPTH];
	size_t release_len = 0;
	uint64_t t0 = bench_now_ns();
	double took;

	for (unsigned i = 0; i < DEPTH; i++)
		raw_write(w, frames[i], lens[i]);
	for (unsigned i = 0; i < DEPTH; i++) {
		struct proto_header h;
		struct proto_match_rep m;
		const char *bad;

		raw_reply(w, reply, sizeof(reply), &h);
		if (proto_match_rep_decode(reply, h.len, &m, &bad) || m.n_device != HITS)
			die("match in flight", digests ? "digests" : "tokens");
		leases[i] = m.lease;
	}
	took = (double)(bench_now_ns() - t0) / DEPTH;
	for (unsigned i = 0; i < DEPTH; i++) {
		struct proto_release_req r = { .lease = leases[i] };

		release_len = FRAME(w, release[i], sizeof(release[i]), PROTO_OP_RELEASE,
				    release_req, &r);
		raw_write(w, release[i], release_len);
	}
	for (unsigned i = 0; i < DEPTH; i++) {
		struct proto_header h;

		raw_reply(w, reply, sizeof(reply), &h);
	}
	return took;
}

/* ---- timed kinds ----------------------------------------------------------------------------- */

enum kind {
	K_MGET,
	K_DIGESTS,
	K_TOKENS,
	K_MGET16,
	K_DIGESTS16,
	K_TOKENS16,
	K_EXTEND,
	N_KINDS
};

static double one_match(struct world *w, pfx_namespace *ns, const void *keys)
{
	pfx_prompt p = whole(w, keys);
	pfx_match_result m = { .struct_size = sizeof(m) };
	uint64_t t0 = bench_now_ns();
	int r = pfx_match(ns, &p, &m);
	double took = (double)(bench_now_ns() - t0);

	if (r != PFX_OK || m.n_device != HITS)
		die("match", r ? pfx_error(w->client) : "wrong number of hits");
	if (pfx_release(ns, m.lease, 0, 0, 0, NULL) != PFX_OK)
		die("release", pfx_error(w->client));
	return took;
}

/* A lease on all but the last turn (20 blocks), then EXTEND by that turn. */
static double one_extend(struct world *w, const uint32_t *tokens)
{
	pfx_prompt p = whole(w, tokens), more;
	pfx_match_result m = { .struct_size = sizeof(m) };
	double took;
	uint64_t t0;

	p.n_keys = HITS - 20;
	if (pfx_match(w->tokens, &p, &m) != PFX_OK)
		die("match", pfx_error(w->client));
	more = whole(w, tokens + (HITS - 20) * BLOCK_TOKENS);
	more.n_keys = 20;
	more.n_tokens = HITS * BLOCK_TOKENS;
	uint64_t lease = m.lease;

	t0 = bench_now_ns();
	if (pfx_extend(w->tokens, lease, &more, &m) != PFX_OK || m.n_device != 20)
		die("extend", pfx_error(w->client));
	took = (double)(bench_now_ns() - t0);
	(void)pfx_release(w->tokens, lease, 0, 0, 0, NULL);
	return took;
}

static double timed(struct world *w, enum kind kind)
{
	static uint32_t tokens[DEPTH][BLOCKS * BLOCK_TOKENS];
	static uint8_t digests[DEPTH][BLOCKS * DIGEST];
	static uint8_t frames[DEPTH][BLOCKS * BLOCK_TOKENS * 4 + 256];
	uint8_t *pointers[DEPTH];
	size_t lens[DEPTH];
	unsigned n = kind == K_MGET16 || kind == K_DIGESTS16 || kind == K_TOKENS16 ? DEPTH : 1;
	uint64_t t0;

	for (unsigned i = 0; i < n; i++) {
		unsigned p = (unsigned)(bench_random(&w->rng) % w->n_prompts);
		uint64_t tail = bench_random(&w->rng);

		prompt_tokens(p, true, tail, tokens[i]);
		prompt_digests(p, true, tail, digests[i]);
		pointers[i] = frames[i];
		lens[i] = kind == K_TOKENS16
				  ? match_frame(w, frames[i], sizeof(frames[i]), w->raw_ns[0],
						tokens[i], sizeof(tokens[i]))
				  : match_frame(w, frames[i], sizeof(frames[i]), w->raw_ns[1],
						digests[i], sizeof(digests[i]));
	}
	switch (kind) {
	case K_DIGESTS:
		return one_match(w, w->digests, digests[0]);
	case K_TOKENS:
		return one_match(w, w->tokens, tokens[0]);
	case K_EXTEND:
		return one_extend(w, tokens[0]);
	case K_DIGESTS16:
	case K_TOKENS16:
		return in_flight(w, kind == K_DIGESTS16, pointers, lens);
	case K_MGET:
	case K_MGET16:
	case N_KINDS:
	default:
		t0 = bench_now_ns();
		for (unsigned i = 0; i < n; i++)
			mget_append(w, digests[i]);
		for (unsigned i = 0; i < n; i++)
			mget_read(w);
		return (double)(bench_now_ns() - t0) / n;
	}
}

struct row {
	const char *name;
	enum kind kind, peer;
	bool two_cpus;
	double gate; /* the least ratio that passes */
};

static const struct row rows[] = {
	{ "one client, same CPU, digests", K_DIGESTS, K_MGET, false, 4 },
	{ "one client, same CPU, tokens", K_TOKENS, K_MGET, false, 4 },
	{ "16 in flight, digests", K_DIGESTS16, K_MGET16, false, 4 },
	{ "16 in flight, tokens", K_TOKENS16, K_MGET16, false, 4 },
	{ "EXTEND by 20 blocks, against MATCH of all", K_EXTEND, K_TOKENS, false, 1 },
	{ "one client, two CPUs, digests", K_DIGESTS, K_MGET, true, 0 },
	{ "one client, two CPUs, tokens", K_TOKENS, K_MGET, true, 0 },
};

static void measure(struct world *w, bool two_cpus, unsigned rounds, double out[N_KINDS])
{
	static double v[N_KINDS][256];
	double in_round[PER_ROUND];
	int client_cpu = two_cpus && bench_n_cpus() > 1 ? 1 : 0;

	bench_pin(0, client_cpu);
	for (unsigned r = 0; r < rounds; r++) {
		for (unsigned k = 0; k < N_KINDS; k++) {
			for (unsigned i = 0; i < PER_ROUND; i++)
				in_round[i] = timed(w, k);
			v[k][r] = bench_median(in_round, PER_ROUND);
		}
	}
	for (unsigned k = 0; k < N_KINDS; k++)
		out[k] = bench_median(v[k], rounds) / 1000;
}

static void fill(struct world *w)
{
	static uint32_t tokens[BLOCKS * BLOCK_TOKENS];
	static uint8_t digests[BLOCKS * DIGEST];

	for (unsigned p = 0; p < w->n_prompts; p++) {
		prompt_tokens(p, false, 0, tokens);
		prompt_digests(p, false, 0, digests);
		store(w, w->tokens, tokens);
		store(w, w->digests, digests);
		redis_store(w, digests);
	}
}

static void start(struct world *w, unsigned n_blocks)
{
	char pool[32];
	int r;

	snprintf(pool, sizeof(pool), "%u", 2 * n_blocks + 4 * BLOCKS);
	r = bench_prefixd_start(&w->prefixd, pool, NULL, 0);
	if (r < 0)
		die("prefixd", strerror(-r));
	r = bench_redis_start(&w->redis, 0);
	if (r < 0)
		die("redis-server (apt-get install redis-server)", strerror(-r));
	w->rc = redisConnectUnix(w->redis.socket);
	if (!w->rc || w->rc->err)
		die("redis", w->rc ? w->rc->errstr : NULL);
	pfx_connect_options o = { .struct_size = sizeof(o),
				  .socket = w->prefixd.socket,
				  .name = "bench",
				  .deadline_ms = 60000 };

	if (pfx_connect(&o, &w->client) != PFX_OK)
		die("connect", w->client ? pfx_error(w->client) : NULL);
	if (pfx_tenant(w->client, "default", &w->tenant) != PFX_OK)
		die("tenant", pfx_error(w->client));
	w->tokens = open_namespace(w->client, PFX_KEYS_TOKENS);
	w->digests = open_namespace(w->client, PFX_KEYS_DIGEST);
	raw_connect(w);
}

int main(int argc, char **argv)
{
	bool large = argc > 1 && !strcmp(argv[1], "--large");
	struct world w = { .n_prompts = large ? 8000 : 2000, .rng = 42 };
	unsigned rounds = large ? 41 : 15;
	double us[2][N_KINDS];
	int rc = 0;

	start(&w, w.n_prompts * BLOCKS);
	fill(&w);
	printf("%u blocks in each index; a prompt of 8192 tokens, 512 blocks, 448 of them stored\n",
	       w.n_prompts * BLOCKS);
	measure(&w, false, rounds, us[0]);
	measure(&w, true, rounds, us[1]);
	printf("%-44s %10s %10s %8s\n", "", "prefixd us", "peer us", "ratio");
	for (unsigned i = 0; i < radix_array_size(rows); i++) {
		const double *t = us[rows[i].two_cpus];
		double ratio = t[rows[i].peer] / t[rows[i].kind];

		printf("%-44s %10.1f %10.1f %7.1fx%s\n", rows[i].name, t[rows[i].kind],
		       t[rows[i].peer], ratio, ratio < rows[i].gate ? "  BELOW THE GATE" : "");
		rc |= ratio < rows[i].gate;
	}
	pfx_close(w.client);
	close(w.raw);
	redisFree(w.rc);
	bench_server_stop(&w.prefixd);
	bench_server_stop(&w.redis);
	return rc;
}
