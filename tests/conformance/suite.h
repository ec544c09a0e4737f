// What the files of the conformance suite share.
#pragma once

#include <doctest/doctest.h>

#include <random>

#include "tests/support/transport_pair.h"

namespace mkernel::test {

/// False, with a message that says so, when this kind of transport cannot be disturbed that way.
inline bool can_inject(TransportPair& pair, Fault fault, const std::string& what) {
  if (pair.wire().can(fault)) return true;
  static int skipped = 0;
  MESSAGE("SKIPPED (" << ++skipped << "): transport " << pair.wire().name() << " cannot be made to " << what);
  return false;
}

/// Loses the connection at random moments, every `mean_pumps` pumps on average, and gives it back soon after.
inline std::function<void(Node&)> random_cuts(Wire& wire, std::uint64_t seed, int mean_pumps) {
  struct State {
    std::mt19937_64 random;
    int down_for = 0;
  };
  auto state = std::make_shared<State>();
  state->random.seed(seed);
  return [state, &wire, mean_pumps](Node& node) {
    if (state->down_for > 0) {
      if (--state->down_for == 0) wire.heal(node);
    } else if (node.connected() && wire.may_cut() &&
               state->random() % static_cast<unsigned>(mean_pumps) == 0) {
      wire.cut(node);
      state->down_for = 1 + static_cast<int>(state->random() % 8);
    }
  };
}

constexpr Threads kBothModes[] = {Threads::kOne, Threads::kTwo};

}  // namespace mkernel::test
