/*
 * prefixd_windows.h - attention windows: prompts of which a worker reads the end only.
 *
 * A namespace is opened with the flag PFX_NS_WINDOWS, and `windows` says what each layer reaches
 * back to, as "0-11:4096,12:full": layers, then tokens or "full", with commas between the groups;
 * layers that are not named attend in full.  It takes a daemon of version 3 of the protocol; others
 * answer PFX_BAD_BODY.  PFX_BAD_NAMESPACE: `windows` is no such text.
 *
 * Where pfx_window() is w, a match of n blocks has slots for the last min(w, n) of its path, in
 * `runs`; those before them come as one run of PFX_SLOT_NONE, first.  They count in n_device.  The
 * lease keeps the slots of the last w blocks of its path, as it grows by pfx_commit and pfx_extend,
 * and no others: so a prompt may be longer than the pool.
 */
#ifndef PREFIXD_WINDOWS_H
#define PREFIXD_WINDOWS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef PFX_API
#if defined(__GNUC__)
#define PFX_API __attribute__((visibility("default")))
#else
#define PFX_API
#endif
#endif

struct pfx_namespace;

enum {
	PFX_NS_WINDOWS = 8 /* of pfx_namespace_options.flags */
};

/* `start` of a run of blocks that were found and have no slot for this lease. */
#define PFX_SLOT_NONE UINT32_MAX

/* Blocks before its end that a match has slots for; 0: all of them. */
PFX_API uint32_t pfx_window(const struct pfx_namespace *ns);

#ifdef __cplusplus
}
#endif

#endif
