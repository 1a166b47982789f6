/*
 * cuda.c - a GPU behind its driver: finding it, its context, and its end.
 *
 * What it guarantees.  A device is used through its primary context, which the thread that calls
 * has current from the first call of the driver on.  A result of the driver that is not the
 * caller's mistake and not a lack of memory loses the device, for good: of a fault the driver tells
 * at the next call, whatever that is.  The sentence about it stays until close().
 *
 * What it relies on.  driver.h.  One thread at a time uses a device; the driver's own threads write
 * a descriptor and nothing else here.
 */
#include "gpu/cuda_internal.h"
#include "gpu/devices.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

const struct gpu_driver_names gpu_driver_names = {
#define X(field, symbol, abi, required, args) .field = symbol,
	GPU_DRIVER_TABLE(X)
#undef X
};

/* ---- results --------------------------------------------------------------------------------- */

void gpu_cuda_lose(struct cuda *c)
{
	c->lost = true;
	gpu_cuda_wake(c);
}

/*
 * Return: 0; -ENOMEM; -EINVAL for what the driver will not do with these numbers; -ENODEV, and the
 * device is lost, for all else.
 */
int gpu_cuda_result(struct cuda *c, const char *call, gpu_cu_result r)
{
	if (r == GPU_CU_SUCCESS)
		return 0;
	/* The first fault is the cause of those after it. */
	if (!c->lost)
		gpu_driver_describe(&c->driver, call, r, c->trouble, sizeof(c->trouble));
	if (r == GPU_CU_OUT_OF_MEMORY)
		return -ENOMEM;
	if (r == GPU_CU_INVALID_VALUE || r == GPU_CU_NOT_SUPPORTED || r == GPU_CU_NOT_PERMITTED ||
	    r == GPU_CU_HOST_MEMORY_ALREADY_REGISTERED)
		return -EINVAL;
	gpu_cuda_lose(c);
	return -ENODEV;
}

/* What the device was lost by, or the last thing refused; "" before that. */
const char *gpu_cuda_trouble(const struct gpu *g)
{
	return gpu_cuda_of(g)->trouble;
}

/* Before any call of the driver: the context belongs to threads.  Return: 0, -ENODEV. */
int gpu_cuda_enter(struct cuda *c)
{
	if (gpu_cuda_call(c, context_set, c->context) < 0)
		gpu_cuda_lose(c);
	return c->lost ? -ENODEV : 0;
}

/* ---- which device ---------------------------------------------------------------------------- */

#define ID_DIGITS 32

/* The hexadecimal digits of a text that may have "GPU-" or "MIG-" before them and dashes within. */
static bool id_digits(const char *text, char ret_digits[ID_DIGITS + 1])
{
	size_t n = 0;

	if (strncasecmp(text, "GPU-", 4) == 0 || strncasecmp(text, "MIG-", 4) == 0)
		text += 4;
	for (; *text; text++) {
		if (*text == '-')
			continue;
		if (!isxdigit((unsigned char)*text) || n == ID_DIGITS)
			return false;
		ret_digits[n++] = (char)tolower((unsigned char)*text);
	}
	ret_digits[n] = '\0';
	return n > 0;
}

/* What choosing finds out: how many fit, and a list of all for the sentence. */
struct choice {
	const char *wanted; /* digits; NULL: any */
	uint32_t n_fit;
	gpu_cu_device device;
	char list[400];
};

static int consider(struct cuda *c, struct choice *choice, int ordinal)
{
	size_t used = strlen(choice->list);
	char text[GPU_ID_TEXT], digits[ID_DIGITS + 1];
	struct gpu_cu_uuid id;
	gpu_cu_device device;
	int r;

	r = gpu_cuda_call(c, device_get, &device, ordinal);
	if (r == 0)
		r = gpu_cuda_call(c, device_uuid, &id, device);
	if (r < 0)
		return r;
	gpu_id_print(id.b, text);
	(void)snprintf(choice->list + used, sizeof(choice->list) - used, "%s%s", used ? ", " : "",
		       text);
	if (choice->wanted && (!id_digits(text, digits) ||
			       strncmp(digits, choice->wanted, strlen(choice->wanted)) != 0))
		return 0;
	if (choice->n_fit++ == 0)
		choice->device = device;
	return 0;
}

/* Of all that this process may use. */
uint32_t gpu_cuda_count(const struct gpu *g)
{
	return gpu_cuda_of(g)->n_devices;
}

/*
 * Of those from the nth on, without `uuid` the first one.  Return: 0; -ENODEV and a sentence in
 * c->trouble.
 */
