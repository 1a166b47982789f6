/*
 * driver.c - finding the CUDA driver, and its entries.
 *
 * What it guarantees.  One sentence says which state was found, in words that somebody who installs
 * machines can act on.  A library whose cuInit went well is never closed: it has threads and exit
 * handlers by then.  Any other is.
 *
 * What it relies on.  cuDriverGetVersion, cuInit and cuGetProcAddress under their own names; these
 * have not changed since they are there.  All else is asked for by name and version.
 */
#include "gpu/driver.h"

#include "gpu/say.h"

#include <dlfcn.h>

#define LIBRARY "libcuda.so.1"

typedef gpu_cu_result (*version_fn)(int *ret_version);
typedef gpu_cu_result (*lookup_fn)(const char *symbol, void **ret_entry, int version,
				   uint64_t flags);
typedef gpu_cu_result (*lookup_v2_fn)(const char *symbol, void **ret_entry, int version,
				      uint64_t flags, int *ret_status);

/* The two forms of the question; drivers of 12.0 and later have the second. */
struct lookup {
	lookup_fn old;
	lookup_v2_fn v2;
};

static const struct {
	const char *symbol;
	int version;
	bool required;
} entries[] = {
#define X(field, symbol, abi, required, args) { symbol, abi, required },
	GPU_DRIVER_TABLE(X)
#undef X
};

const char *gpu_driver_state_to_string(enum gpu_driver_state s)
{
	static const char *const texts[] = {
#define X(sym, text) text,
		GPU_DRIVER_STATES(X)
#undef X
	};

	return (unsigned)s < GPU_DRIVER_N_STATES ? texts[s] : "unknown";
}

/* A driver that knows a result names it; one that does not has only the number. */
void gpu_driver_describe(const struct gpu_driver *d, const char *call, gpu_cu_result r,
			 char *ret_text, size_t len)
{
	const char *name = NULL, *text = NULL;

	if (!d->error_name || d->error_name(r, &name) != GPU_CU_SUCCESS || !name)
		name = "error";
	if (!d->error_string || d->error_string(r, &text) != GPU_CU_SUCCESS || !text)
		text = "the driver has no text for it";
	gpu_say(ret_text, len, "%s: %s (%d): %s", call, name, r, text);
}

/*
 * Under the version that the code was written against; a driver that is older than that is asked
 * for what it has, since it takes a version above its own for a mistake.
 */
static void *find_entry(const struct lookup *l, const char *symbol, int version, int driver_version)
{
	void *entry = NULL;
	int status = 0;
	gpu_cu_result r;

	if (version > driver_version)
		version = driver_version;
	r = l->v2 ? l->v2(symbol, &entry, version, 0, &status) : l->old(symbol, &entry, version, 0);
	return r == GPU_CU_SUCCESS ? entry : NULL;
}

/* Return: the first entry that is required and missing; NULL: none is. */
static const char *find_entries(struct gpu_driver *d, const struct lookup *l)
{
	void *found[radix_array_size(entries)];
	const char *missing = NULL;
	size_t i = 0;

	for (i = 0; i < radix_array_size(entries); i++) {
		found[i] = find_entry(l, entries[i].symbol, entries[i].version, d->driver_version);
		if (!found[i] && entries[i].required && !missing)
			missing = entries[i].symbol;
	}
	i = 0;
#define X(field, symbol, abi, required, args) d->field = (gpu_cu_result(*) args)found[i++];
	GPU_DRIVER_TABLE(X)
#undef X
	return missing;
}

static enum gpu_driver_state say_stub(char *why, size_t why_len)
{
	gpu_say(why, why_len,
		"stub: " LIBRARY " is the one that programs are linked with, and no driver;"
		" take its folder out of the library path");
	return GPU_DRIVER_STUB;
}

