// One end of a connection, with the other end's messages made up: what is asked for over which device, and
// what is not believed.
#include "daemon/transport/efa/connection.h"

#include <doctest/doctest.h>

#include "tests/support/fake_nic/fabric.h"
#include "tests/support/transport_pair.h"

namespace mkernel::transport::efa {
namespace {

constexpr PeerId kPeer = 1;
constexpr std::uint64_t kOwnBoot = 2, kPeerBoot = 3;

/// The node "b" with two devices. A peer before it in the alphabet dials; one behind it is dialled.
struct End {
  explicit End(const std::string& peer) {
    for (const char* const name : {"efa0", "efa1"}) {
      fabric.add_device("b", {.name = name, .efa = test::nic::EfaSettings{}});
    }
    context.options.base.identity = {"b", kOwnBoot};
    context.options.verbs = fabric.verbs("b");
    context.options.efa = fabric.efa();
    for (const char* const name : {"efa0", "efa1"}) {
      context.paths.push_back(Device::open(context.options, name).value());
    }
    connection.emplace(context, *domains, kPeer, PeerAddress{{peer, kPeerBoot}, "x, y"}, now);
  }
  ~End() {
    connection.reset();
    domains.reset();
    context.paths.clear();
    CHECK(fabric.complaints().empty());
  }

  /// What the peer says.
  template <typename T>
  Status hear(const T& message) {
    REQUIRE(check_message(bytes_of(message)).ok());
    return connection->receive(bytes_of(message), now);
  }
  /// All that was said since the last call, as one likes to read it.
  std::vector<std::string> said() {
    std::vector<std::string> all;
    for (const auto& [peer, bytes] : std::exchange(context.outbox, {})) {
      const auto head = read_as<Message>(bytes);
      const std::string number = std::to_string(head.epoch);
      const bool greets = bytes.size() == sizeof(Hello);
      const Hello hello = greets ? read_as<Hello>(bytes) : Hello{};
      const std::string over = std::string(" ") + hello.device + " to " + std::to_string(hello.path);
      switch (head.type) {
        case MessageType::kHello: all.push_back("hello " + number + over); break;
        case MessageType::kWelcome: all.push_back("welcome " + number + " " + hello.device); break;
        case MessageType::kTry: all.push_back("try " + number + over); break;
        case MessageType::kTried: all.push_back("tried " + number + " " + hello.device); break;
        case MessageType::kTryOver: all.push_back("over " + number); break;
        case MessageType::kLost:
        case MessageType::kTryLost:
          why = status_of(read_as<Refusal>(bytes)).text();
          all.push_back((head.type == MessageType::kLost ? "lost " : "try lost ") + number);
          break;
        default: all.push_back("type " + std::to_string(static_cast<int>(head.type)));
      }
    }
    return all;
  }
  /// The device's events, as the transport hands them on.
  void look(std::uint32_t local) {
    connection->device_changed(local, context.paths[local]->take_events(), now);
  }

