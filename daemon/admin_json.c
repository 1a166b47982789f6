/*
 * admin_json.c - building replies and reading arguments of admin operations.
 */
#include "daemon/admin_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- replies --------------------------------------------------------------------------------- */

void prefixd_admin_put(struct prefixd_admin_reply *r, json_t *obj, const char *name, json_t *stolen)
{
	if (json_object_set_new(obj, name, stolen) < 0) /* takes NULL of both, and the reference */
		r->failed = true;
}

void prefixd_admin_put_u64(struct prefixd_admin_reply *r, json_t *obj, const char *name,
			   uint64_t value)
{
	prefixd_admin_put(r, obj, name, json_integer((json_int_t)value));
}

/* Text of peers may be any bytes; JSON takes UTF-8 only. */
static json_t *text_json(const char *text)
{
	json_t *j = json_string(text);
	char *copy;

	if (j || !(copy = strdup(text)))
		return j;
	for (char *p = copy; *p; p++)
		if ((unsigned char)*p >= 0x80)
			*p = '?';
	j = json_string(copy);
	free(copy);
	return j;
}

void prefixd_admin_put_text(struct prefixd_admin_reply *r, json_t *obj, const char *name,
			    const char *text)
{
	prefixd_admin_put(r, obj, name, text_json(text ? text : ""));
}

void prefixd_admin_put_bool(struct prefixd_admin_reply *r, json_t *obj, const char *name,
			    bool value)
{
	prefixd_admin_put(r, obj, name, json_boolean(value));
}

void prefixd_admin_put_real(struct prefixd_admin_reply *r, json_t *obj, const char *name,
			    double value)
{
	prefixd_admin_put(r, obj, name, json_real(value));
}

void prefixd_admin_put_hex(struct prefixd_admin_reply *r, json_t *obj, const char *name,
			   const void *bytes, size_t len)
{
	const uint8_t *p = bytes;
	char text[2 * PROTO_DIGEST_MAX + 1];

	radix_assert(len <= PROTO_DIGEST_MAX);
	text[0] = '\0';
	for (size_t i = 0; i < len; i++)
		snprintf(text + 2 * i, 3, "%02x", p[i]);
	prefixd_admin_put_text(r, obj, name, text);
}

void prefixd_admin_append(struct prefixd_admin_reply *r, json_t *array, json_t *stolen)
{
	if (json_array_append_new(array, stolen) < 0)
		r->failed = true;
}

json_t *prefixd_admin_object(struct prefixd_admin_reply *r, json_t *obj, const char *name)
{
	json_t *j = json_object();

	prefixd_admin_put(r, obj, name, j); /* it lives as long as obj now */
	return r->failed ? NULL : j;
}

json_t *prefixd_admin_array(struct prefixd_admin_reply *r, json_t *obj, const char *name)
{
	json_t *j = json_array();

	prefixd_admin_put(r, obj, name, j);
	return r->failed ? NULL : j;
}

void prefixd_admin_refuse(struct prefixd_admin_reply *r, const char *field, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	vsnprintf(r->error, sizeof(r->error), format, ap);
	va_end(ap);
	snprintf(r->field, sizeof(r->field), "%s", field ? field : "");
}

/* ---- arguments ------------------------------------------------------------------------------- */

bool prefixd_admin_arg_u64(const json_t *args, const char *name, uint64_t max, uint64_t *ret,
			   struct prefixd_admin_reply *r)
{
	const json_t *j = json_object_get(args, name);

	if (!j)
		return true;
	if (!json_is_integer(j) || json_integer_value(j) < 0 ||
	    (uint64_t)json_integer_value(j) > max) {
		prefixd_admin_refuse(r, name, "%s must be a number from 0 to %llu", name,
				     (unsigned long long)max);
		return false;
	}
	*ret = (uint64_t)json_integer_value(j);
	return true;
}

bool prefixd_admin_arg_time(const json_t *args, const char *name, uint64_t *ret_ns,
			    struct prefixd_admin_reply *r)
{
	const json_t *j = json_object_get(args, name);
	double v;

	if (!j)
		return true;
	v = json_number_value(j);
	if (!json_is_number(j) || !(v >= 0.0) || v > 1e9) {
		prefixd_admin_refuse(r, name, "%s must be a number of seconds", name);
		return false;
	}
	*ret_ns = (uint64_t)(v * 1e9);
	return true;
}

bool prefixd_admin_arg_namespace(struct prefixd_server *s, const json_t *args,
				 struct prefixd_namespace_info *ret, struct prefixd_admin_reply *r)
{
	const json_t *by_id = json_object_get(args, "ns"),
		     *by_name = json_object_get(args, "model");
	const char *name = json_string_value(by_name);
	struct prefixd_namespace_info info;
	uint32_t it = 0, found = 0;

	if (by_id ? by_name != NULL || !json_is_integer(by_id) : !name) {
		prefixd_admin_refuse(r, by_id || !by_name ? "ns" : "model",
				     "name one namespace: ns (its number) or model (its name)");
		return false;
	}
	while (prefixd_engine_next_namespace(s->engine, &it, &info)) {
		if (by_id ? (json_int_t)info.id != json_integer_value(by_id)
			  : strcmp(info.model, name) != 0)
			continue;
		*ret = info;
		found++;
	}
	if (found == 1)
		return true;
	if (found == 0)
		prefixd_admin_refuse(r, by_id ? "ns" : "model", "there is no such namespace");
	else
		prefixd_admin_refuse(r, "model",
				     "%u namespaces have model %s; name one by its number (ns)",
				     found, name);
	return false;
}
