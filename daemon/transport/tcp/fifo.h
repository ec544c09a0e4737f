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

  /// Takes the element out wherever it is; a walk, for the control path.
  void remove(T& element) {
    if (!(element.*hook).linked) return;
    T* before = nullptr;
    for (T* at = head_; at != &element; at = (at->*hook).next) before = at;
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
