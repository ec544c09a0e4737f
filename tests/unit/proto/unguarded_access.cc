// Not part of any test binary: clang must refuse this file, see CMakeLists.txt.
#include "proto/base/mutex.h"

class Counter {
 public:
  void add() { ++count_; }  // without the mutex

 private:
  mkernel::Mutex mutex_;
  int count_ MK_GUARDED_BY(mutex_) = 0;
};

void add_one(Counter& counter) {
  counter.add();
}
