/*
 * test_restart_damage.c - what a killed daemon left is damaged: what is lost, and what is not?
 *
 * The daemon is killed; this process takes the memory from the holder, changes something, and gives
 * it back; another daemon is started.  Then every prompt is matched and compared (shelves.h).
 *
 *     a bit of a block's entry, key or payload     that block, and what hangs below it
 *     a bit of a record of the ledger              what the record is about
 *     the table cut short                          the blocks whose keys lay behind the cut
 *     another version                              the daemon does not start, and says how to go on
 *
 * What is lost can be stored again, and the daemon's audit is clean.  Bytes that are served are
 * always right.
 */
#include "tests/e2e/kept.h"
#include "tests/e2e/shelves.h"

#include "tests/lib/rng.h"
#include "tests/lib/run.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	PROMPTS = 4,
	MANY = 64,  /* enough for several pages of keys */
	VICTIM = 1, /* prompt of shelf 0 */
	DEPTH = 10  /* its block that is damaged */
};

static struct shelves s;

/* Prompts are stored, leases are held, and the daemon is killed. */
static void begin(uint32_t n_prompts)
{
	memset(&s, 0, sizeof(s));
	for (uint32_t shelf = 0; shelf < SHELVES; shelf++)
		s.n_prompts[shelf] = shelf ? PROMPTS : n_prompts;
	shelves_begin(&s);
	shelves_hold(&s);
	shelves_kill(&s);
}

/* All is there but the victim, which has `n`. */
static void only_victim_lost(const char *what, uint32_t n)
{
	for (uint32_t shelf = 0; shelf < SHELVES; shelf++) {
		for (uint32_t p = 0; p < s.n_prompts[shelf]; p++) {
			uint32_t want = shelf == 0 && p == VICTIM ? n : SHELF_BLOCKS;
			uint32_t is = shelves_look(&s, shelf, p);

			ck_assert_msg(is == want, "%s: shelf %u, prompt %u has %u blocks, not %u",
				      what, shelf, p, is, want);
		}
	}
}

/* ---- the block table ------------------------------------------------------------------------- */

static void flip(void *field, size_t len, uint64_t *rng)
{
	uint32_t bit = test_rng_below(rng, (uint32_t)len * 8);

	((uint8_t *)field)[bit / 8] ^= (uint8_t)(1u << bit % 8);
}

/* field, 1: the block is lost with it */
#define ENTRY_FIELDS(X)      \
	X(check, 1)          \
	X(generation, 1)     \
	X(parent, 1)         \
	X(device, 1)         \
	X(key, 1)            \
	X(state, 1)          \
	X(root, 1)           \
	X(key_len, 1)        \
	X(ns, 1)             \
	X(tenant, 1)         \
	X(n_tokens, 1)       \
	X(root_check, 1)     \
	X(host, 0)           \
	X(use, 0)            \
	X(next_free, 0)      \
	X(redis, 0)          \
	X(checksum_check, 0) \
	X(checksum, 0)       \
	X(checksum_kind, 0)  \
	X(moving, 0)         \
	X(turn, 0)           \
	X(reserved, 0)

static struct radix_entry *victim_of(const struct kept *k)
{
	uint32_t key[SHELF_TOKENS];

	shelf_key(0, VICTIM, DEPTH, key);
	return kept_entry(k, key, sizeof(key));
}

static uint32_t slot_of(const struct kept *k)
{
	return radix_entry_slot(victim_of(k));
}

enum place {
#define X(field, loses) ENTRY_##field,
	ENTRY_FIELDS(X)
#undef X
	KEY,
	GENERATION,
	SLOT,
	PAYLOAD,
	N_PLACES
};

static const struct {
	const char *name;
	bool loses;
} places[N_PLACES] = {
#define X(field, loses) [ENTRY_##field] = { "entry: " #field, loses },
	ENTRY_FIELDS(X)
#undef X
		[KEY] = { "key", true },
	[GENERATION] = { "generation of the slot", true },
	[SLOT] = { "state and owner of the slot", false }, /* the entry says so too */
	[PAYLOAD] = { "payload", true },
};

