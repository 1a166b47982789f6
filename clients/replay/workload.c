/*
 * workload.c - sessions that arrive, take their turns and end.
 *
 * Sessions arrive at random, at a constant rate.  A session's turn makes one request and says after
 * how many seconds its next turn comes; all sessions run side by side, in a heap ordered by time,
 * and requests enter the trace in the order of their times.  What a turn asks is the kind's own
 * matter; the numbers in the quantile tables are those of the recorded traces that README.md names.
 */
#include "clients/replay/workload.h"

#include "clients/replay/compose.h"
#include "clients/replay/util.h"

#include <stdlib.h>

struct session {
	double at_s; /* of the next turn */
	uint32_t id;
	uint32_t turns_left;
	uint64_t shared; /* tokens of the head that other sessions have too */
	struct replay_prompt prompt;
	struct replay_prompt main; /* agent: the context to come back to, while a sub-agent runs */
	uint32_t sub_turns_left;
};

#define RAG_WINDOW 1200 /* draws of a document that are remembered */

struct world {
	struct replay_rng rng;
	struct replay_trace *trace;
	struct session **heap; /* earliest first */
	size_t n_heap, heap_cap;
	double now_s;
	uint64_t seed;
	uint32_t recent[RAG_WINDOW];
	size_t n_recent;
};

struct kind {
	const char *name;
	size_t n_requests; /* by default */
	double sessions_s; /* seconds between arrivals, mean */
	void (*begin)(struct world *w, struct session *s);
	/* Makes a request.  Return: seconds to the next turn, negative: that was the last. */
	double (*turn)(struct world *w, struct session *s);
};

static uint64_t tokens(struct world *w, const struct replay_quantiles *q)
{
	double value = replay_draw(&w->rng, q);

	return value < 1 ? 1 : (uint64_t)value;
}

/* Content that is the same in every session: number `i` of its sort. */
static uint64_t shared_content(const struct world *w, uint32_t sort, uint32_t i)
{
	return replay_mix(w->seed ^ replay_mix(((uint64_t)sort << 32) + i + 1));
}

static bool chance(struct world *w, double p)
{
	return replay_rng_unit(&w->rng) < p;
}

static void emit(struct world *w, const struct session *s, bool partial, uint64_t out_tokens)
{
	struct replay_request *request = replay_prompt_emit(&s->prompt, w->trace, partial);

	request->time_us = (uint64_t)(w->now_s * 1e6);
	request->output_tokens = (uint32_t)out_tokens;
	request->session = s->id;
}

/* A new stretch of text that nobody else has. */
static void say(struct world *w, struct session *s, uint64_t len)
{
	replay_prompt_add(&s->prompt, replay_rng_next(&w->rng), len);
}

/* ---- chat ------------------------------------------------------------------------------------ */

#define CHAT_HOUSE      512 /* tokens that every assistant's system prompt begins with */
#define CHAT_ASSISTANTS 8
#define CHAT_GO_ON      0.44 /* of the turns are followed by another one, were time endless */
#define CHAT_EDIT       0.13 /* of the later turns replace the last message */

static const struct replay_quantiles chat_first = { { { 0, 1 },
						      { .10, 13 },
						      { .25, 440 },
						      { .50, 4370 },
						      { .75, 12160 },
						      { .90, 24600 },
						      { .95, 37600 },
						      { .99, 88900 },
						      { 1, 125000 } } };
static const struct replay_quantiles chat_later = { { { 0, 5 },
						      { .25, 20 },
						      { .50, 110 },
						      { .75, 500 },
						      { .90, 4200 },
						      { .95, 7000 },
						      { .99, 17000 },
						      { 1, 60000 } } };
static const struct replay_quantiles chat_answer = {
	{ { 0, 5 }, { .25, 160 }, { .50, 350 }, { .95, 698 }, { 1, 1500 } }
};
static const struct replay_quantiles chat_think = { { { 0, 8 },
						      { .05, 30 },
						      { .25, 66 },
						      { .50, 123 },
						      { .75, 264 },
						      { .90, 483 },
						      { .95, 618 },
						      { .99, 1482 },
						      { 1, 3000 } } };

