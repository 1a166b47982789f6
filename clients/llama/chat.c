/*
 * chat.c - see chat.h.
 */
#include "clients/llama/chat.h"

#include <errno.h>
#include <llama.h>
#include <stdlib.h>
#include <string.h>

int chat_render(const char *template, const struct chat_message *messages, size_t n, char **ret,
		size_t *ret_len)
{
	struct llama_chat_message *chat = calloc(n ? n : 1, sizeof(*chat));
	size_t cap = 256;
	char *text = NULL;
	int32_t len = 0;

	if (!chat)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		chat[i].role = messages[i].role;
		chat[i].content = messages[i].content;
		cap += strlen(messages[i].role) + strlen(messages[i].content) + 64;
	}
	/* Twice at most: the first call says what the second one needs. */
	for (int tries = 0; tries < 2 && cap <= INT32_MAX; tries++) {
		free(text);
		text = malloc(cap);
		len = text ? llama_chat_apply_template(template, chat, n, true, text, (int32_t)cap)
			   : 0;
		if (!text || len < 0 || (size_t)len <= cap)
			break;
		cap = (size_t)len;
	}
	free(chat);
	if (!text)
		return cap > INT32_MAX ? -E2BIG : -ENOMEM;
	if (len < 0 || (size_t)len > cap) {
		free(text);
		return -ENOTSUP;
	}
	*ret = text;
	*ret_len = (size_t)len;
	return 0;
}
