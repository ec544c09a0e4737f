// The table of a mixture of experts' rows on the host: it owns what ExpertTable looks up, and says what does
// not fit.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/plan/expert_blocks.h"
#include "proto/abi/status.h"

namespace mkernel::kernels {

/// kResourceExhausted: an expert of `rows` rows with which its owner would need `padded` padded rows.
Status beyond_capacity(const ExpertOwners& owners, std::int32_t expert, std::int32_t rows,
                       std::int32_t padded, std::int32_t capacity);

/// A table that owns its arrays.
class HostExpertTable {
 public:
  /// `counts`: [world][experts], in all below 2^31 rows with their padding.
  HostExpertTable(const ExpertOwners& owners, const ExpertBlockRows& cut,
                  std::span<const std::int32_t> counts);

  ExpertTable view() const {
    return {owners_, cut_, rows_.data(), rows_before_.data(), blocks_before_.data()};
  }
  /// The first expert that ends beyond its owner's pool of `capacity` rows; -1: none.
  std::int32_t first_overflow(std::int32_t capacity) const;
  /// kResourceExhausted names that expert, its rows, its owner, the padded rows up to it, and the capacity.
  Status check_capacity(std::int32_t capacity) const;

 private:
  ExpertOwners owners_;
  ExpertBlockRows cut_;
  std::vector<std::int32_t> rows_, rows_before_, blocks_before_;
};

}  // namespace mkernel::kernels
