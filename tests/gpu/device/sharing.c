/*
 * sharing.c - the parts about memory that several processes have: shared, kept by a descriptor,
 * read only, and written late.
 */
#include "tests/gpu/device/kit.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static uint64_t slab_bytes(void)
{
	return quick ? UINT64_C(4) << 20 : UINT64_C(256) << 20;
}

static void nap(double s)
{
	struct timespec ts = { .tv_sec = (time_t)s };

	ts.tv_nsec = (long)((s - (double)ts.tv_sec) * 1e9);
	(void)nanosleep(&ts, NULL);
}

/* ---- which one ------------------------------------------------------------------------------- */

void part_driver(void)
{
	static struct device dev;
	int major = 0, minor = 0, words = 0, batch;
	size_t free_bytes = 0, total = 0;
	char name[96] = "";

	device_open(&dev);
	must(&dev, device_name, name, sizeof(name) - 1, dev.number);
	must(&dev, device_attribute, &major, GPU_CU_COMPUTE_CAPABILITY_MAJOR, dev.number);
	must(&dev, device_attribute, &minor, GPU_CU_COMPUTE_CAPABILITY_MINOR, dev.number);
	must(&dev, device_attribute, &words, GPU_CU_CAN_USE_64_BIT_STREAM_MEM_OPS, dev.number);
	must(&dev, mem_info, &free_bytes, &total);
	batch = dev.d.copy_batch != NULL;
	report(PASSED, "driver", "%s", dev.found);
	report(PASSED, "device", "%s, sm_%d%d, %.1f of %.1f GiB free", name, major, minor,
	       (double)free_bytes / 1073741824.0, (double)total / 1073741824.0);
	report(words ? PASSED : FAILED, "words of 64 bits written by streams", "%s",
	       words ? "yes" : "no");
	report(PASSED, "copies in batches", "%s", batch ? "yes" : "no: one call each");
}

/* ---- two processes --------------------------------------------------------------------------- */

static int share_peer(int socket)
{
	static struct device dev;
	struct slab s;
	double begun;
	int fd;

	device_open(&dev);
	fd = hear(socket, 'm');
	begun = seconds();
	s = slab_import(&dev, fd, slab_bytes(), GPU_CU_MEM_ACCESS_READWRITE);
	report(PASSED, "import and map of a slab", "%.2f ms", 1e3 * (seconds() - begun));
	report(slab_wrong(&dev, &s, 1) ? FAILED : PASSED, "bytes of the owner at the importer",
	       "%llu MiB", (unsigned long long)s.len >> 20);
	slab_fill(&dev, &s, 2);
	tell(socket, 'w', -1);
	(void)hear(socket, 'e');
	return n_failed != 0;
}

void part_share(void)
{
	static struct device dev;
	struct child peer = child_new(share_peer);
	struct slab s;
	int fd;

	device_open(&dev);
	s = slab_new(&dev, slab_bytes(), &fd);
	slab_fill(&dev, &s, 1);
	tell(peer.socket, 'm', fd);
	(void)hear(peer.socket, 'w');
	report(slab_wrong(&dev, &s, 2) ? FAILED : PASSED, "bytes of the importer at the owner",
	       "%llu MiB", (unsigned long long)s.len >> 20);
	tell(peer.socket, 'e', -1);
	if (child_end(&peer) != 0)
		report(FAILED, "importer", "ended with an error");
	slab_free(&dev, &s);
}

/* ---- the owner is killed, the descriptor stays ----------------------------------------------- */

__attribute__((noreturn)) static int holder_owner(int socket)
{
	static struct device dev;
	struct slab s;
	int fd;

	device_open(&dev);
	s = slab_new(&dev, slab_bytes(), &fd);
	slab_fill(&dev, &s, 3);
	tell(socket, 'm', fd);
	for (;;)
		(void)pause();
}

static int holder_successor(int socket)
{
	static struct device dev;
	double begun = seconds();
	uint64_t wrong;
	struct slab s;
	int fd = hear(socket, 'm');

	device_open(&dev);
	s = slab_import(&dev, fd, slab_bytes(), GPU_CU_MEM_ACCESS_READWRITE);
	wrong = slab_wrong(&dev, &s, 3);
	report(wrong ? FAILED : PASSED, "bytes after SIGKILL of the owner",
	       "%llu of %llu MiB wrong; %.0f ms from start to the last byte",
	       (unsigned long long)wrong >> 20, (unsigned long long)s.len >> 20,
	       1e3 * (seconds() - begun));
	return n_failed != 0;
}

/* This process is the holder: it never loads the driver. */
void part_holder(void)
{
	struct child owner = child_new(holder_owner), successor = child_new(holder_successor);
	int fd = hear(owner.socket, 'm');

	(void)kill(owner.pid, SIGKILL);
	report(child_end(&owner) == 128 + SIGKILL ? PASSED : FAILED, "owner killed", "SIGKILL");
	nap(quick ? 0.1 : 2.0); /* nobody has the driver now */
	tell(successor.socket, 'm', fd);
	if (child_end(&successor) != 0)
		report(FAILED, "successor", "ended with an error");
}

