// The user's matrices: read from .npy files, checked against the shape an operation wants, converted.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mkernel/ops.h"
#include "proto/abi/status.h"

namespace mkernel::mkrun {

/// One extent of a wanted shape: a name for people, and the value when it is known (-1: any).
struct Extent {
  std::string name;
  std::int64_t value = -1;
};

/// An operand in the operation's data type, or float weights, or indices: one of the vectors is filled.
struct Operand {
  std::string what;  ///< "--a a.0.npy", for errors
  std::vector<std::int64_t> shape;
  std::vector<std::uint16_t> values;
  std::vector<float> floats;
  std::vector<std::int32_t> indices;
};

/// Reads `path`, given as `flag`. Errors name flag, file, the shape found and the shape wanted; an empty
/// path: the flag is missing.
Result<Operand> load_values(const std::string& flag, const std::string& path,
                            const std::vector<Extent>& wanted, DataType dtype);
Result<Operand> load_floats(const std::string& flag, const std::string& path,
                            const std::vector<Extent>& wanted);
Result<Operand> load_indices(const std::string& flag, const std::string& path,
                             const std::vector<Extent>& wanted);

}  // namespace mkernel::mkrun
