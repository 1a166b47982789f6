/*
 * lists.c - replies for people: everything but status and stat.
 */
#include "clients/ctl/ctl.h"

#include <string.h>

enum ctl_exit ctl_show_tree(const struct ctl *ctl, const json_t *r)
{
	const json_t *line;
	size_t i;

	json_array_foreach((json_t *)(uintptr_t)json_object_get(r, "lines"), i, line)
		puts(ctl_clean(json_string_value(line)));
	if (ctl_bool(r, "truncated"))
		puts("... and more: --lines N shows N of them");
	return CTL_OK;
}

enum ctl_exit ctl_show_pins(const struct ctl *ctl, const json_t *r)
{
	static const char *const titles[] = { "<LEASE", "SESSION", "PID",    "UID",      "<TENANT",
					      "NS",     "AGE",     "BLOCKS", "RESERVED", "<STATE" };
	const json_t *pins = json_object_get(r, "pins"), *p;
	struct ctl_table t;
	size_t i;

	ctl_table_init(&t, titles, 10);
	json_array_foreach((json_t *)(uintptr_t)pins, i, p)
	{
		const json_t *tenant = json_object_get(p, "tenant");
		const char *cells[] = {
			ctl_format("%#llx", (unsigned long long)ctl_u64(p, "lease")),
			ctl_format("%llu", (unsigned long long)ctl_u64(p, "session")),
			ctl_format("%llu", (unsigned long long)ctl_u64(p, "pid")),
			ctl_format("%llu", (unsigned long long)ctl_u64(p, "uid")),
			json_is_string(tenant)
				? ctl_str(p, "tenant")
				: ctl_format("%llu", (unsigned long long)ctl_u64(p, "tenant")),
			ctl_count(ctl_u64(p, "ns")),
			ctl_age(ctl_real(p, "age_s")),
			ctl_brief(ctl_u64(p, "blocks")),
			ctl_brief(ctl_u64(p, "reserved")),
			ctl_bool(p, "orphan") ? "orphan" : "live",
		};

		ctl_table_row(&t, cells);
	}
	if (json_array_size(pins) == 0)
		puts("nothing is pinned");
	ctl_table_print(&t, NULL);
	if (ctl_u64(r, "total") > json_array_size(pins))
		printf("... and %s more; --older SECONDS leaves out the young\n",
		       ctl_count(ctl_u64(r, "total") - json_array_size(pins)));
	return CTL_OK;
}

enum ctl_exit ctl_show_explain(const struct ctl *ctl, const json_t *r)
{
	const json_t *own = json_object_get(r, "own_token");
	const json_t *stored = json_object_get(r, "stored_token");

	printf("%s\n\n", ctl_str(r, "text"));
	ctl_line("matched", "%s tokens", ctl_count(ctl_u64(r, "matched_tokens")));
	ctl_line("reason", "%s, at token %s", ctl_str(r, "reason"),
		 ctl_count(ctl_u64(r, "position")));
	if (json_is_integer(own))
		ctl_line("asked for", "token %lld", (long long)json_integer_value(own));
	if (json_is_integer(stored))
		ctl_line("stored is", "token %lld", (long long)json_integer_value(stored));
	ctl_line("costs", "%s tokens", ctl_count(ctl_u64(r, "lost_tokens")));
	return CTL_OK;
}

enum ctl_exit ctl_show_evict(const struct ctl *ctl, const json_t *r)
{
	printf("%s blocks evicted\n", ctl_count(ctl_u64(r, "evicted")));
	return CTL_OK;
}

enum ctl_exit ctl_show_flush(const struct ctl *ctl, const json_t *r)
{
	printf("%s blocks flushed\n", ctl_count(ctl_u64(r, "flushed")));
	return CTL_OK;
}

enum ctl_exit ctl_show_invalidate(const struct ctl *ctl, const json_t *r)
{
	printf("%s blocks will not be served again\n", ctl_count(ctl_u64(r, "invalidated")));
	return CTL_OK;
}

enum ctl_exit ctl_show_audit(const struct ctl *ctl, const json_t *r)
{
	const json_t *v;
	size_t i;

	json_array_foreach((json_t *)(uintptr_t)json_object_get(r, "groups"), i, v)
	{
		printf("group %s: %s slots; states add up to %s\n", ctl_count(ctl_u64(v, "id")),
		       ctl_count(ctl_u64(v, "n_slots")), ctl_count(ctl_u64(v, "sum")));
		ctl_print_members("", json_object_get(v, "slots"));
	}
	json_array_foreach((json_t *)(uintptr_t)json_object_get(r, "findings"), i, v) printf(
		"FOUND: invariant %s: %s\n", ctl_count(ctl_u64(v, "number")), ctl_str(v, "text"));
	puts(ctl_bool(r, "clean") ? "clean" : "NOT clean");
	return CTL_OK; /* main.c turns what was found into the exit code, for --json too */
}

enum ctl_exit ctl_show_config(const struct ctl *ctl, const json_t *r)
{
	static const char *const titles[] = { "<OPTION", "<VALUE", "<FROM", "<RELOADS" };
	static const char *const who[] = { "<TENANT", "ID", "<WHO MAY USE IT" };
	struct ctl_table t;
	const json_t *v;
	size_t i;

	ctl_table_init(&t, titles, 4);
	json_array_foreach((json_t *)(uintptr_t)json_object_get(r, "options"), i, v)
	{
		const char *cells[] = { ctl_str(v, "name"), ctl_str(v, "value"),
					ctl_str(v, "source"),
					ctl_bool(v, "reloadable") ? "yes" : "no" };

		ctl_table_row(&t, cells);
	}
	ctl_table_print(&t, NULL);
	ctl_table_init(&t, who, 3);
	json_array_foreach((json_t *)(uintptr_t)json_object_get(r, "tenants"), i, v)
	{
		const char *cells[] = { ctl_str(v, "name"), ctl_count(ctl_u64(v, "id")),
					ctl_str(v, "who") };

		ctl_table_row(&t, cells);
	}
	ctl_table_print(&t, "Tenants");
	return CTL_OK;
}

enum ctl_exit ctl_show_level(const struct ctl *ctl, const json_t *r)
{
	printf("log level %s\n", ctl_str(r, "level"));
	return CTL_OK;
}

enum ctl_exit ctl_show_drain(const struct ctl *ctl, const json_t *r)
{
	puts("draining: it takes no new work and ends when its leases have");
	return CTL_OK;
}
