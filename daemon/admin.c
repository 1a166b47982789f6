/*
 * admin.c - what an operator may ask on the admin socket.
 *
 * A request is one JSON object in an ADMIN frame; README.md lists the operations.  They run on the
 * deciding thread, between two events, so they see a consistent state; those that walk everything
 * (audit, tree of a large index) hold the workers up for as long as they take.
 */
#include "daemon/admin_internal.h"

#include "daemon/log.h"

#include <stdio.h>
#include <stdlib.h>

#define JSON_DEPTH_FLAGS JSON_REJECT_DUPLICATES

/* ---- small operations ------------------------------------------------------------------------ */

static void admin_ping(struct prefixd_server *s, const json_t *args, struct prefixd_admin_reply *r)
{
	prefixd_admin_put_text(r, r->root, "version", prefixd_version());
	prefixd_admin_put_hex(r, r->root, "boot", &s->boot, sizeof(s->boot));
	prefixd_admin_put_real(r, r->root, "uptime_s",
			       (double)(prefixd_now_ns() - s->started_ns) / 1e9);
	prefixd_admin_put_bool(r, r->root, "draining", s->draining);
}

static uint64_t evict_from(struct prefixd_server *s, uint32_t group, uint64_t n)
{
	struct prefixd_event event = { .type = PREFIXD_EVENT_ADMIN_EVICT };

	event.u.admin.group = group;
	event.u.admin.n = n;
	prefixd_server_step(s, &event);
	return event.ret_n;
}

static void admin_evict(struct prefixd_server *s, const json_t *args, struct prefixd_admin_reply *r)
{
	struct prefixd_group_info info;
	uint64_t n = 0, group = UINT64_MAX, evicted = 0;
	uint32_t it = 0;
	bool known = false;

	if (!json_object_get(args, "n")) {
		prefixd_admin_refuse(r, "n", "say how many blocks (n)");
		return;
	}
	if (!prefixd_admin_arg_u64(args, "n", UINT32_MAX, &n, r) ||
	    !prefixd_admin_arg_u64(args, "group", UINT32_MAX, &group, r))
		return;
	while (prefixd_engine_next_group(s->engine, &it, &info)) {
		if (group != UINT64_MAX && info.id != group)
			continue;
		known = true;
		if (evicted < n)
			evicted += evict_from(s, info.id, n - evicted);
	}
	if (group != UINT64_MAX && !known) {
		prefixd_admin_refuse(r, "group", "there is no group %llu",
				     (unsigned long long)group);
		return;
	}
	prefixd_info("admin: evicted %llu blocks", (unsigned long long)evicted);
	prefixd_admin_put_u64(r, r->root, "evicted", evicted);
}

static void admin_flush(struct prefixd_server *s, const json_t *args, struct prefixd_admin_reply *r)
{
	struct prefixd_event event = { .type = PREFIXD_EVENT_ADMIN_FLUSH };
	struct prefixd_namespace_info info;

	event.u.admin.ns = RADIX_NONE;
	if (json_object_get(args, "all")) {
		if (!json_is_true(json_object_get(args, "all")) || json_object_get(args, "ns") ||
		    json_object_get(args, "model")) {
			prefixd_admin_refuse(r, "all", "give all: true alone, or one namespace");
			return;
		}
	} else {
		if (!prefixd_admin_arg_namespace(s, args, &info, r))
			return;
		event.u.admin.ns = info.id;
		event.u.admin.group = info.group;
	}
	prefixd_server_step(s, &event);
	prefixd_info("admin: flushed %llu blocks", (unsigned long long)event.ret_n);
	prefixd_admin_put_u64(r, r->root, "flushed", event.ret_n);
}

static void admin_invalidate(struct prefixd_server *s, const json_t *args,
			     struct prefixd_admin_reply *r)
{
	struct prefixd_event event = { .type = PREFIXD_EVENT_ADMIN_INVALIDATE };
	struct prefixd_namespace_info info;

	if (!prefixd_admin_arg_namespace(s, args, &info, r))
		return;
	event.u.invalidate.ns = info.id;
	if (prefixd_random(&event.u.invalidate.nonce, sizeof(event.u.invalidate.nonce)) < 0) {
		prefixd_admin_refuse(r, "", "the kernel gives no random numbers");
		return;
	}
	prefixd_server_step(s, &event);
	prefixd_info("admin: invalidated namespace %u: %llu blocks are no longer served", info.id,
		     (unsigned long long)event.ret_n);
	prefixd_admin_put_u64(r, r->root, "invalidated", event.ret_n);
}

static void admin_config(struct prefixd_server *s, const json_t *args,
			 struct prefixd_admin_reply *r)
{
	const struct prefixd_options *o = s->options;
	json_t *list = prefixd_admin_array(r, r->root, "options");

