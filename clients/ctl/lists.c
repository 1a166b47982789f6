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

/* "model/salt 5d1a60b2": where the path lies, and by a digest how it begins. */
static const char *path_of(const json_t *p)
{
	const char *salt = ctl_str(p, "salt"), *begins = ctl_str(p, "begins");
	const char *path = ctl_format("%s%s%.8s", ctl_str(p, "model"), salt[0] ? "/" : "", salt);

	return begins[0] ? ctl_format("%s %.8s", path, begins) : path;
}

/* "live 3/4": three of four ranks hold it. */
static const char *state_of(const json_t *p)
{
	const json_t *ranks = json_object_get(p, "ranks"), *rank;
	const char *state = ctl_str(p, "state");
	size_t i, n = 0;

	if (strcmp(ctl_str(p, "life"), "earlier") == 0)
		state = "earlier";
	else if (strcmp(state, "quarantined") == 0)
		state = "quarant.";
	if (!ranks)
		return state;
	json_array_foreach((json_t *)(uintptr_t)ranks, i, rank)
		n += strcmp(ctl_str(rank, "state"), "here") == 0;
	return ctl_format("%s %zu/%zu", state, n, i);
}

static void pins_table(const json_t *pins)
{
	static const char *const titles[] = { "PID",    "UID",  "<NAME", "<TENANT", "AGE",
					      "BLOCKS", "SIZE", "RSVD",  "<STATE",  "<PATH" };
	struct ctl_table t;
	const json_t *p;
	size_t i;

	ctl_table_init(&t, titles, sizeof(titles) / sizeof(titles[0]));
	json_array_foreach((json_t *)(uintptr_t)pins, i, p)
	{
		const char *cells[] = {
			ctl_format("%llu", (unsigned long long)ctl_u64(p, "pid")),
			ctl_format("%llu", (unsigned long long)ctl_u64(p, "uid")),
			ctl_str(p, "name"),
			ctl_str(p, "tenant"),
			ctl_age(ctl_real(p, "age_s")),
			ctl_brief(ctl_u64(p, "blocks")),
			ctl_bytes(ctl_u64(p, "bytes")),
			ctl_brief(ctl_u64(p, "reserved") + ctl_u64(p, "own")),
			state_of(p),
			path_of(p),
		};

		ctl_table_row(&t, cells);
	}
	ctl_table_print(&t, NULL);
}

enum ctl_exit ctl_show_pins(const struct ctl *ctl, const json_t *r)
{
	const json_t *pins = json_object_get(r, "pins");
	uint64_t total = ctl_u64(r, "total"), kept = ctl_u64(r, "kept_slots");

	pins_table(pins);
	if (total > json_array_size(pins))
		printf("... and %s more; --older TIME leaves out the young\n",
		       ctl_count(total - json_array_size(pins)));
	if (total == 0) {
		puts("nothing is pinned");
		return CTL_OK;
	}
	printf("%s leases of %s processes, the oldest %s; %s of them orphans\n", ctl_count(total),
	       ctl_count(ctl_u64(r, "processes")), ctl_age(ctl_real(r, "oldest_s")),
	       ctl_count(ctl_u64(r, "orphans")));
	printf("%s blocks are pinned (%s), %s slots reserved, %s kept from use\n",
	       ctl_count(ctl_u64(r, "pinned_blocks")), ctl_bytes(ctl_u64(r, "pinned_bytes")),
	       ctl_count(ctl_u64(r, "reserved")), ctl_count(kept));
	if (ctl_str(r, "over")[0])
		puts("more than half of a pool is kept from use by who left: see STATE");
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
