#include "proto/ipc/packet.h"

#include <dirent.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace mkernel::ipc {
namespace {

struct Pair {
  Pair() {
    int ends[2] = {-1, -1};
    REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    left.reset(ends[0]);
    right.reset(ends[1]);
  }
  UniqueFd left, right;
};

std::size_t open_fds() {
  std::size_t count = 0;
  DIR* folder = ::opendir("/proc/self/fd");
  REQUIRE(folder != nullptr);
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}

/// Sends any number of fds, more than send_packet() would.
bool send_many(int socket, std::size_t count, int fd, std::size_t bytes = 1) {
  std::byte one{1};
  iovec piece{&one, bytes};
  std::vector<int> fds(count, fd);
  std::vector<char> control(CMSG_SPACE(sizeof(int) * count));
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof(int) * count);
  std::memcpy(CMSG_DATA(head), fds.data(), sizeof(int) * count);
  return ::sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes);
}

TEST_CASE("a packet brings its bytes and its fds, and fds are close-on-exec") {
  Pair pair;
  std::mt19937 random(9);
  std::array<std::byte, 600> bytes;
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  auto memory = create_shared_memory("mk-test", 4096);
  auto event = create_event();
  REQUIRE(memory.ok());
  REQUIRE(event.ok());
  const std::array<int, 2> fds{memory->get(), event->get()};
  REQUIRE(send_packet(pair.left.get(), bytes, fds).ok());
  REQUIRE(send_packet(pair.left.get(), std::span(bytes).first(3)).ok());

  Packet packet;
  REQUIRE(receive_packet(pair.right.get(), packet).ok());
  CHECK(packet.bytes == bytes.size());
  CHECK(std::memcmp(packet.data, bytes.data(), bytes.size()) == 0);
  REQUIRE(packet.fds.size() == 2);
  CHECK(check_shared_memory(packet.fds[0].get(), 0, 4096).ok());
  CHECK((::fcntl(packet.fds[1].get(), F_GETFD) & FD_CLOEXEC) != 0);
  CHECK_FALSE(packet.truncated);
  CHECK_FALSE(packet.fds_truncated);
  // One packet at a time, and the fds of the last one are gone with the next.
  REQUIRE(receive_packet(pair.right.get(), packet).ok());
  CHECK(packet.bytes == 3);
  CHECK(packet.fds.empty());
  CHECK(receive_packet(pair.right.get(), packet).code() == StatusCode::kNotFound);
}

TEST_CASE("a packet that is too long says so") {
  Pair pair;
  const std::vector<std::byte> bytes(abi::kMaxMessageBytes + 1, std::byte{7});
  REQUIRE(send_packet(pair.left.get(), bytes).ok());
  Packet packet;
  REQUIRE(receive_packet(pair.right.get(), packet).ok());
  CHECK(packet.truncated);
  CHECK(packet.bytes == abi::kMaxMessageBytes);
}

TEST_CASE("as many fds as are allowed pass; one more, or many more, are all closed") {
  Pair pair;
  auto event = create_event();
  REQUIRE(event.ok());
  {
    REQUIRE(send_many(pair.left.get(), abi::kMaxFds, event->get()));
    Packet packet;
    REQUIRE(receive_packet(pair.right.get(), packet).ok());
    CHECK(packet.fds.size() == abi::kMaxFds);
    CHECK_FALSE(packet.fds_truncated);
  }
  // The kernel drops none: those it drops it closes on the thread that receives, for as long as that takes.
  for (const std::size_t count : {abi::kMaxFds + 1, abi::kMaxFds + 2, std::size_t{200}, kMaxPacketFds}) {
    const std::size_t before = open_fds();
    REQUIRE(send_many(pair.left.get(), count, event->get()));
    Packet packet;
    REQUIRE(receive_packet(pair.right.get(), packet).ok());
    CHECK(packet.fds_truncated);
    CHECK_FALSE(packet.fds_lost);
    CHECK(packet.fds.size() == count);
    packet.fds.clear();
    CHECK(open_fds() == before);
  }
  const std::vector<int> fds(abi::kMaxFds + 1, event->get());
  CHECK(send_packet(pair.left.get(), {}, fds).code() == StatusCode::kInternal);
}

