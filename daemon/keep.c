/*
 * keep.c - see keep.h and keep_internal.h.
 */
#include "daemon/keep_internal.h"

#include "daemon/log.h"
#include "proto/holder_wire.h"

#include <event2/event.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

_Static_assert(PREFIXD_KEEP_NAME_MAX == PROTO_HOLDER_NAME_LEN, "one length of names");
_Static_assert(PREFIXD_KEEP_ITEMS_MAX == PROTO_HOLDER_ITEMS_MAX, "one number of items");

const char *prefixd_keeper_to_string(enum prefixd_keeper k)
{
	switch (k) {
#define X(sym, text)               \
	case PREFIXD_KEEPER_##sym: \
		return text;
		PREFIXD_KEEPERS(X)
#undef X
	}
	return "?";
}

uint64_t prefixd_keep_now_ms(void)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_MONOTONIC, &ts); /* cannot fail for this clock */
	return (uint64_t)ts.tv_sec * 1000u + (uint64_t)ts.tv_nsec / 1000000u;
}

/* ---- the list ------------------------------------------------------------------------------ */

struct prefixd_keep_item *prefixd_keep_find(struct prefixd_keep *k, const char *name)
{
	for (uint32_t i = 0; i < k->n_items; i++)
		if (strcmp(k->items[i].name, name) == 0)
			return &k->items[i];
	return NULL;
}

static struct prefixd_keep_item *item_add(struct prefixd_keep *k, const char *name, int fd)
{
	struct prefixd_keep_item *item;

	if (k->n_items == PREFIXD_KEEP_ITEMS_MAX)
		return NULL;
	item = &k->items[k->n_items++];
	*item = (struct prefixd_keep_item){ .fd = fd };
	memcpy(item->name, name, strlen(name)); /* checked: shorter than the field */
	return item;
}

static void item_remove(struct prefixd_keep *k, struct prefixd_keep_item *item)
{
	close(item->fd);
	*item = k->items[--k->n_items];
}

int prefixd_keep_add_found(struct prefixd_keep *k, const char *name, int fd, uint32_t number)
{
	struct prefixd_keep_item *item = NULL;

	if (proto_holder_name_ok(name) && !prefixd_keep_find(k, name))
		item = item_add(k, name, fd);
	if (!item) {
		close(fd);
		return -EINVAL;
	}
	item->found = item->sent = true;
	item->number = item->first = number;
	k->n_found++;
	return 0;
}

/* The same file, opened for the same: whoever has the one needs no other. */
static bool same_file(int a, int b)
{
	struct stat x, y;

	return fstat(a, &x) == 0 && fstat(b, &y) == 0 && x.st_dev == y.st_dev &&
	       x.st_ino == y.st_ino && S_ISREG(x.st_mode) && fcntl(a, F_GETFL) == fcntl(b, F_GETFL);
}

/* ---- the loop's part ----------------------------------------------------------------------- */

void prefixd_keep_tell(struct prefixd_keep *k)
{
	uint64_t one = 1;

	if (write(k->tell_fd, &one, sizeof(one)) < 0)
		return; /* it is full: the loop will look anyway */
}

void prefixd_keep_set_link(struct prefixd_keep *k, enum prefixd_keep_link link)
{
	bool worse = link != k->link && link != PREFIXD_KEEP_WORKS;

	k->link = link;
	atomic_store(&k->state, link == PREFIXD_KEEP_WORKS ? k->ops->keeper : PREFIXD_KEEPER_NONE);
	if (worse)
		prefixd_keep_tell(k);
}

uint32_t prefixd_keep_put_all(struct prefixd_keep *k)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < k->n_items && k->link == PREFIXD_KEEP_WORKS; i++)
		n += k->ops->put(k, &k->items[i]) == 0;
	return n;
}

/* What another thread works on just now it will also have seen; the events come again. */
static void turn(struct prefixd_keep *k)
{
	if (pthread_mutex_trylock(&k->lock) != 0)
		return;
	k->ops->turn(k);
	pthread_mutex_unlock(&k->lock);
}

