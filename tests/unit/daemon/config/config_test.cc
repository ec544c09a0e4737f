#include "daemon/config/config.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "daemon/config/keys.h"
#include "daemon/config/rules.h"

namespace mkernel::config {
namespace {

const std::filesystem::path kRoot = MKERNEL_SOURCE_DIR;

std::string mistakes_in(const std::string& text) {
  auto parsed = parse(text, "node.toml");
  REQUIRE_FALSE(parsed.ok());
  CHECK(parsed.status().code() == StatusCode::kInvalidArgument);
  return parsed.status().text();
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("an empty file is the defaults, with the sockets derived from the runtime directory") {
  auto parsed = parse("", "node.toml");
  REQUIRE(parsed.ok());
  CHECK(parsed->node.socket == "/run/mkernel/mkerneld.sock");
  CHECK(parsed->control.socket == "/run/mkernel/control.sock");
  CHECK_FALSE(parsed->node.name.empty());
  CHECK(parsed->node.mode_bits() == 0660);
  CHECK(parsed->proxy.threads == 1);
}

TEST_CASE("every kind of value reaches its field") {
  auto parsed = parse(R"(
[node]
name = "a-1.rack_2"
runtime_dir = "/tmp/a"
socket_mode = "0666"
[peers]
list = ["127.0.0.1:1", "[::1]:2"]
time_scale = 2
[transport]
kind = "emulated"
[transport.tcp]
zero_copy = "never"
[transport.emulated]
drop = 0.25
latency_us = 7
[proxy]
threads = 2
cpus = [3, 5]
[limits]
drain_ms = 10
)",
                      "node.toml");
  REQUIRE_MESSAGE(parsed.ok(), parsed.status().text());
  CHECK(parsed->node.name == "a-1.rack_2");
  CHECK(parsed->node.socket == "/tmp/a/mkerneld.sock");
  CHECK(parsed->node.mode_bits() == 0666);
  CHECK(parsed->peers.list == std::vector<std::string>{"127.0.0.1:1", "[::1]:2"});
  CHECK(parsed->peers.time_scale == 2.0);  // a whole number is fine where a number is wanted
  CHECK(parsed->transport.kind == "emulated");
  CHECK(parsed->transport.tcp.zero_copy == "never");
  CHECK(parsed->transport.emulated.drop == 0.25);
  CHECK(parsed->transport.emulated.latency == std::chrono::microseconds(7));
  CHECK(parsed->proxy.cpus == std::vector<std::uint32_t>{3, 5});
  CHECK(parsed->limits.drain == std::chrono::milliseconds(10));
}

TEST_CASE("each mistake is refused with file, line, key, value and limit") {
  struct Row {
    const char* text;
    const char* expected;
  };
  const Row rows[] = {
      {"[proxy]\nthreads = 33", "node.toml:2: proxy.threads = 33: must be a whole number from 1 to 32"},
      {"[proxy]\nthreads = 0", "node.toml:2: proxy.threads = 0: must be a whole number from 1 to 32"},
      {"[proxy]\nthreads = -1", "node.toml:2: proxy.threads = -1: must be"},
      {"[proxy]\nthreads = \"two\"", "node.toml:2: proxy.threads = \"two\": must be a whole number"},
      {"[proxy]\nthreads = 1.5", "node.toml:2: proxy.threads = 1.5: must be a whole number"},
      {"\n[proxy]\nring_slots = 1000",
       "node.toml:3: proxy.ring_slots = 1000: must be a power of two from 64"},
      {"[proxy]\ncpus = [1, \"b\"]", "node.toml:2: proxy.cpus = [1, \"b\"]: must be a list of CPU numbers"},
      {"[topology]\nnics = [\"mlx5_0:x\"]",
       "node.toml:2: topology.nics = [\"mlx5_0:x\"]: must be a list of \"device\" or \"device:port\""},
      {"[proxy]\ncpus = [1, 2, 3]", "node.toml:2: proxy.cpus: 3 CPUs for 1 proxy threads"},
      {"[proxy]\nthreats = 2", "node.toml:2: proxy.threats: unknown key (did you mean proxy.threads?)"},
      {"frobnicate = 1", "node.toml:1: frobnicate: unknown key"},
      {"[proxies]\nthreads = 1", "node.toml:1: [proxies]: unknown section"},
      {"proxy = 3", "node.toml:1: proxy: is a section, not a key"},
      {"[transport.kind]\na = 1", "node.toml:1: transport.kind: is a key, not a section"},
      {"[transport]\nkind = \"udp\"",
       "node.toml:2: transport.kind = \"udp\": must be one of \"tcp\" \"emulated\" \"verbs\" \"efa\""},
      {"[transport.verbs]\ntimeout = 0",
       "node.toml:2: transport.verbs.timeout = 0: must be a whole number from 1"},
      {"[transport.emulated]\ndrop = 1.5",
       "node.toml:2: transport.emulated.drop = 1.5: must be a number from"},
      {"[transport.emulated]\ndrop = nan", "node.toml:2: transport.emulated.drop = nan: must be"},
      {"[transport.tcp]\nzero_copy = 1", "node.toml:2: transport.tcp.zero_copy = 1: must be one of"},
      {"[peers]\nopen = 1", "node.toml:2: peers.open = 1: must be true or false"},
      {"[peers]\nlist = [\"127.evil.example:7600\"]",
       "node.toml:2: peers.list = \"127.evil.example:7600\": plain text outside"},
      {"[peers]\ninsecure = 1", "node.toml:2: peers.insecure = 1: must be true or false"},
      {"[transport.tcp]\nport = 70000", "node.toml:2: transport.tcp.port = 70000: must be a whole number"},
      {"[transport.tcp]\nport = 65535\n[proxy]\nthreads = 2",
       "node.toml:2: transport.tcp.port = 65535: rail 1"},
      {"[transport.tcp]\nbind = \"10.0.0.1\"",
       "node.toml:2: transport.tcp.bind = \"10.0.0.1\": puts would leave loopback in clear text"},
      {"[transport.tcp]\nbind = \"0.0.0.0\"\n[peers]\ninsecure = true", "set transport.tcp.insecure = true"},
      {"[transport.tcp]\nbind = \"::\"\n[peers.tls]\ncert = \"/c\"\nkey = \"/k\"\nca = \"/a\"",
       "set transport.tcp.insecure = true"},
      {"[transport.tcp]\nbind = \"127.evil.example\"",
       "node.toml:2: transport.tcp.bind = \"127.evil.example\": must be a numeric IPv4 or IPv6 address"},
      {"[transport.tcp]\ninsecure = \"yes\"",
       "node.toml:2: transport.tcp.insecure = \"yes\": must be true or"},
      {"[peers]\nlist = [\"10.0.0.2:7600\"]\n[transport.tcp]\ninsecure = true",
       "node.toml:2: peers.list = \"10.0.0.2:7600\": plain text outside"},
      {"[peers]\nlist = [\"nohost\"]",
       "node.toml:2: peers.list = [\"nohost\"]: must be a list of \"host:port\""},
      {"[peers]\nlist = [\"127.0.0.1:0\"]",
       "node.toml:2: peers.list = [\"127.0.0.1:0\"]: must be a list of \"host:port\" with ports from 1"},
      {"[peers]\nadvertise = \"127.0.0.1:0\"", "node.toml:2: peers.advertise = \"127.0.0.1:0\": must be"},
      {"[peers]\ndns = \"localhost:0\"", "node.toml:2: peers.dns = \"localhost:0\": must be"},
      {"[node]\nruntime_dir = \"~/mk\"",
       "node.toml:2: node.runtime_dir = \"~/mk\": must be an absolute path"},
      {"[node]\nruntime_dir = \"\"", "node.toml:2: node.runtime_dir = \"\": must be an absolute path"},
      {"[node]\nsocket = \"mk.sock\"", "node.toml:2: node.socket = \"mk.sock\": must be an absolute path"},
      {"[control]\nsocket = \"./c.sock\"",
       "node.toml:2: control.socket = \"./c.sock\": must be an absolute path"},
      {"[peers.tls]\ncert = \"$HOME/c\"",
       "node.toml:2: peers.tls.cert = \"$HOME/c\": must be an absolute path"},
      {"[peers.tls]\nkey = \"k\"", "node.toml:2: peers.tls.key = \"k\": must be an absolute path"},
      {"[peers.tls]\nca = \"ca\"", "node.toml:2: peers.tls.ca = \"ca\": must be an absolute path"},
      {"[peers]\nlist = \"a:1\"", "node.toml:2: peers.list = \"a:1\": must be a list"},
      {"[peers]\nlisten = \"127.0.0.1:99999\"", "node.toml:2: peers.listen"},
      {"[peers]\nlisten = \"0.0.0.0:7600\"",
       "node.toml:2: peers.listen = \"0.0.0.0:7600\": plain text outside"},
      {"[peers]\nlist = [\"10.0.0.2:7600\"]",
       "node.toml:2: peers.list = \"10.0.0.2:7600\": plain text outside"},
      {"[peers]\nlist = [\"127.0.0.1:1\"]\ndns = \"localhost:1\"",
       "node.toml:3: peers.dns: peers.list is set"},
      {"[node]\nname = \"mk\"\n[peers.tls]\ncert = \"/c\"\nkey = \"/k\"\nca = \"/a\"\nserver_name = \"mk\"",
       "node.toml:2: node.name = \"mk\": is peers.tls.server_name, which every node's certificate carries"},
      {"[peers.tls]\ncert = \"/c\"", "node.toml: peers.tls.key: missing: cert, key and ca come together"},
      {"[node]\nname = \"a b\"", "node.toml:2: node.name = \"a b\": must be at most 55 letters"},
      {"[node]\nsocket_mode = \"660x\"", "node.toml:2: node.socket_mode"},
      {"[node]\nsocket_mode = 660", "node.toml:2: node.socket_mode = 660: must be permission bits in octal"},
      {"[node]\nsocket = \"/s\"\n[control]\nsocket = \"/s\"",
       "node.toml:4: control.socket = \"/s\": is node.socket"},
      {"[log]\nlevel = \"loud\"", "node.toml:2: log.level = \"loud\": must be one of"},
      {"[node]\nname = \"a\"\nname = \"b\"", "node.toml:3: not TOML: "},
      {"[node\n", "node.toml:1: not TOML: "},
      {"[limits]\ndrain_ms = 99999999999999999999", "node.toml:2: not TOML: "},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    const std::string found = mistakes_in(row.text);
    CHECK_MESSAGE(contains(found, row.expected), found);
  }
}

TEST_CASE("a socket path that no Unix socket can have is refused") {
  const std::string found = mistakes_in("[node]\nruntime_dir = \"/" + std::string(120, 'd') + "\"");
  CHECK(contains(found, "a Unix socket's path has at most 107"));
}

TEST_CASE("all mistakes are reported at once, in the order of the file") {
  const std::string found = mistakes_in("[proxy]\nthreads = 99\n[log]\nlevel = 1\n[nope]\n");
  auto first = found.find("node.toml:2: proxy.threads");
  auto second = found.find("node.toml:4: log.level");
  const auto third = found.find("node.toml:5: [nope]");
  REQUIRE(first != std::string::npos);
  REQUIRE(second != std::string::npos);
  REQUIRE(third != std::string::npos);
  CHECK(first < second);
  CHECK(second < third);
}

TEST_CASE("plain text leaves loopback only with TLS or when the file says insecure") {
  CHECK(parse("[peers]\nlisten = \"0.0.0.0:7600\"\ninsecure = true", "f").ok());
  CHECK(
      parse("[peers]\nlisten = \"0.0.0.0:7600\"\n[peers.tls]\ncert = \"/c\"\nkey = \"/k\"\nca = \"/a\"", "f")
          .ok());
  CHECK(parse("[peers]\nlisten = \"localhost:0\"\nlist = [\"127.1.2.3:5\", \"[::1]:6\"]", "f").ok());
}

TEST_CASE("loopback is an address, or the one name that is pinned to it") {
  for (const char* host : {"127.0.0.1", "127.255.255.254", "::1", "::ffff:127.0.0.1", "localhost"}) {
    CHECK_MESSAGE(is_loopback(host), host);
  }
  for (const char* host : {"127.evil.example", "127.1", "127.0.0.1.nip.io", "0x7f000001", "::2",
                           "::ffff:10.0.0.1", "LOCALHOST.example", "128.0.0.1", "0.0.0.0", ""}) {
    CHECK_MESSAGE(!is_loopback(host), host);
  }
  CHECK(pinned("localhost:7600") == "127.0.0.1:7600");
  CHECK(pinned("[::1]:7600") == "[::1]:7600");
  CHECK(pinned("localhost.example:7600") == "localhost.example:7600");
}

TEST_CASE("puts leave loopback in clear text only when the file says so, and only where they would") {
  CHECK(parse("[transport.tcp]\nbind = \"10.0.0.1\"\ninsecure = true", "f").ok());
  CHECK(parse("[transport.tcp]\nbind = \"127.9.9.9\"", "f").ok());
  CHECK(parse("[transport.tcp]\nbind = \"::1\"", "f").ok());
  CHECK(parse("[transport]\nkind = \"emulated\"\n[transport.tcp]\nbind = \"10.0.0.1\"", "f").ok());
}

TEST_CASE("what dump prints reads back as the same configuration and names each origin") {
  auto first = parse("[node]\nname = \"q\"\n[proxy]\nspin_us = 9\n[transport.emulated]\ndrop = 0.001\n", "f");
  REQUIRE(first.ok());
  const std::string text = dump(*first);
  CHECK(contains(text, "spin_us = 9  # f:4\n"));
  CHECK(contains(text, "nap_us = 50  # default\n"));
  auto second = parse(text, "dump");
  REQUIRE_MESSAGE(second.ok(), second.status().text());
  for (const Key& key : keys()) {
    CAPTURE(key.name);
    CHECK(key.get(*first) == key.get(*second));
  }
}

TEST_CASE("a reload takes over what can change and says what needs a restart") {
  auto running = parse("[node]\nname = \"a\"\n[log]\nlevel = \"info\"\n", "f");
  auto fresh = parse("[node]\nname = \"b\"\n[log]\nlevel = \"debug\"\n[limits]\nmax_sessions = 3\n", "f");
  REQUIRE(running.ok());
  REQUIRE(fresh.ok());
  const Reload result = reload(*running, *fresh);
  CHECK(result.config.node.name == "a");
  CHECK(result.config.log.level == "debug");
  CHECK(result.config.limits.max_sessions == 3);
  CHECK(result.config.lines.at("limits.max_sessions") == 6);
  CHECK(result.applied ==
        std::vector<std::string>{"limits.max_sessions: 256 -> 3", "log.level: \"info\" -> \"debug\""});
  CHECK(result.needs_restart == std::vector<std::string>{"node.name: \"a\" -> \"b\""});
}

TEST_CASE("a table of [users] is a user, a uid or a group of this machine, and its keys are checked") {
  const auto parsed = parse(R"([users.default]
weight = 2
max_regions = 7
[users.root]
max_sessions = 5
[users."@root"]
weight = 3
[users.4711]
may_connect = false
)",
                            "node.toml");
  REQUIRE_MESSAGE(parsed.ok(), parsed.status().text());
  CHECK(parsed->users.standard.weight == 2);
  CHECK(parsed->users.named.at("root").id == 0);
  CHECK_FALSE(parsed->users.named.at("root").group);
  CHECK(parsed->users.named.at("@root").group);
  CHECK(parsed->users.named.at("4711").id == 4711);
  CHECK_FALSE(parsed->users.named.at("4711").limits.may_connect);

