/*
 * hanging_device.h - what the test and the preloaded library share, in a mapped file.
 */
#pragma once

#include <stdatomic.h>

struct hanging {
	atomic_int no_large; /* the main thread gets no large memory */
	atomic_int
		stuck; /* whoever gives memory of the device back waits, for as long as this is */
	atomic_int waiting; /* how many wait */
};
