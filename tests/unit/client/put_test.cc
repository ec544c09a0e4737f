#include <algorithm>
#include <cstring>
#include <random>

#include "tests/unit/client/ranks.h"

namespace mkernel::test {
namespace {

TEST_CASE("puts arrive whole, in order, many laps around a small ring") {
  FakeDaemon daemon;  // 16 slots per ring
  with_groups(daemon, 3, [](Group& group) {
    constexpr std::uint64_t kPuts = 200;
    constexpr std::uint64_t kBytes = 512;
    auto buffer = group.symmetric(2 * kPuts * kBytes);
    const auto lane = group.reserve_lanes(2);
    CHECK_MESSAGE((buffer.ok() && lane.ok()), lane.status().to_string());
    if (!buffer.ok() || !lane.ok()) return;
    const std::uint32_t target = (group.rank() + 1) % 3, source = (group.rank() + 2) % 3;
    const auto fill = [&](std::uint32_t rank, std::byte* out) {
      std::mt19937 random(rank + 17);
      std::generate_n(out, kPuts * kBytes, [&] { return static_cast<std::byte>(random()); });
    };
    fill(group.rank(), buffer->data());
    for (std::uint64_t n = 1; n <= kPuts; ++n) {
      const auto number = group.put(target, lane.value() + 1, *buffer, (n - 1) * kBytes, buffer->region(),
                                    (kPuts + n - 1) * kBytes, kBytes);
      CHECK_MESSAGE(number.ok(), number.status().to_string());
      if (!number.ok()) return;
      CHECK(number.value() == n);
    }
    check_ok(group.wait_completed(target, lane.value() + 1, kPuts, kLong));
    check_ok(group.wait_arrival(source, lane.value() + 1, kPuts, kLong));
    std::vector<std::byte> wanted(kPuts * kBytes);
    fill(source, wanted.data());
    CHECK(std::memcmp(buffer->data() + kPuts * kBytes, wanted.data(), wanted.size()) == 0);
    CHECK(group.arrivals(source, lane.value() + 1) == kPuts);
    CHECK(group.arrivals(source, lane.value()) == 0);
    check_ok(group.barrier());
  });
}

TEST_CASE("own memory is put from and into once its number is known") {
  FakeDaemon daemon;
  with_groups(daemon, 2, [](Group& group) {
    auto own = group.allocate(4096);
    const auto lane = group.reserve_lanes(1);
    if (!own.ok() || !lane.ok()) return check_ok(lane.status());
    std::memset(own->data(), static_cast<int>(group.rank() + 1), 2048);
    const std::uint32_t region = own->region();
    const auto regions = group.exchange(std::as_bytes(std::span(&region, 1)));
    if (!regions.ok()) return check_ok(regions.status());
    const std::uint32_t peer = group.rank() ^ 1U;
    std::uint32_t remote = 0;
    std::memcpy(&remote, regions.value()[peer].data(), sizeof(remote));
    check_ok(group.put(peer, lane.value(), *own, 0, remote, 2048, 2048).status());
    check_ok(group.signal(peer, lane.value()).status());
    check_ok(group.wait_arrival(peer, lane.value(), 2, kLong));
    CHECK(std::to_integer<unsigned>(own->data()[4095]) == peer + 1);
    check_ok(group.barrier());
  });
}

TEST_CASE("puts go over the rings that the daemon names") {
  FakeDaemon daemon({.rails = 0b1010, .rings = 4});
  with_groups(daemon, 2, [](Group& group) {
    const auto lane = group.reserve_lanes(2);
    if (!lane.ok()) return check_ok(lane.status());
    const std::uint32_t peer = group.rank() ^ 1U;
    for (std::uint32_t i = 0; i < 2; ++i) check_ok(group.signal(peer, lane.value() + i).status());
    for (std::uint32_t i = 0; i < 2; ++i) check_ok(group.wait_arrival(peer, lane.value() + i, 1, kLong));
    check_ok(group.barrier());
  });
  const auto slots = daemon.look().slots;
  CHECK(std::vector(slots.begin(), slots.begin() + 4) == std::vector<std::uint64_t>{0, 2, 0, 2});
}

TEST_CASE("a put outside its bounds, on a foreign lane or to nobody is refused here") {
  FakeDaemon daemon;
  with_groups(daemon, 1, [&](Group& group) {
    auto buffer = group.symmetric(4096);
    const auto lane = group.reserve_lanes(1);
    if (!buffer.ok() || !lane.ok()) return check_ok(lane.status());
    const std::uint32_t l = lane.value(), r = buffer->region();
    const auto refused = [&](const Result<std::uint64_t>& result, StatusCode code, const std::string& part) {
      check_status(result.status(), code, part);
    };
    refused(group.put(1, l, *buffer, 0, r, 0, 1), StatusCode::kInvalidArgument,
            "rank 1 is not in group 'test' of 1");
    refused(group.put(0, 0, *buffer, 0, r, 0, 1), StatusCode::kInvalidArgument, "lane 0");
    refused(group.put(0, 99, *buffer, 0, r, 0, 1), StatusCode::kInvalidArgument, "lane 99");
    refused(group.put(0, l, *buffer, 4096, r, 0, 1), StatusCode::kOutOfRange,
            "offset 4096 of a source of 4096");
    refused(group.put(0, l, *buffer, ~0ULL, r, 0, 2), StatusCode::kOutOfRange, "source");
    refused(group.put(0, l, *buffer, 0, r, ~0ULL, 2), StatusCode::kOutOfRange, "which has 4096 bytes");
    refused(group.put(0, l, *buffer, 0, r + 1, 0, 1), StatusCode::kOutOfRange, "not registered");
    refused(group.put(0, l, *buffer, 0, 8, 0, 1), StatusCode::kOutOfRange, "region capacity is 8");
    CHECK(daemon.look().puts == 0);
    check_status(group.wait_arrival(0, l, 1, kShort), StatusCode::kDeadlineExceeded, "expected 1, seen 0");
  });
}

TEST_CASE("a put gives up after its limit when the ring has no room, and the next one has its number") {
  FakeDaemon daemon;  // 16 slots per ring
  with_groups(daemon, 1, [&](Group& group) {
    auto buffer = group.symmetric(8192);
    const auto lane = group.reserve_lanes(1);
    if (!buffer.ok() || !lane.ok()) return check_ok(lane.status());
    const std::uint32_t l = lane.value(), r = buffer->region();
    std::memset(buffer->data(), 0x5a, 4096);
    const auto put = [&](std::chrono::milliseconds limit) {
      return group.put(0, l, *buffer, 0, r, 4096, 4096, limit);
    };
    daemon.stop_draining();
    for (std::uint64_t n = 1; n <= 16; ++n) {
      const auto number = group.signal(0, l, kShort);
      CHECK((number.ok() && number.value() == n));
    }
    for (int i = 0; i < 3; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      check_status(put(20ms).status(), StatusCode::kDeadlineExceeded, "room in the work ring");
      CHECK(std::chrono::steady_clock::now() - begin >= 20ms);
      CHECK(std::chrono::steady_clock::now() - begin < kLong / 2);  // not the group's timeout
      check_status(group.signal(0, l, 1ms).status(), StatusCode::kDeadlineExceeded, "expected 1, seen 0");
    }
    check_ok(group.status());
    CHECK(group.puts(0, l) == 16);
    check_status(put(-1ms).status(), StatusCode::kInvalidArgument, "limit = -1 ms, must be at least 0");
    // Room that comes while a put waits for it, with a limit and with the group's.
    for (const std::chrono::milliseconds limit : {kLong, 0ms}) {
      std::thread later([&] {
        std::this_thread::sleep_for(20ms);
        daemon.start_draining();
      });
      const std::uint64_t before = group.puts(0, l);
      const auto number = put(limit);
      CHECK_MESSAGE(number.ok(), number.status().to_string());
      later.join();
      if (!number.ok()) return;
      CHECK(number.value() == before + 1);
      check_ok(group.wait_arrival(0, l, number.value(), kLong));
      CHECK(std::to_integer<unsigned>(buffer->data()[8191]) == 0x5a);
      std::memset(buffer->data() + 4096, 0, 4096);
      daemon.stop_draining();
      for (int i = 0; i < 16; ++i) CHECK(group.signal(0, l, kShort).ok());
    }
    CHECK(group.arrivals(0, l) == 34);
    CHECK(group.puts(0, l) == 50);
    CHECK(group.puts(0, l + 1) == 0);
    CHECK(group.puts(1, l) == 0);
  });
  CHECK(daemon.look().puts == 34);
}

TEST_CASE("a put that could never fit into the ring is refused with what fits") {
  FakeDaemon daemon;
  with_cores(daemon, 1, [](const std::shared_ptr<client::GroupCore>& group) {
    const auto lane = group->reserve_lanes(1);
    if (!lane.ok()) return check_ok(lane.status());
    const std::uint64_t most = std::uint64_t{16} << 30;
    const auto put = [&](std::uint64_t bytes) {
      return group->put({0, 0, 0}, lane.value(), {0, bytes}, 0, bytes).status();
    };
    check_status(put(most + 1), StatusCode::kOutOfRange, "at most 17179869184 fit into the work ring");
    check_status(put(most), StatusCode::kOutOfRange, "not registered");  // the next check
  });
}

TEST_CASE("lanes run out with a number and a remedy; ranks must reserve alike") {
  FakeDaemon daemon;
  with_groups(daemon, 2, [](Group& group) {
    CHECK(group.reserve_lanes(4).ok());
    check_status(group.reserve_lanes(3).status(), StatusCode::kResourceExhausted, "2 of 6 are left");
    check_status(group.reserve_lanes(3).status(), StatusCode::kResourceExhausted, "lanes >= 7");
    check_status(group.reserve_lanes(group.rank() + 1).status(), StatusCode::kInvalidArgument,
                 "reserve_lanes(2)");
    check_status(group.reserve_lanes(0).status(), StatusCode::kInvalidArgument, "at least one");
    CHECK(group.reserve_lanes(2).ok());
  });
}

TEST_CASE("a sleeping daemon is rung for every put; an active session is not rung each time") {
  FakeDaemon daemon;
  with_groups(daemon, 1, [&](Group& group) {
    const auto lane = group.reserve_lanes(1);
    if (!lane.ok()) return check_ok(lane.status());
    for (std::uint64_t n = 1; n <= 10; ++n) {
      check_ok(group.signal(0, lane.value()).status());
      check_ok(group.wait_arrival(0, lane.value(), n, kLong));
    }
    CHECK(eventually([&] { return daemon.look().doorbells == 10; }));
    CHECK(daemon.look().active == 0);
    {
      const Activity active = group.keep_active();
      CHECK(daemon.look().active == 1);
      for (std::uint64_t n = 11; n <= 20; ++n) {
        check_ok(group.signal(0, lane.value()).status());
        check_ok(group.wait_arrival(0, lane.value(), n, kLong));
      }
    }
    CHECK(daemon.look().active == 0);
    // Both rings, at the begin and at the end.
    CHECK(eventually([&] { return daemon.look().doorbells >= 10 + 4; }));
  });
}

TEST_CASE(
    "every new activity rings, also beside one that is old: kernels rely on it and cannot ring themselves") {
  FakeDaemon daemon;
  with_groups(daemon, 1, [&](Group& group) {
    {
      const Activity old = group.keep_active();
      CHECK(eventually([&] { return daemon.look().doorbells == 2; }));  // both rings
      {
        const Activity launch = group.keep_active();
        CHECK(eventually([&] { return daemon.look().doorbells == 4; }));
        CHECK(daemon.look().active == 2);
      }
      CHECK(daemon.look().active == 1);
    }
    CHECK(eventually([&] { return daemon.look().doorbells == 6; }));  // the last one's end
  });
}

}  // namespace
}  // namespace mkernel::test
