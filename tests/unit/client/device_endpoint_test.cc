// Device endpoints without a GPU: what is refused, and by which words; rings that the GPU claims.
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
                check_status(group.device_endpoint({.version = 7}).status(), StatusCode::kFailedPrecondition,
                             "compiled with version 7 of mkernel/device.cuh, this libmkernel has version 1");
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

TEST_CASE("while the GPU claims the rings, puts of the CPU are refused and fail nobody") {
  FakeDaemon daemon;
  with_cores(daemon, 1, [](const std::shared_ptr<client::GroupCore>& group) {
    const auto lane = group->reserve_lanes(1);
    if (!lane.ok()) return check_ok(lane.status());
    const auto rings = group->session().rings();
    check_ok(group->session().rings_on_cpu());
    std::vector<std::uint64_t> positions;
    for (const auto& ring : rings) positions.push_back(ring.hand_over());
    check_status(group->session().rings_on_cpu(), StatusCode::kFailedPrecondition, "a session of its own");
    check_status(group->put({0, 0, 0}, lane.value(), {}, 0, 0).status(), StatusCode::kFailedPrecondition,
                 "put to rank 0 lane");
    check_ok(group->status());
    for (std::size_t r = 0; r < rings.size(); ++r) rings[r].take_back(positions[r]);
    check_ok(group->put({0, 0, 0}, lane.value(), {}, 0, 0).status());
    check_ok(group->wait_arrival(0, lane.value(), 1, kLong));
  });
}

}  // namespace
}  // namespace mkernel::test
