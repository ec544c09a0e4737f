// The tables of libibverbs and libefa: filled from what is installed, or a text that says what to install.
#include "daemon/transport/rdma/library.h"

#include <dlfcn.h>
#include <doctest/doctest.h>

#include <cerrno>
#include <string>

#include "daemon/transport/rdma/efa_library.h"

namespace mkernel::transport::rdma {
namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// OK, or a message that this machine has no such library.
template <typename Table>
bool here(const Result<Table>& opened) {
  if (opened.ok()) return true;
  INFO(opened.status().to_string());
  CHECK(contains(opened.status().text(), "install "));
  MESSAGE("skipped: " << opened.status().text());
  return false;
}

TEST_CASE("the installed libibverbs: every call is there, and devices can be listed") {
  const auto opened = open_verbs_library();
  if (!here(opened)) return;
  const VerbsLibrary& verbs = opened.value();
  int count = -1;
  ibv_device** const devices = verbs.get_device_list(&count);
  if (devices == nullptr) {
    CHECK(errno == ENOSYS);  // a kernel without RDMA
  } else {
    CHECK(count >= 0);
    CHECK(devices[count] == nullptr);
    verbs.free_device_list(devices);
  }
  CHECK(std::string(verbs.wc_status_str(IBV_WC_RETRY_EXC_ERR)) == "transport retry counter exceeded");
}

TEST_CASE("a call that exists in two versions is the one a linked program gets") {
  const auto opened = open_verbs_library();
  if (!here(opened)) return;
  void* const handle = ::dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  REQUIRE(handle != nullptr);
  const auto is = [&](void* function, const char* symbol, const char* version) {
    CHECK(function == ::dlvsym(handle, symbol, version));
  };
  is(reinterpret_cast<void*>(opened.value().create_qp), "ibv_create_qp", "IBVERBS_1.1");
  CHECK(reinterpret_cast<void*>(opened.value().create_qp) !=
        ::dlvsym(handle, "ibv_create_qp", "IBVERBS_1.0"));
  ::dlclose(handle);
}

TEST_CASE("the installed libefa: what RDMA writes over SRD need is there") {
  const auto opened = open_efa_library();
  if (!here(opened)) return;
  CHECK(reinterpret_cast<void*>(opened.value().query_device) != nullptr);
  CHECK(reinterpret_cast<void*>(opened.value().create_qp) != nullptr);
}

TEST_CASE("a library that is not installed: which package brings it") {
  const auto verbs = open_verbs_library("libibverbs-nowhere.so.1");
  REQUIRE(!verbs.ok());
  CHECK(verbs.status().code() == StatusCode::kFailedPrecondition);
  CHECK(contains(verbs.status().text(), "libibverbs-nowhere.so.1 cannot be loaded"));
  CHECK(contains(verbs.status().text(), "install libibverbs1"));
  const auto efa = open_efa_library("libefa-nowhere.so.1");
  REQUIRE(!efa.ok());
  CHECK(contains(efa.status().text(), "install ibverbs-providers"));
}

TEST_CASE("a library that lacks a call: which one, and the release that has it") {
  const auto opened = open_verbs_library("libc.so.6");
  REQUIRE(!opened.ok());
  CHECK(opened.status().code() == StatusCode::kFailedPrecondition);
  CHECK(contains(opened.status().text(), "libc.so.6 has no ibv_get_device_list (IBVERBS_1.1)"));
  CHECK(contains(opened.status().text(), "rdma-core 34"));
}

}  // namespace
}  // namespace mkernel::transport::rdma
