/*
 * engine_windows.h - attention windows: what `windows` of OPEN says with the flag WINDOWS.
 *
 *     windows = group [ "," group ] ...     group = layers ":" window
 *     layers  = n | a "-" b                 window = tokens | "full"
 *
 * Layers that no group names attend in full.  A block's slot holds all layers of its namespace, so
 * one number is left of it: the blocks that the widest window reaches back to.  An engine whose
 * layers differ opens a namespace for those with a window and another one for the others.
 */
#pragma once

#include "daemon/engine_internal.h"
#include "radix/windows.h"

/*
 * The window in blocks; 0: some layer attends in full, or it is wider than any reply can tell
 * slots.  A match ends at the end of a block, so a window that begins inside one reaches into
 * as many blocks as if it were rounded up, and the token behind the match needs no more.  False:
 * refused, with what would be right.
 */
bool prefixd_windows_check(struct prefixd_engine *e, struct prefixd_request *rq,
			   const struct proto_open_req *m, uint32_t *ret_blocks);
/*
 * Prompts of this namespace are read through a window from now on, by those sessions that say so;
 * what others hold is kept whole.  Nothing is done where that was so already.  Return: 0, -ENOMEM.
 */
radix_nodiscard int prefixd_windows_begin(struct prefixd_engine *e, struct prefixd_namespace *ns,
					  uint32_t blocks);
/* The session reads this namespace through its window. */
bool prefixd_windowed(const struct prefixd_session *s, const struct prefixd_namespace *ns);
