#include "tools/mkbench/put_round.h"

#include <chrono>
#include <cstring>
#include <span>
#include <vector>

#include "tools/mkbench/random.h"

namespace mkernel::bench {
namespace {

constexpr std::chrono::milliseconds kRoundPatience{30000};

/// The content of round `round`: rank 0 writes it, rank 1 makes it again to compare.
void fill_round(std::span<std::byte> memory, std::uint64_t round) {
  for (std::size_t at = 0; at + 8 <= memory.size(); at += 8) {
    const std::uint64_t word = mix(round, at);
    std::memcpy(memory.data() + at, &word, 8);
  }
}

/// One round on rank 0: new content, all puts, until the last is completed. Only that is timed.
Status send_round(Group& group, const SymmetricBuffer& buffer, const PutRounds& shape, std::uint64_t round,
                  PutTotals& totals) {
  fill_round({buffer.data(), buffer.bytes()}, round);
  MK_RETURN_IF_ERROR(group.barrier());
  std::uint64_t last = 0;
  const auto begin = std::chrono::steady_clock::now();
  for (std::uint64_t put = 0; put < shape.puts; ++put) {
    const std::uint64_t offset = put % shape.slots * shape.bytes;
    auto number = group.put(1, shape.lane, buffer, offset, buffer.region(), offset, shape.bytes);
    if (!number.ok()) return number.status();
    last = *number;
  }
  MK_RETURN_IF_ERROR(group.wait_completed(1, shape.lane, last, kRoundPatience));
  totals.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  totals.puts += shape.puts;
  return {};
}

/// The same on rank 1: waits for every put, then compares every byte.
Status receive_round(Group& group, const SymmetricBuffer& buffer, const PutRounds& shape, std::uint64_t round,
                     PutTotals& totals) {
  MK_RETURN_IF_ERROR(group.barrier());
  totals.puts += shape.puts;
  MK_RETURN_IF_ERROR(group.wait_arrival(0, shape.lane, shape.before + totals.puts, kRoundPatience));
  std::vector<std::byte> expected(buffer.bytes());
  fill_round(expected, round);
  totals.wrong_rounds += std::memcmp(expected.data(), buffer.data(), expected.size()) != 0 ? 1 : 0;
  return {};
}

}  // namespace

Result<PutTotals> run_put_rounds(Group& group, const SymmetricBuffer& buffer, const PutRounds& rounds,
                                 double seconds) {
  PutTotals totals;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (std::uint64_t round = 1;; ++round) {
    const std::uint64_t content = mix(rounds.before, round);
    MK_RETURN_IF_ERROR(group.rank() == 0 ? send_round(group, buffer, rounds, content, totals)
                                         : receive_round(group, buffer, rounds, content, totals));
    // Rank 0's clock decides for both; the exchange also says how rank 1's comparison went.
    const struct {
      bool go_on;
      std::uint64_t wrong;
    } mine{std::chrono::steady_clock::now() < end, totals.wrong_rounds};
    auto all = group.exchange(std::as_bytes(std::span(&mine, 1)));
    if (!all.ok()) return all.status();
    auto theirs = mine;
    std::memcpy(&theirs, (*all)[1].data(), sizeof(theirs));
    totals.wrong_rounds = theirs.wrong;
    std::memcpy(&theirs, (*all)[0].data(), sizeof(theirs));
    if (!theirs.go_on) return totals;
  }
}

}  // namespace mkernel::bench
