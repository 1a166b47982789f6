/*
 * holder.c - prefixctl holder: who keeps the memory of a daemon that is gone.
 *
 * It speaks to prefixd-holder itself (proto/holder_wire.h), since what matters most is to be had
 * when there is no daemon.
 */
#include "clients/ctl/ctl.h"

#include "proto/holder_wire.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

struct holder {
	char path[sizeof(((struct sockaddr_un *)NULL)->sun_path)];
	int fd, wait_ms;
	uint64_t seq;
};

static enum ctl_exit unreachable(const struct holder *h, int err)
{
	if (err == ENOENT || err == ECONNREFUSED)
		fprintf(stderr, "prefixctl: no prefixd-holder serves %s: nothing is kept there\n",
			ctl_clean(h->path));
	else
		fprintf(stderr, "prefixctl: prefixd-holder at %s: %s\n", ctl_clean(h->path),
			err == ETIMEDOUT ? "no answer; is it stopped?" : strerror(err));
	return CTL_UNREACHABLE;
}

/* Return: 0, errno. */
static int dial(struct holder *h)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };

	h->seq = 0;
	memcpy(addr.sun_path, h->path, strlen(h->path));
	h->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (h->fd < 0)
		return errno;
	return connect(h->fd, (struct sockaddr *)(void *)&addr, sizeof(addr)) < 0 ? errno : 0;
}

/*
 * One request and its answer.  Return: 0; EPROTONOSUPPORT with the head of *ret; errno.  No
 * descriptor is asked for, and none is received.
 */
static int call(struct holder *h, struct proto_holder_frame *f, struct proto_holder_frame *ret)
{
	struct pollfd p = { .fd = h->fd, .events = POLLIN };
	uint8_t bytes[PROTO_HOLDER_LEN + 1];
	ssize_t n;
	int r;

	f->version = PROTO_HOLDER_VERSION;
	f->seq = ++h->seq;
	proto_holder_encode(f, bytes);
	if (send(h->fd, bytes, PROTO_HOLDER_LEN, MSG_NOSIGNAL) < 0)
		return errno;
	r = poll(&p, 1, h->wait_ms);
	if (r <= 0)
		return r == 0 ? ETIMEDOUT : errno;
	n = recv(h->fd, bytes, sizeof(bytes), 0);
	if (n <= 0)
		return n == 0 ? ECONNRESET : errno;
	r = proto_holder_decode(bytes, (size_t)n, ret);
	if (r == PROTO_HOLDER_E_VERSION)
		return EPROTONOSUPPORT;
	return r || ret->seq != f->seq ? EBADMSG : 0;
}

static json_t *seconds_or_null(uint64_t ns)
{
	return ns == UINT64_MAX ? json_null() : json_real((double)ns / 1e9);
}

/* When it began, by the clock on the wall. */
static json_t *since(uint64_t age_ns)
{
	time_t at = time(NULL) - (time_t)(age_ns / 1000000000u);
	char text[32] = "";
	struct tm tm;

	if (gmtime_r(&at, &tm))
		(void)strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &tm);
	return json_string(text);
}

/* All items as JSON, with their sums. */
static int list_items(struct holder *h, json_t *reply)
{
	struct proto_holder_frame f = { .op = PROTO_HOLDER_ITEM }, item;
	json_t *items = json_array();
	uint64_t size = 0, held = 0;
	int r = 0;

	for (f.index = 0; r == 0 && f.index < PROTO_HOLDER_ITEMS_MAX; f.index++) {
		r = call(h, &f, &item);
		if (r || item.status == PROTO_HOLDER_STATUS_NO_ITEM)
			break;
		size += item.size;
		held += item.held;
		(void)json_array_append_new(items, json_pack("{s:s, s:I, s:I}", "name", item.name,
							     "size", (json_int_t)item.size, "held",
							     (json_int_t)item.held));
	}
	(void)json_object_set_new(reply, "size", json_integer((json_int_t)size));
	(void)json_object_set_new(reply, "held", json_integer((json_int_t)held));
	(void)json_object_set_new(reply, "items", items);
	return r;
}

