/*
 * prefixd_words.h - libprefixd: requests that wait for the worker's stream.  Comes after prefixd.h.
 *
 * Kernels and copies of a worker run behind its back: when it would say pfx_commit, the blocks may
 * not be filled yet.  Instead of waiting for its stream it lets the stream write a word, and says
 * which value means that all is done.  The daemon takes the request at once and acts on it when the
 * word is there: no block is seen, copied down or reused before.
 *
 *     pfx_open           with PFX_NS_WORDS in flags: this client gets words
 *     ... kernels and copies into reserved slots, on `stream` ...
 *     pfx_stream_word    (client, stream, word, step): behind them, in stream order
 *     pfx_commit_after   (..., word, step, ...): others can use the blocks once it has come to that
 *     ... kernels that read blocks of the lease ...
 *     pfx_stream_word    (client, stream, word, step + 1)
 *     pfx_release_after  (..., word, step + 1, ...): nothing of them is reused before
 *
 * Ordering.  A write of a word by a stream comes behind everything that was put into that stream
 * before, with a release to the whole system; the daemon looks with acquire.  So whoever sees the
 * word sees the blocks.  A kernel of another stream needs an event that `stream` waits for.
 *
 * Values go up, in each word on its own, and may wrap: `value` is there when word - value is below
 * 2^63.  One word for each stream and a count of steps is enough for most.
 *
 * Calls that wait for a word return when the daemon has acted: give them time, or a client of their
 * own.  PFX_DEADLINE leaves the request with the daemon, which acts when the word comes.  The lease
 * is the caller's until he says pfx_release, when the stream is through; that answers
 * PFX_UNKNOWN_LEASE where pfx_release_after was obeyed in the end.
 *
 * When a connection ends its words end too: what waited for them has not happened and will not, and
 * the next connection has others, in other memory.  The old memory stays mapped until pfx_close, so
 * that a stream may still write it.
 */
#ifndef PREFIXD_WORDS_H
#define PREFIXD_WORDS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* In pfx_namespace_options.flags, beside PFX_NS_OPAQUE and the others. */
enum {
	PFX_NS_WORDS = 16
};

/* The words of this connection, word number w at [w - 1]; NULL with *ret_n of 0: it has none,
 * since no namespace was opened with PFX_NS_WORDS.  A processor that fills blocks itself stores
 * to them with release. */
PFX_API volatile uint64_t *pfx_words(pfx_client *client, uint32_t *ret_n);

/*
 * Puts the write of a word behind all that is in `stream`, a CUstream whose context is current on
 * this thread.  Where no pool of this client lies on a GPU the word is written at once, behind all
 * that this thread has written, and `stream` is not looked at.  Return: PFX_OK; PFX_ARGUMENT: no
 * such word; PFX_UNSUPPORTED: the driver refuses, pfx_error() says how.
 */
PFX_API int pfx_stream_word(pfx_client *client, void *stream, uint32_t word, uint64_t value);

/* pfx_commit once the word has come to the value; word 0: at once.  PFX_ARGUMENT: no such word. */
PFX_API int pfx_commit_after(pfx_namespace *ns, uint64_t lease, uint32_t n, const void *checksums,
			     uint32_t tail_tokens, uint32_t word, uint64_t value,
			     uint32_t deadline_ms, pfx_commit_result *ret);
/* pfx_release likewise.  A lease of an ended connection is not given back by it
 * (PFX_UNKNOWN_LEASE): its word ended too, so say pfx_release when the stream is through. */
PFX_API int pfx_release_after(pfx_namespace *ns, uint64_t lease, uint32_t flags,
			      uint32_t next_use_ms, uint32_t word, uint64_t value,
			      uint32_t deadline_ms, pfx_release_result *ret);
/* pfx_quiesced likewise. */
PFX_API int pfx_quiesced_after(pfx_client *client, uint32_t word, uint64_t value,
			       uint32_t *ret_n_slots);

#ifdef __cplusplus
}
#endif
#endif
