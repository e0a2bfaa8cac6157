// Which of the open sequences a document goes into.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "sluice/status.h"

namespace sluice {

/// Best fit: the fullest open sequence that has room, else a new one. `Content` is what the caller keeps of a sequence.
/// At most `open_max` are open: for one more the fullest is closed. O(log open_max) for each piece.
template <class Content>
class BestFit {
 public:
  BestFit(std::uint64_t length, std::size_t open_max) : length_(length), open_max_(open_max) {}

  /// Puts a piece of `piece` tokens, 1 to `length`, into a sequence: `put(content)`. What is full then, or must make
  /// room for a new one first, goes to `close(content)`, which gives a Status.
  template <class Put, class Close>
  Status place(std::uint64_t piece, const Put& put, const Close& close) {
    auto fits = open_.lower_bound({piece, 0});
    if (fits == open_.end()) {
      if (open_.size() == open_max_) {
        SLUICE_TRY(close(open_.begin()->second));
        open_.erase(open_.begin());
      }
      fits = open_.try_emplace({length_, begun_++}).first;
    }
    auto node = open_.extract(fits);
    put(node.mapped());
    node.key().first -= piece;
    if (node.key().first == 0) return close(node.mapped());
    open_.insert(std::move(node));
    return success();
  }

  /// Closes all that are open, in the order in which they were begun.
  template <class Close>
  Status finish(const Close& close) {
    std::map<std::uint64_t, Content*> by_age;
    for (auto& [key, content] : open_) by_age[key.second] = &content;
    for (const auto& [age, content] : by_age) SLUICE_TRY(close(*content));
    open_.clear();
    return success();
  }

 private:
  std::uint64_t length_, begun_ = 0;
  std::size_t open_max_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, Content> open_;  ///< by the room that is left, then by age
};

}  // namespace sluice
