// Runs the ranks of one group as threads of the test, each with its own session with the fake daemon.
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "client/src/group.h"
#include "mkernel/client.h"
#include "tests/support/fake_daemon.h"

namespace mkernel::test {

using namespace std::chrono_literals;

/// Generous: what must happen on a loaded machine.
inline constexpr std::chrono::milliseconds kLong = 30s;
/// For waits that a test expects to run out.
inline constexpr std::chrono::milliseconds kShort = 200ms;

inline GroupOptions group_options(std::uint32_t world, std::uint32_t rank) {
  return {
      .name = "test", .world_size = world, .rank = rank, .lanes = 6, .region_capacity = 8, .timeout = kLong};
}

inline void on_all_ranks(std::uint32_t world, const std::function<void(std::uint32_t rank)>& body) {
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < world; ++rank) threads.emplace_back([&body, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

/// `body` on every rank, over the public API. `devices`: GPU of every rank; ranks beyond it have none.
inline void with_groups(FakeDaemon& daemon, std::uint32_t world,
                        const std::function<void(Group& group)>& body, const std::vector<int>& devices = {}) {
  on_all_ranks(world, [&](std::uint32_t rank) {
    const int device = rank < devices.size() ? devices[rank] : -1;
    auto session =
        Session::connect({.socket = daemon.socket(), .name = "test", .device = device, .timeout = kLong});
    CHECK_MESSAGE(session.ok(), session.status().to_string());
    if (!session.ok()) return;
    auto group = session->join(group_options(world, rank));
    CHECK_MESSAGE(group.ok(), group.status().to_string());
    if (group.ok()) body(*group);
  });
}

/// The same behind the API.
inline void with_cores(FakeDaemon& daemon, std::uint32_t world,
                       const std::function<void(const std::shared_ptr<client::GroupCore>& group)>& body) {
  on_all_ranks(world, [&](std::uint32_t rank) {
    auto session =
        client::SessionCore::connect({.socket = daemon.socket(), .name = "test", .timeout = kLong});
    CHECK_MESSAGE(session.ok(), session.status().to_string());
    if (!session.ok()) return;
    auto group = client::GroupCore::join(std::move(*session), group_options(world, rank));
    CHECK_MESSAGE(group.ok(), group.status().to_string());
    if (group.ok()) body(*group);
  });
}

/// Polls until `condition` holds; false when it does not within kLong.
inline bool eventually(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kLong;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

inline bool contains(const Status& status, const std::string& part) {
  return status.text().find(part) != std::string::npos;
}

inline void check_ok(const Status& status) {
  CHECK_MESSAGE(status.ok(), status.to_string());
}

/// `status` is of `code` and its text holds `part`.
inline void check_status(const Status& status, StatusCode code, const std::string& part) {
  CHECK_MESSAGE(status.code() == code, status.to_string());
  CHECK_MESSAGE(contains(status, part), status.to_string());
}

}  // namespace mkernel::test
