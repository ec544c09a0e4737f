// A queue threaded through its elements: no allocation, an element is in it at most once.
#pragma once

#include <cstddef>

namespace mkernel::transport::tcp {

/// The place in an element that one queue uses.
template <typename T>
struct Hook {
  T* next = nullptr;
  bool linked = false;
};

template <typename T, Hook<T> T::*hook>
class Fifo {
 public:
  bool empty() const { return head_ == nullptr; }
  std::size_t size() const { return size_; }

  /// Appends; nothing happens when the element is already in the queue.
  void push(T& element) {
    Hook<T>& place = element.*hook;
    if (place.linked) return;
    place = {nullptr, true};
    (head_ == nullptr ? head_ : (tail_->*hook).next) = &element;
    tail_ = &element;
    ++size_;
  }

  /// The first element, taken out; null when there is none.
  T* pop() {
    T* first = head_;
    if (first == nullptr) return nullptr;
    head_ = (first->*hook).next;
    first->*hook = {};
    --size_;
    return first;
  }

  /// Puts all of `others` before the first element.
  void prepend(Fifo& others) {
    if (others.empty()) return;
    (others.tail_->*hook).next = head_;
    if (head_ == nullptr) tail_ = others.tail_;
    head_ = others.head_;
    size_ += others.size_;
    others = {};
  }

  /// Takes the element out wherever it is; a walk, for the control path. Nothing happens when it is not here.
  void remove(T& element) {
    if (!(element.*hook).linked) return;
    T* before = nullptr;
    T* at = head_;
    for (; at != nullptr && at != &element; at = (at->*hook).next) before = at;
    if (at == nullptr) return;
    (before == nullptr ? head_ : (before->*hook).next) = (element.*hook).next;
    if (tail_ == &element) tail_ = before;
    element.*hook = {};
    --size_;
  }

 private:
  T* head_ = nullptr;
  T* tail_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace mkernel::transport::tcp
