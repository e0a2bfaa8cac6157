#include "offload/state/moment_layout.h"

#include <cstring>

namespace sluice {
namespace {

constexpr std::uint64_t page_scales_bytes = MomentLayout::stream_page_bytes - moment_page_numel;

}  // namespace

void MomentLayout::to_stream(const std::byte* part, std::uint64_t part_numel, std::uint64_t numel,
                             std::byte* stream) const {
  for (std::uint64_t at = 0; at < numel; at += moment_page_numel, stream += stream_page_bytes) {
    const Place from = place(at, part_numel);
    std::memcpy(stream, part + from.codes, moment_page_numel);
    std::memcpy(stream + moment_page_numel, part + from.scales, page_scales_bytes);
  }
}

void MomentLayout::from_stream(const std::byte* stream, std::uint64_t numel, std::byte* part,
                               std::uint64_t part_numel) const {
  for (std::uint64_t at = 0; at < numel; at += moment_page_numel, stream += stream_page_bytes) {
    const Place to = place(at, part_numel);
    std::memcpy(part + to.codes, stream, moment_page_numel);
    std::memcpy(part + to.scales, stream + moment_page_numel, page_scales_bytes);
  }
}

}  // namespace sluice
