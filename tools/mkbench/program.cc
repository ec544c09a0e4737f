#include "tools/mkbench/program.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

extern char** environ;

namespace mkernel::bench {

Result<pid_t> spawn_program(const std::vector<std::string>& command, int out) {
  std::vector<char*> arguments;
  for (const std::string& part : command) arguments.push_back(const_cast<char*>(part.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, out, STDERR_FILENO);
  pid_t pid = -1;
  const int error = ::posix_spawnp(&pid, arguments[0], &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error == 0) return pid;
  return Status(error == ENOENT ? StatusCode::kNotFound : StatusCode::kUnavailable,
                command[0] + ": " + (error == ENOENT ? "not installed" : std::strerror(error)));
}

Result<Program> Program::start(const std::vector<std::string>& command) {
  const ipc::UniqueFd nowhere(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  auto pid = spawn_program(command, nowhere.get());
  if (!pid.ok()) return pid.status();
  return Program(*pid, {});
}

Result<Program> Program::start_talking(const std::vector<std::string>& command) {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0)
    return Status(StatusCode::kUnavailable, std::string("pipe: ") + std::strerror(errno));
  ipc::UniqueFd reader(fds[0]);
  const ipc::UniqueFd writer(fds[1]);
  ::fcntl(reader.get(), F_SETFL, O_NONBLOCK);
  auto pid = spawn_program(command, writer.get());
  if (!pid.ok()) return pid.status();
  return Program(*pid, std::move(reader));
}

Program::~Program() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGTERM);
  ::waitpid(pid_, nullptr, 0);
}

void Program::kill() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

std::vector<std::string> Program::read_lines(std::chrono::milliseconds limit) {
  std::vector<std::string> lines;
  const auto end = std::chrono::steady_clock::now() + limit;
  while (lines.empty()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    pollfd wanted{out_.get(), POLLIN, 0};
    ::poll(&wanted, 1, static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
    char buffer[4096];
    ssize_t got = 0;
    while ((got = ::read(out_.get(), buffer, sizeof(buffer))) > 0)
      text_.append(buffer, static_cast<std::size_t>(got));
    for (std::size_t line = 0; (line = text_.find('\n')) != std::string::npos; text_.erase(0, line + 1))
      lines.push_back(text_.substr(0, line));
    if (got == 0 || left.count() <= 0) break;
  }
  return lines;
}

}  // namespace mkernel::bench
