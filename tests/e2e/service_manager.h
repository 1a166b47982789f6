/*
 * service_manager.h - what systemd is to a service, for tests: a datagram socket that hears what is
 * notified, a store of descriptors, and the way in which a service gets them back.
 *
 * It does as systemd 252: a store that is full closes what it is sent, a file that is there already
 * is not taken twice, a descriptor whose other end is gone is dropped, BARRIER=1 closes its pipe
 * when all before it was worked on.
 *
 * It runs in a thread of the test's process.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define MANAGER_STORE 600

struct manager {
	char path[108]; /* what NOTIFY_SOCKET is to be */
	int fd, stop_fd;
	pthread_t thread;
	pthread_mutex_t lock;
	uint32_t max; /* FileDescriptorStoreMax= */
	bool paused;
	uint32_t n;
	struct {
		char name[256];
		int fd;
		bool watched; /* FDPOLL= is not 0 */
	} store[MANAGER_STORE];
	char heard[16384]; /* all texts, each with an empty line behind it */
	size_t heard_len;
};

/* Starts it at `path` ('@' for the abstract kind) and sets NOTIFY_SOCKET. */
void manager_start(struct manager *m, const char *path, uint32_t max);
void manager_stop(struct manager *m);
/* While it is paused it reads nothing. */
void manager_pause(struct manager *m, bool paused);
void manager_set_max(struct manager *m, uint32_t max);
uint32_t manager_n(struct manager *m);
/* How many are stored under this name. */
uint32_t manager_n_named(struct manager *m, const char *name);
/* It has heard this text within so long; how often so far. */
bool manager_hears(struct manager *m, const char *text, unsigned ms);
uint32_t manager_n_heard(struct manager *m, const char *text);
/*
 * The next life of the service: `argv` as a process with all of the store from descriptor 3 on, and
 * further ones in front of it.  Return: its exit status.
 */
struct manager_passed {
	const char *name;
	int fd;
};
int manager_run(struct manager *m, const char *const argv[], const struct manager_passed *more,
		size_t n_more);
/* The same, still running, with its stderr behind the file `log`; killed when this process ends. */
pid_t manager_spawn(struct manager *m, const char *const argv[], const struct manager_passed *more,
		    size_t n_more, const char *log);
