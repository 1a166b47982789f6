/*
 * admin_explain.c - EXPLAIN on behalf of an operator.
 *
 * The question goes through the engine like a worker's, as frames of a session of the shell's own
 * that counts as an admin peer: so there is one place that explains, and operators see in addition
 * what is stored.  The session lasts for one question.
 */
#include "daemon/admin_internal.h"

#include <stdlib.h>

/* The question, as EXPLAIN wants it. */
struct question {
	struct prefixd_namespace_info ns;
	uint32_t tenant;
	uint8_t salt[PROTO_SALT_MAX];
	uint32_t salt_len;
	uint8_t *keys; /* owned */
	size_t keys_len;
	uint32_t *tail; /* owned */
	uint32_t n_tail;
	uint64_t n_tokens;
};

/* ---- arguments ------------------------------------------------------------------------------- */

/* Return: bytes, or -1 when the text is not hex of at most `max` bytes. */
static int hex_parse(const char *text, uint8_t *out, size_t max)
{
	size_t len = strlen(text);

	if (len % 2 || len / 2 > max)
		return -1;
	for (size_t i = 0; i < len; i++) {
		const char *digits = "0123456789abcdef";
		const char *p = text[i] ? strchr(digits, text[i] | 0x20) : NULL;

		if (!p || (text[i] >= 'A' && text[i] <= 'Z' && text[i] > 'F'))
			return -1;
		out[i / 2] = (uint8_t)(out[i / 2] << 4 | (uint8_t)(p - digits));
	}
	return (int)(len / 2);
}

static bool tenant_read(struct prefixd_server *s, const json_t *args, struct question *q,
			struct prefixd_admin_reply *r)
{
	const json_t *j = json_object_get(args, "tenant");

	if (!j)
		return true; /* the first one */
	if (json_is_string(j))
		for (uint32_t i = 0; i < s->n_tenants; i++)
			if (strcmp(s->tenants[i].name, json_string_value(j)) == 0) {
				q->tenant = i;
				return true;
			}
	prefixd_admin_refuse(r, "tenant", "there is no such tenant");
	return false;
}

static bool salt_read(const json_t *args, struct question *q, struct prefixd_admin_reply *r)
{
	const json_t *text = json_object_get(args, "salt"),
		     *hex = json_object_get(args, "salt_hex");
	int n = 0;

	if (text && !hex && json_is_string(text) && json_string_length(text) <= sizeof(q->salt)) {
		q->salt_len = (uint32_t)json_string_length(text);
		memcpy(q->salt, json_string_value(text), q->salt_len);
		return true;
	}
	if (hex && !text && json_is_string(hex))
		n = hex_parse(json_string_value(hex), q->salt, sizeof(q->salt));
	else if (hex || text)
		n = -1;
	if (n < 0) {
		prefixd_admin_refuse(r, text ? "salt" : "salt_hex",
				     "give either salt (text) or salt_hex, at most %u bytes",
				     PROTO_SALT_MAX);
		return false;
	}
	q->salt_len = (uint32_t)n;
	return true;
}

/* Token ids: full blocks become keys (an extra content digest, where keys have one, is zero). */
static bool tokens_read(const json_t *list, struct question *q, struct prefixd_admin_reply *r)
{
	size_t n = json_array_size(list), per = q->ns.block_tokens, n_keys = n / per;

	q->keys = calloc(n_keys + 1, q->ns.key_len);
	q->tail = calloc(per, sizeof(*q->tail));
	if (!q->keys || !q->tail) {
		r->failed = true;
		return false;
	}
	for (size_t i = 0; i < n; i++) {
		const json_t *j = json_array_get(list, i);
		uint32_t token;

		if (!json_is_integer(j) || json_integer_value(j) < 0 ||
		    json_integer_value(j) > UINT32_MAX) {
			prefixd_admin_refuse(r, "tokens",
					     "token %zu is not a number from 0 to 2^32-1", i);
			return false;
		}
		token = (uint32_t)json_integer_value(j);
		if (i / per < n_keys)
			memcpy(q->keys + i / per * q->ns.key_len + i % per * sizeof(token), &token,
			       sizeof(token));
		else
			q->tail[q->n_tail++] = token;
	}
	q->keys_len = n_keys * q->ns.key_len;
	q->n_tokens = n;
	return true;
}

