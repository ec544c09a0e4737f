// What the two ends of `mkbench fabric` say to each other beside the puts: the messages of their transports,
// and words of the benchmark itself. A stream socket, within this process or between two machines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "proto/abi/status.h"
#include "proto/ipc/fd.h"

namespace mkernel::bench {

/// One thread at each end.
class Pipe {
 public:
  /// One or the other: a transport's message, or a word.
  struct Received {
    std::string message;
    std::optional<nlohmann::json> word;
  };

  /// Both ends, in this process.
  static Result<std::pair<Pipe, Pipe>> pair();
  /// Waits for one caller on `port` of every address. Errors: kUnavailable, with the cause.
  static Result<Pipe> accept_on(std::uint16_t port);
  /// "host:port". Tries for 10 s: the other end may start a little later.
  static Result<Pipe> dial(const std::string& host_port);

  Status send_message(std::span<const std::byte> message);
  Status send_word(const nlohmann::json& word);
  /// Nothing: nothing is waiting. kCancelled when the other end has hung up, kInvalidArgument for nonsense.
  Result<std::optional<Received>> receive();
  /// Sends a word and waits for the answer, while no transport runs at this end.
  Result<nlohmann::json> ask(const nlohmann::json& word);
  /// Readable when receive() would find something.
  int fd() const { return socket_.get(); }
  /// Address of the other end, for programs that are to call it; empty within this process.
  std::string other_host() const;

 private:
  explicit Pipe(ipc::UniqueFd socket) : socket_(std::move(socket)) {}
  Status send(std::uint32_t kind, const void* bytes, std::size_t count);

  ipc::UniqueFd socket_;
  std::string unread_;
};

}  // namespace mkernel::bench
