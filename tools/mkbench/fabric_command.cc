#include "tools/mkbench/fabric_command.h"

#include <chrono>
#include <cstdio>
#include <iostream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tools/mkbench/fabric.h"
#include "tools/mkbench/fabric_pipe.h"
#include "tools/mkbench/fabric_verbs.h"
#include "tools/mkbench/report.h"

namespace mkernel::bench {
namespace {

struct FabricOptions {
  std::string transport = "tcp";
  std::vector<std::uint32_t> sizes{64, 4096, 65536, 262144, 1 << 20, 4 << 20};
  int seconds = 2;
  std::string json;
  std::string device;       ///< verbs
  std::uint16_t serve = 0;  ///< verbs: port to wait on for the sending end
  std::string connect;      ///< verbs: host:port of an end that serves
};

/// What perftest measured at one size.
struct Compared {
  std::optional<double> latency_us, gbytes_per_second;
};

struct Measured {
  std::vector<FabricRow> rows;
  std::vector<Compared> compared;  ///< by row; empty: nothing to compare with
};

/// Both programs at every size; what is missing is said once, and compared with no more.
Result<std::vector<Compared>> compare(Pipe& pipe, const PerftestDevice& device,
                                      const std::vector<std::uint32_t>& sizes) {
  const std::string host = pipe.other_host().empty() ? "127.0.0.1" : pipe.other_host();
  std::vector<Compared> all(sizes.size());
  for (const char* program : {"ib_write_lat", "ib_write_bw"}) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      auto answer = pipe.ask({{"do", "perftest"}, {"program", program}, {"bytes", sizes[i]}});
      if (!answer.ok()) return answer.status();
      std::string trouble = answer->value("error", "");
      if (trouble.empty()) {
        const auto port = static_cast<std::uint16_t>(answer->value("port", 0));
        const auto figure = run_perftest(device, program, sizes[i], host, port);
        const bool latency = std::string(program) == "ib_write_lat";
        if (figure.ok()) (latency ? all[i].latency_us : all[i].gbytes_per_second) = figure.value();
        if (!figure.ok()) trouble = figure.status().text();
      }
      if (trouble.empty()) continue;
      std::cerr << "mkbench: not compared with " << program << ": " << trouble << "\n";
      break;
    }
  }
  return all;
}

Result<Measured> measure_verbs(Pipe& pipe, const VerbsBench& bench, const FabricOptions& o) {
  auto rows = measure_fabric(pipe, bench.make, o.sizes, std::chrono::seconds(o.seconds));
  if (!rows.ok()) return rows.status();
  auto compared = compare(pipe, bench.device, o.sizes);
  if (!compared.ok()) return compared.status();
  return Measured{std::move(*rows), std::move(*compared)};
}

Result<Measured> measure(const FabricOptions& o) {
  if (o.transport != "verbs") {
    const auto both_ends = o.transport == "tcp" ? measure_fabric_tcp : measure_fabric_emulated;
    auto rows = both_ends(o.sizes, std::chrono::seconds(o.seconds));
    if (!rows.ok()) return rows.status();
    return Measured{std::move(*rows), {}};
  }
  auto bench = open_verbs_bench(o.device);
  if (!bench.ok()) return bench.status();
  if (!o.connect.empty()) {
    auto pipe = Pipe::dial(o.connect);
    if (!pipe.ok()) return pipe.status();
    return measure_verbs(*pipe, *bench, o);
  }
  auto both = Pipe::pair();
  if (!both.ok()) return both.status();
  const std::jthread other([&bench, end = std::move(both->second)]() mutable {
    const Status served = serve_fabric(end, bench->make, &bench->device);
    if (!served.ok()) std::cerr << "mkbench: receiving end: " << served.to_string() << "\n";
  });
  Pipe here = std::move(both->first);  // closed before the thread is waited for
  return measure_verbs(here, *bench, o);
}

Status serve(const FabricOptions& o) {
  auto bench = open_verbs_bench(o.device);
  if (!bench.ok()) return bench.status();
  auto pipe = Pipe::accept_on(o.serve);
  if (!pipe.ok()) return pipe.status();
  return serve_fabric(*pipe, bench->make, &bench->device);
}

