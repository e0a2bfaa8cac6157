// Memory that somebody has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>

namespace simt {

inline std::uintptr_t number(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

/// Ranges of memory by where they begin.
class Ranges {
 public:
  void add(const void* p, std::size_t bytes) { ends_[number(p)] = number(p) + bytes; }
  /// Its bytes; 0 where none begins.
  std::size_t remove(const void* p) {
    const auto at = ends_.find(number(p));
    if (at == ends_.end()) return 0;
    const std::size_t bytes = at->second - at->first;
    ends_.erase(at);
    return bytes;
  }
  bool contain(const void* p, std::size_t bytes) const {
    const auto next = ends_.upper_bound(number(p));
    return next != ends_.begin() && number(p) + bytes <= std::prev(next)->second;
  }
  bool meet(const void* p, std::size_t bytes) const {
    const auto next = ends_.lower_bound(number(p) + bytes);
    return next != ends_.begin() && std::prev(next)->second > number(p);
  }
  template <class Function>
  void each(const Function& f) const {
    for (const auto& [begin, end] : ends_) f(reinterpret_cast<void*>(begin), end - begin);
  }
  std::size_t bytes() const {
    std::size_t sum = 0;
    each([&](void*, std::size_t n) { sum += n; });
    return sum;
  }

 private:
  std::map<std::uintptr_t, std::uintptr_t> ends_;
};

}  // namespace simt
