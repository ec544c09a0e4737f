// One direction of one connection through pinned memory: pieces of payload in stream order, lying in a ring
// of bytes. What is pushed last leaves last, so both the bytes and the pieces are given back from the front.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "daemon/transport/tcp/gpu_access.h"

namespace mkernel::transport::tcp {

/// Piece has `bytes` (how many it occupies; 0 = none) and `at` (where they lie in the block). Allocates in
/// open() and never after. One thread.
template <typename Piece>
class StagingQueue {
 public:
  /// Takes a block, the first time; with it the queue can be used. Errors: those of pinning.
  Status open(GpuAccess& gpu) {
    if (block_ != nullptr) return {};
    auto block = gpu.lend();
    if (!block.ok()) return block.status();
    block_ = block.value();
    pieces_.resize(kPieces);
    return {};
  }
  /// Gives the block back, or (`clean` false: an engine may still touch it) leaves it alone for ever.
  void close(GpuAccess& gpu, bool clean) {
    if (block_ != nullptr && clean) gpu.give_back(block_);
    block_ = nullptr;
    first_ = end_ = begin_byte_ = end_byte_ = 0;
  }
  bool is_open() const { return block_ != nullptr; }
  const std::shared_ptr<memory::EngineMemory>& engine() const { return block_->engine; }

  /// Pieces are numbered from 0 on and keep their number: [first(), end()) are there.
  std::uint64_t first() const { return first_; }
  std::uint64_t end() const { return end_; }
  bool empty() const { return first_ == end_; }
  bool full() const { return end_ - first_ == kPieces; }
  Piece& operator[](std::uint64_t number) { return pieces_[number % kPieces]; }
  const Piece& operator[](std::uint64_t number) const { return pieces_[number % kPieces]; }

  /// Where the next piece would lie: kStagingPiece bytes, fewer only where the block ends. Nothing while less
  /// is free: scraps would stay scraps, and cost a copy each.
  std::span<std::byte> room() const {
    if (full() || kStagingBytes - (end_byte_ - begin_byte_) < kStagingPiece) return {};
    const std::size_t at = end_byte_ % kStagingBytes;
    return {block_->data() + at, std::min(kStagingBytes - at, kStagingPiece)};
  }
  /// Appends the piece, which takes the first `piece.bytes` of room(). Returns its number. Only when !full().
  std::uint64_t push(Piece piece) {
    piece.at = end_byte_ % kStagingBytes;
    end_byte_ += piece.bytes;
    (*this)[end_] = std::move(piece);
    return end_++;
  }
  void pop() {
    begin_byte_ += (*this)[first_].bytes;
    (*this)[first_++] = {};
  }
  std::byte* data(const Piece& piece) const { return block_->data() + piece.at; }

  template <typename Test>
  bool any(Test test) const {
    for (std::uint64_t number = first_; number < end_; ++number) {
      if (test((*this)[number])) return true;
    }
    return false;
  }
  template <typename Do>
  void each(Do what) {
    for (std::uint64_t number = first_; number < end_; ++number) what((*this)[number]);
  }

 private:
  static constexpr std::uint64_t kPieces = 256;

  StagingBlock* block_ = nullptr;
  std::vector<Piece> pieces_;
  std::uint64_t first_ = 0, end_ = 0;
  std::uint64_t begin_byte_ = 0, end_byte_ = 0;
};

}  // namespace mkernel::transport::tcp