nlohmann::json json_of(const std::optional<double>& value) {
  return value.has_value() ? nlohmann::json(*value) : nlohmann::json();
}

Status run(const FabricOptions& o) {
  if (o.serve != 0) return serve(o);
  auto measured = measure(o);
  if (!measured.ok()) return measured.status();

  std::vector<std::vector<std::string>> table{
      {"transport", "put", "GB/s", "latency p50 us", "half round trip us", "puts", "payload"}};
  if (!measured->compared.empty()) {
    table[0].insert(table[0].end(), {"ib_write_bw GB/s", "ib_write_lat us"});
  }
  nlohmann::json json = nlohmann::json::array();
  bool verified = true;
  for (std::size_t i = 0; i < measured->rows.size(); ++i) {
    const FabricRow& row = measured->rows[i];
    table.push_back({row.transport, human_bytes(static_cast<double>(row.bytes)),
                     fixed(row.gbytes_per_second, 3), fixed(row.latency_p50_us, 1),
                     fixed(row.half_round_trip_p50_us, 1), std::to_string(row.puts),
                     row.verified ? "verified" : "WRONG"});
    json.push_back({{"transport", row.transport},
                    {"bytes", row.bytes},
                    {"gbytes_per_second", row.gbytes_per_second},
                    {"latency_p50_us", row.latency_p50_us},
                    {"half_round_trip_p50_us", row.half_round_trip_p50_us},
                    {"puts", row.puts},
                    {"verified", row.verified}});
    if (!measured->compared.empty()) {
      const Compared& theirs = measured->compared[i];
      table.back().insert(table.back().end(),
                          {fixed_or_dash(theirs.gbytes_per_second, 3), fixed_or_dash(theirs.latency_us, 1)});
      json.back()["ib_write_bw_gbytes_per_second"] = json_of(theirs.gbytes_per_second);
      json.back()["ib_write_lat_us"] = json_of(theirs.latency_us);
    }
    verified = verified && row.verified;
  }
  print_table(std::cout, table);
  if (!o.json.empty() && !record(o.json, "fabric_" + o.transport, json)) {
    return {StatusCode::kInternal, "results were not recorded"};
  }
  if (!verified) return {StatusCode::kDataLoss, "a payload arrived changed"};
  return {};
}

}  // namespace

void add_fabric(CLI::App& app, int& status) {
  auto o = std::make_shared<FabricOptions>();
  CLI::App* fabric = app.add_subcommand(
      "fabric",
      "put latency and bandwidth by size; every payload is verified. Both ends in this process, "
      "or with verbs on two machines: --serve on one, --connect on the other");
  fabric->add_option("--transport", o->transport, "verbs is compared with perftest where that is installed")
      ->check(CLI::IsMember({"tcp", "emulated", "verbs"}))
      ->capture_default_str();
  fabric->add_option("--sizes", o->sizes, "bytes of a put")
      ->delimiter(',')
      ->check(CLI::Range(1U, 1U << 30))
      ->capture_default_str();
  fabric->add_option("--seconds", o->seconds, "of each size")
      ->check(CLI::Range(1, 3600))
      ->capture_default_str();
  fabric->add_option("--device", o->device,
                     "verbs: \"mlx5_0\" or \"mlx5_0:1\"; default: the first that can be used");
  auto* serve =
      fabric->add_option("--serve", o->serve, "verbs: be the receiving end, for one caller on this TCP port");
  fabric
      ->add_option("--connect", o->connect, "verbs: be the sending end, with the receiving one at host:port")
      ->excludes(serve);
  fabric->add_option("--json", o->json, "record in this file");
  fabric->callback([o, &status] {
    if (o->transport != "verbs" && (o->serve != 0 || !o->connect.empty() || !o->device.empty()))
      throw CLI::ValidationError("--transport", "--device, --serve and --connect are for verbs");
    const Status outcome = run(*o);
    if (outcome.ok()) return;
    std::cerr << "mkbench: " << outcome.to_string() << "\n";
    status = 1;
  });
}

}  // namespace mkernel::bench