  const std::string found = mistakes_in(R"([users.nobody-of-this-name]
[users."@no-such-group"]
[users.4711]
wieght = 1
[users.root]
weight = 0
max_fds = "many"
[users]
alice = 3
)");
  for (const char* expected :
       {"node.toml:1: [users.\"nobody-of-this-name\"]: is no user of this machine, no number and not",
        "node.toml:2: [users.\"@no-such-group\"]: is no group of this machine",
        "node.toml:4: users.4711.wieght: unknown key (did you mean the key of users.default.weight?)",
        "node.toml:6: users.root.weight = 0: must be a whole number from 1",
        "node.toml:7: users.root.max_fds = \"many\": must be a whole number from 8",
        "node.toml:9: users.alice: unknown key"}) {
    CHECK_MESSAGE(contains(found, expected), found);
  }
}

TEST_CASE(
    "a user's own table counts before his groups', of these the most generous value, each key by itself") {
  const auto parsed = parse(R"([users.default]
may_connect = false
max_regions = 10
bytes_per_second = 100
[users."@1"]
may_connect = true
max_regions = 20
max_fds = 9
[users."@2"]
max_regions = 15
bytes_per_second = 0
[users.77]
max_regions = 5
)",
                            "f");
  REQUIRE_MESSAGE(parsed.ok(), parsed.status().text());
  const UserRights stranger = rights_of(parsed->users, 5, {9});
  CHECK_FALSE(stranger.limits.may_connect);
  CHECK(stranger.limits.max_regions == 10);
  CHECK(stranger.key("max_regions") == "users.default.max_regions");
  const UserRights member = rights_of(parsed->users, 5, {2, 1});
  CHECK(member.limits.may_connect);
  CHECK(member.limits.max_regions == 20);
  CHECK(member.key("max_regions") == "users.@1.max_regions");
  CHECK(member.limits.max_fds == 9);
  CHECK(member.limits.bytes_per_second == 0);  // no limit is more than any
  CHECK(rights_of(parsed->users, 5, {2}).limits.max_regions == 15);
  const UserRights own = rights_of(parsed->users, 77, {1});
  CHECK(own.limits.max_regions == 5);
  CHECK(own.key("max_regions") == "users.77.max_regions");
  CHECK(own.limits.may_connect);
}

