// A table that may become large and must not stop its thread when it grows: the kernel moves its pages, their
// contents are not copied.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

namespace mkernel::base {

/// One thread. Elements are zero bytes until they are written to, and move when the table grows.
template <typename T>
class GrowingArray {
  static_assert(std::is_trivially_copyable_v<T>, "elements are moved as bytes");

 public:
  GrowingArray() = default;
  GrowingArray(GrowingArray&& other) noexcept { swap(other); }
  GrowingArray& operator=(GrowingArray&& other) noexcept {
    swap(other);
    return *this;
  }
  ~GrowingArray() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
  }

  /// At least `count` elements from now on; never fewer. Throws std::bad_alloc.
  void grow(std::size_t count) {
    if (count <= size_) return;
    const std::size_t bytes = count * sizeof(T);  // NOLINT(bugprone-sizeof-expression): T may be a pointer
    if (bytes > bytes_) reserve(std::max(bytes, bytes_ + bytes_ / 2));
    size_ = count;
  }

  std::size_t size() const { return size_; }
  T* data() { return data_; }
  const T* data() const { return data_; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  T& operator[](std::size_t index) { return data_[index]; }
  const T& operator[](std::size_t index) const { return data_[index]; }

 private:
  void reserve(std::size_t bytes) {
    constexpr std::size_t kPage = 4096;
    const std::size_t whole = (bytes + kPage - 1) / kPage * kPage;
    void* const place =
        data_ == nullptr ? ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                         : ::mremap(data_, bytes_, whole, MREMAP_MAYMOVE);
    if (place == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<T*>(place);
    bytes_ = whole;
  }
  void swap(GrowingArray& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(bytes_, other.bytes_);
  }

  T* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace mkernel::base
