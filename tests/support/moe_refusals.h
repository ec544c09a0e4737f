// Launches of a mixture of experts that every rank refuses, on either executor.
#pragma once

#include <cstddef>
#include <functional>
#include <limits>
#include <string>

#include "tests/support/moe_cases.h"

namespace mkernel::test {

/// Every kind of bad entry on the last rank, and several at once. `shape`: 4 tokens, 4 experts, top-2.
/// `Ranks`: MoeLayer or GpuMoeRanks.
template <class Ranks>
void check_bad_routing(Ranks& ranks, const MoeShape& shape) {
  const auto good = ranks.inputs(random_router(shape, 1), 4, 1);
  const std::size_t last = good.size() - 1;
  const std::string who = "moe: rank " + std::to_string(last) + ": ";
  const auto refused = [&](const std::function<void(MoeInput&)>& spoil, const std::string& text) {
    auto inputs = good;
    spoil(inputs[last]);
    ranks.run_refused(inputs, StatusCode::kInvalidArgument, text);
    ranks.run_checked(good);
  };
  refused([](MoeInput& input) { input.topk[5] = 4; }, who + "topk[2, 1] = 4, but it must be 0..3");
  refused([](MoeInput& input) { input.topk[0] = -1; }, who + "topk[0, 0] = -1, but it must be 0..3");
  const std::string twice = std::to_string(good[last].topk[6]);
  refused([](MoeInput& input) { input.topk[7] = input.topk[6]; },
          who + "topk[3, 1] = " + twice + ", an expert that this token has already");
  refused([](MoeInput& input) { input.weights[2] = std::numeric_limits<float>::quiet_NaN(); },
          who + "weights[1, 0] is not a number");
  // Of several problems that of the lowest rank, and there of the lowest entry; twice in a row.
  auto inputs = good;
  inputs[0].topk[3] = 9, inputs[0].topk[6] = -7, inputs[last].topk[1] = 8;
  const std::string first = last == 0 ? "topk[0, 1] = 8" : "topk[1, 1] = 9";
  for (int launch = 0; launch < 2; ++launch) {
    ranks.run_refused(inputs, StatusCode::kInvalidArgument,
                      "moe: rank 0: " + first + ", but it must be 0..3");
  }
  ranks.run_checked(good);
}

}  // namespace mkernel::test
