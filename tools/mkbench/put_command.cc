#include "tools/mkbench/put_command.h"

#include <mkernel/client.h>

#include <algorithm>
#include <iostream>
#include <string>

#include "tools/mkbench/put_round.h"
#include "tools/mkbench/report.h"

namespace mkernel::bench {
namespace {

constexpr std::uint64_t kRoundBytes = 64 << 20;  ///< of the puts of one round

struct PutOptions {
  std::string daemon = "/run/mkernel/mkerneld.sock";
  std::string group = "mkbench-put";
  std::uint32_t rank = 0;
  std::uint32_t bytes = 1 << 20;
  std::uint64_t slots = 0;
  double seconds = 4;
  std::string json;
};

Status run(const PutOptions& o) {
  auto session = Session::connect({.socket = o.daemon, .name = "mkbench put"});
  if (!session.ok()) return session.status();
  auto group = session->join({.name = o.group, .world_size = 2, .rank = o.rank});
  if (!group.ok()) return group.status();
  const std::uint64_t slots = o.slots > 0 ? o.slots : kRoundBytes / o.bytes;
  auto buffer = group->symmetric(slots * o.bytes);
  if (!buffer.ok()) return buffer.status();
  auto lane = group->reserve_lanes(1);
  if (!lane.ok()) return lane.status();
  const PutRounds rounds{*lane, o.bytes, slots, std::max(slots, kRoundBytes / o.bytes)};
  const Activity active = group->keep_active();
  auto totals = run_put_rounds(*group, *buffer, rounds, o.seconds);
  if (!totals.ok()) return totals.status();
  if (o.rank == 0) {
    const double rate =
        static_cast<double>(totals->puts) * static_cast<double>(o.bytes) / totals->seconds / 1e9;
    const bool verified = totals->wrong_rounds == 0;
    print_table(std::cout, {{"put through the daemons", "buffer", "GB/s", "puts", "payload"},
                            {human_bytes(o.bytes), human_bytes(buffer->bytes()), fixed(rate, 3),
                             std::to_string(totals->puts), verified ? "verified" : "WRONG"}});
    const nlohmann::json rows{{{"bytes", o.bytes},
                               {"buffer_bytes", buffer->bytes()},
                               {"gbytes_per_second", rate},
                               {"puts", totals->puts},
                               {"verified", verified}}};
    if (!o.json.empty() && !record(o.json, "put", rows))
      return {StatusCode::kInternal, "results were not recorded"};
  }
  if (totals->wrong_rounds > 0) return {StatusCode::kDataLoss, "a payload arrived changed"};
  return {};
}

}  // namespace

void add_put(CLI::App& app, int& status) {
  auto o = std::make_shared<PutOptions>();
  CLI::App* put = app.add_subcommand("put", "put bandwidth through two daemons; run one process per rank");
  put->add_option("--daemon", o->daemon, "session socket of this node's daemon")->capture_default_str();
  put->add_option("--group", o->group, "the same on both ranks")->capture_default_str();
  put->add_option("--rank", o->rank, "0 sends, 1 receives")->required()->check(CLI::Range(0, 1));
  put->add_option("--bytes", o->bytes, "of a put, a multiple of 8")
      ->check(CLI::Range(8U, 64U << 20))
      ->capture_default_str();
  put->add_option("--slots", o->slots,
                  "puts that the buffer has room for: its working set; default: 64 MiB of them")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 20));
  put->add_option("--seconds", o->seconds, "in all, filling and comparing included")->capture_default_str();
  put->add_option("--json", o->json, "rank 0 records in this file");
  put->callback([o, &status] {
    if (o->bytes % 8 != 0) throw CLI::ValidationError("--bytes", "must be a multiple of 8");
    const Status outcome = run(*o);
    if (outcome.ok()) return;
    std::cerr << "mkbench: " << outcome.to_string() << "\n";
    status = 1;
  });
}

}  // namespace mkernel::bench