  test::nic::Fabric fabric;
  Context context;
  std::optional<Domains> domains = Domains();
  std::optional<Connection> connection;
  Time now = Clock::now();
  std::string why;  ///< of the last loss that was said
};

using Said = std::vector<std::string>;

Hello greeting(MessageType type, std::uint32_t number, std::uint32_t path) {
  Hello message{{.type = type, .epoch = number}, kPeerBoot, kOwnBoot};
  message.gid[0] = 0xfe;
  message.qpn = 17;
  message.credit = message.window = 1;
  message.path = path;
  return message;
}

Refusal loss(MessageType type, std::uint32_t number) {
  return refusal({.type = type, .epoch = number}, {StatusCode::kUnavailable, "pulled"});
}

TEST_CASE("the end that dials goes from route to route, each in an epoch of its own") {
  End end("c");
  CHECK(end.connection->poll(end.now).ok());
  CHECK(end.said() == Said{"hello 1 efa0 to 0"});
  CHECK(end.hear(loss(MessageType::kLost, 7)).ok());  // of no epoch that is
  CHECK(end.said().empty());
  for (const char* const next : {"hello 2 efa1 to 1", "hello 3 efa0 to 1", "hello 4 efa1 to 0"}) {
    CHECK(end.hear(loss(MessageType::kLost, end.connection->epoch())).ok());
    CHECK(end.connection->poll(end.now).ok());
    CHECK(end.said() == Said{next});
  }
  CHECK(end.hear(loss(MessageType::kLost, 4)).ok());
  CHECK(end.connection->poll(end.now).ok());
  CHECK(end.said().empty());  // all have failed: later
  CHECK(end.connection->deadline(end.now) <= end.now + end.context.options.base.reconnect_interval);
  end.now += end.context.options.base.reconnect_interval;
  CHECK(end.connection->poll(end.now).ok());
  CHECK(end.said() == Said{"hello 5 efa0 to 0"});
}

TEST_CASE("the end that dials leaves out a device that is dead, and the epoch that was over it is lost") {
  End end("c");
  CHECK(end.connection->poll(end.now).ok());
  end.said();
  end.fabric.fail_device("efa0");
  end.look(0);
  CHECK(end.said() == Said{"lost 1"});
  CHECK(end.why.find("efa0 port 1 (GID fe80::") == 0);
  CHECK(end.why.find("device 0 of the peer: efa0 reported: local catastrophic error") != std::string::npos);
  CHECK(end.connection->poll(end.now).ok());
  CHECK(end.said() == Said{"hello 2 efa1 to 1"});
  CHECK(end.hear(loss(MessageType::kLost, 2)).ok());
  CHECK(end.connection->poll(end.now).ok());
  CHECK(end.said() == Said{"hello 3 efa1 to 0"});
}

TEST_CASE("the end that answers takes the device it is asked for, or says what is wrong with it") {
  End end("a");
  end.fabric.set_port("efa0", 1, IBV_PORT_DOWN);
  end.look(0);
  CHECK(end.hear(greeting(MessageType::kHello, 1, 0)).ok());
  CHECK(end.said() == Said{"lost 1"});
  CHECK(end.why.find("efa0 port 1 is down") != std::string::npos);
  CHECK(end.hear(greeting(MessageType::kHello, 2, 1)).ok());
  CHECK(end.said() == Said{"welcome 2 efa1"});
  CHECK(end.hear(greeting(MessageType::kHello, 1, 0)).ok());  // of an epoch that is over
  CHECK(end.said().empty());
  end.fabric.set_port("efa0", 1, IBV_PORT_ACTIVE);
  end.look(0);
  CHECK(end.said().empty());  // the connection is elsewhere
  CHECK(end.hear(greeting(MessageType::kTry, 1, 0)).ok());
  CHECK(end.said() == Said{"tried 1 efa0"});
  CHECK(end.hear(Message{.type = MessageType::kTryOver, .epoch = 1}).ok());
  CHECK(end.hear(greeting(MessageType::kHello, 3, 0)).ok());
  CHECK(end.said() == Said{"welcome 3 efa0"});
}

TEST_CASE("a try ends with the device that it was over, and with the connection") {
  End end("a");
  CHECK(end.hear(greeting(MessageType::kHello, 1, 1)).ok());
  CHECK(end.hear(greeting(MessageType::kTry, 1, 0)).ok());
  CHECK(end.said() == Said{"welcome 1 efa1", "tried 1 efa0"});
  end.fabric.set_port("efa0", 1, IBV_PORT_DOWN);
  end.look(0);
  CHECK(end.said() == Said{"try lost 1"});
  CHECK(end.hear(greeting(MessageType::kTry, 2, 0)).ok());
  CHECK(end.said() == Said{"try lost 2"});
  CHECK(end.why == "efa0 port 1 is down");
  CHECK(end.hear(greeting(MessageType::kTry, 3, 1)).ok());
  CHECK(end.hear(loss(MessageType::kLost, 1)).ok());
  CHECK(end.said() == Said{"tried 3 efa1", "try lost 3"});
}

// Where queue pairs of two peers share a domain, a key that one was given works for the other as well.
TEST_CASE("a connection reaches what is registered for its peer, and nothing else") {
  End end("c");
  CHECK(end.connection->poll(end.now).ok());
  REQUIRE(end.connection->queue() != nullptr);
  const Device& device = *end.context.paths[0];
  CHECK(end.connection->queue()->pd() == end.domains->on(device).value());
  Domains of_another;
  CHECK(of_another.on(device).value() != end.domains->on(device).value());
  CHECK(of_another.on(*end.context.paths[1]).value() != of_another.on(device).value());
  ChannelMemory memory;
  auto region = test::make_region(4096, abi::RegionKind::kHostMemory);
  auto& registrations = memory_on(device, end.connection->queue()->pd(), nullptr, memory);
  REQUIRE(registrations.target(*region).ok());
  CHECK(registrations.granted(*region)->regions.front()->pd == end.connection->queue()->pd().get());
}

TEST_CASE("a peer that opens what this end opens, or asks for what is not there, is not talked to any more") {
  End dials("c");
  CHECK(dials.hear(greeting(MessageType::kHello, 1, 0)).code() == StatusCode::kInvalidArgument);
  CHECK(dials.hear(greeting(MessageType::kTry, 1, 0)).code() == StatusCode::kInvalidArgument);
  End answers("a");
  for (const MessageType type : {MessageType::kHello, MessageType::kTry}) {
    const Status refused = answers.hear(greeting(type, 1, 2));
    CHECK(refused.code() == StatusCode::kInvalidArgument);
    CHECK(refused.text() == "it asks for EFA device 2 of 2 here");
  }
  auto earlier = greeting(MessageType::kTry, 1, 0);
  earlier.to_boot_id = kOwnBoot + 1;
  CHECK(answers.hear(earlier).code() == StatusCode::kFailedPrecondition);
}

TEST_CASE("answers that nobody waits for change nothing") {
  for (const char* const peer : {"a", "c"}) {
    End end(peer);
    CHECK(end.connection->poll(end.now).ok());
    end.said();
    const auto life = end.connection->life();
    for (const std::uint32_t number : {0U, 1U, 77U}) {
      CHECK(end.hear(greeting(MessageType::kTried, number, 0)).ok());
      CHECK(end.hear(loss(MessageType::kTryLost, number)).ok());
      CHECK(end.hear(Message{.type = MessageType::kTryOver, .epoch = number}).ok());
      CHECK(end.hear(greeting(MessageType::kWelcome, number + 100, 0)).ok());
      CHECK(end.hear(Message{.type = MessageType::kReady, .epoch = number + 100}).ok());
    }
    CHECK(end.connection->life() == life);
    CHECK(end.said().empty());
  }
}

}  // namespace
}  // namespace mkernel::transport::efa
