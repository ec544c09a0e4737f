#include "kernels/plan/expert_table.h"

#include <cstddef>
#include <string>

namespace mkernel::kernels {

HostExpertTable::HostExpertTable(const ExpertOwners& owners, const ExpertBlockRows& cut,
                                 std::span<const std::int32_t> counts)
    : owners_(owners), cut_(cut), rows_before_{0}, blocks_before_{0} {
  for (std::int32_t expert = 0; expert < owners.experts; ++expert) {
    std::int32_t rows = 0;
    for (auto of = static_cast<std::size_t>(expert); of < counts.size();
         of += static_cast<std::size_t>(owners.experts))
      rows += counts[of];
    rows_.push_back(rows);
    rows_before_.push_back(rows_before_.back() + cut.padded(rows));
    blocks_before_.push_back(blocks_before_.back() + cut.blocks(rows));
  }
}

std::int32_t HostExpertTable::first_overflow(std::int32_t capacity) const {
  for (std::int32_t expert = 0; expert < owners_.experts; ++expert)
    if (view().overflows(expert, capacity)) return expert;
  return -1;
}

Status HostExpertTable::check_capacity(std::int32_t capacity) const {
  const std::int32_t expert = first_overflow(capacity);
  if (expert < 0) return {};
  const std::int32_t rows = rows_[static_cast<std::size_t>(expert)];
  return beyond_capacity(owners_, expert, rows, view().first_row(expert) + cut_.padded(rows), capacity);
}

Status beyond_capacity(const ExpertOwners& owners, std::int32_t expert, std::int32_t rows,
                       std::int32_t padded, std::int32_t capacity) {
  return {StatusCode::kResourceExhausted,
          "moe: expert " + std::to_string(expert) + " has " + std::to_string(rows) +
              " rows, with which rank " + std::to_string(owners.owner(expert)) + " needs " +
              std::to_string(padded) + " rows with padding, but its capacity is " + std::to_string(capacity)};
}

}  // namespace mkernel::kernels