TEST_CASE("tables of [users] are dumped with their origin, and reloaded whole") {
  auto first = parse("[users.4711]\nmax_fds = 99\n[users.\"@5\"]\nweight = 2\n", "f");
  REQUIRE(first.ok());
  const std::string text = dump(*first);
  CHECK(contains(text, "[users.\"4711\"]\nmax_fds = 99  # f:2\n"));
  auto second = parse(text, "dump");
  REQUIRE_MESSAGE(second.ok(), second.status().text());
  CHECK(second->users.named.at("4711").limits.max_fds == 99);
  CHECK(second->users.named.at("@5").limits.weight == 2);

  auto fresh = parse("[users.default]\nmax_fds = 50\n[users.4711]\nmax_fds = 98\nweight = 4\n", "f");
  REQUIRE(fresh.ok());
  const Reload result = reload(*first, *fresh);
  CHECK(result.applied ==
        std::vector<std::string>{"users.default.max_fds: 16384 -> 50", "users.4711.weight: (not set) -> 4",
                                 "users.4711.max_fds: 99 -> 98", "users.@5.weight: 2 -> (not set)"});
  CHECK(result.config.users.named.count("@5") == 0);
  CHECK(result.config.users.named.at("4711").limits.weight == 4);
  CHECK(result.needs_restart.empty());
}

