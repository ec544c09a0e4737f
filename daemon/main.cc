// mkerneld: reads its configuration, composes the daemon, runs it.
// Exit status: 0 stopped as asked, or --check found no mistake; 1 could not start; 2 wrong usage or a mistake
// in the configuration; 3 stopped as asked, but a thread hung and was left.
#include <malloc.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>

#include "daemon/app/app.h"
#include "daemon/app/exit_deadline.h"
#include "daemon/app/process_limits.h"
#include "daemon/base/aside.h"
#include "daemon/config/config.h"
#include "daemon/observe/log.h"
#include "daemon/rpc/grpc_log.h"
#include "proto/abi/version.h"
#include "proto/base/process.h"
#include "proto/base/standard_output.h"

namespace {

/// Blocks above this many bytes are mapped, and unmapped one by one. By default glibc raises the bound with
/// the first that is freed, keeps those that follow on its heap, and some day one free() gives a hundred
/// megabytes back: milliseconds, on a thread for which others wait.
constexpr int kMappedAlone = 128 << 10;
constexpr int kCouldNotStart = 1, kUsage = 2, kNotInOrder = 3;
/// For everything but the sessions, which have limits.drain_ms before.
constexpr std::chrono::seconds kTakeDown{10};
/// For the configuration file, and the name service that knows the users in it.
constexpr std::chrono::seconds kReadWithin{30};

mkernel::Result<mkernel::config::Config> read(const std::string& file) {
  using mkernel::config::Config;
  if (file.empty()) return mkernel::config::parse("", "");
  const std::function<mkernel::Result<Config>()> load = [file] { return mkernel::config::load(file); };
  auto config = mkernel::base::wait_aside_for<Config>(kReadWithin, "reading " + file, load);
  // Without a thread for it: check_process_limits() says so, once it knows how many are needed.
  return config.status().code() == mkernel::StatusCode::kResourceExhausted ? load() : std::move(config);
}

/// Errors of start(), and what libraries throw when something has run out meanwhile.
mkernel::Status start(mkernel::app::App& app) {
  try {
    return app.start();
  } catch (const std::exception& error) {
    return {mkernel::StatusCode::kResourceExhausted, error.what()};
  }
}

int run(mkernel::config::Config config) {
  const mkernel::rpc::GrpcLog grpc_log;
  mkernel::app::ExitDeadline deadline;
  mkernel::app::App app(std::move(config));
  if (const mkernel::Status started = start(app); !started.ok()) {
    spdlog::error("mkerneld cannot start: {}", started.to_string());
    deadline.begin(kTakeDown, [] { ::_exit(kCouldNotStart); });
    return kCouldNotStart;
  }
  app.run();
  deadline.begin(kTakeDown, [] { ::_exit(kNotInOrder); });
  spdlog::info("stopped");
  return 0;
}

/// Before there is a log.
int refuse(const mkernel::Status& why) {
  std::fprintf(stderr, "mkerneld cannot start: %s\n", why.to_string().c_str());
  return kCouldNotStart;
}

int serve(mkernel::config::Config config) {
  if (const mkernel::Status room = mkernel::app::check_process_limits(config); !room.ok())
    return refuse(room);
  mkernel::observe::start_logging(config.log.level, config.log.format);
  const int status = run(std::move(config));
  mkernel::observe::finish_logging();
  return status;
}

}  // namespace

MK_OPEN_STANDARD_FDS_FIRST();

int main(int argc, char** argv) {
  mkernel::base::set_daemon_signals();
  if (const mkernel::Status stack = mkernel::app::check_stack_limit(); !stack.ok()) return refuse(stack);
  // hwloc would load every plugin of the host, OpenCL's and OpenGL's among them; what the daemon asks for is
  // built in. No thread runs yet.
  ::setenv("HWLOC_PLUGINS_PATH", "", 0);
  ::mallopt(M_MMAP_THRESHOLD, kMappedAlone);
  std::string file;
  bool check = false, version = false;
  CLI::App usage("mkerneld: the mkernel daemon of this node", "mkerneld");
  usage.add_option("--config", file, "configuration file; without one every key has its default");
  usage.add_flag("--check", check,
                 "report every mistake in the configuration, print what is in force, start nothing");
  usage.add_flag("--version", version, "print the version");
  try {
    usage.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return mkernel::finish_output("mkerneld", usage.exit(error) == 0 ? 0 : kUsage);
  }
  if (version) {
    std::printf("mkerneld %s, ABI %u\n", MKERNEL_VERSION, mkernel::abi::kVersion);
    return mkernel::finish_output("mkerneld", 0);
  }
  auto config = read(file);
  if (!config.ok()) {
    std::fprintf(stderr, "%s\n", config.status().text().c_str());
    return kUsage;
  }
  if (!check) return serve(std::move(config).value());
  std::fputs(mkernel::config::dump(config.value()).c_str(), stdout);
  return mkernel::finish_output("mkerneld", 0);
}
