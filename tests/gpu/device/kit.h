/*
 * kit.h - what the parts of the device check share: a device by its driver, memory that several
 * processes map, other processes, and lines of the table.
 *
 * A part runs in a process of its own and forks its helpers before anybody has loaded the driver.
 * What cannot be done ends the part with a line that says what: there is nothing to go on with.
 * Needs libc and the driver, no test framework.
 */
#pragma once

#include "gpu/driver.h"

#include <sys/types.h>

/* ---- the table ------------------------------------------------------------------------------- */

enum verdict {
	PASSED,
	FAILED,
	SKIPPED
};

/* One line: what was looked at, what came out, and whether that is right. */
void report(enum verdict v, const char *what, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* The line of something that went wrong, then the process' end. */
_Noreturn void give_up(const char *what, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* Lines that failed so far. */
extern int n_failed;

double seconds(void);

/* ---- a device -------------------------------------------------------------------------------- */

struct device {
	struct gpu_driver d;
	gpu_cu_device number;
	gpu_cu_context context;
	gpu_cu_stream stream;
	uint64_t granularity;
	uint8_t *pinned; /* PINNED_BYTES, that the device reaches by pinned_at */
	gpu_cu_ptr pinned_at;
	char found[320]; /* the driver's own line */
};

#define PINNED_BYTES (UINT64_C(16) << 20)

/* The first device, in this process. */
void device_open(struct device *dev);
/* A call that has to succeed. */
#define must(dev, field, ...)                                                             \
	do {                                                                              \
		gpu_cu_result r_ = (dev)->d.field(__VA_ARGS__);                           \
		if (r_ != GPU_CU_SUCCESS) {                                               \
			char text_[200];                                                  \
			gpu_driver_describe(&(dev)->d, #field, r_, text_, sizeof(text_)); \
			give_up("driver", "%s (%s:%d)", text_, __FILE__, __LINE__);       \
		}                                                                         \
	} while (0)

/* Pinned memory that the device reaches at *ret_at. */
void *pinned_new(struct device *dev, uint64_t len, gpu_cu_ptr *ret_at);

struct slab {
	gpu_cu_ptr at;
	uint64_t len;
};

/* Memory of the device, mapped here; *ret_fd is its descriptor. */
struct slab slab_new(struct device *dev, uint64_t len, int *ret_fd);
/* The same, by its descriptor; `access`: GPU_CU_MEM_ACCESS_*. */
struct slab slab_import(struct device *dev, int fd, uint64_t len, int access);
void slab_free(struct device *dev, struct slab *slab);

/* Word number `at` of a slab that was filled. */
uint64_t pattern(uint64_t at, uint32_t seed);
void slab_fill(struct device *dev, const struct slab *slab, uint32_t seed);
/* How many bytes are others. */
uint64_t slab_wrong(struct device *dev, const struct slab *slab, uint32_t seed);

/* ---- other processes ------------------------------------------------------------------------- */

struct child {
	pid_t pid;
	int socket;
};

/* A process that runs `fn` with its end of a socket, and leaves with what that returns. */
struct child child_new(int (*fn)(int socket));
/* Waits for its end.  Return: its exit status, 128 + the signal that ended it. */
int child_end(struct child *c);
/* A byte and perhaps a descriptor, -1: none.  The peer's end is a failure. */
void tell(int socket, char what, int fd);
/* The byte that has to come next; the descriptor that came with it, or -1. */
int hear(int socket, char what);

/* ---- parts ----------------------------------------------------------------------------------- */

/* Smaller, for a driver that only looks like one. */
extern bool quick;

#define PARTS(X)                                                                            \
	X(driver, "which driver and device there is")                                       \
	X(share, "two processes on the same memory")                                        \
	X(holder, "memory that only a descriptor holds, in a process without the driver")   \
	X(read_only, "a write through a mapping that may only read")                        \
	X(words, "a word that a stream writes, seen by another process")                    \
	X(late, "writes that land after their process was killed")                          \
	X(kernels, "kernels: right bytes, and speed beside a copy within the device")       \
	X(moves, "blocks out and in by the back end, beside a plain copy of pinned memory") \
	X(coding, "coded and gathered blocks, beside a plain copy of pinned memory")

#define X(name, text) void part_##name(void);
PARTS(X)
#undef X
