#include "tools/mkbench/tenants_command.h"

#include <grp.h>
#include <mkernel/client.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tools/mkbench/program.h"
#include "tools/mkbench/report.h"
#include "tools/mkbench/tenants_attack.h"
#include "tools/mkbench/tenants_bystander.h"
#include "tools/mkbench/tenants_report.h"

namespace mkernel::bench {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::chrono::microseconds kBetweenAnswers{2000};
constexpr std::chrono::seconds kFirstRound{10};  ///< of an attack, before it is measured

struct TenantsOptions {
  AttackOptions attack;
  std::vector<std::string> attacks;
  double seconds = 2;
  int turns = 3;
  double settle = 1;
  std::uint32_t interval_us = 200;
  std::uint32_t put_bytes = 1 << 20;
  std::optional<std::uint32_t> uid;
  int nice = 19;
  std::string json;
};

// ---- the attacker's process

struct AttackerOptions {
  AttackOptions attack;
  std::string name;
  double seconds = 60;
  std::optional<std::uint32_t> uid;
  int nice = 0;
};

/// What it has done so far, one line at a time, for the one who started it.
void tell(std::uint64_t rounds, const std::string& refused) {
  std::cout << nlohmann::json{{"rounds", rounds}, {"refused", refused}}.dump(
                   -1, ' ', false, nlohmann::json::error_handler_t::replace)
            << std::endl;
}

Status become(const AttackerOptions& o) {
  if (o.uid.has_value()) {
    const uid_t uid = *o.uid;
    if (::setgroups(0, nullptr) != 0 || ::setresgid(uid, uid, uid) != 0 || ::setresuid(uid, uid, uid) != 0)
      return {StatusCode::kPermissionDenied,
              "--uid " + std::to_string(uid) + ": only root can become another user"};
  }
  // It ends with the one who started it, and by itself.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::alarm(static_cast<unsigned>(o.seconds) + 60);
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  errno = 0;
  if (::nice(o.nice) == -1 && errno != 0) return {StatusCode::kPermissionDenied, "nice"};
  return {};
}

Status attack(const AttackerOptions& o) {
  MK_RETURN_IF_ERROR(become(o));
  const std::unique_ptr<Attack> attack = attack_of(o.name)->make(o.attack);
  const auto end = SteadyClock::now() + std::chrono::duration<double>(o.seconds);
  auto told = SteadyClock::time_point{};
  std::string refused;
  for (std::uint64_t rounds = 1; SteadyClock::now() < end; ++rounds) {
    if (const Status status = attack->round(); !status.ok()) {
      refused = status.to_string();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    if (SteadyClock::now() - told < std::chrono::milliseconds(100)) continue;
    tell(rounds, refused);
    told = SteadyClock::now();
  }
  return {};
}

/// Of this program, so that its sessions and its threads are not those of the bystander.
Result<Program> start_attacker(const TenantsOptions& o, const std::string& name) {
  std::vector<std::string> command{std::filesystem::read_symlink("/proc/self/exe"), "tenants-attack",
                                   "--attack", name};
  const auto add = [&](const char* option, const std::string& value) {
    command.emplace_back(option);
    command.push_back(value);
  };
  add("--daemon", o.attack.daemon);
  add("--peer-daemon", o.attack.peer_daemon);
  add("--attack-bytes", std::to_string(o.attack.bytes));
  add("--ranks", std::to_string(o.attack.ranks));
  add("--connections", std::to_string(o.attack.connections));
  add("--nice", std::to_string(o.nice));
  add("--seconds", std::to_string(kFirstRound.count() + 6 * o.seconds + 60));
  if (o.uid.has_value()) add("--uid", std::to_string(*o.uid));
  for (const std::string& listener : o.attack.listeners) add("--listener", listener);
  return Program::start_talking(command);
}

// ---- the bystander

PairOptions bystander_options(const TenantsOptions& o) {
  return {.daemon = o.attack.daemon,
          .peer_daemon = o.attack.peer_daemon,
          .name = "bystander-" + std::to_string(::getpid()),
          .buffer_bytes = std::uint64_t{o.put_bytes} * 16};
}

Status measure(const TenantsOptions& o, TenantPair& bystander, TenantSamples& samples) {
  auto signals = bystander.signal_latencies(o.seconds, std::chrono::microseconds(o.interval_us));
  if (!signals.ok()) return signals.status();
  samples.signal_us.insert(samples.signal_us.end(), signals->begin(), signals->end());
  auto answers = bystander.answer_latencies(o.seconds, kBetweenAnswers);
  if (!answers.ok()) return answers.status();
  samples.answer_us.insert(samples.answer_us.end(), answers->begin(), answers->end());
  auto rate = bystander.gbytes_per_second(o.put_bytes, o.seconds);
  if (!rate.ok()) return rate.status();
  samples.gbytes_per_second.push_back(*rate);
  return {};
}

/// What the attacker said last.
void note(const std::vector<std::string>& lines, std::uint64_t& rounds, std::string& refused) {
  for (const std::string& line : lines) {
    const auto said = nlohmann::json::parse(line, nullptr, false);
    if (!said.is_object()) {
      refused = line;  // a word of its own, such as why it could not start
    } else {
      rounds = said.value("rounds", std::uint64_t{0});
      refused = said.value("refused", "");
    }
  }
}

/// One turn: without the attacker, then with it.
Status take_turn(const TenantsOptions& o, TenantPair& bystander, TenantCase& measured) {
  MK_RETURN_IF_ERROR(measure(o, bystander, measured.without));
  auto attacker = start_attacker(o, measured.attack);
  if (!attacker.ok()) return attacker.status();
  std::uint64_t rounds = 0;
  note(attacker->read_lines(kFirstRound), rounds, measured.refused);
  const Status status = measure(o, bystander, measured.with);
  note(attacker->read_lines(std::chrono::milliseconds(0)), rounds, measured.refused);
  attacker->kill();
  measured.attack_rounds += rounds;
  std::this_thread::sleep_for(std::chrono::duration<double>(o.settle));
  return status;
}

Result<std::vector<TenantCase>> measure_all(const TenantsOptions& o) {
  std::vector<TenantCase> cases;
  std::optional<TenantPair> bystander;
  for (const std::string& name : o.attacks) {
    TenantCase& measured = cases.emplace_back();
    measured.attack = name;
    for (int turn = 0; turn < o.turns && measured.failed.empty(); ++turn) {
      if (!bystander) {
        auto made = TenantPair::make(bystander_options(o));
        if (!made.ok()) return made.status();
        bystander.emplace(std::move(made).value());
      }
      const Status status = take_turn(o, *bystander, measured);
      if (status.ok()) continue;
      measured.failed = status.to_string();
      bystander.reset();  // the next attack gets a new one
    }
  }
  return cases;
}

Status run_tenants(const TenantsOptions& o) {
  auto cases = measure_all(o);
  if (!cases.ok()) return cases.status();
  std::optional<double> fair;
  for (const TenantCase& measured : *cases)
    if (measured.attack == "rival" && measured.failed.empty()) fair = median(measured.with.gbytes_per_second);
  print_table(std::cout, tenants_table(*cases, fair));
  for (const std::string& note : tenants_notes(*cases)) std::cout << note << "\n";
  nlohmann::json rows = nlohmann::json::array();
  Status worst;
  for (const TenantCase& measured : *cases) {
    nlohmann::json row = to_json(measured, fair);
    row["put_bytes"] = o.put_bytes;
    row["interval_us"] = o.interval_us;
    row["attacker_uid"] = o.uid.value_or(::getuid());
    rows.push_back(row);
    if (!measured.failed.empty())
      worst = Status(StatusCode::kDataLoss, "beside " + measured.attack + ": " + measured.failed);
  }
  if (!o.json.empty() && !record(o.json, "tenants", rows))
    return {StatusCode::kInternal, "results were not recorded"};
  return worst;
}

void add_attack_options(CLI::App& command, AttackOptions& o) {
  command.add_option("--daemon", o.daemon, "session socket of one node's daemon")->required();
  command.add_option("--peer-daemon", o.peer_daemon, "session socket of the other node's")->required();
  command.add_option("--listener", o.listeners,
                     "host:port that silent connections are made to as well, repeatable");
  command.add_option("--attack-bytes", o.bytes, "of the put that is left, and of the client that is killed")
      ->check(CLI::Range(std::uint64_t{4096}, std::uint64_t{1} << 40))
      ->capture_default_str();
  command.add_option("--ranks", o.ranks, "of the groups that come and go")
      ->check(CLI::Range(2, 1024))
      ->capture_default_str();
  command.add_option("--connections", o.connections, "silent ones")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
}

std::vector<std::string> attack_names() {
  std::vector<std::string> names;
  for (const AttackKind& kind : attack_kinds()) names.emplace_back(kind.name);
  return names;
}

std::string attacks_text() {
  std::string text = "who is beside it, repeatable; default: all of them in turn.";
  for (const AttackKind& kind : attack_kinds()) text += std::string("\n") + kind.name + ": " + kind.what;
  return text;
}

void add_attacker(CLI::App& app, int& status) {
  auto o = std::make_shared<AttackerOptions>();
  CLI::App* command = app.add_subcommand("tenants-attack", "an attacker of mkbench tenants")->group("");
  add_attack_options(*command, o->attack);
  command->add_option("--attack", o->name)->required()->check(CLI::IsMember(attack_names()));
  command->add_option("--seconds", o->seconds);
  command->add_option("--uid", o->uid);
  command->add_option("--nice", o->nice);
  command->callback([o, &status] {
    const Status outcome = attack(*o);
    if (outcome.ok()) return;
    std::cout << outcome.to_string() << std::endl;
    status = 1;
  });
}

}  // namespace

void add_tenants(CLI::App& app, int& status) {
  add_attacker(app, status);
  auto o = std::make_shared<TenantsOptions>();
  o->attacks = attack_names();
  CLI::App* command = app.add_subcommand("tenants", "what a tenant notices of another one that attacks it");
  add_attack_options(*command, o->attack);
  command->add_option("--attack", o->attacks, attacks_text())->check(CLI::IsMember(attack_names()));
  command
      ->add_option("--seconds", o->seconds,
                   "of signals, and of puts, in each turn with and without the attacker")
      ->check(CLI::Range(0.1, 600.0))
      ->capture_default_str();
  command->add_option("--turns", o->turns)->check(CLI::Range(1, 100))->capture_default_str();
  command->add_option("--settle", o->settle, "seconds after an attacker's end")
      ->check(CLI::Range(0.0, 60.0))
      ->capture_default_str();
  command->add_option("--interval-us", o->interval_us, "between signals")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  command->add_option("--put-bytes", o->put_bytes, "of the bystander's puts, a multiple of 8")
      ->check(CLI::Range(8U, 64U << 20))
      ->capture_default_str();
  command->add_option("--uid", o->uid, "of the attacker, for root; the session sockets must admit it");
  command
      ->add_option("--nice", o->nice,
                   "of the attacker's process: its share of the CPUs is the kernel's affair")
      ->check(CLI::Range(0, 19))
      ->capture_default_str();
  command->add_option("--json", o->json, "record in this file");
  command->callback([o, &status] {
    if (o->put_bytes % 8 != 0) throw CLI::ValidationError("--put-bytes", "must be a multiple of 8");
    const Status outcome = run_tenants(*o);
    if (outcome.ok()) return;
    std::cerr << "mkbench: " << outcome.to_string() << "\n";
    status = 1;
  });
}

}  // namespace mkernel::bench
