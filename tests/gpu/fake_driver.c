/*
 * fake_driver.c - libraries that are called libcuda.so.1 and are not, or hardly, a driver.
 *
 * Compiled once for each FAKE_: what somebody may find on a machine where things went wrong.
 */
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

#ifdef FAKE_OTHER /* has the name alone */
EXPORT int something_else(void);

int something_else(void)
{
	return 1;
}
#else
EXPORT int cuDriverGetVersion(int *ret_version);
EXPORT int cuInit(unsigned flags);

int cuInit(unsigned flags)
{
	(void)flags;
	return FAKE_INIT;
}

int cuDriverGetVersion(int *ret_version)
{
	*ret_version = FAKE_VERSION;
	return 0;
}
#endif

#ifdef FAKE_LOOKUP /* in its first form only */
EXPORT int cuGetProcAddress(const char *symbol, void **ret_entry, int version, uint64_t flags);

/* Good for whatever is called before cuInit has gone well. */
static int anything(unsigned flags)
{
	(void)flags;
	return FAKE_INIT;
}

int cuGetProcAddress(const char *symbol, void **ret_entry, int version, uint64_t flags)
{
	(void)symbol;
	*ret_entry = (void *)anything;
	return version > FAKE_VERSION || flags != 0; /* 1: an invalid value */
}
#endif