static void damage(struct kept *k, enum place place, uint64_t *rng)
{
	struct radix_entry *e = victim_of(k);

	switch (place) {
#define X(field, loses)                                 \
	case ENTRY_##field:                             \
		flip(&e->field, sizeof(e->field), rng); \
		break;
		ENTRY_FIELDS(X)
#undef X
	case KEY:
		flip(kept_key(k, e), SHELF_KEY_LEN, rng);
		break;
	case GENERATION:
		flip(&k->generations[slot_of(k)], sizeof(uint64_t), rng);
		break;
	case SLOT:
		flip(&k->table.slots[slot_of(k)], sizeof(uint64_t), rng);
		break;
	case PAYLOAD:
		flip(k->pool + slot_of(k) * k->stride, shelf_bytes(0), rng);
		break;
	case N_PLACES:
		break;
	}
}

/* Several bits of each place, each in lives of its own. */
START_TEST(one_bit_costs_one_block)
{
	uint64_t rng = (uint64_t)_i + 1;
	struct kept k;

	for (int bits = 0; bits < 3; bits++) {
		begin(PROMPTS);
		kept_open(&k, &s.d, shelf_bytes(0));
		damage(&k, (enum place)_i, &rng);
		kept_close(&k);
		shelves_restart(&s, _i == PAYLOAD);
		only_victim_lost(places[_i].name, places[_i].loses ? DEPTH : SHELF_BLOCKS);
		shelves_end(&s);
	}
}
END_TEST

/* ---- the ledger ------------------------------------------------------------------------------ */

/* kind, field, 1: what it is about is lost */
#define RECORD_FIELDS(X)                \
	X(GROUP, group, word)           \
	X(GROUP, group, slot_bytes)     \
	X(GROUP, group, n_slots)        \
	X(GROUP, group, n_host)         \
	X(GROUP, group, n_entries)      \
	X(GROUP, group, tiers)          \
	X(GROUP, group, pool)           \
	X(TENANT, tenant, word)         \
	X(TENANT, tenant, name)         \
	X(NS, ns, word)                 \
	X(NS, ns, slot_bytes)           \
	X(NS, ns, id)                   \
	X(NS, ns, group)                \
	X(NS, ns, mode)                 \
	X(NS, ns, block_tokens)         \
	X(NS, ns, key_len)              \
	X(NS, ns, digest)               \
	X(NS, ns, family)               \
	X(NS, ns, text)                 \
	X(NS, ns, epoch)                \
	X(ROOT, root, word)             \
	X(ROOT, root, epoch_n)          \
	X(ROOT, root, epoch_nonce)      \
	X(ROOT, root, root)             \
	X(ROOT, root, group)            \
	X(ROOT, root, ns)               \
	X(ROOT, root, tenant)           \
	X(ROOT, root, digest)           \
	X(ROOT, root, salt_len)         \
	X(ROOT, root, salt)             \
	X(SESSION, session, word)       \
	X(SESSION, session, boot)       \
	X(SESSION, session, instance)   \
	X(SESSION, session, start_time) \
	X(SESSION, session, number)     \
	X(SESSION, session, pid)        \
	X(SESSION, session, name)       \
	X(LEASE, lease, word)           \
	X(LEASE, lease, id)             \
	X(LEASE, lease, session)        \
	X(LEASE, lease, group)          \
	X(LEASE, lease, root)           \
	X(LEASE, lease, half)

