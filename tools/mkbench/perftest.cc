#include "tools/mkbench/perftest.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <sstream>
#include <thread>

#include "proto/ipc/fd.h"

namespace mkernel::bench {
namespace {

constexpr std::chrono::seconds kServerPatience{5};  ///< until the server listens
constexpr std::chrono::seconds kRunPatience{60};

/// What a figure is called in the program's own table, and where it stands in the row.
struct Kind {
  const char* program;
  std::vector<std::string> arguments;
  std::size_t column;
  double unit;  ///< of the column, in microseconds or gigabytes per second
};

const Kind* kind_of(const std::string& program) {
  // bytes, iterations, minimum, maximum, typical, ...  |  bytes, iterations, peak, average Gbit/s, ...
  static const Kind kinds[] = {{"ib_write_lat", {"-n", "1000"}, 4, 1.0},
                               {"ib_write_bw", {"-D", "2", "--report_gbits"}, 3, 0.125}};
  for (const Kind& kind : kinds)
    if (program == kind.program) return &kind;
  return nullptr;
}

/// As spawn_program(), with the package that has these programs.
Status named(const Status& failed) {
  if (failed.code() != StatusCode::kNotFound) return failed;
  return {failed.code(), failed.text() + " (package perftest)"};
}

std::uint16_t free_port() {
  const ipc::UniqueFd socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  socklen_t bytes = sizeof(address);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), bytes) != 0) return 18515;
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &bytes);
  return ntohs(address.sin6_port);
}

std::vector<std::string> command_for(const PerftestDevice& device, const Kind& kind, std::uint32_t bytes,
                                     std::uint16_t port) {
  std::vector<std::string> command{kind.program, "-F",
                                   "-d",         device.name,
                                   "-i",         std::to_string(device.port),
                                   "-x",         std::to_string(device.gid_index),
                                   "-s",         std::to_string(bytes),
                                   "-p",         std::to_string(port)};
  command.insert(command.end(), kind.arguments.begin(), kind.arguments.end());
  return command;
}

struct Ended {
  bool good = false;
  std::string output;
};

/// Runs it to its end, or ends it after `limit`.
Result<Ended> run(const std::vector<std::string>& command, std::chrono::seconds limit) {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return Status(StatusCode::kUnavailable, "no pipe");
  const ipc::UniqueFd reader(fds[0]);
  ipc::UniqueFd writer(fds[1]);
  const auto pid = spawn_program(command, writer.get());
  if (!pid.ok()) return named(pid.status());
  writer.reset();
  Ended ended;
  const auto end = std::chrono::steady_clock::now() + limit;
  for (;;) {
    pollfd wanted{reader.get(), POLLIN, 0};
    ::poll(&wanted, 1, 100);
    char text[4096];
    const ssize_t got = wanted.revents != 0 ? ::read(reader.get(), text, sizeof(text)) : -1;
    if (got > 0) ended.output.append(text, static_cast<std::size_t>(got));
    if (got == 0) break;
    if (std::chrono::steady_clock::now() > end) {
      ::kill(pid.value(), SIGKILL);
      break;
    }
  }
  int status = 0;
  ::waitpid(pid.value(), &status, 0);
  ended.good = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  return ended;
}

std::string last_line(const std::string& text) {
  std::string line, last;
  for (std::istringstream lines(text); std::getline(lines, line);)
    if (line.find_first_not_of(" \t\r-") != std::string::npos) last = line;
  return last.empty() ? "it said nothing" : last;
}

}  // namespace

Result<PerftestServer> start_perftest_server(const PerftestDevice& device, const std::string& program,
                                             std::uint32_t bytes) {
  const Kind* kind = kind_of(program);
  if (kind == nullptr) return Status(StatusCode::kInvalidArgument, "no program \"" + program + "\" is known");
  const std::uint16_t port = free_port();
  auto started = Program::start(command_for(device, *kind, bytes, port));
  if (!started.ok()) return named(started.status());
  return PerftestServer{std::move(*started), port};
}

Result<double> run_perftest(const PerftestDevice& device, const std::string& program, std::uint32_t bytes,
                            const std::string& host, std::uint16_t port) {
  const Kind* kind = kind_of(program);
  if (kind == nullptr) return Status(StatusCode::kInvalidArgument, "no program \"" + program + "\" is known");
  auto command = command_for(device, *kind, bytes, port);
  command.push_back(host);
  const auto end = std::chrono::steady_clock::now() + kServerPatience;
  for (;;) {
    auto ended = run(command, kRunPatience);
    if (!ended.ok()) return ended.status();
    const auto figure = read_perftest(program, ended->output, bytes);
    if (ended->good && figure.has_value()) return *figure;
    if (std::chrono::steady_clock::now() > end)
      return Status(StatusCode::kUnavailable, program + ": " + last_line(ended->output));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the server does not listen yet
  }
}

std::optional<double> read_perftest(const std::string& program, const std::string& output,
                                    std::uint32_t bytes) {
  const Kind* kind = kind_of(program);
  std::string line;
  for (std::istringstream lines(output); kind != nullptr && std::getline(lines, line);) {
    std::istringstream cells(line);
    std::string first, cell;
    if (!(cells >> first) || first != std::to_string(bytes)) continue;
    std::size_t column = 0;
    while (column < kind->column && cells >> cell) ++column;
    char* end = nullptr;
    const double value = std::strtod(cell.c_str(), &end);
    const bool number = end != cell.c_str() && *end == 0 && std::isfinite(value);  // it prints "inf" too
    if (column == kind->column && number) return value * kind->unit;
  }
  return std::nullopt;
}

}  // namespace mkernel::bench