static int choose(struct cuda *c, const char *uuid, uint32_t nth)
{
	char digits[ID_DIGITS + 1] = "";
	struct choice choice = { .wanted = uuid ? digits : NULL };
	bool sound = !uuid || id_digits(uuid, digits);
	int n = 0;
	int r;

	r = gpu_cuda_call(c, device_count, &n);
	c->n_devices = n > 0 ? (uint32_t)n : 0;
	for (int i = (int)nth; r == 0 && i < n; i++)
		r = consider(c, &choice, i);
	if (r < 0)
		return r;
	if (choice.n_fit == 0 || !sound)
		(void)snprintf(c->trouble, sizeof(c->trouble),
			       "no GPU has a UUID that begins with \"%.48s\"; there are: %s",
			       uuid ? uuid : "", choice.list);
	else if (uuid && choice.n_fit > 1)
		(void)snprintf(c->trouble, sizeof(c->trouble),
			       "%u GPUs have a UUID that begins with \"%.48s\": %s", choice.n_fit,
			       uuid, choice.list);
	else
		c->device = choice.device;
	return c->trouble[0] ? -ENODEV : 0;
}

/* ---- what it can do -------------------------------------------------------------------------- */

static int attribute(struct cuda *c, enum gpu_cu_attribute a, int *ret_value)
{
	return gpu_cuda_call(c, device_attribute, ret_value, a, c->device);
}

/* Return: 0; -ENODEV where something is missing that this back end cannot do without. */
static int able(struct cuda *c)
{
	static const struct {
		enum gpu_cu_attribute a;
		const char *text;
	} needs[] = {
		{ GPU_CU_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, "map memory at chosen addresses" },
		{ GPU_CU_HANDLE_TYPE_POSIX_FD_SUPPORTED, "share memory by descriptor" },
		{ GPU_CU_CAN_USE_64_BIT_STREAM_MEM_OPS, "write a word of 64 bits from a queue" },
	};
	int r, rdma = 0;

	for (size_t i = 0; i < radix_array_size(needs); i++) {
		int can = 0;

		r = attribute(c, needs[i].a, &can);
		if (r < 0)
			return r;
		if (can)
			continue;
		(void)snprintf(c->trouble, sizeof(c->trouble), "the GPU cannot %s", needs[i].text);
		return -ENODEV;
	}
	r = attribute(c, GPU_CU_GPU_DIRECT_RDMA_WITH_VMM_SUPPORTED, &rdma);
	c->prop = (struct gpu_cu_alloc_prop){
		.type = GPU_CU_MEM_ALLOCATION_PINNED,
		.handle_types = GPU_CU_MEM_HANDLE_POSIX_FD,
		.location = { GPU_CU_MEM_LOCATION_DEVICE, c->device },
		.flags = { .gpu_direct_rdma = rdma != 0 },
	};
	return r;
}

/* "NAME (GPU-...), compute 9.0, 132 multiprocessors, 80 of 80 GiB free, driver for CUDA 13.0" */
static int describe(struct cuda *c, char *why, size_t why_len)
{
	char name[96] = "", text[GPU_ID_TEXT];
	size_t n_free = 0, total = 0;
	int r, major = 0, minor = 0, n = 0;

	r = gpu_cuda_call(c, device_name, name, (int)sizeof(name), c->device);
	if (r == 0)
		r = gpu_cuda_call(c, device_uuid, &c->id, c->device);
	if (r == 0)
		r = attribute(c, GPU_CU_COMPUTE_CAPABILITY_MAJOR, &major);
	if (r == 0)
		r = attribute(c, GPU_CU_COMPUTE_CAPABILITY_MINOR, &minor);
	if (r == 0)
		r = attribute(c, GPU_CU_MULTIPROCESSOR_COUNT, &n);
	if (r == 0)
		r = gpu_cuda_call(c, mem_info, &n_free, &total);
	if (r < 0)
		return r;
	gpu_id_print(c->id.b, text);
	(void)snprintf(why, why_len,
		       "%s (%s), compute %d.%d, %d multiprocessors, %zu of %zu MiB free, driver for"
		       " CUDA %d.%d",
		       name, text, major, minor, n, n_free >> 20, total >> 20,
		       c->driver.driver_version / 1000, c->driver.driver_version % 1000 / 10);
	return 0;
}

/* ---- the device ------------------------------------------------------------------------------ */

static int context_init(struct cuda *c)
{
	size_t granularity = 0;
	gpu_cu_result set;
	int r;

	/* Somebody else in this process may have it already; then it is as they made it. */
	set = gpu_cuda_ask(c, context_flags, c->device, GPU_CU_CTX_SCHED_BLOCKING_SYNC);
	if (set != GPU_CU_PRIMARY_CONTEXT_ACTIVE)
		r = gpu_cuda_result(c, gpu_driver_names.context_flags, set);
	else
		r = 0;
	if (r == 0)
		r = gpu_cuda_call(c, context_retain, &c->context, c->device);
	if (r < 0)
		return r;
	c->retained = true;
	r = gpu_cuda_enter(c);
	if (r == 0)
		r = gpu_cuda_call(c, mem_granularity, &granularity, &c->prop,
				  GPU_CU_MEM_GRANULARITY_RECOMMENDED);
	if (r < 0)
		return r;
	c->granularity = granularity;
	return granularity ? 0 : -EINVAL;
}

