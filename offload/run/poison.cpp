#include "offload/run/poison.h"

#include <algorithm>
#include <cstring>

namespace sluice {

Poisoner::Poisoner(const StepPlan& plan, const Memory& memory)
    : device_(memory.device()), pieces_of_op_(plan.ops.size()) {
  std::vector<std::vector<OpId>> users(plan.buffers.size());
  for (OpId op = 0; op < plan.ops.size(); ++op)
    for (const Access& access : plan.ops[op].accesses)
      if (users[access.buffer].empty() || users[access.buffer].back() != op) users[access.buffer].push_back(op);
  for (BufferId b = 0; b < plan.buffers.size(); ++b)
    if (plan.buffers[b].tier != Tier::nvme && is_transient(plan.buffers[b].life)) cut(plan, b, users[b], memory);
  left_ = std::vector<std::atomic<std::uint32_t>>(pieces_.size());
  for (std::size_t i = 0; i < pieces_.size(); ++i) left_[i].store(pieces_[i].uses, std::memory_order_relaxed);
}

void Poisoner::cut(const StepPlan& plan, BufferId buffer, const std::vector<OpId>& users, const Memory& memory) {
  std::vector<std::uint64_t> borders;
  const auto each_access = [&](OpId op, auto&& visit) {
    for (const Access& access : plan.ops[op].accesses)
      if (access.buffer == buffer && access.bytes > 0) visit(access);
  };
  for (const OpId op : users)
    each_access(op, [&](const Access& a) { borders.insert(borders.end(), {a.offset, a.offset + a.bytes}); });
  std::sort(borders.begin(), borders.end());
  borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
  const Buffer& b = plan.buffers[buffer];
  for (std::size_t i = 0; i + 1 < borders.size(); ++i) {
    Piece piece{memory.at(b.tier, b.offset + borders[i]), borders[i + 1] - borders[i], 0, b.tier == Tier::device};
    bool written_first = false;
    std::vector<OpId> touching;
    for (const OpId op : users)
      each_access(op, [&](const Access& a) {
        if (a.offset > borders[i] || a.offset + a.bytes < borders[i + 1]) return;
        if (touching.empty()) written_first = a.mode == Mode::write;
        if (touching.empty() || touching.back() != op) touching.push_back(op);
      });
    if (!written_first) continue;
    piece.uses = static_cast<std::uint32_t>(touching.size());
    for (const OpId op : touching) pieces_of_op_[op].push_back(static_cast<std::uint32_t>(pieces_.size()));
    pieces_.push_back(piece);
  }
}

void Poisoner::finished(OpId op) {
  for (const std::uint32_t index : pieces_of_op_[op]) {
    if (left_[index].fetch_sub(1, std::memory_order_acq_rel) != 1) continue;
    const Piece& piece = pieces_[index];
    left_[index].store(piece.uses, std::memory_order_release);
    if (piece.device) {
      const Status filled = device_.fill(piece.data, poison_byte, piece.bytes);
      SLUICE_CHECK(filled.ok(), "(%s)", filled.error().message.c_str());
    } else {
      std::memset(piece.data, std::to_integer<int>(poison_byte), piece.bytes);
    }
  }
}

}  // namespace sluice