static bool digests_read(const json_t *list, struct question *q, struct prefixd_admin_reply *r)
{
	size_t n = json_array_size(list), len = q->ns.key_len;

	q->keys = calloc(n + 1, len);
	if (!q->keys) {
		r->failed = true;
		return false;
	}
	for (size_t i = 0; i < n; i++) {
		const char *text = json_string_value(json_array_get(list, i));

		if (!text || hex_parse(text, q->keys + i * len, len) != (int)len) {
			prefixd_admin_refuse(r, "digests",
					     "digest %zu does not have %zu hex digits", i, 2 * len);
			return false;
		}
	}
	q->keys_len = n * len;
	q->n_tokens = (uint64_t)n * q->ns.block_tokens;
	return true;
}

static bool question_read(struct prefixd_server *s, const json_t *args, struct question *q,
			  struct prefixd_admin_reply *r)
{
	const json_t *tokens = json_object_get(args, "tokens");
	const json_t *digests = json_object_get(args, "digests");
	bool by_tokens;

	if (!prefixd_admin_arg_namespace(s, args, &q->ns, r) || !tenant_read(s, args, q, r) ||
	    !salt_read(args, q, r))
		return false;
	by_tokens = q->ns.mode == RADIX_KEYS_TOKENS;
	if (!json_is_array(by_tokens ? tokens : digests) || (by_tokens ? digests : tokens)) {
		prefixd_admin_refuse(
			r, by_tokens ? "tokens" : "digests",
			"the keys of namespace %u are %s: give an array of them, no %s", q->ns.id,
			by_tokens ? "tokens" : "digests", by_tokens ? "digests" : "tokens");
		return false;
	}
	return by_tokens ? tokens_read(tokens, q, r) : digests_read(digests, q, r);
}

/* ---- frames ---------------------------------------------------------------------------------- */

/* One request of the internal session; what the engine answers is in s->capture. */
static void ask(struct prefixd_client *c, uint16_t op, const uint8_t *body, size_t len)
{
	struct proto_header h = {
		.magic = PROTO_MAGIC,
		.version = op == PROTO_OP_HELLO ? PROTO_VERSION_HELLO : PROTO_VERSION,
		.op = op,
		.len = (uint32_t)len,
	};
	struct prefixd_event event = { .type = PREFIXD_EVENT_FRAME, .session = c->session };

	event.u.frame.header = &h;
	event.u.frame.body = body;
	c->server->capture.len = 0;
	prefixd_server_step(c->server, &event);
}

/* The captured reply.  Return: its body when it is OK, else NULL and the reply is refused. */
static const uint8_t *answer(struct prefixd_server *s, struct prefixd_admin_reply *r,
			     uint32_t *ret_len)
{
	const struct prefixd_capture *cap = &s->capture;
	enum proto_status status = PROTO_STATUS_OK;
	struct proto_header h;
	struct proto_error error;
	const char *bad_field;

	if (proto_header_decode(cap->bytes, cap->len, PROTO_MAX_FRAME_LIMIT, &h, &status) != 0 ||
	    cap->len < PROTO_HEADER_LEN + (size_t)h.len) {
		prefixd_admin_refuse(r, NULL, "the engine did not answer");
		return NULL;
	}
	if (h.status == PROTO_STATUS_OK) {
		*ret_len = h.len;
		return cap->bytes + PROTO_HEADER_LEN;
	}
	if (proto_error_decode(cap->bytes + PROTO_HEADER_LEN, h.len, &error, &bad_field) != 0)
		prefixd_admin_refuse(r, NULL, "%s", proto_status_to_string(h.status));
	else
		prefixd_admin_refuse(r, NULL, "%s: %.*s", proto_status_to_string(h.status),
				     (int)error.text.n, (const char *)error.text.p);
	return NULL;
}

