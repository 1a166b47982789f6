/*
 * open.h - the part of messages.h that speaks of namespaces and their pools: OPEN and its reply.
 *
 * The macros of the tables are messages.h's, which includes this; nobody else needs to.
 */
#pragma once

/* OPEN: every field that must agree for K/V to be interchangeable. */
enum {
	PROTO_OPEN_OPAQUE = 1, /* layout is the engine's own: sizes are not recomputed */
	PROTO_OPEN_EXTRA = 2,  /* token mode: each key ends in a 32-byte extra digest */
	PROTO_OPEN_ALL_1 = 3,  /* what versions 1 and 2 define */
	/* version 3 */
	PROTO_OPEN_STRIPE = 4,  /* a block is a slot in the pool of each of tp_size ranks */
	PROTO_OPEN_WINDOWS = 8, /* `windows` says what MATCH may do without */
	PROTO_OPEN_WORDS = 16,  /* the session's words are wanted, for its stream to write */
	PROTO_OPEN_ALL = 31
};

#define PROTO_OPEN_REQ_FIELDS(U8, U16, U32, U64, ID, STR, BLOB, RUNS, SINCE)                  \
	U8(key_mode) /* enum proto_key_mode */                                                \
	U32(flags)                                                                            \
	STR(model, 255)                                                                       \
	STR(revision, 255)                                                                    \
	STR(dtype, 32)   /* as stored: float16, bfloat16, fp8_e4m3, int8 ... never "auto" */  \
	STR(scales, 255) /* digest or name of K/V scales; empty: none */                      \
	U32(layers)                                                                           \
	U32(kv_heads)                                                                         \
	U32(head_dim)                                                                         \
	U32(block_tokens)                                                                     \
	U64(block_bytes)  /* K and V of all layers of one block, this rank */                 \
	STR(layout, 64)   /* e.g. "block-major", "opaque" */                                  \
	STR(windows, 255) /* attention windows by layer group; empty: full */                 \
	STR(adapter, 255) /* LoRA name and revision; empty: none */                           \
	U32(tp_size)                                                                          \
	U32(tp_rank)                                                                          \
	STR(engine, 64)      /* engine and its layout version */                              \
	U32(digest_len)      /* digest mode: bytes per key, 16..64; token mode: 0 */          \
	BLOB(seed_probe, 64) /* digest mode: the hash of the canonical block; else empty */   \
	SINCE(3)                                                                              \
	STR(cold_codec, 16)    /* of copies below the device: none, int8, fp8; empty: ours */ \
	STR(exact_layers, 255) /* layers that stay exact all the same: "0-1,31"; empty: none */

enum {
	PROTO_OPENED_SEED_MISMATCH = 1,
	PROTO_OPENED_READ_ONLY = 2,
	PROTO_OPENED_KEPT = 4, /* version 2: the pool's memory is that of an earlier life */
	PROTO_OPENED_ALL_1 = 3 /* what version 1 defines */
};

/* Where a pool lies, which says how its descriptors are mapped. */
enum proto_device {
	PROTO_DEVICE_MEMORY = 0, /* this machine's memory: mmap() */
	PROTO_DEVICE_CUDA = 1,   /* a GPU's: cuMemImportFromShareableHandle() */
	PROTO_DEVICE_N
};

#define PROTO_OPEN_REP_FIELDS(U8, U16, U32, U64, ID, STR, BLOB, RUNS, SINCE)                      \
	U32(ns)                                                                                   \
	U32(flags)                                                                                \
	BLOB(digest, 32) /* effective namespace digest */                                         \
	U32(key_len)     /* bytes of one key in MATCH */                                          \
	U32(block_tokens)                                                                         \
	U64(block_bytes)                                                                          \
	U32(group) /* pool group: equal groups share one pool */                                  \
	U32(n_slots)                                                                              \
	U64(slot_stride) /* slot i lies at i x slot_stride */                                     \
	U64(pool_len)    /* bytes to map */                                                       \
	U8(n_pool_fds)   /* first descriptors with this reply: pool's, then generations */        \
	SINCE(2)                                                                                  \
	ID(pool) /* names the memory; the same in every life that keeps it */                     \
	SINCE(3)                                                                                  \
	U8(device)     /* enum proto_device: how the pool is mapped */                            \
	ID(device_id)  /* CUDA: the UUID of the GPU; else zero */                                 \
	U64(slab_len)  /* of each of the pool's descriptors but the last; pool_len: one */        \
	U32(n_ranks)   /* slots of a block, one in the pool of each rank; 1: no stripes */        \
	U32(window)    /* blocks that MATCH needs at the end of a path; 0: all of them */         \
	U32(n_write)   /* slots of this session's own memory to write in; 0: the pool's */        \
	U64(write_len) /* bytes to map of it: its descriptor comes next */                        \
	U32(n_words) /* 64-bit words of the session: their descriptor comes last; 0: none does */ \
	U64(cold_bytes) /* of a block in the host tier; block_bytes: they are not coded */
