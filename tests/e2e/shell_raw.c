/*
 * shell_raw.c - see shell_raw.h.
 */
#include "tests/e2e/shell_raw.h"

#include <check.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define WAIT_MS 10000

void raw_connect(struct raw *r, const char *path)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };

	memset(r, 0, sizeof(*r));
	r->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	ck_assert_int_ge(r->fd, 0);
	ck_assert_uint_lt(strlen(path), sizeof(addr.sun_path));
	memcpy(addr.sun_path, path, strlen(path));
	ck_assert_msg(connect(r->fd, (struct sockaddr *)&addr, sizeof(addr)) == 0, "%s: %s", path,
		      strerror(errno));
}

void raw_close(struct raw *r)
{
	for (uint32_t i = 0; i < r->n_fds; i++)
		close(r->fds[i]);
	if (r->fd >= 0)
		close(r->fd);
	free(r->body);
	memset(r, 0, sizeof(*r));
	r->fd = -1;
}

bool raw_write(struct raw *r, const void *bytes, size_t len)
{
	const uint8_t *p = bytes;

	while (len > 0) {
		ssize_t n = send(r->fd, p, len, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return false;
		p += n;
		len -= (size_t)n;
	}
	return true;
}

size_t raw_frame(struct raw *r, uint8_t *out, uint16_t op, const void *body, size_t len)
{
	struct proto_header h = { .magic = PROTO_MAGIC,
				  .version = r->version ? r->version : PROTO_VERSION_HELLO,
				  .op = op,
				  .len = (uint32_t)len,
				  .seq = ++r->seq };

	proto_header_encode(&h, out);
	if (len > 0)
		memcpy(out + PROTO_HEADER_LEN, body, len);
	return PROTO_HEADER_LEN + len;
}

static void fds_take(struct raw *r, struct msghdr *msg)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		ck_assert_uint_le(r->n_fds + n, radix_array_size(r->fds));
		memcpy(r->fds + r->n_fds, CMSG_DATA(c), n * sizeof(int));
		r->n_fds += (uint32_t)n;
	}
}

/* Exactly len bytes and what descriptors come with them. */
static bool read_all(struct raw *r, void *out, size_t len)
{
	uint8_t *p = out;

	while (len > 0) {
		union {
			char buf[CMSG_SPACE(sizeof(int) * 8)];
			struct cmsghdr align;
		} control;
		struct iovec iov = { .iov_base = p, .iov_len = len };
		struct msghdr msg = { .msg_iov = &iov,
				      .msg_iovlen = 1,
				      .msg_control = control.buf,
				      .msg_controllen = sizeof(control.buf) };
		struct pollfd pfd = { .fd = r->fd, .events = POLLIN };
		ssize_t n;

		ck_assert_msg(poll(&pfd, 1, WAIT_MS) > 0, "no answer in %d ms", WAIT_MS);
		n = recvmsg(r->fd, &msg, MSG_CMSG_CLOEXEC);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		ck_assert_int_eq(msg.msg_flags & MSG_CTRUNC, 0);
		fds_take(r, &msg);
		p += n;
		len -= (size_t)n;
	}
	return true;
}

bool raw_read(struct raw *r)
{
	uint8_t header[PROTO_HEADER_LEN];
	enum proto_status status;

	r->n_fds = 0;
	if (!read_all(r, header, sizeof(header)))
		return false;
	ck_assert_int_eq(
		proto_header_decode(header, sizeof(header), PROTO_MAX_FRAME_LIMIT, &r->h, &status),
		0);
	if (r->cap < (size_t)r->h.len + 1) {
		r->cap = (size_t)r->h.len + 1;
		r->body = realloc(r->body, r->cap);
		ck_assert_ptr_nonnull(r->body);
	}
	r->body[r->h.len] = '\0';
	if (!read_all(r, r->body, r->h.len))
		return false;
	if (r->h.op == PROTO_OP_HELLO && r->h.status == PROTO_STATUS_OK)
		r->version = (uint16_t)proto_body_version(&r->h, r->body, true);
	return true;
}

