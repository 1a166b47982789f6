/*
 * chat.h - a conversation as the text that the model was trained on.
 */
#ifndef LLAMA_CHAT_H
#define LLAMA_CHAT_H

#include <stddef.h>

struct chat_message {
	const char *role, *content; /* terminated */
};

/*
 * Writes the conversation, and what an answer begins with, as libllama does for this template; it
 * knows the usual ones by their marks and does not interpret Jinja.  *ret is malloc'd.
 * 0; -ENOTSUP: it does not know the template; -ENOMEM; -E2BIG.
 */
int chat_render(const char *template, const struct chat_message *messages, size_t n, char **ret,
		size_t *ret_len);

#endif
