/*
 * keep.h - memory that outlives the daemon, in the hands of somebody who does nothing else.
 *
 *     --keep holder    a process of its own, prefixd-holder, found by a socket beside the admin
 *                      socket; started when there is none
 *     --keep systemd   the descriptor store of the service (FileDescriptorStoreMax= in the unit)
 *     --keep none      nobody: the memory ends with the daemon
 *     --keep auto      systemd where the service manager offers a store, else a holder
 *
 * What is kept are descriptors with names: "ledger"; for each group N "gN.pool", "gN.generations",
 * "gN.table", "gN.host".  What they mean is the ledger's business, not the keeper's.
 *
 * What it guarantees.  A descriptor that prefixd_keep_put() returned 0 for is there after the
 * daemon was killed, whenever that was.  The keeper never reads or maps what it keeps.  It
 * serves processes of its own user only (and root), one daemon at a time.  A keeper that is slow
 * or gone costs the daemon its deadline once, then only the promise: prefixd_keep_state() says
 * so.
 *
 * What it relies on.  The lock on the admin socket is held: two daemons never ask one keeper.
 */
#pragma once

#include "radix/base.h"

struct event_base;

#define PREFIXD_KEEPERS(X)    \
	X(AUTO, "auto")       \
	X(HOLDER, "holder")   \
	X(SYSTEMD, "systemd") \
	X(NONE, "none")

enum prefixd_keeper {
#define X(sym, text) PREFIXD_KEEPER_##sym,
	PREFIXD_KEEPERS(X)
#undef X
};

const char *prefixd_keeper_to_string(enum prefixd_keeper k);

#define PREFIXD_KEEP_NAME_MAX  64 /* bytes, with the terminating zero */
#define PREFIXD_KEEP_ITEMS_MAX 256

struct prefixd_keep; /* opaque */

struct prefixd_keep_config {
	enum prefixd_keeper keeper;
	const char *admin_socket; /* the holder's is this one with ".holder" behind it */
	const char *program;      /* prefixd-holder; NULL: beside this program's own file */
	uint64_t timeout_ns;      /* how long the holder stays without a daemon */
	const char *version;      /* of this daemon, for `holder status` */
	/*
	 * Where the end of a holder, or his answer after all, is noticed: then all is put again, to
	 * a new one if need be.  NULL: nowhere.
	 */
	struct event_base *base;
	const char *handed; /* what prefixd_keep_hand_over() wrote before exec; NULL: nothing */
};

/*
 * Finds or starts the keeper and takes over what it has.  Return: 0; negative errno with a sentence
 * in `why` that says what an operator can do.  With NONE nobody outlives the process, but what is
 * put can still be handed over to another program in it.
 */
radix_nodiscard int prefixd_keep_start(struct prefixd_keep **ret_keep,
				       const struct prefixd_keep_config *config, char *why,
				       size_t why_len);
/*
 * Lets go of the keeper, who stays with what he has; `release`: he gives everything up and, if a
 * holder, leaves.  Accepts NULL; returns NULL.
 */
struct prefixd_keep *prefixd_keep_stop(struct prefixd_keep *k, bool release);

/* Who keeps: HOLDER, SYSTEMD, or NONE (not asked for, or lost since). */
enum prefixd_keeper prefixd_keep_state(const struct prefixd_keep *k);
uint32_t prefixd_keep_n_found(const struct prefixd_keep *k); /* items of an earlier life */
/* A descriptor of an earlier life, now the caller's; -1: there is none of this name. */
int prefixd_keep_take(struct prefixd_keep *k, const char *name);
/*
 * Keeps a duplicate under `name`, in place of an older one.  Any thread; returns when the keeper
 * has it, or after a second.  Return: 0, also without a keeper; negative errno: it is not kept.
 */
radix_nodiscard int prefixd_keep_put(struct prefixd_keep *k, const char *name, int fd);
/* The keeper forgets `name`, or all that begin with it and a dot.  Any thread. */
void prefixd_keep_drop(struct prefixd_keep *k, const char *name);
/* All that was found and not taken is given up. */
void prefixd_keep_drop_rest(struct prefixd_keep *k);

/*
 * For another program in this process (exec): leaves all that is kept open over exec and writes
 * into `text` (PREFIXD_KEEP_HANDED_MAX bytes) what has to be that one's config.handed, also
 * without a keeper.  Return: 0; -ENOSPC.  Undone by prefixd_keep_stay() when exec failed.
 */
#define PREFIXD_KEEP_HANDED_MAX (PREFIXD_KEEP_ITEMS_MAX * (PREFIXD_KEEP_NAME_MAX + 16))
radix_nodiscard int prefixd_keep_hand_over(struct prefixd_keep *k, char *text, size_t len);
void prefixd_keep_stay(struct prefixd_keep *k);

/*
 * A listening socket of the service manager's (LISTEN_FDS) by its name: "prefixd", "prefixd-admin".
 * It is the caller's; -1: there is none.  Before prefixd_keep_start(), which clears the environment
 * of what the manager said.
 */
int prefixd_keep_listener(const char *name);