/* What `holder status` knows.  Return: 0 with *ret_reply; EPROTONOSUPPORT; errno. */
static int look(struct holder *h, json_t **ret_reply, uint32_t *ret_version)
{
	struct proto_holder_frame f = { .op = PROTO_HOLDER_HELLO }, hello = { 0 };
	json_t *reply, *daemon;
	int r = dial(h);

	(void)snprintf(f.text, sizeof(f.text), "%.31s", pfx_version());
	if (r == 0)
		r = call(h, &f, &hello);
	*ret_version = hello.version;
	if (r == 0 && hello.status == PROTO_HOLDER_STATUS_VERSION)
		r = EPROTONOSUPPORT;
	if (r == 0 && hello.status != PROTO_HOLDER_STATUS_OK)
		r = hello.status == PROTO_HOLDER_STATUS_FORBIDDEN ? EACCES : EPROTO;
	if (r)
		return r;
	daemon = hello.daemon_pid ? json_pack("{s:I, s:s}", "pid", (json_int_t)hello.daemon_pid,
					      "version", hello.name)
				  : json_null();
	reply = json_pack("{s:b, s:I, s:s, s:i, s:s, s:o, s:f, s:o, s:o, s:o}", "ok", 1, "pid",
			  (json_int_t)hello.holder_pid, "version", hello.text, "protocol",
			  (int)hello.version, "socket", h->path, "since", since(hello.age_ns),
			  "age_s", (double)hello.age_ns / 1e9, "daemon", daemon, "timeout_s",
			  seconds_or_null(hello.timeout_ns), "leaves_in_s",
			  seconds_or_null(hello.left_ns));
	if (!reply)
		return ENOMEM;
	r = list_items(h, reply);
	if (r)
		json_decref(reply);
	else
		*ret_reply = reply;
	return r;
}

static void show_status(const json_t *r)
{
	static const char *const titles[] = { "<ITEM", "SIZE", "MEMORY" };
	const json_t *daemon = json_object_get(r, "daemon"), *item;
	const json_t *items = json_object_get(r, "items");
	const json_t *left = json_object_get(r, "leaves_in_s");
	struct ctl_table t;
	size_t i;

	ctl_line("holder", "process %llu, version %s, for %s (since %s)",
		 (unsigned long long)ctl_u64(r, "pid"), ctl_str(r, "version"),
		 ctl_age(ctl_real(r, "age_s")), ctl_str(r, "since"));
	if (json_is_object(daemon))
		ctl_line("daemon", "process %llu, version %s",
			 (unsigned long long)ctl_u64(daemon, "pid"), ctl_str(daemon, "version"));
	else if (json_is_null(left))
		ctl_line("daemon", "none; it stays");
	else
		ctl_line("daemon", "none, leaves in %s", ctl_age(ctl_real(r, "leaves_in_s")));
	ctl_line("keeps", "%zu item%s, %s of memory", json_array_size(items),
		 json_array_size(items) == 1 ? "" : "s", ctl_bytes(ctl_u64(r, "held")));
	ctl_table_init(&t, titles, 3);
	json_array_foreach((json_t *)(uintptr_t)items, i, item)
	{
		const char *cells[] = { ctl_str(item, "name"), ctl_bytes(ctl_u64(item, "size")),
					ctl_bytes(ctl_u64(item, "held")) };

		ctl_table_row(&t, cells);
	}
	ctl_table_print(&t, "Items");
}

static enum ctl_exit status(struct holder *h, bool json)
{
	json_t *reply = NULL;
	uint32_t version;
	int r = look(h, &reply, &version);

