/*
 * options_internal.h - shared by the three files of the options, and their tests.
 */
#pragma once

#include "daemon/options.h"

/* A parsed value, before it is put into its field. */
struct prefixd_value {
	uint64_t number;
	struct prefixd_tenant tenant;
};

/*
 * Checks `text` against the option.  Return: 0 with *ret; -EINVAL with a sentence in `why` that
 * names the option, the text and what would be right.
 */
radix_nodiscard int prefixd_option_parse(const struct prefixd_option *opt, const char *text,
					 struct prefixd_value *ret, char *why, size_t why_len);

/* The table's row of that name, or NULL. */
const struct prefixd_option *prefixd_option_find(const char *name);

/* The nearest of n names within two edits (a third of the word at most); NULL: none is near. */
const char *prefixd_suggest(const char *word, const char *const *names, size_t n);
/* The same among the options' names. */
const char *prefixd_suggest_option(const char *word);