static void on_tell(evutil_socket_t fd, short what, void *ctx)
{
	struct prefixd_keep *k = ctx;
	uint64_t n;

	if (pthread_mutex_trylock(&k->lock) != 0)
		return;
	if (read(fd, &n, sizeof(n)) == (ssize_t)sizeof(n))
		k->ops->turn(k);
	pthread_mutex_unlock(&k->lock);
}

static void on_event(evutil_socket_t fd, short what, void *ctx)
{
	turn(ctx);
}

void prefixd_keep_watch(struct prefixd_keep *k, int fd)
{
	if (k->watch_ev)
		event_free(k->watch_ev);
	k->watch_ev = NULL;
	if (fd < 0 || !k->base)
		return;
	k->watch_ev = event_new(k->base, fd, EV_READ | EV_PERSIST, on_event, k);
	if (!k->watch_ev || event_add(k->watch_ev, NULL) < 0)
		prefixd_error("no memory to watch the keeper; its end would go unnoticed");
}

void prefixd_keep_retry_in(struct prefixd_keep *k, uint32_t ms)
{
	struct timeval tv = { .tv_sec = ms / 1000, .tv_usec = (suseconds_t)(ms % 1000) * 1000 };

	if (k->retry_ev && event_add(k->retry_ev, &tv) < 0)
		prefixd_error("no memory for a timer; the keeper is not started anew");
}

static int events_init(struct prefixd_keep *k)
{
	if (!k->base)
		return 0;
	k->tell_ev = event_new(k->base, k->tell_fd, EV_READ | EV_PERSIST, on_tell, k);
	k->retry_ev = evtimer_new(k->base, on_event, k);
	return k->tell_ev && k->retry_ev && event_add(k->tell_ev, NULL) == 0 ? 0 : -ENOMEM;
}

/* ---- start and stop ------------------------------------------------------------------------ */

/* "name@number=fd,name@number=fd", as prefixd_keep_hand_over() wrote it. */
static int handed_parse(struct prefixd_keep *k, const char *text)
{
	char name[PREFIXD_KEEP_NAME_MAX];
	unsigned number;
	int fd, used;

	for (; *text; text += used + (text[used] == ',')) {
		used = 0;
		if (sscanf(text, "%63[^@=,]@%u=%d%n", name, &number, &fd, &used) != 3 ||
		    used == 0 || (text[used] != ',' && text[used] != '\0'))
			return -EINVAL;
		if (fd < 3 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0 ||
		    prefixd_keep_add_found(k, name, fd, number) < 0)
			return -EINVAL;
	}
	return 0;
}

/* Beside this program's own file, whose name may have been given to a newer one since. */
static int program_find(struct prefixd_keep *k, const char *given)
{
	static const char own[] = "/proc/self/exe", name[] = "prefixd-holder";
	ssize_t n;
	char *slash;

	if (given) {
		if (strlen(given) >= sizeof(k->program))
			return -ENAMETOOLONG;
		memcpy(k->program, given, strlen(given) + 1);
		return 0;
	}
	n = readlink(own, k->program, sizeof(k->program) - sizeof(name));
	if (n < 0)
		return -errno;
	k->program[n] = '\0';
	slash = strrchr(k->program, '/');
	memcpy(slash ? slash + 1 : k->program, name, sizeof(name));
	return 0;
}

