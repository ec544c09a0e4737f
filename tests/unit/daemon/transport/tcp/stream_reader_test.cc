// The reader alone, without a socket: however the bytes of a stream are cut, the same frames and payloads
// come of them. What the fuzz target drives.
#include "daemon/transport/tcp/stream_reader.h"

#include <cstring>
#include <random>

#include "tests/unit/daemon/transport/tcp/harness.h"

namespace mkernel::transport::tcp {
namespace {

/// Lets every payload land in one buffer, in order, and notes the frames.
class Record final : public FrameHandler, public LandingSink {
 public:
  Status on_put(const PutFrame& frame, Landing& landing) override {
    puts.push_back(frame.length);
    if (frame.region != 0) return {};                    // discarded
    landing.channel = reinterpret_cast<Inbound*>(this);  // only compared
    landing.region = &region;
    landing.at = memory.data() + landed;
    landing.last = frame.rest == 0;
    landed += frame.length;
    return {};
  }
  void on_received(const Landing&) override { ++received; }
  Status on_open(const OpenFrame&) override { return count(); }
  Status on_closed(const ClosedFrame&) override { return count(); }
  Status on_held(const HeldFrame&) override { return count(); }
  Status on_refused(const RefusedFrame&) override { return count(); }
  void on_landed(Inbound&, std::uint64_t) override {}
  void on_landing_failed(Inbound&, const Status&) override {}

  memory::Region region;  // whose memory it is said to be
  std::vector<std::byte> memory = std::vector<std::byte>(4 * kMiB);
  std::size_t landed = 0;
  std::vector<std::uint32_t> puts;
  int received = 0, others = 0;

 private:
  Status count() {
    ++others;
    return {};
  }
};

struct Stream {
  std::vector<std::byte> bytes, payload;

  template <typename Frame>
  void say(const Frame& frame) {
    const auto part = bytes_of_layout(frame);
    bytes.insert(bytes.end(), part.begin(), part.end());
  }

  void put(std::mt19937_64& random, std::uint32_t length, std::uint16_t region, std::uint32_t rest) {
    say(PutFrame{FrameType::kPut, 0, 1, length, 7, 0, region, 0, rest});
    for (std::uint32_t i = 0; i < length; ++i) {
      bytes.push_back(static_cast<std::byte>(random()));
      if (region == 0) payload.push_back(bytes.back());
    }
  }
};

TEST_CASE("a stream may be cut anywhere") {
  std::mt19937_64 random(41);
  Stream stream;
  std::vector<std::uint32_t> lengths;
  for (int i = 0; i < 60; ++i) {
    const auto length = static_cast<std::uint32_t>(random() % (i % 5 == 0 ? 150000 : 300));
    lengths.push_back(length);
    stream.put(random, length, i % 7 == 3 ? 1 : 0, i % 4 == 0 ? 9 : 0);
    if (i % 3 == 0) stream.say(OpenFrame{FrameType::kOpen, {}, 7});
    if (i % 3 == 1) stream.say(HeldFrame{FrameType::kHeld, {}, 7, 8});
    if (i % 3 == 2) stream.say(ClosedFrame{FrameType::kClosed, {}, 7});
  }
  for (const std::size_t longest : {1U, 31U, 1000U, 70000U, 1U << 22}) {
    CAPTURE(longest);
    GpuAccess gpu;
    Record record;
    Unloader unloader(gpu, record);
    StreamReader reader(record, unloader);
    bool all_taken = true;
    for (std::size_t at = 0; at < stream.bytes.size() && all_taken;) {
      const std::size_t bytes = std::min<std::size_t>(1 + random() % longest, stream.bytes.size() - at);
      ReadProgress progress;
      const Status taken = reader.take(std::span(stream.bytes).subspan(at, bytes), progress);
      all_taken = taken.ok() && progress.bytes == bytes;
      at += bytes;
    }
    REQUIRE(all_taken);
    CHECK(record.puts == lengths);
    CHECK(record.others == 60);
    CHECK(record.landed == stream.payload.size());
    CHECK(std::memcmp(record.memory.data(), stream.payload.data(), stream.payload.size()) == 0);
    CHECK(record.received > 30);
    CHECK_FALSE(reader.waiting());
  }
}

TEST_CASE("a byte that begins no frame ends the stream, and after reset() the next one begins") {
  GpuAccess gpu;
  Record record;
  Unloader unloader(gpu, record);
  StreamReader reader(record, unloader);
  ReadProgress progress;
  const std::byte nonsense[3] = {std::byte{77}};
  CHECK(reader.take(nonsense, progress).code() == StatusCode::kDataLoss);
  reader.reset();
  Stream stream;
  stream.say(OpenFrame{FrameType::kOpen, {}, 7});
  progress = {};
  CHECK(reader.take(stream.bytes, progress).ok());
  CHECK(record.others == 1);
}

}  // namespace
}  // namespace mkernel::transport::tcp
