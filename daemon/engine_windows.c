/*
 * engine_windows.c - see engine_windows.h.
 */
#include "daemon/engine_windows.h"

#define GROUPS_MAX 128u /* that 255 bytes can name, and more */

struct layer_group {
	uint32_t first, last;
};

struct text {
	const char *p, *end;
};

static bool number(struct text *t, uint32_t *ret)
{
	uint64_t n = 0;
	const char *from = t->p;

	for (; t->p < t->end && *t->p >= '0' && *t->p <= '9' && n <= UINT32_MAX; t->p++)
		n = n * 10 + (uint64_t)(*t->p - '0');
	*ret = (uint32_t)n;
	return t->p > from && n <= UINT32_MAX;
}

static bool literal(struct text *t, const char *what)
{
	size_t n = strlen(what);

	if ((size_t)(t->end - t->p) < n || memcmp(t->p, what, n) != 0)
		return false;
	t->p += n;
	return true;
}

static bool wrong(struct prefixd_engine *e, struct prefixd_request *rq, const char *right)
{
	prefixd_refuse(e, rq, PROTO_STATUS_BAD_NAMESPACE, "windows", "'windows' is wrong: %s",
		       right);
	return false;
}

/* One group; *ret_tokens 0: full. */
static bool group(struct prefixd_engine *e, struct prefixd_request *rq, struct text *t,
		  uint32_t layers, struct layer_group *g, uint32_t *ret_tokens)
{
	if (!number(t, &g->first))
		return wrong(e, rq,
			     "each group is LAYERS:WINDOW, as 0-11:4096 or 12:full, with "
			     "commas between them");
	g->last = g->first;
	if ((literal(t, "-") && !number(t, &g->last)) || !literal(t, ":"))
		return wrong(e, rq,
			     "layers are a number or two with '-' between them, and ':' "
			     "follows, as 0-11:4096");
	if (g->last < g->first)
		return wrong(e, rq, "the first layer of a group is beyond its last");
	if (g->last >= layers)
		return wrong(e, rq,
			     "layers count from 0 and are below `layers`, which has to be "
			     "given");
	if (literal(t, "full"))
		*ret_tokens = 0;
	else if (!number(t, ret_tokens) || !*ret_tokens)
		return wrong(e, rq, "a window is a number of tokens, at least 1, or 'full'");
	return true;
}

bool prefixd_windows_check(struct prefixd_engine *e, struct prefixd_request *rq,
			   const struct proto_open_req *m, uint32_t *ret_blocks)
{
	struct text t = { m->windows.p, (const char *)m->windows.p + m->windows.n };
	struct layer_group g[GROUPS_MAX];
	uint32_t n = 0, tokens, most = 0;
	uint64_t covered = 0;
	bool full = false;

	*ret_blocks = 0;
	if (!(m->flags & PROTO_OPEN_WINDOWS))
		return true;
	if (m->flags & PROTO_OPEN_STRIPE) {
		prefixd_refuse(e, rq, PROTO_STATUS_BAD_NAMESPACE, "flags",
			       "WINDOWS does not go with STRIPE; leave one of them out");
		return false;
	}
	while (t.p < t.end) {
		if (n == GROUPS_MAX || (n && !literal(&t, ",")))
			return wrong(e, rq, "groups have a comma between them, and nothing else");
		if (!group(e, rq, &t, m->layers, &g[n], &tokens))
			return false;
		for (uint32_t i = 0; i < n; i++)
			if (g[n].first <= g[i].last && g[i].first <= g[n].last)
				return wrong(e, rq, "a layer is in two groups");
		full = full || !tokens;
		most = tokens > most ? tokens : most;
		covered += (uint64_t)g[n].last - g[n].first + 1;
		n++;
	}
	if (full || covered < m->layers)
		return true;
	most = (uint32_t)(((uint64_t)most + m->block_tokens - 1) / m->block_tokens);
	/* A reply may say a run for each block of a window, and one for those before it. */
	if ((uint64_t)(most + 2ull) * sizeof(struct radix_run) + e->match_fixed +
		    PREFIXD_MATCH_TAIL + PROTO_HEADER_LEN <=
	    e->config.limits.max_frame)
		*ret_blocks = most;
	return true;
}

int prefixd_windows_begin(struct prefixd_engine *e, struct prefixd_namespace *ns, uint32_t blocks)
{
	uint32_t record;

	if (!blocks || ns->window)
		return 0;
	if (prefixd_note_ns_room(e, &record) < 0)
		return -ENOMEM;
	for (uint32_t i = 0; ns->group->index && i < e->roots.n; i++) {
		struct prefixd_root *r = radix_container_of(e->roots.v[i], struct prefixd_root,
							    item);

		if (r->ns != ns || radix_root_window(ns->group->index, r->index_root, blocks) == 0)
			continue;
		prefixd_note_ns_gone(e, record); /* it was the first: none has a window */
		return -ENOMEM;
	}
	ns->window = blocks;
	prefixd_note_ns_again(e, ns, record);
	return 0;
}

bool prefixd_windowed(const struct prefixd_session *s, const struct prefixd_namespace *ns)
{
	for (uint32_t i = 0; i < s->n_ns; i++)
		if (s->ns[i].ns == ns)
			return s->ns[i].windowed && ns->window;
	return false;
}
