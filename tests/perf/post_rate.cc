// How many puts a second one proxy thread can post: the transports over queue pairs that complete at once and
// move nothing. Prints one line per transport and size, and then what one put costs that is alone: 64 peers
// with 64 channels in each direction are open, and nothing but this put is under way. Counts processor time,
// so that a busy machine does not matter much; over EFA that of both ends, since the receiving proxy
// publishes and acknowledges.
#include <chrono>
#include <cstdio>
#include <utility>

#include "tests/support/null_efa.h"
#include "tests/support/null_verbs.h"
#include "tests/support/thread_time.h"

namespace mkernel::test {
std::unique_ptr<Wire> make_wire() {
  return nullptr;
}
}  // namespace mkernel::test

namespace {

double processor_seconds() {
  return std::chrono::duration<double>(mkernel::test::thread_time()).count();
}

void post_rate(const char* name, const mkernel::test::NullKind& kind) {
  constexpr std::uint64_t kPuts = 2000000;
  for (const std::uint32_t length : {0U, 8U, 64U, 4096U, 1U << 20}) {
    mkernel::test::NullPair pair(8, kind);
    pair.put(10000, length);
    const double begin = processor_seconds();
    pair.put(kPuts, length);
    const double seconds = processor_seconds() - begin;
    std::printf("%-5s %8u bytes: %6.2f M puts/s\n", name, length, static_cast<double>(kPuts) / seconds / 1e6);
  }
}

void alone(const char* name, const mkernel::test::NullKind& kind) {
  constexpr std::uint32_t kPeers = 64;
  constexpr std::uint32_t kChannels = 64;
  constexpr std::uint64_t kPuts = 100000;
  constexpr std::uint32_t kLength = 8;
  mkernel::test::NullPair pair(kChannels, kind, kPeers, true);
  pair.put(std::uint64_t{4} * kPeers * kChannels, kLength);
  pair.put_alone(kPeers * kChannels / 2, 10000, kLength);  // until the others are left alone
  const double begin = processor_seconds();
  pair.put_alone(kPeers * kChannels / 2, kPuts, kLength);
  const double seconds = processor_seconds() - begin;
  std::printf("%-5s %8u bytes alone, %u peers, %u channels: %6.0f ns\n", name, kLength, kPeers,
              kPeers * kChannels, seconds / static_cast<double>(kPuts) * 1e9);
}

}  // namespace

int main() {
  const std::pair<const char*, mkernel::test::NullKind> kinds[] = {{"verbs", mkernel::test::null_verbs()},
                                                                   {"efa", mkernel::test::null_efa()}};
  for (const auto& [name, kind] : kinds) post_rate(name, kind);
  for (const auto& [name, kind] : kinds) alone(name, kind);
}
