/*
 * gpu.h - memory that engines map, and copies in and out of it.
 *
 * One table of functions with several realities behind it:
 *
 *     host  a sealed memfd; zero-copy for CPU engines; the embedded default
 *     sim   a device in this process: virtual clock, data moves when a copy falls due, new and
 *           freed memory is poisoned, faults by plan; shipped, so that anyone can try
 *     cuda  a GPU by its driver, which is looked for when the program runs: slabs that are exported
 *           as descriptors, mapped side by side in one address range; copies on its own streams
 *
 * Contract of every back end (one test suite runs over all of them):
 *   - submit() < 0: the job's callback never runs.  0: it runs exactly once, from reap() (or from
 *     close(), with -ENODEV, for jobs that are in flight then), never from submit().  A failed job
 *     completes too, with its error.
 *   - event_fd is readable while reap() has work.  reap() takes a budget of callbacks and returns
 *     how many it ran; it holds its caller for a bounded time, so 0 may mean that a long copy has
 *     only come further.  Whether there is more to do, event_fd says and not the number.
 *   - The job is the caller's memory and the driver's while in flight; nothing is allocated for it.
 *     In its callback it is the caller's again, and may be submitted again.
 *   - The ranges of a job do not overlap and do not leave their pool; the host's side of it lies in
 *     memory that host_pin() was told of.
 *   - Jobs that share a pool and are equally urgent and go the same way complete in their order.
 *   - A pool is freed only when no job on it is in flight.
 *   - Device addresses are uint64_t, never pointers.
 *   - One thread at a time uses a device.
 *   - -ENOMEM, -EINVAL, -EAGAIN (queue full), -EIO (this job), -ENODEV (device lost; sticky: every
 *     later call says so and all queued jobs complete with it).
 */
#pragma once

#include "gpu/coded.h"
#include "radix/base.h"

#define GPU_SLABS_MAX 16u /* of one pool: what a message and a keeper can carry */

struct gpu;
struct gpu_pool;

enum gpu_kind {
	GPU_KIND_HOST,
	GPU_KIND_SIM,
	GPU_KIND_CUDA
};

/* What a pool costs and what its memory can do, for the start-up table. */
struct gpu_pool_info {
	uint32_t n_slots;
	uint64_t slot_bytes;  /* payload of one block */
	uint64_t slot_stride; /* distance between slots: slot_bytes rounded up to 64 */
	uint64_t len;         /* bytes to map, a multiple of the page size used */
	uint64_t page_bytes;  /* 4096, or 2 MiB where huge pages were granted */
	bool huge;
	bool sealed;
	uint32_t n_slabs;      /* parts with a descriptor each, side by side in every mapping */
	uint64_t slab_bytes;   /* of each but the last, which ends at `len` */
	uint8_t device_id[16]; /* of a GPU, its UUID; else zero */
};

struct gpu_job {
	/* Set by the caller.  One side lies in a pool of this device, the other in one too or in
	 * host memory. */
	uint64_t dst;
	uint64_t src;
	uint64_t len;
	void (*done)(struct gpu_job *job, int status); /* 0, -EIO, -ENODEV */
	void *ctx;
	bool urgent; /* somebody waits: before others, where the device can tell */
	/*
	 * The next two where codes() is true; elsewhere a job with one of them is -ENOTSUP.
	 * coded: NULL for a plain copy.  Else the side in the pool is a block of `len` bytes as it
	 * is, the other side, in host memory, its packed form of gpu_coded_bytes(): out of the pool
	 * it is encoded, into it decoded.  Stays where it is until done().
	 * want_sum: a checksum of the block as it lies on the device, before encoding or after
	 * decoding; of a copy within the device, where it was copied to.  `len` is even.
	 * Both addresses are even.
	 */
	const struct gpu_coded *coded;
	bool want_sum;
	/* Set by the device when the status is 0. */
	bool uncodable;  /* an element cannot be coded, and the packed form means nothing */
	uint64_t sum[2]; /* gpu/kernels.h, by want_sum */
	/* the driver's while in flight */
	struct gpu_job *next;
	uint64_t due_ns;
	uint64_t dst_len, src_len; /* of cuda: not the same if something is coded */
	uint32_t result;           /* of cuda: where kernels leave theirs */
	int status;
};

struct gpu_ops {
	const char *name;
	enum gpu_kind kind;
	uint64_t grace_ns; /* how long after a process' end its device may still write */

	void (*close)(struct gpu *g);

	/* Memory for n_slots blocks, pre-faulted before the call returns, poisoned by sim. */
	int (*pool_new)(struct gpu *g, uint32_t n_slots, uint64_t slot_bytes,
			struct gpu_pool **ret_pool);
	/* The same with one slab whatever its size, for memory that no later process adopts. */
	int (*pool_single)(struct gpu *g, uint32_t n_slots, uint64_t slot_bytes,
			   struct gpu_pool **ret_pool);
	/* The memory of a pool that an earlier life made with these numbers, by the descriptors
	 * that pool_fd() gave, one per slab; the pool's from then on.  Its bytes are as they were.
	 * -EINVAL: they are not that, and stay the caller's. */
	int (*pool_adopt)(struct gpu *g, const int *fds, uint32_t n_fds, uint32_t n_slots,
			  uint64_t slot_bytes, struct gpu_pool **ret_pool);
	void (*pool_free)(struct gpu *g, struct gpu_pool *pool);
	void (*pool_info)(const struct gpu_pool *pool, struct gpu_pool_info *ret_info);
	/* A slab's descriptor to pass to a worker: read-write, or read-only (binds other uids only;
	 * -ENOTSUP where the device has no such thing).  The pool keeps owning it; the caller
	 * passes it on and does not close it. */
	int (*pool_fd)(struct gpu_pool *pool, uint32_t slab, bool read_only);
	uint64_t (*slot_addr)(const struct gpu_pool *pool, uint32_t slot);
	/* The daemon's own view of a slot, or NULL where the CPU cannot load from it. */
	void *(*slot_host)(const struct gpu_pool *pool, uint32_t slot);

