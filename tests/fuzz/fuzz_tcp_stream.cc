// The byte stream of a hostile peer's data connection: whatever comes, in whatever pieces, StreamReader calls
// its handler for the same frames as a reader that has all bytes at once, lets every payload byte land where
// its put goes, writes nothing beyond, and ends with a named reason.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "daemon/transport/tcp/gpu_access.h"
#include "daemon/transport/tcp/stream_reader.h"
#include "daemon/transport/tcp/unloader.h"

namespace {

using namespace mkernel;
using namespace mkernel::transport::tcp;

constexpr std::uint32_t kRegionBytes = 1U << 15;  // longer than what is read straight into a region
constexpr std::size_t kGuard = 64;
constexpr std::byte kPoison{0xa5};

void require(bool condition) {
  if (!condition) std::abort();
}

/// What the handler is asked, one line each, so that two readings can be compared.
using Story = std::vector<std::string>;

std::string line(const char* what, std::uint64_t a, std::uint64_t b = 0, std::uint64_t c = 0) {
  return std::string(what) + ' ' + std::to_string(a) + ' ' + std::to_string(b) + ' ' + std::to_string(c);
}

/// By the key: even ones belong to a channel whose puts land, odd ones are discarded, 0xff.. is refused.
bool lands(const PutFrame& put) {
  return put.key % 2 == 0 && put.offset <= kRegionBytes && put.length <= kRegionBytes - put.offset;
}
bool refused(std::uint64_t key) {
  return key == ~std::uint64_t{0};
}

struct Memory {
  Memory() : bytes(kRegionBytes + 2 * kGuard, kPoison) {}
  std::byte* at(std::uint64_t offset) { return bytes.data() + kGuard + offset; }
  std::vector<std::byte> bytes;
};

/// The reader's handler.
class Handler final : public FrameHandler, public LandingSink {
 public:
  Status on_put(const PutFrame& put, Landing& landing) override {
    story.push_back(line("put", put.key, put.offset, put.length));
    if (refused(put.key)) return {StatusCode::kInvalidArgument, "refused"};
    if (!lands(put)) return {};
    // Never looked into here or by the reader: it is a name for the channel.
    landing.channel = reinterpret_cast<Inbound*>(&channel_);
    landing.region = &region_;
    landing.at = memory.at(put.offset);
    landing.number = ++puts_;
    return {};
  }
  void on_received(const Landing& landing) override { story.push_back(line("received", landing.number)); }
  Status on_open(const OpenFrame& open) override {
    story.push_back(line("open", open.key));
    return refused(open.key) ? Status(StatusCode::kInvalidArgument, "refused") : Status();
  }
  Status on_closed(const ClosedFrame& closed) override {
    story.push_back(line("closed", closed.key));
    return {};
  }
  Status on_held(const HeldFrame& held) override {
    story.push_back(line("held", held.key, held.count));
    return {};
  }
  Status on_refused(const RefusedFrame& refusal) override {
    story.push_back(line("refused", refusal.key, refusal.code));
    return {};
  }
  void on_landed(Inbound&, std::uint64_t) override { std::abort(); }  // there is no GPU
  void on_landing_failed(Inbound&, const Status&) override { std::abort(); }

  Story story;
  Memory memory;

 private:
  memory::Region region_;
  std::uint64_t channel_ = 0;
  std::uint64_t puts_ = 0;
};

template <typename Frame>
Frame frame_at(const std::uint8_t* data) {
  Frame frame;
  std::memcpy(&frame, data, sizeof(frame));
  return frame;
}

/// The same by somebody who has the whole stream.
struct Reference {
  Story story;
  Memory memory;
  bool malformed = false;
};

Reference read_at_once(const std::uint8_t* data, std::size_t size) {
  Reference all;
  Handler handler;
  std::uint64_t landed = 0;
  while (size > 0) {
    const auto type = static_cast<FrameType>(data[0]);
    const std::size_t bytes = frame_bytes(type);
    all.malformed = bytes == 0;
    if (all.malformed || size < bytes) break;
    Landing unused;
    Status status;
    std::size_t payload = 0, taken = 0;
    PutFrame put{};
    switch (type) {
      case FrameType::kOpen: status = handler.on_open(frame_at<OpenFrame>(data)); break;
      case FrameType::kClosed: status = handler.on_closed(frame_at<ClosedFrame>(data)); break;
      case FrameType::kHeld: status = handler.on_held(frame_at<HeldFrame>(data)); break;
      case FrameType::kRefused: status = handler.on_refused(frame_at<RefusedFrame>(data)); break;
      case FrameType::kPut:
        put = frame_at<PutFrame>(data);
        status = handler.on_put(put, unused);
        payload = put.length;
        break;
    }
    all.malformed = !status.ok();
    if (all.malformed) break;
    taken = std::min(payload, size - bytes);
    if (type == FrameType::kPut && lands(put)) {
      std::memcpy(all.memory.at(put.offset), data + bytes, taken);
      ++landed;
      if (taken == payload) handler.story.push_back(line("received", landed));
    }
    data += bytes + taken;
    size -= bytes + taken;
    if (taken < payload) break;
  }
  all.story = std::move(handler.story);
  return all;
}

/// Reads what is in the socket, pieces of it at a time. The status that ended the stream, or OK.
Status read_all(StreamReader& reader, int socket, std::size_t budget) {
  while (true) {
    ReadProgress progress;
    MK_RETURN_IF_ERROR(reader.read(socket, budget, false, progress));
    if (progress.drained) return {};
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  // How the stream is cut: bytes of each write, and what one read may take.
  const std::size_t piece = 1 + data[0] * std::size_t{37}, budget = 1 + data[1] * std::size_t{101};
  data += 2;
  size -= 2;

  GpuAccess gpu;
  Handler handler;
  Unloader unloader(gpu, handler);
  StreamReader reader(handler, unloader);
  int ends[2];
  require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
  Status status;
  for (std::size_t at = 0; at < size && status.ok();) {
    const ssize_t sent = ::send(ends[0], data + at, std::min(piece, size - at), MSG_NOSIGNAL);
    require(sent > 0);  // the other end has read all that came before
    at += static_cast<std::size_t>(sent);
    status = read_all(reader, ends[1], budget);
  }
  const Reference all = read_at_once(data, size);
  require(handler.story == all.story);
  require(handler.memory.bytes == all.memory.bytes);
  require(status.ok() == !all.malformed);
  require(status.ok() || !status.text().empty());
  ::close(ends[0]);
  if (status.ok()) require(read_all(reader, ends[1], budget).code() == StatusCode::kUnavailable);
  ::close(ends[1]);
  return 0;
}
