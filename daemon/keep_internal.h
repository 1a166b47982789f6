/*
 * keep_internal.h - shared by the keeper's files.
 *
 *     keep.c          the list of what is kept, and the calls of keep.h
 *     keep_holder.c   prefixd-holder: finding, starting, talking
 *     keep_systemd.c  the service manager's descriptor store
 *
 * Who owns what.  The list holds a duplicate of each descriptor, so that all can be put again
 * when a keeper comes to be after it was lost.  `lock` guards everything below it; a keeper's
 * functions run with it held.  Only the loop's thread opens and closes the keeper's descriptors,
 * since they are in its event base, and only it writes the log: another thread leaves word in
 * `tell_fd`.
 */
#pragma once

#include "daemon/keep.h"
#include "daemon/notify.h"

#include <pthread.h>
#include <stdatomic.h>

struct event;

#define PREFIXD_KEEP_WAIT_MS   1000 /* for one answer */
#define PREFIXD_KEEP_START_MS  5000 /* for a keeper who is just being started, or leaving */
#define PREFIXD_KEEP_RETRY_MS  100u /* after a holder could not be started; doubles up to */
#define PREFIXD_KEEP_RETRY_MAX 60000u
#define PREFIXD_KEEP_PATH_MAX  4096

struct prefixd_keep_item {
	char name[PREFIXD_KEEP_NAME_MAX];
	int fd;
	bool found, taken; /* of an earlier life; by this one */
	/*
	 * The store of the service manager replaces nothing, so a descriptor that takes another's
	 * place gets the next number behind its name.  `sent`: this number was named to the
	 * manager; from `first` on older ones may be there.
	 */
	uint32_t number, first;
	bool sent;
};

enum prefixd_keep_link {
	PREFIXD_KEEP_WORKS,
	PREFIXD_KEEP_LATE,     /* an answer is owed beyond its time */
	PREFIXD_KEEP_GONE,     /* the keeper has ended */
	PREFIXD_KEEP_RELEASED, /* an operator took the memory away; nobody is started anew */
};

struct prefixd_keep_ops {
	enum prefixd_keeper keeper;
	/* Return: 0: he has it; negative errno, with `link` saying what is wrong if it is him. */
	int (*put)(struct prefixd_keep *k, struct prefixd_keep_item *item);
	void (*drop)(struct prefixd_keep *k, const struct prefixd_keep_item *item);
	/* Something happened to him.  The loop's thread. */
	void (*turn)(struct prefixd_keep *k);
	void (*stop)(struct prefixd_keep *k, bool release);
};

struct prefixd_keep {
	const struct prefixd_keep_ops *ops; /* NULL: no keeper */
	struct event_base *base;
	int tell_fd; /* eventfd: the loop should look */
	struct event *tell_ev, *watch_ev, *retry_ev;
	_Atomic enum prefixd_keeper state;
	uint32_t n_found;

	pthread_mutex_t lock;
	struct prefixd_keep_item items[PREFIXD_KEEP_ITEMS_MAX];
	uint32_t n_items;
	enum prefixd_keep_link link;

	/* The holder. */
	int fd; /* -1: not connected */
	uint64_t seq, timeout_ns;
	uint64_t not_before_ms; /* when another may be started */
	uint32_t holder_pid, retry_ms;
	char path[128], program[PREFIXD_KEEP_PATH_MAX], version[32];

	/* The service manager. */
	struct prefixd_notify notify;
	int late_fd; /* the end of a barrier that is owed; -1: none */
	bool full;   /* something was refused, which the loop has not said yet */
};

/* keep.c */
uint64_t prefixd_keep_now_ms(void);
struct prefixd_keep_item *prefixd_keep_find(struct prefixd_keep *k, const char *name);
/* An item of an earlier life; takes fd over, also on failure. */
int prefixd_keep_add_found(struct prefixd_keep *k, const char *name, int fd, uint32_t number);
/*
 * Sets what is known of the keeper, for prefixd_keep_state(); tells the loop of what is new and
 * bad.
 */
void prefixd_keep_set_link(struct prefixd_keep *k, enum prefixd_keep_link link);
void prefixd_keep_tell(struct prefixd_keep *k);
/* Puts all again.  Return: how many are kept. */
uint32_t prefixd_keep_put_all(struct prefixd_keep *k);
/* Watches a descriptor for reading, or nothing (-1), in place of the one before. */
void prefixd_keep_watch(struct prefixd_keep *k, int fd);
void prefixd_keep_retry_in(struct prefixd_keep *k, uint32_t ms);

/* keep_holder.c */
extern const struct prefixd_keep_ops prefixd_keep_holder;
/*
 * Return: 0; -ENOENT, -ENAMETOOLONG: there can be none here; negative errno; a sentence in `why`.
 */
int prefixd_keep_holder_start(struct prefixd_keep *k, bool handed, char *why, size_t why_len);

/* keep_systemd.c */
extern const struct prefixd_keep_ops prefixd_keep_systemd;
/*
 * Takes what the manager passed on out of the environment; adds our items if they are `wanted`,
 * else he is told to forget them.
 */
int prefixd_keep_systemd_inherit(struct prefixd_keep *k, bool wanted, char *why, size_t why_len);
/* Return: 0: there is a store; negative errno with a sentence in `why`. */
int prefixd_keep_systemd_start(struct prefixd_keep *k, bool handed, char *why, size_t why_len);
