/*
 * fake.c - see fake.h.
 */
#include "tests/e2e/fake.h"

#include "tests/e2e/harness.h"

#include <check.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define PATIENCE_MS 20000

bool fake_expect(struct fake *f, bool ok, const char *what)
{
	if (!ok && !f->why[0] && !f->ended)
		(void)snprintf(f->why, sizeof(f->why), "%s", what);
	return ok;
}

static void *thread_main(void *arg)
{
	struct fake *f = arg;

	f->serve(f);
	return NULL;
}

void fake_start(struct fake *f, void (*serve)(struct fake *f))
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };

	(void)snprintf(f->dir, sizeof(f->dir), "/tmp/prefixd-fake-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(f->dir));
	(void)snprintf(f->path, sizeof(f->path), "%s/sock", f->dir);
	(void)snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", f->path);
	f->fd = -1;
	f->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	ck_assert_int_ge(f->listen_fd, 0);
	ck_assert_int_eq(bind(f->listen_fd, (const struct sockaddr *)&sa, sizeof(sa)), 0);
	ck_assert_int_eq(listen(f->listen_fd, 16), 0);
	memset(&f->boot, 0xb0, sizeof(f->boot));
	memset(&f->pool_id, 0x70, sizeof(f->pool_id));
	if (!f->speaks)
		f->speaks = PROTO_VERSION;
	if (!f->max_frame)
		f->max_frame = PROTO_MAX_FRAME_DEFAULT;
	if (!f->max_keys)
		f->max_keys = 65536;
	if (!f->n_slots)
		f->n_slots = 64;
	f->block_tokens = 16;
	f->block_bytes = 4096;
	ck_assert_int_eq(gpu_shm_new(&f->pool, "fake-pool", (uint64_t)f->n_slots * f->block_bytes,
				     false, false),
			 0);
	ck_assert_int_eq(
		gpu_shm_new(&f->generations, "fake-generations", f->n_slots * 8ull, false, false),
		0);
	f->serve = serve;
	ck_assert_int_eq(pthread_create(&f->thread, NULL, thread_main, f), 0);
	f->running = true;
}

void fake_stop(struct fake *f)
{
	f->ended = true;
	(void)shutdown(f->listen_fd, SHUT_RDWR);
	fake_step_set(f, 1000);
	ck_assert_int_eq(pthread_join(f->thread, NULL), 0);
	if (f->fd >= 0)
		close(f->fd);
	close(f->listen_fd);
	(void)unlink(f->path);
	(void)rmdir(f->dir);
	gpu_shm_free(&f->pool);
	gpu_shm_free(&f->generations);
	ck_assert_msg(!f->why[0], "the daemon's side: %s", f->why);
}

void fake_step_set(struct fake *f, unsigned step)
{
	atomic_store(&f->step, step);
}

void fake_step_wait(struct fake *f, unsigned step)
{
	unsigned long end = e2e_now_ms() + PATIENCE_MS;

	while (atomic_load(&f->step) < step && e2e_now_ms() < end)
		e2e_sleep_ms(1);
}

bool fake_accept(struct fake *f)
{
	if (f->fd >= 0)
		close(f->fd);
	f->fd = accept4(f->listen_fd, NULL, NULL, SOCK_CLOEXEC);
	if (!fake_expect(f, f->fd >= 0, "a client connects"))
		return false;
	f->version = PROTO_VERSION_HELLO;
	atomic_fetch_add(&f->n_accepted, 1);
	return true;
}

static bool read_all(struct fake *f, void *p, size_t n)
{
	size_t done = 0;

	while (done < n) {
		struct pollfd pfd = { .fd = f->fd, .events = POLLIN };
		ssize_t r = poll(&pfd, 1, PATIENCE_MS) > 0
				    ? read(f->fd, (uint8_t *)p + done, n - done)
				    : -1;

		if (r <= 0)
			return false;
		done += (size_t)r;
	}
	return true;
}

bool fake_receive(struct fake *f)
{
	enum proto_status status;
	uint8_t raw[PROTO_HEADER_LEN];

	if (!read_all(f, raw, sizeof(raw)))
		return false;
	if (!fake_expect(
		    f, proto_header_decode(raw, sizeof(raw), sizeof(f->body), &f->h, &status) == 0,
		    "the client sends good headers"))
		return false;
	return read_all(f, f->body, f->h.len) &&
	       fake_expect(f, f->h.version == f->version, "frames are of the version agreed on");
}