static bool say_hello(struct prefixd_client *c, struct prefixd_admin_reply *r)
{
	struct proto_hello_req hello = { .version_min = PROTO_VERSION,
					 .version_max = PROTO_VERSION,
					 .self_test = proto_self_test(PROTO_VERSION),
					 .name = { .p = "explain", .n = 7 } };
	uint8_t body[256];
	struct proto_writer w = { .p = body, .cap = sizeof(body) };
	uint32_t len;

	if (prefixd_random(&hello.instance, sizeof(hello.instance)) < 0) {
		prefixd_admin_refuse(r, NULL, "no random bytes");
		return false;
	}
	proto_hello_req_encode(&w, &hello);
	radix_assert(proto_writer_ok(&w));
	ask(c, PROTO_OP_HELLO, body, w.len);
	return answer(c->server, r, &len) != NULL;
}

static void explain_put(const struct question *q, const struct proto_explain_rep *rep,
			struct prefixd_admin_reply *r)
{
	char text[513];

	memcpy(text, rep->text.p, rep->text.n);
	text[rep->text.n] = '\0';
	prefixd_admin_put_u64(r, r->root, "ns", q->ns.id);
	prefixd_admin_put_u64(r, r->root, "matched_tokens", rep->matched_tokens);
	prefixd_admin_put_u64(r, r->root, "position", rep->position);
	prefixd_admin_put_text(r, r->root, "reason", proto_reason_to_string(rep->reason));
	if (rep->has_tokens & 1)
		prefixd_admin_put_u64(r, r->root, "own_token", rep->own_token);
	if (rep->has_tokens & 2)
		prefixd_admin_put_u64(r, r->root, "stored_token", rep->stored_token);
	prefixd_admin_put_u64(r, r->root, "lost_tokens", rep->lost_tokens);
	prefixd_admin_put_text(r, r->root, "text", text);
}

static void explain(struct prefixd_client *c, const struct question *q,
		    struct prefixd_admin_reply *r)
{
	struct proto_explain_req req = {
		.has = PROTO_HAS_ALL,
		.ns = q->ns.id,
		.tenant = q->tenant,
		.salt = { .p = q->salt, .n = q->salt_len },
		.n_tokens = q->n_tokens,
		.keys = { .p = q->keys, .n = (uint32_t)q->keys_len },
		.tail = { .p = q->tail, .n = q->n_tail * (uint32_t)sizeof(uint32_t) },
	};
	size_t cap = q->keys_len + req.tail.n + 1024;
	uint8_t *body = malloc(cap);
	struct proto_writer w = { .p = body, .cap = cap };
	struct proto_explain_rep rep;
	const char *bad_field;
	const uint8_t *bytes;
	uint32_t len = 0;

	if (!body) {
		r->failed = true;
		return;
	}
	proto_explain_req_encode(&w, &req);
	if (!proto_writer_ok(&w)) {
		prefixd_admin_refuse(r, "tokens", "the prompt is too long");
	} else if (say_hello(c, r)) {
		ask(c, PROTO_OP_EXPLAIN, body, w.len);
		bytes = answer(c->server, r, &len);
		if (bytes && proto_explain_rep_decode(bytes, len, &rep, &bad_field) == 0)
			explain_put(q, &rep, r);
		else if (bytes)
			prefixd_admin_refuse(r, NULL, "the engine's answer does not decode");
	}
	free(body);
}

void prefixd_admin_explain(struct prefixd_server *s, const json_t *args,
			   struct prefixd_admin_reply *r)
{
	struct question q = { 0 };
	struct prefixd_client *c;

	if (question_read(s, args, &q, r)) {
		c = prefixd_client_internal(s);
		if (c) {
			explain(c, &q, r);
			prefixd_client_internal_end(c);
		} else {
			r->failed = true;
		}
	}
	free(q.keys);
	free(q.tail);
}