	/* Memory of this process that jobs read and write, whole pages of it; until host_unpin() by
	 * the same address, or close(), it stays mapped.  No job may be in flight on what is
	 * unpinned.  0, -ENOMEM, -EINVAL, -ENODEV. */
	int (*host_pin)(struct gpu *g, void *p, uint64_t len);
	void (*host_unpin)(struct gpu *g, void *p);

	/* The device encodes, decodes and sums blocks by itself. */
	bool (*codes)(const struct gpu *g);
	int (*submit)(struct gpu *g, struct gpu_job *job);
	int (*event_fd)(const struct gpu *g);
	uint32_t (*reap)(struct gpu *g, uint32_t budget);
	/* 0, or -ENODEV once the device is lost.  Where nothing is in flight, whose end would tell,
	 * the device is asked: cheap, but not for every turn of a loop. */
	int (*health)(struct gpu *g);
};

/* Every back end's state begins with this. */
struct gpu {
	const struct gpu_ops *ops;
};

/*
 * Plan of the simulated device; zero is a healthy, immediate one.  Counters start at 1, 0 is never.
 */
struct gpu_sim_config {
	uint64_t ns_per_kib;     /* cost of a copy, behind the jobs before it */
	uint64_t latency_ns;     /* added to each job */
	uint64_t capacity;       /* bytes of all pools; 0: unlimited */
	uint32_t queue_depth;    /* 0: 1024 */
	uint32_t fail_alloc;     /* n-th pool_new fails with -ENOMEM */
	uint32_t fail_submit;    /* n-th submit fails with -EAGAIN */
	uint32_t fail_job;       /* n-th job completes with -EIO */
	uint32_t fail_coded;     /* n-th job to be coded is refused with -ENOMEM */
	uint32_t lose_at_job;    /* device lost when the n-th job falls due */
	uint32_t never_complete; /* n-th job never falls due (until the device is lost) */
	bool codes;              /* it does what kernels do, by the processor */
	uint64_t reorder_seed;   /* not 0: jobs on different pools may complete out of order */
};

/*
 * Opens the back end called `name`: "host", "sim", "cuda" (the first one), "cuda:UUID" (as the
 * driver's tools print it, or its digits alone, or the first few where they are enough), or "auto"
 * (cuda where there is a device, else host).  Return: 0; -ENOENT for a name that does not exist;
 * -ENODEV: no such device, or no driver; -ENOMEM.  `why` gets a sentence for the log either way.
 */
radix_nodiscard int gpu_open(const char *name, const struct gpu_sim_config *sim,
			     struct gpu **ret_gpu, char *why, size_t why_len);
void gpu_close(struct gpu *g); /* accepts NULL */
/*
 * A sentence for the log: what the device was lost by, or else what its driver refused last; ""
 * where there is nothing to say.  Valid until the next call.
 */
const char *gpu_trouble(const struct gpu *g);

/* Of a GPU its UUID, by which it is found again ("cuda:UUID"); else zeroes. */
void gpu_device_id(const struct gpu *g, uint8_t ret_id[16]);

/*
 * The virtual clock of sim: makes jobs due and moves their data.  It stands still unless somebody
 * calls this; the daemon's shell passes on the time that went by.  No-op on other back ends.
 */
void gpu_sim_advance(struct gpu *g, uint64_t ns);
/* Due time of the next job, UINT64_MAX when none: what a simulated world sleeps until. */
uint64_t gpu_sim_next_due(const struct gpu *g);
/*
 * The memory of all pools is somebody else's too, who goes on with it: from here on freeing a pool
 * leaves its bytes as they are.  Only sim would not.
 */
void gpu_leave_memory(struct gpu *g);
/* Fill a slot's memory with the poison of freed memory; no-op on other back ends. */
void gpu_poison_slot(struct gpu *g, struct gpu_pool *pool, uint32_t slot);

/*
 * A sealed memfd of `len` bytes, mapped read-write in this process and pre-faulted; huge pages
 * where mmap grants them and `want_huge` is set.  With `want_ro_fd`, ro_fd is a second descriptor,
 * opened read-only; else it is -1.  Used for pools, for the array of generations and by tests.
 * Return: 0, -ENOMEM or another negative errno; nothing is left behind on failure.
 */
struct gpu_shm {
	int fd;
	int ro_fd;
	void *base;
	uint64_t len; /* rounded up to the page size used */
	uint64_t page_bytes;
};

radix_nodiscard int gpu_shm_new(struct gpu_shm *ret_shm, const char *name, uint64_t len,
				bool want_huge, bool want_ro_fd);
/*
 * The same memory again, by its read-write descriptor, which the struct owns on success: at least
 * `len` bytes, sealed, and no page missing.  Return: 0; -EINVAL: it is not such memory; -ENOMEM or
 * another negative errno; `fd` stays the caller's then.
 */
radix_nodiscard int gpu_shm_adopt(struct gpu_shm *ret_shm, int fd, uint64_t len, bool want_ro_fd);
void gpu_shm_free(struct gpu_shm *shm); /* idempotent, accepts a zeroed struct */
