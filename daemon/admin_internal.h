/*
 * admin_internal.h - shared by the files of the admin operations.
 *
 * An operation gets its checked arguments and fills a reply.  Adding to a reply that ran out of
 * memory does nothing but be remembered, so that operations need not look at each call.
 */
#pragma once

#include "daemon/server_internal.h"

#include <jansson.h>

struct prefixd_admin_reply {
	json_t *root;
	bool failed;     /* no memory */
	char error[512]; /* not empty: the operation was refused, and why */
	char field[64];  /* the argument at fault */
};

typedef void prefixd_admin_op(struct prefixd_server *s, const json_t *args,
			      struct prefixd_admin_reply *reply);

prefixd_admin_op prefixd_admin_status, prefixd_admin_stat; /* admin_status.c */
prefixd_admin_op prefixd_admin_tree, prefixd_admin_audit;  /* admin_look.c */
prefixd_admin_op prefixd_admin_pins;                       /* admin_pins.c */
prefixd_admin_op prefixd_admin_explain;                    /* admin_explain.c */

/* Members; a stolen value may be NULL. */
void prefixd_admin_put(struct prefixd_admin_reply *r, json_t *obj, const char *name,
		       json_t *stolen);
void prefixd_admin_put_u64(struct prefixd_admin_reply *r, json_t *obj, const char *name,
			   uint64_t value);
void prefixd_admin_put_text(struct prefixd_admin_reply *r, json_t *obj, const char *name,
			    const char *text);
void prefixd_admin_put_bool(struct prefixd_admin_reply *r, json_t *obj, const char *name,
			    bool value);
void prefixd_admin_put_real(struct prefixd_admin_reply *r, json_t *obj, const char *name,
			    double value);
void prefixd_admin_put_hex(struct prefixd_admin_reply *r, json_t *obj, const char *name,
			   const void *bytes, size_t len);
void prefixd_admin_append(struct prefixd_admin_reply *r, json_t *array, json_t *stolen);
/* A new object or array as a member; NULL without memory, which the others accept. */
json_t *prefixd_admin_object(struct prefixd_admin_reply *r, json_t *obj, const char *name);
json_t *prefixd_admin_array(struct prefixd_admin_reply *r, json_t *obj, const char *name);

__attribute__((format(printf, 3, 4))) void prefixd_admin_refuse(struct prefixd_admin_reply *r,
								const char *field,
								const char *format, ...);

/*
 * Optional arguments: false when one is there and wrong (refused then).  *ret keeps its value when
 * the argument is not given.
 */
radix_nodiscard bool prefixd_admin_arg_u64(const json_t *args, const char *name, uint64_t max,
					   uint64_t *ret, struct prefixd_admin_reply *r);
radix_nodiscard bool prefixd_admin_arg_time(const json_t *args, const char *name, uint64_t *ret_ns,
					    struct prefixd_admin_reply *r);
/* Namespace by `ns` or by `model`; refused when it is missing, unknown or not the only one. */
radix_nodiscard bool prefixd_admin_arg_namespace(struct prefixd_server *s, const json_t *args,
						 struct prefixd_namespace_info *ret,
						 struct prefixd_admin_reply *r);
