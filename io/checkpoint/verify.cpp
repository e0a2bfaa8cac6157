#include "io/checkpoint/verify.h"

#include <deque>
#include <vector>

#include "io/checkpoint/block_reader.h"

namespace sluice {
namespace {

constexpr std::uint64_t ahead_bytes_max = 64u << 20;

/// The blocks of a file, one after the other.
class Blocks {
 public:
  Blocks(const StoredFile& file, std::uint32_t index) : file_(file) { id_.file = index; }
  bool next(BlockId& id, std::uint64_t& bytes) {
    for (; id_.unit < file_.units.size(); ++id_.unit, id_.state = 0)
      for (; id_.state < file_.units[id_.unit].states.size(); ++id_.state, id_.block = 0) {
        const StoredState& s = file_.units[id_.unit].states[id_.state];
        if (id_.block == s.blocks()) continue;
        id = id_;
        bytes = std::min<std::uint64_t>(s.block_bytes, s.bytes - id_.block * s.block_bytes);
        ++id_.block;
        return true;
      }
    return false;
  }

 private:
  const StoredFile& file_;
  BlockId id_;
};

}  // namespace

Status verify_checkpoint(Checkpoint& checkpoint, const QueueOptions& queue,
                         const std::function<Status(std::uint64_t)>& watch) {
  const std::vector<StoredFile>& files = checkpoint.manifest().files;
  for (std::uint32_t f = 0; f < files.size(); ++f) {
    SLUICE_ASSIGN(const auto reader, BlockReader::create(checkpoint, std::span(&f, 1), queue));
    struct Ahead {
      BlockId id;
      std::uint64_t bytes = 0;
    };
    std::deque<Ahead> ahead;
    std::uint64_t in_flight = 0;
    Blocks blocks(files[f], f);
    for (bool more = true;;) {
      for (Ahead next; more && in_flight < ahead_bytes_max;) {
        more = blocks.next(next.id, next.bytes);
        if (!more) break;
        SLUICE_TRY(reader->want(next.id));
        in_flight += next.bytes;
        ahead.push_back(next);
      }
      if (ahead.empty()) break;
      const Ahead first = ahead.front();
      ahead.pop_front();
      SLUICE_ASSIGN([[maybe_unused]] const std::span<const std::byte> data, reader->get(first.id));
      reader->release(first.id);
      in_flight -= first.bytes;
      SLUICE_TRY(watch(first.bytes));
    }
  }
  return success();
}

}  // namespace sluice
