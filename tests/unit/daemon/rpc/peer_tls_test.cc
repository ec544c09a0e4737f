// Links under TLS with client certificates, made by openssl for the test.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/unit/daemon/cluster/link_nodes.h"

namespace mkernel::rpc {
namespace {

using namespace cluster;

namespace fs = std::filesystem;

/// A folder with an authority and certificates that it signed; gone at the end.
class Certificates {
 public:
  Certificates() {
    char name[] = "/tmp/mkernel-tls-XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    folder_ = name;
  }
  ~Certificates() { fs::remove_all(folder_); }

  bool make_authority(const std::string& ca) {
    return run("req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=" + ca + " -keyout " + file(ca, "key") +
               " -out " + file(ca, "pem"));
  }
  /// `more`: further alternative names, ",DNS:b".
  TlsFiles issue(const std::string& ca, const std::string& name, const std::string& more = "") {
    std::ofstream(file(name, "ext")) << "subjectAltName=IP:127.0.0.1" << more << "\n";
    REQUIRE(run("req -newkey rsa:2048 -nodes -subj /CN=" + name + " -keyout " + file(name, "key") + " -out " +
                file(name, "csr")));
    REQUIRE(run("x509 -req -days 2 -in " + file(name, "csr") + " -CA " + file(ca, "pem") + " -CAkey " +
                file(ca, "key") + " -CAcreateserial -extfile " + file(name, "ext") + " -out " +
                file(name, "pem")));
    return {file(name, "pem"), file(name, "key"), file(ca, "pem"), "", std::chrono::seconds(1)};
  }
  /// As an operator or a sidecar does it: each file at once, under the name that it has.
  static void replace(const TlsFiles& old, const TlsFiles& fresh) {
    for (const auto part : {&TlsFiles::ca, &TlsFiles::cert, &TlsFiles::key}) {
      fs::copy_file(fresh.*part, old.*part + ".new", fs::copy_options::overwrite_existing);
      fs::rename(old.*part + ".new", old.*part);
    }
  }

