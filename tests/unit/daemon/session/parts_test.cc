// The pieces below the session server that stand alone.
#include <doctest/doctest.h>

#include <boost/asio/io_context.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "daemon/session/channel_space.h"
#include "daemon/session/control_bridge.h"
#include "daemon/session/segments.h"
#include "daemon/session/session_server.h"
#include "proto/ipc/packet.h"

namespace mkernel::session {
namespace {

FormedMember on(const std::string& node) {
  return {node, {}};
}

TEST_CASE("nodes are numbered in the order of their lowest rank, local ranks in rank order") {
  const auto members = number_members({on("b"), on("a"), on("b"), on("c"), on("a")});
  const std::uint32_t nodes[] = {0, 1, 0, 2, 1}, locals[] = {0, 0, 1, 0, 1};
  REQUIRE(members.size() == 5);
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    CAPTURE(rank);
    CHECK(members[rank].node == nodes[rank]);
    CHECK(members[rank].local_rank == locals[rank]);
  }
  CHECK(ipc::text_of(members[3].node_name) == "c");
}

TEST_CASE("a group segment holds its layout, and what is written lands where a client looks for it") {
  const GroupShape shape{"g", 3, 1, 2, 5, 77};
  FormedGroup group{9, {on("a"), on("b"), on("b")}};
  auto segment = create_group_segment(shape, group);
  REQUIRE(segment.ok());
  const auto& head = *segment->mapping.at<abi::GroupSegment>(0);
  CHECK(head.instance == 9);
  CHECK(head.node_count == 2);
  CHECK(head.first_channel == 77);
  CHECK(head.bytes == segment->mapping.bytes());

  write_region_entry(segment->mapping, shape, 2, 4, {4096, 1, 0});
  const auto* map = segment->mapping.at<abi::RegionEntry>(head.regions_offset);
  for (std::uint32_t at = 0; at < 15; ++at) CHECK(map[at].bytes == (at == 2 * 5 + 4 ? 4096 : 0));

  std::vector<Blob> blobs(3);
  for (std::size_t rank = 0; rank < 3; ++rank) blobs[rank].fill(static_cast<std::byte>(rank + 1));
  write_board(segment->mapping, shape, blobs);
  const auto* board = segment->mapping.at<std::uint8_t>(head.board_offset);
  for (std::size_t i = 0; i < 3 * abi::kExchangeBytes; ++i) CHECK(board[i] == i / abi::kExchangeBytes + 1);

  write_group_failure(segment->mapping, 2, "b", {StatusCode::kDataLoss, std::string(1000, 't')});
  CHECK(head.abort == 15);
  CHECK(head.failure.culprit == 2);
  CHECK(ipc::text_of(head.failure.text).size() == sizeof(head.failure.text) - 1);
}

TEST_CASE("channel runs never overlap, fill the space, and a freed one is not the next one handed out") {
  ChannelSpace space;
  const auto first = space.take(100);
  const auto second = space.take(100);
  REQUIRE(first.has_value());
  REQUIRE(second.has_value());
  space.give_back(*first);
  CHECK(space.take(100) != first);

  ChannelSpace churned;
  for (int i = 0; i < 10000; ++i) {
    const auto run = churned.take(100);
    REQUIRE(run.has_value());
    CHECK(*run < 4096);  // however long it goes on, the numbers stay small
    churned.give_back(*run);
  }

  ChannelSpace full;
  std::set<std::uint32_t> runs;
  for (int i = 0; i < 256; ++i) {
    const auto run = full.take(65536);
    REQUIRE(run.has_value());
    CHECK(*run % 65536 == 0);
    CHECK(runs.insert(*run).second);
  }
  CHECK_FALSE(full.take(1).has_value());
  full.give_back(5 * 65536);
  CHECK_FALSE(full.take(65537).has_value());
  CHECK(full.take(65536) == 5U * 65536U);
}

TEST_CASE("what a proxy tells of paths is heard on the control thread, in order, and not after unbind()") {
  boost::asio::io_context io;
  ControlBridge bridge(io);
  std::vector<std::string> heard;
  ControlBridge::Peers peers;
  peers.path_changed = [&, here = std::this_thread::get_id()](std::uint32_t rail, transport::PeerId peer,
                                                              const std::string& path, const Status& lost) {
    CHECK(std::this_thread::get_id() == here);
    heard.push_back(std::to_string(rail) + " " + std::to_string(peer) + " " + path + " " + lost.text());
  };
  SessionServer sessions(io, {}, {});
  bridge.bind(sessions, peers);
  std::thread([&] {
    bridge.path_changed(2, 7, "x -> y", {StatusCode::kUnavailable, "pulled"});
    bridge.path_changed(2, 7, "x -> z", {});
  }).join();
  CHECK(heard.empty());
  io.run();
  CHECK(heard == std::vector<std::string>{"2 7 x -> y pulled", "2 7 x -> z "});
  bridge.path_changed(2, 7, "x -> z", {StatusCode::kUnavailable, "too late"});
  bridge.unbind();
  io.restart();
  io.run();
  CHECK(heard.size() == 2);
}

}  // namespace
}  // namespace mkernel::session
