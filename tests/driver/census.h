/*
 * census.h - what a test asks the look-alike driver that a real one would not answer.
 *
 * Reached like any other entry, under the name "lookalikeCensus", from a process that has loaded
 * the driver already.  No part of the product knows of it.
 */
#pragma once

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct lookalike_census {
	uint32_t n_broken;  /* rules */
	uint32_t n_planned; /* faults that came about */
	/* What this process holds. */
	uint32_t n_memories;
	uint32_t n_handles;
	uint32_t n_reservations;
	uint32_t n_mappings;
	uint32_t n_registrations;
	uint32_t n_streams;
	uint32_t n_modules;
	uint32_t n_retained; /* contexts, each time counted */
	/* What it did. */
	uint64_t n_batches; /* cuMemcpyBatchAsync */
	uint64_t n_copies;  /* single ones, and those in batches */
	uint64_t n_launches;
};

typedef void (*lookalike_census_fn)(struct lookalike_census *ret_census);

/* false: no look-alike driver is loaded. */
static inline bool lookalike_census(struct lookalike_census *ret_census)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	int (*lookup)(const char *symbol, void **ret_entry, int version, uint64_t flags);
	void *entry = NULL;

	if (!library)
		return false;
	lookup = (int (*)(const char *, void **, int, uint64_t))dlsym(library, "cuGetProcAddress");
	if (lookup && lookup("lookalikeCensus", &entry, 0, 0) == 0 && entry)
		((lookalike_census_fn)entry)(ret_census);
	(void)dlclose(library); /* the count of its users, which is not 0 by this */
	return entry != NULL;
}

/* What of the driver this process still holds, the first of it; NULL: nothing. */
static inline const char *lookalike_held(const struct lookalike_census *c)
{
	const struct {
		uint32_t n;
		const char *what;
	} held[] = {
		{ c->n_memories, "memory" },
		{ c->n_handles, "a handle" },
		{ c->n_reservations, "a reservation" },
		{ c->n_mappings, "a mapping" },
		{ c->n_registrations, "registered memory" },
		{ c->n_streams, "a stream" },
		{ c->n_modules, "a module" },
		{ c->n_retained, "a context" },
	};

	for (size_t i = 0; i < sizeof(held) / sizeof(held[0]); i++)
		if (held[i].n)
			return held[i].what;
	return NULL;
}
