// Shapes of products on the command line.
#pragma once

#include <cstdio>
#include <string>

#include "mkernel/ops.h"
#include "proto/abi/status.h"

namespace mkernel::bench {

/// "MxNxK"; kInvalidArgument for any other text.
inline Result<GemmShape> parse_shape(const std::string& text) {
  char rest = 0;
  long long m = 0, n = 0, k = 0;
  if (std::sscanf(text.c_str(), "%lldx%lldx%lld%c", &m, &n, &k, &rest) != 3) {
    return Status(StatusCode::kInvalidArgument, "shape '" + text + "' is not MxNxK");
  }
  return GemmShape{.m = m, .n = n, .k = k};
}

}  // namespace mkernel::bench