	if (r == EPROTONOSUPPORT) {
		fprintf(stderr,
			"prefixctl: the prefixd-holder at %s speaks version %u of its protocol, "
			"this prefixctl %u; `prefixctl holder release` works nevertheless\n",
			ctl_clean(h->path), version, PROTO_HOLDER_VERSION);
		return CTL_ERROR;
	}
	if (r)
		return unreachable(h, r);
	if (json)
		ctl_print_json(reply);
	else
		show_status(reply);
	json_decref(reply);
	return CTL_OK;
}

/* RELEASE needs no HELLO, and is understood by every version. */
static enum ctl_exit release(struct holder *h, bool force, bool json)
{
	struct proto_holder_frame f = { .op = PROTO_HOLDER_RELEASE,
					.flags = force ? PROTO_HOLDER_FORCE : 0 },
				  answer = { 0 };
	json_t *before = NULL, *reply;
	uint32_t version;
	int r = look(h, &before, &version); /* only to say what it was that went */

	if (h->fd >= 0)
		close(h->fd);
	r = dial(h);
	if (r == 0)
		r = call(h, &f, &answer);
	if (r != 0 && (r != EPROTONOSUPPORT || answer.op != PROTO_HOLDER_RELEASE)) {
		json_decref(before);
		return unreachable(h, r);
	}
	if (answer.status == PROTO_HOLDER_STATUS_OK)
		reply = json_pack("{s:b, s:i, s:I}", "ok", 1, "items",
				  (int)json_array_size(json_object_get(before, "items")), "held",
				  (json_int_t)ctl_u64(before, "held"));
	else if (answer.status == PROTO_HOLDER_STATUS_SERVED)
		reply = json_pack(
			"{s:b, s:s, s:I}", "ok", 0, "error",
			"a daemon is served: stop it first, or add --force, and its memory "
			"will end with it",
			"daemon_pid", (json_int_t)answer.daemon_pid);
	else
		reply = json_pack("{s:b, s:s}", "ok", 0, "error",
				  proto_holder_status_to_string(answer.status));
	json_decref(before);
	if (json)
		ctl_print_json(reply);
	if (!ctl_bool(reply, "ok"))
		fprintf(stderr, "prefixctl: %s\n", ctl_str(reply, "error"));
	else if (!json)
		printf("%llu item%s given up, %s of memory\n",
		       (unsigned long long)ctl_u64(reply, "items"),
		       ctl_u64(reply, "items") == 1 ? "" : "s", ctl_bytes(ctl_u64(reply, "held")));
	r = ctl_bool(reply, "ok") ? CTL_OK : CTL_ERROR;
	json_decref(reply);
	return (enum ctl_exit)r;
}

enum ctl_exit ctl_holder(const struct ctl *ctl)
{
	bool json = ctl->values[CTL_OPT_JSON] != NULL, force = ctl->values[CTL_OPT_FORCE] != NULL;
	const char *what = ctl->operand ? ctl->operand : "status";
	struct holder h = { .fd = -1 };
	enum ctl_exit r = CTL_USAGE;
	uint32_t wait_ms;
	char *path;
	int n;

	if (!ctl_timeout(ctl, &wait_ms))
		return CTL_USAGE;
	h.wait_ms = (int)wait_ms;
	path = ctl_socket_path(ctl->values[CTL_OPT_ADMIN_SOCKET]);
	if (!path)
		return CTL_ERROR;
	n = snprintf(h.path, sizeof(h.path), "%s" PROTO_HOLDER_SUFFIX, path);
	free(path);
	if (n >= (int)sizeof(h.path))
		fputs("prefixctl: the path of the admin socket is too long for a holder\n", stderr);
	else if (strcmp(what, "release") == 0)
		r = release(&h, force, json);
	else if (strcmp(what, "status") != 0 || force)
		fputs("prefixctl: holder wants status, or release [--force]\n", stderr);
	else
		r = status(&h, json);
	if (h.fd >= 0)
		close(h.fd);
	return r;
}