/* ---- a mapping that may only read ------------------------------------------------------------ */

static int reader(int socket)
{
	static struct device dev;
	gpu_cu_result asked, ended = GPU_CU_SUCCESS;
	char text[200];
	struct slab s;

	device_open(&dev);
	s = slab_import(&dev, hear(socket, 'm'), slab_bytes(), GPU_CU_MEM_ACCESS_READ);
	report(slab_wrong(&dev, &s, 4) ? FAILED : PASSED, "reading through it", "%llu MiB",
	       (unsigned long long)s.len >> 20);
	asked = dev.d.set_bytes(s.at, 0x5a, s.len, dev.stream);
	if (asked == GPU_CU_SUCCESS)
		ended = dev.d.stream_sync(dev.stream);
	gpu_driver_describe(&dev.d,
			    asked == GPU_CU_SUCCESS ? "cuStreamSynchronize" : "cuMemsetD8Async",
			    asked == GPU_CU_SUCCESS ? ended : asked, text, sizeof(text));
	report(asked != GPU_CU_SUCCESS || ended != GPU_CU_SUCCESS ? PASSED : FAILED,
	       "writing through it is refused", "%s", text);
	tell(socket, 'w', -1);
	return n_failed != 0;
}

void part_read_only(void)
{
	static struct device dev;
	struct child peer = child_new(reader);
	struct slab s;
	int fd;

	device_open(&dev);
	s = slab_new(&dev, slab_bytes(), &fd);
	slab_fill(&dev, &s, 4);
	tell(peer.socket, 'm', fd);
	(void)hear(peer.socket, 'w');
	if (child_end(&peer) != 0)
		report(FAILED, "reader", "ended with an error");
	report(slab_wrong(&dev, &s, 4) ? FAILED : PASSED, "the bytes, and the owner's context",
	       "unchanged");
}

/* ---- what lands after a death ---------------------------------------------------------------- */

#define LATE_GRACE_S 1.0 /* the back end's: struct gpu_ops.grace_ns */

__attribute__((noreturn)) static int late_writer(int socket)
{
	static struct device dev;
	struct slab s;

	device_open(&dev);
	s = slab_import(&dev, hear(socket, 'm'), slab_bytes(), GPU_CU_MEM_ACCESS_READWRITE);
	/* More than a second's worth on a fast device; the queue takes as many as it takes. */
	for (uint32_t i = 1;; i++) {
		must(&dev, set_bytes, s.at, (unsigned char)(i % 251), s.len, dev.stream);
		if (i == (quick ? 50 : 1000))
			tell(socket, 'q', -1);
	}
}

static double watch(struct device *dev, const struct slab *s, double from, double for_s)
{
	const volatile uint64_t *w = (const volatile uint64_t *)(const void *)dev->pinned;
	uint64_t last[2] = { 0, 0 };
	double changed = from;

	for (double t = seconds(); t < from + for_s; t = seconds()) {
		must(dev, copy, dev->pinned_at, s->at, 8, dev->stream);
		must(dev, copy, dev->pinned_at + 8, s->at + s->len - 8, 8, dev->stream);
		must(dev, stream_sync, dev->stream);
		if (w[0] != last[0] || w[1] != last[1])
			changed = seconds();
		last[0] = w[0];
		last[1] = w[1];
	}
	return changed - from;
}

void part_late(void)
{
	static struct device dev;
	struct child writer = child_new(late_writer);
	struct pollfd gone = { .events = POLLIN };
	double killed, ended, after;
	struct slab s;
	int fd;

	device_open(&dev);
	s = slab_new(&dev, slab_bytes(), &fd);
	tell(writer.socket, 'm', fd);
	(void)hear(writer.socket, 'q');
	gone.fd = (int)syscall(SYS_pidfd_open, writer.pid, 0);
	if (gone.fd < 0)
		give_up("late writes", "pidfd_open: %s", strerror(errno));
	killed = seconds();
	(void)kill(writer.pid, SIGKILL);
	if (poll(&gone, 1, 30000) != 1)
		give_up("late writes", "the killed process is there after 30 s");
	ended = seconds();
	after = watch(&dev, &s, ended, quick ? 0.3 : 3.0);
	(void)child_end(&writer);
	report(PASSED, "process gone after SIGKILL", "%.1f ms", 1e3 * (ended - killed));
	report(after < LATE_GRACE_S ? PASSED : FAILED, "last change of its memory",
	       "%.1f ms after that; slots rest %.0f ms", 1e3 * after, 1e3 * LATE_GRACE_S);
}
