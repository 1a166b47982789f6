/*
 * fatbin.h - the kernels of gpu/kernels.h, compiled for several targets, in this program.
 *
 * What cuModuleLoadData() takes.  NULL and 0 where the build found no nvcc: blocks then move by
 * copies, and are coded and summed by the processor.
 */
#pragma once

#include "radix/base.h"

extern const void *const gpu_fatbin;
extern const uint64_t gpu_fatbin_len;