bool fake_receive_op(struct fake *f, int op)
{
	char what[64];

	(void)snprintf(what, sizeof(what), "the client sends %s", proto_op_to_string((uint16_t)op));
	return fake_expect(f, fake_receive(f) && f->h.op == op, what);
}

static bool send_once(struct fake *f, const void *p, size_t n, const int *fds, uint32_t n_fds)
{
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(16 * sizeof(int))];
	} control = { 0 };
	struct iovec iov = { (void *)(uintptr_t)p, n };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };
	ssize_t r;

	if (n_fds) {
		struct cmsghdr *c;

		m.msg_control = control.room;
		m.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
		c = CMSG_FIRSTHDR(&m);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
		memcpy(CMSG_DATA(c), fds, n_fds * sizeof(int));
	}
	r = sendmsg(f->fd, &m, MSG_NOSIGNAL);
	return r == (ssize_t)n;
}

bool fake_send(struct fake *f, const void *p, size_t n, const int *fds, uint32_t n_fds)
{
	if (!f->split)
		return send_once(f, p, n, fds, n_fds);
	for (size_t i = 0; i < n; i++) {
		if (!send_once(f, (const uint8_t *)p + i, 1, fds, i == 0 ? n_fds : 0))
			return false;
	}
	return true;
}

struct proto_writer *fake_reply_begin(struct fake *f, struct fake_reply *r)
{
	r->h = (struct proto_header){
		.version = f->version, .op = f->h.op, .seq = f->h.seq, .boot = f->boot
	};
	r->w = (struct proto_writer){ .p = r->bytes, .cap = sizeof(r->bytes) };
	(void)proto_frame_begin(&r->w); /* at 0 */
	return &r->w;
}

bool fake_reply_end(struct fake *f, struct fake_reply *r)
{
	return fake_expect(f, proto_frame_end(&r->w, 0, &r->h) == 0, "the reply encodes");
}

bool fake_reply_send(struct fake *f, struct fake_reply *r)
{
	return fake_reply_end(f, r) && fake_send(f, r->bytes, r->w.len, NULL, 0);
}

/* ---- exchanges ------------------------------------------------------------------------------- */

bool fake_answer_hello(struct fake *f)
{
	uint8_t tenants[64];
	struct proto_writer t = { .p = tenants, .cap = sizeof(tenants) };
	struct proto_hello_rep rep = {
		.session = 1,
		.max_frame = f->max_frame,
		.max_keys = f->max_keys,
		.max_namespaces = 16,
		.max_leases = 1024,
		.op_ids_kept = 1024,
		.op_ids_kept_ms = 60000,
		.daemon = { "fake", 4 },
		.tenants = { tenants, 0 },
		.n_orphans = f->n_orphans,
		.orphans_boot = f->orphans_boot,
	};
	struct proto_hello_req req;
	struct proto_id self_test;
	struct fake_reply r;
	const char *bad;

	if (!fake_expect(f, proto_hello_req_decode(f->body, f->h.len, &req, &bad) == 0,
			 "HELLO decodes"))
		return false;
	self_test = proto_self_test(req.version_min);
	if (!fake_expect(f, proto_id_equal(&req.self_test, &self_test), "the self-test is right"))
		return false;
	proto_tenant_encode(&t, 0, (struct proto_span){ "default", 7 });
	proto_tenant_encode(&t, 7, (struct proto_span){ "acme", 4 });
	rep.tenants.n = (uint32_t)t.len;
	rep.version = req.version_max < f->speaks ? req.version_max : f->speaks;
	proto_hello_rep_encode_as(fake_reply_begin(f, &r), rep.version, &rep);
	if (!fake_reply_send(f, &r))
		return false;
	f->version = rep.version;
	return true;
}

bool fake_hello(struct fake *f)
{
	return fake_accept(f) && fake_receive_op(f, PROTO_OP_HELLO) && fake_answer_hello(f);
}

bool fake_answer_open(struct fake *f)
{
	uint8_t digest[32] = { 0xd1 };
	struct proto_open_rep rep = {
		.ns = 3,
		.digest = { digest, sizeof(digest) },
		.key_len = f->block_tokens * 4,
		.block_tokens = f->block_tokens,
		.block_bytes = f->block_bytes,
		.group = 1,
		.n_slots = f->n_slots,
		.slot_stride = f->block_bytes,
		.pool_len = (uint64_t)f->n_slots * f->block_bytes,
		.n_pool_fds = 2,
		.slab_len = (uint64_t)f->n_slots * f->block_bytes,
		.n_ranks = 1,
		.flags = f->opened_flags,
		.pool = f->pool_id,
		.n_words = f->n_words,
		.cold_bytes = f->block_bytes,
	};
	int fds[3] = { f->pool.fd, f->generations.fd, f->generations.fd };
	struct fake_reply r;

	proto_open_rep_encode_as(fake_reply_begin(f, &r), f->version, &rep);
	return fake_reply_end(f, &r) && fake_send(f, r.bytes, r.w.len, fds, f->n_words ? 3 : 2);
}

