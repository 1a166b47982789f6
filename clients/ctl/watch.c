/*
 * watch.c - prefixctl watch: what is stored and what goes, one line per event.
 */
#include "clients/ctl/ctl.h"

#include "clients/c/prefixd_events.h"

#include <string.h>
#include <time.h>

static void hex(const uint8_t *p, uint32_t n, char ret[129])
{
	for (uint32_t i = 0; i < n && i < 64; i++)
		(void)snprintf(ret + 2 * (size_t)i, 3, "%02x", p[i]); /* always two digits */
	if (n == 0)
		ret[0] = 0;
}

static void print_json_line(const pfx_change *e)
{
	char root[129], block[129], parent[129];

	hex(e->root, 16, root);
	hex(e->block, e->block_len, block);
	hex(e->parent, e->parent_len, parent);
	printf("{\"number\":%llu,\"kind\":\"%s\",\"ns\":%u", (unsigned long long)e->number,
	       pfx_change_to_string(e->kind), e->ns);
	if (e->kind == PFX_CHANGE_CLEARED)
		printf(",\"revision\":%llu", (unsigned long long)e->revision);
	if (e->block_len)
		printf(",\"tenant\":%u,\"root\":\"%s\",\"tier\":\"%s\",\"tokens\":%u,"
		       "\"block\":\"%s\"",
		       e->tenant, root, pfx_tier_to_string(e->tier), e->n_tokens, block);
	if (e->block_len && e->slot != UINT32_MAX)
		printf(",\"slot\":%u", e->slot);
	if (e->kind == PFX_CHANGE_STORED)
		printf(",\"parent\":\"%s\"", parent);
	if (e->position != UINT32_MAX)
		printf(",\"position\":%u", e->position);
	if (e->kind == PFX_CHANGE_REMOVED)
		printf(",\"reason\":\"%s\"", pfx_removal_to_string(e->reason));
	if (e->kind == PFX_CHANGE_MOVED)
		printf(",\"from_tier\":\"%s\"", pfx_tier_to_string(e->from_tier));
	puts("}");
}

static void print_text_line(const pfx_change *e)
{
	char block[129];

	hex(e->block, e->block_len < 12 ? e->block_len : 12, block);
	printf("%llu %s", (unsigned long long)e->number, pfx_change_to_string(e->kind));
	if (e->kind != PFX_CHANGE_RESYNC)
		printf(" ns %u", e->ns);
	if (e->kind == PFX_CHANGE_CLEARED)
		printf(" revision %llu", (unsigned long long)e->revision);
	if (e->kind == PFX_CHANGE_MOVED)
		printf(" %s -> %s", pfx_tier_to_string(e->from_tier), pfx_tier_to_string(e->tier));
	else if (e->block_len)
		printf(" %s", pfx_tier_to_string(e->tier));
	if (e->slot != UINT32_MAX && e->block_len)
		printf(" slot %u", e->slot);
	if (e->block_len)
		printf(" block %s", block);
	if (e->kind == PFX_CHANGE_REMOVED)
		printf(" %s", pfx_removal_to_string(e->reason));
	putchar('\n');
}

enum ctl_exit ctl_watch(struct ctl *ctl)
{
	const char *count = ctl->values[CTL_OPT_COUNT], *timeout = ctl->values[CTL_OPT_TIMEOUT];
	uint64_t n = UINT64_MAX;
	double patience = 0;
	int r;

	if ((count && !ctl_parse_u64(count, UINT64_MAX, &n)) ||
	    (timeout && !ctl_parse_seconds(timeout, &patience))) {
		fputs("prefixctl: watch -n LINES --timeout SECONDS\n", stderr);
		return CTL_USAGE;
	}
	r = pfx_subscribe(ctl->client, NULL, 0, NULL, 0, NULL);
	for (time_t last = time(NULL); r == 0 && n > 0 && !ferror(stdout);) {
		pfx_change e = { .struct_size = sizeof(e) };

		r = pfx_next_event(ctl->client, 200, &e);
		if (r == PFX_DEADLINE && (!timeout || difftime(time(NULL), last) < patience)) {
			r = 0;
			continue;
		}
		if (r)
			break;
		if (ctl->values[CTL_OPT_JSON])
			print_json_line(&e);
		else
			print_text_line(&e);
		(void)fflush(stdout); /* a broken pipe is noticed by the loop */
		last = time(NULL);
		n--;
	}
	if (r == 0 || r == PFX_DEADLINE) /* enough was seen, or nothing came for long enough */
		return CTL_OK;
	fprintf(stderr, "prefixctl: %s\n", ctl_clean(pfx_error(ctl->client)));
	return r == PFX_GONE || r == PFX_PROTOCOL ? CTL_UNREACHABLE : CTL_ERROR;
}