	for (size_t i = 0; i < PREFIXD_N_OPTIONS; i++) {
		const struct prefixd_option *opt = &prefixd_options_table[i];
		json_t *j;

		if (opt->type == PREFIXD_TENANT)
			continue;
		j = json_object();
		prefixd_admin_put_text(r, j, "name", opt->name);
		prefixd_admin_put_text(r, j, "section", opt->section);
		prefixd_admin_put_text(r, j, "value",
				       prefixd_options_show(o, (enum prefixd_option_id)i));
		prefixd_admin_put_text(r, j, "source", o->values[i].where);
		prefixd_admin_put_bool(r, j, "reloadable", opt->flags & PREFIXD_OPT_RELOAD);
		prefixd_admin_append(r, list, j);
	}
	list = prefixd_admin_array(r, r->root, "tenants");
	for (uint32_t i = 0; i < s->n_tenants; i++) {
		json_t *j = json_object();
		char who[16 * 16];

		prefixd_tenant_print(&s->tenants[i], who, sizeof(who));
		prefixd_admin_put_text(r, j, "name", s->tenants[i].name);
		prefixd_admin_put_u64(r, j, "id", i);
		prefixd_admin_put_text(r, j, "who", who);
		prefixd_admin_append(r, list, j);
	}
}

static void admin_log_level(struct prefixd_server *s, const json_t *args,
			    struct prefixd_admin_reply *r)
{
	const json_t *j = json_object_get(args, "level");
	enum prefixd_log_level level = prefixd_log_get_level();

	if (j &&
	    (!json_is_string(j) || prefixd_log_level_parse(json_string_value(j), &level) < 0)) {
		prefixd_admin_refuse(r, "level", "level must be error, warn, info or debug");
		return;
	}
	prefixd_log_set_level(level);
	prefixd_admin_put_text(r, r->root, "level", prefixd_log_level_to_string(level));
}

static void admin_drain(struct prefixd_server *s, const json_t *args, struct prefixd_admin_reply *r)
{
	uint64_t timeout_ns = s->options->drain_timeout;

	if (!prefixd_admin_arg_time(args, "timeout_s", &timeout_ns, r))
		return;
	prefixd_server_drain(s, timeout_ns, "asked on the admin socket");
	prefixd_admin_put_bool(r, r->root, "draining", true);
}

/* ---- dispatch -------------------------------------------------------------------------------- */

static const struct {
	const char *name;
	const char *args; /* names that are known, each between spaces */
	prefixd_admin_op *run;
} operations[] = {
	{ "ping", " ", admin_ping },
	{ "status", " ", prefixd_admin_status },
	{ "stat", " ", prefixd_admin_stat },
	{ "tree", " group ns model max_lines ", prefixd_admin_tree },
	{ "pins", " older_s max sort ", prefixd_admin_pins },
	{ "explain", " ns model tenant salt salt_hex tokens digests ", prefixd_admin_explain },
	{ "evict", " n group ", admin_evict },
	{ "flush", " ns model all ", admin_flush },
	{ "invalidate", " ns model ", admin_invalidate },
	{ "audit", " ", prefixd_admin_audit },
	{ "config", " ", admin_config },
	{ "log-level", " level ", admin_log_level },
	{ "drain", " timeout_s ", admin_drain },
};

static bool args_known(const char *known, const json_t *args, struct prefixd_admin_reply *r)
{
	const char *name;
	json_t *args_, *value;

	memcpy(&args_, &args, sizeof(args_)); /* jansson's iterator takes no const */
	json_object_foreach(args_, name, value)
	{
		char word[66];

		snprintf(word, sizeof(word), " %.63s ", name);
		if (strcmp(name, "op") != 0 && (strchr(name, ' ') || !strstr(known, word))) {
			prefixd_admin_refuse(r, name, "there is no argument %.63s; known:%s", name,
					     known[1] ? known : " none");
			return false;
		}
	}
	return true;
}

static void admin_run(struct prefixd_server *s, const json_t *args, struct prefixd_admin_reply *r)
{
	const char *op = json_string_value(json_object_get(args, "op"));
	char known[256] = "";
	size_t n = 0;

	for (size_t i = 0; op && i < radix_array_size(operations); i++) {
		if (strcmp(operations[i].name, op) != 0)
			continue;
		if (args_known(operations[i].args, args, r))
			operations[i].run(s, args, r);
		return;
	}
	for (size_t i = 0; i < radix_array_size(operations); i++)
		n += (size_t)snprintf(known + n, sizeof(known) - n, " %s", operations[i].name);
	prefixd_admin_refuse(r, "op", "there is no such operation; known:%s", known);
}

