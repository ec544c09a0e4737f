#include "daemon/session/message_decoder.h"

#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "proto/ipc/packet.h"

namespace mkernel::session {
namespace {

using abi::MessageType;

template <typename Body>
Body message_of(MessageType type) {
  Body body{};
  body.header = ipc::header_of<Body>(type, 7);
  return body;
}

template <typename Body>
Result<Message> decoded(const Body& body, std::size_t fds = 0) {
  return decode({std::as_bytes(std::span(&body, 1)), fds});
}

/// The text of the refusal, after a check of its code.
std::string refusal(const Result<Message>& result, StatusCode code = StatusCode::kInvalidArgument) {
  REQUIRE_FALSE(result.ok());
  CHECK(result.status().code() == code);
  return result.status().text();
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("every request decodes to its type with its fields") {
  auto join = message_of<abi::JoinGroup>(MessageType::kJoinGroup);
  ipc::copy_text(join.name, "job");
  join.world_size = 4;
  join.rank = 3;
  const auto result = decoded(join);
  REQUIRE(result.ok());
  const auto& back = std::get<abi::JoinGroup>(result.value());
  CHECK(ipc::text_of(back.name) == "job");
  CHECK(back.rank == 3);
  CHECK(back.header.sequence == 7);

  CHECK(std::holds_alternative<abi::Hello>(decoded(message_of<abi::Hello>(MessageType::kHello)).value()));
  CHECK(std::holds_alternative<abi::LeaveGroup>(
      decoded(message_of<abi::LeaveGroup>(MessageType::kLeaveGroup)).value()));
  CHECK(std::holds_alternative<abi::RegisterRegion>(
      decoded(message_of<abi::RegisterRegion>(MessageType::kRegisterRegion), 1).value()));
  CHECK(std::holds_alternative<abi::UnregisterRegion>(
      decoded(message_of<abi::UnregisterRegion>(MessageType::kUnregisterRegion)).value()));
  CHECK(std::holds_alternative<abi::SealRegion>(
      decoded(message_of<abi::SealRegion>(MessageType::kSealRegion)).value()));
  CHECK(std::holds_alternative<abi::MapRegion>(
      decoded(message_of<abi::MapRegion>(MessageType::kMapRegion)).value()));
  CHECK(std::holds_alternative<abi::Exchange>(
      decoded(message_of<abi::Exchange>(MessageType::kExchange)).value()));
  CHECK(std::holds_alternative<abi::FailGroup>(
      decoded(message_of<abi::FailGroup>(MessageType::kFailGroup)).value()));
  CHECK(std::holds_alternative<abi::RejectLaunch>(
      decoded(message_of<abi::RejectLaunch>(MessageType::kRejectLaunch)).value()));
}

TEST_CASE("another ABI version is refused and both versions are named") {
  auto hello = message_of<abi::Hello>(MessageType::kHello);
  hello.header.version = 99;
  const std::string text = refusal(decoded(hello), StatusCode::kFailedPrecondition);
  CHECK(contains(text, "version 99"));
  CHECK(contains(text, "speaks " + std::to_string(abi::kVersion)));
}

TEST_CASE("a header that does not fit its packet is refused") {
  auto hello = message_of<abi::Hello>(MessageType::kHello);
  const auto bytes = std::as_bytes(std::span(&hello, 1));
  for (std::size_t size = 0; size < sizeof(abi::Header); ++size) {
    CHECK(contains(refusal(decode({bytes.first(size), 0})), "at least 16"));
  }
  for (std::size_t size = sizeof(abi::Header); size < bytes.size(); ++size) {
    CHECK(contains(refusal(decode({bytes.first(size), 0})), "message says 96 bytes, the packet has"));
  }
  hello.header.bytes = 40;
  CHECK(contains(refusal(decode({bytes.first(40), 0})), "hello of 40 bytes, expected 96"));
  hello.header.bytes = 96;
  hello.header.magic = 1;
  CHECK(contains(refusal(decoded(hello)), "magic is 1"));
  hello.header.magic = abi::kMagic;
  hello.header.sequence = 0;
  CHECK(contains(refusal(decoded(hello)), "sequence 0"));
}

TEST_CASE("unknown types are refused, the daemon's own replies and events among them") {
  for (const int type : {0, 11, 50, 100, 101, 108, 110, 200, 65535}) {
    CAPTURE(type);
    auto leave = message_of<abi::LeaveGroup>(static_cast<MessageType>(type));
    CHECK(contains(refusal(decoded(leave)), "unknown type " + std::to_string(type)));
  }
}

TEST_CASE("fds come exactly where the message wants them") {
  const auto region = message_of<abi::RegisterRegion>(MessageType::kRegisterRegion);
  CHECK(contains(refusal(decoded(region, 0)), "register_region with 0 fds, expected 1"));
  CHECK(contains(refusal(decoded(region, 2)), "register_region with 2 fds, expected 1"));
  auto plain = region;
  plain.kind = static_cast<std::uint32_t>(abi::RegionKind::kIpc);
  CHECK(decoded(plain, 0).ok());  // the driver gave no dma-buf
  CHECK(decoded(plain, 1).ok());
  CHECK(contains(refusal(decoded(plain, 2)), "register_region with 2 fds, expected 0"));
  auto vmm = region;
  vmm.kind = static_cast<std::uint32_t>(abi::RegionKind::kVmm);
  CHECK(contains(refusal(decoded(vmm, 0)), "register_region with 0 fds, expected 1"));
  CHECK(decoded(vmm, 1).ok());
  CHECK(decoded(vmm, 2).ok());
  CHECK(contains(refusal(decoded(vmm, 3)), "register_region with 3 fds, expected 1"));
  CHECK(contains(refusal(decoded(message_of<abi::Hello>(MessageType::kHello), 1)), "hello with 1 fds"));
  const std::string too_many = "more than " + std::to_string(abi::kMaxFds) + " fds";
  CHECK(contains(refusal(decoded(region, abi::kMaxFds + 1)), too_many));
  const auto bytes = std::as_bytes(std::span(&region, 1));
  CHECK(contains(refusal(decode({bytes, 0, false, true})), too_many));
  CHECK(contains(refusal(decode({bytes, 1, true, false})), "longer than the largest message"));
}

TEST_CASE("only plain GPU memory may be named by CUDA IPC, only GPU memory has a dma-buf") {
  using enum abi::RegionKind;
  const auto spoil = [](std::size_t at, abi::RegionKind kind) {
    auto region = message_of<abi::RegisterRegion>(MessageType::kRegisterRegion);
    region.kind = static_cast<std::uint32_t>(kind);
    const std::size_t fds = kind == kIpc ? 0 : 1;
    CHECK(decoded(region, fds).ok());
    reinterpret_cast<char*>(&region)[at] = 1;
    const auto result = decoded(region, fds);
    return result.ok() ? "" : refusal(result);
  };
  for (std::size_t i = 0; i < sizeof(abi::IpcMemory); ++i) {
    const std::size_t at = offsetof(abi::RegisterRegion, ipc) + i;
    for (const auto kind : {kHostMemory, kVmm, kNone})
      CHECK(contains(spoil(at, kind), "with fields of kind 2 (ipc)"));
    CHECK(spoil(at, kIpc).empty());
  }
  for (const std::size_t at :
       {offsetof(abi::RegisterRegion, dma_buf_offset), offsetof(abi::RegisterRegion, no_dma_buf)}) {
    for (const auto kind : {kHostMemory, kNone})
      CHECK(contains(spoil(at, kind), "with fields of GPU memory"));
    for (const auto kind : {kVmm, kIpc}) CHECK(spoil(at, kind).empty());
  }
}

TEST_CASE("a text without its terminating zero is refused by name") {
  auto hello = message_of<abi::Hello>(MessageType::kHello);
  std::memset(hello.client_name, 'x', sizeof(hello.client_name));
  CHECK(contains(refusal(decoded(hello)), "hello.client_name has no terminating zero"));
  auto join = message_of<abi::JoinGroup>(MessageType::kJoinGroup);
  std::memset(join.name, 'x', sizeof(join.name));
  CHECK(contains(refusal(decoded(join)), "join_group.name has no terminating zero"));
  auto region = message_of<abi::RegisterRegion>(MessageType::kRegisterRegion);
  std::memset(region.no_dma_buf, 'x', sizeof(region.no_dma_buf));
  CHECK(contains(refusal(decoded(region, 1)), "register_region.no_dma_buf has no terminating zero"));
  auto fail = message_of<abi::FailGroup>(MessageType::kFailGroup);
  std::memset(fail.text, 'x', sizeof(fail.text));
  CHECK(contains(refusal(decoded(fail)), "fail_group.text has no terminating zero"));
  auto reject = message_of<abi::RejectLaunch>(MessageType::kRejectLaunch);
  std::memset(reject.text, 'x', sizeof(reject.text));
  CHECK(contains(refusal(decoded(reject)), "reject_launch.text has no terminating zero"));
}

TEST_CASE("a set reserved byte is refused in every message that has some") {
  const auto spoil = [](auto body, std::size_t offset, std::size_t bytes, const char* name,
                        std::size_t fds = 0) {
    for (std::size_t i = 0; i < bytes; ++i) {
      auto spoiled = body;
      reinterpret_cast<char*>(&spoiled)[offset + i] = 1;
      CHECK(contains(refusal(decoded(spoiled, fds)), std::string(name) + ": reserved bytes are not zero"));
    }
  };
  spoil(message_of<abi::JoinGroup>(MessageType::kJoinGroup), offsetof(abi::JoinGroup, reserved), 12,
        "join_group");
  spoil(message_of<abi::LeaveGroup>(MessageType::kLeaveGroup), offsetof(abi::LeaveGroup, reserved), 12,
        "leave_group");
  spoil(message_of<abi::RegisterRegion>(MessageType::kRegisterRegion),
        offsetof(abi::RegisterRegion, reserved), 4, "register_region", 1);
  spoil(message_of<abi::UnregisterRegion>(MessageType::kUnregisterRegion),
        offsetof(abi::UnregisterRegion, reserved), 8, "unregister_region");
  spoil(message_of<abi::SealRegion>(MessageType::kSealRegion), offsetof(abi::SealRegion, reserved), 8,
        "seal_region");
  spoil(message_of<abi::MapRegion>(MessageType::kMapRegion), offsetof(abi::MapRegion, reserved), 4,
        "map_region");
  spoil(message_of<abi::FailGroup>(MessageType::kFailGroup), offsetof(abi::FailGroup, reserved), 8,
        "fail_group");
}

TEST_CASE("random bytes behind a valid header never decode to a wrong size") {
  std::mt19937 random(20261121);
  std::vector<std::byte> bytes(abi::kMaxMessageBytes);
  for (int round = 0; round < 20000; ++round) {
    const std::size_t size = random() % (bytes.size() + 1);
    for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(random());
    const abi::Header header{abi::kMagic, abi::kVersion, static_cast<std::uint16_t>(random() % 13),
                             static_cast<std::uint16_t>(size), 1};
    if (size >= sizeof(header)) std::memcpy(bytes.data(), &header, sizeof(header));
    const auto result = decode({std::span(bytes).first(size), random() % 3});
    if (result.ok()) {
      CHECK(std::visit([](const auto& body) { return sizeof(body); }, result.value()) == size);
    }
  }
}

}  // namespace
}  // namespace mkernel::session
