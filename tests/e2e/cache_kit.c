#include "tests/e2e/cache_kit.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define EMPTY 0x11

void (*kit_refused)(const char *call, int result);
struct gpu_driver kit_driver;
static bool loaded;
static gpu_cu_device device;
static gpu_cu_context context;

static void cu(gpu_cu_result r, const char *call)
{
	if (r == GPU_CU_SUCCESS)
		return;
	if (kit_refused)
		kit_refused(call, r);
	ck_abort_msg("the test's own %s: %d", call, r);
}
#define CU(field, ...) cu(kit_driver.field(__VA_ARGS__), #field)

int kit_open(pfx_client *c, uint32_t piece, int map, pfx_namespace **ret_ns)
{
	pfx_namespace_options o = {
		.struct_size = sizeof(o),
		.key_mode = PFX_KEYS_TOKENS,
		.flags = PFX_NS_OPAQUE | PFX_NS_WORDS,
		.model = piece % 16 ? "odd" : "even",
		.revision = "1",
		.dtype = "uint8",
		.layers = KIT_LAYERS,
		.kv_heads = 1,
		.head_dim = 1,
		.block_tokens = 16,
		.block_bytes = KIT_PIECES * piece,
		.layout = "opaque",
		.tp_size = 1,
		.engine = "test",
		.map = map,
	};

	return pfx_open(c, &o, ret_ns);
}

int kit_mover_wanted(void)
{
	const char *name = getenv("CACHE_MOVER");

	if (!name || strcmp(name, "processor") == 0)
		return PFX_CACHE_PROCESSOR;
	return strcmp(name, "kernel") == 0 ? PFX_CACHE_KERNEL : PFX_CACHE_COPIES;
}

/* ---- memory ---------------------------------------------------------------------------------- */

void kit_load(void)
{
	char why[256];

	if (loaded)
		return;
	if (gpu_driver_load(&kit_driver, why, sizeof(why)) != GPU_DRIVER_OK) {
		if (kit_refused)
			kit_refused("load", GPU_CU_UNKNOWN);
		ck_abort_msg("%s", why);
	}
	CU(device_get, &device, 0);
	CU(context_retain, &context, device);
	CU(context_set, context);
	loaded = true;
}

void kit_unload(void)
{
	CU(context_release, device);
	loaded = false;
}

void kit_stream_free(gpu_cu_stream stream)
{
	CU(stream_sync, stream);
	CU(stream_free, stream);
}

gpu_cu_stream kit_stream_new(void)
{
	gpu_cu_stream stream;

	CU(stream_new, &stream, GPU_CU_STREAM_NON_BLOCKING, 0);
	return stream;
}

static void device_memory(struct kit_worker *w)
{
	const struct gpu_cu_alloc_prop prop = {
		.type = GPU_CU_MEM_ALLOCATION_PINNED,
		.location = { .type = GPU_CU_MEM_LOCATION_DEVICE, .id = device },
	};
	const struct gpu_cu_access_desc access = { prop.location, GPU_CU_MEM_ACCESS_READWRITE };
	gpu_cu_memory memory;
	size_t unit;

	CU(mem_granularity, &unit, &prop, GPU_CU_MEM_GRANULARITY_RECOMMENDED);
	w->len = (w->len + unit - 1) / unit * unit;
	CU(mem_create, &memory, w->len, &prop, 0);
	CU(address_reserve, &w->address, w->len, 0, 0, 0);
	CU(mem_map, w->address, w->len, 0, memory, 0);
	CU(mem_release, memory);
	CU(mem_access, w->address, w->len, &access, 1);
}

static uint64_t piece_off(const struct kit_worker *w, uint32_t s, uint32_t b)
{
	const uint32_t layer = s / 2, kv = s % 2;

	if (w->shape == KIT_HALVES)
		return ((uint64_t)s * w->n_blocks + b) * w->piece;
	return (2 * ((uint64_t)(KIT_LAYERS - 1 - layer) * w->n_blocks + b) + kv) * w->piece;
}

