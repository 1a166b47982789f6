/*
 * epochs.h - the epochs of namespaces that were invalidated, kept in a file over restarts.
 *
 * What it guarantees.  The file is replaced as a whole, mode 0600, synced before it gets its name:
 * after a crash it is the old one or the new one.  A file that is damaged is refused and not
 * skipped, since forgetting an epoch would serve what was invalidated.  An epoch never goes down.
 *
 * What it relies on.  One daemon per file (the admin socket's lock).
 */
#pragma once

#include "daemon/engine.h"

struct prefixd_epoch_entry {
	uint8_t digest[32]; /* the namespace's */
	struct prefixd_epoch epoch;
};

struct prefixd_epochs {
	char *path;
	struct prefixd_epoch_entry *v;
	uint32_t n, cap;
	bool dirty; /* differs from the file */
};

/* Is a later than b: by n, then by nonce. */
bool prefixd_epoch_after(const struct prefixd_epoch *a, const struct prefixd_epoch *b);
/*
 * Reads the file; none is an empty one.  Return: 0; negative errno with a sentence in `why` and
 * nothing left behind.
 */
radix_nodiscard int prefixd_epochs_load(struct prefixd_epochs *e, const char *path, char *why,
					size_t why_len);
void prefixd_epochs_deinit(struct prefixd_epochs *e); /* idempotent */
/* NULL: none was kept. */
const struct prefixd_epoch_entry *prefixd_epochs_find(const struct prefixd_epochs *e,
						      const uint8_t digest[32]);
/* Takes over a later epoch.  Return: 0, also for an older one; -ENOMEM. */
radix_nodiscard int prefixd_epochs_set(struct prefixd_epochs *e, const uint8_t digest[32],
				       const struct prefixd_epoch *epoch);
/* Writes the file if it is dirty.  Return: 0; negative errno: it stays dirty. */
radix_nodiscard int prefixd_epochs_save(struct prefixd_epochs *e);
