#include "tools/mkrun/operand.h"

#include <cstring>
#include <limits>

#include "kernels/cpu/memory/convert.h"
#include "tools/mkrun/npy.h"

namespace mkernel::mkrun {
namespace {

std::string wanted_text(const std::vector<Extent>& wanted) {
  std::string text = "(";
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    text += (i > 0 ? ", " : "") + wanted[i].name;
    if (wanted[i].value >= 0) text += " = " + std::to_string(wanted[i].value);
  }
  return text + ")";
}

bool fits(const std::vector<std::int64_t>& shape, const std::vector<Extent>& wanted) {
  if (shape.size() != wanted.size()) return false;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (wanted[i].value >= 0 && shape[i] != wanted[i].value) return false;
  }
  return true;
}

/// Reads and checks the shape; `operand` gets everything but the values.
Result<Array> load(const std::string& flag, const std::string& path, const std::vector<Extent>& wanted,
                   Operand& operand) {
  if (path.empty()) {
    return Status(StatusCode::kInvalidArgument,
                  flag + " is missing: a .npy file of shape " + wanted_text(wanted));
  }
  auto array = read_npy(path);
  if (!array.ok()) return array.status().with_context(flag);
  operand.what = flag + " " + path;
  operand.shape = array->shape;
  if (fits(array->shape, wanted)) return array;
  return Status(StatusCode::kInvalidArgument, operand.what + " has shape " + shape_text(array->shape) +
                                                  ", wanted is " + wanted_text(wanted));
}

Result<std::vector<float>> as_floats(const Array& array, const std::string& what) {
  std::vector<float> floats(static_cast<std::size_t>(array.elements()));
  if (array.type == ElementType::kF32) {
    if (!floats.empty()) std::memcpy(floats.data(), array.data.data(), array.data.size());
  } else if (array.type == ElementType::kF16) {
    kernels::widen(DataType::kF16, array.data.data(), floats.data(), floats.size());
  } else {
    return Status(StatusCode::kInvalidArgument, what + " holds integers, wanted are float32 or float16");
  }
  return floats;
}

}  // namespace

Result<Operand> load_values(const std::string& flag, const std::string& path,
                            const std::vector<Extent>& wanted, DataType dtype) {
  Operand operand;
  const auto array = load(flag, path, wanted, operand);
  if (!array.ok()) return array.status();
  const auto floats = as_floats(array.value(), operand.what);
  if (!floats.ok()) return floats.status();
  operand.values.resize(floats->size());
  kernels::narrow(dtype, floats->data(), operand.values.data(), floats->size());
  return operand;
}

Result<Operand> load_floats(const std::string& flag, const std::string& path,
                            const std::vector<Extent>& wanted) {
  Operand operand;
  const auto array = load(flag, path, wanted, operand);
  if (!array.ok()) return array.status();
  auto floats = as_floats(array.value(), operand.what);
  if (!floats.ok()) return floats.status();
  operand.floats = std::move(*floats);
  return operand;
}

Result<Operand> load_indices(const std::string& flag, const std::string& path,
                             const std::vector<Extent>& wanted) {
  Operand operand;
  const auto array = load(flag, path, wanted, operand);
  if (!array.ok()) return array.status();
  const auto count = static_cast<std::size_t>(array->elements());
  operand.indices.resize(count);
  if (array->type == ElementType::kI32) {
    if (count > 0) std::memcpy(operand.indices.data(), array->data.data(), array->data.size());
    return operand;
  }
  if (array->type != ElementType::kI64) {
    return Status(StatusCode::kInvalidArgument, operand.what + " holds floats, wanted are int32 or int64");
  }
  for (std::size_t i = 0; i < count; ++i) {
    std::int64_t index = 0;
    std::memcpy(&index, array->data.data() + i * sizeof(index), sizeof(index));
    if (index < 0 || index > std::numeric_limits<std::int32_t>::max()) {
      return Status(StatusCode::kInvalidArgument, operand.what + " holds index " + std::to_string(index) +
                                                      " at element " + std::to_string(i));
    }
    operand.indices[i] = static_cast<std::int32_t>(index);
  }
  return operand;
}

}  // namespace mkernel::mkrun