static void chat_begin(struct world *w, struct session *s)
{
	uint32_t assistant = replay_draw_popular(&w->rng, CHAT_ASSISTANTS);

	replay_prompt_add(&s->prompt, shared_content(w, 0, 0), CHAT_HOUSE);
	replay_prompt_add(&s->prompt, shared_content(w, 1, assistant), 200 + 60 * assistant);
	s->shared = s->prompt.len;
	say(w, s, tokens(w, &chat_first));
}

static double chat_turn(struct world *w, struct session *s)
{
	uint64_t answer = tokens(w, &chat_answer);
	uint64_t len = s->prompt.len;

	emit(w, s, true, answer);
	if (!chance(w, CHAT_GO_ON))
		return -1;
	if (chance(w, CHAT_EDIT)) {
		uint64_t last = s->prompt.pieces[s->prompt.n - 1].len;

		replay_prompt_cut(&s->prompt, len - last);
		say(w, s, last);
	} else {
		say(w, s, answer);
		say(w, s, tokens(w, &chat_later));
	}
	return replay_draw(&w->rng, &chat_think);
}

/* ---- rag ------------------------------------------------------------------------------------- */

#define RAG_SYSTEM    60 /* tokens */
#define RAG_DOCUMENTS 2400
#define RAG_RECENT    0.62 /* of the draws repeat one of the last RAG_WINDOW */
#define RAG_POPULAR   0.02 /* of the others are skewed: p falls with rank^-1 */
#define RAG_BARE      0.29 /* of the questions need no document */

static const struct replay_quantiles rag_document = { { { 0, 300 },
							{ .10, 2400 },
							{ .25, 6000 },
							{ .50, 16500 },
							{ .75, 28500 },
							{ .90, 41000 },
							{ .95, 50000 },
							{ .99, 62400 },
							{ 1, 124000 } } };
static const struct replay_quantiles rag_bare = {
	{ { 0, 5 }, { .50, 24 }, { .90, 60 }, { 1, 2000 } }
};
static const struct replay_quantiles rag_question = {
	{ { 0, 8 }, { .50, 120 }, { .90, 900 }, { 1, 2000 } }
};
static const struct replay_quantiles rag_answer = {
	{ { 0, 2 }, { .50, 69 }, { .95, 519 }, { 1, 1000 } }
};

/*
 * Popularity: some documents are always asked for more often, and what was asked for lately is
 * asked for again.  The second makes the reuse gaps of the recorded trace; the first alone does
 * not.
 */
static uint32_t rag_pick(struct world *w)
{
	uint32_t picked;

	if (w->n_recent && chance(w, RAG_RECENT))
		picked = w->recent[replay_rng_below(&w->rng,
						    (uint32_t)replay_min(w->n_recent, RAG_WINDOW))];
	else if (chance(w, RAG_POPULAR))
		picked = replay_draw_popular(&w->rng, RAG_DOCUMENTS);
	else
		picked = replay_rng_below(&w->rng, RAG_DOCUMENTS);
	w->recent[w->n_recent++ % RAG_WINDOW] = picked;
	return picked;
}

static void rag_begin(struct world *w, struct session *s)
{
	static const double more = 0.08; /* of the requests with a document bring a second, ... */
	uint32_t picked[4];
	uint32_t n = 0;

	replay_prompt_add(&s->prompt, shared_content(w, 0, 0), RAG_SYSTEM);
	s->shared = s->prompt.len;
	if (chance(w, RAG_BARE)) {
		say(w, s, tokens(w, &rag_bare));
		return;
	}
	do
		picked[n++] = rag_pick(w);
	while (n < replay_array_size(picked) && chance(w, more));
	/* The retriever puts the most popular first, so that prompts share what they can. */
	for (uint32_t i = 1; i < n; i++)
		for (uint32_t k = i; k > 0 && picked[k] < picked[k - 1]; k--) {
			uint32_t swap = picked[k];

			picked[k] = picked[k - 1];
			picked[k - 1] = swap;
		}
	for (uint32_t i = 0; i < n; i++) {
		struct replay_rng of_document = { shared_content(w, 1, picked[i]) };

		if (i == 0 || picked[i] != picked[i - 1])
			replay_prompt_add(&s->prompt, of_document.state,
					  (uint64_t)replay_draw(&of_document, &rag_document));
	}
	say(w, s, tokens(w, &rag_question));
}

