/*
 * config.c - LOOKALIKE, the variable that steers the look-alike driver, read once per process.
 *
 * A value that it does not know ends the process: a misspelt fault would let a test pass that
 * tests nothing.
 */
#include "tests/driver/lookalike.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static struct lookalike_config config = {
	.devices = 1,
	.version = 13000,
	.memory = UINT64_C(1) << 30,
	.granularity = UINT64_C(2) << 20,
};
static char text[LOOKALIKE_TEXT]; /* what config points into */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void __attribute__((noreturn)) refuse(const char *name, const char *value)
{
	(void)fprintf(stderr, "lookalike: LOOKALIKE: %s=%s is nothing that it knows\n", name,
		      value ? value : "");
	abort();
}

static uint64_t number(const char *name, const char *value)
{
	char *end = NULL;
	unsigned long long n = strtoull(value, &end, 0);

	if (*value == '\0' || *end != '\0')
		refuse(name, value);
	return n;
}

static bool flag(const char *name, const char *value)
{
	uint64_t n = number(name, value);

	if (n > 1)
		refuse(name, value);
	return n == 1;
}

static const char *symbol_of(const char *what)
{
	if (false)
		return NULL;
#define X(field, symbol, abi, required, args)                       \
	if (strcmp(what, #field) == 0 || strcmp(what, symbol) == 0) \
		return symbol;
	GPU_DRIVER_TABLE(X)
#undef X
	return NULL;
}

static const char *operation_of(const char *what)
{
	static const char *const kinds[] = { "copy", "set", "write", "call", "kernel" };

	for (size_t i = 0; i < radix_array_size(kinds); i++)
		if (strcmp(what, kinds[i]) == 0)
			return kinds[i];
	return NULL;
}

/* WHAT:NTH:RESULT, or WHAT:NTH-:RESULT for that one and all after it. */
static void parse_fault(const char *name, bool operation, char *value)
{
	char *what = strsep(&value, ":"), *nth = strsep(&value, ":");
	struct lookalike_fault *f = &config.faults[config.n_faults];
	size_t len = nth ? strlen(nth) : 0;

	if (!value || len == 0 || config.n_faults == LOOKALIKE_MAX_FAULTS)
		refuse(name, what);
	f->what = operation ? operation_of(what) : symbol_of(what);
	if (!f->what)
		refuse(name, what);
	f->onward = nth[len - 1] == '-';
	if (f->onward)
		nth[len - 1] = '\0';
	f->nth = (uint32_t)number(name, nth);
	f->result = operation && strcmp(value, "hang") == 0 ? LOOKALIKE_HANG
							    : (int)number(name, value);
	if (f->nth == 0 || f->result == 0)
		refuse(name, what);
	config.n_faults++;
}

static void parse_faults(const char *name, bool operation, char *value)
{
	char *one;

	while ((one = strsep(&value, "+")))
		parse_fault(name, operation, one);
}

static void parse_text(const char *name, char *value)
{
	if (strcmp(name, "fail") == 0)
		parse_faults(name, false, value);
	else if (strcmp(name, "op") == 0)
		parse_faults(name, true, value);
	else if (strcmp(name, "trace") == 0)
		config.trace = value;
	else if (strcmp(name, "kernels") == 0)
		config.kernels = value;
	else
		refuse(name, value);
}

static void parse_one(const char *name, char *value)
{
	if (strcmp(name, "devices") == 0)
		config.devices = (int)number(name, value);
	else if (strcmp(name, "first") == 0)
		config.first = (int)number(name, value);
	else if (strcmp(name, "version") == 0)
		config.version = (int)number(name, value);
	else if (strcmp(name, "stub") == 0)
		config.stub = flag(name, value);
	else if (strcmp(name, "poison") == 0)
		config.poison = flag(name, value);
	else if (strcmp(name, "strict") == 0)
		config.strict = flag(name, value);
	else if (strcmp(name, "opaque") == 0)
		config.opaque = flag(name, value);
	else if (strcmp(name, "abort") == 0)
		config.abort = flag(name, value);
	else if (strcmp(name, "memory") == 0)
		config.memory = number(name, value);
	else if (strcmp(name, "granularity") == 0)
		config.granularity = number(name, value);
	else if (strcmp(name, "latency_us") == 0)
		config.latency_ns = number(name, value) * 1000;
	else if (strcmp(name, "gbps") == 0)
		config.bytes_per_ns = (double)number(name, value);
	else if (strcmp(name, "reorder") == 0)
		config.reorder = number(name, value);
	else
		parse_text(name, value);
}

static void check(void)
{
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

	if (config.devices < 0 || config.first < 0 ||
	    config.devices + config.first > LOOKALIKE_MAX_DEVICES)
		refuse("devices", "");
	if (config.granularity < page || (config.granularity & (config.granularity - 1)) != 0)
		refuse("granularity", "");
}

static void read_variable(void)
{
	const char *variable = getenv("LOOKALIKE");
	char *rest = text, *one;

	if (!variable)
		return;
	if (strlen(variable) >= sizeof(text))
		refuse("all of it", "");
	(void)snprintf(text, sizeof(text), "%s", variable);
	while ((one = strsep(&rest, ","))) {
		char *name = strsep(&one, "=");

		if (*name == '\0')
			continue;
		if (!one)
			refuse(name, one);
		parse_one(name, one);
	}
	check();
}

const struct lookalike_config *lookalike_config(void)
{
	(void)pthread_once(&once, read_variable);
	return &config;
}

struct lookalike_fault *lookalike_faults(uint32_t *ret_n)
{
	*ret_n = lookalike_config()->n_faults;
	return config.faults;
}

void lookalike_uuid(int device, struct gpu_cu_uuid *ret_id)
{
	static const uint8_t base[16] = { 0x10, 0x0c, 0xa1, 0x1c, 0xe0, 0x00, 0x40, 0x00,
					  0x80, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00 };

	memcpy(ret_id->b, base, sizeof(base));
	ret_id->b[15] = (uint8_t)(lookalike_config()->first + device);
}
