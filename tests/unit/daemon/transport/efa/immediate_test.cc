// The 32 bits of immediate data, and the device's statuses.
#include "daemon/transport/efa/immediate.h"

#include <doctest/doctest.h>

#include <string>

#include "daemon/transport/efa/status.h"

namespace mkernel::transport::efa {
namespace {

TEST_CASE("immediate data: every field at its ends, and none disturbs another") {
  for (const bool acknowledges : {false, true}) {
    for (const std::uint32_t channel : {0U, 1U, kMaxChannels - 1, kProbe}) {
      for (const std::uint64_t number : {0ULL, 1ULL, 65535ULL, 65536ULL, 65537ULL, (1ULL << 40) + 7}) {
        const Immediate value{acknowledges, channel, to_wire(number)};
        CHECK(unpack(pack(value)) == value);
      }
    }
  }
  CHECK(pack({false, 0, 1}) == 1);
  CHECK(pack({true, 1, 0}) == 0x80010000);
}

ibv_wc failed(std::uint32_t vendor) {
  ibv_wc completion{};
  completion.status = IBV_WC_GENERAL_ERR;
  completion.vendor_err = vendor;
  return completion;
}

TEST_CASE("what the device's status means for a put, and what it says to people") {
  CHECK(meaning(failed(5)) == Failure::kSource);
  CHECK(meaning(failed(7)) == Failure::kTarget);
  CHECK(meaning(failed(18)) == Failure::kUnable);
  for (const std::uint32_t number : {2U, 9U, 13U, 14U, 15U, 99U}) {
    CHECK(meaning(failed(number)) == Failure::kConnection);
    CHECK(text_of(failed(number)).find("(EFA status " + std::to_string(number) + ")") != std::string::npos);
  }
  ibv_wc flushed = failed(0);
  flushed.status = IBV_WC_WR_FLUSH_ERR;
  CHECK(meaning(flushed) == Failure::kFlushed);
  CHECK(text_of(failed(13)) == "the peer stopped answering (EFA status 13)");
  CHECK(text_of(failed(15)).find("security group") != std::string::npos);
}

}  // namespace
}  // namespace mkernel::transport::efa
