// Device endpoints without a GPU: what is refused, and by which words.
#include "client/src/device_endpoint.h"

#include "client/src/gpu_memory.h"
#include "tests/unit/client/ranks.h"

namespace mkernel::test {
namespace {

TEST_CASE("a device endpoint in a session without GPU is refused on every rank, and the group goes on") {
  FakeDaemon daemon;
  with_groups(daemon, 2, [](Group& group) {
    check_status(group.device_endpoint().status(), StatusCode::kFailedPrecondition,
                 "rank 0 on node node0: needs a GPU; the session has SessionOptions::device = -1");
    check_ok(group.barrier());
  });
  CHECK(daemon.look().regions == 0);
}

TEST_CASE("options that make no endpoint are named, and so are ranks that ask for different ones") {
  FakeDaemon daemon;
  with_groups(daemon, 2,
              [](Group& group) {
                check_status(group.device_endpoint({.lanes = 0}).status(), StatusCode::kInvalidArgument,
                             "a device endpoint has at least one lane");
                check_status(group.device_endpoint({.version = 77}).status(), StatusCode::kFailedPrecondition,
                             "compiled with version 77 of mkernel/device.cuh, this libmkernel has version " +
                                 std::to_string(device::kVersion));
                check_status(group.device_endpoint({.lanes = 1, .deadline = 0ms}).status(),
                             StatusCode::kInvalidArgument, "deadline = 0 ms, must be 1..1800000");
                check_status(
                    group.device_endpoint({.lanes = 1, .deadline = std::chrono::minutes(31)}).status(),
                    StatusCode::kInvalidArgument, "deadline = 1860000 ms, must be 1..1800000");
                if (client::open_gpu_memory(0).ok()) return;
                // Without a GPU here, each rank's own error comes before what differs.
                check_status(group.device_endpoint({.lanes = 1 + group.rank()}).status(),
                             client::open_gpu_memory(0).status().code(), "rank 0 on node node0");
                check_ok(group.barrier());
              },
              {0, 0});
}

}  // namespace
}  // namespace mkernel::test