static const struct {
	const char *name;
	enum prefixd_ledger_kind kind;
	size_t at, len;
} fields[] = {
#define X(kind, record, field)                               \
	{ #record "." #field, PREFIXD_LEDGER_##kind,         \
	  offsetof(struct prefixd_##record##_record, field), \
	  sizeof(((struct prefixd_##record##_record *)0)->field) },
	RECORD_FIELDS(X)
#undef X
};

/* Is this the record of the first group, of its namespace, of the root with the salt? */
static bool wanted(enum prefixd_ledger_kind kind, const void *record)
{
	const struct prefixd_group_record *group = record;
	const struct prefixd_ns_record *ns = record;
	const struct prefixd_root_record *root = record;

	if (kind == PREFIXD_LEDGER_GROUP)
		return group->slot_bytes == shelf_bytes(0);
	if (kind == PREFIXD_LEDGER_NS)
		return ns->slot_bytes == shelf_bytes(0);
	if (kind == PREFIXD_LEDGER_ROOT)
		return root->salt_len == 6;
	return true;
}

static uint8_t *record_of(struct kept *k, enum prefixd_ledger_kind kind)
{
	for (uint32_t i = 0; i < k->ledger.arrays[kind].n; i++) {
		uint8_t *record = prefixd_ledger_at(&k->ledger, kind, i);

		if (record && *(uint64_t *)(void *)record != 0 && wanted(kind, record))
			return record;
	}
	ck_abort_msg("no record of kind %d", (int)kind);
	return NULL;
}

/* What may be lost, and no more: the shelves whose blocks the record is about. */
static bool may_be_lost(enum prefixd_ledger_kind kind, uint32_t shelf)
{
	return kind == PREFIXD_LEDGER_TENANT ||
	       ((kind == PREFIXD_LEDGER_GROUP || kind == PREFIXD_LEDGER_NS) && shelf != 2) ||
	       (kind == PREFIXD_LEDGER_ROOT && shelf == 1);
}

START_TEST(one_bit_costs_one_record)
{
	enum prefixd_ledger_kind kind = fields[_i].kind;
	uint64_t rng = (uint64_t)_i + 77;
	struct kept k;

	for (int bits = 0; bits < 2; bits++) {
		begin(PROMPTS);
		kept_open(&k, &s.d, shelf_bytes(0));
		flip(record_of(&k, kind) + fields[_i].at, fields[_i].len, &rng);
		kept_close(&k);
		shelves_restart(&s, false);
		for (uint32_t shelf = 0; shelf < SHELVES; shelf++) {
			for (uint32_t p = 0; p < PROMPTS; p++) {
				uint32_t n = shelves_look(&s, shelf, p);

				ck_assert_msg(n == SHELF_BLOCKS ||
						      (n == 0 && may_be_lost(kind, shelf)),
					      "%s: shelf %u, prompt %u has %u blocks",
					      fields[_i].name, shelf, p, n);
			}
		}
		shelves_end(&s);
	}
}
END_TEST

/* ---- tables that are cut, emptied, foreign --------------------------------------------------- */

/* The file ends behind the first page of keys. */
START_TEST(table_cut_short)
{
	uint32_t want[MANY], n_whole = 0, n_cut = 0;
	struct kept k;
	size_t cut;

	begin(MANY);
	kept_open(&k, &s.d, shelf_bytes(0));
	cut = k.table.pages_at + RADIX_CELL_PAGE;
	ck_assert_uint_gt(k.table_file.store.committed, cut);
	for (uint32_t p = 0; p < MANY; p++) {
		uint32_t key[SHELF_TOKENS], i;

		for (i = 0; i < SHELF_BLOCKS; i++) {
			shelf_key(0, p, i, key);
			if (kept_entry(&k, key, sizeof(key))->key >= RADIX_CELL_PAGE)
				break;
		}
		want[p] = i;
		n_whole += i == SHELF_BLOCKS;
		n_cut += i < SHELF_BLOCKS;
	}
	ck_assert_uint_gt(n_whole, 0);
	ck_assert_uint_gt(n_cut, 0);
	kept_replace(&k, "table", k.table_file.store.base, cut);
	kept_close(&k);
	shelves_restart(&s, false);
	for (uint32_t p = 0; p < MANY; p++)
		ck_assert_uint_eq(shelves_look(&s, 0, p), want[p]);
	for (uint32_t p = 0; p < PROMPTS; p++)
		ck_assert_uint_eq(shelves_look(&s, 2, p), SHELF_BLOCKS);
	shelves_end(&s);
}
END_TEST

/* A table of zeroes was never one: its group begins anew, the other is whole. */
START_TEST(table_of_zeroes)
{
	struct kept k;

	begin(PROMPTS);
	kept_open(&k, &s.d, shelf_bytes(0));
	memset(k.table_file.store.base, 0, k.table_file.store.committed);
	kept_close(&k);
	shelves_restart(&s, false);
	for (uint32_t p = 0; p < PROMPTS; p++) {
		ck_assert_uint_eq(shelves_look(&s, 0, p), 0);
		ck_assert_uint_eq(shelves_look(&s, 1, p), 0);
		ck_assert_uint_eq(shelves_look(&s, 2, p), SHELF_BLOCKS);
	}
	shelves_end(&s);
}
END_TEST

/* ---- what is refused ------------------------------------------------------------------------- */

/* The command that the daemon's last lines tell an operator to type, run as it stands. */
static void do_as_told(const char *log)
{
	const char *ctl = getenv("PREFIXCTL_BIN"), *from = NULL, *next = log, *word;
	const char *argv[16] = { ctl };
	char line[512], out[4096];
	size_t n = 1;

	while ((next = strstr(next, "`prefixctl "))) {
		from = next + strlen("`prefixctl ");
		next = from;
	}
	ck_assert_msg(from && strchr(from, '`'), "no command in: %s", log);
	(void)snprintf(line, sizeof(line), "%.*s", (int)(strchr(from, '`') - from), from);
	for (char *rest = line; (word = strsep(&rest, " ")) && n + 1 < 16;)
		argv[n++] = word;
	ck_assert_ptr_nonnull(ctl);
	ck_assert_msg(e2e_run(argv, out, sizeof(out)) == 0, "%s", out);
}

/* The daemon refuses what is there, also a second time; the way out that it names works. */
static void refused(const char *what)
{
	char *log;

	for (int i = 0; i < 2; i++) {
		int r = shelves_start(&s, false);

		log = e2e_daemon_log(&s.d);
		ck_assert_msg(r > 0 && r < 128, "start: %d: %s", r, log);
		ck_assert_msg(strstr(log, what) != NULL, "not a word of %s: %s", what, log);
		if (i)
			do_as_told(log);
		free(log);
	}
	shelves_restart(&s, false);
	ck_assert_uint_eq(shelves_look(&s, 0, 0), 0);
	shelves_end(&s);
}

START_TEST(table_of_another_version)
{
	struct kept k;

	begin(PROMPTS);
	kept_open(&k, &s.d, shelf_bytes(0));
	k.table.head->version++;
	k.table.head->check = radix_head_check(k.table.head);
	kept_close(&k);
	refused("version");
}
END_TEST

/* The ledger's head: magic, version, the key's mark, its check. */
START_TEST(ledger_of_somebody_else)
{
	static const char *const words[] = { "ledger", "ledger", "ledger", "ledger" };
	static const size_t at[] = { 0, 8, 16, 32 };
	struct kept k;

	begin(PROMPTS);
	kept_open(&k, &s.d, shelf_bytes(0));
	((uint8_t *)k.ledger_file.store.base)[at[_i]] ^= 4;
	kept_close(&k);
	refused(words[_i]);
}
END_TEST

START_TEST(something_else_in_place_of_the_ledger)
{
	uint8_t noise[8192];
	struct kept k;
	uint64_t rng = 1;

	begin(PROMPTS);
	kept_open(&k, &s.d, shelf_bytes(0));
	test_rng_fill(&rng, noise, sizeof(noise));
	kept_replace(&k, NULL, noise, sizeof(noise));
	kept_close(&k);
	refused("ledger");
}
END_TEST

int main(int argc, char **argv)
{
	const char *which = argc > 1 ? argv[1] : "";
	Suite *suite = suite_create("damage");
	TCase *t = tcase_create(which);

	if (!e2e_daemon_binary()) {
		printf("1..0 # SKIP no daemon binary\n");
		return 0;
	}
	tcase_set_timeout(t, 120);
	if (!*which || strcmp(which, "T30") == 0)
		tcase_add_loop_test(t, one_bit_costs_one_block, 0, N_PLACES);
	if (!*which || strcmp(which, "records") == 0)
		tcase_add_loop_test(t, one_bit_costs_one_record, 0,
				    (int)(sizeof(fields) / sizeof(fields[0])));
	if (!*which || strcmp(which, "F22") == 0) {
		tcase_add_test(t, table_cut_short);
		tcase_add_test(t, table_of_zeroes);
		tcase_add_test(t, table_of_another_version);
		tcase_add_loop_test(t, ledger_of_somebody_else, 0, 4);
		tcase_add_test(t, something_else_in_place_of_the_ledger);
	}
	suite_add_tcase(suite, t);
	return test_run(suite);
}