/* Nothing is in flight.  All of it, whatever of it there is. */
static void take_down(struct cuda *c)
{
	gpu_cuda_kernels_deinit(c);
	gpu_cuda_memory_deinit(c);
	gpu_cuda_queues_deinit(c);
	if (c->retained) {
		gpu_cuda_undo(c, context_set, NULL);
		gpu_cuda_undo(c, context_release, c->device);
	}
	free(c);
}

/*
 * A queue that does not end still reads and writes memory: then all of it is left as it is, for the
 * system to take when the process ends.
 */
static void cuda_close(struct gpu *g)
{
	struct cuda *c = gpu_cuda_of(g);

	c->closing = true;
	(void)gpu_cuda_enter(c); /* lost: what was taken is given back all the same */
	if (gpu_cuda_queues_end(c))
		take_down(c);
}

static int cuda_event_fd(const struct gpu *g)
{
	return gpu_cuda_of(g)->event_fd;
}

static int cuda_health(struct gpu *g)
{
	struct cuda *c = gpu_cuda_of(g);

	if (!c->lost && gpu_cuda_enter(c) == 0)
		gpu_cuda_look(c);
	return c->lost ? -ENODEV : 0;
}

static void *cuda_slot_host(const struct gpu_pool *pool, uint32_t slot)
{
	return NULL;
}

static const struct gpu_ops cuda_ops = {
	.name = "cuda",
	.kind = GPU_KIND_CUDA,
	.grace_ns =
		UINT64_C(1000000000), /* what was queued runs on, and its end is told to nobody */
	.close = cuda_close,
	.pool_new = gpu_cuda_pool_new,
	.pool_single = gpu_cuda_pool_single,
	.pool_adopt = gpu_cuda_pool_adopt,
	.pool_free = gpu_cuda_pool_free,
	.pool_info = gpu_cuda_pool_info,
	.pool_fd = gpu_cuda_pool_fd,
	.slot_addr = gpu_pool_slot_addr,
	.slot_host = cuda_slot_host,
	.host_pin = gpu_cuda_host_pin,
	.host_unpin = gpu_cuda_host_unpin,
	.codes = gpu_cuda_codes,
	.submit = gpu_cuda_submit,
	.event_fd = cuda_event_fd,
	.reap = gpu_cuda_reap,
	.health = cuda_health,
};

static struct cuda *cuda_new(void)
{
	struct cuda *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	c->gpu.ops = &cuda_ops;
	c->event_fd = c->wake_fd = c->tick_fd = -1;
	radix_list_init(&c->pools);
	radix_list_init(&c->pins);
	radix_list_init(&c->stages);
	for (uint32_t i = 0; i < CUDA_N_LANES; i++) {
		gpu_queue_init(&c->lanes[i].taken);
		gpu_queue_init(&c->lanes[i].flying);
	}
	return c;
}

static int start(struct cuda *c, const char *uuid, uint32_t nth, char *why, size_t why_len)
{
	int r;

	r = choose(c, uuid, nth);
	if (r == 0)
		r = able(c);
	if (r == 0)
		r = context_init(c);
	if (r == 0)
		r = gpu_cuda_queues_init(c);
	if (r == 0)
		r = describe(c, why, why_len);
	if (r == 0)
		gpu_cuda_kernels_init(c, why, why_len);
	return r;
}

static int open_one(const char *uuid, uint32_t nth, struct gpu **ret_gpu, char *why, size_t why_len)
{
	struct cuda *c = cuda_new();
	int r;

	if (!c) {
		(void)snprintf(why, why_len, "there is no memory for a device");
		return -ENOMEM;
	}
	if (gpu_driver_load(&c->driver, why, why_len) != GPU_DRIVER_OK) {
		free(c);
		return -ENODEV;
	}
	r = start(c, uuid, nth, why, why_len);
	if (r == 0) {
		*ret_gpu = &c->gpu;
		return 0;
	}
	(void)snprintf(why, why_len, "%s", c->trouble[0] ? c->trouble : strerrordesc_np(-r));
	take_down(c);
	return r == -EINVAL ? -ENODEV : r;
}

/*
 * The device with that UUID, or the first one.  Return: 0; -ENODEV: no driver, no such device, or
 * it cannot do what is needed; -ENOMEM; what eventfd() and its like said.  `why` has a sentence.
 */
int gpu_cuda_open(const char *uuid, struct gpu **ret_gpu, char *why, size_t why_len)
{
	return open_one(uuid, 0, ret_gpu, why, why_len);
}

/* The same for the nth of all, from 0. */
int gpu_cuda_open_nth(uint32_t nth, struct gpu **ret_gpu, char *why, size_t why_len)
{
	return open_one(NULL, nth, ret_gpu, why, why_len);
}
