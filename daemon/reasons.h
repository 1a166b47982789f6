/*
 * reasons.h - why a connection ended: one list for the log, the counters and the labels of the
 * metrics.
 */
#pragma once

/* Every connection that was accepted ends under exactly one of these. */
#define PREFIXD_CLOSED(X)                                                                \
	X(PEER, "peer", "the peer closed")                                               \
	X(PROCESS, "process_gone", "the process is gone")                                \
	X(REFUSED, "refused", "it was refused, and told why")                            \
	X(BAD_FRAME, "bad_frame", "it sent a wrong header")                              \
	X(HELLO_TIMEOUT, "hello_timeout", "it has not said HELLO in time")               \
	X(SLOW_READER, "slow_reader", "it left too many replies unread for too long")    \
	X(OUTPUT_LIMIT, "output_limit", "it left more replies unread than may be kept")  \
	X(NO_MEMORY, "no_memory", "there was no memory to go on with it")                \
	X(NO_DESCRIPTOR, "no_descriptor", "there was no descriptor left to pass one on") \
	X(IO_ERROR, "io_error", "its socket failed")

enum prefixd_closed {
	PREFIXD_CLOSED_NOT, /* it is open */
#define X(sym, label, text) PREFIXD_CLOSED_##sym,
	PREFIXD_CLOSED(X)
#undef X
	PREFIXD_CLOSED_N
};
