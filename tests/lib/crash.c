/*
 * crash.c - the hook of radix/crash.h, for programs built with crash points.
 */
#include "radix/crash.h"

void (*radix_crash_hook)(const char *name);
