// Loading the GPU module where something is missing: what was tried, and what to do.
#include "daemon/memory/gpu_module.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>

namespace mkernel::memory {
namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Status refusal(const std::vector<std::string>& paths) {
  auto opened = open_copy_engines(paths);
  CHECK(!opened.ok());
  CHECK(opened.status().code() == StatusCode::kFailedPrecondition);
  return opened.status();
}

TEST_CASE("the module is looked for beside the program and in the library folder next to it") {
  const auto paths = gpu_module_paths();
  REQUIRE(paths.size() >= 2);
  for (const std::string& path : paths) {
    CHECK(path.front() == '/');
    CHECK(path.ends_with(std::string("/") + kGpuModuleName));
    CHECK(!contains(path, ".."));
  }
  CHECK(contains(paths[1], "/lib"));
}

TEST_CASE("a module that is nowhere: every path that was tried, and where one comes from") {
  const std::string text = refusal({"/nowhere/a.so", "/nowhere/b.so"}).text();
  CHECK(contains(text, "tried /nowhere/a.so, /nowhere/b.so"));
  CHECK(contains(text, "CUDA toolkit"));
}

TEST_CASE("a file that is there and no module is named, and what lies behind it is not taken") {
  const std::string path = "gpu_module_test." + std::to_string(::getpid()) + ".so";
  std::ofstream(path) << "not a library";
  CHECK(contains(refusal({"./" + path, "/nowhere/b.so"}).text(), path));
  std::remove(path.c_str());
}

TEST_CASE("a library of another build is refused by version") {
  CHECK(contains(refusal({MKERNEL_FOREIGN_LIBRARY}).text(),
                 "version unknown, this daemon of " MKERNEL_VERSION));
}

TEST_CASE("the module of this build says whether there is a driver") {
  auto opened = open_copy_engines(gpu_module_paths());
  if (opened.ok()) {
    MESSAGE("skipped: this machine has a GPU");
    return;
  }
  const std::string text = opened.status().text();
  CHECK((contains(text, "no CUDA driver on this machine") || contains(text, "the GPU module was not found") ||
         contains(text, "CUDA_ERROR_NO_DEVICE")));
}

}  // namespace
}  // namespace mkernel::memory
