#include "tools/mkbench/put_command.h"

#include <mkernel/client.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iostream>
#include <span>
#include <string>
#include <vector>

#include "tools/mkbench/random.h"
#include "tools/mkbench/report.h"

namespace mkernel::bench {
namespace {

constexpr std::uint64_t kRoundBytes = 64 << 20;  ///< of the puts of one round
constexpr std::chrono::milliseconds kPatience{30000};

struct PutOptions {
  std::string daemon = "/run/mkernel/mkerneld.sock";
  std::string group = "mkbench-put";
  std::uint32_t rank = 0;
  std::uint32_t bytes = 1 << 20;
  std::uint64_t slots = 0;
  double seconds = 4;
  std::string json;
};

/// The content of round `round`: rank 0 writes it, rank 1 makes it again to compare.
void fill(std::span<std::byte> memory, std::uint64_t round) {
  for (std::size_t at = 0; at + 8 <= memory.size(); at += 8) {
    const std::uint64_t word = mix(round, at);
    std::memcpy(memory.data() + at, &word, 8);
  }
}

/// The puts of every round: they go through the slots of the buffer in turn, all of one round with the
/// content of that round, so that each slot can be compared when the last has arrived.
struct Round {
  std::uint32_t lane = 0;
  std::uint32_t bytes = 0;  ///< of a put, and of a slot
  std::uint64_t slots = 0;
  std::uint64_t puts = 0;
};

struct Totals {
  std::uint64_t puts = 0;
  double seconds = 0;
  std::uint64_t wrong_rounds = 0;
};

/// One round on rank 0: new content, all puts, until the last is completed. Only that is timed.
Status send_round(Group& group, const SymmetricBuffer& buffer, const Round& shape, std::uint64_t round,
                  Totals& totals) {
  fill({buffer.data(), buffer.bytes()}, round);
  MK_RETURN_IF_ERROR(group.barrier());
  std::uint64_t last = 0;
  const auto begin = std::chrono::steady_clock::now();
  for (std::uint64_t put = 0; put < shape.puts; ++put) {
    const std::uint64_t offset = put % shape.slots * shape.bytes;
    auto number = group.put(1, shape.lane, buffer, offset, buffer.region(), offset, shape.bytes);
    if (!number.ok()) return number.status();
    last = *number;
  }
  MK_RETURN_IF_ERROR(group.wait_completed(1, shape.lane, last, kPatience));
  totals.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  totals.puts += shape.puts;
  return {};
}

/// The same on rank 1: waits for every put, then compares every byte.
Status receive_round(Group& group, const SymmetricBuffer& buffer, const Round& shape, std::uint64_t round,
                     Totals& totals) {
  MK_RETURN_IF_ERROR(group.barrier());
  totals.puts += shape.puts;
  MK_RETURN_IF_ERROR(group.wait_arrival(0, shape.lane, totals.puts, kPatience));
  std::vector<std::byte> expected(buffer.bytes());
  fill(expected, round);
  totals.wrong_rounds += std::memcmp(expected.data(), buffer.data(), expected.size()) != 0 ? 1 : 0;
  return {};
}

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
  const Round shape{*lane, o.bytes, slots, std::max(slots, kRoundBytes / o.bytes)};
  const Activity active = group->keep_active();

  Totals totals, everyone;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(o.seconds);
  for (std::uint64_t round = 1;; ++round) {
    MK_RETURN_IF_ERROR(o.rank == 0 ? send_round(*group, *buffer, shape, round, totals)
                                   : receive_round(*group, *buffer, shape, round, totals));
    // Rank 0's clock decides for both; the exchange also says how rank 1's comparison went.
    const struct {
      bool go_on;
      std::uint64_t wrong;
    } mine{std::chrono::steady_clock::now() < end, totals.wrong_rounds};
    auto all = group->exchange(std::as_bytes(std::span(&mine, 1)));
    if (!all.ok()) return all.status();
    auto theirs = mine;
    std::memcpy(&theirs, (*all)[1].data(), sizeof(theirs));
    everyone.wrong_rounds = theirs.wrong;
    std::memcpy(&theirs, (*all)[0].data(), sizeof(theirs));
    if (!theirs.go_on) break;
  }
  if (o.rank == 0) {
    const double rate = static_cast<double>(totals.puts) * o.bytes / totals.seconds / 1e9;
    const bool verified = everyone.wrong_rounds == 0;
    print_table(std::cout, {{"put through the daemons", "buffer", "GB/s", "puts", "payload"},
                            {human_bytes(o.bytes), human_bytes(buffer->bytes()), fixed(rate, 3),
                             std::to_string(totals.puts), verified ? "verified" : "WRONG"}});
    const nlohmann::json rows{{{"bytes", o.bytes},
                               {"buffer_bytes", buffer->bytes()},
                               {"gbytes_per_second", rate},
                               {"puts", totals.puts},
                               {"verified", verified}}};
    if (!o.json.empty() && !record(o.json, "put", rows))
      return {StatusCode::kInternal, "results were not recorded"};
  }
  if (everyone.wrong_rounds > 0) return {StatusCode::kDataLoss, "a payload arrived changed"};
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
