// Files of numpy.save: one array per file, format versions 1 and 2, C order, little endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "proto/abi/status.h"
#include "tools/base/output_file.h"

namespace mkernel::mkrun {

enum class ElementType { kF32, kF16, kI32, kI64 };

/// An array as it lies in its file.
struct Array {
  std::string file;
  ElementType type = ElementType::kF32;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> data;

  std::int64_t elements() const;
};

/// "(4, 5)".
std::string shape_text(std::span<const std::int64_t> shape);

/// Reads a whole file. Errors: kNotFound, kInvalidArgument; both name the file, the second the field and what
/// is wrong.
Result<Array> read_npy(const std::string& path);

/// Appends an array of float32 in C order to `file`. `values` holds the product of `shape`. Errors: those of
/// OutputFile::write().
Status write_npy(tools::OutputFile& file, std::span<const std::int64_t> shape, std::span<const float> values);

}  // namespace mkernel::mkrun
