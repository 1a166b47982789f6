/*
 * example.c - one request of a worker: what is there is used, the rest is computed and shared.
 * cc example.c $(pkg-config --cflags --libs prefixd) && ./a.out [SOCKET]
 */
#include <prefixd.h>
#include <stdio.h>
#include <string.h>

static pfx_connect_options me; /* static: members that are not set below are 0 */
static pfx_namespace_options o;
static pfx_prompt prompt;
static pfx_match_result hit;
static pfx_reserve_result room;
static pfx_commit_result stored;
static uint32_t tokens[4 * 16], i, j; /* a prompt of four blocks */

int main(int argc, char **argv)
{
	pfx_client *client = NULL;
	pfx_namespace *ns = NULL;

	me.struct_size = sizeof(me), me.socket = argc > 1 ? argv[1] : NULL;
	me.deadline_ms = 10000; /* the first one to open a size of block waits for its pool */
	o.struct_size = sizeof(o), o.key_mode = PFX_KEYS_TOKENS, o.map = 1, o.tp_size = 1;
	o.model = "m", o.revision = "1", o.dtype = "float16", o.layout = "any", o.engine = "e/1";
	o.layers = 2, o.kv_heads = 2, o.head_dim = 64, o.block_tokens = 16, o.block_bytes = 16384;
	prompt.struct_size = sizeof(prompt), prompt.keys = tokens, prompt.n_keys = 4;
	hit.struct_size = sizeof(hit), room.struct_size = sizeof(room),
	stored.struct_size = sizeof(stored);
	if (pfx_connect(&me, &client) || pfx_open(client, &o, &ns) || pfx_match(ns, &prompt, &hit))
		return printf("computing alone: %s\n", pfx_error(client)), 1;
	if (hit.n_device < 4 && !pfx_reserve(ns, hit.lease, 4 - hit.n_device, 0, &room)) {
		for (i = 0; i < room.n_runs; i++)
			for (j = 0; j < room.runs[i].len; j++) /* the model would compute here */
				memset(pfx_write_slot(ns, room.runs[i].start + j), 1,
				       o.block_bytes);
		pfx_commit(ns, hit.lease, room.n, NULL, 0, 0, &stored);
	}
	printf("%u of 4 blocks were there, %u are new\n", hit.n_device, stored.n_stored);
	pfx_release(ns, hit.lease, 0, 0, 0, NULL);
	pfx_close(client);
}
