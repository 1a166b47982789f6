/*
 * keep_systemd.c - the service manager's descriptor store as a keeper.
 *
 * The protocol is that of sd_notify(3) and sd_listen_fds(3): FDSTORE=1 with a descriptor beside it
 * and FDNAME= for its name, FDSTOREREMOVE=1, BARRIER=1 with a pipe that is closed once all before
 * it was worked on; and at the start LISTEN_FDS, LISTEN_PID, LISTEN_FDNAMES.
 *
 * The manager answers nothing, so what he did is seen in pipes only: a store that is full, or none,
 * closes what it was sent, and then the other end of a pipe says so.  Before each descriptor such a
 * pipe is sent, to see whether there is room for one, and taken back.
 *
 * Ours are named "keep.NAME", or "keep.NAME@N" where N descriptors of that name came before: the
 * store replaces nothing, and there must not be a moment at which it has neither.
 */
#include "daemon/keep_internal.h"

#include "daemon/log.h"

#include <event2/event.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define PREFIX      "keep."
#define PROBE       "keep-probe"
#define FIRST_FD    3    /* of those that the manager passes on */
#define FDS_MAX     4096 /* more of them is a mistake */
#define TEXT_LEN    160
#define NAME_LEN    (sizeof(PREFIX) + PREFIXD_KEEP_NAME_MAX + 12)
#define RETRY_MS    1000u
#define STORE_WANTS 512u /* a number for the unit that is enough */

/* ---- what was passed on -------------------------------------------------------------------- */

/* Name of descriptor FIRST_FD + i, "" if it has none. */
static void passed_name(uint32_t i, char *ret, size_t len)
{
	const char *at = getenv("LISTEN_FDNAMES");
	size_t n;

	for (; at && i > 0; i--) {
		at = strchr(at, ':');
		at = at ? at + 1 : NULL;
	}
	n = at ? strcspn(at, ":") : 0;
	snprintf(ret, len, "%.*s", n < len ? (int)n : 0, at ? at : "");
}

static uint32_t passed_count(void)
{
	const char *pid = getenv("LISTEN_PID"), *n = getenv("LISTEN_FDS");
	char *end;
	unsigned long v;

	if (!pid || !n || strtoul(pid, &end, 10) != (unsigned long)getpid() || *end)
		return 0; /* not for us */
	v = strtoul(n, &end, 10);
	return *end || v > FDS_MAX ? 0 : (uint32_t)v;
}

static bool is_listener(const char *name)
{
	return strcmp(name, "prefixd") == 0 || strcmp(name, "prefixd-admin") == 0;
}

int prefixd_keep_listener(const char *name)
{
	uint32_t n = passed_count();
	char have[NAME_LEN];

	for (uint32_t i = 0; i < n; i++) {
		int fd = FIRST_FD + (int)i;

		passed_name(i, have, sizeof(have));
		if (strcmp(have, name) == 0 && fcntl(fd, F_SETFD, FD_CLOEXEC) == 0)
			return fd;
	}
	return -1;
}

static void store_name(const char *name, uint32_t number, char ret[NAME_LEN])
{
	if (number == 0)
		snprintf(ret, NAME_LEN, PREFIX "%s", name);
	else
		snprintf(ret, NAME_LEN, PREFIX "%s@%u", name, number);
}

static int store_remove(struct prefixd_keep *k, const char *full)
{
	char text[TEXT_LEN];

	snprintf(text, sizeof(text), "FDSTOREREMOVE=1\nFDNAME=%s", full);
	return prefixd_notify_send(&k->notify, text, -1, PREFIXD_KEEP_WAIT_MS);
}

/* "keep.NAME@N" into its parts; false: it is not ours. */
static bool parse_name(const char *full, char ret_name[PREFIXD_KEEP_NAME_MAX], uint32_t *ret_number)
{
	const char *name = full + strlen(PREFIX), *at;
	size_t len;
	char *end;

	if (strncmp(full, PREFIX, strlen(PREFIX)) != 0)
		return false;
	at = strchr(name, '@');
	len = at ? (size_t)(at - name) : strlen(name);
	if (len == 0 || len >= PREFIXD_KEEP_NAME_MAX)
		return false;
	memcpy(ret_name, name, len);
	ret_name[len] = '\0';
	*ret_number = at ? (uint32_t)strtoul(at + 1, &end, 10) : 0;
	return !at || (*end == '\0' && *ret_number > 0);
}

