// A call that is made later.
#pragma once

#include <array>
#include <cstddef>
#include <new>
#include <type_traits>

namespace sluice {

/// Of something small that is copied as bytes, so that it takes no memory of its own: a plan is made of hundreds of
/// thousands of them, and hundreds of plans are looked at.
class Task {
 public:
  template <class F>
  requires(!std::is_same_v<F, Task>) Task(F call)
      : call_([](std::byte* at) { (*std::launder(reinterpret_cast<F*>(at)))(); }) {
    static_assert(sizeof(F) <= room && alignof(F) <= alignof(std::max_align_t) && std::is_trivially_copyable_v<F>);
    new (room_.data()) F(call);
  }
  void operator()() { call_(room_.data()); }

 private:
  static constexpr std::size_t room = 80;
  void (*call_)(std::byte*);
  alignas(std::max_align_t) std::array<std::byte, room> room_;
};

}  // namespace sluice
