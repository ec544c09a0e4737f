// What a hello may say, without streams. fuzz_peer_hello found the cases here.
#include "daemon/cluster/peer_hello.h"

#include <doctest/doctest.h>

#include "tests/support/text.h"

namespace mkernel::cluster {
namespace {

using test::contains;

PeerLinksOptions node(const std::string& name, std::uint64_t boot_id) {
  PeerLinksOptions options;
  options.node = name;
  options.boot_id = boot_id;
  options.transport = "tcp";
  options.endpoints = {name + ":1", name + ":2"};
  options.rail_version = 3;
  return options;
}

const PeerLinksOptions kOurs = node("a", 1);

v1::Hello hello_of_b() {
  return dialling_hello(node("b", 2), "10.0.0.2:7600", random_token());
}

Status check(const v1::Hello& hello) {
  return check_hello(hello, kOurs, "10.0.0.1:7600");
}

}  // namespace

TEST_CASE("the hellos that a node says pass: the one at an address that it dials, and the answer") {
  CHECK(check(hello_of_b()).ok());
  CHECK(check(answering_hello(node("b", 2), "10.0.0.2:7600")).ok());
}

TEST_CASE("a refusal names what differs, on whichever rail it does") {
  v1::Hello hello = hello_of_b();
  SUBCASE("kind") {
    hello.mutable_endpoints(1)->set_kind("verbs");
    CHECK(rails_of(hello) == "2 x tcp and verbs");
    CHECK(contains(check(hello).text(), "has rails 2 x tcp and verbs, node a has 2 x tcp: all nodes"));
  }
  SUBCASE("an older daemon, which knows groups by their names alone") {
    hello.clear_groups_version();
    CHECK(contains(check(hello).text(), "speaks version 0 about groups, node a version 1"));
  }
  SUBCASE("version") {
    hello.mutable_endpoints(1)->set_version(7);
    CHECK(contains(check(hello).text(), "speaks version 7 between its tcp rails, node a version 3"));
  }
  CHECK(check(hello).code() == StatusCode::kFailedPrecondition);
}

TEST_CASE("with TLS a node has no name that every certificate carries: it could be any node") {
  PeerLinksOptions ours = kOurs;
  ours.shared_name = "b";
  const v1::Hello hello = hello_of_b();
  CHECK(
      check_hello(hello, ours, "10.0.0.1:7600").ok());  // without certificates it proves nothing in any case
  ours.certified = true;
  const Status status = check_hello(hello, ours, "10.0.0.1:7600");
  CHECK(status.code() == StatusCode::kPermissionDenied);
  CHECK(contains(status.text(), "peers.tls.server_name"));
  ours.shared_name = "cluster";
  CHECK(check_hello(hello, ours, "10.0.0.1:7600").ok());
}

TEST_CASE("a token is short: a Start carries those of several hellos") {
  v1::Hello hello = hello_of_b();
  hello.set_token(std::string(60000, 'x'));
  CHECK(check(hello).code() == StatusCode::kInvalidArgument);
  CHECK(contains(check(hello).text(), "token of 60000 bytes, allowed are 64"));
}

TEST_CASE("the addresses of rails go into texts: they are printable and bounded") {
  v1::Hello hello = hello_of_b();
  SUBCASE("printable") {
    hello.mutable_endpoints(1)->set_address("\x1b[2J");
    CHECK(contains(check(hello).text(), "address of a rail of 4 bytes"));
  }
  SUBCASE("bounded") {
    hello.mutable_endpoints(1)->set_address(std::string(50000, 'x'));
    CHECK(contains(check(hello).text(), "address of a rail of 50000 bytes"));
  }
  CHECK(check(hello).code() == StatusCode::kInvalidArgument);
}

}  // namespace mkernel::cluster
