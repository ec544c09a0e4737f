#include "tools/mkbench/fabric_command.h"

#include <chrono>
#include <iostream>
#include <string>
#include <vector>

#include "tools/mkbench/fabric.h"
#include "tools/mkbench/report.h"

namespace mkernel::bench {
namespace {

struct FabricOptions {
  std::string transport = "tcp";
  std::vector<std::uint32_t> sizes{64, 4096, 65536, 262144, 1 << 20, 4 << 20};
  int seconds = 2;
  std::string json;
};

Status run(const FabricOptions& o) {
  const auto measure = o.transport == "tcp" ? measure_fabric_tcp : measure_fabric_emulated;
  auto rows = measure(o.sizes, std::chrono::seconds(o.seconds));
  if (!rows.ok()) return rows.status();

  std::vector<std::vector<std::string>> table{
      {"transport", "put", "GB/s", "latency p50 us", "puts", "payload"}};
  nlohmann::json json = nlohmann::json::array();
  bool verified = true;
  for (const FabricRow& row : *rows) {
    table.push_back({row.transport, human_bytes(row.bytes), fixed(row.gbytes_per_second, 3),
                     fixed(row.latency_p50_us, 1), std::to_string(row.puts),
                     row.verified ? "verified" : "WRONG"});
    json.push_back({{"transport", row.transport},
                    {"bytes", row.bytes},
                    {"gbytes_per_second", row.gbytes_per_second},
                    {"latency_p50_us", row.latency_p50_us},
                    {"puts", row.puts},
                    {"verified", row.verified}});
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
  CLI::App* fabric =
      app.add_subcommand("fabric", "put latency and bandwidth by size; every payload is verified");
  fabric->add_option("--transport", o->transport)
      ->check(CLI::IsMember({"tcp", "emulated"}))
      ->capture_default_str();
  fabric->add_option("--sizes", o->sizes, "bytes of a put")
      ->delimiter(',')
      ->check(CLI::Range(1U, 1U << 30))
      ->capture_default_str();
  fabric->add_option("--seconds", o->seconds, "of each size")
      ->check(CLI::Range(1, 3600))
      ->capture_default_str();
  fabric->add_option("--json", o->json, "record in this file");
  fabric->callback([o, &status] {
    const Status outcome = run(*o);
    if (outcome.ok()) return;
    std::cerr << "mkbench: " << outcome.to_string() << "\n";
    status = 1;
  });
}

}  // namespace mkernel::bench