/* ---- frames ---------------------------------------------------------------------------------- */

static void frame_reply(struct prefixd_client *c, const struct proto_header *request,
			enum proto_status status, const void *json, size_t len)
{
	struct proto_header h = { .version = request->version,
				  .op = PROTO_OP_ADMIN,
				  .status = (uint16_t)status,
				  .seq = request->seq,
				  .boot = c->server->boot };
	size_t cap = PROTO_HEADER_LEN + len + 1024, start;
	uint8_t *bytes = malloc(cap);
	struct proto_writer w = { .p = bytes, .cap = cap };

	if (!bytes) {
		prefixd_conn_drop(&c->conn, PREFIXD_CLOSED_NO_MEMORY);
		return;
	}
	start = proto_frame_begin(&w);
	if (status == PROTO_STATUS_OK) {
		const struct proto_admin m = { .json = { .p = json, .n = (uint32_t)len } };

		proto_admin_encode(&w, &m);
	} else {
		const struct proto_error m = { .field = { .p = "json", .n = 4 },
					       .text = { .p = json, .n = (uint32_t)len } };

		proto_error_encode(&w, &m);
	}
	if (proto_frame_end(&w, start, &h) == 0)
		prefixd_conn_send(&c->conn, bytes, w.len, NULL, 0);
	else
		prefixd_conn_drop(&c->conn, PREFIXD_CLOSED_NO_MEMORY);
	free(bytes);
}

/* The reply as text, for the caller to free; NULL without memory. */
static char *reply_text(struct prefixd_admin_reply *r, const json_t *args, size_t max)
{
	const char *op = json_string_value(json_object_get(args, "op"));
	char *text = NULL;

	for (int round = 0; round < 2; round++) {
		if (r->error[0]) {
			json_object_clear(r->root);
			r->failed = false;
			prefixd_admin_put_text(r, r->root, "error", r->error);
			if (r->field[0])
				prefixd_admin_put_text(r, r->root, "field", r->field);
		}
		prefixd_admin_put_bool(r, r->root, "ok", !r->error[0]);
		prefixd_admin_put_text(r, r->root, "op", op);
		if (r->failed)
			return NULL;
		text = json_dumps(r->root, JSON_COMPACT | JSON_REAL_PRECISION(9));
		if (!text || strlen(text) <= max)
			return text;
		prefixd_admin_refuse(r, "",
				     "the answer has %zu bytes, a frame holds %zu; ask for "
				     "less",
				     strlen(text), max);
		free(text);
	}
	return NULL;
}

void prefixd_admin_frame(struct prefixd_client *c, const struct proto_header *header,
			 const void *body)
{
	static const char no_memory[] = "the daemon has no memory for the answer";
	struct prefixd_admin_reply reply = { .root = json_object() };
	struct proto_admin m;
	const char *bad_field;
	json_error_t error;
	json_t *args = NULL;
	char text[256], *json;
	int n;

	if (proto_admin_decode(body, header->len, &m, &bad_field) != 0) {
		n = snprintf(text, sizeof(text), "the body is not one field json");
		frame_reply(c, header, PROTO_STATUS_BAD_BODY, text, (size_t)n);
		json_decref(reply.root);
		return;
	}
	args = json_loadb(m.json.p, m.json.n, JSON_DEPTH_FLAGS, &error);
	if (!json_is_object(args)) {
		n = snprintf(text, sizeof(text), "not a JSON object: %s",
			     args ? "something else" : error.text);
		frame_reply(c, header, PROTO_STATUS_BAD_BODY, text,
			    radix_min_u64((uint64_t)n, sizeof(text) - 1));
	} else {
		admin_run(c->server, args, &reply);
		json = reply_text(&reply, args,
				  c->server->options->max_frame - PROTO_HEADER_LEN - 64);
		if (json)
			frame_reply(c, header, PROTO_STATUS_OK, json, strlen(json));
		else
			frame_reply(c, header, PROTO_STATUS_NO_MEMORY, no_memory,
				    sizeof(no_memory) - 1);
		free(json);
	}
	json_decref(args);
	json_decref(reply.root);
}

void prefixd_admin_log_counters(struct prefixd_server *s)
{
	struct prefixd_counters counters;
	char text[900] = "";
	size_t n = 0;

	prefixd_engine_counters(s->engine, &counters);
#define X(name_, help_)                                                                \
	if (counters.name_ > 0 && n < sizeof(text))                                    \
		n += (size_t)snprintf(text + n, sizeof(text) - n, "%s" #name_ " %llu", \
				      n ? ", " : "", (unsigned long long)counters.name_);
	PREFIXD_COUNTERS(X)
#undef X
	prefixd_info("counters: %s", n ? text : "all zero");
}
