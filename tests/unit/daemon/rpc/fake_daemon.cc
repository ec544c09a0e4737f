#include "tests/unit/daemon/rpc/fake_daemon.h"

#include <sys/wait.h>

#include <cstdio>

namespace mkernel::rpc {

Run mkctl(const std::string& socket, const std::string& arguments) {
  const std::string command = std::string(MKCTL_PROGRAM) + " --socket " + socket + " " + arguments + " 2>&1";
  FILE* pipe = ::popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  Run run;
  char buffer[4096];
  for (std::size_t bytes; (bytes = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;)
    run.output.append(buffer, bytes);
  const int status = ::pclose(pipe);
  run.exit = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return run;
}

}  // namespace mkernel::rpc
