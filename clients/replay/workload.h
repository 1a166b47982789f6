/*
 * workload.h - requests made from a seed, shaped like recorded ones.
 *
 *     chat    people talk to a few assistants; each chat grows turn by turn
 *     rag     questions about fixed documents, popular ones often; some need no document
 *     agent   programs with tools; contexts grow long, are rewritten, and fork into sub-agents
 *
 * The same kind, seed, number of requests and block size give the same trace on every machine.
 * README.md shows the shapes beside those of real traces.
 */
#pragma once

#include "clients/replay/trace.h"

#define REPLAY_WORKLOADS(X) X(CHAT, chat) X(RAG, rag) X(AGENT, agent)

enum replay_workload {
#define X(sym, name) REPLAY_WORKLOAD_##sym,
	REPLAY_WORKLOADS(X)
#undef X
};

/* n_requests 0: the kind's own number, enough for its shape to show. */
struct replay_trace *replay_workload_new(enum replay_workload kind, uint64_t seed,
					 size_t n_requests, uint32_t block_tokens);
