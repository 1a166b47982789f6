/*
 * fatbin_any.c - an image of kernels where the build has made none: the look-alike driver looks at
 * what kind it is and runs its own.
 */
#include "gpu/fatbin.h"

static const uint64_t image[] = { 0xba55ed50u };

const void *const gpu_fatbin = image;
const uint64_t gpu_fatbin_len = sizeof(image);
