// Which rails a rank's puts go over, as its session is told.
#include "tests/unit/daemon/session/harness.h"

namespace mkernel::session::testing {
namespace {

TEST_CASE("a rank goes over the rails near its GPU, one without GPU over its share, and each is told") {
  constexpr std::uint64_t kGpu = abi::pci_address(0, 0x1b, 0, 0);
  Harness harness(
      [&](ServerOptions& options) {
        options.rails_near = [](std::uint64_t address) { return address == kGpu ? 0b1001U : 0U; };
      },
      4);
  RawClient a(harness.socket()), b(harness.socket());
  REQUIRE(a.hello("a", 0, kGpu).status.code == 0);
  REQUIRE(b.hello("b").status.code == 0);
  a.start_join("g", 2, 0);
  REQUIRE(b.join("g", 2, 1).status.code == 0);
  REQUIRE(a.finish_join().status.code == 0);
  CHECK(a.group_segment().rails == 0b1001);
  CHECK(b.group_segment().rails == 0);
  const auto groups = harness.control([](SessionServer& server) { return server.groups(); });
  REQUIRE(groups.size() == 2);
  CHECK(groups[0].rails == "0,3");
  CHECK(groups[1].rails == "1,3");  // of two ranks the second
}

TEST_CASE("a rank elsewhere that goes over rails that there are not is refused, by name") {
  Harness harness;
  harness.coordinator().remote_rails = 0b10;
  RawClient client(harness.socket());
  REQUIRE(client.hello().status.code == 0);
  const Status refused = ipc::from_reply(client.join("remote", 2, 0).status);
  CHECK(refused.code() == StatusCode::kInvalidArgument);
  CHECK_MESSAGE(
      contains(refused.text(), "rank 1 on node elsewhere goes over rails of mask 2, this node has 1"),
      refused.text());
}

}  // namespace
}  // namespace mkernel::session::testing
