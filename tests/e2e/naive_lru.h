/*
 * naive_lru.h - leaf LRU as its definition reads, for tests of small traces.
 *
 * Deliberately slow and plain: every block is asked for its children and its last use whenever a
 * victim is needed.  It shares no code and no idea with clients/replay/lru.c (a list) or radix/ (a
 * tree of edges), and is what both are compared with.
 */
#pragma once

#include "clients/replay/trace.h"

/* hits: [n_requests] hit blocks of each request.  Return: hit tokens. */
uint64_t naive_lru_run(const struct replay_trace *trace, uint64_t capacity, uint32_t *hits);
