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

static void check_slot(struct replay_worker *w, size_t request, uint32_t position, uint32_t slot,
		       uint64_t reuse)
{
	size_t len = w->options->block_bytes;
	const void *block = pfx_slot(w->ns, slot);
	size_t same;

	if (!block || pfx_slot_stale(w->ns, slot, reuse)) {
		replay_error(w, "request %zu: block %u: slot %u %s", request, position, slot,
			     block ? "was reused under the lease" : "is outside the pool");
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

uint32_t replay_runs_check(struct replay_worker *w, size_t request, const pfx_match_result *m,
			   uint32_t from)
{
	uint32_t position = 0;

	for (uint32_t i = 0; i < m->n_runs; i++)
		for (uint32_t k = 0; k < m->runs[i].len && position < m->n_device; k++) {
			if (w->options->verify == REPLAY_VERIFY_ALL)
				check_slot(w, request, from + position, m->runs[i].start + k,
					   m->reuse);
			position++;
		}
	return position;
}

uint32_t replay_runs_fill(struct replay_worker *w, const pfx_reserve_result *res)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < res->n_runs; i++)
		for (uint32_t k = 0; k < res->runs[i].len && n < res->n; k++) {
			void *block = pfx_slot(w->ns, res->runs[i].start + k);

			if (!block)
				return n;
			replay_content_fill(block, w->options->block_bytes,
					    w->paths[res->first + n]);
			n++;
		}
	return n;
}
