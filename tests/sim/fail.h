/*
 * fail.h - what a failing check does: it says where in the run it was and how to see it again.
 *
 * The world's checks are those of the library Check.  Here is no suite and no runner: this file
 * takes the place of the one function behind them, and ends the process with status 1.
 */
#pragma once

#include <stdint.h>

/* From now on failures, signals and the end of `limit_s` seconds are reported for this seed. */
void fail_watch(uint64_t seed, uint32_t limit_s);