bool fake_open(struct fake *f)
{
	struct proto_open_req req;
	const char *bad;

	return fake_receive_op(f, PROTO_OP_OPEN) &&
	       fake_expect(f,
			   proto_open_req_decode_as(f->version, f->body, f->h.len, &req, &bad) == 0,
			   "OPEN decodes") &&
	       fake_answer_open(f);
}

bool fake_ping(struct fake *f)
{
	struct fake_reply r;

	if (!fake_receive_op(f, PROTO_OP_PING))
		return false;
	(void)fake_reply_begin(f, &r);
	return fake_reply_send(f, &r);
}

bool fake_answer_match(struct fake *f, uint64_t lease, uint32_t start, uint32_t n_device, int more)
{
	struct radix_run run = { start, n_device };
	struct proto_match_rep rep = {
		.lease = lease,
		.n_device = n_device,
		.more = (uint8_t)more,
		.reason = PROTO_REASON_NEVER_SEEN,
		.miss_token = n_device * 16ull,
		.reuse = 5,
		.runs = { &run, n_device ? 1 : 0 },
	};
	struct fake_reply r;

	proto_match_rep_encode_as(fake_reply_begin(f, &r), f->version, &rep);
	return fake_reply_send(f, &r);
}

bool fake_answer_error(struct fake *f, int status, const char *field, const char *text,
		       uint32_t retry_after_us)
{
	struct proto_error e = { { field, (uint32_t)strlen(field) },
				 { text, (uint32_t)strlen(text) },
				 retry_after_us };
	struct fake_reply r;

	proto_error_encode(fake_reply_begin(f, &r), &e);
	r.h.status = (uint16_t)status;
	return fake_reply_send(f, &r);
}

bool fake_answer_release(struct fake *f)
{
	struct proto_release_rep rep = { .queried_tokens = 64,
					 .hit_device_tokens = 32,
					 .miss_tokens = 32 };
	struct fake_reply r;

	proto_release_rep_encode(fake_reply_begin(f, &r), &rep);
	return fake_reply_send(f, &r);
}

static bool answer_well(struct fake *f)
{
	struct radix_run run = { 2, 2 };
	struct proto_reserve_rep reserve = { 2, 2, 5, { &run, 1 } };
	struct proto_commit_rep commit = { 2, 0, 5, { &run, 1 } };
	struct proto_probe_rep probe = { .n_device = 2 };
	struct proto_quiesced_rep quiesced = { 1, 2 };
	struct proto_quiesced_req quiesced_req;
	struct proto_admin admin = { { f->admin_json, 0 } };
	struct fake_reply r;
	struct proto_writer *w = fake_reply_begin(f, &r);
	const char *bad;

	switch (f->h.op) {
	case PROTO_OP_OPEN:
		return fake_answer_open(f);
	case PROTO_OP_MATCH:
	case PROTO_OP_EXTEND:
		return fake_answer_match(f, 99, 0, 2, 0);
	case PROTO_OP_RELEASE:
		return fake_answer_release(f);
	case PROTO_OP_RESERVE:
		proto_reserve_rep_encode(w, &reserve);
		break;
	case PROTO_OP_COMMIT:
		proto_commit_rep_encode(w, &commit);
		break;
	case PROTO_OP_PROBE:
		proto_probe_rep_encode(w, &probe);
		break;
	case PROTO_OP_QUIESCED:
		if (proto_quiesced_req_decode_as(f->version, f->body, f->h.len, &quiesced_req,
						 &bad))
			return fake_expect(f, false, "QUIESCED decodes");
		f->quiesced = quiesced_req.old_boot;
		proto_quiesced_rep_encode(w, &quiesced);
		break;
	case PROTO_OP_ADMIN:
		admin.json.n = f->admin_json ? (uint32_t)strlen(f->admin_json) : 0;
		proto_admin_encode(w, &admin);
		break;
	case PROTO_OP_PING:
	case PROTO_OP_REPORT:
		break;
	default:
		return fake_expect(f, false, "an operation that this daemon knows");
	}
	return fake_reply_send(f, &r);
}

void fake_serve_well(struct fake *f)
{
	while (fake_receive(f) && answer_well(f))
		;
}
