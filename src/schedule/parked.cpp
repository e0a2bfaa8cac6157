#include "src/schedule/parked.h"

#include <algorithm>
#include <span>

namespace sluice {
namespace {

/// [begin, end) of something of which some pieces, in order, are values.
ParkedLayout layout_of(const Workload& w, std::uint64_t begin, std::uint64_t end, std::span<const SavedPiece> values) {
  ParkedLayout out;
  out.whole_bytes = end - begin;
  std::uint64_t at = begin;
  const auto leave_exact = [&](std::uint64_t to) {
    if (at < to) out.exact.push_back({at - begin, to - at});
  };
  for (const SavedPiece& piece : values) {
    const bool is_inside = piece.at >= begin && piece.at + piece.bytes <= end;
    if (piece.bytes == 0 || !is_inside || w.activation_dtype == ActivationDtype::exact) continue;
    leave_exact(piece.at);
    const auto numel = static_cast<std::int64_t>(piece.bytes / dtype_bytes(w.dtype));
    const std::uint64_t packed = quantized_bytes(numel, parked_blocks(w.activation_dtype));
    out.values.push_back({{piece.at - begin, piece.bytes}, {out.packed_bytes, packed}, numel});
    out.packed_bytes += packed;
    at = piece.at + piece.bytes;
  }
  leave_exact(end);
  out.bytes = out.packed_bytes;
  for (const SavedPiece& piece : out.exact) out.bytes += piece.bytes;
  return out;
}

}  // namespace

ParkedLayout parked_input(const Workload& workload, const SublayerCost& cost) {
  const SavedPiece all{0, cost.boundary_bytes};
  return layout_of(workload, 0, all.bytes, std::span(&all, 1));
}

ParkedLayout parked_saved(const Workload& workload, const SublayerCost& cost, SavedPart part) {
  const std::uint64_t core_at = cost.saved_bytes - cost.core_bytes;
  return layout_of(workload, part == SavedPart::core ? core_at : 0,
                   part == SavedPart::rest ? core_at : cost.saved_bytes, cost.saved_values);
}

}  // namespace sluice
