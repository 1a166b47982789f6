/*
 * reload.c - SIGHUP: the same sources are read again, and what may change at run time does.
 *
 * A file that is wrong changes nothing: the old settings stay and one line says why.
 */
#include "daemon/server_internal.h"

#include "daemon/log.h"

#include <stdio.h>

void prefixd_tenants_merge(struct prefixd_tenant *tenants, uint32_t *n_tenants,
			   const struct prefixd_options *o)
{
	/* A name that is gone keeps its id, which blocks carry, and nobody may use it. */
	for (uint32_t i = 0; i < *n_tenants; i++) {
		tenants[i].any_uid = false;
		tenants[i].n_uids = 0;
	}
	for (uint32_t k = 0; k < o->n_tenants; k++) {
		uint32_t i = 0;

		while (i < *n_tenants && strcmp(tenants[i].name, o->tenants[k].name) != 0)
			i++;
		if (i == PREFIXD_TENANTS_MAX) {
			prefixd_error("no room for tenant %s: %d names were used since the start",
				      o->tenants[k].name, PREFIXD_TENANTS_MAX);
			continue;
		}
		if (i == *n_tenants)
			(*n_tenants)++;
		tenants[i] = o->tenants[k];
	}
}

static bool tenants_equal(const struct prefixd_options *a, const struct prefixd_options *b)
{
	if (a->n_tenants != b->n_tenants)
		return false;
	for (uint32_t i = 0; i < a->n_tenants; i++) {
		char x[16 * 16], y[16 * 16];

		prefixd_tenant_print(&a->tenants[i], x, sizeof(x));
		prefixd_tenant_print(&b->tenants[i], y, sizeof(y));
		if (strcmp(a->tenants[i].name, b->tenants[i].name) != 0 || strcmp(x, y) != 0)
			return false;
	}
	return true;
}

/* Lists what changed: into `applied` what a reload applies, into `waiting` what it cannot. */
static void changes_list(const struct prefixd_options *old, const struct prefixd_options *new_,
			 char *applied, char *waiting, size_t len)
{
	applied[0] = waiting[0] = '\0';
	for (size_t i = 0; i < PREFIXD_N_OPTIONS; i++) {
		const struct prefixd_option *opt = &prefixd_options_table[i];
		char *list = opt->flags & PREFIXD_OPT_RELOAD ? applied : waiting;
		size_t n = strlen(list);

		if (opt->type == PREFIXD_TENANT
			    ? tenants_equal(old, new_)
			    : strcmp(old->values[i].text, new_->values[i].text) == 0)
			continue;
		snprintf(list + n, len - n, "%s%s", n ? ", " : "", opt->name);
	}
}

/* Options that need a restart stay what they were, so that `config` tells what is in force. */
static void options_swap(struct prefixd_options *old, struct prefixd_options *new_)
{
	for (size_t i = 0; i < PREFIXD_N_OPTIONS; i++) {
		const struct prefixd_option *opt = &prefixd_options_table[i];
		char *to = (char *)old + opt->offset, *from = (char *)new_ + opt->offset;
		uint8_t field[sizeof(uint64_t)], value[sizeof(old->values[i])];

		if (!(opt->flags & PREFIXD_OPT_RELOAD))
			continue;
		memcpy(field, to, sizeof(field));
		memcpy(to, from, sizeof(field));
		memcpy(from, field, sizeof(field));
		memcpy(value, &old->values[i], sizeof(value));
		memcpy(&old->values[i], &new_->values[i], sizeof(value));
		memcpy(&new_->values[i], value, sizeof(value));
	}
	memcpy(old->tenants, new_->tenants, sizeof(old->tenants));
	old->n_tenants = new_->n_tenants;
}

void prefixd_server_reload(struct prefixd_server *s)
{
	struct prefixd_event event = { .type = PREFIXD_EVENT_RELOAD };
	char why[PREFIXD_WHY_LEN], applied[PREFIXD_WHY_LEN], waiting[PREFIXD_WHY_LEN];
	struct prefixd_options *fresh = NULL;
	struct prefixd_limits limits;

	prefixd_notify_reloading(&s->notify);
	if (prefixd_options_load(&fresh, s->argc, s->argv, s->envp, why, sizeof(why)) < 0) {
		s->reload_failed = true;
		prefixd_error("reload refused, the old settings stay: %s", why);
		prefixd_notify_ready(&s->notify, "the last reload was refused");
		return;
	}
	s->reload_failed = false;
	s->reload_wall_ns = prefixd_wall_ns();
	changes_list(s->options, fresh, applied, waiting, sizeof(applied));
	options_swap(s->options, fresh);
	prefixd_options_free(fresh);
	prefixd_log_set_level((enum prefixd_log_level)s->options->log_level);
	prefixd_tenants_merge(s->tenants, &s->n_tenants, s->options);
	prefixd_options_limits(s->options, &limits);
	event.u.reload.tenants = s->tenants;
	event.u.reload.n_tenants = s->n_tenants;
	event.u.reload.limits = &limits;
	prefixd_server_step(s, &event);
	prefixd_info("reloaded: changed: %s; needs a restart: %s", applied[0] ? applied : "nothing",
		     waiting[0] ? waiting : "nothing");
	prefixd_notify_ready(&s->notify, NULL);
}