/* Finds the keeper that was asked for. */
static int keeper_start(struct prefixd_keep *k, const struct prefixd_keep_config *c, char *why,
			size_t why_len)
{
	bool handed = c->handed && *c->handed;
	int r = handed ? handed_parse(k, c->handed) : 0;

	if (r < 0) {
		snprintf(why, why_len,
			 "the program before this one handed over \"%.80s\", which "
			 "is no list of descriptors",
			 c->handed);
		return r;
	}
	r = prefixd_keep_systemd_inherit(k,
					 !handed && (c->keeper == PREFIXD_KEEPER_AUTO ||
						     c->keeper == PREFIXD_KEEPER_SYSTEMD),
					 why, why_len);
	if (r < 0 || c->keeper == PREFIXD_KEEPER_NONE)
		return r;
	if (c->keeper != PREFIXD_KEEPER_HOLDER) {
		r = prefixd_keep_systemd_start(k, handed, why, why_len);
		if (r == 0 || c->keeper == PREFIXD_KEEPER_SYSTEMD)
			return r;
		if (prefixd_notify_active(&k->notify))
			prefixd_warn("%s; a holder takes its place, but ends with this service if "
				     "its manager ends the whole control group",
				     why);
	}
	r = prefixd_keep_holder_start(k, handed, why, why_len);
	if (c->keeper == PREFIXD_KEEPER_AUTO && (r == -ENOENT || r == -ENAMETOOLONG)) {
		prefixd_warn("%s; memory will end with this daemon", why);
		k->ops = NULL;
		return 0;
	}
	return r;
}

int prefixd_keep_start(struct prefixd_keep **ret_keep, const struct prefixd_keep_config *config,
		       char *why, size_t why_len)
{
	struct prefixd_keep *k = calloc(1, sizeof(*k));
	int r;

	if (!k) {
		snprintf(why, why_len, "out of memory");
		return -ENOMEM;
	}
	(void)pthread_mutex_init(&k->lock, NULL); /* cannot fail for a plain one */
	k->fd = k->late_fd = k->notify.fd = -1;
	k->base = config->base;
	k->timeout_ns = config->timeout_ns;
	atomic_init(&k->state, PREFIXD_KEEPER_NONE);
	snprintf(k->version, sizeof(k->version), "%s", config->version ? config->version : "");
	k->tell_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	r = k->tell_fd < 0 ? -errno : events_init(k);
	if (r == 0)
		r = program_find(k, config->program);
	if (r == 0 && (size_t)snprintf(k->path, sizeof(k->path), "%s" PROTO_HOLDER_SUFFIX,
				       config->admin_socket) >= sizeof(k->path))
		r = -ENAMETOOLONG;
	if (r < 0)
		snprintf(why, why_len, "cannot begin to look for a keeper: %s", strerror(-r));
	else
		r = keeper_start(k, config, why, why_len);
	if (r < 0) {
		k->ops = NULL; /* whoever it was, he stays with what he has */
		prefixd_keep_stop(k, false);
		return r;
	}
	*ret_keep = k;
	return 0;
}

struct prefixd_keep *prefixd_keep_stop(struct prefixd_keep *k, bool release)
{
	if (!k)
		return NULL;
	if (k->ops)
		k->ops->stop(k, release);
	prefixd_keep_watch(k, -1);
	if (k->tell_ev)
		event_free(k->tell_ev);
	if (k->retry_ev)
		event_free(k->retry_ev);
	while (k->n_items > 0)
		item_remove(k, &k->items[0]);
	if (k->fd >= 0)
		close(k->fd);
	if (k->late_fd >= 0)
		close(k->late_fd);
	if (k->tell_fd >= 0)
		close(k->tell_fd);
	prefixd_notify_deinit(&k->notify);
	pthread_mutex_destroy(&k->lock);
	free(k);
	return NULL;
}

/* ---- the calls ----------------------------------------------------------------------------- */

enum prefixd_keeper prefixd_keep_state(const struct prefixd_keep *k)
{
	return atomic_load(&k->state);
}

uint32_t prefixd_keep_n_found(const struct prefixd_keep *k)
{
	return k->n_found;
}

int prefixd_keep_take(struct prefixd_keep *k, const char *name)
{
	struct prefixd_keep_item *item;
	int fd = -1;

	pthread_mutex_lock(&k->lock);
	item = prefixd_keep_find(k, name);
	if (item && item->found && !item->taken) {
		fd = fcntl(item->fd, F_DUPFD_CLOEXEC, 3);
		item->taken = fd >= 0;
	}
	pthread_mutex_unlock(&k->lock);
	return fd;
}