bool raw_call(struct raw *r, uint16_t op, const void *body, size_t len)
{
	uint8_t *frame = malloc(PROTO_HEADER_LEN + len);
	bool ok;

	ck_assert_ptr_nonnull(frame);
	raw_frame(r, frame, op, body, len);
	ok = raw_write(r, frame, PROTO_HEADER_LEN + len) && raw_read(r);
	free(frame);
	if (ok) {
		ck_assert_uint_eq(r->h.seq, r->seq);
		ck_assert_uint_eq(r->h.op, op);
	}
	return ok;
}

void raw_hello(struct raw *r)
{
	struct proto_hello_req m = { .version_min = PROTO_VERSION,
				     .version_max = PROTO_VERSION,
				     .self_test = proto_self_test(PROTO_VERSION),
				     .instance = { .b = { 1, 2, 3 } },
				     .name = { .p = "raw", .n = 3 } };
	uint8_t body[256];
	struct proto_writer w = { .p = body, .cap = sizeof(body) };

	proto_hello_req_encode(&w, &m);
	ck_assert(proto_writer_ok(&w));
	ck_assert(raw_call(r, PROTO_OP_HELLO, body, w.len));
	ck_assert_uint_eq(r->h.status, PROTO_STATUS_OK);
}

struct proto_open_rep raw_open(struct raw *r, const char *model, uint64_t block_bytes)
{
	return raw_open_with(r, model, block_bytes, 0);
}

struct proto_open_rep raw_open_with(struct raw *r, const char *model, uint64_t block_bytes,
				    uint32_t flags)
{
	struct proto_open_req m = { .key_mode = PROTO_KEYS_TOKENS,
				    .flags = PROTO_OPEN_OPAQUE | flags,
				    .model = { .p = model, .n = (uint32_t)strlen(model) },
				    .revision = { .p = "r1", .n = 2 },
				    .dtype = { .p = "float16", .n = 7 },
				    .layers = 1,
				    .kv_heads = 1,
				    .head_dim = 64,
				    .block_tokens = 16,
				    .block_bytes = block_bytes,
				    .layout = { .p = "opaque", .n = 6 },
				    .tp_size = 1,
				    .engine = { .p = "raw", .n = 3 } };
	struct proto_open_rep rep;
	uint8_t body[1024];
	struct proto_writer w = { .p = body, .cap = sizeof(body) };
	const char *bad;

	proto_open_req_encode(&w, &m);
	ck_assert(proto_writer_ok(&w));
	ck_assert(raw_call(r, PROTO_OP_OPEN, body, w.len));
	ck_assert_msg(r->h.status == PROTO_STATUS_OK, "OPEN: %s",
		      proto_status_to_string(r->h.status));
	ck_assert_int_eq(proto_open_rep_decode_as(r->h.version, r->body, r->h.len, &rep, &bad), 0);
	return rep;
}

const char *raw_admin(struct raw *r, const char *json)
{
	const struct proto_admin m = { .json = { .p = json, .n = (uint32_t)strlen(json) } };
	uint8_t *body = malloc(m.json.n + 64u);
	struct proto_writer w = { .p = body, .cap = m.json.n + 64u };
	struct proto_admin rep;
	const char *bad;

	ck_assert_ptr_nonnull(body);
	proto_admin_encode(&w, &m);
	ck_assert(proto_writer_ok(&w));
	ck_assert(raw_call(r, PROTO_OP_ADMIN, body, w.len));
	free(body);
	ck_assert_uint_eq(r->h.status, PROTO_STATUS_OK);
	ck_assert_int_eq(proto_admin_decode(r->body, r->h.len, &rep, &bad), 0);
	return rep.json.p; /* ends with the 0 that raw_read put behind the body */
}
