/*
 * engine_restore.c - what an earlier life left becomes this one's.
 */
#include "daemon/engine_internal.h"
#include "daemon/ledger.h"

void prefixd_restore(struct prefixd_engine *e, struct prefixd_event *event)
{
	(void)e;
	event->ret_n = 0;
}

void prefixd_verified(struct prefixd_engine *e, const struct prefixd_event *event)
{
	(void)e;
	(void)event;
}

void prefixd_engine_restored(const struct prefixd_engine *e, struct prefixd_restored *ret)
{
	(void)e;
	*ret = (struct prefixd_restored){ .done = true };
}
