/*
 * options_internal.h - shared by the files of the options, and their tests.
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

/*
 * One value from one source; a stronger source's stays.  Return: 0, -EINVAL with a sentence in
 * `why` that begins with `where`, -ENOMEM.
 */
radix_nodiscard int prefixd_option_set(struct prefixd_options *o, const struct prefixd_option *opt,
				       const char *text, enum prefixd_source source,
				       const char *where, char *why, size_t why_len);
/* All values of a file.  Return: 0, -EINVAL with a sentence, -ENOMEM. */
radix_nodiscard int prefixd_options_file(struct prefixd_options *o, const char *path, char *why,
					 size_t why_len);

/* The table's row of that name, or NULL. */
const struct prefixd_option *prefixd_option_find(const char *name);

/* The nearest of n names within two edits (a third of the word at most); NULL: none is near. */
const char *prefixd_suggest(const char *word, const char *const *names, size_t n);
/* The same among the options' names. */
const char *prefixd_suggest_option(const char *word);
