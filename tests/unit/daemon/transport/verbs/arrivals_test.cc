// Which of many arrival counts a poll reads. The words are a device's: nothing says that one has grown.
#include "daemon/transport/verbs/arrivals.h"

#include <doctest/doctest.h>

#include <functional>

namespace mkernel::transport::verbs {
namespace {

struct Sink final : TransportSink {
  Status place(ChannelId, std::uint16_t, std::uint64_t, std::uint32_t, Target&) override { return {}; }
  void arrived(ChannelId channel, std::uint64_t count) override {
    CHECK(count > counts[channel]);
    counts[channel] = count;
    if (then) then(channel);
  }
  void completed(ChannelId, std::uint64_t) override {}
  void channel_failed(ChannelId, const Status&) override {}
  void peer_connected(PeerId) override {}
  void peer_failed(PeerId, const Status&) override {}
  std::vector<std::uint64_t> counts;
  std::function<void(ChannelId)> then;
};

struct Rig {
  explicit Rig(ChannelId channels) : words(channels) {
    sink.counts.resize(channels);
    for (ChannelId channel = 0; channel < channels; ++channel) arrivals.add(channel, &words[channel]);
    arrivals.poll(sink, now);  // everything is new to it
  }
  /// A poll that is not one of those that read everything.
  std::size_t poll() { return arrivals.poll(sink, now); }

  std::vector<std::uint64_t> words;
  Sink sink;
  Arrivals arrivals;
  rdma::Time now = rdma::Clock::now();
};

TEST_CASE("every word is read after so many polls, however many there are") {
  constexpr ChannelId kChannels = 1000;
  Rig rig(kChannels);
  for (ChannelId channel = 0; channel < kChannels; ++channel) rig.words[channel] = channel + 1;
  std::size_t news = 0;
  for (std::size_t polls = 0; polls <= kChannels / Arrivals::kOthers; ++polls) news += rig.poll();
  CHECK(news == kChannels);
  CHECK(rig.sink.counts == rig.words);
  CHECK(rig.poll() == 0);
}

TEST_CASE("a word that has grown lately is read by every poll, and a poll reads few others") {
  constexpr ChannelId kChannels = 1000;
  Rig rig(kChannels);
  rig.words[700] = 1;
  for (std::size_t polls = 0; polls <= kChannels / Arrivals::kOthers; ++polls) rig.poll();
  for (std::uint64_t count = 2; count < 100; ++count) {
    rig.words[700] = count;
    CHECK(rig.poll() == 1);
    CHECK(rig.sink.counts[700] == count);
  }
  for (std::uint64_t& word : rig.words) word += 1000;
  CHECK(rig.poll() <= 1 + Arrivals::kOthers);
}

TEST_CASE("a word that grows no more is one of many again") {
  Rig rig(1000);
  rig.words[700] = 1;
  for (std::uint64_t polls = 0; polls < 2 * Arrivals::kLately; ++polls) rig.poll();
  std::size_t at_once = 0;
  for (int i = 0; i < 10; ++i) {  // it comes to its turn, and is read by every poll from then on
    ++rig.words[700];
    at_once += rig.poll();
  }
  CHECK(at_once < 10);
}

TEST_CASE("when the time has come every word is read, and the next time is later while nothing grows") {
  Rig rig(1000);
  const auto first = rig.arrivals.due() - rig.now;
  rig.now = rig.arrivals.due();
  for (std::uint64_t& word : rig.words) word = 5;
  CHECK(rig.poll() == 1000);
  for (int i = 0; i < 10; ++i) {
    rig.now = rig.arrivals.due();
    CHECK(rig.poll() == 0);
  }
  CHECK(rig.arrivals.due() - rig.now > 5 * first);
  Arrivals none;
  CHECK(none.due() == rdma::kNever);
}

TEST_CASE("channels are removed while the sink is told of them, and their words are read no more") {
  Rig rig(100);
  rig.sink.then = [&](ChannelId channel) { rig.arrivals.remove(channel ^ 1U); };
  for (std::uint64_t& word : rig.words) word = 1;
  for (int i = 0; i < 50; ++i) rig.poll();
  for (std::uint64_t& word : rig.words) word = 2;
  for (int i = 0; i < 50; ++i) rig.poll();
  for (ChannelId channel = 0; channel < 100; channel += 2) {
    CHECK(rig.sink.counts[channel] + rig.sink.counts[channel + 1] == 2);  // one of the two, both times
  }
  rig.arrivals.remove(7);
  rig.arrivals.remove(7);
  rig.arrivals.remove(100000);
}

}  // namespace
}  // namespace mkernel::transport::verbs
