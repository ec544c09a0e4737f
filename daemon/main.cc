// mkerneld: reads its configuration, composes the daemon, runs it.
// Exit status: 0 stopped as asked, or --check found no mistake; 1 could not start; 2 wrong usage or a mistake
// in the configuration.
#include <malloc.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "daemon/app/app.h"
#include "daemon/config/config.h"
#include "daemon/observe/log.h"
#include "proto/abi/version.h"
#include "proto/base/standard_output.h"

namespace {

/// Blocks above this many bytes are mapped, and unmapped one by one. By default glibc raises the bound with
/// the first that is freed, keeps those that follow on its heap, and some day one free() gives a hundred
/// megabytes back: milliseconds, on a thread for which others wait.
constexpr int kMappedAlone = 128 << 10;
constexpr int kCouldNotStart = 1, kUsage = 2;

int serve(mkernel::config::Config config) {
  mkernel::observe::start_logging(config.log.level, config.log.format);
  std::signal(SIGPIPE, SIG_IGN);
  mkernel::app::App app(std::move(config));
  if (const mkernel::Status started = app.start(); !started.ok()) {
    spdlog::error("mkerneld cannot start: {}", started.to_string());
    return kCouldNotStart;
  }
  app.run();
  spdlog::info("stopped");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
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
  auto config = file.empty() ? mkernel::config::parse("", "") : mkernel::config::load(file);
  if (!config.ok()) {
    std::fprintf(stderr, "%s\n", config.status().text().c_str());
    return kUsage;
  }
  if (!check) return serve(std::move(config).value());
  std::fputs(mkernel::config::dump(config.value()).c_str(), stdout);
  return mkernel::finish_output("mkerneld", 0);
}
