/*
 * crash_at.c - the hook of prefixd-crash; see crash_at.h.
 *
 * Places are passed by several threads.  What is wrong in the environment ends the program at once:
 * a test that asks for a place and gets none must not pass.
 */
#include "tests/e2e/crash_at.h"

#include "radix/crash.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static char wanted[CRASH_NAME_LEN];
static _Atomic long left;
static struct crash_list *list;

static void die_here(const char *name)
{
	if (strcmp(name, wanted) != 0 || atomic_fetch_sub(&left, 1) != 1)
		return;
	(void)kill(getpid(), SIGKILL);
	for (;;)
		pause();
}

static uint32_t add(const char *name)
{
	uint32_t i;

	while (atomic_exchange(&list->busy, 1))
		continue;
	for (i = 0; i < list->n; i++)
		if (strcmp(list->v[i].name, name) == 0)
			break;
	if (i == list->n) {
		if (i == CRASH_NAMES || strlen(name) >= CRASH_NAME_LEN)
			abort();
		(void)snprintf(list->v[i].name, CRASH_NAME_LEN, "%s", name);
		list->n++;
	}
	list->busy = 0;
	return i;
}

static void write_down(const char *name)
{
	uint32_t i, n = list->n;

	for (i = 0; i < n; i++)
		if (strcmp(list->v[i].name, name) == 0)
			break;
	list->v[i < n ? i : add(name)].count++;
}

static void refuse(const char *what)
{
	fprintf(stderr, "PREFIXD_CRASH_POINT: %s\n", what);
	_exit(120);
}

static void open_list(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	void *p = MAP_FAILED;

	if (fd >= 0 && ftruncate(fd, sizeof(*list)) == 0)
		p = mmap(NULL, sizeof(*list), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		refuse("the list cannot be written");
	close(fd);
	list = p;
	radix_crash_hook = write_down;
}

__attribute__((constructor)) static void arm(void)
{
	const char *text = getenv("PREFIXD_CRASH_POINT"), *colon;
	long n;

	if (!text)
		return;
	if (strncmp(text, "list:", 5) == 0) {
		open_list(text + 5);
		return;
	}
	colon = strrchr(text, ':');
	n = colon ? strtol(colon + 1, NULL, 10) : 0;
	if (!colon || n < 1 || colon - text >= CRASH_NAME_LEN)
		refuse("NAME:N or list:FILE");
	memcpy(wanted, text, (size_t)(colon - text));
	left = n;
	radix_crash_hook = die_here;
}
