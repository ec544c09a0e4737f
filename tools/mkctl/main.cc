// mkctl: looks inside a running mkerneld.

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <thread>

#include "proto/base/process.h"
#include "proto/base/standard_output.h"
#include "tools/mkctl/brief.h"
#include "tools/mkctl/connection.h"
#include "tools/mkctl/doctor/gather.h"
#include "tools/mkctl/doctor/report.h"
#include "tools/mkctl/environment.h"
#include "tools/mkctl/table.h"
#include "tools/mkctl/text.h"
#include "tools/mkctl/topo.h"

namespace mkernel::mkctl {
namespace {

/// Of tables whose rates the daemon does not keep.
constexpr std::chrono::duration<double> kBetweenLooks{0.25};

enum Exit : int { kOk = 0, kUnhealthy = 1, kUsage = 2, kNotReachable = 3 };

using Json = nlohmann::ordered_json;

struct Options {
  std::string socket = default_socket();
  std::string output = "table";
  double watch = 0;  ///< seconds between looks, 0 = one look
  double timeout = std::chrono::duration<double>(Connection::kPatience).count();
  bool all = false;
  v1::LinkRequest link;
  std::string other;  ///< file
};

Connection connect(const Options& o) {
  return Connection(o.socket, std::chrono::milliseconds(std::llround(o.timeout * 1000)));
}

void print_daemon(const Options& o, const Json& reply) {
  const Json& daemon = reply["daemon"];
  std::cout << "# mkerneld on " << daemon["node"].get<std::string>() << ", pid " << daemon["pid"] << ", boot "
            << daemon["boot_id"].get<std::string>() << ", " << o.socket << "\n";
}

void print(const Brief& table) {
  print_aligned(std::cout, table.lines);
  for (const std::string& note : table.notes)
    for (const std::string& line : wrapped(note, kBriefWidth)) std::cout << line << "\n";
}

/// A command: how to ask, and how to show the answer to people.
struct Command {
  std::string help;
  std::function<Reply(Connection&, const Options&)> ask;
  std::string part;  ///< field of the reply to show: a list of rows, or one; empty: all of it
};

auto plain(Reply (Connection::*call)()) {
  return [call](Connection& c, const Options&) { return (c.*call)(); };
}

std::map<std::string, Command> commands() {
  const auto channels = [](Connection& c, const Options& o) { return c.channels(o.all); };
  const auto link = [](Connection& c, const Options& o) { return c.set_link(o.link); };
  return {
      {"status", {"version, uptime, health and why not", plain(&Connection::status), "status"}},
      {"sessions",
       {"clients: who, what they hold, launched and moved", plain(&Connection::sessions), "sessions"}},
      {"users",
       {"users: what their sessions hold together, and what they may", plain(&Connection::users), "users"}},
      {"peers", {"other nodes and their state", plain(&Connection::peers), "peers"}},
      {"groups", {"groups of this node's sessions", plain(&Connection::groups), "groups"}},
      {"regions", {"registered memory", plain(&Connection::regions), "regions"}},
      {"channels", {"channels that carried puts", channels, "channels"}},
      {"devices", {"RDMA devices, and why one cannot be used", plain(&Connection::devices), "devices"}},
      {"topo",
       {"GPUs, NICs and PCIe between them, which rails each GPU uses and why", plain(&Connection::topology),
        "topology"}},
      {"config", {"the effective configuration, each value with its origin", plain(&Connection::config), ""}},
      {"reload", {"read the configuration file again, as SIGHUP", plain(&Connection::reload), ""}},
      {"link", {"shape the emulated link to a peer (transport emulated)", link, "link"}},
  };
}

Exit show(const std::string& name, const Command& command, Connection& connection, const Options& o,
          Json& before, double seconds) {
  auto asked = command.ask(connection, o);
  if (!asked.ok()) {
    std::cerr << "mkctl: " << asked.status().text() << "\n";
    return asked.status().code() == StatusCode::kUnavailable ? kNotReachable : kUnhealthy;
  }
  Json& reply = asked.value();
  if (o.output == "json") {
    std::cout << reply.dump(o.watch > 0 ? -1 : 1) << std::endl;
  } else {
    print_daemon(o, reply);
    Json shown = command.part.empty() ? reply : reply[command.part];
    if (name == "config") {
      std::cout << reply["config"].get<std::string>();
    } else if (name == "topo") {
      print_topology(std::cout, shown);
    } else if (shown.is_array()) {
      if (o.output == "table" && has_brief(name) && !shown.empty()) {
        print(brief(name, shown, before, seconds));
      } else {
        print_rows(std::cout, shown, before, seconds);
      }
      before = std::move(shown);
    } else {
      shown.erase("daemon");
      print_fields(std::cout, shown);
    }
    std::cout << std::flush;
  }
  const bool unhealthy = name == "status" && !reply["status"]["healthy"].get<bool>();
  return unhealthy ? kUnhealthy : kOk;
}

Exit run(const std::string& name, const Command& command, const Options& o) {
  Connection connection = connect(o);
  Json before = Json::array();
  double seconds = 0;
  if (o.output == "table" && brief_needs_two_looks(name)) {
    if (auto first = command.ask(connection, o); first.ok()) {
      before = first.value()[command.part];
      seconds = kBetweenLooks.count();
      std::this_thread::sleep_for(kBetweenLooks);
    }
  }
  Exit last = show(name, command, connection, o, before, seconds);
  while (o.watch > 0 && last != kNotReachable && std::cout) {
    std::this_thread::sleep_for(std::chrono::duration<double>(o.watch));
    if (o.output != "json") std::cout << "\n";
    last = show(name, command, connection, o, before, o.watch);
  }
  return last;
}

/// Needs no daemon: without one it says so, and what it can see by itself.
Exit examine(const Options& o) {
  Connection connection = connect(o);
  doctor::Facts facts = doctor::gather(connection);
  if (!o.other.empty()) {
    auto ports = doctor::read_ports(o.other);
    if (!ports.ok()) {
      std::cerr << "mkctl: " << ports.status().text() << "\n";
      return kUsage;
    }
    facts.other_ports = std::move(ports).value();
  }
  const doctor::Report report = doctor::examine(std::move(facts));
  if (o.output == "json") {
    std::cout << doctor::to_json(report).dump(1) << "\n";
  } else {
    doctor::print(std::cout, report);
  }
  return report.good() ? kOk : kUnhealthy;
}

void add_link_options(CLI::App& link, Options& o) {
  const auto number = [&link](const char* name, const char* help, auto set) {
    return link.add_option_function<double>(name, set, help);
  };
  link.add_option_function<std::string>(
          "--peer", [&o](const std::string& peer) { o.link.set_peer(peer); }, "node name of the peer")
      ->required();
  number("--bandwidth-gbytes", "GB/s, 0 = unlimited", [&o](double v) {
    o.link.set_bandwidth_gbytes(v);
  })->check(CLI::NonNegativeNumber);
  link.add_option_function<std::uint64_t>("--latency-us",
                                          [&o](std::uint64_t v) { o.link.set_latency_us(v); });
  number("--drop", "probability per put", [&o](double v) {
    o.link.set_drop(v);
  })->check(CLI::Range(0.0, 1.0));
  number("--duplicate", "probability per put", [&o](double v) {
    o.link.set_duplicate(v);
  })->check(CLI::Range(0.0, 1.0));
  number("--reorder", "probability per put", [&o](double v) {
    o.link.set_reorder(v);
  })->check(CLI::Range(0.0, 1.0));
  link.add_option_function<std::uint32_t>(
      "--rail", [&o](std::uint32_t rail) { o.link.set_rail(rail); },
      "with --down or --up: the wire of this rail alone; its traffic takes another");
  auto* down = link.add_flag_callback(
      "--down", [&o] { o.link.set_down(true); }, "cut the link");
  link.add_flag_callback(
          "--up", [&o] { o.link.set_down(false); }, "restore it (the default)")
      ->excludes(down);
}

int main_of(int argc, char** argv) {
  CLI::App app(
      "mkctl: looks inside a running mkerneld.\n"
      "Exit status: 0 ok, 1 unhealthy or refused, 2 usage, 3 daemon not reachable.");
  app.require_subcommand(1);
  app.fallthrough();
  Options o;
  app.add_option("--socket", o.socket,
                 "control socket; default: MKERNEL_CONTROL, else the default configuration's")
      ->capture_default_str();
  app.add_option("-o,--output", o.output,
                 "table: what one looks for, in 120 columns; wide: a table of all there is")
      ->check(CLI::IsMember({"table", "wide", "json"}))
      ->capture_default_str();
  app.add_flag_callback(
      "--json", [&o] { o.output = "json"; }, "the same as -o json");
  app.add_option("--timeout", o.timeout, "seconds within which a daemon is to be met at the socket")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--watch", o.watch, "look again every so many seconds (default 1); totals become rates")
      ->expected(0, 1)
      ->default_str("1")
      ->check(CLI::PositiveNumber);
  const auto all = commands();
  for (const auto& [name, command] : all) {
    CLI::App* sub = app.add_subcommand(name, command.help);
    if (name == "channels") sub->add_flag("--all", o.all, "also channels that never carried a put");
    if (name == "link") add_link_options(*sub, o);
  }
  app.add_subcommand("doctor",
                     "what is wrong on this node, why it matters, what to do; exit status 1: an error")
      ->add_option("--other", o.other, "compare with what `mkctl devices --json` said on another node");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kOk : kUsage;
  }
  const std::string name = app.get_subcommands().front()->get_name();
  return name == "doctor" ? examine(o) : run(name, all.at(name), o);
}

}  // namespace
}  // namespace mkernel::mkctl

MK_OPEN_STANDARD_FDS_FIRST();

int main(int argc, char** argv) {
  mkernel::base::ignore_file_size_signal();
  return mkernel::finish_output("mkctl", mkernel::mkctl::main_of(argc, argv));
}
