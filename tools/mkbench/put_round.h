// Rounds of puts from rank 0 to rank 1 of a group of two, every payload compared: what `mkbench put` and
// `mkbench tenants` measure bandwidth with.
#pragma once

#include <mkernel/client.h>

#include <cstdint>

namespace mkernel::bench {

/// The puts of a round go through the slots of the buffer in turn, all with the content of that round, so
/// that each slot can be compared when the last has arrived.
struct PutRounds {
  std::uint32_t lane = 0;
  std::uint32_t bytes = 0;  ///< of a put, and of a slot; a multiple of 8
  std::uint64_t slots = 0;
  std::uint64_t puts = 0;    ///< of a round
  std::uint64_t before = 0;  ///< puts that the lane has carried already
};

struct PutTotals {
  std::uint64_t puts = 0;
  double seconds = 0;  ///< rank 0: from the first put of a round until the last is completed
  std::uint64_t wrong_rounds = 0;
};

/// **Collective** of both ranks, until `seconds` are over on rank 0's clock, filling and comparing included;
/// at least one round. `buffer` has room for the slots. Errors: what the group says.
Result<PutTotals> run_put_rounds(Group& group, const SymmetricBuffer& buffer, const PutRounds& rounds,
                                 double seconds);

}  // namespace mkernel::bench