 private:
  std::string file(const std::string& name, const std::string& suffix) const {
    return (folder_ / (name + "." + suffix)).string();
  }
  static bool run(const std::string& arguments) {
    return std::system(("openssl " + arguments + " >/dev/null 2>&1").c_str()) == 0;
  }
  fs::path folder_;
};

}  // namespace

TEST_CASE("nodes with certificates of one authority link; others do not get in") {
  Certificates certificates;
  if (!certificates.make_authority("ours")) {
    MESSAGE("skipped: openssl is not installed");
    return;
  }
  REQUIRE(certificates.make_authority("theirs"));
  boost::asio::io_context io;
  Node a(io, "a", 1), b(io, "b", 2), stranger(io, "stranger", 3), plain(io, "plain", 4);
  a.tls = certificates.issue("ours", "a");
  b.tls = certificates.issue("ours", "b");
  // Trusts us, but we do not trust it.
  stranger.tls = certificates.issue("theirs", "stranger");
  stranger.tls.ca = a.tls.ca;
  REQUIRE(a.start().ok());
  for (Node* node : {&b, &stranger, &plain}) {
    node->options.peers = {a.links->address()};
    REQUIRE(node->start().ok());
  }
  REQUIRE(run_until(io, [&] { return a.id_of("b") != 0 && b.id_of("a") != 0; }));
  const auto refused = [](const Node& node) {
    return node.links->peers().size() == 1 && !node.links->peers()[0].reason.empty();
  };
  CHECK(run_until(io, [&] { return refused(stranger) && refused(plain); }));
  CHECK(a.up.size() == 1);
  CHECK(stranger.up.empty());
  CHECK(plain.up.empty());
}

TEST_CASE("a certificate speaks for the node that it names and for no other") {
  Certificates certificates;
  if (!certificates.make_authority("ours")) {
    MESSAGE("skipped: openssl is not installed");
    return;
  }
  boost::asio::io_context io;
  Node a(io, "a", 1), b(io, "b", 2), alias(io, "alias", 3), thief(io, "c", 4);
  a.tls = certificates.issue("ours", "a");
  b.tls = certificates.issue("ours", "b");
  alias.tls = certificates.issue("ours", "host", ",DNS:alias");
  thief.tls = certificates.issue("ours", "d", ",DNS:d.example");
  for (Node* node : {&a, &b, &alias, &thief}) node->options.open = false;  // the authority vouches for them
  REQUIRE(a.start().ok());
  for (Node* node : {&b, &alias, &thief}) {
    node->options.peers = {a.links->address()};
    REQUIRE(node->start().ok());
  }
  REQUIRE(run_until(io, [&] { return a.id_of("b") != 0 && a.id_of("alias") != 0; }));
  const auto reason = [&] { return thief.links->peers().at(0).reason; };
  REQUIRE(run_until(io, [&] { return contains(reason(), "certificate"); }));
  CHECK(contains(
      reason(), "node c at " + thief.links->address() + " shows the certificate of d, 127.0.0.1, d.example"));
  CHECK(a.up.size() == 2);

  // The other way round: the daemon at the configured address must be the node that it says.
  REQUIRE(b.links->set_static_peers({a.links->address(), thief.links->address()}).ok());
  const auto at_thief = [&] {
    for (const PeerSnapshot& peer : b.links->peers()) {
      if (peer.address == thief.links->address()) return peer.reason;
    }
    return std::string();
  };
  CHECK(run_until(io, [&] { return contains(at_thief(), "shows the certificate of d"); }));
  CHECK(thief.up.empty());
  CHECK(b.down.empty());
}

TEST_CASE("certificates that change are read again, and links that are up stay up") {
  Certificates certificates;
  if (!certificates.make_authority("old")) {
    MESSAGE("skipped: openssl is not installed");
    return;
  }
  REQUIRE(certificates.make_authority("new"));
  boost::asio::io_context io;
  Node a(io, "a", 1), b(io, "b", 2), c(io, "c", 3);
  a.tls = certificates.issue("old", "a");
  b.tls = certificates.issue("old", "b");
  c.tls = certificates.issue("new", "c");
  REQUIRE(a.start().ok());
  b.options.peers = c.options.peers = {a.links->address()};
  REQUIRE(b.start().ok());
  REQUIRE(c.start().ok());
  REQUIRE(run_until(io, [&] { return a.id_of("b") != 0 && b.id_of("a") != 0; }));
  const transport::PeerId before = a.id_of("b");
  REQUIRE(run_until(io, [&] { return !c.links->peers().at(0).reason.empty(); }));
  CHECK(a.id_of("c") == 0);

  // A file of its own: what issue() writes is named after the common name.
  TlsFiles fresh = certificates.issue("new", "a2", ",DNS:a");
  Certificates::replace(a.tls, fresh);
  REQUIRE(run_until(io, [&] { return a.id_of("c") != 0 && c.id_of("a") != 0; }));
  CHECK(a.id_of("b") == before);
  a.say("b", 7);
  CHECK(run_until(io, [&] { return b.rounds["a"].size() == 1; }));
  CHECK(a.down.empty());
}

TEST_CASE("a TLS file that is no certificate, or the key of another one, is named at the start") {
  Certificates certificates;
  if (!certificates.make_authority("ours")) {
    MESSAGE("skipped: openssl is not installed");
    return;
  }
  boost::asio::io_context io;
  const TlsFiles good = certificates.issue("ours", "a"), other = certificates.issue("ours", "b");
  const auto refusal = [&](const TlsFiles& files) {
    Node a(io, "a", 1);
    a.tls = files;
    return a.start().to_string();
  };
  TlsFiles files = good;
  files.key = other.key;
  CHECK(contains(refusal(files), "TLS key " + other.key + " does not belong to certificate " + good.cert));
  files.key = good.cert;
  CHECK(contains(refusal(files), good.cert + " holds no PEM key"));
  files = good;
  files.ca = good.key;
  CHECK(contains(refusal(files), good.key + " holds no PEM certificate"));
}

TEST_CASE("a TLS file that is missing is named") {
  boost::asio::io_context io;
  Node a(io, "a", 1);
  a.tls = {"/nonexistent/node.pem", "/nonexistent/node.key", "/nonexistent/ca.pem", "", {}};
  const Status missing = a.start();
  CHECK(missing.code() == StatusCode::kNotFound);
  CHECK(contains(missing.text(), "/nonexistent/node.pem"));
}

}  // namespace mkernel::rpc
