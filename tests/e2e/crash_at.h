/*
 * crash_at.h - a daemon that kills itself at a named place, and the record of places it passed.
 *
 * prefixd-crash is the daemon built with its crash points (radix/crash.h) and crash_at.c. In its
 * environment:
 *
 *     PREFIXD_CRASH_POINT=NAME:N      SIGKILL to itself at the N-th time that NAME is passed
 *     PREFIXD_CRASH_POINT=list:FILE   counts in FILE, a struct crash_list, what is passed
 *
 * The signal comes from within, so that the process ends between the store before the place and
 * the one behind it, whatever else its other threads do.
 */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

enum {
	CRASH_NAME_LEN = 56,
	CRASH_NAMES = 256
};

struct crash_list {
	_Atomic uint32_t busy; /* somebody adds a name */
	_Atomic uint32_t n;
	struct {
		char name[CRASH_NAME_LEN];
		_Atomic uint64_t count;
	} v[CRASH_NAMES];
};
