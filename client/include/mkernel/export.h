/* What libmkernel.so shows: everything not marked MK_API stays inside the library. Plain C. */
#pragma once

#define MK_API __attribute__((visibility("default")))
