/*
 * blocks.c - keys, and the contents of blocks: f(namespace, path), compared and written.
 */
#include "clients/replay/worker.h"

#include "clients/replay/content.h"
#include "clients/replay/util.h"

#include <string.h>

/* Token ids made up for a block that has none: the name in the first two, noise behind it. */
static void make_tokens(uint64_t name, uint32_t *tokens, uint32_t n)
{
	tokens[0] = (uint32_t)name;
	for (uint32_t i = 1; i < n; i++)
		tokens[i] = (uint32_t)(replay_mix(name + i) >> 32);
	if (n > 1)
		tokens[1] = (uint32_t)(name >> 32);
}

const void *replay_keys_of(struct replay_worker *w, const struct replay_request *r)
{
	const uint32_t *blocks = replay_trace_blocks(w->trace, r);

	if (w->key_mode == REPLAY_KEYS_TOKENS && w->trace->has_tokens)
		return w->trace->tokens + r->first_token;
	w->keys = replay_grow(w->keys, &w->keys_cap, (size_t)r->n_blocks * w->key_len, 1);
	for (uint32_t i = 0; i < r->n_blocks; i++) {
		uint8_t *key = w->keys + (size_t)i * w->key_len;

		if (w->key_mode == REPLAY_KEYS_DIGEST)
			memcpy(key, w->job->digests[blocks[i]], 16);
		else
			make_tokens(w->trace->names[blocks[i]], (void *)key,
				    w->trace->block_tokens);
	}
	return w->keys;
}

void replay_paths_make(struct replay_worker *w, const uint8_t *keys, uint32_t n,
		       const uint8_t root[16])
{
	pfx_namespace_info info = { .struct_size = sizeof(info) };
	uint64_t path;

	/* Asked for each time: after a restart of the daemon the namespace is a new one. */
	(void)pfx_namespace_get(w->ns, &info); /* fails for NULL only */
	path = replay_path_root(info.digest, root);
	w->paths = replay_grow(w->paths, &w->paths_cap, n, sizeof(*w->paths));
	for (uint32_t i = 0; i < n; i++) {
		path = replay_path_step(path, keys + (size_t)i * w->key_len, w->key_len);
		w->paths[i] = path;
	}
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* Slots that are moved at once, where they have to be: together no longer than this, or one. */
#define MOVE_BYTES (UINT64_C(1) << 20)

static bool on_gpu(const struct replay_worker *w)
{
	return pfx_pool_device(w->ns, NULL) == PFX_DEVICE_CUDA;
}

/* Asked for each time: after a restart of the daemon the pool may be another one. */
static size_t stride_of(const struct replay_worker *w)
{
	pfx_namespace_info info = { .struct_size = sizeof(info) };

	(void)pfx_namespace_get(w->ns, &info); /* fails for NULL only */
	return info.slot_stride;
}

static uint32_t at_once(uint32_t n, size_t stride)
{
	uint64_t most = MOVE_BYTES / stride;

	return n <= most ? n : most ? (uint32_t)most : 1;
}

/* Where n slots side by side can be read; NULL: see slots_why(). */
static const uint8_t *slots_get(struct replay_worker *w, uint32_t slot, uint32_t n, size_t stride)
{
	if (on_gpu(w))
		return replay_mover_get(w->mover, w->ns, slot, n * stride);
	return pfx_slot(w->ns, slot + n - 1) ? pfx_slot(w->ns, slot) : NULL;
}

static const char *slots_why(const struct replay_worker *w)
{
	return on_gpu(w) ? replay_mover_why(w->mover) : "it is outside the pool";
}

static void check_block(struct replay_worker *w, size_t request, uint32_t position, uint32_t slot,
			const void *block, uint64_t reuse)
{
	size_t len = w->options->block_bytes;
	size_t same;

	if (!block || pfx_slot_stale(w->ns, slot, reuse)) {
		replay_error(w, "request %zu: block %u: slot %u: %s", request, position, slot,
			     block ? "it was reused under the lease" : slots_why(w));
		return;
	}
	same = replay_content_check(block, len, w->paths[position]);
	w->stats->blocks_verified++;
	w->stats->bytes_read += len;
	if (same != len) {
		w->stats->blocks_corrupt++;
		replay_note(w, "request %zu: block %u in slot %u differs from byte %zu on", request,
			    position, slot, same);
	}
}

/* Slots side by side, block `position` in the first. */
static void check_slots(struct replay_worker *w, size_t request, uint32_t position, pfx_run run,
			uint64_t reuse)
{
	size_t stride = stride_of(w);
	uint32_t n;

	for (uint32_t at = 0; at < run.len; at += n) {
		const uint8_t *p;

		n = at_once(run.len - at, stride);
		p = slots_get(w, run.start + at, n, stride);
		for (uint32_t i = 0; i < n; i++)
			check_block(w, request, position + at + i, run.start + at + i,
				    p ? p + i * stride : NULL, reuse);
	}
}

uint32_t replay_runs_check(struct replay_worker *w, size_t request, const pfx_match_result *m,
			   uint32_t from)
{
	uint32_t position = 0;

	for (uint32_t i = 0; i < m->n_runs && position < m->n_device; i++) {
		pfx_run run = m->runs[i];

		if (run.len > m->n_device - position)
			run.len = m->n_device - position;
		if (w->options->verify == REPLAY_VERIFY_ALL)
			check_slots(w, request, from + position, run, m->reuse);
		position += run.len;
	}
	return position;
}

/* Slots side by side; paths[0] is that of the first.  Return: false: they are not where they can
 * be, or the GPU refused. */
static bool fill_slots(struct replay_worker *w, pfx_run run, const uint64_t *paths)
{
	size_t stride = stride_of(w);
	bool gpu = on_gpu(w);
	uint32_t n;

	for (uint32_t at = 0; at < run.len; at += n) {
		uint32_t slot = run.start + at;
		uint8_t *p;

		n = at_once(run.len - at, stride);
		if (gpu)
			p = replay_mover_buffer(w->mover, w->ns, n * stride);
		else
			p = pfx_write_slot(w->ns, slot + n - 1) ? pfx_write_slot(w->ns, slot)
								: NULL;
		for (uint32_t i = 0; p && i < n; i++)
			replay_content_fill(p + i * stride, w->options->block_bytes, paths[at + i]);
		if (!p || (gpu && replay_mover_put(w->mover, w->ns, slot, n * stride) < 0))
			return false;
	}
	return true;
}

uint32_t replay_runs_fill(struct replay_worker *w, const pfx_reserve_result *res)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < res->n_runs && n < res->n; i++) {
		pfx_run run = res->runs[i];

		if (run.len > res->n - n)
			run.len = res->n - n;
		if (!fill_slots(w, run, w->paths + res->first + n))
			return n;
		n += run.len;
	}
	return n;
}