/*
 * The list's part of a put: *ret_item has a duplicate of `fd`, *ret_same says that it always had.
 */
static int put_listed(struct prefixd_keep *k, const char *name, int fd,
		      struct prefixd_keep_item **ret_item, bool *ret_same)
{
	struct prefixd_keep_item *item = prefixd_keep_find(k, name);
	int own;

	if (item && same_file(item->fd, fd)) {
		*ret_item = item;
		*ret_same = true;
		return 0;
	}
	own = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	if (own < 0)
		return -errno;
	if (item) {
		close(item->fd);
		item->fd = own;
		item->number += item->sent;
		item->sent = false;
	} else {
		item = item_add(k, name, own);
		if (!item) {
			close(own);
			return -ENOSPC;
		}
	}
	item->found = false;
	*ret_item = item;
	*ret_same = false;
	return 0;
}

int prefixd_keep_put(struct prefixd_keep *k, const char *name, int fd)
{
	struct prefixd_keep_item *item = NULL;
	bool same = false;
	int r;

	if (!proto_holder_name_ok(name))
		return -EINVAL;
	pthread_mutex_lock(&k->lock);
	r = put_listed(k, name, fd, &item, &same);
	if (r == 0 && k->ops) {
		if (k->link != PREFIXD_KEEP_WORKS)
			r = -ENOTCONN;
		else if (!same || !item->sent)
			r = k->ops->put(k, item);
	}
	pthread_mutex_unlock(&k->lock);
	return r;
}

static void drop_if(struct prefixd_keep *k,
		    bool (*wanted)(const struct prefixd_keep_item *item, const char *name),
		    const char *name)
{
	pthread_mutex_lock(&k->lock);
	for (uint32_t i = 0; i < k->n_items;) {
		struct prefixd_keep_item *item = &k->items[i];

		if (!wanted(item, name)) {
			i++;
			continue;
		}
		if (k->ops && k->link == PREFIXD_KEEP_WORKS)
			k->ops->drop(k, item);
		item_remove(k, item); /* the last one takes its place */
	}
	pthread_mutex_unlock(&k->lock);
}

static bool is_named(const struct prefixd_keep_item *item, const char *name)
{
	size_t len = strlen(name);

	return strncmp(item->name, name, len) == 0 &&
	       (item->name[len] == '\0' || item->name[len] == '.');
}

static bool is_rest(const struct prefixd_keep_item *item, const char *name)
{
	return item->found && !item->taken;
}

void prefixd_keep_drop(struct prefixd_keep *k, const char *name)
{
	if (proto_holder_name_ok(name))
		drop_if(k, is_named, name);
}

void prefixd_keep_drop_rest(struct prefixd_keep *k)
{
	drop_if(k, is_rest, NULL);
}

int prefixd_keep_hand_over(struct prefixd_keep *k, char *text, size_t len)
{
	size_t at = 0;

	pthread_mutex_lock(&k->lock);
	if (len > 0)
		text[0] = '\0';
	for (uint32_t i = 0; i < k->n_items && at < len; i++) {
		const struct prefixd_keep_item *item = &k->items[i];

		(void)fcntl(item->fd, F_SETFD, 0); /* it is open; cannot fail */
		at += (size_t)snprintf(text + at, len - at, "%s%s@%u=%d", i ? "," : "", item->name,
				       item->number, item->fd);
	}
	pthread_mutex_unlock(&k->lock);
	if (at < len)
		return 0;
	prefixd_keep_stay(k);
	return -ENOSPC;
}

void prefixd_keep_stay(struct prefixd_keep *k)
{
	pthread_mutex_lock(&k->lock);
	for (uint32_t i = 0; i < k->n_items; i++)
		(void)fcntl(k->items[i].fd, F_SETFD, FD_CLOEXEC); /* it is open; cannot fail */
	pthread_mutex_unlock(&k->lock);
}
