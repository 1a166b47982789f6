/*
 * say.h - one line on standard error: what went wrong, or what an operator should know.
 *
 * Prompts, answers and salts are never part of it.
 */
#ifndef LLAMA_SAY_H
#define LLAMA_SAY_H

#include <stdio.h>

#define say(fmt, ...) ((void)fprintf(stderr, "prefixd-llama: " fmt "\n", ##__VA_ARGS__))

#endif