/* One of ours: the latest of its name counts. */
static void inherit_item(struct prefixd_keep *k, const char *full, int fd, bool wanted)
{
	char name[PREFIXD_KEEP_NAME_MAX], other[NAME_LEN];
	struct prefixd_keep_item *item;
	uint32_t number;

	if (!wanted || !parse_name(full, name, &number)) {
		close(fd);
		(void)store_remove(k, full); /* it would only come again */
		return;
	}
	item = prefixd_keep_find(k, name);
	if (!item) {
		if (prefixd_keep_add_found(k, name, fd, number) == 0)
			return;
		prefixd_warn("the service manager passed on \"%s\", which cannot be kept", name);
		(void)store_remove(k, full); /* likewise */
		return;
	}
	store_name(name, number < item->number ? number : item->number, other);
	(void)store_remove(k, other); /* likewise */
	if (number > item->number) {
		close(item->fd);
		item->fd = fd;
		item->number = item->first = number;
	} else {
		close(fd);
	}
}

int prefixd_keep_systemd_inherit(struct prefixd_keep *k, bool wanted, char *why, size_t why_len)
{
	uint32_t n = passed_count();
	char name[NAME_LEN];
	int r = prefixd_notify_init(&k->notify, NULL, why, why_len);

	if (r < 0)
		return r;
	for (uint32_t i = 0; i < n; i++) {
		int fd = FIRST_FD + (int)i;

		passed_name(i, name, sizeof(name));
		if (is_listener(name) || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
			continue;
		if (strncmp(name, PREFIX, strlen(PREFIX)) == 0) {
			inherit_item(k, name, fd, wanted);
			continue;
		}
		if (strcmp(name, PROBE) == 0)
			(void)store_remove(k, PROBE); /* of a life that ended while it looked */
		else
			prefixd_warn("the service manager passed on \"%s\", which means nothing to "
				     "prefixd; closing it",
				     name);
		close(fd);
	}
	/* Another program in this process, or a child, would take them for its own. */
	(void)unsetenv("LISTEN_PID");
	(void)unsetenv("LISTEN_FDS");
	(void)unsetenv("LISTEN_FDNAMES");
	return 0;
}

/* ---- the store ----------------------------------------------------------------------------- */

/* The other end is closed, within so long. */
static bool hung_up(int fd, uint32_t ms)
{
	struct pollfd p = { .fd = fd };

	return poll(&p, 1, (int)ms) == 1; /* no event is asked for: only the end is told */
}

/* Sends `text` with the writing end of a pipe; the reading end is *ret_fd. */
static int send_pipe(struct prefixd_keep *k, const char *text, int *ret_fd)
{
	int p[2], r;

	if (pipe2(p, O_CLOEXEC) < 0)
		return -errno;
	r = prefixd_notify_send(&k->notify, text, p[1], PREFIXD_KEEP_WAIT_MS);
	close(p[1]);
	if (r < 0)
		close(p[0]);
	else
		*ret_fd = p[0];
	return r;
}

/* Waits until the manager has worked on all that was sent.  Return: 0; -ETIMEDOUT, and then the
 * link is LATE; negative errno, likewise. */
static int barrier(struct prefixd_keep *k)
{
	int fd = -1, r = send_pipe(k, "BARRIER=1", &fd);

	if (r == 0 && hung_up(fd, PREFIXD_KEEP_WAIT_MS)) {
		close(fd);
		return 0;
	}
	if (k->late_fd < 0)
		k->late_fd = fd;
	else if (fd >= 0)
		close(fd);
	if (k->ops)
		prefixd_keep_set_link(k, PREFIXD_KEEP_LATE);
	return r < 0 ? r : -ETIMEDOUT;
}

/* Whether the store has room for one more.  Return: 0; -ENOSPC; as barrier(). */
static int probe(struct prefixd_keep *k)
{
	int fd = -1, r = send_pipe(k, "FDSTORE=1\nFDNAME=" PROBE, &fd);

	if (r == 0)
		r = barrier(k);
	if (r == 0 && hung_up(fd, 0))
		r = -ENOSPC;
	if (fd >= 0) {
		if (r != -ENOSPC)
			(void)store_remove(k, PROBE); /* its end is noticed as well */
		close(fd);
	}
	return r;
}

static int systemd_put(struct prefixd_keep *k, struct prefixd_keep_item *item)
{
	char full[NAME_LEN], text[TEXT_LEN];
	int r;

	r = probe(k);
	if (r == -ENOSPC && !item->sent) {
		k->full = true;
		prefixd_keep_tell(k);
	}
	if (r < 0)
		return r;
	store_name(item->name, item->number, full);
	snprintf(text, sizeof(text), "FDSTORE=1\nFDPOLL=0\nFDNAME=%s", full);
	r = prefixd_notify_send(&k->notify, text, item->fd, PREFIXD_KEEP_WAIT_MS);
	if (r == 0) {
		item->sent = true;
		r = barrier(k);
	} else {
		prefixd_keep_set_link(k, PREFIXD_KEEP_LATE);
	}
	for (; r == 0 && item->first < item->number; item->first++) {
		store_name(item->name, item->first, full);
		(void)store_remove(k, full); /* one that stays behind is found at the next start */
	}
	return r;
}

static void systemd_drop(struct prefixd_keep *k, const struct prefixd_keep_item *item)
{
	char full[NAME_LEN];

	for (uint32_t n = item->first; n <= item->number; n++) {
		store_name(item->name, n, full);
		if (store_remove(k, full) < 0)
			prefixd_keep_set_link(k, PREFIXD_KEEP_LATE);
	}
}

/* He answered: all is put again, since nobody knows what of it came too late. */
static void systemd_turn(struct prefixd_keep *k)
{
	if (k->full)
		prefixd_warn(
			"the service manager's store is full: what was put last will end with "
			"this daemon; raise FileDescriptorStoreMax= in the unit (%u is enough)",
			STORE_WANTS);
	k->full = false;
	if (k->link != PREFIXD_KEEP_LATE)
		return;
	if (k->late_fd < 0 && send_pipe(k, "BARRIER=1", &k->late_fd) < 0)
		k->late_fd = -1;
	if (k->late_fd < 0) {
		prefixd_keep_retry_in(k, RETRY_MS);
		return;
	}
	if (!hung_up(k->late_fd, 0)) {
		if (!k->watch_ev)
			prefixd_warn("the service manager does not answer; until it does, memory "
				     "ends with this daemon");
		prefixd_keep_watch(k, k->late_fd);
		return;
	}
	prefixd_keep_watch(k, -1);
	close(k->late_fd);
	k->late_fd = -1;
	prefixd_keep_set_link(k, PREFIXD_KEEP_WORKS);
	if (prefixd_keep_put_all(k) == k->n_items)
		prefixd_info("the service manager answers again and keeps all %u items",
			     k->n_items);
}

static void systemd_stop(struct prefixd_keep *k, bool release)
{
	if (!release || k->link != PREFIXD_KEEP_WORKS)
		return;
	for (uint32_t i = 0; i < k->n_items; i++)
		systemd_drop(k, &k->items[i]);
	if (barrier(k) < 0)
		prefixd_warn("the service manager does not say that it gave the memory up");
}

const struct prefixd_keep_ops prefixd_keep_systemd = {
	.keeper = PREFIXD_KEEPER_SYSTEMD,
	.put = systemd_put,
	.drop = systemd_drop,
	.turn = systemd_turn,
	.stop = systemd_stop,
};

int prefixd_keep_systemd_start(struct prefixd_keep *k, bool handed, char *why, size_t why_len)
{
	int r;

	if (!prefixd_notify_active(&k->notify)) {
		snprintf(why, why_len,
			 "no service manager speaks to this process (NOTIFY_SOCKET is not set): "
			 "start "
			 "it as a service, or keep its memory with --keep holder");
		return -ENOTCONN;
	}
	r = k->n_found > 0 ? 0 : probe(k); /* what comes out of a store shows that there is one */
	if (r == -ENOSPC)
		snprintf(why, why_len,
			 "the service manager stores no descriptors for this service: put "
			 "FileDescriptorStoreMax=%u into its unit, or keep its memory with --keep "
			 "holder",
			 STORE_WANTS);
	else if (r < 0)
		snprintf(why, why_len,
			 "the service manager does not answer (BARRIER=1 on NOTIFY_SOCKET, as "
			 "systemd "
			 "does from version 246 on): %s",
			 strerror(-r));
	if (r < 0)
		return r;
	k->ops = &prefixd_keep_systemd;
	prefixd_keep_set_link(k, PREFIXD_KEEP_WORKS);
	if (handed)                            /* what he has already he does not take twice */
		(void)prefixd_keep_put_all(k); /* the loop says it if something is not kept */
	return 0;
}