static double rag_turn(struct world *w, struct session *s)
{
	emit(w, s, true, tokens(w, &rag_answer));
	return -1;
}

/* ---- agent ----------------------------------------------------------------------------------- */

#define AGENT_SORTS   60     /* of agents: each has its own tools and system prompt */
#define AGENT_REWRITE 0.016  /* of the turns come after the context was compacted or edited */
#define AGENT_WINDOW  320000 /* tokens, from which on contexts are compacted more often: */
#define AGENT_COMPACT 0.03
#define AGENT_FORK    0.020 /* of the turns start a sub-agent */

static const struct replay_quantiles agent_turns = { { { 0, 2 },
						       { .05, 4 },
						       { .10, 7 },
						       { .25, 18 },
						       { .50, 45 },
						       { .75, 92 },
						       { .90, 151 },
						       { .95, 212 },
						       { .99, 346 },
						       { 1, 700 } } };
/* The first prompt beyond tools and system prompt: a quarter goes on with an older session. */
static const struct replay_quantiles agent_first = { { { 0, 100 },
						       { .10, 1500 },
						       { .25, 5000 },
						       { .50, 11000 },
						       { .70, 60000 },
						       { .75, 85000 },
						       { .90, 200000 },
						       { .95, 260000 },
						       { 1, 450000 } } };
static const struct replay_quantiles agent_step = { { { 0, 60 },
						      { .05, 154 },
						      { .10, 191 },
						      { .25, 331 },
						      { .50, 659 },
						      { .75, 1577 },
						      { .90, 3641 },
						      { .95, 6363 },
						      { .99, 16214 },
						      { 1, 60000 } } };
static const struct replay_quantiles agent_answer = {
	{ { 0, 10 }, { .50, 217 }, { .95, 1535 }, { 1, 4000 } }
};
static const struct replay_quantiles agent_wait = { { { 0, 4 },
						      { .05, 7 },
						      { .25, 11 },
						      { .50, 17 },
						      { .75, 37 },
						      { .90, 128 },
						      { .95, 284 },
						      { .99, 1800 },
						      { 1, 1801 } } };
/* Of a rewritten context: what is kept of the old one, and its new length, as shares of the old. */
static const struct replay_quantiles agent_kept = {
	{ { 0, 0 }, { .50, .11 }, { .75, .24 }, { .90, .51 }, { .95, .87 }, { 1, .99 } }
};
static const struct replay_quantiles agent_new = { { { 0, .10 },
						     { .05, .16 },
						     { .25, .54 },
						     { .50, 1.0 },
						     { .75, 1.06 },
						     { .90, 1.3 },
						     { 1, 1.5 } } };
static const struct replay_quantiles agent_sub_turns = {
	{ { 0, 1 }, { .50, 5 }, { .90, 20 }, { 1, 40 } }
};

static void agent_begin(struct world *w, struct session *s)
{
	uint32_t sort = replay_draw_popular(&w->rng, AGENT_SORTS);

	replay_prompt_add(&s->prompt, shared_content(w, 0, sort), 9000 + 150 * sort);
	s->shared = s->prompt.len;
	say(w, s, tokens(w, &agent_first));
	s->turns_left = (uint32_t)tokens(w, &agent_turns);
}

static void agent_rewrite(struct world *w, struct session *s)
{
	double len = (double)s->prompt.len;
	uint64_t kept = (uint64_t)(len * replay_draw(&w->rng, &agent_kept));
	uint64_t want = (uint64_t)(len * replay_draw(&w->rng, &agent_new));

	if (s->prompt.len > AGENT_WINDOW) { /* a summary takes the place of all the rest */
		kept = s->shared;
		want /= 4;
	}
	replay_prompt_cut(&s->prompt, kept > s->shared ? kept : s->shared);
	say(w, s, want > s->prompt.len ? want - s->prompt.len : 500);
}

