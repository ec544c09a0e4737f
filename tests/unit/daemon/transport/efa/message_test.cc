// Messages come from another machine: nothing in them is believed before it was checked.
#include "daemon/transport/efa/message.h"

#include <doctest/doctest.h>

#include <random>
#include <vector>

#include "daemon/transport/efa/immediate.h"
#include "daemon/transport/rdma/routes.h"

namespace mkernel::transport::efa {
namespace {

Hello hello() {
  Hello message{{.type = MessageType::kHello, .epoch = 1}, 1, 2};
  message.qpn = 0xffffff;
  message.credit = 1;
  message.window = kMaxWindow;
  return message;
}

template <typename T>
bool good(const T& message) {
  return check_message(bytes_of(message)).ok();
}

TEST_CASE("a message of every type passes, and of no other size") {
  CHECK(good(hello()));
  CHECK(good(Message{.type = MessageType::kReady}));
  for (const MessageType type : {MessageType::kTry, MessageType::kTried}) {
    auto same = hello();
    same.head.type = type;
    CHECK(good(same));
  }
  CHECK(good(Message{.type = MessageType::kTryOver}));
  CHECK(good(refusal({.type = MessageType::kTryLost}, {StatusCode::kUnavailable, "why"})));
  CHECK(good(Attach{{.type = MessageType::kAttach}, 7, 1}));
  CHECK(good(ChannelMessage{{.type = MessageType::kDetach}, 7}));
  CHECK(good(NumberMessage{{.type = MessageType::kReleased}, kMaxChannels - 1}));
  CHECK(good(NumberMessage{{.type = MessageType::kTaken}, 0}));
  CHECK(good(Held{{.type = MessageType::kHeld}, 7, 0, kMaxChannels - 1}));
  CHECK(good(RegionMessage{{.type = MessageType::kResolve}, 7, abi::kMaxRegions - 1}));
  const RemoteChunk chunk{1U << 20, 17, 0};
  const Resolved resolved{{.type = MessageType::kResolved}, 7, 0, 1, 4096, 4096};
  CHECK(check_message(rdma::resolved_with(resolved, std::span(&chunk, 1))).ok());
  CHECK(good(refusal({.type = MessageType::kLost}, {StatusCode::kUnavailable, "why"})));
  const Hello message = hello();
  const auto bytes = bytes_of(message);
  std::vector<std::byte> longer(bytes.begin(), bytes.end());
  longer.push_back({});
  for (std::size_t size = 0; size <= longer.size(); ++size) {
    CHECK(check_message(std::span(longer).first(size)).ok() == (size == sizeof(Hello)));
  }
}

TEST_CASE("a field out of its limits is named") {
  const auto refused = [](const auto& message, const char* what) {
    const Status status = check_message(bytes_of(message));
    CHECK(status.code() == StatusCode::kInvalidArgument);
    CHECK(status.text().find(what) != std::string::npos);
  };
  auto greeting = hello();
  greeting.qpn = 1 << 24;
  refused(greeting, "QPN 16777216");
  greeting = hello();
  greeting.credit = 0;
  refused(greeting, "credit");
  greeting = hello();
  greeting.path = rdma::kMaxPaths;
  refused(greeting, "path 64");
  greeting = hello();
  std::memset(greeting.device, 'x', sizeof(greeting.device));
  refused(greeting, "device name without end");
  greeting = hello();
  greeting.head.version = 9;
  refused(greeting, "version 9");
  refused(Message{.type = static_cast<MessageType>(77)}, "type 77");
  refused(Held{{.type = MessageType::kHeld}, 7, 0, kProbe}, "channel number 32767");
  const RemoteChunk chunks[2] = {};
  const Resolved resolved{{.type = MessageType::kResolved}, 7, 0, 1, 8192, 4096};
  CHECK(check_message(rdma::resolved_with(resolved, chunks)).text().find("several chunks") !=
        std::string::npos);
  refused(RegionMessage{{.type = MessageType::kRevoke}, 7, abi::kMaxRegions}, "region");
  auto why = refusal({.type = MessageType::kRefused}, {StatusCode::kUnavailable, "why"});
  why.code = 0;
  refused(why, "code 0");
  why.code = 5;
  std::memset(why.text, 'x', sizeof(why.text));
  refused(why, "text without end");
}

TEST_CASE("a refusal keeps its status, without what a terminal would obey") {
  const auto sent = refusal({.type = MessageType::kRefused}, {StatusCode::kOutOfRange, "a\x1b[2Jb"}, 3);
  CHECK(status_of(sent).code() == StatusCode::kOutOfRange);
  CHECK(status_of(sent).text() == "a [2Jb");
}

TEST_CASE("an end is named by device, port, address and queue pair") {
  auto end = hello();
  end.gid[0] = 0xfe;
  end.gid[1] = 0x80;
  end.gid[15] = 1;
  std::strcpy(end.device,
              "rdmap\x1b"
              "79s0");
  end.qpn = 17;
  CHECK(text_of(end) == "rdmap 79s0 port 1 (GID fe80::1, QPN 17)");
  end.qpn = 0;  // there is none any more
  CHECK(text_of(end) == "rdmap 79s0 port 1 (GID fe80::1)");
}

}  // namespace
}  // namespace mkernel::transport::efa
