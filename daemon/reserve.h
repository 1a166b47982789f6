/*
 * reserve.h - memory for libevent when there is none.
 *
 * What it guarantees.  An allocation of libevent that malloc() refuses is served from a reserve of
 * fixed size, as long as that lasts; so the daemon outlives a shortage of memory and answers it by
 * refusing, not by ending.  libevent's HTTP server goes on with the NULL that it got in several
 * places, and who serves workers cannot choose not to run it.  The reserve is part of the program,
 * so that it is there from the start.
 *
 * What it relies on.  Nothing of libevent was used before.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Gives libevent its memory from here on. */
void prefixd_reserve_install(void);
/* Pieces of the reserve that are in use. */
unsigned prefixd_reserve_in_use(void);

/* What libevent is given, for tests. */
void *prefixd_reserve_malloc(size_t n);
void *prefixd_reserve_realloc(void *p, size_t n);
void prefixd_reserve_free(void *p);
