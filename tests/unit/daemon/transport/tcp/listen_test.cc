// Options and the listening socket.
#include <unistd.h>

#include "daemon/transport/tcp/socket.h"
#include "tests/unit/daemon/transport/tcp/harness.h"

namespace mkernel::transport::tcp {
namespace {

TEST_CASE("an occupied port is refused with address, port and the process that holds it") {
  End holder(1);
  const auto held = parse_endpoint(holder.transport().local_endpoint()).value();
  TcpOptions options;
  options.port = held.port();
  const auto made = make_tcp(options);
  REQUIRE_FALSE(made.ok());
  CHECK(made.status().code() == StatusCode::kAlreadyExists);
  CHECK(contains(made.status().text(), holder.transport().local_endpoint()));
  CHECK(contains(made.status().text(), "pid " + std::to_string(::getpid())));
}

TEST_CASE("a wildcard address is never what peers are told") {
  TcpOptions options;
  options.bind_address = "0.0.0.0";
  const auto any = make_tcp(options).value();
  CHECK_FALSE(contains(any->local_endpoint(), "0.0.0.0:"));
  options.advertise = "127.0.0.3";
  const auto told = make_tcp(options).value();
  CHECK(told->local_endpoint().rfind("127.0.0.3:", 0) == 0);
}

TEST_CASE("options out of range are refused by value and limit") {
  const auto refusal = [](auto change) {
    TcpOptions options;
    change(options);
    const auto made = make_tcp(options);
    REQUIRE_FALSE(made.ok());
    CHECK(made.status().code() == StatusCode::kInvalidArgument);
    return made.status().text();
  };
  CHECK(contains(refusal([](TcpOptions& o) { o.connections_per_peer = 0; }), "1 to 64"));
  CHECK(contains(refusal([](TcpOptions& o) { o.connections_per_peer = 65; }), "65"));
  CHECK(contains(refusal([](TcpOptions& o) { o.window = 0; }), "32767"));
  CHECK(contains(refusal([](TcpOptions& o) { o.window = 40000; }), "40000"));
  CHECK(contains(refusal([](TcpOptions& o) { o.bind_address = "nonsense"; }), "nonsense"));
}

TEST_CASE("IPv6 loopback works where the machine has it") {
  TcpOptions options;
  options.bind_address = "::1";
  auto made = make_tcp(options);
  if (!made.ok()) {
    MESSAGE("SKIPPED: no IPv6 on loopback: " << made.status().to_string());
    return;
  }
  End a(1, options), b(2, options);
  connect(a, b);
  CHECK(run({&a, &b}, [&] { return a.connected > 0 && b.connected > 0; }));
}

}  // namespace
}  // namespace mkernel::transport::tcp