TEST_CASE("a socket whose other side is gone, or is full, is told apart") {
  Pair pair;
  const std::array<std::byte, 512> bytes{};
  Status status;
  for (int i = 0; i < 100000 && status.ok(); ++i) status = send_packet(pair.left.get(), bytes);
  CHECK(status.code() == StatusCode::kResourceExhausted);
  pair.right.reset();
  CHECK(send_packet(pair.left.get(), bytes).code() == StatusCode::kUnavailable);
  Packet packet;
  CHECK(receive_packet(pair.left.get(), packet).code() == StatusCode::kUnavailable);
}

TEST_CASE("what was sent before the end is received, also when the other side left packets unread") {
  Pair pair;
  const std::array<std::byte, 16> bytes{};
  REQUIRE(send_packet(pair.left.get(), bytes).ok());
  REQUIRE(send_packet(pair.right.get(), bytes).ok());
  REQUIRE(send_packet(pair.right.get(), std::span(bytes).first(5)).ok());
  pair.right.reset();  // its end of the connection is reset: one packet was not read
  Packet packet;
  REQUIRE(receive_packet(pair.left.get(), packet).ok());
  CHECK(packet.bytes == 16);
  CHECK(send_packet(pair.left.get(), bytes).code() == StatusCode::kUnavailable);
  REQUIRE(receive_packet(pair.left.get(), packet).ok());
  CHECK(packet.bytes == 5);
  CHECK(receive_packet(pair.left.get(), packet).code() == StatusCode::kUnavailable);
}

TEST_CASE("packets are discarded up to one with fds, which stay where they are") {
  const std::array<std::byte, 16> bytes{};
  auto event = create_event();
  REQUIRE(event.ok());
  for (const bool gone : {false, true}) {  // the other side is
    for (const std::size_t with_fds : {0, 1, 2}) {
      CAPTURE(gone);
      CAPTURE(with_fds);
      Pair pair;
      for (int i = 0; i < 5; ++i)
        REQUIRE(send_packet(pair.left.get(), std::span(bytes).first(4 * (i % 2))).ok());
      // A packet without bytes, too, looks like the end of the stream.
      if (with_fds != 0) REQUIRE(send_many(pair.left.get(), 3, event->get(), with_fds - 1));
      if (gone) pair.left.reset();
      ::shutdown(pair.right.get(), SHUT_RD);
      const std::size_t before = open_fds();
      CHECK(discard_packets(pair.right.get()) == (with_fds == 0));
      CHECK(open_fds() == before);
      Packet packet;
      const Status left = receive_packet(pair.right.get(), packet);
      CHECK(packet.fds.size() == (with_fds == 0 ? 0 : 3));
      if (with_fds == 0) CHECK(left.code() == StatusCode::kUnavailable);
    }
  }
}

TEST_CASE("headers, texts and statuses survive the border") {
  const abi::Header header = header_of<abi::JoinGroup>(abi::MessageType::kJoinGroup, 17);
  CHECK(header.magic == abi::kMagic);
  CHECK(header.version == abi::kVersion);
  CHECK(header.type == 2);
  CHECK(header.bytes == sizeof(abi::JoinGroup));
  CHECK(header.sequence == 17);

  char field[8];
  std::memset(field, 'x', sizeof(field));
  copy_text(field, "abc");
  CHECK(text_of(field) == "abc");
  CHECK(field[7] == '\0');
  copy_text(field, "0123456789");
  CHECK(text_of(field) == "0123456");
  copy_text(field, "0123\xe2\x80\xa6 cut");  // U+2026 has three bytes, of which all fit
  CHECK(text_of(field) == "0123\xe2\x80\xa6");
  copy_text(field, "01234\xe2\x80\xa6");
  CHECK(text_of(field) == "01234");
  copy_text(field, std::string(100, '\x80'));  // no character at all
  CHECK(text_of(field) == std::string(4, '\x80'));
  const char open_end[3] = {'a', 'b', 'c'};  // a hostile client leaves out the zero
  CHECK(text_of(open_end) == "abc");

  CHECK(from_reply(to_reply({})).ok());
  const Status back = from_reply(to_reply({StatusCode::kDeadlineExceeded, "rank 3 is missing"}));
  CHECK(back.code() == StatusCode::kDeadlineExceeded);
  CHECK(back.text() == "rank 3 is missing");
  const Status cut = from_reply(to_reply({StatusCode::kInternal, std::string(10000, 'y')}));
  CHECK(cut.text() == std::string(abi::kTextBytes - 1, 'y'));
}

}  // namespace
}  // namespace mkernel::ipc
