// `mkbench fabric` over the verbs transport and fake NICs, and what it makes of perftest's output.
#include "tools/mkbench/fabric.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/support/fake_nic/fabric.h"
#include "tests/support/free_port.h"
#include "tests/support/verbs_port.h"
#include "tools/mkbench/fabric_pipe.h"
#include "tools/mkbench/perftest.h"

namespace mkernel::bench {
namespace {

/// Each end a host of its own with one device.
MakeTransport verbs_over(test::nic::Fabric& fabric) {
  return [&fabric](const transport::TransportOptions& base) {
    const std::string& host = base.identity.node;
    transport::VerbsOptions options;
    options.base = base;
    options.verbs = fabric.verbs(host);
    options.ports = {test::roce_port("nic-" + host, options.verbs)};
    return transport::make_verbs(options);
  };
}

TEST_CASE("every size is measured and verified, and nothing is left behind") {
  test::nic::Fabric fabric;
  for (const char* host : {"sender", "receiver"}) {
    fabric.add_device(host, {.name = std::string("nic-") + host});
  }
  const auto rows = measure_fabric(verbs_over(fabric), {8, 4096, 1 << 20}, std::chrono::seconds(1));
  REQUIRE_MESSAGE(rows.ok(), rows.status().text());
  REQUIRE(rows.value().size() == 3);
  for (const FabricRow& row : rows.value()) {
    CHECK(row.transport == "verbs");
    CHECK(row.verified);
    CHECK(row.puts > 0);
    CHECK(row.gbytes_per_second > 0);
    CHECK(row.latency_p50_us > 0);
    CHECK(row.half_round_trip_p50_us > 0);
  }
  CHECK(fabric.complaints().empty());
}

TEST_CASE("a receiving end that cannot make its transport is an error with its reason at the sending one") {
  test::nic::Fabric fabric;
  fabric.add_device("sender", {.name = "nic-sender"});
  fabric.add_device("receiver", {.name = "nic-receiver", .open_error = EACCES});
  const auto make = verbs_over(fabric);
  const MakeTransport half =
      [&](const transport::TransportOptions& base) -> Result<std::unique_ptr<transport::Transport>> {
    if (base.identity.node == "receiver")
      return Status(StatusCode::kPermissionDenied, "nic-receiver is shut");
    return make(base);
  };
  const auto rows = measure_fabric(half, {8}, std::chrono::seconds(1));
  CHECK_FALSE(rows.ok());
  CHECK(rows.status().text().find("nic-receiver is shut") != std::string::npos);
}

TEST_CASE("two ends that met over TCP") {
  test::nic::Fabric fabric;
  for (const char* host : {"sender", "receiver"}) {
    fabric.add_device(host, {.name = std::string("nic-") + host});
  }
  const auto make = verbs_over(fabric);
  const std::uint16_t port = test::free_port();
  Status served(StatusCode::kUnknown, "not served");
  std::thread other([&] {
    auto pipe = Pipe::accept_on(port);
    served = pipe.ok() ? serve_fabric(*pipe, make) : pipe.status();
  });
  {
    auto pipe = Pipe::dial("localhost:" + std::to_string(port));
    REQUIRE_MESSAGE(pipe.ok(), pipe.status().text());
    CHECK_FALSE(pipe->other_host().empty());
    const auto rows = measure_fabric(*pipe, make, {64}, std::chrono::seconds(1));
    REQUIRE_MESSAGE(rows.ok(), rows.status().text());
    CHECK(rows.value().front().verified);
    const auto refused = pipe->ask({{"do", "perftest"}, {"program", "ib_write_lat"}, {"bytes", 8}});
    REQUIRE(refused.ok());
    CHECK(refused.value().at("error") == "this transport has no device");
  }
  other.join();
  CHECK_MESSAGE(served.ok(), served.text());
}

TEST_CASE("perftest's tables are read, and nothing else") {
  const std::string latency =
      " local address: LID 0000 QPN 0x0011 PSN 0xabc\n"
      " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]\n"
      " 8       1000          0.91           7.03         0.96                0.97            0.10\n";
  CHECK(*read_perftest("ib_write_lat", latency, 8) == doctest::Approx(0.96));
  CHECK_FALSE(read_perftest("ib_write_lat", latency, 16).has_value());
  CHECK_FALSE(read_perftest("ib_write_lat", "16 1000 0.9 7.0 inf inf 0.1", 16).has_value());
  const std::string bandwidth =
      " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
      " 65536      100000           0.00               392.16              0.747995\n";
  CHECK(*read_perftest("ib_write_bw", bandwidth, 65536) == doctest::Approx(49.02));
  CHECK_FALSE(read_perftest("ib_write_bw", "65536 some words here", 65536).has_value());
  CHECK_FALSE(read_perftest("ls", latency, 8).has_value());
}

/// Programs of that name come first on the path while it lives.
struct FakePrograms {
  FakePrograms() {
    char name[] = "/tmp/mkernel-perftest-XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    folder = name;
    ::setenv("PATH", (folder.string() + ":" + kUsual).c_str(), 1);
  }
  ~FakePrograms() {
    ::setenv("PATH", kUsual, 1);
    std::filesystem::remove_all(folder);
  }
  void add(const std::string& program, const std::string& script) const {
    std::ofstream(folder / program) << "#!/bin/sh\n" << script << "\n";
    ::chmod((folder / program).c_str(), 0755);
  }
  static constexpr const char* kUsual = "/usr/local/bin:/usr/bin:/bin";
  std::filesystem::path folder;
};

TEST_CASE("the programs are told device, port, GID, size and host; what fails is named with its last line") {
  const PerftestDevice device{"mlx5_3", 2, 5};
  const FakePrograms programs;
  programs.add("ib_write_lat", "echo \"$@\" > " + (programs.folder / "told").string() +
                                   "; echo ' 64 1000 1.0 9.0 1.5 1.6 0.1'");
  const auto figure = run_perftest(device, "ib_write_lat", 64, "10.0.0.7", 18599);
  REQUIRE_MESSAGE(figure.ok(), figure.status().text());
  CHECK(figure.value() == doctest::Approx(1.5));
  std::string told;
  std::getline(std::ifstream(programs.folder / "told"), told);
  CHECK(told.find("-d mlx5_3 -i 2 -x 5 -s 64 -p 18599") != std::string::npos);
  CHECK(told.substr(told.size() - 8) == "10.0.0.7");

  programs.add("ib_write_bw", "echo 'Unable to open the device'; exit 1");
  const auto failed = run_perftest(device, "ib_write_bw", 64, "10.0.0.7", 18599);
  CHECK(failed.status().code() == StatusCode::kUnavailable);
  CHECK(failed.status().text().find("Unable to open the device") != std::string::npos);

  programs.add("ib_write_bw", "exec sleep 600");
  const auto server = start_perftest_server(device, "ib_write_bw", 64);
  REQUIRE(server.ok());
  CHECK(server.value().port > 0);
  CHECK(start_perftest_server(device, "rm", 64).status().code() == StatusCode::kInvalidArgument);
}

TEST_CASE("a program that is not installed is named, with its package") {
  const FakePrograms nothing;
  ::setenv("PATH", nothing.folder.c_str(), 1);
  const auto missing = run_perftest({"mlx5_0", 1, 0}, "ib_write_lat", 8, "127.0.0.1", 1);
  CHECK(missing.status().code() == StatusCode::kNotFound);
  CHECK(missing.status().text().find("perftest") != std::string::npos);
}

}  // namespace
}  // namespace mkernel::bench
