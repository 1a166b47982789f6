/*
 * crash.h - named places at which a test stops the program.
 *
 * Built with RADIX_CRASH_POINTS only: the tests' own libraries, never what is installed.  A hook
 * may kill the process, or jump out of it; whatever was stored until then is what a restart
 * finds. tests/README.md lists the names.
 */
#pragma once

#ifdef RADIX_CRASH_POINTS
extern void (*radix_crash_hook)(const char *name); /* NULL: nothing happens */
#define radix_crash_point(name)                 \
	do {                                    \
		if (radix_crash_hook)           \
			radix_crash_hook(name); \
	} while (0)
#else
#define radix_crash_point(name) \
	do {                    \
	} while (0)
#endif