static void agent_next_prompt(struct world *w, struct session *s, uint64_t answer)
{
	if (s->sub_turns_left) {
		if (--s->sub_turns_left == 0) /* the sub-agent reports to its parent */
			replay_prompt_copy(&s->prompt, &s->main);
		say(w, s, tokens(w, &agent_step));
	} else if (chance(w, AGENT_FORK)) {
		replay_prompt_copy(&s->main, &s->prompt);
		replay_prompt_cut(&s->prompt, s->shared);
		say(w, s, tokens(w, &agent_step) + 1000);
		s->sub_turns_left = (uint32_t)tokens(w, &agent_sub_turns);
	} else if (chance(w, s->prompt.len > AGENT_WINDOW ? AGENT_COMPACT : AGENT_REWRITE)) {
		agent_rewrite(w, s);
	} else {
		uint64_t step = tokens(w, &agent_step);

		say(w, s, answer < step ? answer : step);
		say(w, s, answer < step ? step - answer : 0);
	}
}

static double agent_turn(struct world *w, struct session *s)
{
	uint64_t answer = tokens(w, &agent_answer);

	emit(w, s, false, answer);
	if (--s->turns_left == 0)
		return -1;
	agent_next_prompt(w, s, answer);
	return replay_draw(&w->rng, &agent_wait);
}

/* ---- the world ------------------------------------------------------------------------------- */

static const struct kind kinds[] = {
	[REPLAY_WORKLOAD_CHAT] = { "chat", 12000, 0.48, chat_begin, chat_turn },
	[REPLAY_WORKLOAD_RAG] = { "rag", 4000, 0.256, rag_begin, rag_turn },
	[REPLAY_WORKLOAD_AGENT] = { "agent", 8000, 120.0, agent_begin, agent_turn },
};

static void heap_swap(struct session **heap, size_t a, size_t b)
{
	struct session *swap = heap[a];

	heap[a] = heap[b];
	heap[b] = swap;
}

static void heap_push(struct world *w, struct session *s)
{
	size_t at = w->n_heap++;

	w->heap = replay_grow(w->heap, &w->heap_cap, w->n_heap, sizeof(struct session *));
	w->heap[at] = s;
	for (; at && w->heap[at]->at_s < w->heap[(at - 1) / 2]->at_s; at = (at - 1) / 2)
		heap_swap(w->heap, at, (at - 1) / 2);
}

static struct session *heap_pop(struct world *w)
{
	struct session *first = w->heap[0];
	size_t at = 0;

	w->heap[0] = w->heap[--w->n_heap];
	for (;;) {
		size_t least = at;

		for (size_t child = 2 * at + 1; child <= 2 * at + 2 && child < w->n_heap; child++)
			if (w->heap[child]->at_s < w->heap[least]->at_s)
				least = child;
		if (least == at)
			return first;
		heap_swap(w->heap, at, least);
		at = least;
	}
}

static void session_free(struct session *s)
{
	replay_prompt_deinit(&s->prompt);
	replay_prompt_deinit(&s->main);
	free(s);
}

struct replay_trace *replay_workload_new(enum replay_workload kind, uint64_t seed,
					 size_t n_requests, uint32_t block_tokens)
{
	const struct kind *k = &kinds[kind];
	struct world w = {
		.rng = { replay_mix(seed ^ replay_mix(kind + 1ul)) },
		.trace = replay_trace_new(k->name, block_tokens),
		.seed = seed,
	};
	double arrival_s = 0.0;
	uint32_t n_sessions = 0;

	if (!n_requests)
		n_requests = k->n_requests;
	while (w.trace->n_requests < n_requests) {
		struct session *s;

		if (!w.n_heap || arrival_s <= w.heap[0]->at_s) {
			s = replay_alloc(1, sizeof(*s));
			s->id = n_sessions++;
			s->at_s = arrival_s;
			k->begin(&w, s);
			heap_push(&w, s);
			arrival_s += replay_rng_unit(&w.rng) * 2 * k->sessions_s;
			continue;
		}
		s = heap_pop(&w);
		w.now_s = s->at_s;
		double wait_s = k->turn(&w, s);

		if (wait_s < 0) {
			session_free(s);
		} else {
			s->at_s += wait_s;
			heap_push(&w, s);
		}
	}
	while (w.n_heap)
		session_free(heap_pop(&w));
	free(w.heap);
	return w.trace;
}
