// Ownership of a file descriptor, and shared memory behind one. Used by client and daemon alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "proto/abi/status.h"

namespace mkernel::ipc {

/// Owns one file descriptor. Move only; closes on destruction.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1);

  /// A second descriptor of the same open file (close-on-exec).
  Result<UniqueFd> duplicate() const;

 private:
  int fd_ = -1;
};

/// The same open file under a number above 2, if there is one free: a program that has closed its standard
/// output or error would print into a file with such a number.
UniqueFd above_standard(UniqueFd fd);

/// A shared mapping of part of a file, for reading and writing unless it says otherwise. Move only; unmaps on
/// destruction.
class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  /// Maps [offset, offset + bytes) of `fd`; `offset` page-aligned. The caller has checked the file's size.
  static Result<Mapping> map(int fd, std::uint64_t offset, std::uint64_t bytes);
  /// The same for reading alone: a store faults. A memfd that is sealed against writing gives no other.
  static Result<Mapping> map_read_only(int fd, std::uint64_t offset, std::uint64_t bytes);
  /// Takes over what is mapped already.
  static Mapping adopt(void* data, std::uint64_t bytes);

  /// Makes every page be there, charged to this process, and changes no byte. Errors: kResourceExhausted.
  Status populate() const;

  std::byte* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }
  template <typename T>
  T* at(std::uint64_t offset) const {
    return reinterpret_cast<T*>(data_ + offset);
  }

 private:
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

/// A zeroed memfd of `bytes`, sealed against shrinking and growing (a peer that maps it cannot be made to
/// fault). `label` shows up in /proc/PID/maps.
Result<UniqueFd> create_shared_memory(const std::string& label, std::uint64_t bytes);

/// OK when `fd` is a memfd sealed against shrinking that holds [offset, offset + bytes); else a status that
/// names what is wrong, the value and the limit.
Status check_shared_memory(int fd, std::uint64_t offset, std::uint64_t bytes);

/// A non-blocking eventfd, counter 0.
Result<UniqueFd> create_event();

}  // namespace mkernel::ipc
