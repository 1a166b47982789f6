/*
 * cuda_util.h - what the tests of the CUDA back end share: a device of the look-alike driver, and
 * what that driver counts.
 */
#pragma once

#include "tests/driver/census.h"
#include "tests/gpu/util.h"

#include <errno.h>
#include <unistd.h>

/*
 * The driver reads its settings once in a process, so one test opens devices with one set of them.
 * That a rule of the driver is broken ends the process.
 */
static inline void set_up_driver(const char *settings)
{
	char text[512];

	(void)snprintf(text, sizeof(text), "abort=1,poison=1,%s", settings);
	ck_assert_int_eq(setenv("LOOKALIKE", text, 1), 0);
}

static inline struct gpu *open_cuda(const char *settings)
{
	set_up_driver(settings);
	n_in_flight = 0;
	n_completions = 0;
	return open_back_end("cuda", NULL);
}

static inline struct lookalike_census census(void)
{
	struct lookalike_census c = { 0 };

	ck_assert_msg(lookalike_census(&c), "the look-alike driver is not loaded");
	return c;
}

/* Nothing is held of the driver, and nothing was done that is forbidden. */
static inline void assert_nothing_held(void)
{
	const struct lookalike_census c = census();
	const char *held = lookalike_held(&c);

	ck_assert_uint_eq(c.n_broken, 0);
	ck_assert_msg(!held, "%s is held", held);
}