/* From an open library to a table.  Return: OK, STUB, TOO_OLD or FAILED. */
static enum gpu_driver_state fill(struct gpu_driver *d, char *why, size_t why_len)
{
	version_fn version = (version_fn)dlsym(d->library, "cuDriverGetVersion");
	struct lookup l = {
		.old = (lookup_fn)dlsym(d->library, "cuGetProcAddress"),
		.v2 = (lookup_v2_fn)dlsym(d->library, "cuGetProcAddress_v2"),
	};
	const char *missing;
	gpu_cu_result r;

	if (!version) {
		gpu_say(why, why_len, "failed: " LIBRARY " is no GPU driver: it has no %s",
			"cuDriverGetVersion");
		return GPU_DRIVER_FAILED;
	}
	r = version(&d->driver_version);
	if (r == GPU_CU_STUB_LIBRARY)
		return say_stub(why, why_len);
	if (r != GPU_CU_SUCCESS) {
		gpu_say(why, why_len, "failed: cuDriverGetVersion of " LIBRARY " says %d", r);
		return GPU_DRIVER_FAILED;
	}
	missing = l.v2 || l.old ? find_entries(d, &l) : "cuGetProcAddress";
	if (missing) {
		gpu_say(why, why_len,
			"too old: the GPU driver is for CUDA %d.%d and has no %s; install a "
			"newer one",
			d->driver_version / 1000, d->driver_version % 1000 / 10, missing);
		return GPU_DRIVER_TOO_OLD;
	}
	return GPU_DRIVER_OK;
}

static enum gpu_driver_state say_no_device(const struct gpu_driver *d, char *why, size_t why_len)
{
	gpu_say(why, why_len,
		"no device: the GPU driver, for CUDA %d.%d, finds no GPU that this process may use",
		d->driver_version / 1000, d->driver_version % 1000 / 10);
	return GPU_DRIVER_NO_DEVICE;
}

static enum gpu_driver_state say_failed(const struct gpu_driver *d, const char *call,
					gpu_cu_result r, char *why, size_t why_len)
{
	char text[256];

	gpu_driver_describe(d, call, r, text, sizeof(text));
	gpu_say(why, why_len, "failed: the GPU driver, for CUDA %d.%d, does not start: %s",
		d->driver_version / 1000, d->driver_version % 1000 / 10, text);
	return GPU_DRIVER_FAILED;
}

/* cuInit, and whether there is a device.  *ret_started: the library may not be closed any more. */
static enum gpu_driver_state start(const struct gpu_driver *d, bool *ret_started, char *why,
				   size_t why_len)
{
	gpu_cu_result r;
	int n = 0;

	r = d->init(0);
	if (r == GPU_CU_NO_DEVICE)
		return say_no_device(d, why, why_len);
	if (r == GPU_CU_STUB_LIBRARY)
		return say_stub(why, why_len);
	if (r != GPU_CU_SUCCESS)
		return say_failed(d, "cuInit", r, why, why_len);
	*ret_started = true;
	r = d->device_count(&n);
	if (r != GPU_CU_SUCCESS)
		return say_failed(d, "cuDeviceGetCount", r, why, why_len);
	if (n == 0)
		return say_no_device(d, why, why_len);
	gpu_say(why, why_len, "GPU driver for CUDA %d.%d, %d device%s", d->driver_version / 1000,
		d->driver_version % 1000 / 10, n, n == 1 ? "" : "s");
	return GPU_DRIVER_OK;
}

enum gpu_driver_state gpu_driver_load(struct gpu_driver *ret_driver, char *why, size_t why_len)
{
	struct gpu_driver d = { .library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL) };
	enum gpu_driver_state state;
	bool started = false;

	if (!d.library) {
		const char *text = dlerror();

		gpu_say(why, why_len, "no library: there is no GPU driver here: %s",
			text ? text : LIBRARY);
		return GPU_DRIVER_NO_LIBRARY;
	}
	state = fill(&d, why, why_len);
	if (state == GPU_DRIVER_OK)
		state = start(&d, &started, why, why_len);
	if (state == GPU_DRIVER_OK)
		*ret_driver = d;
	else if (!started)
		(void)dlclose(d.library); /* it was not used */
	return state;
}
