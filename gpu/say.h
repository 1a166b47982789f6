/*
 * say.h - a sentence for the caller's log; nobody has to want one.
 */
#pragma once

#include <stdarg.h>
#include <stdio.h>

static inline void __attribute__((format(printf, 3, 4)))
gpu_say(char *why, size_t why_len, const char *fmt, ...)
{
	va_list ap;

	if (!why || why_len == 0)
		return;
	va_start(ap, fmt);
	(void)vsnprintf(why, why_len, fmt, ap);
	va_end(ap);
}
