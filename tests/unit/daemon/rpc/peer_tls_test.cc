// Links under TLS with client certificates, made by openssl for the test.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>

#include "tests/unit/daemon/rpc/link_nodes.h"

namespace mkernel::rpc {
namespace {

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
  TlsFiles issue(const std::string& ca, const std::string& name) {
    std::FILE* extensions = std::fopen(file(name, "ext").c_str(), "w");
    std::fputs("subjectAltName=IP:127.0.0.1\n", extensions);
    std::fclose(extensions);
    REQUIRE(run("req -newkey rsa:2048 -nodes -subj /CN=" + name + " -keyout " + file(name, "key") + " -out " +
                file(name, "csr")));
    REQUIRE(run("x509 -req -days 2 -in " + file(name, "csr") + " -CA " + file(ca, "pem") + " -CAkey " +
                file(ca, "key") + " -CAcreateserial -extfile " + file(name, "ext") + " -out " +
                file(name, "pem")));
    return {file(name, "pem"), file(name, "key"), file(ca, "pem"), ""};
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
  a.options.tls = certificates.issue("ours", "a");
  b.options.tls = certificates.issue("ours", "b");
  // Trusts us, but we do not trust it.
  stranger.options.tls = certificates.issue("theirs", "stranger");
  stranger.options.tls.ca = a.options.tls.ca;
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

TEST_CASE("a TLS file that is missing is named") {
  boost::asio::io_context io;
  Node a(io, "a", 1);
  a.options.tls = {"/nonexistent/node.pem", "/nonexistent/node.key", "/nonexistent/ca.pem", ""};
  const Status missing = a.start();
  CHECK(missing.code() == StatusCode::kNotFound);
  CHECK(contains(missing.text(), "/nonexistent/node.pem"));
}

}  // namespace mkernel::rpc
