// A wire without gRPC, threads and time: the test is the other end of every stream, and decides what comes
// and when a stream is full. Peer links over it do in one thread, step by step, what they do over gRPC.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/cluster/peer_wire.h"

namespace mkernel::cluster {

struct FakeStream final : PeerStream {
  void start(StreamHandler fresh) override { handler = std::make_shared<StreamHandler>(std::move(fresh)); }
  void send(v1::PeerMessage message) override { sent.push_back(std::move(message)); }
  bool full() override { return sent.size() >= room; }
  void read(std::size_t) override { ++reads; }
  void close(const Status& why) override { finish(why); }
  void finish(const Status& why) override {
    if (!closed) closed = why;
    handler.reset();
  }
  RemoteEnd remote() const override { return end; }

  // The other end.
  void say(const v1::PeerMessage& message) {
    if (const auto keep = handler) keep->message(message);
  }
  void hang_up() {
    if (const auto keep = std::exchange(handler, nullptr))
      keep->closed({StatusCode::kUnavailable, "hung up"});
  }
  /// So many messages more may be sent.
  void drain(std::size_t more) {
    room = sent.size() + more;
    if (const auto keep = handler; keep != nullptr && keep->drained) keep->drained();
  }

  std::shared_ptr<StreamHandler> handler;
  std::vector<v1::PeerMessage> sent;
  std::size_t room = SIZE_MAX, reads = 0;
  std::optional<Status> closed;
  RemoteEnd end;
};

struct FakeWire final : PeerWire {
  Result<std::string> listen(const std::string& address, Accept fresh) override {
    accept = std::move(fresh);
    return address;
  }
  void stop_listening() override {}
  std::shared_ptr<PeerStream> dial(const std::string& address) override {
    auto stream = std::make_shared<FakeStream>();
    dialled[address].push_back(stream);
    return stream;
  }
  /// Somebody at this host dials.
  std::shared_ptr<FakeStream> knock(const std::string& host) {
    auto stream = std::make_shared<FakeStream>();
    stream->end.host = host;
    accept(stream);
    return stream;
  }

  Accept accept;
  std::map<std::string, std::vector<std::shared_ptr<FakeStream>>> dialled;
};

}  // namespace mkernel::cluster
