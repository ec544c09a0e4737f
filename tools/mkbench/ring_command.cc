#include "tools/mkbench/ring_command.h"

#include <mkernel/client.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <string>
#include <vector>

#include "tools/mkbench/report.h"
#include "tools/mkbench/ring_cuda.h"
#include "tools/mkbench/ring_null.h"

namespace mkernel::bench {
namespace {

struct RingOptions {
  std::string daemon;
  int seconds = 3;
  int repetitions = 5;
  int writers = 1;
  std::uint64_t echoes = 100000;
  std::string json;
  std::string executor = "cpu";
  int device = 0;
  std::vector<std::uint32_t> ctas = {1, 8, 32, 128};
  std::uint32_t threads = 32;
  std::uint64_t requests = 8'000'000;
};

Status measure_rate(const RingOptions& o, nlohmann::json& rows) {
  std::vector<double> rates;
  for (int i = 0; i < o.repetitions; ++i) {
    auto rate = measure_ring_null(std::chrono::seconds(o.seconds), o.writers);
    if (!rate.ok()) return rate.status();
    rates.push_back(rate->requests_per_second / 1e6);
  }
  print_table(std::cout, {{"ring into a null transport", "Mreq/s", "spread"},
                          {std::to_string(o.writers) + " writer thread(s), one proxy thread",
                           fixed(median(rates), 2), fixed(100 * spread(rates), 0) + " %"}});
  rows.push_back({{"what", "requests"},
                  {"writers", o.writers},
                  {"mrequests_per_second", median(rates)},
                  {"spread", spread(rates)},
                  {"repetitions", o.repetitions},
                  {"verified", true}});
  return {};
}

/// One bare signal from this rank to itself at a time: written to the ring, checked and delivered by the
/// daemon's proxy, seen again as an arrival count.
Result<std::vector<double>> echo_microseconds(Group& group, std::uint64_t count) {
  auto lane = group.reserve_lanes(1);
  if (!lane.ok()) return lane.status();
  const Activity active = group.keep_active();
  std::vector<double> took;
  took.reserve(count);
  for (std::uint64_t i = 0; i < count + count / 10; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    auto number = group.signal(group.rank(), *lane);
    if (!number.ok()) return number.status();
    while (group.arrivals(group.rank(), *lane) < *number) {
      if (std::chrono::steady_clock::now() - begin > std::chrono::seconds(5)) {
        return Status(StatusCode::kDeadlineExceeded,
                      "no echo of signal " + std::to_string(*number) + " within 5 s");
      }
    }
    const std::chrono::duration<double, std::micro> trip = std::chrono::steady_clock::now() - begin;
    if (i >= count / 10) took.push_back(trip.count());
  }
  std::sort(took.begin(), took.end());
  return took;
}

Result<Group> join_alone(const RingOptions& o, int device) {
  auto session = Session::connect({.socket = o.daemon, .name = "mkbench ring", .device = device});
  if (!session.ok()) return session.status();
  return session->join({.name = "mkbench-ring-" + std::to_string(getpid()), .world_size = 1, .rank = 0});
}

/// `took`: microseconds, sorted. Returns the row for people.
std::vector<std::string> add_echo(const std::string& who, const std::vector<double>& took, nlohmann::json row,
                                  nlohmann::json& rows) {
  const auto at = [&](double part) {
    return took[static_cast<std::size_t>(part * static_cast<double>(took.size() - 1))];
  };
  row.update({{"what", "echo"},
              {"echoes", took.size()},
              {"p50_us", at(0.5)},
              {"p90_us", at(0.9)},
              {"p99_us", at(0.99)},
              {"max_us", at(1)}});
  rows.push_back(row);
  return {who, fixed(at(0.5), 2), fixed(at(0.9), 2), fixed(at(0.99), 2), fixed(at(1), 0)};
}

const std::vector<std::string> kEchoHeading = {"echo through the daemon", "p50 us", "p90 us", "p99 us",
                                               "max us"};

Status measure_echo(const RingOptions& o, nlohmann::json& rows) {
  auto group = join_alone(o, -1);
  if (!group.ok()) return group.status();
  auto took = echo_microseconds(*group, o.echoes);
  if (!took.ok()) return took.status();
  const auto row =
      add_echo(std::to_string(o.echoes) + " signals, one at a time", *took, nlohmann::json::object(), rows);
  print_table(std::cout, {kEchoHeading, row});
  return {};
}

Status measure_gpu_echo(const RingOptions& o, Group& group, nlohmann::json& rows) {
  std::vector<std::vector<std::string>> table{kEchoHeading};
  for (const bool busy : {false, true}) {
    auto took = echo_from_gpu(group, o.device, o.echoes, busy);
    if (!took.ok()) return took.status();
    const nlohmann::json row = {
        {"executor", "cuda"}, {"gpu", name_of_gpu(o.device)}, {"other_sms_busy", busy}};
    table.push_back(
        add_echo(busy ? "from a kernel, all other SMs busy" : "from a kernel alone", *took, row, rows));
  }
  print_table(std::cout, table);
  return {};
}

Status measure_gpu_rate(const RingOptions& o, Group& group, nlohmann::json& rows) {
  std::vector<std::vector<std::string>> table{
      {"ring written by a kernel, through the daemon", "Mreq/s", "spread", "proxies"}};
  for (const std::uint32_t ctas : o.ctas) {
    const std::uint64_t each = std::max<std::uint64_t>(o.requests / (std::uint64_t{ctas} * o.threads), 1);
    std::vector<double> rates;
    std::uint32_t rings = 0;
    for (int i = 0; i < o.repetitions; ++i) {
      auto rate = signals_from_gpu(group, o.device, ctas, o.threads, each);
      if (!rate.ok()) return rate.status();
      rates.push_back(rate->requests_per_second / 1e6);
      rings = rate->rings;
    }
    table.push_back({std::to_string(ctas) + " CTAs of " + std::to_string(o.threads) + " threads",
                     fixed(median(rates), 2), fixed(100 * spread(rates), 0) + " %", std::to_string(rings)});
    rows.push_back({{"what", "requests"},
                    {"executor", "cuda"},
                    {"gpu", name_of_gpu(o.device)},
                    {"ctas", ctas},
                    {"threads", o.threads},
                    {"proxies", rings},
                    {"mrequests_per_second", median(rates)},
                    {"spread", spread(rates)},
                    {"repetitions", o.repetitions},
                    {"verified", true}});
  }
  print_table(std::cout, table);
  return {};
}

Status measure_gpu(const RingOptions& o, nlohmann::json& rows) {
  if (o.daemon.empty()) {
    return {StatusCode::kInvalidArgument,
            "--executor cuda measures through a running daemon: name its session socket with --daemon"};
  }
  auto group = join_alone(o, o.device);
  if (!group.ok()) return group.status();
  MK_RETURN_IF_ERROR(measure_gpu_echo(o, *group, rows));
  return measure_gpu_rate(o, *group, rows);
}

Status measure_cpu(const RingOptions& o, nlohmann::json& rows) {
  MK_RETURN_IF_ERROR(measure_rate(o, rows));
  return o.daemon.empty() ? Status() : measure_echo(o, rows);
}

Status run(const RingOptions& o) {
  nlohmann::json rows = nlohmann::json::array();
  MK_RETURN_IF_ERROR(o.executor == "cuda" ? measure_gpu(o, rows) : measure_cpu(o, rows));
  if (!o.json.empty() && !record(o.json, "ring", rows))
    return {StatusCode::kInternal, "results were not recorded"};
  return {};
}

}  // namespace

void add_ring(CLI::App& app, int& status) {
  auto o = std::make_shared<RingOptions>();
  CLI::App* ring =
      app.add_subcommand("ring", "requests per second of one proxy thread; echo latency with --daemon");
  ring->add_option("--daemon", o->daemon,
                   "session socket of a running daemon: also measure the echo through it");
  ring->add_option("--seconds", o->seconds, "of each repetition")
      ->check(CLI::Range(1, 3600))
      ->capture_default_str();
  ring->add_option("--repetitions", o->repetitions)->check(CLI::Range(1, 1000))->capture_default_str();
  ring->add_option("--writers", o->writers, "threads that write the ring")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  ring->add_option("--echoes", o->echoes)->check(CLI::Range(10, 100000000))->capture_default_str();
  ring->add_option("--json", o->json, "record in this file");
  ring->add_option("--executor", o->executor, "who writes the ring; cuda: echo and rate through --daemon")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  ring->add_option("--device", o->device, "cuda: the GPU")->capture_default_str();
  ring->add_option("--ctas", o->ctas, "cuda: CTAs that write, repeatable")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  ring->add_option("--threads", o->threads, "cuda: of each CTA, a multiple of 32")
      ->check(CLI::Range(32, 1024))
      ->capture_default_str();
  ring->add_option("--requests", o->requests, "cuda: of each repetition")
      ->check(CLI::Range(1000, 1000000000))
      ->capture_default_str();
  ring->callback([o, &status] {
    const Status outcome = run(*o);
    if (outcome.ok()) return;
    std::cerr << "mkbench: " << outcome.to_string() << "\n";
    status = 1;
  });
}

}  // namespace mkernel::bench