void kit_worker_init(struct kit_worker *w, pfx_client *c, pfx_namespace *ns, enum kit_shape shape,
		     uint32_t n_blocks, uint32_t piece)
{
	const bool on_gpu = pfx_pool_device(ns, NULL) == PFX_DEVICE_CUDA;

	memset(w, 0, sizeof(*w));
	w->client = c;
	w->ns = ns;
	w->shape = shape;
	w->n_blocks = n_blocks;
	w->piece = piece;
	w->len = (size_t)n_blocks * KIT_PIECES * piece;
	if (on_gpu) {
		kit_load();
		device_memory(w);
		w->stream = kit_stream_new();
	}
	w->bytes = mmap(NULL, w->len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(w->bytes, MAP_FAILED);
	memset(w->bytes, EMPTY, w->len);
	if (on_gpu) {
		CU(host_register, w->bytes, w->len,
		   GPU_CU_MEMHOSTREGISTER_PORTABLE | GPU_CU_MEMHOSTREGISTER_DEVICEMAP);
		CU(host_pointer, &w->picture_at, w->bytes, 0);
		(void)pfx_pool_device(ns, w->uuid);
		kit_send(w);
	}
	for (uint32_t s = 0; s < KIT_PIECES; s++)
		w->pieces[s] = (on_gpu ? w->address : (uintptr_t)w->bytes) + piece_off(w, s, 0);
	w->layout = (pfx_cache_layout){
		.struct_size = sizeof(w->layout),
		.pieces = w->pieces,
		.n_pieces = KIT_PIECES,
		.n_blocks = n_blocks,
		.piece_bytes = piece,
		.stride = (shape == KIT_PAIRS ? 2 : 1) * (uint64_t)piece,
		.device = on_gpu ? w->uuid : NULL,
	};
}

void kit_worker_deinit(struct kit_worker *w)
{
	kit_settle(w);
	pfx_cache_free(w->cache);
	pfx_close(w->client);
	if (w->stream) {
		CU(host_unregister, w->bytes);
		CU(stream_free, w->stream);
		CU(mem_unmap, w->address, w->len);
		CU(address_free, w->address, w->len);
	}
	munmap(w->bytes, w->len);
	memset(w, 0, sizeof(*w));
}

void kit_settle(struct kit_worker *w)
{
	if (w->stream)
		CU(stream_sync, w->stream);
}

void kit_send(struct kit_worker *w)
{
	if (!w->stream)
		return;
	CU(copy, w->address, w->picture_at, w->len, w->stream);
	CU(stream_sync, w->stream);
}

void kit_fetch(struct kit_worker *w)
{
	if (!w->stream)
		return;
	CU(copy, w->picture_at, w->address, w->len, w->stream);
	CU(stream_sync, w->stream);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static uint8_t byte_of(uint32_t seed, uint32_t i, uint32_t s, uint32_t k)
{
	return (uint8_t)(seed * 89 + i * 37 + s * 11 + k * 3 + k / 256);
}

void kit_fill(struct kit_worker *w, uint32_t b, uint32_t seed, uint32_t i)
{
	for (uint32_t s = 0; s < KIT_PIECES; s++)
		for (uint32_t k = 0; k < w->piece; k++)
			w->bytes[piece_off(w, s, b) + k] = byte_of(seed, i, s, k);
}

bool kit_holds(const struct kit_worker *w, uint32_t b, uint32_t seed, uint32_t i)
{
	for (uint32_t s = 0; s < KIT_PIECES; s++)
		for (uint32_t k = 0; k < w->piece; k++)
			if (w->bytes[piece_off(w, s, b) + k] != byte_of(seed, i, s, k))
				return false;
	return true;
}

bool kit_untouched(const struct kit_worker *w, uint32_t b)
{
	for (uint32_t s = 0; s < KIT_PIECES; s++)
		for (uint32_t k = 0; k < w->piece; k++)
			if (w->bytes[piece_off(w, s, b) + k] != EMPTY)
				return false;
	return true;
}

const pfx_prompt *kit_prompt(uint32_t seed)
{
	static uint32_t tokens[KIT_PROMPT * 16];
	static pfx_prompt p;

	for (uint32_t i = 0; i < KIT_PROMPT * 16; i++)
		tokens[i] = seed * 1000 + i;
	p = (pfx_prompt){
		.struct_size = sizeof(p), .salt = "", .keys = tokens, .n_keys = KIT_PROMPT
	};
	return &p;
}

void kit_slots(const pfx_run *runs, uint32_t n_runs, uint32_t *ret_slots, uint32_t n)
{
	uint32_t i = 0;

	for (uint32_t k = 0; k < n_runs; k++)
		for (uint32_t j = 0; j < runs[k].len && i < n; j++)
			ret_slots[i++] = runs[k].start + j;
	ck_assert_uint_eq(i, n);
}