TEST_CASE("limits of 0 bytes follow the machine's memory") {
  const auto parsed = parse("", "");
  REQUIRE(parsed.ok());
  CHECK(parsed->limits.pinned_limit() > std::uint64_t{64} << 20);
  CHECK(parsed->limits.region_limit() == parsed->limits.pinned_limit() / 2);
  CHECK(parsed->users.standard.pinned_limit() == parsed->limits.pinned_limit());
  CHECK(parse("[limits]\nmax_region_bytes = 4096", "f")->limits.region_limit() == 4096);
}

TEST_CASE("config/mkerneld.toml holds every key at its default") {
  auto documented = load((kRoot / "config/mkerneld.toml").string());
  REQUIRE_MESSAGE(documented.ok(), documented.status().text());
  auto defaults = parse("", "");
  for (const Key& key : keys()) {
    CAPTURE(key.name);
    CHECK_MESSAGE(documented->lines.count(key.name) == 1, "not documented");
    CHECK(key.get(*documented) == key.get(*defaults));
  }
}

TEST_CASE("every example is a valid configuration") {
  int count = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(kRoot / "config/examples")) {
    if (entry.path().extension() != ".toml") continue;
    auto loaded = load(entry.path().string());
    CHECK_MESSAGE(loaded.ok(), loaded.status().text());
    ++count;
  }
  CHECK(count >= 3);
}

TEST_CASE("a file that cannot be read is named with the reason") {
  auto loaded = load("/nonexistent/mkerneld.toml");
  REQUIRE_FALSE(loaded.ok());
  CHECK(loaded.status().code() == StatusCode::kNotFound);
  CHECK(contains(loaded.status().text(), "/nonexistent/mkerneld.toml: cannot be read: No such file"));
}

TEST_CASE("host:port in all its spellings") {
  std::string host;
  std::uint16_t port = 0;
  CHECK(split_host_port("node-1.example:7600", host, port));
  CHECK(host == "node-1.example");
  CHECK(port == 7600);
  CHECK(split_host_port("[fe80::1]:1", host, port));
  CHECK(host == "fe80::1");
  for (const char* wrong : {"", ":", ":1", "a", "a:", "a:b", "a:70000", "::1:5", "[]:5", "a b:1", "a:1x"}) {
    CAPTURE(wrong);
    CHECK_FALSE(split_host_port(wrong, host, port));
  }
}

}  // namespace
}  // namespace mkernel::config
