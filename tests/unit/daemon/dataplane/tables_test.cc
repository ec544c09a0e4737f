// Channel keys, channel ids, group tables and the ring reader, without a proxy around them.
#include <doctest/doctest.h>

#include <set>

#include "daemon/dataplane/channel_table.h"
#include "daemon/dataplane/inbound.h"
#include "daemon/dataplane/ring_reader.h"
#include "daemon/dataplane/session_table.h"
#include "tests/support/dataplane_rig.h"

namespace mkernel::dataplane {
namespace {

TEST_CASE("channels of a group never share a key, and the direction counts") {
  std::set<transport::ChannelKey> keys;
  for (std::uint32_t source = 0; source < 40; ++source) {
    for (std::uint32_t target = 0; target < 40; ++target) {
      for (std::uint32_t lane = 0; lane < 16; ++lane) keys.insert(channel_key(99, source, target, lane));
    }
  }
  CHECK(keys.size() == 40 * 40 * 16);
  CHECK(channel_key(99, 1, 2, 0) == channel_key(99, 1, 2, 0));
  CHECK_FALSE(keys.contains(channel_key(100, 1, 2, 0)));
}

TEST_CASE("a channel id is used again only after its release") {
  ChannelEnds ends;
  Group group;
  const auto first = ends.acquire({&group, nullptr, {}});
  const auto second = ends.acquire({&group, nullptr, {}});
  CHECK(first != second);
  ends.release(first);
  CHECK(ends.find(first) == nullptr);
  CHECK(ends.find(second) != nullptr);
  CHECK(ends.find(1000) == nullptr);
  CHECK(ends.acquire({&group, nullptr, {}}) == first);
}

TEST_CASE("a port that contradicts itself is refused by name") {
  const RailTraits rail{.max_put_bytes = 1000};
  const auto refused = [&rail](auto&& spoil) {
    Group group;
    group.port = test::make_group(1, {.lanes = 2, .ranks = {{.session = 1}, {.peer = 2}}});
    spoil(*group.port);
    const Status status = build_group(group, rail);
    return status.code() == StatusCode::kInternal && status.text().find("group-1") != std::string::npos;
  };
  CHECK_FALSE(refused([](GroupPort&) {}));
  CHECK(refused([](GroupPort& port) { port.rank = 2; }));
  CHECK(refused([](GroupPort& port) { port.lanes = 0; }));
  CHECK(refused([](GroupPort& port) { port.ranks.pop_back(); }));
  CHECK(refused([](GroupPort& port) { port.first_channel = abi::kMax24; }));
  CHECK(refused([](GroupPort& port) { port.region_capacity = 5000; }));
}

TEST_CASE("a transport that publishes by itself is told where, and its count is not written over") {
  for (const bool publishes : {false, true}) {
    Session session;
    Counters counters;
    session.counters = &counters;
    Group group;
    group.port = test::make_group(1, {.lanes = 2, .ranks = {{.session = 1}, {.peer = 2}}});
    group.session = &session;
    REQUIRE(build_group(group, {.max_put_bytes = 1000}).ok());
    ChannelEnds ends;
    FailureLog failures;
    EventSink sink(ends, failures, {.publishes = publishes});
    const auto inbound = ends.acquire({&group, nullptr, {1, 1, 0}});
    const auto outbound = ends.acquire({&group, &group.outbound[3], {}});

    transport::ArrivalWord place;
    REQUIRE(sink.arrival_word(inbound, place).ok());
    CHECK(place.word == &group.arrival_words[3]);
    CHECK(place.words.size() == 4 * sizeof(std::uint64_t));
    CHECK(sink.arrival_word(outbound, place).code() == StatusCode::kNotFound);

    *place.word = 9;  // the NIC is ahead of what the proxy has seen
    sink.arrived(inbound, 7);
    CHECK(test::arrivals(*group.port, 1, 1) == (publishes ? 9 : 7));
    CHECK(counters.arrivals_total == 7);
  }
}

Result<RingReader> open(const SessionPort& session, abi::RingWriter writer = abi::RingWriter::kThreads,
                        std::uint32_t ring = 0) {
  return RingReader::open(session.segment, 1, writer, ring);
}

TEST_CASE("the reader sees whole slots of its lap only, and counts what waits") {
  const auto session = test::make_session(1, 4);
  test::RingWriter writer(session);
  auto reader = open(*session);
  REQUIRE(reader.ok());
  abi::WorkSlot slot{};
  CHECK_FALSE(reader->next(slot));
  CHECK(reader->depth() == 0);

  for (std::uint32_t lap = 0; lap < 5; ++lap) {
    for (std::uint32_t i = 0; i < 16; ++i) {
      writer.write(test::put_request(i, lap, 8 * i, i, lap));
      CHECK(reader->depth() == i + 1);
    }
    for (std::uint32_t i = 0; i < 16; ++i) {
      REQUIRE(reader->next(slot));
      const abi::WorkRequest request = abi::decode(slot);
      CHECK(request.channel == i);
      CHECK(request.peer == lap);
      CHECK(request.length == 8 * i);
      CHECK(reader->depth() == 15 - i);
    }
    CHECK_FALSE(reader->next(slot));
    reader->publish();
    CHECK(writer.tail() == 16 * (lap + 1));
  }
}

TEST_CASE("half a slot is no slot") {
  const auto session = test::make_session(1, 4);
  auto reader = open(*session);
  REQUIRE(reader.ok());
  auto* slots = session->segment.at<abi::WorkSlot>(session->header()->slots_offset);
  const abi::WorkSlot whole = abi::encode(test::put_request(1, 1, 8), abi::lap_bit(0, 4));
  abi::WorkSlot taken{};
  slots[0].word[0] = whole.word[0];
  CHECK_FALSE(reader->next(taken));
  slots[0].word[0] = 0;
  slots[0].word[3] = whole.word[3];
  CHECK_FALSE(reader->next(taken));
  slots[0] = whole;
  CHECK(reader->next(taken));
}

TEST_CASE("a ring that does not fit its segment is refused") {
  const auto session = test::make_session(1, 6);
  CHECK(open(*session).ok());
  CHECK(open(*session, abi::RingWriter::kGpu).ok());
  CHECK_FALSE(open(*session, abi::RingWriter::kThreads, 1).ok());  // made with one ring
  CHECK_FALSE(RingReader::open(session->segment, 2, abi::RingWriter::kGpu, 0).ok());
  session->header()->log2_slots = 7;  // what a client might write there
  CHECK(open(*session).ok());         // the threads' ring then ends where the segment ends
  CHECK(open(*session, abi::RingWriter::kGpu).status().code() == StatusCode::kInvalidArgument);
  session->header()->log2_slots = 8;
  CHECK(open(*session).status().code() == StatusCode::kInvalidArgument);
  session->header()->log2_slots = 63;
  CHECK_FALSE(open(*session).ok());
}

}  // namespace
}  // namespace mkernel::dataplane
